"""Bursts kept for the backward pass as packed levels: :func:`lbq.pack_bursts`.

autograd passes every tensor that it saves to a hook. The hook follows the autograd graph from the
tensor to the neuron that emitted it, to learn the step. It then packs the tensor if every value has
the bits of ``step * level``; this is checked value by value, so views, casts, pools and changes in
place cannot lead to a wrong gradient. Everything else is kept unchanged. Memory that is saved again
is recognised by its storage and torch's version counter.
"""

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from lbq.kernels import native_scan
from lbq.kernels.scan_interface import layout_for, packing

_FEWEST_VALUES = 1024
"""Smaller tensors are not worth a call."""
_LONGEST_PATH = 8
_PASSED = frozenset(
    f"{name}Backward{version}"
    for name in (
        *("View", "UnsafeView", "ReshapeAlias", "Reshape", "AsStrided", "Alias"),
        *("Unsqueeze", "Squeeze", "Select", "Slice", "Split", "Unbind", "Permute", "Transpose"),
        *("ToCopy", "Clone", "MaxPool2DWithIndices", "AdaptiveMaxPool2D", "Relu", "Sub"),
        *("BackwardHookFunction", "_Priced"),
    )
    for version in ("", "0", "1")
)
"""autograd nodes that may pass bursts on: views, casts, pools, hooks of modules, levels that are
rounded to powers of two, the term of a cost budget."""


@contextmanager
def pack_bursts() -> Generator[None]:
    """Keep the bursts of the forward pass in the block as packed levels.

    A convolution keeps its input for the backward pass: 4 bytes per value, 2 in half precision. A
    burst is ``step * level``, so its level is enough: a byte holds 8 levels for ``max_level=1``, 3
    for the default 5, 2 up to 15, 1 above. In the backward pass the bursts have the same bits, so
    levels, losses and gradients do not change. Neurons also keep their currents instead of their
    membranes where these are smaller (half precision, repeated currents), with the same gradients.

    The backward pass may run outside the block. The block works with autocast, gradient
    accumulation and DistributedDataParallel. Tensors that ``torch.utils.checkpoint`` recomputes or
    that a compiled model saves are not packed. On a GPU every packed tensor costs a
    synchronisation. If hooks for saved tensors are nested, as with ``save_on_cpu``, torch applies
    the innermost only.

    Example:
        >>> model = lbq.resnet20(10, width=1 / 16, fused=True)
        >>> with lbq.pack_bursts():
        ...     loss = model(torch.randn(4, 3, 32, 32)).logsumexp(1).mean()
        >>> loss.backward()
    """
    token = packing.set(True)
    try:
        with saved_tensors_hooks(_pack, _unpack):
            yield
    finally:
        packing.reset(token)


