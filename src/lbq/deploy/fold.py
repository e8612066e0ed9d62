"""Folding batch norm into the synapse before it, in float64."""

import torch
from torch import Tensor, nn

from lbq.errors import LoweringError


def batch_norm_affine(norm: nn.BatchNorm1d | nn.BatchNorm2d, *, path: str) -> tuple[Tensor, Tensor]:
    """Return the gain and the offset per channel that a batch norm applies in eval mode."""
    if norm.running_mean is None or norm.running_var is None:
        raise LoweringError(
            f"{path} has no running statistics, so what it does depends on the batch; train it "
            f"with track_running_stats=True"
        )
    gain = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:  # pyright: ignore[reportUnnecessaryComparison] -- affine=False
        gain = gain * norm.weight.double()
    offset = -norm.running_mean.double() * gain
    if norm.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
        offset = offset + norm.bias.double()
    return gain.detach(), offset.detach()


def fold_batch_norm(
    weight: Tensor, bias: Tensor | None, gain: Tensor, offset: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the synapse that does what both did one after the other."""
    scaled = weight.double() * gain.reshape(-1, *[1] * (weight.dim() - 1))
    if bias is None:
        return scaled, offset
    return scaled, torch.addcmul(offset, bias.double(), gain)
