import re
from dataclasses import replace

import pytest

from lbq.analysis import report
from lbq.analysis.layer_stats import LayerLevels, LevelProfile, StepProfile
from lbq.config_io import to_document
from lbq.cost.count_table import ProductCounts
from lbq.cost.energy import EnergyModel, EnergyRow


def values(html):
    """The exact numbers of a section, in order."""
    return [float(value) for value in re.findall(r'<data value="([^"]+)">', html)]


def test_evaluations_are_the_metrics_log(invented):
    run = invented.run()
    _, table = report.curves_section(run)
    expected = [x for r in run.evaluations for x in (r["step"], 100 * r["accuracy"], r["loss"])]
    assert values(table) == expected
    assert "62 of 80" in table


def test_steps_levels_and_membranes_are_the_profiles(invented):
    run = invented.run()
    assert values(report.steps_section(run)[1]) == list(run.steps.means)
    *layers, mean = [
        [layer.active_ratio, layer.entropy, *layer.shares] for layer in run.levels.layers
    ] + [[run.levels.active_ratio, run.levels.entropy, *map(run.levels.share, range(1, 6))]]
    assert values(report.levels_section(run)[1]) == [x for row in [*layers, mean] for x in row]
    expected = [
        x
        for m in run.membranes
        for x in (m.lower_tail, m.on_plateau, m.upper_tail, m.outside_box, m.tail)
    ]
    assert values(report.membranes_section(run)[1]) == expected


def test_layers_may_have_different_largest_levels(invented):
    small = LayerLevels(layer="small", counts=(6, 3, 1))
    mixed = LevelProfile(num_images=1, layers=(*invented.levels().layers, small))
    table = report.levels_section(replace(invented.run(), levels=mixed))[1]
    row = table[table.index("small") : table.index("each layer counts once")]
    assert values(row) == [0.4, small.entropy, 0.75, 0.25]


def test_signed_levels_are_shown_as_such(invented):
    ternary = LevelProfile(
        num_images=1, layers=(LayerLevels(layer="a", counts=(6, 4), is_signed=True),)
    )
    run = replace(invented.run(), levels=ternary)
    more = {name: words for name, _, words in report.headline_numbers(run)}
    assert more["Timesteps"] == "levels -1 to 1"
    assert "P(|k| = 1 | k≠0)" in report.levels_section(run)[1]
    unsigned = {name: words for name, _, words in report.headline_numbers(invented.run())}
    assert unsigned["Timesteps"] == "levels 0 to 5"


def test_a_box_has_no_tails(invented):
    boxed = replace(
        invented.run(), membranes=tuple(replace(m, tail=None) for m in invented.membranes())
    )
    assert "there is no gradient" in report.membranes_section(boxed)[0]
    assert "through the tails" in report.membranes_section(invented.run())[0]


def test_costs_and_energy_are_those_of_the_run(invented):
    run = invented.run()
    _, _, edges, others = report.costs_section(run)
    assert values(edges)[:2] == [4.0, 1.5]
    assert values(edges)[-3:] == [12.000003, 4.5, 100 * (1 - 4.5e6 / (12e6 + 3))]
    assert values(others) == [2.25, 0.125, 0.0625, 0.75, 123.456789]
    _, energy = report.energy_section(run)
    assert values(energy) == [8, 4000, 500, 4, 1000, 250]
    assert "a book &amp; a half" in energy


def test_products_of_levels_are_shown_apart_and_their_missing_price_is_noted(invented):
    product = ProductCounts(
        name="kv", t=0, unary=8 * 10**7, bit_pairs=6 * 10**7, bit_serial=4 * 10**7, dense=10**8
    )
    counts = invented.counts(products=(product,))  # of 40 images
    run = invented.run(counts=counts, energy=EnergyModel().estimate(counts))
    _, _, edges, others = report.costs_section(run)
    assert values(edges)[-3:-1] == [12.000003, 4.5]
    assert values(others)[-4:] == [2.0, 1.5, 1.0, 2.5]
    assert "0.75 M multiplications and 1.00 M products of levels per image" in report.outcome(run)
    assert "left out: kv" in report.energy_section(run)[0]


def test_the_headline_says_when_a_better_epoch_was_seen_on_the_test_set(invented):
    names = [name for name, _, _ in report.headline_numbers(invented.run())]
    assert "Best epoch" not in names
    (_, accuracy, _), *_ = report.compared_numbers(invented.run(step=15))
    assert accuracy.value == 100 * 61 / 80
    (name, best, words), *_ = report.headline_numbers(invented.run(step=15))
    assert (name, best.value) == ("Best epoch", 100 * 62 / 80)
    assert words == "epoch 2, chosen on the test set"


def with_memory(invented, burst_mj):
    memory = EnergyRow(name="DRAM", convention="bytes", ann_mj=1.0, burst_mj=burst_mj)
    return invented.run(energy=invented.energy(memory))


def test_memory_has_a_card_beside_arithmetic_and_a_loss_is_marked(invented):
    *_, energy, memory = report.compared_numbers(with_memory(invented, 4.0))
    assert (energy[0], energy[1].value, energy[1].is_loss) == ("Arithmetic, ANN / this", 4, False)
    assert energy[2] == "energy in int8, 32-bit sums; 8.00 x by the paper's float32"
    assert (memory[0], memory[1].value, memory[1].is_loss) == ("Memory, ANN / this", 0.25, True)
    assert memory[2] == "bytes moved; a loss, 4.0 times the ANN's"
    *_, gain = report.compared_numbers(with_memory(invented, 0.5))
    assert (gain[1].text, gain[1].is_loss, gain[2]) == ("2.00 x", False, "bytes moved")


