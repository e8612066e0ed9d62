import numpy as np
import pytest

from lbq.data import sampler
from lbq.data.sampler import RandomStream
from lbq.errors import ParameterError

PINNED_BITS = [1031809391948817763, 759043188509246646]
PINNED_ORDER = [1, 9, 5, 0, 8, 2, 4, 6, 7, 3]


def bits(stream=RandomStream.IMAGE, *, seed=0, epoch=0, start=0, count=64, width=10):
    return sampler.random_bits(
        stream, seed=seed, epoch=epoch, start=start, count=count, width=width
    )


def test_the_bits_of_a_position_do_not_depend_on_where_a_batch_starts():
    whole = bits(count=1000)
    for start, count in [(0, 1), (1, 7), (333, 64), (999, 1)]:
        assert np.array_equal(bits(start=start, count=count), whole[start : start + count])


def test_seed_epoch_and_stage_each_change_all_bits():
    first = bits()
    for other in [bits(seed=1), bits(epoch=1), bits(RandomStream.EVENTS), bits(start=64)]:
        assert not (first == other).any()


def test_the_largest_seed_epoch_and_position_are_different_from_their_neighbours():
    seen = {
        bits(seed=seed, epoch=epoch, start=start, count=1).tobytes()
        for seed in (2**64 - 2, 2**64 - 1)
        for epoch in (2**32 - 2, 2**32 - 1)
        for start in (2**40, 2**40 + 1)
    }
    assert len(seen) == 8


def test_the_stream_is_pinned():
    """What a seed means must not change: runs are resumed after an update."""
    assert bits(seed=42, epoch=3, start=5, count=1, width=2).tolist() == [PINNED_BITS]
    assert sampler.epoch_order(10, seed=42, epoch=3).tolist() == PINNED_ORDER


def test_uniform_numbers_fill_the_unit_interval_evenly():
    numbers = sampler.to_uniform(bits(count=100_000, width=4))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=256, range=(0, 1))[0]
    expected = numbers.size / 256
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 255) < 5 * np.sqrt(2 * 255)


def test_columns_neighbours_epochs_and_seeds_are_uncorrelated():
    columns = [sampler.to_uniform(bits(count=50_000, width=8))]
    columns += [
        sampler.to_uniform(bits(**other, count=50_000, width=1))
        for other in ({"start": 1}, {"epoch": 1}, {"seed": 1}, {"stream": RandomStream.EVENTS})
    ]
    correlation = np.corrcoef(np.concatenate(columns, axis=1).T)
    np.fill_diagonal(correlation, 0)
    assert abs(correlation).max() < 5 / np.sqrt(50_000)


def test_every_integer_below_a_bound_is_equally_likely():
    numbers = sampler.to_integers(bits(count=90_000, width=1), 9)
    counts = np.bincount(numbers[:, 0], minlength=9)
    assert len(counts) == 9
    assert abs(counts - 10_000).max() < 5 * np.sqrt(10_000)


def test_an_epoch_visits_every_sample_once_in_a_new_order():
    first, second = (sampler.epoch_order(10_007, seed=0, epoch=epoch) for epoch in (0, 1))
    assert np.array_equal(np.sort(first), np.arange(10_007))
    assert np.array_equal(np.sort(second), np.arange(10_007))
    assert (first == second).mean() < 0.01


def test_every_sample_is_equally_likely_to_come_first():
    first = [sampler.epoch_order(5, seed=seed, epoch=0)[0] for seed in range(5000)]
    assert abs(np.bincount(first, minlength=5) - 1000).max() < 5 * np.sqrt(1000)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_a_global_batch_in_contiguous_parts(world_size):
    shares = [
        sampler.rank_positions(3, global_batch=64, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    assert [position for share in shares for position in share] == list(range(192, 256))


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 200])
def test_every_test_sample_belongs_to_one_rank_and_batches_stay_whole(world_size, batch):
    shares = [
        sampler.eval_positions(10_007, rank=rank, world_size=world_size, batch=batch)
        for rank in range(world_size)
    ]
    assert [position for share in shares for position in share] == list(range(10_007))
    assert all(share.start % batch == 0 for share in shares if share)
    assert max(map(len, shares)) - min(map(len, shares)) <= batch


def test_what_cannot_be_is_refused():
    with pytest.raises(ParameterError, match="rank"):
        sampler.eval_positions(10, rank=2, world_size=2, batch=1)
    with pytest.raises(ParameterError, match="seed"):
        bits(seed=-1)
    with pytest.raises(ParameterError, match="epoch"):
        bits(epoch=2**32)
