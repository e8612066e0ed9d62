import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest

from lbq.functional.op_costs import AC_PJ, FORMATION_PJ, MAC_PJ, arithmetic_energy_pj
from lbq_paper.claims import (
    ABLATION,
    ACCUMULATIONS,
    ACCURACY,
    COST_TIMESTEPS,
    DIFFERENCES,
    DISPUTED,
    ENERGIES,
    HYPERPARAMETERS,
    REPEATED,
    TEXT,
    Dispute,
    printed_entries,
)

CELLS = printed_entries()
SAID = {claim.statement: float(claim.value) for claim in TEXT}
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


def round_like(value, printed: Decimal) -> Decimal:
    return Decimal(value).quantize(printed, ROUND_HALF_UP)


def is_share_of(accuracy: Decimal, num_samples: int) -> bool:
    near = int(accuracy * num_samples / 100)
    shares = (Decimal(100 * k) / num_samples for k in (near - 1, near, near + 1))
    return any(round_like(share, accuracy) == accuracy for share in shares)


def energy_mj(claim, *, stem_macs: int = STEM_MACS, **prices: float) -> float:
    picojoules = arithmetic_energy_pj(
        fp_macs=float(ANN_MACS if claim is ANN else stem_macs),
        acs=float(claim.acs_m or 0) * 1e6,
        plane_formations=float(claim.plane_formations_m or 0) * 1e6,
        **prices,
    )
    return picojoules * 1e-9


def ratio(claim, **stem: int) -> float:
    return energy_mj(ANN) / energy_mj(claim, **stem)


# -- transcription -----------------------------------------------------------------------------


def test_every_experiments_has_one_address():
    num_ratios = len(SNNS)
    num_costs = 3 * len(ACCUMULATIONS) + 2 * len(ENERGIES) + num_ratios
    assert len(CELLS) == len(ACCURACY) + len(ABLATION) + num_costs


def test_trailing_zeros_survive():
    assert str(CELLS["ablation/V3/learnable"]) == "97.30"
    assert str(CELLS["accumulation/LBQ (5)/unary"]) == "1589.90"


@pytest.mark.parametrize("claim", REPEATED, ids=lambda claim: claim.entry)
def test_prose_repeats_its_table_experiments(claim):
    assert str(claim.value) == str(CELLS[claim.entry])


@pytest.mark.parametrize("claim", DIFFERENCES, ids=lambda claim: f"{claim.value} {claim.minuend}")
def test_quoted_difference_is_the_difference_of_its_experiments(claim):
    assert claim.value == CELLS[claim.minuend] - CELLS[claim.subtrahend]


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
    assert CELLS[ablation] == CELLS[elsewhere]


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


