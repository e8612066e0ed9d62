"""Spiking ResNets and transformers, and their blocks."""

from lbq.models.blocks import BasicBlock, BlockKind, MSBlock, NeuronBuilder, SEWBlock
from lbq.models.maxformer import MaxFormer, MaxFormerShape, maxformer
from lbq.models.resnet import (
    Form,
    NamedResNet,
    ResNetShape,
    SpikingResNet,
    resnet18,
    resnet19,
    resnet20,
    resnet34,
)
from lbq.models.spikeformer import (
    ImageForm,
    NamedSpikeFormer,
    SpikeFormer,
    SpikeFormerShape,
    spikeformer_5m,
    spikeformer_10m,
    spikeformer_19m,
)
from lbq.models.spikeformer_blocks import (
    ConvBlock,
    Mixer,
    RepConv,
    SepConv,
    SpikeDrivenAttention,
    SpikeFormerBlock,
)

__all__ = [
    "BasicBlock",
    "BlockKind",
    "ConvBlock",
    "Form",
    "ImageForm",
    "MSBlock",
    "MaxFormer",
    "MaxFormerShape",
    "Mixer",
    "NamedResNet",
    "NamedSpikeFormer",
    "NeuronBuilder",
    "RepConv",
    "ResNetShape",
    "SEWBlock",
    "SepConv",
    "SpikeDrivenAttention",
    "SpikeFormer",
    "SpikeFormerBlock",
    "SpikeFormerShape",
    "SpikingResNet",
    "maxformer",
    "resnet18",
    "resnet19",
    "resnet20",
    "resnet34",
    "spikeformer_5m",
    "spikeformer_10m",
    "spikeformer_19m",
]
