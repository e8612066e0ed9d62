import math

import pytest

from lbq_paper.layers import behaviour_lines, first_behaviours
from lbq_paper.results import open_results

COUNTS = {"num_images": 10}


def test_what_a_record_holds_comes_out_again(record, layers, tmp_path):
    record("ablation/V3/learnable", 0, 0.8, layers=layers(0.2), counts=COUNTS)
    found = first_behaviours(open_results(tmp_path), "pocket")
    assert list(found) == ["V3"]
    steps, levels = found["V3"].steps, found["V3"].levels
    assert steps.is_learned
    assert steps.means == pytest.approx((0.2, 0.6))
    assert steps.variation == pytest.approx(0.5)
    assert levels.active_ratio == pytest.approx(0.175)
    assert levels.layers[0].shares == pytest.approx((0.5, 0.25, 0.125, 0.0625, 0.0625))
    assert levels.entropy == pytest.approx(1.875 * math.log(2) / math.log(5), abs=1e-5)


def test_a_silent_layer_stays_silent(record, layers, tmp_path):
    silent = [{**layer, "active": 0.0, "levels": [], "entropy": None} for layer in layers(1.0)]
    record("ablation/V1/fixed", 0, 0.1, layers=silent, counts=COUNTS)
    levels = first_behaviours(open_results(tmp_path), "pocket")["V1"].levels
    assert levels.active_ratio == 0
    assert levels.entropy is None
    assert levels.max_level == 5


def test_the_papers_numbers_stand_beside_ours(record, layers, tmp_path):
    record("ablation/V1/fixed", 0, 0.8, layers=layers(1.0), counts=COUNTS)
    record("ablation/LBQ/learnable", 0, None, diverged="loss is not finite")
    for seed, step in enumerate((0.2, 0.4)):
        record("ablation/V3/learnable", seed, 0.8, layers=layers(step), counts=COUNTS)
    head, *lines = behaviour_lines(open_results(tmp_path), "pocket")
    assert head == ("what", "network", "paper", "pocket")
    table = {line[:2]: line[2:] for line in lines}
    assert table["active ratio", "V1"] == ("0.173", "0.175 (n=1)")
    assert table["P(k=1 | k>0)", "V1"] == ("53.0", "50.0 (n=1)")
    assert table["smallest learned step", "V3"] == ("-", "0.300 +- 0.141 (n=2)")
    assert table["coefficient of variation of the step", "LBQ"] == ("0.74", "diverged")
    assert ("coefficient of variation of the step", "V1") not in table  # it is fixed
    assert table["active ratio", "V2"] == ("0.100", "not run")


def test_the_first_seed_that_did_not_diverge_is_drawn(record, layers, tmp_path):
    record("ablation/V2/fixed", 0, None, diverged="loss is not finite")
    record("ablation/V2/fixed", 1, 0.8, layers=layers(1.0), counts=COUNTS)
    assert list(first_behaviours(open_results(tmp_path), "pocket")) == ["V2"]
