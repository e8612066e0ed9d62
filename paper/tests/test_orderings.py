import pytest

from lbq_paper.orderings import QUESTIONS, conclude, orderings, student_quantile
from lbq_paper.results import Spread, open_results

KNOWN = Spread(deviation=0.5, freedom=16)
"""A difference of one seed is clear from 2.120 * 0.5 * sqrt(2) = 1.50 on, of two from 1.06 on."""


@pytest.mark.parametrize(
    ("differences", "conclusion"),
    [
        ([], "not run"),
        ([1.49], "inconclusive"),
        ([1.51], "holds"),
        ([-1.51], "does not hold"),
        ([1.0, 1.1], "inconclusive"),
        ([1.0, 1.2], "holds"),
        ([2.5, -0.2], "holds"),  # the spread of all networks counts, not that of these two
        ([0.0, 0.0], "inconclusive"),
    ],
)
def test_the_rule(differences, conclusion):
    assert conclude(differences, KNOWN) == conclusion


def test_a_spread_of_few_runs_decides_nothing():
    assert conclude([9.0], Spread(deviation=0.5, freedom=3)) == "inconclusive"
    assert conclude([9.0], Spread(deviation=0.5, freedom=4)) == "holds"


@pytest.mark.parametrize(
    ("freedom", "printed"), [(4, 2.776), (5, 2.571), (10, 2.228), (16, 2.120), (60, 2.000)]
)
def test_quantiles_are_those_of_printed_tables(freedom, printed):
    assert student_quantile(freedom) == pytest.approx(printed, rel=0.01)


def test_every_ordering_is_one_of_the_papers(tmp_path):
    found = orderings(open_results(tmp_path), "pocket")
    assert len(found) == sum(len(question.pairs) for question in QUESTIONS) == 36
    assert all(each.printed > 0 for each in found)
    assert {each.conclusion for each in found} == {"not run"}


def test_every_place_that_is_compared_has_small_experiments(tmp_path):
    entries = {
        entry for experiment in open_results(tmp_path).experiments for entry in experiment.entries
    }
    compared = {
        question.entry(row) for question in QUESTIONS for pair in question.pairs for row in pair
    }
    assert compared <= entries


def find(folder, more, less):
    (found,) = (
        each
        for each in orderings(open_results(folder), "pocket")
        if (each.more, each.less) == (more, less) and each.question.measure == "accuracy, %"
    )
    return found


def test_differences_are_those_of_common_seeds(record, tmp_path):
    for seed, (better, worse) in enumerate([(0.83, 0.82), (0.84, 0.82), (0.85, None)]):
        record("ablation/LBQ/learnable", seed, better)
        if worse is not None:
            record("ablation/V3/learnable", seed, worse)
    found = find(tmp_path, "LBQ/learnable", "V3/learnable")
    assert found.differences == pytest.approx((1.0, 2.0))
    assert found.question.words == "ReLSG-ET beats Box-ET"


def test_the_spread_is_pooled_over_networks_once_each(record, tmp_path):
    for seed, share in enumerate([0.80, 0.81, 0.82]):  # fills several entries
        record("ablation/LBQ/learnable", seed, share)
    for seed, share in enumerate([0.70, 0.74]):
        record("open/no reset", seed, share)
    record("open/reset by level", 0, 0.1)  # alone: no spread
    spread = find(tmp_path, "LBQ/learnable", "V3/learnable").spread
    assert spread.freedom == 3
    assert spread.deviation == pytest.approx(((1 + 0 + 1 + 4 + 4) / 3) ** 0.5)
