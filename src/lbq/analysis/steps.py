"""The steps that a network learned, layer by layer, and how far they spread."""

import math
from dataclasses import dataclass

from torch import nn

from lbq.neurons.neuron import Neuron
from lbq.neurons.step import LearnedStep, NeuronStep
from lbq.neurons.watch import named_neurons


@dataclass(frozen=True, kw_only=True)
class LayerStep:
    """The step of one layer: one number, or the spread of one number per channel."""

    layer: str
    """Path of the neuron."""
    mean: float
    smallest: float
    largest: float
    """The same as the smallest unless every channel has a step of its own."""
    is_learned: bool


@dataclass(frozen=True, kw_only=True)
class StepProfile:
    """The steps of a network, in the order of its layers; empty if its neurons have none."""

    layers: tuple[LayerStep, ...]

    @property
    def means(self) -> tuple[float, ...]:
        """One step per layer."""
        return tuple(layer.mean for layer in self.layers)

    @property
    def is_learned(self) -> bool:
        """Whether any layer learned its step."""
        return any(layer.is_learned for layer in self.layers)

    @property
    def variation(self) -> float:
        """Divide the layers' standard deviation by their mean: the coefficient of variation.

        Choice: the deviation of these layers (divided by their number), since they are all there
        are and no sample of more; the paper does not say.
        """
        if not self.layers:
            return math.nan
        mean = sum(self.means) / len(self.means)
        variance = sum((step - mean) ** 2 for step in self.means) / len(self.means)
        return math.sqrt(variance) / mean


def read_steps(model: nn.Module) -> StepProfile:
    """Read the step of every neuron that has one.

    What only scales the output of a neuron whose threshold stays (the published ternary neuron's
    amplitude) is none.
    """
    found = (_read(layer, neuron) for layer, neuron in named_neurons(model))
    return StepProfile(layers=tuple(step for step in found if step is not None))


def _read(layer: str, neuron: Neuron) -> LayerStep | None:
    step = getattr(neuron, "step", None)
    if not isinstance(step, NeuronStep) or not neuron.step_sets_levels:
        return None
    values = step().detach().double()
    return LayerStep(
        layer=layer,
        mean=values.mean().item(),
        smallest=values.min().item(),
        largest=values.max().item(),
        is_learned=isinstance(step, LearnedStep),
    )
