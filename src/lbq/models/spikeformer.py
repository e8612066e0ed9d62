"""E-SpikeFormer (Spike-driven Transformer V3): convolution blocks, then attention.

Yao et al., "Scaling Spike-driven Transformer with Efficient Spike Firing Approximation Training",
TPAMI 2025.
"""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from lbq.errors import ParameterError
from lbq.models.blocks import NeuronBuilder
from lbq.models.spikeformer_blocks import ConvBlock, SpikeFormerBlock, synapse
from lbq.neurons.baselines import IntegerLIF
from lbq.preprocessing import Pixels
from lbq.time import ImagesIn, MeanOverTime, OverTime, RepeatOverTime
from lbq.types import Logits, Sequence

ImageForm = Literal["cifar", "imagenet"]

_STRIDES: dict[ImageForm, tuple[int, ...]] = {"imagenet": (2, 2, 2, 2, 1), "cifar": (1, 2, 2, 1, 1)}
"""Stride of the synapse before each stage."""


@dataclass(frozen=True, kw_only=True)
class SpikeFormerShape:
    """The size of an E-SpikeFormer."""

    channels: tuple[int, int, int, int, int]
    """Channels of the five stages: three of convolution blocks, two of attention."""
    blocks: tuple[int, int, int, int, int] = (1, 1, 2, 6, 2)
    """Blocks of each stage."""
    heads: int = 8
    """Heads of the attention."""


class SpikeFormer(nn.Module):
    """E-SpikeFormer with its published neuron, with burst neurons or with any other.

    The first synapse reads the image, once; its currents are repeated at every timestep. Currents
    are averaged over all positions, a last neuron emits levels, and a linear layer reads them.

    Args:
        shape: channels and blocks.
        num_classes: number of logits.
        timesteps: number of timesteps (T); 1 as published.
        neuron: builds a neuron for a number of channels.
        form: "imagenet" (7x7 stem, 224 pixels become 14 x 14 tokens) or "cifar" (3x3 stem, 32
            pixels become 8 x 8 tokens).

    Attributes:
        preprocessing: how images are normalised; only networks from a recipe or a file have it.
    """

    preprocessing: Pixels | None

    def __init__(
        self,
        shape: SpikeFormerShape,
        *,
        num_classes: int,
        timesteps: int,
        neuron: NeuronBuilder,
        form: ImageForm = "imagenet",
    ) -> None:
        super().__init__()
        if form not in _STRIDES:
            raise ParameterError(f"form must be one of {', '.join(_STRIDES)}, got {form!r}")
        strides, is_large = _STRIDES[form], form == "imagenet"
        kernel, first = 7 if is_large else 3, shape.channels[0]
        conv = nn.Conv2d(3, first, kernel, stride=strides[0], padding=kernel // 2)
        norm = nn.BatchNorm2d(first)
        self.stem = nn.Sequential(ImagesIn(), conv, norm, RepeatOverTime(timesteps))
        self.stages = nn.ModuleList()
        self.between = nn.ModuleList()
        """Synapses between stages."""
        for stage, (channels, count) in enumerate(zip(shape.channels, shape.blocks, strict=True)):
            blocks = (
                ConvBlock(channels, neuron=neuron)
                if stage < 3
                else SpikeFormerBlock(channels, neuron=neuron, heads=shape.heads)
                for _ in range(count)
            )
            self.stages.append(nn.Sequential(*blocks))
        for inputs, outputs, stride in zip(
            shape.channels[:-1], shape.channels[1:], strides[1:], strict=True
        ):
            down = synapse(inputs, outputs, kernel=3, stride=stride, bias=True)
            self.between.append(nn.Sequential(neuron(inputs), down))
        last = shape.channels[-1]
        self.pool = OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.neuron = neuron(last)
        self.classifier = nn.Linear(last, num_classes)
        self.mean = MeanOverTime()
        _initialise(self)

    def forward(self, images: Tensor) -> Logits:
        """Classify images ``[B, C, H, W]``."""
        return self.mean(self.logits_over_time(images))

    def logits_over_time(self, images: Tensor) -> Sequence:
        """Return the classifier's output at every timestep."""
        first, *later = self.stages
        currents = first(self.stem(images))
        for between, stage in zip(self.between, later, strict=True):
            currents = stage(between(currents))
        return self.classifier(self.neuron(self.pool(currents)))


def _initialise(model: nn.Module) -> None:
    """Initialise weights by a normal distribution of deviation 0.02, cut at two deviations."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


@dataclass(frozen=True, kw_only=True)
class NamedSpikeFormer:
    """The shape of a published network; calling it builds the network.

    Example:
        >>> model = lbq.models.spikeformer_5m(10, form="cifar", width=0.25)
        >>> model(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    shape: SpikeFormerShape

    def __call__(
        self,
        num_classes: int,
        *,
        timesteps: int = 1,
        neuron: NeuronBuilder | None = None,
        width: float = 1.0,
        blocks: tuple[int, int, int, int, int] | None = None,
        form: ImageForm = "imagenet",
    ) -> SpikeFormer:
        """Build the network.

        Args:
            num_classes: number of logits.
            timesteps: number of timesteps (T).
            neuron: builds a neuron for a number of channels; by default the published one, which
                rounds to 0..4 and has no memory.
            width: factor on every number of channels, rounded to whole heads.
            blocks: number of blocks in each stage; by default the published numbers.
            form: as in :class:`SpikeFormer`.
        """

        def published(channels: int) -> IntegerLIF:
            del channels
            return IntegerLIF(4, decay=0.0, is_normalised=True)

        heads = self.shape.heads

        def scaled(channels: int) -> int:
            return max(1, round(channels * width / heads)) * heads

        if width <= 0:
            raise ParameterError(f"width must be positive, got {width}; 0.25 is a quarter")
        one, two, three, four, five = map(scaled, self.shape.channels)
        shape = replace(self.shape, channels=(one, two, three, four, five))
        return SpikeFormer(
            shape if blocks is None else replace(shape, blocks=blocks),
            num_classes=num_classes,
            timesteps=timesteps,
            neuron=published if neuron is None else neuron,
            form=form,
        )


spikeformer_5m = NamedSpikeFormer(shape=SpikeFormerShape(channels=(16, 32, 64, 128, 192)))
"""E-SpikeFormer with 5.1 million parameters."""
spikeformer_10m = NamedSpikeFormer(shape=SpikeFormerShape(channels=(24, 48, 96, 192, 240)))
"""E-SpikeFormer with 10.0 million parameters."""
spikeformer_19m = NamedSpikeFormer(shape=SpikeFormerShape(channels=(32, 64, 128, 256, 360)))
"""E-SpikeFormer with 19.0 million parameters."""
