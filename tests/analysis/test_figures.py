import itertools
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.patches import StepPatch
from matplotlib.text import Text

from lbq.analysis import figures
from lbq.analysis.layer_stats import LayerLevels, LayerStep, LevelProfile, StepProfile
from lbq.errors import ParameterError
from lbq.functional.surrogate import arctan_soft_spike, soft_level


def curve(axes, index):
    x, y = axes.lines[index].get_data()
    return np.asarray(x), np.asarray(y)


def words(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_surrogates_are_the_slopes_that_autograd_finds():
    figure = figures.draw_surrogates(max_level=5, tail=0.5)
    (axes,) = figure.axes
    ratio = torch.tensor(curve(axes, 0)[0], requires_grad=True)
    one = torch.ones(1, dtype=torch.float64)
    soft = (
        soft_level(ratio, lo=1.0, hi=5.0, tail=0.5 * one),
        soft_level(ratio, lo=0.5, hi=5.5),
        arctan_soft_spike(ratio, threshold=one),
    )
    for index, level in enumerate(soft):
        (slope,) = torch.autograd.grad(level.sum(), ratio, retain_graph=True)
        drawn = curve(axes, index)[1]
        away = np.abs(drawn - slope.numpy()) > 1e-6
        assert away.sum() <= 2  # at a corner a slope has two values
    assert len(words(figure)) == 3


def test_tails_reach_where_the_box_is_zero():
    (axes,) = figures.draw_surrogates(max_level=3, tail=0.25).axes
    x, tailed = curve(axes, 0)
    boxed = curve(axes, 1)[1]
    outside = (x < 0.5) | (x > 3.5)
    assert (boxed[outside] == 0).all()
    assert (tailed[outside] > 0).all()
    assert tailed[x < 1].max() <= 0.25


def test_behaviour_has_a_panel_per_claim(invented):
    runs = [(n, invented.steps(i + 1, n in ("V3", "LBQ")), invented.levels())
            for i, n in enumerate(("V1", "V2", "V3", "LBQ"))]  # fmt: skip
    figure = figures.draw_behaviour(runs)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["(a) learned step", "(b) entropy and activity", "(c) V1", "(d) V2", "(e) V3",
                      "(f) LBQ"]  # fmt: skip
    learned = [line.get_ydata().tolist() for line in figure.axes[0].lines]
    assert learned == [list(runs[2][1].means), list(runs[3][1].means)]
    means = [line for line in figure.axes[1].lines if line.get_markersize() == 8]
    expected = runs[0][2].active_ratio, runs[0][2].entropy
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in means] == [expected] * 4
    assert {"V1", "V2", "V3", "LBQ", "k = 1", "k = 5"} <= set(words(figure))


def test_a_shade_means_the_same_level_in_every_panel(invented):
    runs = [(f"N={n}", invented.steps(), invented.levels(n)) for n in (2, 5)]
    figure = figures.draw_behaviour(runs)
    (legend,) = [each for each in figure.legends if "k = 1" in each.get_texts()[0].get_text()]
    named = [patch.get_facecolor() for patch in legend.get_patches()]
    for axes, most in zip(figure.axes[2:], (2, 5), strict=True):
        drawn = [bar.get_facecolor() for bar in axes.patches][:: len(invented.LAYERS)]
        assert drawn[:most] == named[:most]


def test_runs_that_learned_no_step_say_so(invented):
    runs = [("V1", invented.steps(is_learned=False), invented.levels())]
    (words_inside,) = figures.draw_behaviour(runs).axes[0].texts
    assert words_inside.get_text() == "every step is fixed"


def test_distributions_are_stacked_to_one(invented):
    levels = invented.levels()
    _, axes = figures.draw_levels(levels).axes
    bars = np.array([bar.get_height() for bar in axes.patches]).reshape(5, 3)  # level, layer
    np.testing.assert_allclose(bars.sum(0), 1)
    np.testing.assert_allclose(bars[:, 1], levels.layers[1].shares)


def names_below(axes):
    return [label.get_text() for label in axes.get_xticklabels()]


def test_axes_name_the_layers(invented):
    layers = list(invented.LAYERS)
    assert names_below(figures.draw_steps(invented.steps()).axes[0]) == layers
    assert names_below(figures.draw_levels(invented.levels()).axes[1]) == layers
    (costs,) = figures.draw_costs(invented.counts()).axes
    assert names_below(costs) == [f"into {layer}" for layer in layers]
    many = [LayerLevels(layer=f"layer {i}", counts=(1, 1)) for i in range(100)]
    _, axes = figures.draw_levels(LevelProfile(num_images=1, layers=tuple(many))).axes
    assert names_below(axes)[:2] == ["layer 0", "layer 3"]


def test_epochs_are_whole_numbers_from_zero(invented):
    for axes in figures.draw_curves([invented.run()]).axes:
        left, right = axes.get_xlim()
        assert left == 0
        shown = [x for x in axes.get_xticks() if left <= x <= right]
        assert shown == [0, 1, 2]


def test_silent_layers_leave_a_gap():
    silent = LayerLevels(layer="a", counts=(5, 0, 0))
    loud = LayerLevels(layer="b", counts=(5, 1, 3))
    figure = figures.draw_levels(LevelProfile(num_images=1, layers=(silent, loud)))
    heights = [bar.get_height() for bar in figure.axes[1].patches]
    assert heights == [0, 0.25, 0, 0.75]


def test_many_levels_name_five_shades(invented):
    assert words(figures.draw_levels(invented.levels(20))) == [
        "k = 1", "k = 6", "k = 10", "k = 15", "k = 20"
    ]  # fmt: skip


