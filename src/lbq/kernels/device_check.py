"""The first use of a GPU kernel on a device: a comparison with plain torch on a small tensor.

Kernels were not tested on every GPU and with every version of triton. What differs from plain torch
is not used there, with a warning.
"""

import warnings
from collections.abc import Callable, Hashable, Sequence
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from lbq.kernels.neuron_spec import ResolvedNeuron
from lbq.kernels.packed_neuron import PackedNeuron, layout_of, pack_neuron
from lbq.kernels.plain_neuron import neuron_scan_plain
from lbq.kernels.plain_scan import PlainBurstScan
from lbq.kernels.scan_interface import Layout, ScanOptions, ScanOutput
from lbq.types import Carry, Currents

TOLERANCE = 1e-4
"""Of gradients, relative to the largest of a tensor."""
_TIMESTEPS, _BATCH, _CHANNELS = 4, 2, 24

NeuronKernel = Callable[[Currents, Carry | None, PackedNeuron, Layout], ScanOutput]

_trusted: dict[Hashable, bool] = {}


def is_trusted(
    key: Hashable,
    device: torch.device,
    kernel: Callable[[], Sequence[Tensor]],
    plain: Callable[[], Sequence[Tensor]],
) -> bool:
    """Return whether a kernel agrees with plain torch on this device; computed once for a key.

    Both functions return outputs, levels and carry, which must be equal, then gradients.
    """
    if (device, key) not in _trusted:
        with torch.enable_grad():
            why = _difference(kernel, plain)
        _trusted[device, key] = why is None
        if why is not None:
            is_gpu = device.type == "cuda"
            name = torch.cuda.get_device_name(device) if is_gpu else str(device)
            versions = f"torch {torch.__version__}, triton {metadata.version('triton')}"
            warnings.warn(
                f"a kernel of lbq {why} on {name} ({versions}), so neurons like this one run on "
                f"plain torch from now on, several times slower; please report this",
                stacklevel=2,
            )
    return _trusted[device, key]


def is_trusted_neuron(currents: Currents, neuron: ResolvedNeuron, kernel: NeuronKernel) -> bool:
    """Return whether a kernel agrees with the plain loop for a declared neuron on this device."""
    packed = pack_neuron(currents, neuron)
    assert packed is not None  # checked by the caller
    channels, count = packed.coefficients.shape[1], len(neuron.above.jumps)
    settings = packed.settings._replace(num_above=0, max_level=0, lo=0.0, hi=0.0, width=0.0)
    key = (currents.dtype, settings, count.bit_length(), channels == 1)

    def run(by_kernel: bool) -> list[Tensor]:
        leaves = [_leaf(t) for t in (neuron.scale, neuron.decay, neuron.amount)]
        copy = neuron._replace(scale=leaves[0], decay=leaves[1], amount=leaves[2])
        small, carry = _inputs(currents, channels, largest=neuron.spec.largest)
        if by_kernel:
            small_packed = pack_neuron(small, copy)
            layout = None if small_packed is None else layout_of(small_packed, small)
            assert small_packed is not None
            assert layout is not None  # as those of the currents
            out = kernel(small, carry, small_packed, layout)
        else:
            out = neuron_scan_plain(small.float(), copy, carry)
            out = out._replace(bursts=out.bursts.to(small.dtype))
        return _with_gradients(out, [*leaves, small, carry])

    return is_trusted(key, currents.device, lambda: run(True), lambda: run(False))


def is_trusted_burst(
    currents: Currents, coefficients: Sequence[Tensor | None], options: ScanOptions, kernel: Any
) -> bool:
    """Return whether a kernel agrees with plain torch for a burst neuron on this device."""
    step = coefficients[0]
    assert step is not None
    modes = (options.reset_mode, options.detach_reset, options.detach_carry)
    key = (currents.dtype, *modes, step.numel() == 1, coefficients[1] is None)

    def run(scan: Any) -> list[Tensor]:
        leaves = [None if c is None else _leaf(c) for c in coefficients]
        small, carry = _inputs(currents, step.numel(), largest=options.max_level)
        out = ScanOutput(*scan.apply(small, *leaves, carry, options)[:3])
        return _with_gradients(out, [*(leaf for leaf in leaves if leaf is not None), small, carry])

    return is_trusted(key, currents.device, lambda: run(kernel), lambda: run(PlainBurstScan))


def _inputs(currents: Currents, channels: int, *, largest: int) -> tuple[Tensor, Tensor]:
    """Return small random currents and a carry, the same ones every time."""
    generator = torch.Generator().manual_seed(0)
    instant = (_BATCH, _CHANNELS if channels == 1 else channels, *[3] * (currents.dim() - 3))
    small = torch.randn(_TIMESTEPS, *instant[: currents.dim() - 1], generator=generator)
    carry = torch.randn(small.shape[1:], generator=generator)
    small = (small * max(2, largest)).to(currents.device, currents.dtype)
    return small.requires_grad_(), carry.to(currents.device).requires_grad_()


def _with_gradients(out: ScanOutput, leaves: list[Tensor]) -> list[Tensor]:
    loss = out.bursts.float().square().sum() + out.carry.square().sum()
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return [*out, *grads]


def _difference(
    kernel: Callable[[], Sequence[Tensor]], plain: Callable[[], Sequence[Tensor]]
) -> str | None:
    """Say what a kernel does otherwise; None if it agrees."""
    expected = plain()
    try:
        found = kernel()
    except Exception as error:
        return f"fails ({type(error).__name__}: {error})"
    if not all(torch.equal(a, b) for a, b in zip(found[:3], expected[:3], strict=True)):
        return "computes other levels than plain torch"
    for got, wanted in zip(found[3:], expected[3:], strict=True):
        error = (got.float() - wanted.float()).abs().max()
        if not bool(
            error <= max(TOLERANCE, torch.finfo(got.dtype).eps) * wanted.float().abs().max() + 1e-6
        ):
            return "computes other gradients than plain torch"
    return None


def _leaf(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_()
