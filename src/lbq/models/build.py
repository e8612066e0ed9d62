"""The only door to the models: the paper's networks by name.

The widths of resnet20 are those that reproduce the paper's MAC count; the others are those of the
code lines that the paper names (docs/paper-notes.md).
"""

from dataclasses import dataclass, replace

from lbq.errors import ParameterError
from lbq.models.blocks import BlockKind, NeuronBuilder
from lbq.models.resnet import Form, ResNetShape, SpikingResNet
from lbq.neurons.burst import BurstLIF


@dataclass(frozen=True, kw_only=True)
class NamedResNet:
    """One of the paper's networks: its shape, and the form of input it is used with there.

    Calling it builds the network.

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
            neuron: builds a neuron for a number of channels; LBQ unless said.
            width: factor on every number of channels, so that small machines can train the shape.
            blocks: number of blocks in each stage; those of the name unless said.
            form: "cifar", "imagenet" or "events"; the paper's unless said.
            block: "basic" (the paper), "sew" or "ms".
            input_channels: 3 for images, 2 for events unless said.
            first_stage_stride: 1 for images, 2 for events unless said.
            fused: run batch norm, addition and neuron as one operation where that is possible
                (channels last, on CPUs, LBQ neurons); state dicts do not change.
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
