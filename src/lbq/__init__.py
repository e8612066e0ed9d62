"""Spiking networks that speak in bursts: learnable burst quantization, from training to integers.

The names below are the promise; everything else may move. ``lbq.functional`` holds the paper's
equations, ``lbq.neurons`` every neuron, step and surrogate, ``lbq.data`` the way in, ``lbq.models``
the blocks, ``lbq.deploy`` the way out, ``lbq.export`` its doors, ``lbq.shelf`` trained networks,
``lbq.cost`` and ``lbq.analysis`` the meters, ``lbq.adapters`` what stands beside other tools.
"""

from lbq.adapters.ann import from_ann
from lbq.cost import EnergyModel, Tally, count_macs
from lbq.deploy import LoweredNetwork, Pixels, lower, run, to_fixed_point
from lbq.errors import LBQError
from lbq.export.bundle import load, save
from lbq.models import SpikingResNet, resnet18, resnet19, resnet20, resnet34
from lbq.neurons import (
    BoxET,
    BurstLIF,
    FixedStep,
    LearnedStep,
    ReLSGET,
    calibrate_steps,
    check_currents_finite,
    watch_levels,
)
from lbq.shelf import pretrained

__version__ = "0.1.0"

__all__ = [
    "BoxET",
    "BurstLIF",
    "EnergyModel",
    "FixedStep",
    "LBQError",
    "LearnedStep",
    "LoweredNetwork",
    "Pixels",
    "ReLSGET",
    "SpikingResNet",
    "Tally",
    "calibrate_steps",
    "check_currents_finite",
    "count_macs",
    "from_ann",
    "load",
    "lower",
    "pretrained",
    "resnet18",
    "resnet19",
    "resnet20",
    "resnet34",
    "run",
    "save",
    "to_fixed_point",
    "watch_levels",
]
