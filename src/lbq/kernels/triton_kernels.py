# pyright: basic, reportMissingImports=false
# (Triton code has no Python types, and triton may be absent)
"""The neurons in Triton: one program computes all timesteps of one tile of values.

A tile is ``[MEMBERS, CHANNELS]``: the channels are those of the step, the members of a channel are
the values that share its step (one step for all is one channel). Values are found in memory order,
in runs of ``run`` values of the same channel, so channels first and channels last are one kernel.

Only this file imports triton; ``triton_scan.py`` imports it on first use.
"""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def burst_forward(
    currents,
    step,
    decay,
    reset,
    carry,  # or None
    bursts,
    levels,
    membranes,
    last_carry,
    timesteps,
    current_stride,
    size,
    run,
    num_members,
    num_steps,
    max_level,
    RESET_MODE: tl.constexpr,
    MEMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Integrate, emit and reset. Launch without fused multiply-adds: torch rounds twice."""
    channel, place, inside = _tile(run, num_members, num_steps, MEMBERS, CHANNELS)
    step = tl.load(step + channel, channel < num_steps, other=1.0)
    decay, reset = tl.load(decay), tl.load(reset)
    if carry is None:
        state = tl.zeros([MEMBERS, CHANNELS], tl.float32)
    else:
        state = tl.load(carry + place, inside, other=0.0)
    for t in range(timesteps):
        instant = tl.cast(t, tl.int64)
        now = instant * size + place
        current = tl.load(currents + instant * current_stride + place, inside, other=0.0)
        membrane = decay * state + current.to(tl.float32)  # Eq. 7
        ratio = tl.math.div_rn(membrane, step)
        level = _level(ratio, max_level)
        burst = tl.where(ratio == ratio, step * level, ratio)  # Eq. 5; a NaN stays one
        tl.store(bursts + now, burst, inside)
        tl.store(levels + now, level.to(tl.uint8), inside)
        tl.store(membranes + now, membrane, inside)
        state = _carry(membrane, level, step, reset, RESET_MODE)
    tl.store(last_carry + place, state, inside)


@triton.jit
@no_type_check
def burst_backward(
    grad_bursts,
    grad_last_carry,  # or None
    membranes,
    step,
    tail,  # or None
    decay,
    reset,
    carry,  # or None
    grad_currents,
    grad_carry,  # or None
    sums,  # [4, rows of tiles, num_steps]: step, tail, decay, reset
    timesteps,
    size,
    run,
    num_members,
    num_steps,
    max_level,
    lo,
    hi,
    RESET_MODE: tl.constexpr,
    DETACH_RESET: tl.constexpr,
    DETACH_CARRY: tl.constexpr,
    MEMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute gradients; the four sums stay in registers until the tile is done."""
    channel, place, inside = _tile(run, num_members, num_steps, MEMBERS, CHANNELS)
    step = tl.load(step + channel, channel < num_steps, other=1.0)
    decay, reset = tl.load(decay), tl.load(reset)
    tail = 0.0 if tail is None else tl.load(tail)
    zeros = tl.zeros([MEMBERS, CHANNELS], tl.float32)
    first_carry = zeros if carry is None else tl.load(carry + place, inside, other=0.0)
    grad_state = zeros if grad_last_carry is None else tl.load(grad_last_carry + place, inside, 0.0)
    for_step, for_tail, for_decay, for_reset = zeros, zeros, zeros, zeros
    last = tl.cast(timesteps - 1, tl.int64) * size + place
    ratio = tl.math.div_rn(tl.load(membranes + last, inside, other=0.0), step)
    level = _level(ratio, max_level)
    for back in range(timesteps):
        now = last - tl.cast(back, tl.int64) * size
        grad = tl.load(grad_bursts + now, inside, other=0.0).to(tl.float32)
        if DETACH_CARRY:
            grad_state = zeros
        nearest = tl.where(ratio < lo, lo, tl.where(ratio > hi, hi, ratio))
        excess = ratio - nearest
        fade = tl.exp(-tl.abs(excess))
        slope = tl.where(excess == 0, 1.0, tail * fade)  # Eq. 11
        removed = grad_state * _steps_removed(level, RESET_MODE)
        for_step += grad * (level - ratio * slope)  # Eq. 12
        if not DETACH_RESET:
            for_step -= reset * removed
        for_tail += grad * step * tl.where(excess < 0, fade - 1, 1 - fade)
        for_reset -= step * removed
        grad_membrane = grad * slope + grad_state
        tl.store(grad_currents + now, grad_membrane, inside)
        if back + 1 < timesteps:
            membrane = tl.load(membranes + now - size, inside, other=0.0)
            ratio = tl.math.div_rn(membrane, step)
            level = _level(ratio, max_level)
            before = _carry(membrane, level, step, reset, RESET_MODE)
        else:
            before = first_carry
        for_decay += grad_membrane * before
        grad_state = decay * grad_membrane
    if grad_carry is not None:
        tl.store(grad_carry + place, grad_state, inside)
    _store_sums(
        sums, channel, num_members, num_steps, for_step, for_tail, for_decay, for_reset, MEMBERS
    )


@triton.jit
@no_type_check
def neuron_forward(
    currents,
    coefficients,  # [4 or more, num_steps]: scale, decay, amount, tail, thresholds
    edges,  # [num_all, num_steps], or None
    jumps,  # [num_all], or None
    carry,  # or None
    bursts,
    levels,
    membranes,
    last_carry,
    timesteps,
    current_stride,
    size,
    run,
    num_members,
    num_steps,
    num_above,
    num_all,
    max_level,
    UNIFORM: tl.constexpr,
    SIGNED: tl.constexpr,
    RESET: tl.constexpr,
    AFTER_DECAY: tl.constexpr,
    THRESHOLDS: tl.constexpr,
    MEMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """A declared neuron. Launch without fused multiply-adds: torch rounds twice."""
    channel, place, inside = _tile(run, num_members, num_steps, MEMBERS, CHANNELS)
    exists = channel < num_steps
    scale = tl.load(coefficients + channel, exists, other=1.0)
    decay = tl.load(coefficients + num_steps + channel, exists, other=0.0)
    amount = tl.load(coefficients + 2 * num_steps + channel, exists, other=0.0)
    edge, jump, is_above = _thresholds(
        edges, jumps, channel, num_steps, num_above, num_all, THRESHOLDS
    )
    state = tl.zeros([MEMBERS, CHANNELS], tl.float32)
    if carry is not None:
        state = tl.load(carry + place, inside, other=0.0)
    level = state
    if AFTER_DECAY:
        ratio = tl.math.div_rn(state, scale) if UNIFORM else state
        level = _declared_level(ratio, edge, jump, is_above, max_level, SIGNED)
    for t in range(timesteps):
        instant = tl.cast(t, tl.int64)
        now = instant * size + place
        current = tl.load(currents + instant * current_stride + place, inside, other=0.0)
        membrane = decay * state + current.to(tl.float32)
        if AFTER_DECAY:  # Eq. 1
            membrane = membrane - amount * _removed(level, RESET)
        ratio = tl.math.div_rn(membrane, scale) if UNIFORM else membrane
        level = _declared_level(ratio, edge, jump, is_above, max_level, SIGNED)
        burst = tl.where(membrane == membrane, scale * level, membrane)  # a NaN stays one
        tl.store(bursts + now, burst, inside)
        tl.store(levels + now, level.to(tl.int32), inside)
        tl.store(membranes + now, membrane, inside)
        state = _declared_carry(membrane, level, amount, RESET, AFTER_DECAY)
    tl.store(last_carry + place, state, inside)


@triton.jit
@no_type_check
def neuron_backward(
    grad_bursts,
    grad_last_carry,  # or None
    membranes,
    coefficients,
    edges,  # or None
    jumps,  # or None
    carry,  # or None
    grad_currents,
    grad_carry,  # or None
    sums,  # [4 or more, rows of tiles, num_steps], as the coefficients
    timesteps,
    size,
    run,
    num_members,
    num_steps,
    num_above,
    num_all,
    max_level,
    lo,
    hi,
    width,
    UNIFORM: tl.constexpr,
    SIGNED: tl.constexpr,
    RESET: tl.constexpr,
    AFTER_DECAY: tl.constexpr,
    RESETS_WITH_GRADIENT: tl.constexpr,
    DETACH_CARRY: tl.constexpr,
    WINDOW: tl.constexpr,  # None for a plateau
    HAS_TAIL: tl.constexpr,
    MEETS_AT_ZERO: tl.constexpr,
    WANTS_THRESHOLDS: tl.constexpr,
    THRESHOLDS: tl.constexpr,
    MEMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Gradients of a declared neuron; ``native/src/neuron_scan.h`` has the same steps."""
    channel, place, inside = _tile(run, num_members, num_steps, MEMBERS, CHANNELS)
    exists = channel < num_steps
    scale = tl.load(coefficients + channel, exists, other=1.0)
    decay = tl.load(coefficients + num_steps + channel, exists, other=0.0)
    amount = tl.load(coefficients + 2 * num_steps + channel, exists, other=0.0)
    tail = tl.load(coefficients + 3 * num_steps + channel, exists, other=0.0)
    edge, jump, is_above = _thresholds(
        edges, jumps, channel, num_steps, num_above, num_all, THRESHOLDS
    )
    centre = edge
    if edges is not None and not UNIFORM:
        centre, _, _ = _thresholds(
            coefficients + 4 * num_steps, jumps, channel, num_steps, num_above, num_all, THRESHOLDS
        )
    zeros = tl.zeros([MEMBERS, CHANNELS], tl.float32)
    first = zeros if carry is None else tl.load(carry + place, inside, other=0.0)
    state = zeros if grad_last_carry is None else tl.load(grad_last_carry + place, inside, 0.0)
    if DETACH_CARRY:
        state = zeros
    pull = zeros if AFTER_DECAY else state  # what the amount receives
    for_scale, for_tail, for_decay, for_amount = zeros, zeros, zeros, zeros
    if WANTS_THRESHOLDS:
        for_thresholds = tl.zeros([THRESHOLDS, MEMBERS, CHANNELS], tl.float32)
    last = tl.cast(timesteps - 1, tl.int64) * size + place
    membrane = tl.load(membranes + last, inside, other=0.0)
    for back in range(timesteps):
        now = last - tl.cast(back, tl.int64) * size
        grad = tl.load(grad_bursts + now, inside, other=0.0).to(tl.float32)
        ratio = tl.math.div_rn(membrane, scale) if UNIFORM else membrane
        level = _declared_level(ratio, edge, jump, is_above, max_level, SIGNED)
        through = grad if UNIFORM else grad * scale
        by_reset = zeros
        if RESETS_WITH_GRADIENT and RESET != "none":
            if RESET == "zero":
                by_reset = -state * membrane * (level if SIGNED else 1.0)
            else:
                by_reset = -pull * amount
            if UNIFORM:
                by_reset = by_reset / scale
            through += by_reset
        if WINDOW is None:
            distance = tl.abs(ratio) if SIGNED else ratio
            nearest = tl.where(distance < lo, lo, tl.where(distance > hi, hi, distance))
            excess = distance - nearest
            slope = tl.where(excess == 0, 1.0, 0.0)
            if HAS_TAIL:
                fade = tl.exp(-tl.abs(excess))
                slope = tl.where(excess == 0, slope, tail * fade)
                bend = tl.where(excess < 0, fade - 1, 1 - fade)
                if SIGNED:
                    bend = tl.where(ratio > 0, bend, tl.where(ratio < 0, -bend, 0.0))
                for_tail += through * (scale * bend if UNIFORM else bend)
            if SIGNED and not MEETS_AT_ZERO:
                slope = tl.where(ratio == 0, 0.0, slope)  # zero has no sign
        else:
            side = tl.where(is_above, ratio[None, :, :], -ratio[None, :, :])
            part = jump * _window(side - centre, width, WINDOW)
            slope = tl.sum(part, axis=0)
            if WANTS_THRESHOLDS:
                due = through[None, :, :] * part
                for_thresholds += tl.where(inside[None, :, :], tl.where(is_above, -due, due), 0.0)
        if UNIFORM:
            for_scale += grad * (level - ratio * slope) - by_reset * ratio * slope
        else:
            for_scale += grad * level
        for_amount -= pull * _removed(level, RESET)
        kept = tl.where(level == 0, state, 0.0) if RESET == "zero" else state
        grad_membrane = through * slope + kept
        tl.store(grad_currents + now, grad_membrane, inside)
        before = first
        if back + 1 < timesteps:
            membrane = tl.load(membranes + now - size, inside, other=0.0)
            ratio = tl.math.div_rn(membrane, scale) if UNIFORM else membrane
            level = _declared_level(ratio, edge, jump, is_above, max_level, SIGNED)
            before = _declared_carry(membrane, level, amount, RESET, AFTER_DECAY)
        for_decay += grad_membrane * before
        state = decay * grad_membrane
        if DETACH_CARRY and back + 1 < timesteps:
            state = zeros
        pull = grad_membrane if AFTER_DECAY else state
    if AFTER_DECAY:
        ratio = tl.math.div_rn(first, scale) if UNIFORM else first
        level = _declared_level(ratio, edge, jump, is_above, max_level, SIGNED)
        for_amount -= pull * _removed(level, RESET)
    if grad_carry is not None:
        tl.store(grad_carry + place, state, inside)
    _store_sums(
        sums,
        channel,
        num_members,
        num_steps,
        tl.where(inside, for_scale, 0.0),
        tl.where(inside, for_decay, 0.0),
        tl.where(inside, for_amount, 0.0),
        tl.where(inside, for_tail, 0.0),
        MEMBERS,
    )
    if WANTS_THRESHOLDS:
        rows = tl.cdiv(num_members, MEMBERS) * num_steps
        row = tl.program_id(0) // tl.cdiv(num_steps, CHANNELS) * num_steps
        index = tl.arange(0, THRESHOLDS)[:, None]
        there = sums + (4 + index) * rows + row + channel
        tl.store(there, tl.sum(for_thresholds, axis=1), exists & (index < num_all))


@triton.jit
@no_type_check
def _thresholds(rows, jumps, channel, num_steps, num_above, num_all, THRESHOLDS: tl.constexpr):
    """Return thresholds, jumps and which of them are positive, ``[THRESHOLDS, 1, CHANNELS]``."""
    index = tl.arange(0, THRESHOLDS)[:, None, None]
    edge, jump = None, None
    if rows is not None:
        exists = (index < num_all) & (channel < num_steps)[None, :, :]
        edge = tl.load(rows + index * num_steps + channel[None, :, :], exists, other=float("inf"))
        jump = tl.load(jumps + index, index < num_all, other=0.0)
    return edge, jump, index < num_above


@triton.jit
@no_type_check
def _declared_level(ratio, edge, jump, is_above, max_level, SIGNED: tl.constexpr):
    if edge is None:
        level = _level(ratio, max_level)
        if SIGNED:
            level = level - _level(-ratio, max_level)
    else:
        up = tl.where(ratio[None, :, :] >= edge, jump, 0.0)
        down = tl.where(-ratio[None, :, :] >= edge, jump, 0.0)
        level = tl.sum(tl.where(is_above, up, -down), axis=0)
    return level


@triton.jit
@no_type_check
def _removed(level, RESET: tl.constexpr):
    """What the reset takes, in amounts."""
    if RESET == "level":
        removed = level
    elif RESET == "event":
        removed = tl.where(level > 0, 1.0, tl.where(level < 0, -1.0, 0.0))
    else:
        removed = tl.zeros_like(level)
    return removed


@triton.jit
@no_type_check
def _declared_carry(membrane, level, amount, RESET: tl.constexpr, AFTER_DECAY: tl.constexpr):
    carry = membrane
    if not AFTER_DECAY:
        if RESET == "zero":
            carry = membrane * tl.where(level == 0, 1.0, 0.0)
        elif RESET != "none":
            carry = membrane - amount * _removed(level, RESET)
    return carry


@triton.jit
@no_type_check
def _window(u, width, WINDOW: tl.constexpr):
    """The slope of a soft spike at a distance from its threshold."""
    if WINDOW == "box":
        slope = tl.where(tl.abs(u) <= width / 2, 1 / width, 0.0)
    elif WINDOW == "triangle":
        slope = tl.maximum(1 - tl.abs(u) / width, 0.0) / width
    elif WINDOW == "arctangent":
        x = 1.57079633 / width * u
        slope = 0.5 / width / (1 + x * x)
    elif WINDOW == "sigmoid":
        fade = tl.exp(-tl.abs(u) / width)
        slope = fade / ((1 + fade) * (1 + fade) * width)
    else:
        x = u / width
        slope = tl.exp(-0.5 * x * x) * (0.398942280 / width)
    return slope


@triton.jit
@no_type_check
def _tile(run, num_members, num_steps, MEMBERS: tl.constexpr, CHANNELS: tl.constexpr):
    """Return the channels of this program, where its values lie, and which of them exist."""
    num_columns = tl.cdiv(num_steps, CHANNELS)
    member = tl.program_id(0) // num_columns * MEMBERS + tl.arange(0, MEMBERS)[:, None]
    channel = tl.program_id(0) % num_columns * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    place = (member // run * num_steps + channel) * run + member % run
    return channel, place, (member < num_members) & (channel < num_steps)


@triton.jit
@no_type_check
def _level(ratio, max_level):
    """Eq. 6, zero for a NaN."""
    level = tl.floor(ratio)
    return tl.where(level > 0, tl.where(level < max_level, level, max_level), 0.0)


@triton.jit
@no_type_check
def _steps_removed(level, RESET_MODE: tl.constexpr):
    if RESET_MODE == "level":
        removed = level
    elif RESET_MODE == "event":
        removed = tl.where(level > 0, 1.0, 0.0)
    else:
        removed = tl.zeros_like(level)
    return removed


@triton.jit
@no_type_check
def _carry(membrane, level, step, reset, RESET_MODE: tl.constexpr):
    """Eq. 8."""
    if RESET_MODE != "none":
        membrane = membrane - reset * step * _steps_removed(level, RESET_MODE)
    return membrane


@triton.jit
@no_type_check
def _store_sums(
    sums,
    channel,
    num_members,
    num_steps,
    for_step,
    for_tail,
    for_decay,
    for_reset,
    MEMBERS: tl.constexpr,
):
    """Add up the members of a tile: four sums for each of its channels."""
    rows = tl.cdiv(num_members, MEMBERS) * num_steps
    sums += tl.program_id(0) // tl.cdiv(num_steps, channel.shape[1]) * num_steps + channel
    exists = channel < num_steps
    tl.store(sums, tl.sum(for_step, axis=0)[None, :], exists)
    tl.store(sums + rows, tl.sum(for_tail, axis=0)[None, :], exists)
    tl.store(sums + 2 * rows, tl.sum(for_decay, axis=0)[None, :], exists)
    tl.store(sums + 3 * rows, tl.sum(for_reset, axis=0)[None, :], exists)


IS_INTERPRETED = not isinstance(burst_forward, triton.JITFunction)


def driver_error() -> str | None:
    """Start triton's driver (needs a GPU and a C compiler); return why it fails, or None."""
    if IS_INTERPRETED:
        return None
    try:
        triton.runtime.driver.active.get_current_target()
    except Exception as error:
        return f"triton does not start ({type(error).__name__}: {error})"
    return None
