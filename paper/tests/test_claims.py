import math
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest

from lbq.functional.op_costs import AC_PJ, FORMATION_PJ, MAC_PJ, arithmetic_energy_pj
from lbq_paper.claims import (
    ABLATION,
    ACCUMULATIONS,
    ACCURACY,
    COST_TIMESTEPS,
    ENERGIES,
    HYPERPARAMETERS,
    TEXT,
    printed_entries,
)

PRINTED = printed_entries()
TEXT_VALUES = {claim.statement: float(claim.value) for claim in TEXT}
ANN = ENERGIES[0]
SNNS = ENERGIES[1:]
BURSTS = [claim for claim in ACCUMULATIONS if claim.max_level is not None]
ENERGY_OF = {(claim.method, claim.max_level): claim for claim in ENERGIES}
NUM_TEST_IMAGES = {
    "CIFAR-10": 10_000,
    "CIFAR-100": 10_000,
    "ImageNet-1K": 50_000,
    "CIFAR10-DVS": 1_000,
}
GESTURE_TEST_SIZES = (288, 264)

# The one ResNet-20 that gives the MACs of Table 7: widths 128/256/512, three blocks each, 32x32.
STEM_MACS = 9 * 3 * 128 * 32**2
STAGE1_MACS = 6 * 9 * 128 * 128 * 32**2
STAGE2_MACS = 9 * 128 * 256 * 16**2 + 5 * 9 * 256 * 256 * 16**2 + 128 * 256 * 16**2
STAGE3_MACS = 9 * 256 * 512 * 8**2 + 5 * 9 * 512 * 512 * 8**2 + 256 * 512 * 8**2
ANN_MACS = STEM_MACS + STAGE1_MACS + STAGE2_MACS + STAGE3_MACS + 512 * 10
NUM_NEURONS = 7 * 128 * 32**2 + 6 * 256 * 16**2 + 6 * 512 * 8**2


REPEATED = (
    ("97.28", "CIFAR-10/ResNet-20/LBQ/T=1"),
    ("97.45", "CIFAR-10/ResNet-20/LBQ/T=2"),
    ("82.38", "CIFAR-100/ResNet-20/LBQ/T=1"),
    ("82.82", "CIFAR-100/ResNet-20/LBQ/T=2"),
    ("78.74", "CIFAR-100/ResNet-20/LM-HT (L=2)/T=1"),
    ("67.50", "ImageNet-1K/ResNet-18/LBQ/T=1"),
    ("68.23", "ImageNet-1K/ResNet-18/LBQ/T=2"),
    ("72.45", "ImageNet-1K/ResNet-34/LBQ/T=1"),
    ("73.67", "ImageNet-1K/ResNet-34/LBQ/T=2"),
    ("80.50", "CIFAR10-DVS/ResNet-20/LBQ/T=10"),
    ("80.50", "CIFAR10-DVS/VGG-13/IMLIF/T=40"),
    ("98.28", "DVS128-Gesture/ResNet-19/LBQ/T=16"),
    ("97.52", "ablation/ANN"),
    ("94.11", "ablation/Ternary Spike/fixed"),
    ("95.55", "ablation/Ternary Spike/learnable"),
    ("96.44", "ablation/V1/fixed"),
    ("96.74", "ablation/V2/fixed"),
    ("97.30", "ablation/V3/learnable"),
    ("97.45", "ablation/LBQ/learnable"),
    ("25.41", "accumulation/LBQ (2)/reduction"),
    ("1589.90", "accumulation/LBQ (5)/unary"),
    ("945.69", "accumulation/LBQ (5)/bit-sparse"),
    ("40.52", "accumulation/LBQ (5)/reduction"),
    ("2828.76", "accumulation/LBQ (20)/unary"),
    ("1163.20", "accumulation/LBQ (20)/bit-sparse"),
    ("58.88", "accumulation/LBQ (20)/reduction"),
    ("97.52", "energy/ANN/accuracy"),
    ("11.90", "energy/ANN/mj"),
    ("96.73", "energy/LBQ (2)/accuracy"),
    ("0.50", "energy/LBQ (2)/mj"),
    ("97.45", "energy/LBQ (5)/accuracy"),
    ("0.87", "energy/LBQ (5)/mj"),
    ("13.72", "energy/LBQ (5)/ratio"),
)
"""Numbers that the text repeats, and the entries they come from."""

