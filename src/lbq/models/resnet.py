"""The spiking ResNet: one class, its shape given as data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor, nn

from lbq.errors import ParameterError
from lbq.models.blocks import BLOCKS, BlockKind, NeuronBuilder, conv_norm
from lbq.neurons.burst import BurstLIF
from lbq.preprocessing import Pixels
from lbq.time import FramesIn, ImagesIn, MeanOverTime, OverTime, RepeatOverTime
from lbq.types import Logits, Sequence

Form = Literal["cifar", "imagenet", "events"]


@dataclass(frozen=True, kw_only=True)
class ResNetShape:
    """The size of a ResNet."""

    blocks: tuple[int, ...]
    """Number of blocks in each stage."""
    channels: tuple[int, ...]
    """Channels of each stage."""
    stem_channels: int
    """Channels after the first convolution."""
    hidden: int | None = None
    """Width of a hidden classifier layer with its own neuron; None for a single linear layer."""

    def scaled(self, width: float) -> "ResNetShape":
        """Multiply every number of channels by ``width``, at least one each."""
        if width <= 0:
            raise ParameterError(f"width must be positive, got {width}; 0.25 is a quarter")

        def scale(channels: int) -> int:
            return max(1, round(channels * width))

        return ResNetShape(
            blocks=self.blocks,
            channels=tuple(scale(c) for c in self.channels),
            stem_channels=scale(self.stem_channels),
            hidden=None if self.hidden is None else scale(self.hidden),
        )


class SpikingResNet(nn.Module):
    """A residual network of burst neurons, or of any other neuron, or of ReLUs.

    Static images (forms "cifar" and "imagenet") pass the stem's convolution and batch norm once,
    and the current is repeated at every timestep; event frames pass it one by one. The logits are
    the mean of the classifier's output over time.

    Args:
        shape: blocks and channels.
        num_classes: number of logits.
        timesteps: number of timesteps (T).
        neuron: builds a neuron for a number of channels; ``lambda channels: nn.ReLU()`` at
            ``timesteps=1`` is the ANN reference.
        form: "cifar" (3x3 stem), "imagenet" (7x7 stem of stride 2, max-pool behind its neuron) or
            "events" (3x3 stem at every frame, first stage of stride 2).
        block: "basic" (the paper), "sew" or "ms".
        input_channels: 3 for images, 2 for events by default.
        first_stage_stride: 1 for images, 2 for events by default.
        fused: run batch norm, addition and neuron of a block as one operation where that is
            possible (channels last, on CPUs, LBQ neurons); state dicts do not change.

    Attributes:
        preprocessing: how images are normalised, None for event counts; only networks from a
            recipe or a file have it.

    Example:
        >>> from lbq.models import ResNetShape
        >>> shape = ResNetShape(blocks=(1, 1), channels=(8, 16), stem_channels=8)
        >>> model = lbq.SpikingResNet(
        ...     shape, num_classes=10, timesteps=2, neuron=lambda channels: lbq.BurstLIF(3)
        ... )
        >>> model(torch.randn(4, 3, 32, 32)).shape
        torch.Size([4, 10])
    """

    preprocessing: Pixels | None

    def __init__(
        self,
        shape: ResNetShape,
        *,
        num_classes: int,
        timesteps: int,
        neuron: NeuronBuilder,
        form: Form = "cifar",
        block: BlockKind = "basic",
        input_channels: int | None = None,
        first_stage_stride: int | None = None,
        fused: bool = False,
    ) -> None:
        super().__init__()
        if form not in ("cifar", "imagenet", "events"):
            raise ParameterError(f'form must be "cifar", "imagenet" or "events", got {form!r}')
        if block not in BLOCKS:
            raise ParameterError(f"block must be one of {', '.join(BLOCKS)}, got {block!r}")
        is_events, is_large = form == "events", form == "imagenet"
        channels = (2 if is_events else 3) if input_channels is None else input_channels
        conv, norm = conv_norm(
            channels, shape.stem_channels, kernel=7 if is_large else 3, stride=2 if is_large else 1
        )
        if is_events:
            self.stem = nn.Sequential(FramesIn(timesteps), OverTime(conv, norm))
        else:
            self.stem = nn.Sequential(ImagesIn(), conv, norm, RepeatOverTime(timesteps))
        starts_real = block == "ms"  # its blocks begin with a neuron and end without
        self.stem_neuron = nn.Identity() if starts_real else neuron(shape.stem_channels)
        self.stem_pool = OverTime(nn.MaxPool2d(3, 2, 1)) if is_large else nn.Identity()
        stride = (2 if is_events else 1) if first_stage_stride is None else first_stage_stride
        self.stages = _stages(shape, partial(BLOCKS[block], neuron=neuron, fused=fused), stride)
        self.classifier = _classifier(shape, num_classes, neuron)
        self.mean = MeanOverTime()
        _initialise(self)

    def forward(self, inputs: Tensor) -> Logits:
        """Classify images ``[B, C, H, W]`` or frames ``[T, B, C, H, W]``."""
        return self.mean(self.logits_over_time(inputs))

    def logits_over_time(self, inputs: Tensor) -> Sequence:
        """Return the classifier's output at every timestep."""
        bursts = self.stem_pool(self.stem_neuron(self.stem(inputs)))
        return self.classifier(self.stages(bursts))


