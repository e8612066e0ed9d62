"""Neurons, steps and surrogates, and tools to watch and calibrate them."""

from lbq.neurons.baselines import (
    LMHT,
    BinaryLIF,
    HardResetLIF,
    IntegerLIF,
    MultiLevelLIF,
    OriginalTernaryLIF,
    TernaryLIF,
)
from lbq.neurons.burst import BurstLIF
from lbq.neurons.calibrate import calibrate_steps
from lbq.neurons.neuron import Decay, Neuron
from lbq.neurons.step import FixedStep, LearnedStep, NeuronStep
from lbq.neurons.surrogates import BoxET, ClipBox, MatchedBox, ReLSGET, Surrogate, TailedBox
from lbq.neurons.watch import (
    check_currents_finite,
    named_neurons,
    neuron_parameters,
    record_levels,
    watch_levels,
)

__all__ = [
    "LMHT",
    "BinaryLIF",
    "BoxET",
    "BurstLIF",
    "ClipBox",
    "Decay",
    "FixedStep",
    "HardResetLIF",
    "IntegerLIF",
    "LearnedStep",
    "MatchedBox",
    "MultiLevelLIF",
    "Neuron",
    "NeuronStep",
    "OriginalTernaryLIF",
    "ReLSGET",
    "Surrogate",
    "TailedBox",
    "TernaryLIF",
    "calibrate_steps",
    "check_currents_finite",
    "named_neurons",
    "neuron_parameters",
    "record_levels",
    "watch_levels",
]
