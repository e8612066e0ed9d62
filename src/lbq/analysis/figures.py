"""Figures of runs and surrogates; needs matplotlib (extra ``lbq[report]``).

Functions return a ``Figure``; pyplot, which keeps global state, is not used. Colours are those
of Okabe and Ito, safe for colour-blind readers; levels are shades of cividis, which print in grey.
"""

import functools
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import torch

from lbq.analysis.attention_maps import AttentionMaps
from lbq.analysis.layer_stats import (
    BINS_PER_STEP,
    MARGIN,
    LayerLevels,
    LayerMembranes,
    LevelProfile,
    StepProfile,
)
from lbq.analysis.run_summary import RunSummary
from lbq.cost.count_table import CountTable
from lbq.errors import MissingExtraError, ParameterError, install_command
from lbq.functional.surrogate import arctan_soft_spike, plateau_position, soft_level_slope
from lbq.neurons.surrogates import BoxET, ReLSGET, Surrogate
from lbq.train.metrics import Record

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator
    from matplotlib.transforms import BboxBase
except ImportError as error:
    raise MissingExtraError(f"figures need matplotlib: {install_command('report')}") from error

Call = ParamSpec("Call")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",  # the same on every machine, whatever fonts it has
    "svg.hashsalt": "lbq",
    "savefig.dpi": 200,
}
WIDE = 7.2
"""Inches: the text width of a page."""
NARROW = 5.4
"""Inches: a figure that a phone still shows."""
_LONGEST = 26
"""Characters of a run's or layer's name that are drawn."""
_MOST_NAMES = 48
"""Names of layers that fit side by side."""