def _stages(
    shape: ResNetShape, block: Callable[..., nn.Module], first_stride: int
) -> nn.Sequential:
    stages: list[nn.Module] = []
    inputs = shape.stem_channels
    for stage, (count, outputs) in enumerate(zip(shape.blocks, shape.channels, strict=True)):
        blocks: list[nn.Module] = []
        for index in range(count):
            stride = 1 if index else (2 if stage else first_stride)
            blocks.append(block(inputs, outputs, stride=stride))
            inputs = outputs
        stages.append(nn.Sequential(*blocks))
    return nn.Sequential(*stages)


def _classifier(shape: ResNetShape, num_classes: int, neuron: NeuronBuilder) -> nn.Sequential:
    pool, flatten, features = nn.AdaptiveAvgPool2d(1), nn.Flatten(), shape.channels[-1]
    if shape.hidden is None:
        return nn.Sequential(OverTime(pool, flatten, nn.Linear(features, num_classes)))
    return nn.Sequential(
        OverTime(pool, flatten, nn.Linear(features, shape.hidden)),
        neuron(shape.hidden),
        OverTime(nn.Linear(shape.hidden, num_classes)),
    )


def _initialise(model: nn.Module) -> None:
    """Initialise convolutions by He's rule for fan-out; other layers keep torch's defaults."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


@dataclass(frozen=True, kw_only=True)
class NamedResNet:
    """The shape and input of a network of the paper; calling it builds the network.

    Example:
        >>> model = lbq.resnet20(num_classes=10, timesteps=2, max_level=5, width=0.125)
        >>> model(torch.randn(4, 3, 32, 32)).shape  # nothing to reset
        torch.Size([4, 10])
    """

    shape: ResNetShape
    form: Form

    def __call__(
        self,
        num_classes: int,
        *,
        timesteps: int = 2,
        max_level: int = 5,
        neuron: NeuronBuilder | None = None,
        width: float = 1.0,
        blocks: tuple[int, ...] | None = None,
        form: Form | None = None,
        block: BlockKind = "basic",
        input_channels: int | None = None,
        first_stage_stride: int | None = None,
        fused: bool = False,
    ) -> SpikingResNet:
        """Build the network.

        Args:
            num_classes: number of logits.
            timesteps: number of timesteps (T).
            max_level: largest level of the default neuron (N_max); unused if ``neuron`` is given.
            neuron: builds a neuron for a number of channels; LBQ by default.
            width: factor on every number of channels, for small machines.
            blocks: number of blocks in each stage; by default those of the named network.
            form: as in :class:`SpikingResNet`; the paper's by default.
            block: as in :class:`SpikingResNet`.
            input_channels: 3 for images, 2 for events by default.
            first_stage_stride: 1 for images, 2 for events by default.
            fused: run batch norm, addition and neuron as one operation where possible.
        """

        def burst_neuron(channels: int) -> BurstLIF:
            del channels
            return BurstLIF(max_level)

        return SpikingResNet(
            self._shape(blocks).scaled(width),
            num_classes=num_classes,
            timesteps=timesteps,
            neuron=burst_neuron if neuron is None else neuron,
            form=self.form if form is None else form,
            block=block,
            input_channels=input_channels,
            first_stage_stride=first_stage_stride,
            fused=fused,
        )

    def _shape(self, blocks: tuple[int, ...] | None) -> ResNetShape:
        if blocks is None:
            return self.shape
        if len(blocks) != len(self.shape.blocks) or min(blocks) < 1:
            raise ParameterError(
                f"blocks must name at least one block for each of {len(self.shape.blocks)} stages, "
                f"such as {self.shape.blocks}, got {blocks}"
            )
        return replace(self.shape, blocks=blocks)


resnet18 = NamedResNet(
    shape=ResNetShape(blocks=(2, 2, 2, 2), channels=(64, 128, 256, 512), stem_channels=64),
    form="imagenet",
)
"""ResNet-18, for ImageNet in the paper."""

resnet19 = NamedResNet(
    shape=ResNetShape(blocks=(3, 3, 2), channels=(128, 256, 512), stem_channels=64, hidden=256),
    form="events",
)
"""ResNet-19, for DVS128-Gesture in the paper; its classifier has a hidden spiking layer."""

resnet20 = NamedResNet(
    shape=ResNetShape(blocks=(3, 3, 3), channels=(128, 256, 512), stem_channels=128),
    form="cifar",
)
"""The paper's wide ResNet-20, for CIFAR; ``form="events"`` for CIFAR10-DVS."""

resnet34 = NamedResNet(
    shape=ResNetShape(blocks=(3, 4, 6, 3), channels=(64, 128, 256, 512), stem_channels=64),
    form="imagenet",
)
"""ResNet-34, for ImageNet in the paper."""