@dataclass(frozen=True, eq=False)
class PackedBursts:
    """Bursts as packed levels, and what unpacking needs."""

    levels: Tensor
    """uint8; every byte holds several levels as digits of base ``max_level + 1``."""
    step: Tensor
    max_level: int
    run: int
    """Run length of equal steps in memory, 0 for one step."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(values: Tensor, step: Tensor, max_level: int, run: int) -> "PackedBursts | None":
        """Pack dense values; None unless they have the bits of ``step * level``."""
        step = step.clone(memory_format=torch.contiguous_format)  # it may change before it is used
        if not _is_native(values.dtype, step):
            levels = _pack_plain(values, step, max_level)
        else:
            count = -(-values.numel() // levels_per_byte(max_level))
            levels = torch.empty(count, dtype=torch.uint8)
            if not torch.ops.lbq.pack_bursts.default(values, step, run, max_level, levels):
                levels = None
        if levels is None:
            return None
        shape, strides = tuple(values.shape), values.stride()
        return PackedBursts(levels, step, max_level, run, shape, strides, values.dtype)

    def unpack(self) -> Tensor:
        """Return the bursts, with the same bits and strides."""
        if not _is_native(self.dtype, self.step):
            return _unpack_plain(self)
        bursts = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
        torch.ops.lbq.unpack_bursts.default(
            self.levels, self.step, self.run, self.max_level, bursts
        )
        return bursts


@cache
def levels_per_byte(max_level: int) -> int:
    """Return how many levels 0..N fit into a byte."""
    per_byte = 1
    while (max_level + 1) ** (per_byte + 1) <= 256:
        per_byte += 1
    return per_byte


class _Kept(NamedTuple):
    """A tensor that is kept unchanged. With hooks, torch does not compare versions itself."""

    tensor: Tensor
    version: int


def _pack(tensor: Tensor) -> "PackedBursts | _Kept":
    version = tensor._version
    is_plain = type(tensor) is Tensor  # a subclass may be distributed
    if is_plain and tensor.numel() >= _FEWEST_VALUES and tensor.is_floating_point():
        scan = _emitting_scan(tensor)
        packed = None if scan is None else _pack_once(tensor.detach(), scan, version)
        if packed is not None:
            return packed
    return _Kept(tensor.detach(), version)  # the tensor itself would keep its own graph


def _pack_once(values: Tensor, scan: Any, version: int) -> PackedBursts | None:
    """Pack bursts, or share the levels if the same, unchanged memory was packed before."""
    run = run_of(values, scan.burst_step)
    if run is None:
        return None
    storage = StorageWeakRef(values.untyped_storage())  # while it exists, no other has its address
    place = storage.cdata, values.storage_offset(), values.numel(), values.dtype, version, run
    known: dict[Any, tuple[StorageWeakRef, weakref.ref[PackedBursts]]]
    known = scan.__dict__.setdefault("packed_bursts", {})
    packed = known[place][1]() if place in known else None
    if packed is not None:
        return replace(packed, shape=tuple(values.shape), strides=values.stride())
    packed = PackedBursts.of(values, scan.burst_step, scan.options.max_level, run)
    if packed is not None:
        known[place] = storage, weakref.ref(packed)
    return packed


def _unpack(kept: "PackedBursts | _Kept") -> Tensor:
    if isinstance(kept, PackedBursts):
        return kept.unpack()
    tensor, version = kept
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} that is needed for the gradient was modified "
            f"by an inplace operation: it is at version {tensor._version}, expected {version}; "
            f"replace the operation by one that returns a new tensor"
        )
    return tensor


def _emitting_scan(tensor: Tensor) -> Any:
    """Return the autograd node of the neuron whose bursts this tensor may hold, or None."""
    node = tensor.grad_fn
    for _ in range(_LONGEST_PATH):
        if isinstance(node, BackwardCFunction) and hasattr(node, "burst_step"):
            return node
        if node is None or type(node).__name__ not in _PASSED:
            return None
        node = node.next_functions[0][0]
    return None


def run_of(values: Tensor, step: Tensor) -> int | None:
    """Return the run length of equal steps in memory, 0 for one step; None if not dense."""
    leading = values.dim() - step.dim() if step.numel() > 1 else 1 + (values.dim() == 5)
    if leading not in (1, 2) or (leading == 2 and len(values) > 1 and values.stride(0) == 0):
        return None
    layout = layout_for(values if leading == 2 else values.unsqueeze(0), step)
    if layout is None:
        return None
    return 0 if step.numel() == 1 else layout.run


def _is_native(dtype: torch.dtype, step: Tensor) -> bool:
    is_supported = dtype in native_scan.DTYPES and step.dtype == torch.float32
    return is_supported and step.device.type == "cpu" and native_scan.isa() is not None


def _pack_plain(values: Tensor, step: Tensor, max_level: int) -> Tensor | None:
    levels = torch.empty_strided(
        values.shape, values.stride(), dtype=torch.uint8, device=values.device
    )
    levels.copy_((values / step).round().clamp(0, max_level))
    bits = torch.int16 if values.element_size() == 2 else torch.int32
    bits = torch.int64 if values.element_size() == 8 else bits
    if not torch.equal((step * levels).to(values.dtype).view(bits), values.view(bits)):
        return None
    per_byte, base = levels_per_byte(max_level), max_level + 1
    count = -(-values.numel() // per_byte)
    digits = torch.nn.functional.pad(
        levels.as_strided((levels.numel(),), (1,)), (0, per_byte * count - levels.numel())
    )
    packed = torch.zeros(count, dtype=torch.uint8, device=values.device)
    for digit in digits.view(per_byte, count).flip(0):
        packed = packed * base + digit
    return packed


def _unpack_plain(packed: PackedBursts) -> Tensor:
    rest, base = packed.levels, packed.max_level + 1
    digits: list[Tensor] = []
    for _ in range(levels_per_byte(packed.max_level)):
        digits.append(rest % base if base < 256 else rest)
        rest = rest // base if base < 256 else rest
    levels = torch.cat(digits)[: prod(packed.shape)].as_strided(packed.shape, packed.strides)
    return (packed.step * levels).to(packed.dtype)
