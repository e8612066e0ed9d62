"""Residual blocks, ``[T, B, C, H, W]`` in and out; torch can export and trace them."""

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn

from lbq.models.fused_block import fire
from lbq.time import OverTime

NeuronBuilder = Callable[[int], nn.Module]
"""Builds the neuron for a layer with that many channels: ``[T, B, C, ...]`` in and out."""

BlockKind = Literal["basic", "sew", "ms"]


def synapse(inputs: int, outputs: int, *, kernel: int, stride: int = 1) -> OverTime:
    """Build a convolution without bias and its batch norm, applied at every timestep."""
    return OverTime(*conv_norm(inputs, outputs, kernel=kernel, stride=stride))


def conv_norm(
    inputs: int, outputs: int, *, kernel: int, stride: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Build a same-padded convolution without bias, and its batch norm."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    return conv, nn.BatchNorm2d(outputs)


class BasicBlock(nn.Module):
    """The paper's block: two synapses, the shortcut added as a current, then the neuron.

    Args:
        inputs: input channels.
        outputs: output channels.
        stride: stride of the first synapse and of the shortcut.
        neuron: builds a neuron for a number of channels.
        fused: run batch norm, addition and neuron as one operation where that is possible.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        stride: int,
        neuron: NeuronBuilder,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.fused = fused
        self.synapse1 = synapse(inputs, outputs, kernel=3, stride=stride)
        self.neuron1 = neuron(outputs)
        self.synapse2 = synapse(outputs, outputs, kernel=3)
        self.shortcut = _shortcut(inputs, outputs, stride)
        self.neuron2 = neuron(outputs)

    def forward(self, bursts: Tensor) -> Tensor:
        """Map bursts to bursts."""
        hidden = fire(self.synapse1, self.neuron1, bursts, fused=self.fused)
        shortcut = self.shortcut(bursts)
        return fire(self.synapse2, self.neuron2, hidden, shortcut, fused=self.fused)


class SEWBlock(nn.Module):
    """Spike-element-wise: every branch ends in a neuron, and bursts are added.

    Fang et al., "Deep Residual Learning in Spiking Neural Networks", NeurIPS 2021. The arguments
    are those of :class:`BasicBlock`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        stride: int,
        neuron: NeuronBuilder,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.fused = fused
        self.synapse1 = synapse(inputs, outputs, kernel=3, stride=stride)
        self.neuron1 = neuron(outputs)
        self.synapse2 = synapse(outputs, outputs, kernel=3)
        self.neuron2 = neuron(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)
        has_synapse = isinstance(self.shortcut, OverTime)
        self.shortcut_neuron = neuron(outputs) if has_synapse else nn.Identity()

    def forward(self, bursts: Tensor) -> Tensor:
        """Map bursts to sums of bursts."""
        hidden = fire(self.synapse1, self.neuron1, bursts, fused=self.fused)
        branch = fire(self.synapse2, self.neuron2, hidden, fused=self.fused)
        return branch + self.shortcut_neuron(self.shortcut(bursts))


class MSBlock(nn.Module):
    """Membrane shortcut: a neuron before every synapse, real-valued currents are added.

    Hu et al., "Advancing Spiking Neural Networks Toward Deep Residual Learning", TNNLS 2024. Where
    the shape changes, the shortcut's synapse reads the bursts of the first neuron, so that no
    synapse of a block sees a real-valued input. The arguments are those of :class:`BasicBlock`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        stride: int,
        neuron: NeuronBuilder,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.fused = fused
        self.neuron1 = neuron(inputs)
        self.synapse1 = synapse(inputs, outputs, kernel=3, stride=stride)
        self.neuron2 = neuron(outputs)
        self.synapse2 = synapse(outputs, outputs, kernel=3)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, currents: Tensor) -> Tensor:
        """Map currents to currents."""
        bursts = self.neuron1(currents)
        branch = self.synapse2(fire(self.synapse1, self.neuron2, bursts, fused=self.fused))
        if isinstance(self.shortcut, OverTime):
            return branch + self.shortcut(bursts)
        return branch + currents


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return synapse(inputs, outputs, kernel=1, stride=stride)


BLOCKS: dict[BlockKind, type[BasicBlock | SEWBlock | MSBlock]] = {
    "basic": BasicBlock,
    "sew": SEWBlock,
    "ms": MSBlock,
}
