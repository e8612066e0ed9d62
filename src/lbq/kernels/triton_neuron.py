"""Declared neurons on GPUs: the binding of ``neuron_*`` in ``triton_kernels.py``.

Membranes are saved for the backward: a program cannot hold those of all timesteps.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.kernels.neuron_spec import RESETS
from lbq.kernels.packed_neuron import ROWS, WINDOWS, NeuronSettings, PackedNeuron
from lbq.kernels.scan_interface import Layout, ScanOutput, cache_signature, match_layout
from lbq.kernels.triton_scan import Tiling, known_kernels, power_of_2, supports, tiling_of
from lbq.types import Carry, Currents


def can_run(currents: Currents, packed: PackedNeuron, *, interpreted: bool = False) -> bool:
    """Return whether the GPU kernels support these arguments, as ``triton_scan.can_run``."""
    return supports(currents, packed.coefficients, interpreted=interpreted)


def run(
    currents: Currents, carry: Carry | None, packed: PackedNeuron, layout: Layout
) -> ScanOutput:
    """Compute the sequence; differentiable once."""
    bursts, levels, last_carry, _ = TritonNeuronScan.apply(
        currents, packed.coefficients, packed.edges, packed.jumps, carry, packed.settings, layout
    )
    return ScanOutput(bursts, levels, last_carry)


@cache_signature
class TritonNeuronScan(torch.autograd.Function):
    """``apply(currents, coefficients, edges, jumps, carry, settings, layout)``.

    Returns bursts, levels, the last carry, and the membranes for the backward.
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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute the sequence."""

        def sequence(dtype: torch.dtype) -> Tensor:
            return torch.empty_strided(
                currents.shape, layout.strides, dtype=dtype, device=currents.device
            )

        bursts = sequence(currents.dtype)
        levels = sequence(torch.int8 if settings.is_signed else torch.uint8)
        membranes = sequence(torch.float32)
        last_carry = torch.empty_like(membranes[0])
        tiling, count = _tiling(currents, coefficients, edges, layout)
        with torch.cuda.device_of(currents):  # triton launches on the current device
            known_kernels().neuron_forward[tiling.grid](
                currents,
                coefficients,
                edges,
                jumps,
                match_layout(carry, last_carry),
                bursts,
                levels,
                membranes,
                last_carry,
                len(currents),
                currents.stride(0),
                currents[0].numel(),
                tiling.run,
                tiling.num_members,
                coefficients.shape[1],
                settings.num_above,
                count,
                float(settings.max_level),
                **_constants(settings, count, tiling),
                enable_fp_fusion=False,
            )
        return bursts, levels, last_carry, membranes

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the membranes in place of the currents."""
        currents, *tensors, ctx.settings, ctx.layout = inputs
        _, levels, _, membranes = output
        ctx.mark_non_differentiable(levels, membranes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(membranes, *tensors)
        ctx.dtype = currents.dtype

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] -- the decorator hides names
        ctx: Any, *grads: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Compute the gradients."""
        grad_bursts, _, grad_last_carry, _ = grads
        membranes, coefficients, edges, jumps, carry = ctx.saved_tensors
        settings: NeuronSettings = ctx.settings
        grad_currents = torch.empty_like(membranes, dtype=ctx.dtype)
        if grad_bursts is None:
            grad_bursts = torch.zeros_like(grad_currents)
        grad_carry = None if carry is None else torch.empty_like(membranes[0])
        tiling, count = _tiling(membranes, coefficients, edges, ctx.layout)
        num_sums = ROWS + (count if settings.wants_thresholds else 0)
        sums = coefficients.new_empty(num_sums, tiling.num_rows, coefficients.shape[1])
        with torch.cuda.device_of(membranes):
            known_kernels().neuron_backward[tiling.grid](
                match_layout(grad_bursts, grad_currents),
                match_layout(grad_last_carry, membranes[0]),
                membranes,
                coefficients,
                edges,
                jumps,
                match_layout(carry, membranes[0]),
                grad_currents,
                grad_carry,
                sums,
                len(membranes),
                membranes[0].numel(),
                tiling.run,
                tiling.num_members,
                coefficients.shape[1],
                settings.num_above,
                count,
                float(settings.max_level),
                settings.lo,
                settings.hi,
                settings.width,
                **_constants(settings, count, tiling),
                RESETS_WITH_GRADIENT=settings.resets_with_gradient,
                DETACH_CARRY=settings.detach_carry,
                WINDOW=None if settings.window < 0 else WINDOWS[settings.window],
                HAS_TAIL=settings.has_tail,
                MEETS_AT_ZERO=settings.lo < 0,
                WANTS_THRESHOLDS=settings.wants_thresholds,
            )
        grad_coefficients = torch.zeros_like(coefficients)
        grad_coefficients[:num_sums] = sums.sum(1, dtype=torch.float64).to(coefficients.dtype)
        return grad_currents, grad_coefficients, None, None, grad_carry, None, None


def _tiling(
    sequence: Tensor, coefficients: Tensor, edges: Tensor | None, layout: Layout
) -> tuple[Tiling, int]:
    """Divide the values of a timestep into tiles; return them and the number of thresholds."""
    count = 0 if edges is None else len(edges)
    tiling = tiling_of(sequence, coefficients[0], run=layout.run, per_value=max(1, count))
    return tiling, count


def _constants(settings: NeuronSettings, count: int, tiling: Tiling) -> dict[str, Any]:
    return {
        "UNIFORM": settings.is_uniform,
        "SIGNED": settings.is_signed,
        "RESET": RESETS[settings.reset],
        "AFTER_DECAY": settings.after_decay,
        "THRESHOLDS": power_of_2(max(1, count)),
        "MEMBERS": tiling.members,
        "CHANNELS": tiling.channels,
    }