DIFFERENCES = (
    ("0.07", "ablation/ANN", "CIFAR-10/ResNet-20/LBQ/T=2"),
    ("1.35", "CIFAR-10/ResNet-20/LBQ/T=1", "CIFAR-10/ResNet-20/LM-HT (L=2)/T=1"),
    ("1.05", "CIFAR-10/ResNet-20/LBQ/T=2", "CIFAR-10/ResNet-20/LM-HT (L=2)/T=2"),
    ("1.36", "CIFAR-10/ResNet-20/LBQ/T=4", "CIFAR-10/ResNet-20/LM-HT (L=2)/T=4"),
    ("3.64", "CIFAR-100/ResNet-20/LBQ/T=1", "CIFAR-100/ResNet-20/LM-HT (L=2)/T=1"),
    ("2.86", "CIFAR-100/ResNet-20/LBQ/T=2", "CIFAR-100/ResNet-20/LM-HT (L=2)/T=2"),
    ("2.04", "CIFAR-100/ResNet-20/LBQ/T=4", "CIFAR-100/ResNet-20/LM-HT (L=2)/T=4"),
    ("2.77", "ImageNet-1K/ResNet-34/LBQ/T=2", "ImageNet-1K/ResNet-34/LM-HT (L=2)/T=2"),
    ("0.71", "ImageNet-1K/ResNet-34/LBQ/T=2", "ImageNet-1K/ResNet-34/Adaptive Calibration/T=8"),
    ("2.30", "CIFAR10-DVS/ResNet-20/LBQ/T=10", "CIFAR10-DVS/ResNet-20/LM-HT (L=2)/T=10"),
    ("0.86", "ablation/V3/learnable", "ablation/V1/fixed"),
    ("0.71", "ablation/LBQ/learnable", "ablation/V2/fixed"),
    ("2.33", "ablation/V1/fixed", "ablation/Ternary Spike/fixed"),
)
"""Differences that the text quotes: value, minuend, subtrahend."""


def round_like(value, printed: Decimal) -> Decimal:
    return Decimal(value).quantize(printed, ROUND_HALF_UP)


def is_share_of(accuracy: Decimal, num_samples: int) -> bool:
    near = int(accuracy * num_samples / 100)
    shares = (Decimal(100 * k) / num_samples for k in (near - 1, near, near + 1))
    return any(round_like(share, accuracy) == accuracy for share in shares)


def energy_mj(claim, *, stem_macs: int = STEM_MACS, **energies: float) -> float:
    picojoules = arithmetic_energy_pj(
        fp_macs=float(ANN_MACS if claim is ANN else stem_macs),
        acs=float(claim.acs_m or 0) * 1e6,
        plane_formations=float(claim.plane_formations_m or 0) * 1e6,
        **energies,
    )
    return picojoules * 1e-9


def ratio(claim, **stem: int) -> float:
    return energy_mj(ANN) / energy_mj(claim, **stem)


# -- transcription -----------------------------------------------------------------------------


def test_every_entry_has_one_address():
    num_ratios = len(SNNS)
    num_costs = 3 * len(ACCUMULATIONS) + 2 * len(ENERGIES) + num_ratios
    assert len(PRINTED) == len(ACCURACY) + len(ABLATION) + num_costs


def test_trailing_zeros_survive():
    assert str(PRINTED["ablation/V3/learnable"]) == "97.30"
    assert str(PRINTED["accumulation/LBQ (5)/unary"]) == "1589.90"


