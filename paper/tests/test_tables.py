import json
from decimal import Decimal

import pytest

from lbq_paper.claims import ABLATION, ACCUMULATIONS, ACCURACY, ENERGIES
from lbq_paper.results import open_results, shown
from lbq_paper.tables import table_lines, table_text

COUNTS = {
    "num_images": 10,
    "ann_macs": 2_587_235_328,
    "fp_macs": 35_389_440,
    "unary_acs": 15_899_000_000,
    "bit_sparse_acs": 9_456_900_000,
    "plane_formations": 6_950_000,
}


def line(text, start):
    lines = (" ".join(line.split()) for line in text.splitlines())
    (found,) = (line for line in lines if line.startswith(start))
    return found


def table(name, folder):
    return table_text(name, open_results(folder))


@pytest.mark.parametrize("name", ["2", "3", "4", "5", "6", "7", "open"])
def test_without_records_nothing_was_run(name, tmp_path):
    text = table(name, tmp_path)
    assert "not run" in text
    assert "n=" not in text


def test_every_printed_number_stands_in_its_row_and_column(tmp_path):
    results = open_results(tmp_path)
    rows = {name: table_lines(name, results)[1:] for name in ("2", "3", "4", "5", "6", "7")}
    accuracies = {line[0]: line[1] for name in ("2", "3", "4") for line in rows[name]}
    assert all(accuracies[claim.entry] == str(claim.accuracy) for claim in ACCURACY)
    ablation = {f"ablation/{line[0]}": line[1] for line in rows["5"]}
    assert ablation == {claim.entry: str(claim.accuracy) for claim in ABLATION}
    costs = {line[:2]: line[2] for name in ("6", "7") for line in rows[name]}
    for claim in ACCUMULATIONS:
        assert costs[claim.row, "unary ACs"] == str(claim.unary_acs_m)
        assert costs[claim.row, "bit-sparse ACs"] == str(claim.bit_sparse_acs_m)
        assert costs[claim.row, "saved, %"] == str(claim.reduction_percent)
    for claim in ENERGIES:
        printed = {
            "accuracy, %": claim.accuracy,
            "FP MACs": claim.fp_macs_m,
            "ACs": claim.acs_m,
            "formations": claim.plane_formations_m,
            "energy": claim.energy_mj,
            "ANN / this": claim.ratio,
        }
        for what, number in printed.items():
            assert costs.get((claim.row, what)) == (None if number is None else str(number))


def test_a_table_names_its_records(record, tmp_path):
    path = record("ablation/V1/fixed", 0, 0.8123, commit="abc")
    assert f"From results/pocket, commit abc: {path.stem}" in table("5", tmp_path)
    assert path.stem not in table("6", tmp_path)


def test_a_record_fills_its_places_and_its_removal_empties_them(record, tmp_path):
    path = record("ablation/V1/fixed", 0, 0.8123)
    assert "81.23 (n=1)" in line(table("5", tmp_path), "V1/fixed")
    path.unlink()
    assert "81.23" not in table("5", tmp_path)
    assert line(table("5", tmp_path), "V1/fixed").count("not run") == 2


def test_seeds_become_mean_spread_and_paired_differences(record, tmp_path):
    for seed, (lbq, v3) in enumerate([(0.83, 0.82), (0.84, 0.81), (0.85, 0.83)]):
        record("ablation/LBQ/learnable", seed, lbq)
        record("ablation/V3/learnable", seed, v3)
    text = table("5", tmp_path)
    assert line(text, "LBQ/learnable").endswith("84.00 +- 1.00 (n=3) -")
    assert "82.00 +- 1.00 (n=3)" in line(text, "V3/learnable")
    assert "-2.00 +- 1.00 (n=3)" in line(text, "V3/learnable")


def test_only_seeds_that_both_have_are_paired(record, tmp_path):
    record("ablation/LBQ/learnable", 0, 0.80)
    record("ablation/V3/learnable", 0, 0.79)
    record("ablation/V3/learnable", 1, 0.90)
    assert "-1.00 (n=1)" in line(table("5", tmp_path), "V3/learnable")


