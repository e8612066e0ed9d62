"""How many synapses leave each input position of a synapse: exactly, borders included.

A position near a border reaches fewer outputs than one in the middle, and a strided synapse reads
some positions more often than others. Multiplying a mean rate by MACs ignores that
(docs/decisions/0006).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lbq.errors import ShapeError
from lbq.types import FanOut


def linear_fan_out(out_features: int) -> FanOut:
    """Return the fan-out of a linear synapse: every input reaches every output."""
    return torch.tensor([out_features], dtype=torch.int64)


def conv_fan_out(
    size: Sequence[int],
    weight_shape: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> FanOut:
    """Count, for every position of a convolution's input, the outputs that it reaches.

    Args:
        size: spatial size of the input.
        weight_shape: ``[out, in / groups, *kernel]``.
        stride: step of the kernel, per axis.
        padding: zeros added on both sides, per axis.
        dilation: distance of the kernel's taps, per axis.
        groups: number of channel groups.

    Returns:
        ``[1, *size]``: the count is the same for every channel.
    """
    kernel = weight_shape[2:]
    if not len(size) == len(kernel) == len(stride) == len(padding) == len(dilation):
        raise ShapeError(
            f"a convolution with a kernel of {len(kernel)} axes needs as many sizes, strides, "
            f"paddings and dilations, got {size=}, {stride=}, {padding=}, {dilation=}"
        )
    counts = torch.ones(1, dtype=torch.int64)
    for axis in range(len(size)):
        along = _reached_along_axis(
            size[axis], kernel[axis], stride[axis], padding[axis], dilation[axis]
        )
        counts = counts.unsqueeze(-1) * along  # positions are reached axis by axis
    return counts * (weight_shape[0] // groups)


def pooled_fan_out(
    behind: FanOut,
    size: Sequence[int],
    *,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
) -> FanOut:
    """Carry the fan-out of an average pool's output back to its input positions.

    An average is a linear map, so it belongs to the synapse behind it: a position reaches what the
    cells that contain it reach.
    """
    if math.prod(behind.shape) == 1:
        cells = [
            (s + 2 * p - k) // d + 1
            for s, p, k, d in zip(size, padding, kernel, stride, strict=True)
        ]
        behind = behind.reshape(1, *[1] * len(size)).expand(1, *cells)
    for axis in range(len(size)):
        reach = _membership(
            size[axis], behind.shape[axis + 1], kernel[axis], stride[axis], padding[axis]
        )
        behind = (behind.movedim(axis + 1, -1) @ reach).movedim(-1, axis + 1)
    return behind


def _reached_along_axis(size: int, kernel: int, stride: int, padding: int, dilation: int) -> Tensor:
    """Count the outputs along one axis that read each input position."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    counts = torch.zeros(size, dtype=torch.int64)
    for tap in range(kernel):
        read = torch.arange(outputs) * stride - padding + tap * dilation
        inside = read[(read >= 0) & (read < size)]
        counts[inside] += 1  # positions read through one tap are distinct
    return counts


def _membership(size: int, cells: int, kernel: int, stride: int, padding: int) -> Tensor:
    """Say which input position belongs to which cell of a pool: ``[cells, size]``, 0 or 1."""
    offset = torch.arange(size) - (torch.arange(cells) * stride - padding).unsqueeze(1)
    return ((offset >= 0) & (offset < kernel)).to(torch.int64)
