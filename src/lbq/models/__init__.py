"""Spiking ResNets, their blocks, and modules for the time axis."""

from lbq.models.blocks import BasicBlock, BlockKind, MSBlock, NeuronBuilder, SEWBlock
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
    "Form",
    "FramesIn",
    "ImagesIn",
    "MSBlock",
    "MeanOverTime",
    "NamedResNet",
    "NeuronBuilder",
    "OverTime",
    "RepeatOverTime",
    "ResNetShape",
    "SEWBlock",
    "SpikingResNet",
    "check_time",
    "resnet18",
    "resnet19",
    "resnet20",
    "resnet34",
]