def test_the_two_sizes_have_columns_of_their_own(record, tmp_path):
    record("ablation/LBQ/learnable", 0, 0.9745, size="full")
    record("ablation/LBQ/learnable", 0, 0.80)
    words = line(table("5", tmp_path), "LBQ/learnable")
    assert words.index("97.45 ") < words.index("97.45 (n=1)") < words.index("80.00 (n=1)")
    assert "97.45 (n=1)" in line(table("2", tmp_path), "CIFAR-10/ResNet-20/LBQ/T=2")


def test_the_papers_counts_give_the_papers_energy(record, tmp_path):
    record("energy/LBQ (5)", 0, 0.9745, size="full", counts=COUNTS)
    claim = next(c for c in ENERGIES if c.max_level == 5)
    text = table("7", tmp_path)
    assert "13.72 (n=1)" in line(text, "LBQ (5) ANN / this")
    assert Decimal("0.87") == claim.energy_mj
    assert "0.86747 (n=1)" in line(text, "LBQ (5) energy")
    counts = table("6", tmp_path)
    assert "1589.90 (n=1)" in line(counts, "LBQ (5) unary")
    assert "40.52 (n=1)" in line(counts, "LBQ (5) saved")


def test_an_ann_has_macs_and_energy_only(record, tmp_path):
    macs = {"num_images": 10, "ann_macs": 2_587_235_328, "fp_macs": 25_872_353_280}
    record("energy/ANN", 0, 0.9752, size="full", counts=macs)
    assert "11.90128 (n=1)" in line(table("7", tmp_path), "ANN energy")


def test_older_code_and_divergence_are_shown(record, tmp_path):
    record("open/no reset", 0, 0.5, numerics="0" * 64)
    record("open/reset by level", 0, None, diverged="loss is not finite")
    text = table("open", tmp_path)
    assert "50.00 (n=1)*" in line(text, "no reset")
    assert "diverged" in line(text, "reset by level")


def test_one_seed_that_diverged_does_not_vanish_from_a_mean(record, tmp_path):
    record("ablation/V1/fixed", 0, 0.80)
    record("ablation/V1/fixed", 1, 0.82)
    record("ablation/V1/fixed", 2, None, diverged="loss is not finite")
    assert "81.00 +- 1.41 (n=2), 1 diverged" in line(table("5", tmp_path), "V1/fixed")


def test_open_points_are_compared_with_what_they_change(record, tmp_path):
    record("ablation/V2/fixed", 0, 0.79)
    record("ablation/LBQ/learnable", 0, 0.80)
    record("open/V2, step fixed at 0.5", 0, 0.81)
    words = line(table("open", tmp_path), "V2, step fixed at 0.5")
    assert "V2, step fixed at 1.0 +2.00 (n=1) inconclusive" in words


def test_quoted_rows_without_an_experiment_say_so(tmp_path):
    text = table("2", tmp_path)
    assert line(text, "CIFAR-10/ResNet-20/RMP-SNN").endswith("no experiment no experiment")
    assert line(text, "CIFAR-100/ResNet-20/LBQ/T=1").endswith("not run no experiment")


def test_a_table_has_the_places_of_its_own_only(tmp_path):
    results = open_results(tmp_path)
    assert "ablation/" not in table_text("2", results)
    assert "CIFAR-10/ResNet-20/I-LIF (D=4)/T=2" in table_text("2", results)
    assert all(entry.startswith("open/") for entry in results.entries("open"))


def test_a_recipe_that_was_recorded_before_a_field_existed_is_still_found(record, tmp_path):
    path = record("ablation/V1/fixed", 0, 0.8123)
    body = json.loads(path.read_text())
    del body["recipe"]["model"]["neuron"]["gradient_scale"]
    path.write_text(json.dumps(body))
    assert "81.23" in table("5", tmp_path)


def test_a_spread_needs_two():
    assert shown([1.0], digits=2) == "1.00 (n=1)"
    assert shown([1.0, 3.0], digits=1, sign="+") == "+2.0 +- 1.4 (n=2)"
