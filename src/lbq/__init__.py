"""Spiking networks that speak in bursts: learnable burst quantization, from training to integers.

The names below are the promise; everything else may move. ``lbq.functional`` holds the paper's
equations, ``lbq.neurons`` every neuron, step and surrogate.
"""

from lbq.errors import LBQError
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

__version__ = "0.1.0"

__all__ = [
    "BoxET",
    "BurstLIF",
    "FixedStep",
    "LBQError",
    "LearnedStep",
    "ReLSGET",
    "calibrate_steps",
    "check_currents_finite",
    "watch_levels",
]