def test_one_sentence_summarises_the_run_losses_included(invented):
    assert report.outcome(with_memory(invented, 4.0)) == (
        "77.50 % of the test samples are answered correctly, with 4.50 M additions and 0.75 M "
        "multiplications per image instead of the 123.46 M multiplications of an ANN of the same "
        "shape: 4.00 times less energy for arithmetic in integers, but 4.00 times as many bytes "
        "moved."
    )
    assert report.outcome(with_memory(invented, 0.5)).endswith("and 2.00 times fewer bytes moved.")
    assert report.outcome(with_memory(invented, 1.001)).endswith("and as many bytes moved.")
    partly = invented.run(counts=invented.counts(uncounted=("matmul",)))
    assert "(not all operations are counted)" in report.outcome(partly)
    bare = invented.run(metrics_log=(), levels=None, membranes=(), counts=None, energy=None)
    assert report.outcome(bare) == (
        "It was not evaluated on the test set; levels, costs and energy were not measured."
    )


def test_what_was_not_measured_has_no_section(invented):
    run = invented.run(levels=None, membranes=(), counts=None, energy=None)
    assert not report.levels_section(run)
    assert not report.membranes_section(run)
    assert not report.costs_section(run)
    assert not report.energy_section(run)


def test_every_setting_and_its_origin_is_on_the_page(invented):
    (recipe,) = report.recipe_section(invented.run())
    for words in ("&lt;nowhere&gt;", "neuron.kind", "epochs", "yes"):
        assert words in recipe
    (origin,) = report.provenance_section(invented.run())
    for words in ("c0ffee", "versions.torch", "2.13.0", "2001-09-09 01:46 UTC", "2.00"):
        assert words in origin


def test_the_last_evaluation_is_that_of_the_checkpoint(invented):
    assert invented.run().last_evaluation["epoch"] == 2
    assert invented.run(step=15).last_evaluation["epoch"] == 1
    assert invented.run(step=5).last_evaluation is None


def test_a_recipe_is_listed_setting_by_setting(tiny):
    found = dict(report.settings(to_document(tiny.tiny_recipe())))
    assert found["model.neuron.kind"] == "lbq"
    assert found["model.neuron.max_level"] == "none"
    assert found["channels_last"] == "no"
    assert found["optim.betas"] == "0.9, 0.999"
    ordered = list(report.settings({"b": 0, "a": [1, True, None]}))
    assert ordered == [("b", "0"), ("a", "1, yes, none")]


# -- several runs --------------------------------------------------------------------------------


def row(page, name):
    line = next(line for line in page.splitlines() if f'">{name}</th>' in line)
    return re.findall(r'(?:<data value="([^"]+)">|<td class="number">(-)</td>)', line)


def test_every_run_has_a_column(invented):
    runs = [invented.run("one"), invented.run("two", steps=invented.steps(3.0), step=15)]
    page = report.render_comparison(runs)
    accuracies = [float(value) for value, _ in row(page, "test accuracy")]
    assert accuracies == [100 * 62 / 80, 100 * 61 / 80]
    assert [float(value) for value, _ in row(page, "largest step")] == [0.5, 1.5]
    assert '<th scope="col" class="number">two</th>' in page


def test_every_row_is_the_runs(invented):
    run = invented.run("one")
    page = report.render_comparison([run, invented.run("two")])
    expected = {
        "parameters": 4321,
        "smallest step": 0.125,
        "largest step": 0.5,
        "variation of steps": run.steps.variation,
        "active ratio": run.levels.active_ratio,
        "entropy": run.levels.entropy,
        "P(1 | k&gt;0)": run.levels.share(1),
        "unary ACs, M": 12.000003,
        "bit-sparse ACs, M": 4.5,
        "saved by bits": 100 * (1 - 4.5e6 / (12e6 + 3)),
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
    page = report.render_comparison([invented.run("one"), changed])
    differing = page[page.index("Settings that are not the same") :]
    assert "epochs" in differing
    assert "width" not in differing
    same = report.render_comparison([invented.run("one"), invented.run("two")])
    assert "all runs have the same recipe" in same


def test_an_ann_beside_a_burst_network_leaves_dashes(invented):
    nothing = {"levels": None, "membranes": (), "counts": None, "energy": None}
    ann = invented.run("ann", steps=StepProfile(layers=()), **nothing)
    page = report.render_comparison([invented.run("lbq"), ann])
    for name in ("active ratio", "variation of steps", "bit-sparse ACs, M"):
        assert row(page, name)[1] == ("", "-")
    assert "plot-behaviour" in page


def test_notes_name_their_run(invented):
    counts = invented.counts(uncounted=("matmul in attend",))
    noted = invented.run("one", notes=("no data",), counts=counts)
    page = report.render_comparison([noted, invented.run("two")])
    assert "one: no data" in page
    assert "one: Not counted at all: matmul in attend." in page


def test_runs_on_different_data_are_flagged(invented):
    same = [invented.run(name, provenance={"data": "a" * 64}) for name in ("one", "two")]
    assert "cannot be compared" not in report.render_comparison(same)
    other = invented.run("two", provenance={"data": "b" * 64})
    page = report.render_comparison([same[0], other])
    assert "were not trained and tested on the same data" in page
    line = next(line for line in page.splitlines() if '">data</th>' in line)
    assert "&lt;nowhere&gt;, aaaaaaaa" in line
    assert "&lt;nowhere&gt;, bbbbbbbb" in line


def test_the_page_opens_with_a_summary_of_every_run(invented):
    page = report.render_comparison([invented.run("one"), invented.run("two", step=15)])
    first, second = re.findall(r'<p class="outcome">([^<]*)</p>', page)
    assert first.startswith("one: 77.50 % of the test samples")
    assert second.startswith("two: 76.25 % of the test samples")
