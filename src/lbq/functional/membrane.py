"""Membrane dynamics: decay, integration, reset (Eqs. 1, 7, 8).

In Eq. 1 the binary neuron subtracts its reset *after* the decay; in Eqs. 7-8 the burst neuron
subtracts it *before*, so that the reset is multiplied by the decay of the next timestep.
"""

from lbq.errors import ParameterError
from lbq.types import Carry, Current, Level, Membrane, ResetMode, Scalar, Step


def lif_membrane(
    membrane: Membrane,
    current: Current,
    *,
    spike: Level,
    decay: Scalar,
    threshold: Step,
    reset: Scalar,
) -> Membrane:
    """Decay the last membrane, add the current, subtract the last spike's threshold (Eq. 1).

    Args:
        membrane: U[t-1], before its reset.
        current: W X[t].
        spike: S[t-1], zeros and ones.
        decay: share of the membrane that survives a timestep (beta).
        threshold: firing threshold (V_theta).
        reset: share of the threshold that a spike removes (alpha).
    """
    return decay * membrane + current - reset * threshold * spike


def integrate(carry: Carry, current: Current, *, decay: Scalar) -> Membrane:
    """Decay the carry and add the current (Eq. 7)."""
    return decay * carry + current


def soft_reset(
    membrane: Membrane, level: Level, *, step: Step, reset: Scalar, mode: ResetMode = "event"
) -> Carry:
    """Subtract a share of one step from every neuron that emitted, whatever its level (Eq. 8).

    The paper's mode is ``"event"``; see :func:`steps_removed` for the others. Membrane, step and
    reset have gradients; the level is detached.
    """
    if mode == "none":
        return membrane
    return membrane - reset * step * steps_removed(level.detach(), mode=mode)


def steps_removed(level: Level, *, mode: ResetMode) -> Level:
    """Count the steps that a reset removes from a neuron that emitted ``level``.

    ``"event"`` removes one whatever the level (with the sign of a ternary level), ``"level"`` one
    per level, as I-LIF and multi-spike hardware do, ``"none"`` nothing.
    """
    if mode == "event":
        return level.sign()
    if mode == "level":
        return level
    check_reset_mode(mode)
    return level.new_zeros(level.shape)


def check_reset_mode(mode: ResetMode) -> ResetMode:
    """Return the mode; raise if it does not exist."""
    if mode not in ("event", "level", "none"):
        raise ParameterError(f'reset_mode must be "event", "level" or "none", got {mode!r}')
    return mode