@pytest.mark.parametrize("variant", ["V1", "V2", "V3", "LBQ"])
def test_entropies_lie_below_what_their_share_of_ones_allows(variant):
    """Entropy is concave: its mean is at most that of the mean share, the rest spread evenly."""
    ones = SAID[f"P(k=1 | k>0), {variant}"] / 100
    nats = -ones * math.log(ones) - (1 - ones) * math.log((1 - ones) / 4)
    assert SAID[f"normalised entropy, {variant}"] < nats / math.log(5)


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
    assert not is_share_of(CELLS[entry], NUM_TEST_IMAGES[entry.split("/")[0]] // num_shards)


# -- counts and energy (Tables 6 and 7) ----------------------------------------------------------


def test_macs_of_the_wide_resnet20_are_the_printed_ones():
    assert (STEM_MACS, ANN_MACS) == (3_538_944, 2_587_235_328)
    assert round_like(ANN_MACS / 1e6, ANN.fp_macs_m) == ANN.fp_macs_m
    assert all(round_like(STEM_MACS / 1e6, c.fp_macs_m) == c.fp_macs_m for c in SNNS)


def test_default_prices_are_the_printed_ones():
    assert SAID["energy of a MAC, 32-bit float"] == MAC_PJ
    assert SAID["energy of an accumulation"] == AC_PJ
    assert SAID["energy of a plane formation, 32-bit integer add"] == FORMATION_PJ


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
def test_energy_table_prices_the_bit_sparse_counts(claim):
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
    per_active = bits / COST_TIMESTEPS / SAID["active ratio, LBQ"]
    assert 1 <= per_active <= most_bits < per_active * COST_TIMESTEPS


# -- layer behaviour (Section 5.5) ---------------------------------------------------------------


@pytest.mark.parametrize("variant", ["V1", "V2", "V3", "LBQ"])
def test_entropy_stays_below_its_bound_given_level_one(variant):
    # Largest when levels 2..5 are equally likely; concave, so it also bounds means over layers.
    one = SAID[f"P(k=1 | k>0), {variant}"] / 100
    bound = -one * math.log(one) - (1 - one) * math.log((1 - one) / 4)
    assert SAID[f"normalised entropy, {variant}"] < bound / math.log(5)


def test_variation_of_the_step_fits_its_range():
    low, high = SAID["smallest learned step, LBQ"], SAID["largest learned step, LBQ"]
    largest = (high - low) / (2 * math.sqrt(low * high))
    assert SAID["coefficient of variation of the step, LBQ"] < largest


def test_level_five_needs_two_bits():
    assert (5).bit_count() == SAID["accumulations of a level of 5, bit-sparse"]


# -- what is disputed ----------------------------------------------------------------------------


def gesture_accuracy_is_no_share_of_a_test_set():
    accuracy = CELLS["DVS128-Gesture/ResNet-19/LBQ/T=16"]
    for size in GESTURE_TEST_SIZES:
        shares = [round_like(Decimal(100 * k) / size, accuracy) for k in range(size + 1)]
        assert accuracy not in shares
    assert round_like(Decimal(28300) / 288, accuracy) == Decimal("98.26")
    # Nor is it a mean over up to ten runs.
    assert not any(is_share_of(accuracy, 288 * runs) for runs in range(1, 11))
    assert not any(is_share_of(accuracy, 264 * runs) for runs in range(1, 11))


def stem_per_timestep_breaks_the_ratios():
    stem = COST_TIMESTEPS * STEM_MACS
    lbq, binary = ENERGY_OF["LBQ", 5], ENERGY_OF["Binary", None]
    assert round_like(ratio(lbq, stem_macs=stem), lbq.ratio) == Decimal("13.47")
    assert round_like(ratio(binary, stem_macs=stem), binary.ratio) == Decimal("114.23")


def int8_turns_the_ratio_around():
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


def binary_events_are_rare():
    synapse_steps = COST_TIMESTEPS * (ANN_MACS - STEM_MACS) / 1e6
    share = {key: 100 * float(c.acs_m or 0) / synapse_steps for key, c in ENERGY_OF.items()}
    assert round_like(share["Binary", None], Decimal("0.1")) == Decimal("1.5")
    assert round_like(share["Ternary", None], Decimal("1")) == 33
    assert all(10 < share["LBQ", max_level] < 23.5 for max_level in (2, 5, 10, 20))


def equal_levels_shrink_the_gain_over_lmht():
    lmht = CELLS["CIFAR-10/ResNet-20/LM-HT (L=2)/T=2"]
    assert CELLS["energy/LBQ (2)/accuracy"] - lmht == Decimal("0.33")
    assert all(column.max_level == 5 for column in HYPERPARAMETERS)


def surrogate_gain_is_within_one_standard_error():
    accuracy = float(CELLS["ablation/LBQ/learnable"]) / 100
    error = 100 * math.sqrt(accuracy * (1 - accuracy) / NUM_TEST_IMAGES["CIFAR-10"])
    gain = float(CELLS["ablation/LBQ/learnable"] - CELLS["ablation/V3/learnable"])
    gap = float(CELLS["ablation/ANN"] - CELLS["ablation/LBQ/learnable"])
    assert round_like(error, Decimal("0.01")) == Decimal("0.16")
    assert gap < gain < error


def floor_can_miss_an_exact_multiple_in_float32():
    steps = np.linspace(0.036, 0.461, 10_001, dtype=np.float32)
    missed = {k: np.mean(np.floor(np.float32(k) * steps / steps) != k) for k in range(1, 6)}
    assert missed[1] == missed[2] == missed[4] == 0  # powers of two scale exactly
    assert missed[3] > 0 < missed[5]


def energy_table_takes_the_weaker_ternary():
    assert CELLS["energy/Ternary/accuracy"] == CELLS["ablation/Ternary Spike/fixed"]
    assert CELLS["energy/Ternary/accuracy"] < CELLS["ablation/Ternary Spike/learnable"]


PROOFS: dict[str, Callable[[], None]] = {
    "Table 4, DVS128-Gesture, LBQ": gesture_accuracy_is_no_share_of_a_test_set,
    "Table 7, floating-point MACs of every SNN": stem_per_timestep_breaks_the_ratios,
    "Table 7, energy ratio": int8_turns_the_ratio_around,
    "Tables 6 and 7, Binary": binary_events_are_rare,
    "Table 2, gain over LM-HT (L=2)": equal_levels_shrink_the_gain_over_lmht,
    "Table 5, V3 against LBQ": surrogate_gain_is_within_one_standard_error,
    "Section 4, exactness of the inference path": floor_can_miss_an_exact_multiple_in_float32,
    "Table 7, Ternary": energy_table_takes_the_weaker_ternary,
}
ARITHMETIC = [dispute for dispute in DISPUTED if dispute.basis == "arithmetic"]


@pytest.mark.parametrize("dispute", ARITHMETIC, ids=lambda dispute: dispute.place)
def test_arithmetic_proves_the_dispute(dispute: Dispute):
    PROOFS[dispute.place]()


def test_every_proof_belongs_to_a_dispute():
    assert set(PROOFS) == {dispute.place for dispute in ARITHMETIC}


def test_only_plif_and_sew_print_gesture_accuracies_that_are_shares_of_288():
    shares = {
        c.method for c in ACCURACY if c.dataset == "DVS128-Gesture" and is_share_of(c.accuracy, 288)
    }
    assert shares == {"PLIF", "SEW"}
