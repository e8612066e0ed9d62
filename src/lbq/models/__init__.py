"""Spiking ResNets and transformers, their blocks, and modules for the time axis."""

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
from lbq.models.time import (
    FramesIn,
    ImagesIn,
    MeanOverTime,
    OverTime,
    RepeatOverTime,
    check_time,
)

__all__ = [
    "BasicBlock",
    "BlockKind",
    "ConvBlock",
    "Form",
    "FramesIn",
    "ImageForm",
    "ImagesIn",
    "MSBlock",
    "MaxFormer",
    "MaxFormerShape",
    "MeanOverTime",
    "Mixer",
    "NamedResNet",
    "NamedSpikeFormer",
    "NeuronBuilder",
    "OverTime",
    "RepConv",
    "RepeatOverTime",
    "ResNetShape",
    "SEWBlock",
    "SepConv",
    "SpikeDrivenAttention",
    "SpikeFormer",
    "SpikeFormerBlock",
    "SpikeFormerShape",
    "SpikingResNet",
    "check_time",
    "maxformer",
    "resnet18",
    "resnet19",
    "resnet20",
    "resnet34",
    "spikeformer_5m",
    "spikeformer_10m",
    "spikeformer_19m",
]
