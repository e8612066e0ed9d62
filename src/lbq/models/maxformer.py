"""Max-Former: max pools between stages, depthwise convolutions early, attention late.

Fang et al., "Spiking Neural Networks Need High-Frequency Information", NeurIPS 2025.
"""

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor, nn

from lbq.errors import ParameterError
from lbq.models.blocks import NeuronBuilder
from lbq.models.spikeformer import ImageForm
from lbq.models.spikeformer_blocks import Mixer, SpikeDrivenAttention, synapse
from lbq.neurons.baselines import HardResetLIF
from lbq.preprocessing import Pixels
from lbq.time import ImagesIn, MeanOverTime, OverTime, RepeatOverTime
from lbq.types import Logits, Sequence

_HEAD = 64
"""Channels of a head at full width."""


@dataclass(frozen=True, kw_only=True)
class MaxFormerShape:
    """The size of a Max-Former."""

    channels: int
    """Channels of the last stage; the first has a quarter, the second half."""
    blocks: tuple[int, int, int] = (1, 2, 7)
    """Blocks of each stage."""
    heads: int = 12
    """Heads of the attention in the last stage."""


class MaxFormer(nn.Module):
    """Max-Former with the published binary neuron, or with bursts.

    Shortcuts add currents. The first synapse reads the image, once.

    Args:
        shape: channels and blocks.
        num_classes: number of logits.
        timesteps: number of timesteps (T).
        neuron: builds a neuron for a number of channels; None for the published one, whose
            threshold after attention is half of that elsewhere.
        form: "imagenet" (224 pixels become 14 x 14 tokens in the last stage) or "cifar" (32 pixels
            become 8 x 8).
    """

    preprocessing: Pixels | None

    def __init__(
        self,
        shape: MaxFormerShape,
        *,
        num_classes: int,
        timesteps: int = 4,
        neuron: NeuronBuilder | None = None,
        form: ImageForm = "imagenet",
    ) -> None:
        super().__init__()
        if form not in ("cifar", "imagenet"):
            raise ParameterError(f'form must be "cifar" or "imagenet", got {form!r}')
        if shape.channels % (4 * shape.heads):
            raise ParameterError(
                f"{shape.channels} channels must be a multiple of 4 x {shape.heads} heads"
            )
        behind_attention = neuron or partial(_published, threshold=1.0)
        neuron = neuron or _published
        quarter, half, whole = shape.channels // 4, shape.channels // 2, shape.channels
        stride = 2 if form == "imagenet" else 1
        first = nn.Conv2d(3, quarter // 2, 3, stride=stride, padding=1, bias=False)
        norm = nn.BatchNorm2d(quarter // 2)
        self.stem = nn.Sequential(ImagesIn(), first, norm, RepeatOverTime(timesteps))
        one, two, three = shape.blocks

        def attention() -> SpikeDrivenAttention:
            return SpikeDrivenAttention(
                whole,
                neuron=neuron,
                heads=shape.heads,
                value_ratio=1,
                scale=0.125,
                output_neuron=behind_attention,
                bias=True,
            )

        self.stages = nn.Sequential(
            Embedding(quarter // 2, quarter, stride=stride, neuron=neuron),
            *(m for _ in range(one) for m in _convolving(quarter, 7, neuron)),
            PoolingEmbedding(quarter, half, neuron=neuron),
            *(m for _ in range(two) for m in _convolving(half, 5, neuron)),
            PoolingEmbedding(half, whole, neuron=neuron),
            *(
                m
                for _ in range(three)
                for m in (attention(), Mixer(whole, neuron=neuron, bias=True))
            ),
        )
        self.pool = OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.neuron = neuron(whole)
        self.classifier = nn.Linear(whole, num_classes)
        self.mean = MeanOverTime()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Logits:
        """Classify images ``[B, C, H, W]``."""
        return self.mean(self.logits_over_time(images))

    def logits_over_time(self, images: Tensor) -> Sequence:
        """Return the classifier's output at every timestep."""
        return self.classifier(self.neuron(self.pool(self.stages(self.stem(images)))))


class Embedding(nn.Module):
    """Two 3x3 synapses beside a 1x1 one, all with a neuron before them.

    Args:
        inputs: input channels.
        outputs: output channels.
        stride: stride of the first 3x3 synapse and of the 1x1 one.
        neuron: builds a neuron for a number of channels.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, neuron: NeuronBuilder) -> None:
        super().__init__()
        self.neuron = neuron(inputs)
        self.first = synapse(inputs, outputs, kernel=3, stride=stride)
        self.second = nn.Sequential(neuron(outputs), synapse(outputs, outputs, kernel=3))
        self.beside = synapse(inputs, outputs, stride=stride)

    def forward(self, currents: Tensor) -> Tensor:
        """Map currents to currents."""
        bursts = self.neuron(currents)
        return self.second(self.first(bursts)) + self.beside(bursts)


class PoolingEmbedding(Embedding):
    """An :class:`Embedding` that halves the image by max pools of currents.

    Args:
        inputs: input channels.
        outputs: output channels.
        neuron: builds a neuron for a number of channels.
    """

    def __init__(self, inputs: int, outputs: int, *, neuron: NeuronBuilder) -> None:
        super().__init__(inputs, outputs, stride=1, neuron=neuron)
        self.first.append(nn.MaxPool2d(3, 2, 1))
        self.beside.append(nn.MaxPool2d(3, 2, 1))


class DepthwiseMixer(nn.Module):
    """A depthwise convolution with a neuron before it, added to the currents.

    Args:
        channels: channels in and out.
        kernel: side of the window.
        neuron: builds a neuron for a number of channels.
    """

    def __init__(self, channels: int, *, kernel: int, neuron: NeuronBuilder) -> None:
        super().__init__()
        self.neuron = neuron(channels)
        self.synapse = synapse(channels, channels, kernel=kernel, groups=channels, bias=True)

    def forward(self, currents: Tensor) -> Tensor:
        """Return the currents plus those of the branch."""
        return currents + self.synapse(self.neuron(currents))


def _published(channels: int, threshold: float = 2.0) -> HardResetLIF:
    del channels
    return HardResetLIF(threshold=threshold)


def _convolving(channels: int, kernel: int, neuron: NeuronBuilder) -> tuple[nn.Module, nn.Module]:
    mixer = DepthwiseMixer(channels, kernel=kernel, neuron=neuron)
    return mixer, Mixer(channels, neuron=neuron, bias=True)


def maxformer(
    num_classes: int,
    *,
    channels: int = 768,
    timesteps: int = 4,
    neuron: NeuronBuilder | None = None,
    blocks: tuple[int, int, int] | None = None,
    form: ImageForm = "imagenet",
) -> MaxFormer:
    """Build a Max-Former.

    Args:
        num_classes: number of logits.
        channels: channels of the last stage, 384, 512 or 768 as published; a head has 64.
        timesteps: number of timesteps (T).
        neuron: builds a neuron for a number of channels; the published binary one by default.
        blocks: number of blocks in each of the three stages; by default 1, 2 and 7.
        form: as in :class:`MaxFormer`.
    """
    shape = MaxFormerShape(channels=channels, heads=max(1, channels // _HEAD))
    return MaxFormer(
        shape if blocks is None else replace(shape, blocks=blocks),
        num_classes=num_classes,
        timesteps=timesteps,
        neuron=neuron,
        form=form,
    )