@pytest.mark.parametrize(("value", "entry"), REPEATED)
def test_the_text_repeats_its_table_entry(value, entry):
    assert value == str(PRINTED[entry])


@pytest.mark.parametrize(("value", "minuend", "subtrahend"), DIFFERENCES)
def test_a_quoted_difference_is_that_of_its_entries(value, minuend, subtrahend):
    assert Decimal(value) == PRINTED[minuend] - PRINTED[subtrahend]


@pytest.mark.parametrize(
    ("ablation", "elsewhere"),
    [
        ("ablation/LBQ/learnable", "CIFAR-10/ResNet-20/LBQ/T=2"),
        ("ablation/LBQ/learnable", "energy/LBQ (5)/accuracy"),
        ("ablation/ANN", "energy/ANN/accuracy"),
        ("ablation/Binary LIF", "energy/Binary/accuracy"),
        ("ablation/Ternary Spike/fixed", "energy/Ternary/accuracy"),
    ],
)
def test_ablation_agrees_with_the_other_tables(ablation, elsewhere):
    assert PRINTED[ablation] == PRINTED[elsewhere]


def test_own_rows_use_the_timesteps_of_the_hyperparameters():
    for column in HYPERPARAMETERS:
        for dataset in column.datasets:
            own = [c for c in ACCURACY if c.dataset == dataset and c.origin == "own"]
            assert {c.timesteps for c in own} == set(column.timesteps)


def test_own_rows_lead_cifar_at_every_timestep():
    for own in (c for c in ACCURACY if c.table == 2 and c.origin == "own"):
        rivals = [c for c in ACCURACY if c.dataset == own.dataset and c is not own]
        assert all(
            c.accuracy < own.accuracy
            for c in rivals
            if c.timesteps == own.timesteps and c.origin != "own"
        )


@pytest.mark.parametrize(
    "claim",
    [
        c
        for c in ACCURACY
        if c.origin != "quoted" and NUM_TEST_IMAGES.get(c.dataset, 10_000) < 10_000
    ],  # two decimals are always a share of 10,000 or 50,000
    ids=lambda claim: claim.entry,
)
def test_accuracy_is_a_share_of_its_test_set(claim):
    assert is_share_of(claim.accuracy, NUM_TEST_IMAGES[claim.dataset])


