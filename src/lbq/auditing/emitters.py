"""Find the modules that emit levels, and how they use them."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lbq.auditing.level_values import MAX_LEVEL, find_levels
from lbq.auditing.products import unwatched
from lbq.auditing.recording import hookable_modules
from lbq.neurons.neuron import Neuron
from lbq.neurons.watch import foreign_library, removing_hooks

_MOST_LEVELS = 32
"""A module whose outputs have more levels is not taken for a neuron by its values alone."""


@dataclass(eq=False)
class Emitter:
    """A module that emits levels, or that the user calls a neuron."""

    path: str
    kind: str
    """Its class."""
    is_certain: bool
    """Whether it is a neuron by its class or because the user says so, not only by its values."""
    known_max: int = 0
    """Largest level that it can emit, if its class says so."""
    calls: int = 0
    timesteps: int = 1
    """Timesteps of one call."""
    histogram: Tensor = field(default_factory=lambda: torch.zeros(MAX_LEVEL + 1, dtype=torch.long))
    """How often each size of level was emitted."""
    is_signed: bool = False
    """Whether negative levels occurred."""
    real_calls: int = 0
    """Calls whose outputs were not levels."""
    step: float = float("inf")
    was_active: Tensor | None = None
    """Per neuron: whether it ever emitted."""
    lowest: Tensor | None = None
    """Per neuron: the smallest level that it emitted."""

    @property
    def max_level(self) -> int:
        """Return the largest level that occurred."""
        seen = self.histogram.nonzero()
        return int(seen.max()) if len(seen) else 0

    @property
    def min_level(self) -> int:
        """Return the smallest level; of signed ones, the largest with the other sign."""
        return -self.max_level if self.is_signed else 0

    @property
    def num_active(self) -> int:
        """Return the number of levels that are not zero."""
        return int(self.histogram[1:].sum())

    @property
    def num_bits(self) -> int:
        """Return the number of non-zero bits of all levels."""
        return sum(level.bit_count() * n for level, n in enumerate(self.histogram.tolist()))

    @property
    def active(self) -> float:
        """Return the share of levels that are not zero."""
        return self.num_active / max(1, int(self.histogram.sum()))

    @property
    def mean_level(self) -> float:
        """Return the mean level."""
        sizes = torch.arange(len(self.histogram))
        return float((sizes * self.histogram).sum()) / max(1, int(self.histogram.sum()))

    @property
    def dead(self) -> float:
        """Return the share of neurons that never emitted."""
        return 0.0 if self.was_active is None else 1 - float(self.was_active.double().mean())

    @property
    def saturated(self) -> float:
        """Return the share of neurons that always emitted the largest level."""
        if self.lowest is None or not self.max_level:
            return 0.0
        return float((self.lowest == self.max_level).double().mean())


@contextmanager
def watch_emitters(
    model: nn.Module, batch: Callable[[], int], *, spikes: Sequence[type[nn.Module] | str] = ()
) -> Generator[dict[str, Emitter]]:
    """Record the levels of the modules that emit them, inside the ``with`` block.

    Args:
        model: any network.
        batch: returns the number of samples of the batch that runs.
        spikes: classes or paths of modules that are neurons, whatever their values.
    """
    found: dict[str, Emitter] = {}

    def hook(path: str, is_certain: bool) -> Callable[..., None]:
        def see(module: nn.Module, args: Any, output: Any) -> None:
            with unwatched():
                look(module, args, output)

        def look(module: nn.Module, args: Any, output: Any) -> None:
            values = output[0] if isinstance(output, tuple) and output else output
            if not isinstance(values, Tensor) or values.dim() == 0:
                return
            emitter = found.get(path)
            if emitter is None and not is_certain and not _looks_spiking(args, values):
                return
            if emitter is None:
                most = module.max_level if isinstance(module, Neuron) else 0
                emitter = Emitter(path, type(module).__name__, is_certain, known_max=most)
                found[path] = emitter
            is_sequence = isinstance(module, Neuron) or getattr(module, "step_mode", "") == "m"
            _see(emitter, values.detach(), batch(), is_sequence=is_sequence)

        return see

    hooks = [
        module.register_forward_hook(hook(path, certain))
        for path, module in hookable_modules(model)
        if (certain := is_neuron(path, module, spikes)) or not any(module.children())
    ]
    with removing_hooks(hooks):
        yield found


def is_neuron(path: str, module: nn.Module, spikes: Sequence[type[nn.Module] | str]) -> bool:
    """Return whether a module is a neuron by its class, its library or ``spikes``."""
    if isinstance(module, Neuron) or path in spikes:
        return True
    if any(isinstance(module, kind) for kind in spikes if isinstance(kind, type)):
        return True
    return foreign_library(module) is not None


def _looks_spiking(args: Any, values: Tensor) -> bool:
    """Return whether real numbers enter a module and few levels leave it."""
    given = args[0] if args and isinstance(args[0], Tensor) else None
    if given is None or given is values or not values.is_floating_point():
        return False  # a module that passes values on does not emit them
    made = find_levels(values)
    return made is not None and 0 < made.max_level <= _MOST_LEVELS and find_levels(given) is None


def _see(emitter: Emitter, values: Tensor, batch: int, *, is_sequence: bool) -> None:
    emitter.calls += 1
    is_sequence = values.dim() > 1 and (is_sequence or _has_time(values, batch))
    channel_axis = None if values.dim() < 2 else min(values.dim() - 1, 1 + is_sequence)
    levels = find_levels(values, channel_axis=channel_axis)
    if levels is None:
        emitter.real_calls += 1
        return
    emitter.is_signed |= levels.integers.dtype.is_signed
    sizes = levels.integers.abs() if levels.integers.dtype.is_signed else levels.integers
    emitter.histogram += torch.bincount(sizes.flatten(), minlength=MAX_LEVEL + 1).cpu()
    if bool((values != 0).any()):
        emitter.step = min(emitter.step, levels.step)
    if is_sequence or len(values) % max(1, batch) == 0:
        emitter.timesteps = len(values) if is_sequence else max(1, len(values) // max(1, batch))
    flat = sizes.flatten(0, int(is_sequence))
    active, lowest = (flat > 0).any(0).cpu(), flat.amin(0).cpu()
    if emitter.was_active is not None and emitter.was_active.shape == active.shape:
        assert emitter.lowest is not None
        active, lowest = active | emitter.was_active, torch.minimum(lowest, emitter.lowest)
    emitter.was_active, emitter.lowest = active, lowest


def _has_time(values: Tensor, batch: int) -> bool:
    """Whether values are ``[T, B, ...]`` by their sizes."""
    return values.shape[1] == batch and len(values) != batch
