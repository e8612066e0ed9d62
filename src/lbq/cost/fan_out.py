"""Exact fan-out: how many outputs each input position of a synapse reaches.

A position near a border reaches fewer outputs than one in the middle, and a strided synapse reads
some positions more often than others. Multiplying a mean rate by MACs ignores that
(docs/decisions/0006). An average pool is a linear map, so it is counted with the synapse behind it:
a position reaches every output that one of its cells reaches, once (docs/decisions/0010).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lbq.errors import ShapeError
from lbq.types import FanOut


@dataclass(frozen=True, kw_only=True)
class FanOutMap:
    """The outputs that each input position of a synapse reaches, axis by axis."""

    axes: tuple[Tensor, ...]
    """For every spatial axis ``[positions, outputs]``: true where a position reaches an output."""
    width: int
    """Outputs per output position: the output channels of a group, or all of a linear layer."""

    @property
    def is_identity(self) -> bool:
        """Whether every position reaches only its own output."""
        return self.width == 1 and all(
            axis.shape[0] == axis.shape[1] and bool(axis.eq(torch.eye(len(axis))).all())
            for axis in self.axes
        )

    def through_avg_pool(
        self,
        size: Sequence[int],
        *,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
    ) -> "FanOutMap":
        """Return the map from the input of an average pool before this synapse."""
        return self.through(
            [
                _windows(n, k, stride=s, padding=p, dilation=1)
                for n, k, s, p in zip(size, kernel, stride, padding, strict=True)
            ]
        )

    def through(self, cells: Sequence[Tensor]) -> "FanOutMap":
        """Return the map from the input of a linear operation before this synapse.

        Args:
            cells: for every spatial axis ``[positions, cells]``: true where a position is added or
                moved to a cell that this synapse reads.
        """
        if not self.axes:  # a linear layer: any cell reaches all outputs
            return FanOutMap(axes=tuple(c.any(1, keepdim=True) for c in cells), width=self.width)
        if [len(axis) for axis in self.axes] != [c.shape[1] for c in cells]:
            raise ShapeError(
                f"a pool of {[c.shape[1] for c in cells]} cells cannot precede a synapse "
                f"that reads {[len(axis) for axis in self.axes]} positions"
            )
        joined = ((c.long() @ axis.long()) > 0 for c, axis in zip(cells, self.axes, strict=True))
        return FanOutMap(axes=tuple(joined), width=self.width)

    def fan_out(self) -> FanOut:
        """Count the outputs that each position reaches: ``[1, *size]``, or ``[1]`` if equal."""
        counts = torch.full((1,), self.width, dtype=torch.int64)
        for axis in self.axes:
            counts = counts.unsqueeze(-1) * axis.sum(1)
        return counts


def linear_fan_out(out_features: int) -> FanOutMap:
    """Return the map of a linear synapse: every input reaches every output."""
    return FanOutMap(axes=(), width=out_features)


def identity_fan_out(size: Sequence[int]) -> FanOutMap:
    """Return the map of an identity shortcut: every position reaches its own output."""
    return FanOutMap(axes=tuple(torch.eye(n, dtype=torch.bool) for n in size), width=1)


def conv_fan_out(
    size: Sequence[int],
    weight_shape: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> FanOutMap:
    """Return the map of a convolution.

    Args:
        size: spatial size of the input.
        weight_shape: ``[out, in / groups, *kernel]``.
        stride: step of the kernel, per axis.
        padding: zeros added on both sides, per axis.
        dilation: distance of the kernel's taps, per axis.
        groups: number of channel groups.
    """
    kernel = weight_shape[2:]
    if not len(size) == len(kernel) == len(stride) == len(padding) == len(dilation):
        raise ShapeError(
            f"a convolution with a kernel of {len(kernel)} axes needs as many sizes, strides, "
            f"paddings and dilations, got {size=}, {stride=}, {padding=}, {dilation=}"
        )
    axes = (
        _windows(n, k, stride=s, padding=p, dilation=d)
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    return FanOutMap(axes=tuple(axes), width=weight_shape[0] // groups)


def num_valid_taps(
    size: Sequence[int],
    outputs: Sequence[int],
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> int:
    """Count the pairs of output position and kernel tap that read an input, not padding.

    Args:
        size: spatial size of the input.
        outputs: spatial size of the output.
        kernel: size of the kernel.
        stride: step of the kernel, per axis.
        padding: zeros before the first position, per axis.
        dilation: distance of the kernel's taps, per axis.
    """
    counts: list[int] = []
    for n, o, k, s, p, d in zip(size, outputs, kernel, stride, padding, dilation, strict=True):
        read = torch.arange(o).unsqueeze(1) * s - p + torch.arange(k) * d  # [outputs, taps]
        counts.append(int(((read >= 0) & (read < n)).sum()))
    return math.prod(counts)


def _windows(size: int, kernel: int, *, stride: int, padding: int, dilation: int) -> Tensor:
    """Return whether a position along an axis lies in a window: ``[positions, windows]``."""
    count = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    starts = torch.arange(count) * stride - padding
    offset = torch.arange(size).unsqueeze(1) - starts  # [positions, windows]
    return (offset >= 0) & (offset < dilation * kernel) & (offset % dilation == 0)
