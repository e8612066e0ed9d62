"""What the kernels for declared neurons take: coefficients in one tensor, settings as numbers."""

from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from lbq.functional.surrogate import WindowShape
from lbq.kernels.neuron_spec import RESETS, Plateau, ResolvedNeuron
from lbq.kernels.scan_interface import Layout, layout_for
from lbq.types import Currents

ROWS = 4
"""Rows of coefficients before the thresholds: scale, decay, amount, tail."""
WINDOWS: tuple[WindowShape, ...] = get_args(WindowShape)
"""As ``lbq_window`` in ``lbq.h`` numbers them."""


class NeuronSettings(NamedTuple):
    """The settings of a declared neuron (``lbq_neuron`` in ``lbq.h``)."""

    num_above: int
    max_level: int
    is_uniform: bool
    is_signed: bool
    reset: int
    after_decay: bool
    resets_with_gradient: bool
    detach_carry: bool
    window: int
    """-1 for a plateau."""
    lo: float
    hi: float
    width: float
    has_tail: bool
    wants_thresholds: bool
    """Whether thresholds have a gradient."""

    @property
    def forward(self) -> tuple[Any, ...]:
        """Those of the forward pass, in the order of the operators' arguments."""
        return self[:6]


class PackedNeuron(NamedTuple):
    """A declared neuron for kernels; coefficients are one number or one per channel each."""

    coefficients: Tensor
    """``[ROWS + thresholds, channels]``, without thresholds if the neuron is uniform."""
    edges: Tensor | None
    """``[thresholds, channels]``; None for a uniform neuron with levels 0..N and a plateau."""
    jumps: Tensor | None
    settings: NeuronSettings


def pack_neuron(currents: Currents, neuron: ResolvedNeuron) -> PackedNeuron | None:
    """Return the declaration for kernels; None if a coefficient is neither of the two shapes."""
    spec, surrogate = neuron.spec, neuron.spec.surrogate
    sides = [neuron.above] if neuron.below is None else [neuron.above, neuron.below]
    tail = torch.zeros_like(neuron.decay) if neuron.tail is None else neuron.tail
    rows = [neuron.scale, neuron.decay, neuron.amount, tail]
    if not spec.is_uniform:
        rows += [centre for side in sides for centre in side.centres.unbind(0)]
    per_channel = (currents.shape[2], *[1] * (currents.dim() - 3)) if currents.dim() > 2 else (1,)
    if any(row.numel() > 1 and tuple(row.shape) != per_channel for row in rows):
        return None
    channels = max(row.numel() for row in rows)

    def stacked(rows: list[Tensor]) -> Tensor:
        if channels == 1:
            return torch.cat([row.reshape(1) for row in rows]).unsqueeze(1)
        return torch.stack([row.reshape(-1).expand(channels) for row in rows])

    is_plateau = isinstance(surrogate, Plateau)
    edges = jumps = None
    numbers = [jump for side in sides for jump in side.jumps]
    if not (spec.is_uniform and is_plateau and set(numbers) == {1}):
        edges = stacked([edge for side in sides for edge in side.edges.unbind(0)])
        jumps = torch.tensor(numbers, dtype=edges.dtype, device=edges.device)
    return PackedNeuron(
        stacked(rows),
        edges,
        jumps,
        NeuronSettings(
            num_above=len(neuron.above.jumps),
            max_level=min(len(neuron.above.jumps), 255),
            is_uniform=spec.is_uniform,
            is_signed=spec.is_signed,
            reset=RESETS.index(spec.reset),
            after_decay=spec.after_decay,
            resets_with_gradient=spec.resets_with_gradient,
            detach_carry=spec.detach_carry,
            window=-1 if is_plateau else WINDOWS.index(surrogate.shape),
            lo=float(surrogate.lo) if is_plateau else 0.0,
            hi=float(surrogate.hi) if is_plateau else 0.0,
            width=1.0 if is_plateau else float(surrogate.width),
            has_tail=neuron.tail is not None,
            wants_thresholds=not (spec.is_uniform or is_plateau)
            and any(side.centres.requires_grad for side in sides),
        ),
    )


def layout_of(packed: PackedNeuron, currents: Currents) -> Layout | None:
    """Return the layout of the sequence; None if it is not dense."""
    row = packed.coefficients[0]
    channels = row if row.numel() == 1 else row.reshape(-1, *[1] * (currents.dim() - 3))
    return layout_for(currents, channels)
