"""Map where the attention of a spiking transformer passes levels on."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lbq.models.spikeformer_blocks import SpikeDrivenAttention
from lbq.neurons.watch import record_levels
from lbq.preprocessing import Pixels

MOST_SAMPLES = 6
MOST_BLOCKS = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMaps:
    """Mean levels behind the attention of some blocks, token by token."""

    images: Tensor
    """``[B, H, W, C]`` in 0..1."""
    blocks: dict[str, Tensor]
    """By path of the attention: ``[B, h, w]``, the mean over channels and timesteps."""


@torch.no_grad()
def read_attention(model: nn.Module, images: Tensor) -> AttentionMaps | None:
    """Record the levels behind every attention; None for a network that has none.

    If there are many blocks, some of them are shown, from the first to the last.

    Args:
        model: the network, in eval mode.
        images: normalised, ``[B, C, H, W]``; the first few are shown.
    """
    found = [path for path, m in model.named_modules() if isinstance(m, SpikeDrivenAttention)]
    if not found or images.dim() != 4:
        return None
    few = min(MOST_BLOCKS, len(found))
    last = len(found) - 1
    shown = [found[round(i * last / max(1, few - 1))] for i in range(few)]
    images = images[:MOST_SAMPLES]
    with record_levels(model) as levels:
        model(images)
    return AttentionMaps(
        images=_as_seen(images, getattr(model, "preprocessing", None)),
        blocks={path: levels[f"{path}.output_neuron"][0].float().mean((0, 2)) for path in shown},
    )


def _as_seen(images: Tensor, preprocessing: Pixels | None) -> Tensor:
    """Undo the normalisation, or stretch each image to 0..1 if it is unknown."""
    images = images.float()
    if preprocessing is None:
        low, high = images.amin((1, 2, 3), True), images.amax((1, 2, 3), True)
        seen = (images - low) / (high - low).clamp(min=1e-9)
    else:
        mean, std = (
            torch.tensor(v).reshape(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std)
        )
        seen = images * std + mean
    return seen.clamp(0, 1).movedim(1, -1)