def test_curves_are_the_metrics_log(invented):
    run = invented.run()
    left, right = figures.draw_curves([run]).axes
    assert curve(left, 1)[1].tolist() == [100 * r["accuracy"] for r in run.evaluations]
    assert curve(right, 0)[1].tolist() == [r["loss"] for r in run.training]
    assert curve(right, 1)[0].tolist() == [1, 2]


def test_long_names_are_cut_in_the_middle_and_stay_inside(invented):
    names = [f"runs/ablation of the learned step, seed {seed}" for seed in range(4)]
    runs = [(name, invented.steps(), invented.levels()) for name in names]
    drawn = (
        figures.draw_behaviour(runs),
        figures.draw_curves([invented.run(name) for name in names]),
    )
    for figure in drawn:
        figure.canvas.draw()
        width = figure.bbox.width
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert 0 <= box.x0 <= box.x1 <= width
        assert "runs/ablation…step, seed 0" in words(figure)


def test_costs_and_membranes_show_every_edge_and_layer(invented):
    (axes,) = figures.draw_costs(invented.counts()).axes
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([4.0, 4.000001, 4.000002, 1.5, 1.5, 1.5])
    (axes,) = figures.draw_membranes(invented.membranes()).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(invented.LAYERS)
    counts = np.array(invented.membranes()[0].histogram)
    filled = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    assert len(filled) == 2 * 3  # shape and outline of every layer
    for patch in filled[:2]:
        heights, edges, baseline = patch.get_data()
        np.testing.assert_allclose(heights - baseline, 1.6 * counts / counts.max())
        np.testing.assert_allclose(edges[[0, -1]], [-3, 8])


def test_bars_of_activity_and_spreads_of_channels_are_those_given(invented):
    levels = invented.levels()
    left, _ = figures.draw_levels(levels).axes
    assert [bar.get_height() for bar in left.patches] == [x.active_ratio for x in levels.layers]
    spread = StepProfile(
        layers=(LayerStep(layer="a", mean=0.5, smallest=0.4, largest=0.9, is_learned=True),)
    )
    (axes,) = figures.draw_steps(spread).axes
    ((low, high),) = (segment[:, 1] for segment in axes.collections[0].get_segments())
    assert (low, high) == pytest.approx((0.4, 0.9))


def clustered(seed, num):
    """Groups of points, most of them close together, with names of many lengths."""
    random = np.random.default_rng(seed)
    spread = random.choice([0.01, 0.3, 3.0])
    places = [5, 80] + spread * random.standard_normal((num, 2))
    names = ["abcdefghij klmnopq (r=10)"[: random.integers(2, 26)] for _ in range(num)]
    points = [
        (f"{i} {name}", (x, 0), (y, spread / 3))
        for i, (name, (x, y)) in enumerate(zip(names, places.tolist(), strict=True))
    ]
    return {"a line": points[: num // 3], "others": points[num // 3 :]}


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("num", [3, 12, 30])
def test_names_of_points_cover_neither_each_other_nor_the_points(seed, num):
    groups = clustered(seed, num)
    figure = figures.draw_groups(groups, "x", "y")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    boxes = [Text.get_window_extent(name) for name in axes.texts]
    assert len(boxes) == num
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    frame = axes.get_window_extent()
    for box in boxes:
        assert (frame.x0 <= box.x0, box.x1 <= frame.x1) == (True, True)
        assert (frame.y0 <= box.y0, box.y1 <= frame.y1) == (True, True)
        for x, y in ((x, y) for points in groups.values() for _, (x, _), (y, _) in points):
            assert not box.contains(*axes.transData.transform((x, y)))


def test_nothing_is_cut_off(invented):
    runs = [(n, invented.steps(k), invented.levels()) for n, k in (("a", 1.0), ("b", 40.0))]
    drawn = (
        figures.draw_surrogates(),
        figures.draw_behaviour(runs),
        figures.draw_curves([invented.run()]),
        figures.draw_steps(invented.steps()),
        figures.draw_levels(invented.levels()),
        figures.draw_costs(invented.counts()),
    )
    for axes in (axes for figure in drawn for axes in figure.axes):
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        assert left <= axes.dataLim.x0 <= axes.dataLim.x1 <= right
        assert bottom <= axes.dataLim.y0 + 1e-9
        assert axes.dataLim.y1 <= top + 1e-9


@pytest.mark.parametrize("suffix", [".svg", ".pdf", ".png"])
def test_files_are_the_same_bytes_every_time(tmp_path, suffix):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    for path in paths:
        figures.save_figure(figures.draw_surrogates(), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    start = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}[suffix]
    assert paths[0].read_bytes().startswith(start)


def test_an_unknown_ending_is_refused(tmp_path):
    with pytest.raises(ParameterError, match=r"\.svg, \.pdf, \.png, not a\.jpg"):
        figures.save_figure(figures.draw_surrogates(), tmp_path / "a.jpg")


def test_svg_is_one_element(invented):
    svg = figures.to_svg(figures.draw_steps(invented.steps()))
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_without_matplotlib_the_line_that_installs_it_is_told():
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "import lbq.analysis, lbq.cli.main\n"  # all but figures works without
        "import lbq.analysis.figures"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: figures need matplotlib: pip install matplotlib" in done.stderr


def test_pyplot_is_never_imported():
    code = (
        "import lbq.analysis.figures as f, sys; f.to_svg(f.draw_surrogates());"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