def _styled(draw: Callable[Call, Figure]) -> Callable[Call, Figure]:
    @functools.wraps(draw)
    def styled(*args: Call.args, **kwargs: Call.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return styled


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as .svg, .pdf or .png, by suffix; deterministic."""
    kinds = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
    if path.suffix not in kinds:
        raise ParameterError(f"figures are written as {', '.join(kinds)}, not {path.name}")
    with mpl.rc_context(STYLE):
        figure.savefig(path, metadata=kinds[path.suffix])


def to_svg(figure: Figure) -> str:
    """Return a figure as an ``<svg>`` element, without the XML declaration."""
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


@_styled
def draw_surrogates(*, max_level: int = 5, tail: float = 0.5) -> Figure:
    """Draw the slopes of ReLSG-ET, Box-ET and the arctangent (the paper's Fig. 3).

    The arctangent is that of binary neurons, with its one threshold at 1.
    """
    figure = Figure(figsize=(WIDE * 0.65, 2.6), layout="constrained")
    axes = figure.add_subplot()
    ratio = torch.linspace(-2, max_level + 3, 100 * (max_level + 5) + 1, dtype=torch.float64)
    curves = {
        rf"ReLSG-ET, $\lambda$ = {tail:g}": (_slope(ReLSGET(tail), ratio, max_level), "-"),
        "Box-ET": (_slope(BoxET(), ratio, max_level), "--"),
        "arctan": (_arctan_slope(ratio), ":"),
    }
    for (name, (slope, line)), colour in zip(curves.items(), COLOURS, strict=False):
        axes.plot(ratio.tolist(), slope.tolist(), line, color=colour, label=name)
    axes.set(xlabel=r"ratio $r = U / \gamma$", ylabel="surrogate gradient", ylim=(-0.03, 1.12))
    axes.set_xticks(range(-2, max_level + 4))
    figure.legend(loc="outside upper center", ncols=3)
    return figure


@_styled
def draw_behaviour(runs: Sequence[tuple[str, StepProfile, LevelProfile]]) -> Figure:
    """Draw steps, entropies and level distributions of layers (the paper's Fig. 4).

    (a) the learned step of every layer, for the runs that learned it; (b) entropy over active
    ratio, small markers layers, large ones their mean; from (c) on P(k | k > 0) of every layer, a
    panel per run.

    Args:
        runs: name, steps and levels of each; the paper has V1, V2, V3 and LBQ.
    """
    rows = math.ceil((2 + len(runs)) / 3)
    figure = Figure(figsize=(WIDE, 2.3 * rows), layout="constrained")
    panels = list(figure.subplots(rows, 3, squeeze=False).flat)
    for unused in panels[2 + len(runs) :]:
        unused.remove()
    looks = [_look(index) for index in range(len(runs))]
    for (_, steps, levels), look in zip(runs, looks, strict=True):
        if steps.is_learned:
            _plot_steps(panels[0], steps, look)
        _plot_entropy(panels[1], levels, look)
    _frame_steps(panels[0])
    panels[1].set(xlim=(0, 1.08 * max(0.1, panels[1].dataLim.x1)), ylim=(0, 1.05))
    titles = ["(a) learned step", "(b) entropy and activity"]
    titles += [f"({chr(ord('c') + i)}) {_short(name)}" for i, (name, _, _) in enumerate(runs)]
    for panel, title in zip(panels, titles, strict=False):
        panel.set_title(title)
    most = max(levels.max_level for _, _, levels in runs)
    for panel, (_, _, levels) in zip(panels[2:], runs, strict=False):
        _plot_shares(panel, levels.layers, most)
    _level_legend(figure, most)
    handles = [
        Line2D([], [], color=colour, marker=marker, label=_short(name))
        for (name, _, _), (colour, marker) in zip(runs, looks, strict=True)
    ]
    columns = _num_columns(name for name, _, _ in runs)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    return figure


@_styled
def draw_curves(runs: Sequence[RunSummary]) -> Figure:
    """Draw accuracy, loss and cost over epochs: lines for training, markers for the test set."""
    figure = Figure(figsize=(WIDE, 2.6), layout="constrained")
    shown = [("accuracy", "accuracy, %", 100.0), ("loss", "loss", 1.0)]
    shown = shown if have_accuracy(runs) else shown[1:]
    if have_cost(runs):
        shown.append(("cost_per_mac", "accumulations per MAC", 1.0))
    panels = list(figure.subplots(1, len(shown), squeeze=False)[0])
    for index, run in enumerate(runs):
        colour, marker = _look(index)
        name = _short(run.name) if len(runs) > 1 else "test"
        for axes, (key, _, scale) in zip(panels, shown, strict=True):
            axes.plot(*_series(run.training, key, scale), color=colour, alpha=0.55, lw=1)
            x, y = _series(run.evaluations, key, scale)
            axes.plot(x, y, marker + "-", color=colour, label=name)
    if len(runs) == 1:
        panels[0].plot([], [], color=COLOURS[0], alpha=0.55, lw=1, label="training samples")
    for axes, (key, label, _) in zip(panels, shown, strict=True):
        axes.set(xlabel="epoch", ylabel=label, xlim=(0, 1.03 * max(1.0, axes.dataLim.x1)))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if key != "accuracy":
            found = [y for r in runs for y in _series((*r.training, *r.evaluations), key, 1)[1]]
            lowest = min([0.0, *filter(math.isfinite, found)])  # some losses are negative
            axes.set(ylim=(lowest, None))
    handles = panels[0].get_legend_handles_labels()
    columns = _num_columns(run.name for run in runs)
    figure.legend(*handles, loc="outside upper center", ncols=columns)
    return figure


def have_accuracy(runs: Sequence[RunSummary]) -> bool:
    """Return whether any of the runs measured accuracy."""
    return any("accuracy" in record for run in runs for record in (*run.training, *run.evaluations))


def have_cost(runs: Sequence[RunSummary]) -> bool:
    """Return whether any of the runs was trained to a budget."""
    return any("cost_per_mac" in record for run in runs for record in run.training)


@_styled
def draw_steps(steps: StepProfile) -> Figure:
    """Draw the step of every layer, with its spread where channels have steps of their own."""
    figure = Figure(figsize=(WIDE, 3.0), layout="constrained")
    axes = figure.add_subplot()
    _plot_steps(axes, steps, _look(0))
    _frame_steps(axes)
    _name_axis(axes, [layer.layer for layer in steps.layers])
    return figure


@_styled
def draw_levels(levels: LevelProfile) -> Figure:
    """Draw how many neurons of every layer are active, and which levels they emit."""
    figure = Figure(figsize=(WIDE, 4.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    numbers = range(1, len(levels.layers) + 1)
    above.bar(numbers, [layer.active_ratio for layer in levels.layers], color=COLOURS[0])
    above.set(ylabel="active ratio")
    _plot_shares(below, levels.layers, levels.max_level)
    _name_axis(below, [layer.layer for layer in levels.layers])
    _level_legend(figure, levels.max_level)
    return figure


@_styled
def draw_membranes(layers: Sequence[LayerMembranes]) -> Figure:
    """Draw a histogram of every layer's membranes, in steps, one above the other.

    Each is scaled to its own peak. Dotted lines are thresholds; the plateau of the first layer's
    surrogate is shaded; the tails are outside it.
    """
    figure = Figure(figsize=(WIDE, 1.0 + 0.24 * len(layers)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(*layers[0].plateau, color=COLOURS[4], alpha=0.15, lw=0, label="plateau (slope 1)")
    most = max(layer.max_level for layer in layers)
    for threshold in range(1, most + 1):
        axes.axvline(threshold, color="0.5", lw=0.7, ls=":", label="_")
    for row, layer in enumerate(layers):
        peak = max(1, *layer.histogram)
        edges = [i / BINS_PER_STEP - MARGIN for i in range(len(layer.histogram) + 1)]
        heights = [1.6 * count / peak - row for count in layer.histogram]
        axes.stairs(
            heights, edges, baseline=-row, fill=True, color=COLOURS[5], alpha=0.75, zorder=2 + row
        )
        axes.stairs(heights, edges, baseline=-row, color=COLOURS[0], lw=0.7, zorder=2 + row)
    axes.set_yticks([-row for row in range(len(layers))], [_short(x.layer) for x in layers])
    axes.set(xlabel=r"membrane in steps, $U / \gamma$", xlim=(-MARGIN, most + MARGIN))
    axes.set_ylim(-len(layers) + 0.8, 1.8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.legend(loc="upper right")
    return figure


@_styled
def draw_attention(maps: AttentionMaps) -> Figure:
    """Draw some images, and below each the levels after every attention, token by token.

    Each map has its own scale, from no level to its largest mean.
    """
    rows, columns = 1 + len(maps.blocks), len(maps.images)
    size = WIDE / (columns + 1.4)
    figure = Figure(figsize=(WIDE, size * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
    for axes, image in zip(grid[0], maps.images, strict=True):
        axes.imshow(image.squeeze(-1).numpy(), cmap="gray", interpolation="nearest")
    for row, (path, tokens) in zip(grid[1:], maps.blocks.items(), strict=True):
        row[0].set_ylabel(_short(path), rotation=0, ha="right", va="center", fontsize=7)
        for axes, shown in zip(row, tokens, strict=True):
            most = max(float(shown.max()), 1e-9)
            axes.imshow(shown.numpy(), cmap="cividis", vmin=0, vmax=most, interpolation="nearest")
    return figure


@_styled
def draw_costs(counts: CountTable) -> Figure:
    """Draw the accumulations of every edge: levels sent as unit events, and as bits."""
    figure = Figure(figsize=(WIDE, 3.2), layout="constrained")
    axes = figure.add_subplot()
    by_edge, scale = counts.by_edge(), 1e6 * counts.num_images
    edges = by_edge.values()
    bars = {
        "unary": [edge.unary_acs / scale for edge in edges],
        "bit-sparse": [edge.bit_sparse_acs / scale for edge in edges],
    }
    for side, (name, heights) in enumerate(bars.items()):
        x = [i + 1 + (side - 0.5) * 0.4 for i in range(len(heights))]
        axes.bar(x, heights, width=0.4, color=COLOURS[1 - side], label=name)
    axes.set(ylabel="million ACs per image")
    _name_axis(axes, [target for _, target in by_edge])
    figure.legend(loc="outside upper center", ncols=2)
    return figure


Spread = tuple[float, float]
"""A mean and its deviation."""


@_styled
def draw_differences(series: Mapping[str, Mapping[str, Spread]], label: str) -> Figure:
    """Draw differences to a reference, a row per name, with bars for the spread."""
    names = list(dict.fromkeys(name for found in series.values() for name in found))
    figure = Figure(figsize=(NARROW, 0.9 + 0.26 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color="0.5", lw=0.8)
    for index, (title, found) in enumerate(series.items()):
        y = [-names.index(name) + 0.16 * (1 - 2 * index) for name in found]
        _spreads(axes, [value for value, _ in found.values()], y, title, index, x=found.values())
    axes.set_yticks([-row for row in range(len(names))], names)
    axes.set(xlabel=label)
    figure.legend(loc="outside upper center", ncols=len(series))
    return figure


@_styled
def draw_lines(series: Mapping[str, Mapping[float, Spread]], x_label: str, y_label: str) -> Figure:
    """Draw one line per series, with bars for the spread."""
    figure = Figure(figsize=(NARROW, 2.6), layout="constrained")
    axes = figure.add_subplot()
    for index, (title, found) in enumerate(series.items()):
        y = [value for value, _ in found.values()]
        _spreads(axes, list(found), y, title, index, y=found.values(), line="-")
    axes.set(xlabel=x_label, ylabel=y_label, ylim=(0, None))
    axes.set_xticks(sorted({x for found in series.values() for x in found}))
    figure.legend(loc="outside upper center", ncols=len(series))
    return figure


@_styled
def draw_groups(
    groups: Mapping[str, Sequence[tuple[str, Spread, Spread]]], x_label: str, y_label: str
) -> Figure:
    """Draw named points with bars for their spread, a colour per group; the first is a line.

    No name covers another, a point, a bar or the line: the figure grows until all have room.
    """
    figure = Figure(figsize=(NARROW, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for index, (title, points) in enumerate(groups.items()):
        x, y = [x for _, (x, _), _ in points], [y for _, _, (y, _) in points]
        spread = [deviation for _, _, deviation in points]
        _spreads(axes, x, y, title, index, y=spread, line=":" if index == 0 else "")
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_xlim(1.12 * min(0, axes.dataLim.x0), 1.12 * max(0, axes.dataLim.x1))
    axes.margins(y=0.2)
    figure.legend(loc="outside upper center", ncols=3)
    every = [point for points in groups.values() for point in points]
    line = [(x, y) for _, (x, _), (y, _) in next(iter(groups.values()), ())]
    while (places := _places_of_names(axes, every, line)) is None:
        figure.set_figheight(1.25 * figure.get_figheight())
    for (name, (x, _), (y, _)), (offset, is_far) in zip(every, places, strict=True):
        leader = {"arrowstyle": "-", "lw": 0.5, "color": "0.6", "shrinkA": 1, "shrinkB": 3}
        axes.annotate(
            _short(name),
            (x, y),
            offset,
            textcoords="offset points",
            arrowprops=leader if is_far else None,
            in_layout=False,
            **_NAME,
        )
    return figure


_NAME: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7, "color": "0.3"}
_NEAR = 12
"""Typographic points between a point and its name, beyond which a line leads to the name."""
_ANGLES = tuple(math.radians(a) for a in (0, 180, 90, 270, *range(15, 360, 15)))
_Box = tuple[float, float, float, float]
"""Left, bottom, right and top in pixels."""


def _places_of_names(
    axes: Axes, points: Sequence[tuple[str, Spread, Spread]], line: Sequence[tuple[float, float]]
) -> list[tuple[tuple[float, float], bool]] | None:
    """Find for every point where its name covers nothing; None if there is no such place.

    Returns:
        For each point the offset of the name's centre in typographic points, and whether it is so
        far away that it needs a line to its point.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # places the axes
    dot, frame = figure.dpi / 72, axes.get_window_extent()

    def pixels(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y))
        return float(across), float(up)

    centres = [pixels(x, y) for _, (x, _), (y, _) in points]
    taken = [_box(*centre, 3 * dot, 3 * dot) for centre in centres]
    for _, (x, _), (y, deviation) in points:
        taken += _boxes_along(pixels(x, y - deviation), pixels(x, y + deviation), dot)
    for start, end in itertools.pairwise(line):
        taken += _boxes_along(pixels(*start), pixels(*end), dot)
    names: list[_Box] = []
    found: list[tuple[tuple[float, float], bool]] = []
    for (name, _, _), centre in zip(points, centres, strict=True):
        measured = axes.text(0, 0, _short(name), **_NAME)
        size = measured.get_window_extent()
        measured.remove()
        others = [other for other in centres if other != centre]
        free = _free_boxes(centre, (size.width, size.height), frame, [*taken, *names], dot)
        crossing = None
        for box, is_far in free:
            middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
            leader = _boxes_along(centre, middle, 0.5 * dot) if is_far else []
            if not is_far and any(_gap(box, other) < 1.5 * _gap(box, centre) for other in others):
                continue  # it could be read as the name of another point
            place = (box, middle, is_far, leader)
            if any(_overlap(part, each) for part in leader for each in names):
                crossing = crossing or place  # if there is nothing better: lines lie below names
                continue
            break
        else:
            if crossing is None:
                return None
            place = crossing
        box, middle, is_far, leader = place
        names.append(box)
        taken += [part for part in leader if not any(_overlap(part, each) for each in names)]
        offset = ((middle[0] - centre[0]) / dot, (middle[1] - centre[1]) / dot)
        found.append((offset, is_far))
    return found


def _free_boxes(
    centre: Sequence[float],
    size: tuple[float, float],
    frame: BboxBase,
    taken: Sequence[_Box],
    dot: float,
) -> Iterator[tuple[_Box, bool]]:
    """List free boxes around a point, the nearest first, and whether each is far."""
    width, height = size
    distance = 5.0
    while distance * dot < math.hypot(frame.width, frame.height):
        for angle in _ANGLES:
            x = centre[0] + math.cos(angle) * (width / 2 + distance * dot)
            y = centre[1] + math.sin(angle) * (height / 2 + distance * dot)
            box = _box(x, y, width / 2 + dot, height / 2 + dot)
            is_inside = frame.x0 <= box[0] and box[2] <= frame.x1
            is_inside = is_inside and frame.y0 <= box[1] and box[3] <= frame.y1
            if is_inside and not any(_overlap(box, each) for each in taken):
                yield box, distance > _NEAR
        distance *= 1.3


def _box(x: float, y: float, width: float, height: float) -> _Box:
    """Return a box by its centre and half of its sides."""
    return x - width, y - height, x + width, y + height


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _gap(box: _Box, point: Sequence[float]) -> float:
    """Return the distance between a box and a point outside it."""
    x, y = point
    return math.hypot(max(box[0] - x, x - box[2], 0), max(box[1] - y, y - box[3], 0))


def _boxes_along(start: Sequence[float], end: Sequence[float], dot: float) -> list[_Box]:
    """Cover a straight line with small boxes."""
    steps = math.ceil(math.dist(start, end) / (3 * dot)) or 1
    ways = [i / steps for i in range(steps + 1)]
    return [
        _box(start[0] + way * (end[0] - start[0]), start[1] + way * (end[1] - start[1]), dot, dot)
        for way in ways
    ]


def _spreads(
    axes: Axes,
    across: Sequence[float],
    up: Sequence[float],
    title: str,
    index: int,
    *,
    x: Iterable[Spread] = (),
    y: Iterable[Spread] = (),
    line: str = "",
) -> None:
    """Draw points with the deviations of one of their coordinates."""
    colour, marker = _look(index)
    axes.errorbar(
        across,
        up,
        xerr=[deviation for _, deviation in x] or None,
        yerr=[deviation for _, deviation in y] or None,
        ls=line,
        color=colour,
        marker=marker,
        label=title,
        elinewidth=0.8,
    )


def _slope(surrogate: Surrogate, ratio: torch.Tensor, max_level: int) -> torch.Tensor:
    side, fade = plateau_position(ratio, lo=surrogate.lo, hi=surrogate.hi(max_level))
    tail = surrogate.tail()
    return soft_level_slope(side, fade, tail=None if tail is None else tail.detach().double())


def _arctan_slope(ratio: torch.Tensor) -> torch.Tensor:
    membrane = ratio.clone().requires_grad_()
    arctan_soft_spike(membrane, threshold=torch.ones(1, dtype=ratio.dtype)).sum().backward()
    assert membrane.grad is not None
    return membrane.grad


def _series(records: Sequence[Record], key: str, scale: float) -> tuple[list[float], list[float]]:
    """Read a curve from a metrics log; missing and non-finite numbers leave gaps."""
    found = [record for record in records if key in record and "epoch" in record]
    return [float(r["epoch"]) for r in found], [scale * float(r[key]) for r in found]


def _look(index: int) -> tuple[str, str]:
    """Return colour and marker of a run; the first 49 have looks of their own."""
    turn = index // len(COLOURS)
    return COLOURS[index % len(COLOURS)], MARKERS[(index + turn) % len(MARKERS)]


def _short(name: str) -> str:
    """Leave out the middle of a long name."""
    return (
        name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 + 1 :]}"
    )