@pytest.mark.parametrize("num_shards", [2, 4, 8])
@pytest.mark.parametrize(
    "entry",
    [
        "CIFAR-10/ResNet-20/LBQ/T=2",
        "CIFAR-10/ResNet-20/LBQ/T=4",
        "CIFAR10-DVS/ResNet-20/LBQ/T=10",
    ],
)
def test_accuracy_was_not_measured_on_one_shard(entry, num_shards):
    assert not is_share_of(PRINTED[entry], NUM_TEST_IMAGES[entry.split("/")[0]] // num_shards)


# -- counts and energy (Tables 6 and 7) ----------------------------------------------------------


def test_macs_of_the_wide_resnet20_are_the_printed_ones():
    assert (STEM_MACS, ANN_MACS) == (3_538_944, 2_587_235_328)
    assert round_like(ANN_MACS / 1e6, ANN.fp_macs_m) == ANN.fp_macs_m
    assert all(round_like(STEM_MACS / 1e6, c.fp_macs_m) == c.fp_macs_m for c in SNNS)


def test_default_energies_are_the_printed_ones():
    assert TEXT_VALUES["energy of a MAC, 32-bit float"] == MAC_PJ
    assert TEXT_VALUES["energy of an accumulation"] == AC_PJ
    assert TEXT_VALUES["energy of a plane formation, 32-bit integer add"] == FORMATION_PJ


@pytest.mark.parametrize("claim", ENERGIES, ids=lambda c: f"{c.method} {c.max_level}")
def test_energy_follows_from_the_counts_to_the_printed_digit(claim):
    assert round_like(energy_mj(claim), claim.energy_mj) == claim.energy_mj


@pytest.mark.parametrize("claim", SNNS, ids=lambda c: f"{c.method} {c.max_level}")
def test_ratio_follows_from_unrounded_energies_to_the_printed_digit(claim):
    assert round_like(ratio(claim), claim.ratio) == claim.ratio


def test_rounding_before_the_ratio_misses_the_printed_digit():
    binary, lbq = ENERGY_OF["Binary", None], ENERGY_OF["LBQ", 5]
    assert round_like(ratio(binary, stem_macs=3_540_000), binary.ratio) == Decimal("135.37")
    assert round_like(ANN.energy_mj / lbq.energy_mj, lbq.ratio) == Decimal("13.68")


@pytest.mark.parametrize("claim", ACCUMULATIONS, ids=lambda c: f"{c.method} {c.max_level}")
def test_reduction_follows_from_the_counts(claim):
    reduction = 100 * (1 - claim.bit_sparse_acs_m / claim.unary_acs_m)
    assert round_like(reduction, claim.reduction_percent) == claim.reduction_percent


@pytest.mark.parametrize("claim", ACCUMULATIONS, ids=lambda c: f"{c.method} {c.max_level}")
def test_energy_table_takes_the_bit_sparse_counts(claim):
    assert ENERGY_OF[claim.method, claim.max_level].acs_m == claim.bit_sparse_acs_m


@pytest.mark.parametrize("claim", BURSTS, ids=lambda c: f"N={c.max_level}")
def test_unary_exceeds_bit_sparse_within_the_limits_of_its_levels(claim):
    gains = [level / level.bit_count() for level in range(1, claim.max_level + 1)]
    assert min(gains) <= claim.unary_acs_m / claim.bit_sparse_acs_m <= max(gains)


def test_two_levels_reveal_their_distribution():
    # Level 2 costs two unary events and one bit, so the two counts differ by its mass.
    claim = next(c for c in BURSTS if c.max_level == 2)
    level_2 = claim.unary_acs_m - claim.bit_sparse_acs_m
    level_1 = claim.bit_sparse_acs_m - level_2
    assert level_1 > 0 < level_2
    assert round_like(level_2 / (level_1 + level_2), Decimal("0.001")) == Decimal("0.341")


def test_plane_formations_fit_the_levels_only_if_timesteps_are_summed():
    # The active ratio is a mean over layers and stands in for the mean over neurons.
    bits = float(ENERGY_OF["LBQ", 5].plane_formations_m) * 1e6 / NUM_NEURONS
    most_bits = max(level.bit_count() for level in range(6))
    per_active = bits / COST_TIMESTEPS / TEXT_VALUES["active ratio, LBQ"]
    assert 1 <= per_active <= most_bits < per_active * COST_TIMESTEPS


# -- layer behaviour (Section 5.5) ---------------------------------------------------------------


@pytest.mark.parametrize("variant", ["V1", "V2", "V3", "LBQ"])
def test_entropy_stays_below_its_bound_given_level_one(variant):
    # Largest when levels 2..5 are equally likely; concave, so it also bounds means over layers.
    one = TEXT_VALUES[f"P(k=1 | k>0), {variant}"] / 100
    bound = -one * math.log(one) - (1 - one) * math.log((1 - one) / 4)
    assert TEXT_VALUES[f"normalised entropy, {variant}"] < bound / math.log(5)


def test_variation_of_the_step_fits_its_range():
    low, high = TEXT_VALUES["smallest learned step, LBQ"], TEXT_VALUES["largest learned step, LBQ"]
    largest = (high - low) / (2 * math.sqrt(low * high))
    assert TEXT_VALUES["coefficient of variation of the step, LBQ"] < largest


def test_level_five_needs_two_bits():
    assert (5).bit_count() == TEXT_VALUES["accumulations of a level of 5, bit-sparse"]


# -- claims that do not hold, or under a condition (docs/paper-notes.md) ------------------------


def test_gesture_accuracy_is_no_share_of_a_test_set():
    accuracy = PRINTED["DVS128-Gesture/ResNet-19/LBQ/T=16"]
    for size in GESTURE_TEST_SIZES:  # nor is it a mean over up to ten runs
        assert not any(is_share_of(accuracy, size * runs) for runs in range(1, 11))
    assert round_like(Decimal(28300) / 288, accuracy) == Decimal("98.26")


def test_stem_per_timestep_breaks_the_ratios():
    stem = COST_TIMESTEPS * STEM_MACS
    lbq, binary = ENERGY_OF["LBQ", 5], ENERGY_OF["Binary", None]
    assert round_like(ratio(lbq, stem_macs=stem), lbq.ratio) == Decimal("13.47")
    assert round_like(ratio(binary, stem_macs=stem), binary.ratio) == Decimal("114.23")


def test_int8_turns_the_ratio_around():
    lbq, two_digits, three_digits = ENERGY_OF["LBQ", 5], Decimal("0.01"), Decimal("0.001")
    ann = energy_mj(ANN, mac_pj=0.23)
    assert round_like(ann, two_digits) == Decimal("0.60")
    assert ann < energy_mj(lbq)
    int8_adds = energy_mj(lbq, mac_pj=0.23, ac_pj=0.03)
    int32_adds = energy_mj(lbq, mac_pj=0.23, ac_pj=0.1)
    assert round_like(int8_adds, three_digits) == Decimal("0.029")
    assert round_like(int32_adds, three_digits) == Decimal("0.095")
    assert round_like(ann / int8_adds, two_digits) == Decimal("20.34")
    assert round_like(ann / int32_adds, two_digits) == Decimal("6.23")


def test_binary_events_are_rare():
    synapse_steps = COST_TIMESTEPS * (ANN_MACS - STEM_MACS) / 1e6
    share = {key: 100 * float(c.acs_m or 0) / synapse_steps for key, c in ENERGY_OF.items()}
    assert round_like(share["Binary", None], Decimal("0.1")) == Decimal("1.5")
    assert round_like(share["Ternary", None], Decimal("1")) == 33
    assert all(10 < share["LBQ", max_level] < 23.5 for max_level in (2, 5, 10, 20))


def test_equal_levels_shrink_the_gain_over_lmht():
    lmht = PRINTED["CIFAR-10/ResNet-20/LM-HT (L=2)/T=2"]
    assert PRINTED["energy/LBQ (2)/accuracy"] - lmht == Decimal("0.33")
    assert all(column.max_level == 5 for column in HYPERPARAMETERS)


def test_surrogate_gain_is_within_one_standard_error():
    accuracy = float(PRINTED["ablation/LBQ/learnable"]) / 100
    error = 100 * math.sqrt(accuracy * (1 - accuracy) / NUM_TEST_IMAGES["CIFAR-10"])
    gain = float(PRINTED["ablation/LBQ/learnable"] - PRINTED["ablation/V3/learnable"])
    gap = float(PRINTED["ablation/ANN"] - PRINTED["ablation/LBQ/learnable"])
    assert round_like(error, Decimal("0.01")) == Decimal("0.16")
    assert gap < gain < error


def test_floor_can_miss_an_exact_multiple_in_float32():
    steps = np.linspace(0.036, 0.461, 10_001, dtype=np.float32)
    missed = {k: np.mean(np.floor(np.float32(k) * steps / steps) != k) for k in range(1, 6)}
    assert missed[1] == missed[2] == missed[4] == 0  # powers of two scale exactly
    assert missed[3] > 0 < missed[5]


def test_energy_table_takes_the_weaker_ternary():
    assert PRINTED["energy/Ternary/accuracy"] < PRINTED["ablation/Ternary Spike/learnable"]


def test_only_plif_and_sew_print_gesture_accuracies_that_are_shares_of_288():
    shares = {
        c.method for c in ACCURACY if c.dataset == "DVS128-Gesture" and is_share_of(c.accuracy, 288)
    }
    assert shares == {"PLIF", "SEW"}
