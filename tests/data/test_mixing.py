import numpy as np
import pytest

from lbq.data import augment as mixing
from lbq.data.augment import Mix, MixConfig
from lbq.errors import ParameterError


def choose(config, steps=2000, size=(32, 32)):
    return [
        mixing.choose_mix(config, seed=0, epoch=0, step=step, size=size) for step in range(steps)
    ]


def pictures(count=6):
    return np.random.default_rng(0).normal(size=(count, 3, 8, 8)).astype(np.float32)


def test_mixup_blends_neighbours():
    values = pictures()
    mixed = values.copy()
    mixing.mix_pairs(mixed, Mix(0.7))
    partners = values.reshape(3, 2, 3, 8, 8)[:, ::-1].reshape(values.shape)
    assert np.allclose(mixed, 0.7 * values + 0.3 * partners, atol=1e-6)


def test_cutmix_swaps_a_box_between_neighbours():
    values = pictures()
    mixed = values.copy()
    mixing.mix_pairs(mixed, Mix(0.75, (slice(2, 6), slice(0, 4))))
    expected = values.copy()
    expected[0::2, :, 2:6, 0:4] = values[1::2, :, 2:6, 0:4]
    expected[1::2, :, 2:6, 0:4] = values[0::2, :, 2:6, 0:4]
    assert np.array_equal(mixed, expected)


@pytest.mark.parametrize("mix", [Mix(0.6), Mix(0.5, (slice(0, 8), slice(0, 4))), Mix(1.0)])
def test_a_sample_without_neighbour_stays_as_it_is(mix):
    values = pictures(5)
    mixed = values.copy()
    mixing.mix_pairs(mixed, mix)
    assert np.array_equal(mixed[4], values[4])


def test_the_share_of_a_target_is_the_share_of_the_pixels():
    for mix in choose(MixConfig(cutmix=1.0), steps=50, size=(20, 28)):
        ones = np.zeros((2, 1, 20, 28), np.float32)
        ones[0] = 1
        mixing.mix_pairs(ones, mix)
        targets = mixing.soft_targets(np.array([0, 1]), mix.kept, 2)
        assert ones[0].mean() == pytest.approx(targets[0, 0], abs=1e-6)
        assert ones[1].mean() == pytest.approx(targets[1, 0], abs=1e-6)


def test_targets_sum_to_one_also_for_partners_of_the_same_class():
    targets = mixing.soft_targets(np.array([3, 3, 0, 2, 1]), 0.3, 4)
    assert np.allclose(targets.sum(1), 1)
    assert targets[0].tolist() == [0, 0, 0, 1]
    assert targets[2] == pytest.approx([0.3, 0, 0.7, 0])
    assert targets[4].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 1.0])
def test_the_share_kept_follows_the_beta_distribution(alpha):
    kept = np.array([mix.kept for mix in choose(MixConfig(mixup=alpha))])
    variance = 1 / (4 * (2 * alpha + 1))
    assert kept.mean() == pytest.approx(0.5, abs=5 * np.sqrt(variance / len(kept)))
    assert kept.var() == pytest.approx(variance, rel=0.1)


def test_batches_are_mixed_as_often_as_said_and_both_ways_equally_often():
    mixes = choose(MixConfig(mixup=0.5, cutmix=1.0, prob=0.4))
    by_box = sum(mix.box is not None for mix in mixes)
    by_blend = sum(mix.box is None and mix.kept < 1 for mix in mixes)
    assert by_box == pytest.approx(400, abs=5 * np.sqrt(400))
    assert by_blend == pytest.approx(400, abs=5 * np.sqrt(400))


def test_a_box_lies_inside_and_its_centre_anywhere():
    boxes = [mix.box for mix in choose(MixConfig(cutmix=1.0), size=(20, 28))]
    assert all(0 <= y.start <= y.stop <= 20 and 0 <= x.start <= x.stop <= 28 for y, x in boxes)
    assert {y.start for y, _ in boxes} >= {0, 10}
    assert max(x.stop for _, x in boxes) == 28


def test_nothing_is_mixed_unless_asked():
    assert not MixConfig().is_on
    assert not MixConfig(mixup=1.0, prob=0.0).is_on
    assert choose(MixConfig(), steps=3) == [Mix(1.0)] * 3


def test_what_is_no_probability_is_refused():
    with pytest.raises(ParameterError, match="mixup must be at least 0"):
        MixConfig(mixup=-0.1)
    with pytest.raises(ParameterError, match="prob must be at least 0 and at most 1"):
        MixConfig(prob=1.5)