def _num_columns(names: Iterable[str]) -> int:
    """Return how many names of runs fit side by side."""
    return 4 if max(map(len, names)) <= 16 else 3


def _plot_steps(axes: Axes, steps: StepProfile, look: tuple[str, str]) -> None:
    low = [layer.mean - layer.smallest for layer in steps.layers]
    high = [layer.largest - layer.mean for layer in steps.layers]
    axes.errorbar(
        range(1, len(steps.layers) + 1),
        steps.means,
        yerr=[low, high] if any(low) or any(high) else None,
        color=look[0],
        marker=look[1],
        elinewidth=0.8,
    )
    axes.set(xlabel="layer", ylabel=r"step $\gamma$")


def _frame_steps(axes: Axes) -> None:
    """Begin the steps at zero, once all of them are drawn: limits do not grow afterwards."""
    if not axes.lines:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "every step is fixed", ha="center", transform=axes.transAxes)
        return
    axes.set_ylim(0, 1.08 * axes.dataLim.y1)
    _number_axis(axes)


def _number_axis(axes: Axes) -> None:
    """Count layers or edges from one: no tick at zero, none between two of them."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlim(0.3, axes.dataLim.x1 + 0.5)


def _name_axis(axes: Axes, names: Sequence[str]) -> None:
    """Write the names of layers or edges below them, from one; of very many only every n-th."""
    every = math.ceil(len(names) / _MOST_NAMES)
    places = range(1, len(names) + 1, every)
    axes.set_xticks(places, [_short(name) for name in names[::every]], rotation=90, fontsize=7.5)
    axes.set(xlabel="", xlim=(0.3, len(names) + 0.7))


def _plot_entropy(axes: Axes, levels: LevelProfile, look: tuple[str, str]) -> None:
    colour, marker = look
    for layer in levels.layers:
        if layer.entropy is not None:
            x, y = layer.active_ratio, layer.entropy
            axes.plot(x, y, marker, color=colour, ms=3, alpha=0.5, mew=0)
    if levels.entropy is not None:
        x, y = levels.active_ratio, levels.entropy
        axes.plot(x, y, marker, color=colour, ms=8, mec="black", mew=0.8, zorder=3)
    axes.set(xlabel="active ratio", ylabel="entropy / log N")


def _plot_shares(axes: Axes, layers: Sequence[LayerLevels], most: int) -> None:
    """Stack the shares of every layer's levels; ``most`` is the largest level of the legend."""
    numbers = range(1, len(layers) + 1)
    below = [0.0] * len(layers)
    for level in range(1, most + 1):
        shares = [
            layer.shares[level - 1] if layer.shares and level <= layer.max_level else 0.0
            for layer in layers
        ]
        axes.bar(numbers, shares, bottom=below, width=0.9, color=_shade(level, most))
        below = [b + share for b, share in zip(below, shares, strict=True)]
    axes.set(xlabel="layer", ylabel=r"$P(k \mid k > 0)$", ylim=(0, 1))
    _number_axis(axes)


def _level_legend(figure: Figure, most: int) -> None:
    """Name the shades of levels; of many levels, five."""
    named = sorted({round(1 + i * (most - 1) / 4) for i in range(5)}) if most > 8 else None
    handles = [
        Patch(color=_shade(level, most), label=f"k = {level}")
        for level in named or range(1, most + 1)
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=8)


def _shade(level: int, most: int) -> tuple[float, float, float, float]:
    return mpl.colormaps["cividis_r"](0.05 + 0.95 * (level - 1) / max(1, most - 1))
