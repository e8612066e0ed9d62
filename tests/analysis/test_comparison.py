import re
from dataclasses import replace

import pytest

from lbq.analysis.layer_stats import StepProfile
from lbq.analysis.report import render_comparison


def row(page, name):
    line = next(line for line in page.splitlines() if f'class="word">{name}</th>' in line)
    return re.findall(r'(?:<data value="([^"]+)">|<td class="number">(-)</td>)', line)


def test_every_run_has_a_column(invented):
    runs = [invented.run("one"), invented.run("two", steps=invented.steps(3.0), step=15)]
    page = render_comparison(runs)
    accuracies = [float(value) for value, _ in row(page, "test accuracy")]
    assert accuracies == [100 * 62 / 80, 100 * 61 / 80]
    assert [float(value) for value, _ in row(page, "largest step")] == [0.5, 1.5]
    assert '<th scope="col" class="number">two</th>' in page


def test_every_row_is_the_runs(invented):
    run = invented.run("one")
    page = render_comparison([run, invented.run("two")])
    expected = {
        "parameters": 4321,
        "smallest step": 0.125,
        "largest step": 0.5,
        "variation of steps": run.steps.variation,
        "active ratio": run.levels.active_ratio,
        "entropy": run.levels.entropy,
        "P(1 | k&gt;0)": run.levels.share(1),
        "unary ACs, M": run.costs.unary_acs / 1e6,
        "bit-sparse ACs, M": 4.5,
        "saved by bits": 100 * (1 - 4.5e6 / run.costs.unary_acs),
        "MACs of the ANN, M": 123.456789,
        "energy, ANN / this: paper": 8,
        "energy, ANN / this: int8, 32-bit sums": 4,
    }
    assert len(set(expected.values())) == len(expected)
    for name, value in expected.items():
        assert [float(x) for x, _ in row(page, name)] == pytest.approx([value, value]), name


def test_what_differs_in_the_recipes_is_listed_and_nothing_else(invented):
    changed = invented.run("two")
    changed.recipe["epochs"] = 7
    page = render_comparison([invented.run("one"), changed])
    differing = page[page.index("Settings that are not the same") :]
    assert "epochs" in differing
    assert "width" not in differing
    same = render_comparison([invented.run("one"), invented.run("two")])
    assert "all runs have the same recipe" in same


def test_an_ann_beside_a_burst_network_leaves_dashes(invented):
    ann = invented.run(
        "ann", steps=StepProfile(layers=()), levels=None, membranes=(), costs=None, prices=()
    )
    page = render_comparison([invented.run("lbq"), ann])
    for name in ("active ratio", "variation of steps", "bit-sparse ACs, M"):
        assert row(page, name)[1] == ("", "-")
    assert "plot-behaviour" in page


def test_notes_name_their_run(invented):
    page = render_comparison([invented.run("one", notes=("no data",)), invented.run("two")])
    assert "one: no data" in page


def test_counts_that_cannot_be_trusted_say_so_beside_their_ratios(invented):
    costs = replace(invented.costs(), notes=("Not counted at all: matmul in attend.",))
    page = render_comparison([invented.run("one", costs=costs), invented.run("two")])
    assert "one: Not counted at all: matmul in attend." in page


def test_runs_on_different_data_are_flagged(invented):
    same = [invented.run(name, provenance={"data": "a" * 64}) for name in ("one", "two")]
    assert "cannot be compared" not in render_comparison(same)
    other = invented.run("two", provenance={"data": "b" * 64})
    page = render_comparison([same[0], other])
    assert "were not trained and tested on the same data" in page
    line = next(line for line in page.splitlines() if 'class="word">data</th>' in line)
    assert "&lt;nowhere&gt;, aaaaaaaa" in line
    assert "&lt;nowhere&gt;, bbbbbbbb" in line


def test_the_page_opens_with_what_every_run_came_to(invented):
    page = render_comparison([invented.run("one"), invented.run("two", step=15)])
    first, second = re.findall(r'<p class="outcome">([^<]*)</p>', page)
    assert first.startswith("one: 77.50 % of the test samples")
    assert second.startswith("two: 76.25 % of the test samples")
