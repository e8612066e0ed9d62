"""Neurons behind synapses that absorbed their steps: thresholds, real or integer."""

from typing import Literal

import torch
from torch import Tensor

from lbq.errors import LevelError
from lbq.functional.membrane import integrate, lif_membrane, steps_removed
from lbq.functional.quantize import count_thresholds
from lbq.neurons.neuron import Neuron

NodeReset = Literal["event", "level", "none", "zero"]
"""As a neuron's reset mode; "zero" forgets the membrane of whoever emitted."""


class LevelNeuron(Neuron):
    """Any neuron of this library with its step absorbed: currents in, integer levels out.

    A level is the number of thresholds that the membrane has reached (Eq. 3). They are
    the smallest membranes at which the trained neuron's own formula reaches each level, so that
    both agree on every float.

    Args:
        thresholds: thresholds, rising, ``[N, 1]`` or ``[N, C]``; for a signed neuron, of its size.
        decay: share of the carry that survives a timestep, ``[1]``.
        reset_amount: what one unit of reset takes from the membrane, ``[1]`` or ``[C]``.
        reset: whether emission removes that once, once per level, never, or forgets everything.
        is_signed: whether the level has the membrane's sign.
        resets_after_decay: whether the reset escapes the decay of the next timestep (Eq. 1).
        per_threshold_state: whether every threshold has a membrane of its own.
        mixture: ``[T, T]`` that mixes the currents of all timesteps first; None for none.
    """

    def __init__(
        self,
        thresholds: Tensor,
        *,
        decay: Tensor,
        reset_amount: Tensor,
        reset: NodeReset,
        is_signed: bool = False,
        resets_after_decay: bool = False,
        per_threshold_state: bool = False,
        mixture: Tensor | None = None,
    ) -> None:
        super().__init__(max_level=len(thresholds))
        self.thresholds: Tensor
        self.decay: Tensor
        self.reset_amount: Tensor
        self.mixture: Tensor | None
        self.register_buffer("thresholds", thresholds)
        self.register_buffer("decay", decay)
        self.register_buffer("reset_amount", reset_amount)
        self.register_buffer("mixture", mixture)
        self.reset: NodeReset = reset
        self.is_signed = is_signed
        self.resets_after_decay, self.per_threshold_state = resets_after_decay, per_threshold_state

    def forward(self, currents: Tensor) -> Tensor:
        """Answer a whole sequence with its levels, from rest."""
        levels, _ = self.stream(currents, None)
        return levels

    def stream(self, currents: Tensor, carry: Tensor | None) -> tuple[Tensor, Tensor]:
        """Answer a piece of a sequence, from the carry of the piece before (None: from rest)."""
        currents = self.receive(currents)
        if self.mixture is not None:
            shaped = self.mixture.reshape(*self.mixture.shape, *[1] * (currents.dim() - 1))
            currents = torch.stack([(row * currents).sum(0) for row in shaped.unbind(0)])
        if carry is None:
            rest = torch.zeros_like(currents[0])
            carry = torch.stack([rest] * self.max_level) if self.per_threshold_state else rest
        levels: list[Tensor] = []
        for current in currents.unbind(0):
            level, carry = self.update(carry, current)
            levels.append(level)
        emitted = torch.stack(levels)  # [T, B, *n]
        self.emit(emitted)
        return emitted, carry

    def update(self, carry: Tensor, current: Tensor) -> tuple[Tensor, Tensor]:
        """Integrate, count thresholds and reset: one timestep."""
        membrane = self.integrate(carry, current.expand_as(carry))  # [N, B, *n] if it is split
        if self.per_threshold_state:
            thresholds = self.thresholds.reshape(-1, *[1] * current.dim())  # [N, 1, ...]
            spikes = (membrane >= thresholds).to(torch.uint8)
            return spikes.sum(0, dtype=torch.uint8), torch.where(spikes > 0, 0, membrane)
        thresholds = torch.stack(
            [per_channel(threshold, current[:1])[0] for threshold in self.thresholds.unbind(0)]
        )
        size = membrane.abs() if self.is_signed else membrane
        level = count_thresholds(size, thresholds).to(torch.uint8)
        if self.is_signed:
            level = level.to(torch.int8) * membrane.sign().to(torch.int8)
        return level, self._after(membrane, level)

    def integrate(self, carry: Tensor, current: Tensor) -> Tensor:
        """Decay what was carried over and add the current."""
        if self.resets_after_decay:  # the carry is the last membrane
            spike = count_thresholds(carry, self.thresholds)
            return lif_membrane(
                carry,
                current,
                spike=spike,
                decay=self.decay,
                threshold=self.reset_amount,
                reset=1.0,
            )
        return integrate(carry, current, decay=self.decay)

    def _after(self, membrane: Tensor, level: Tensor) -> Tensor:
        if self.resets_after_decay or self.reset == "none":
            return membrane
        if self.reset == "zero":
            return torch.where(level != 0, torch.zeros_like(membrane), membrane)
        units = steps_removed(level, mode=self.reset).to(membrane.dtype)
        return membrane - per_channel(self.reset_amount, membrane) * units

    def extra_repr(self) -> str:
        """Show the range of levels."""
        low = -self.max_level if self.is_signed else 0
        return f"levels {low}..{self.max_level}, reset={self.reset}"


class IntegerNeuron(LevelNeuron):
    """A neuron in int32: thresholds, reset and decay are integers in the unit of its currents.

    The decay is a product and an arithmetic shift, ``(multiplier * carry) >> shift``, which rounds
    down, negative carries too.

    Args:
        thresholds: thresholds, rising, ``[N, C]`` int32.
        multiplier: of the carry.
        shift: bits that the product is shifted by.
        reset_amount: what one unit of reset takes from the membrane, ``[C]`` int32.
        reset: whether emission removes that once, once per level, never, or forgets everything.
        resets_after_decay: whether the reset escapes the decay of the next timestep (Eq. 1).
    """

    def __init__(
        self,
        thresholds: Tensor,
        *,
        multiplier: int,
        shift: int,
        reset_amount: Tensor,
        reset: NodeReset,
        resets_after_decay: bool = False,
    ) -> None:
        super().__init__(
            thresholds,
            decay=torch.tensor([multiplier / 2**shift], dtype=torch.float32),
            reset_amount=reset_amount,
            reset=reset,
            resets_after_decay=resets_after_decay,
        )
        self.multiplier, self.shift = multiplier, shift

    def integrate(self, carry: Tensor, current: Tensor) -> Tensor:
        """Decay what was carried over and add the current."""
        membrane = ((carry * self.multiplier) >> self.shift) + current
        if not self.resets_after_decay:
            return membrane
        reached = carry >= per_channel(self.thresholds[0], carry)
        return membrane - per_channel(self.reset_amount, carry) * reached


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """Shape one value per channel to broadcast against ``[B, C, *space]``."""
    if values.numel() == 1:
        return values.reshape([1] * like.dim())
    if values.numel() != like.shape[1]:
        raise LevelError(
            f"{values.numel()} values for {like.shape[1]} channels (shape {tuple(like.shape)})"
        )
    return values.reshape(1, -1, *[1] * (like.dim() - 2))
