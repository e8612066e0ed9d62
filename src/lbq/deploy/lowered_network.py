"""A lowered network: nodes at the paths that their origins had, and the order they run in."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lbq.deploy.nodes import LevelNeuron, Multiply, Weighted
from lbq.errors import LoweringError, NonFiniteError, ShapeError, TimeError

INPUT = "input"
"""The name under which nodes read what enters the network."""


@dataclass(frozen=True)
class NodeRef:
    """A node's place in the order: its path, and the paths that it reads."""

    path: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How often an integer network did the same as the network of real numbers it was made of."""

    samples: int
    """Calibration samples that both ran on."""
    answers: float
    """Share of samples whose largest logit is the same."""
    levels: float
    """Share of levels that are equal, of all neurons and timesteps."""


class LoweredNetwork(nn.Module):
    """A network made only of :mod:`lbq.deploy.nodes`; torch runs, compiles and exports it.

    Its neurons have the paths of the trained network's, so a watch, a counter or a person finds the
    same layers in both.

    Args:
        timesteps: number of timesteps (T).
        input_shape: shape of one sample at one instant, ``(C, H, W)`` or ``(features,)``.
        takes_frames: whether it takes ``[T, B, ...]`` instead of still inputs ``[B, ...]``.
        logit_scale: what one unit of an integer network's answer is worth; None for real answers.
        origin: where it came from, as data that JSON can hold: a recipe, an accuracy.

    Attributes:
        agreement: what :func:`lbq.to_fixed_point` measured on calibration inputs; None if it had
            none, and for a network that was loaded from a file.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> net.timesteps, net.is_integer, len(list(net.neurons()))
        (2, False, 19)
    """

    def __init__(
        self,
        *,
        timesteps: int,
        input_shape: tuple[int, ...],
        takes_frames: bool,
        logit_scale: float | None = None,
        origin: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.timesteps, self.input_shape = timesteps, tuple(input_shape)
        self.takes_frames, self.logit_scale = takes_frames, logit_scale
        self.origin = dict(origin or {})
        self.plan: list[NodeRef] = []
        self.agreement: Agreement | None = None

    @property
    def is_integer(self) -> bool:
        """Whether it speaks, adds and compares integers only."""
        return self.logit_scale is not None

    def add(self, path: str, node: nn.Module, *inputs: str) -> str:
        """Append a node that reads these paths; return its own path, made unique if it was not."""
        known = {INPUT, *(place.path for place in self.plan)}
        unknown = [name for name in inputs if name not in known]
        if unknown:
            raise LoweringError(f"{path} reads {', '.join(unknown)}, which is not before it")
        unique, number = path, 2
        while unique in known or self._is_taken(unique):
            unique, number = f"{path}_{number}", number + 1
        *folders, name = unique.split(".")
        parent: nn.Module = self
        for folder in folders:
            if folder not in parent._modules:  # pyright: ignore[reportPrivateUsage]
                parent.add_module(folder, nn.Module())
            parent = parent.get_submodule(folder)
        parent.add_module(name, node)
        self.plan.append(NodeRef(unique, inputs))
        return unique

    def nodes(self) -> Iterator[tuple[NodeRef, nn.Module]]:
        """Yield every node with its place, in running order."""
        for place in self.plan:
            yield place, self.get_submodule(place.path)

    def example(self, batch: int = 1) -> Tensor:
        """Return zeros that the network would take."""
        shape = (batch, *self.input_shape)
        if self.takes_frames:
            shape = (self.timesteps, *shape)
        return torch.zeros(shape, dtype=torch.uint8 if self.is_integer else self._dtype())

    def forward(self, inputs: Tensor, multiply: Multiply | None = None) -> Tensor:
        """Answer ``[B, classes]``; ``multiply`` says how synapses multiply, densely unless told."""
        values = {INPUT: inputs}
        last_use = self._last_use()
        for index, (place, node) in enumerate(self.nodes()):
            arguments = [values[name] for name in place.inputs]
            is_weighted = isinstance(node, Weighted) and INPUT not in place.inputs
            values[place.path] = node(*arguments, multiply) if is_weighted else node(*arguments)
            for name in place.inputs:
                if last_use[name] == index and name in values:
                    del values[name]
        return values[self.plan[-1].path]

    def check_input(self, inputs: Tensor) -> None:
        """Complain about inputs of another shape, length or kind than the network was made for."""
        check_shape(inputs, self.input_shape, takes_frames=self.takes_frames)
        if self.takes_frames and len(inputs) != self.timesteps:
            raise TimeError(
                f"this network was lowered for {self.timesteps} timesteps, got {len(inputs)}; "
                f"lower it with an example of that length"
            )
        if self.is_integer:
            check_bytes(inputs)
        if not self.is_integer and not bool(torch.isfinite(inputs).all()):
            raise NonFiniteError(
                "the input holds a NaN or an infinity; check what prepares the inputs"
            )

    def extra_repr(self) -> str:
        """Show what enters."""
        what = "frames" if self.takes_frames else "still inputs"
        return f"{what} of {self.input_shape}, timesteps={self.timesteps}, {len(self.plan)} nodes"

    def neurons(self) -> Iterator[tuple[str, LevelNeuron]]:
        """Yield every neuron with its path, in running order."""
        for place, node in self.nodes():
            if isinstance(node, LevelNeuron):
                yield place.path, node

    def _last_use(self) -> dict[str, int]:
        return {name: index for index, place in enumerate(self.plan) for name in place.inputs}

    def _is_taken(self, path: str) -> bool:
        try:
            self.get_submodule(path)
        except AttributeError:
            return False
        return True

    def _dtype(self) -> torch.dtype:
        return next((b.dtype for b in self.buffers() if b.is_floating_point()), torch.float32)


def check_shape(inputs: Tensor, shape: tuple[int, ...], *, takes_frames: bool) -> None:
    """Complain about inputs that are not samples of this shape, over time where that is asked."""
    expected = ("T", "B", *shape) if takes_frames else ("B", *shape)
    if inputs.dim() != len(expected) or tuple(inputs.shape[-len(shape) :]) != shape:
        raise ShapeError(
            f"this network takes [{', '.join(map(str, expected))}], got {tuple(inputs.shape)}"
        )


def check_bytes(inputs: Tensor) -> None:
    """Complain about inputs that no integer network takes."""
    if inputs.dtype != torch.uint8:
        raise ShapeError(
            f"an integer network takes pixels or event counts as uint8, got {inputs.dtype}"
        )
