"""SpikingJelly 2: lbq neurons inside its networks, its nodes inside lbq networks."""

from typing import Any

import torch
from torch import Tensor

from lbq.errors import LevelError, MissingExtraError, ParameterError
from lbq.neurons.neuron import Neuron
from lbq.types import Bursts, Carry, Currents, Levels

try:
    from spikingjelly.activation_based import base  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtraError(
        "the adapter for SpikingJelly needs it: pip install 'spikingjelly>=2'"
    ) from error


class BurstNode(base.MemoryModule):
    """An lbq neuron as a SpikingJelly node: it has a step mode, and state until a reset.

    ``functional.set_step_mode``, ``functional.reset_net`` and ``functional.detach_net`` treat it
    like any other node. (In multi-step networks the neuron itself works as well: it starts every
    sequence from rest, and there is nothing to reset.)

    Args:
        neuron: the neuron to run, such as ``lbq.BurstLIF()``.
        step_mode: "s" takes one instant, ``[B, *n]``; "m" a whole sequence, ``[T, B, *n]``.
    """

    def __init__(self, neuron: Neuron, step_mode: str = "s") -> None:
        super().__init__()
        self.neuron = neuron
        self.register_memory("carry", None)
        self.step_mode = step_mode

    def single_step_functional_forward(
        self, inputs: tuple[Tensor, ...], states: tuple[Any, ...], **kwargs: object
    ) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """Run one instant from an explicit carry."""
        bursts, carry = self.neuron.stream(inputs[0].unsqueeze(0), states[0])
        return (bursts[0],), (carry,)

    def multi_step_functional_forward(
        self, inputs: tuple[Tensor, ...], states: tuple[Any, ...], **kwargs: object
    ) -> tuple[tuple[Tensor], tuple[Tensor]]:
        """Run a sequence from an explicit carry, as one operation."""
        bursts, carry = self.neuron.stream(inputs[0], states[0])
        return (bursts,), (carry,)


class NodeNeuron(Neuron):
    """A SpikingJelly node as an lbq neuron: ``[T, B, *n]`` in and out, from rest.

    Its spikes are visible to ``watch_levels`` and counted like levels. The carry of a
    stream is the node's membrane potential, ``v``.

    Args:
        node: the node, such as ``neuron.LIFNode()`` or ``neuron.ILIFNode()``; it is put into
            multi-step mode.
        max_level: the largest integer that it emits; by default that of its surrogate, or 1.
    """

    def __init__(self, node: Any, max_level: int | None = None) -> None:
        if not isinstance(node, base.MemoryModule) or "v" not in dict(node.named_memories()):
            raise ParameterError(
                f"NodeNeuron takes a SpikingJelly node with a membrane potential v, such as "
                f"LIFNode, got {type(node).__name__}"
            )
        surrogate = getattr(node, "surrogate_function", None)
        super().__init__(
            getattr(surrogate, "max_spike_count", 1) if max_level is None else max_level
        )
        node.step_mode = "m"
        self.node = node

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Reset the node, run it, and reset it again: no state is left behind."""
        self.node.reset()
        if carry is not None:
            self._restore(carry)
        spikes: Tensor = self.node(currents)
        membrane: Tensor = self.node.v
        self.node.reset()
        levels = spikes.detach().to(torch.uint8)
        if (
            not torch.equal(levels.to(spikes.dtype), spikes.detach())
            or levels.max() > self.max_level
        ):
            raise LevelError(
                f"{type(self.node).__name__} emitted values in [{spikes.min():g}, "
                f"{spikes.max():g}], not integers in 0..{self.max_level}; pass its max_level, or "
                f"use the node without this adapter"
            )
        return spikes, levels, membrane

    def _restore(self, carry: Tensor) -> None:
        others = {name for name, _ in self.node.named_memories()} - {"v", "v_seq"}
        if others:
            raise ParameterError(
                f"{type(self.node).__name__} stores {', '.join(sorted(others))} besides v, so it "
                f"cannot be streamed; give it whole sequences"
            )
        self.node.v = carry
