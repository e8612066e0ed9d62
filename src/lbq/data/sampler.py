"""The order and the random bits of samples, as functions of seed, epoch and position.

Nothing here has a state. The bits of a sample are read from a counter-based generator whose counter
*is* its position in the epoch, so a run that is resumed, spread over more processes or fed by
other workers sees the same samples with the same bits. numpy's Philox does the work: it jumps to
any counter at no cost, gives a whole batch in one call, and its raw stream is part of numpy's
promise of stability, unlike the streams of numpy's distributions (NEP 19).
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from lbq.errors import ParameterError

_WORDS = 4
"""Numbers that Philox makes of one counter."""


class RandomStream(IntEnum):
    """The uses of random bits; the bits of two streams are independent.

    The numbers are part of the meaning of a seed: never reuse one (6 was used).
    """

    ORDER = 0
    RESIZED_CROP = 1
    IMAGE = 2
    MIXING = 3
    EVENTS = 4
    SYNTHETIC = 5
    SAMPLE = 7
    DATASET = 8
    MODEL = 9
    EVALUATION = 10


def random_bits(
    stream: RandomStream, *, seed: int, epoch: int, start: int, count: int, width: int
) -> NDArray[np.uint64]:
    """Return the random bits of ``count`` positions from ``start`` on: ``[count, width]``.

    Args:
        stream: the use of the bits.
        seed: of the run.
        epoch: counted from zero.
        start: the first position in the epoch.
        count: number of positions.
        width: numbers of 64 bits per position; a stream always asks for the same width.
    """
    blocks = -(-width // _WORDS)
    words = _raw(stream, seed=seed, epoch=epoch, counter=start * blocks, count=count * blocks)
    return words.reshape(count, blocks * _WORDS)[:, :width]


def sample_rng(seed: int, epoch: int, position: int) -> np.random.Generator:
    """Return a generator whose numbers depend on these three integers only.

    A ``Dataset`` that augments with it gives the same bits in any worker and after a resume;
    :func:`lbq.fit` calls its ``set_epoch(epoch)`` if it has one.

    Args:
        seed: of the run, 0..2**64-1.
        epoch: counted from zero.
        position: index of the sample in the data set.

    Example:
        >>> lbq.sample_rng(0, epoch=3, position=17).integers(0, 100, 4).tolist()
        [48, 63, 82, 77]
    """
    if not 0 <= position < 2**64:
        raise ParameterError(f"a position must lie in 0..2**64-1, got {position}")
    return np.random.Generator(_philox(RandomStream.SAMPLE, seed=seed, epoch=epoch, high=position))


def to_uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn bits into numbers in [0, 1), evenly spaced as far as float64 tells them apart."""
    return np.multiply(bits >> np.uint64(11), 2.0**-53, dtype=np.float64)


def to_integers(bits: NDArray[np.uint64], bound: int) -> NDArray[np.int64]:
    """Turn bits into integers in 0..bound-1; the bias is below ``bound / 2**64``."""
    return (bits % np.uint64(bound)).astype(np.int64)


def epoch_order(num_samples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of an epoch: ``order[position]`` is the index of a sample."""
    blocks = -(-num_samples // _WORDS)
    keys = _raw(RandomStream.ORDER, seed=seed, epoch=epoch, counter=0, count=blocks)
    return np.argsort(keys[:num_samples], kind="stable")


def num_steps(num_samples: int, global_batch: int) -> int:
    """Count the whole global batches of an epoch; the remaining samples are not trained on."""
    if not 1 <= global_batch <= num_samples:
        raise ParameterError(
            f"a global batch must hold between 1 and all {num_samples} training samples, "
            f"got {global_batch}"
        )
    return num_samples // global_batch


def rank_positions(step: int, *, global_batch: int, rank: int, world_size: int) -> range:
    """Return the positions that a rank trains on in a step: its contiguous part of the batch."""
    _check_rank(rank, world_size)
    if global_batch % world_size:
        raise ParameterError(
            f"{world_size} ranks must share a global batch evenly, got {global_batch} samples; "
            f"choose a multiple of {world_size}"
        )
    share = global_batch // world_size
    start = step * global_batch + rank * share
    return range(start, start + share)


def eval_positions(num_samples: int, *, rank: int, world_size: int, batch: int) -> range:
    """Return the test samples of a rank: over all ranks, each exactly once.

    Ranks share whole batches, so a sample is always in a batch with the same others: the last bits
    of an answer can depend on the shape of its batch, and a level can depend on these bits.
    """
    _check_rank(rank, world_size)
    batches = -(-num_samples // batch)
    first, last = (r * batches // world_size * batch for r in (rank, rank + 1))
    return range(min(first, num_samples), min(last, num_samples))


def _raw(
    stream: RandomStream, *, seed: int, epoch: int, counter: int, count: int
) -> NDArray[np.uint64]:
    philox = _philox(stream, seed=seed, epoch=epoch, counter=counter)
    return philox.random_raw(count * _WORDS)


def _philox(
    stream: RandomStream, *, seed: int, epoch: int, counter: int = 0, high: int = 0
) -> np.random.Philox:
    if not 0 <= seed < 2**64:
        raise ParameterError(f"a seed must lie in 0..2**64-1, got {seed}")
    if not 0 <= epoch < 2**32:
        raise ParameterError(f"an epoch must lie in 0..2**32-1, got {epoch}")
    start = np.array([counter, epoch, stream, high], np.uint64)
    return np.random.Philox(key=np.array([seed, 0], np.uint64), counter=start)


def _check_rank(rank: int, world_size: int) -> None:
    if not 0 <= rank < world_size:
        raise ParameterError(f"a rank must lie in 0..{world_size - 1}, got {rank}")
