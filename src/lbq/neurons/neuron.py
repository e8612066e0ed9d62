"""``Neuron``, the base class of all neurons, and their decay."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from lbq.carries import active_carries
from lbq.errors import ParameterError
from lbq.functional.planes import check_max_level
from lbq.types import Bursts, Carry, Coefficient, Currents, Levels


class Neuron(nn.Module):
    """Maps the currents of a whole sequence, ``[T, B, *n]``, to its bursts, from rest.

    There is no state between calls and nothing to reset. A stream passes the ``carry`` explicitly:
    ``bursts, carry = neuron.stream(currents, carry)``; :func:`lbq.stream` does so for all neurons
    of a network.

    Currents pass through ``receive``, integer levels through ``emit`` and bursts through
    ``output``. These three are identity modules, so hooks on them see the values
    (:func:`lbq.watch_levels`). The neuron itself stores none of them.

    In train mode a neuron warns, once per process, if currents come directly from a convolution, a
    batch norm or a linear layer of ``[B, F]``, whose first axis is the batch and not time.
    :func:`lbq.check_time` checks a whole network.
    """

    max_level: int
    """The largest level that the neuron emits (N_max)."""
    is_signed: bool = False
    """Whether it emits negative levels too."""
    step_sets_levels: bool = True
    """Whether a larger step gives lower levels; if not, the step only scales what is emitted."""
    needs_whole_sequence: bool = False
    """Whether a timestep depends on later ones, so that the neuron cannot be streamed."""

    def __init__(self, max_level: int) -> None:
        super().__init__()
        self.max_level = check_max_level(max_level)
        self.receive = nn.Identity()
        self.emit = nn.Identity()
        self.output = nn.Identity()

    def __setattr__(self, name: str, value: Any) -> None:
        fixed = type(self).scan.__module__.startswith("lbq.") and name in _FIXED
        argument = type(self).__module__.startswith("lbq.") and name in _ARGUMENTS
        if argument or (fixed and hasattr(self, name)):
            raise ParameterError(
                f"{name} of a {type(self).__name__} is fixed when it is constructed, and setting "
                f"it later would have no effect, got {name}={value!r}; construct a neuron with "
                f"{type(self).__name__}({name}=...) and replace this one"
            )
        super().__setattr__(name, value)

    def forward(self, currents: Currents) -> Bursts:
        """Return the bursts of a whole sequence, from rest."""
        if self.training and not torch.compiler.is_compiling():
            warn_without_time(currents)
        bursts, _ = self.stream(currents, None)
        return bursts

    def stream(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Carry]:
        """Return the bursts of a part of a sequence and its last carry; None starts from rest."""
        carries = active_carries()
        if carries is not None and carry is None:  # the network is run by lbq.stream
            return carries.advance(self, currents)
        bursts, levels, carry = self.scan(self.receive(currents), carry)
        self.emit(levels)
        return self.output(bursts), carry

    def scan(self, currents: Currents, carry: Carry | None) -> tuple[Bursts, Levels, Carry]:
        """Integrate, emit and reset over the sequence; subclasses implement this."""
        raise NotImplementedError


def warn_without_time(currents: Currents) -> None:
    """Warn once if the first axis of the currents is a batch, judged by their autograd node."""
    if _warned or not isinstance(currents, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] -- fx
        return
    maker = type(currents.grad_fn).__name__
    if maker.startswith(_BATCH_FIRST):
        warnings.warn(
            f"a neuron received currents of shape {list(currents.shape)} directly from a layer "
            f"whose first axis is the batch ({maker}), and takes that axis as time: samples would "
            f"affect each other. Add RepeatOverTime(T) before the first neuron and OverTime around "
            f"the layers between neurons; lbq.check_time(model, x) tests a network. If the first "
            f"axis is time, add a batch axis behind it",
            stacklevel=2,
        )
        _warned.append(maker)


_FIXED = frozenset({"max_level", "surrogate"})
"""Attributes from which a neuron derives others while it is constructed."""
_ARGUMENTS = frozenset(
    {
        *("tau", "learn_decay", "reset_mode", "detach_reset", "detach_carry", "keep"),
        *("sharpness", "first_threshold", "is_normalised"),
    }
)
"""Arguments of the library's neurons that are not attributes."""
_BATCH_FIRST = ("Convolution", "NativeBatchNorm", "CudnnBatchNorm", "Addmm", "Mm")
_warned: list[str] = []


class Decay(nn.Module):
    """The share of the carry that survives a timestep (beta); calling it gives shape ``(1,)``.

    Args:
        decay: the share, 0..1.
        tau: the same as a time constant in timesteps, decay = 1 - 1 / tau.
        default: the share if neither is given.
        learn: train it, as the sigmoid of a parameter.
    """

    def __init__(
        self, decay: float | None, *, tau: float | None = None, default: float, learn: bool = False
    ) -> None:
        super().__init__()
        share = _share(decay, tau, default)
        self.is_learned = learn
        if not learn:
            self.value: Tensor
            self.register_buffer("value", scalar(share))
            return
        if not 0 < share < 1:
            raise ParameterError(f"a learned decay must start strictly inside 0..1, got {share}")
        self.raw_decay = nn.Parameter(scalar(math.log(share / (1 - share))))

    def forward(self) -> Coefficient:
        """Return the decay."""
        return torch.sigmoid(self.raw_decay) if self.is_learned else self.value

    def extra_repr(self) -> str:
        """Show the decay."""
        return f"decay={format_values(self())}"


def check_reset(reset: float) -> float:
    """Return the reset; raise unless it lies in 0..1."""
    if not 0 <= reset <= 1:
        raise ParameterError(f"reset must lie in 0..1, got {reset}; 1 removes a whole step")
    return reset


def format_values(values: Tensor) -> str:
    """Format a coefficient; "?" for meta and sharded tensors."""
    if values.is_meta or hasattr(values, "placements") or values.numel() == 0:
        return "?"
    if values.numel() == 1:
        return f"{values.item():.4g}"
    return f"{values.min().item():.4g}..{values.max().item():.4g}"


def scalar(value: float) -> Tensor:
    """Return a scalar of shape ``(1,)``, since sharding does not support 0-d parameters."""
    return torch.full((1,), value)


def _share(decay: float | None, tau: float | None, default: float) -> float:
    if decay is not None and tau is not None:
        raise ParameterError(
            f"decay and tau are the same setting (decay = 1 - 1 / tau), got decay={decay} and "
            f"tau={tau}; pass one of them"
        )
    if tau is not None:
        if tau < 1:
            raise ParameterError(f"tau must be at least one timestep, got {tau}")
        return 1 - 1 / tau
    share = default if decay is None else decay
    if not 0 <= share <= 1:
        raise ParameterError(f"decay must lie in 0..1, got {share}; it is the share that survives")
    return share
