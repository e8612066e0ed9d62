"""Declared neurons in native CPU code: one scan for all of them (``native/src/neuron_scan.h``).

The kernels process all timesteps of a few values at a time. Only the currents are saved for the
backward, which recomputes the membranes. Channels first and channels last both run without a copy.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.kernels.native_scan import DTYPES, is_built
from lbq.kernels.packed_neuron import NeuronSettings, PackedNeuron
from lbq.kernels.scan_interface import Layout, ScanOutput, cache_signature, match_layout
from lbq.types import Carry, Currents


def can_run(currents: Currents) -> bool:
    """Return whether the native kernels support these currents."""
    return (
        currents.device.type == "cpu"
        and is_built()
        and currents.dtype in DTYPES
        and currents.numel() > 0
    )


def run(
    currents: Currents, carry: Carry | None, packed: PackedNeuron, layout: Layout
) -> ScanOutput:
    """Compute the sequence; differentiable once."""
    return ScanOutput(
        *NativeNeuronScan.apply(
            currents,
            packed.coefficients,
            packed.edges,
            packed.jumps,
            carry,
            packed.settings,
            layout,
        )
    )


@cache_signature
class NativeNeuronScan(torch.autograd.Function):
    """``apply(currents, coefficients, edges, jumps, carry, settings, layout)``.

    Returns bursts, levels and the last carry.
    """

    @staticmethod
    def forward(
        currents: Tensor,
        coefficients: Tensor,
        edges: Tensor | None,
        jumps: Tensor | None,
        carry: Tensor | None,
        settings: NeuronSettings,
        layout: Layout,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Allocate in the currents' memory order and compute the sequence."""

        def sequence(dtype: torch.dtype) -> Tensor:
            return torch.empty_strided(currents.shape, layout.strides, dtype=dtype)

        bursts = sequence(currents.dtype)
        levels = sequence(torch.int8 if settings.is_signed else torch.uint8)
        last_carry = torch.empty_strided(
            currents.shape[1:], layout.strides[1:], dtype=torch.float32
        )
        torch.ops.lbq.neuron_forward.default(
            currents,
            coefficients,
            edges,
            jumps,
            match_layout(carry, last_carry),
            _run_length(layout, coefficients),
            *settings.forward,
            bursts,
            levels,
            last_carry,
        )
        return bursts, levels, last_carry

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the inputs; nothing else of their size."""
        *tensors, ctx.settings, ctx.layout = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides names
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Recompute the membranes, then the gradients."""
        grad_bursts, _, grad_last_carry = grads
        currents, coefficients, edges, jumps, carry = ctx.saved_tensors
        settings: NeuronSettings = ctx.settings
        strides = ctx.layout.strides
        grad_currents = torch.empty_strided(currents.shape, strides, dtype=currents.dtype)
        if grad_bursts is None:
            grad_bursts = torch.zeros_like(grad_currents)
        state = None
        if carry is not None or grad_last_carry is not None:
            state = torch.empty_strided(currents.shape[1:], strides[1:], dtype=torch.float32)
            grad_last_carry, carry = (match_layout(t, state) for t in (grad_last_carry, carry))
        grad_coefficients = torch.zeros_like(coefficients)
        torch.ops.lbq.neuron_backward.default(
            match_layout(grad_bursts, grad_currents),
            grad_last_carry,
            currents,
            coefficients,
            edges,
            jumps,
            carry,
            _run_length(ctx.layout, coefficients),
            *settings,
            grad_currents,
            None if carry is None else state,
            grad_coefficients,
        )
        grad_carry = None if carry is None else state
        return grad_currents, grad_coefficients, None, None, grad_carry, None, None


def _run_length(layout: Layout, coefficients: Tensor) -> int:
    """Return the run length of equal channels; 0 for one, independent of sizes when compiled."""
    return 0 if coefficients.shape[1] == 1 else layout.run
