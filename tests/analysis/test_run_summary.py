import pytest

from lbq.analysis.run_summary import Price


def test_the_last_evaluation_belongs_to_the_checkpoint_that_was_looked_at(invented):
    assert invented.run().last_evaluation["epoch"] == 2
    assert invented.run(step=15).last_evaluation["epoch"] == 1
    assert invented.run(step=5).last_evaluation is None


def test_saved_is_the_share_that_bits_spare(invented):
    costs = invented.costs()
    assert costs.saved == pytest.approx(1 - 4.5e6 / (12e6 + 3))


def test_a_ratio_over_nothing_is_infinite():
    price = Price(group="", name="", convention="", ann_mj=1.0, burst_mj=0.0)
    assert price.ratio == float("inf")
