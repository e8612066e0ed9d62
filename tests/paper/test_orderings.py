import pytest

from lbq_paper.orderings import QUESTIONS, judge, orderings
from lbq_paper.results import open_results


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([], "not run"),
        ([3.0], "cannot be told"),  # one seed has no spread
        ([1.0, 1.2, 0.9], "holds"),
        ([-1.0, -1.2, -0.9], "does not hold"),
        ([1.0, 1.0], "holds"),
        ([2.0, 2.0, -0.1], "cannot be told"),  # one seed disagrees
        ([0.1, 2.0, 0.1], "cannot be told"),  # they agree, but the spread is as large as the mean
        ([0.0, 0.0], "cannot be told"),
    ],
)
def test_the_rule(differences, verdict):
    assert judge(differences) == verdict


def test_every_ordering_is_one_of_the_papers(tmp_path):
    found = orderings(open_results(tmp_path), "pocket")
    assert len(found) == sum(map(len, QUESTIONS.values())) == 19
    assert all(each.printed > 0 for each in found)
    assert {each.verdict for each in found} == {"not run"}


def test_differences_are_those_of_common_seeds(record, tmp_path):
    for seed, (better, worse) in enumerate([(0.83, 0.82), (0.84, 0.82), (0.85, None)]):
        record("ablation/LBQ/learnable", seed, better)
        if worse is not None:
            record("ablation/V3/learnable", seed, worse)
    (found,) = (
        each
        for each in orderings(open_results(tmp_path), "pocket")
        if (each.better, each.worse) == ("LBQ/learnable", "V3/learnable")
    )
    assert found.differences == pytest.approx((1.0, 2.0))
    assert found.question == "ReLSG-ET beats Box-ET"
    assert found.verdict == "holds"
