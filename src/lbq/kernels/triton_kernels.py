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
def baseline_forward(
    currents,
    step,
    decay,
    reset,  # or None
    thresholds,  # or None
    carry,  # or None
    bursts,
    levels,
    membranes,  # [timesteps, num_membranes, size]
    last_carry,  # [num_membranes, size]
    timesteps,
    current_stride,
    size,
    run,
    num_members,
    num_steps,
    num_membranes,
    max_level,
    NEURON: tl.constexpr,
    RESETS: tl.constexpr,
    MEMBRANES: tl.constexpr,
    MEMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute the neurons of other papers; one of them has several membranes per value.

    Launch without fused multiply-adds: torch rounds twice.
    """
    channel, place, inside = _tile(run, num_members, num_steps, MEMBERS, CHANNELS)
    many, many_inside, threshold = _membranes(
        place, inside, size, num_membranes, thresholds, MEMBRANES
    )
    step = tl.load(step + channel, channel < num_steps, other=1.0)
    decay = tl.load(decay)
    reset = 0.0 if reset is None else tl.load(reset)
    if carry is None:
        state = tl.zeros([MEMBRANES, MEMBERS, CHANNELS], tl.float32)
    else:
        state = tl.load(carry + many, many_inside, other=0.0)
    for t in range(timesteps):
        instant = tl.cast(t, tl.int64)
        now = instant * size + place
        current = tl.load(currents + instant * current_stride + place, inside, other=0.0)
        membrane = decay * state + current.to(tl.float32)[None, :, :]
        if NEURON == "binary":  # Eq. 1
            membrane = membrane - tl.where(state > threshold, reset * threshold, 0.0)
        level = _baseline_level(membrane, step, threshold, max_level, NEURON)
        seen = tl.where(membrane == membrane, level, membrane)  # a NaN stays one
        count = tl.sum(tl.where(many_inside, seen, 0.0), axis=0)
        tl.store(bursts + now, step * count, inside)
        tl.store(levels + now, count.to(tl.int32), inside)
        tl.store(membranes + instant * num_membranes * size + many, membrane, many_inside)
        state = _baseline_carry(membrane, level, step, reset, NEURON, RESETS)
    tl.store(last_carry + many, state, many_inside)


@triton.jit
@no_type_check
def baseline_backward(
    grad_bursts,
    grad_last_carry,  # or None
    membranes,
    step,
    tail,  # or None
    decay,
    reset,  # or None
    thresholds,  # or None
    carry,  # or None
    grad_currents,
    grad_carry,  # or None
    sums,  # [4, rows of tiles, num_steps]: step, tail, decay, reset
    timesteps,
    size,
    run,
    num_members,
    num_steps,
    num_membranes,
    max_level,
    lo,
    hi,
    sharpness,
    NEURON: tl.constexpr,
    RESETS: tl.constexpr,
    MEMBRANES: tl.constexpr,
    MEMBERS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Compute gradients; the four sums stay in registers until the tile is done."""
    channel, place, inside = _tile(run, num_members, num_steps, MEMBERS, CHANNELS)
    many, many_inside, threshold = _membranes(
        place, inside, size, num_membranes, thresholds, MEMBRANES
    )
    step = tl.load(step + channel, channel < num_steps, other=1.0)
    decay = tl.load(decay)
    reset = 0.0 if reset is None else tl.load(reset)
    zeros = tl.zeros([MEMBRANES, MEMBERS, CHANNELS], tl.float32)
    first_carry = zeros if carry is None else tl.load(carry + many, many_inside, other=0.0)
    state = zeros if grad_last_carry is None else tl.load(grad_last_carry + many, many_inside, 0.0)
    for_step, for_tail, for_decay, for_reset = zeros, zeros, zeros, zeros
    stride = tl.cast(num_membranes, tl.int64) * size
    last = tl.cast(timesteps - 1, tl.int64) * stride + many
    membrane = tl.load(membranes + last, many_inside, other=0.0)
    for back in range(timesteps):
        t = tl.cast(timesteps - 1 - back, tl.int64)
        grad = tl.load(grad_bursts + t * size + place, inside, other=0.0).to(tl.float32)[None, :, :]
        level = _baseline_level(membrane, step, threshold, max_level, NEURON)
        kept = state  # what reaches the membrane through the carry
        if NEURON == "ternary":
            ratio = tl.math.div_rn(tl.abs(membrane), step)
            sign = tl.where(membrane < 0, -1.0, 1.0)
            nearest = tl.where(ratio < lo, lo, tl.where(ratio > hi, hi, ratio))
            excess = ratio - nearest
            slope = tl.where(excess == 0, 1.0, 0.0)
            if tail is not None:
                fade = tl.exp(-tl.abs(excess))
                slope = tl.where(excess == 0, slope, tl.load(tail) * fade)
                bend = sign * tl.where(excess < 0, fade - 1, 1 - fade)
                for_tail += grad * step * tl.where(membrane == 0, 0.0, bend)
            slope = tl.where(membrane == 0, 0.0, slope)  # zero has no sign
            for_step += grad * (level - sign * ratio * slope)
            if RESETS:
                for_step -= reset * state * level
                for_reset -= step * state * level
        else:
            for_step += grad * level
            if NEURON == "original ternary":
                slope = tl.where(tl.abs(membrane) <= 1, 1.0, 0.0)
                kept = state * (1 - tl.abs(level) - membrane * level * slope)
            elif NEURON == "integer":
                slope = tl.where((membrane >= 0) & (membrane <= max_level), 1.0, 0.0)
            elif NEURON == "multi-level":
                slope = tl.where(tl.abs(membrane - threshold) <= 0.5, 1.0, 0.0)
                kept = state * (1 - level)
            else:
                x = 1.57079633 * sharpness * (membrane - threshold)
                slope = sharpness / 2 / (1 + x * x)
                if NEURON == "hard reset":
                    kept = state * (1 - level)
            slope = slope * step
        grad_membrane = tl.where(many_inside, grad * slope + kept, 0.0)
        tl.store(grad_currents + t * size + place, tl.sum(grad_membrane, axis=0), inside)
        before = first_carry
        if back + 1 < timesteps:
            last -= stride
            membrane = tl.load(membranes + last, many_inside, other=0.0)
            level = _baseline_level(membrane, step, threshold, max_level, NEURON)
            before = _baseline_carry(membrane, level, step, reset, NEURON, RESETS)
        for_decay += grad_membrane * before
        state = decay * grad_membrane
    if grad_carry is not None:
        tl.store(grad_carry + many, state, many_inside)
    _store_sums(
        sums,
        channel,
        num_members,
        num_steps,
        tl.sum(for_step, axis=0),
        tl.sum(for_tail, axis=0),
        tl.sum(for_decay, axis=0),
        tl.sum(for_reset, axis=0),
        MEMBERS,
    )


@triton.jit
@no_type_check
def _membranes(place, inside, size, num_membranes, thresholds, MEMBRANES: tl.constexpr):
    """Return the places of a tile's membranes, a mask of valid ones, and thresholds."""
    index = tl.arange(0, MEMBRANES)[:, None, None]
    exists = index < num_membranes
    threshold = 1.0
    if thresholds is not None:
        threshold = tl.load(thresholds + index, exists, other=float("inf"))
    return index.to(tl.int64) * size + place[None, :, :], exists & inside[None, :, :], threshold


@triton.jit
@no_type_check
def _baseline_level(membrane, step, threshold, max_level, NEURON: tl.constexpr):
    if NEURON == "ternary" or NEURON == "original ternary":
        edge = step if NEURON == "ternary" else threshold
        sign = tl.where(membrane < 0, -1.0, 1.0)
        level = tl.where(tl.abs(membrane) >= edge, sign, 0.0)
    elif NEURON == "integer":
        near = tl.where(membrane > 0, tl.where(membrane < max_level, membrane, max_level), 0.0)
        level = (near + 8388608.0) - 8388608.0  # floats from 2^23 on are integers: half to even
    elif NEURON == "hard reset":
        level = tl.where(membrane >= threshold, 1.0, 0.0)
    else:
        level = tl.where(membrane > threshold, 1.0, 0.0)
    return level


@triton.jit
@no_type_check
def _baseline_carry(membrane, level, step, reset, NEURON: tl.constexpr, RESETS: tl.constexpr):
    if NEURON == "binary":
        carry = membrane
    elif NEURON == "integer":
        carry = membrane - level
    elif NEURON == "ternary":
        carry = membrane - reset * step * level if RESETS else membrane
    else:
        carry = membrane * (1 - tl.abs(level))
    return carry


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
