"""The page on accuracy against cost, and its figure, from records.

    python -m lbq_paper.budget_page        writes docs/budget.md and its figure again

Records: ``results/budget`` (budget_search.py), ``results/pocket`` (lbq_paper's small experiments),
``benchmarks/results/budgeted.json`` (times, accuracies in integers, energy; it names its commit).
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lbq.analysis.figures import COLOURS, STYLE, save_figure
from lbq_paper.checkout import ROOT
from lbq_paper.experiments import describe_pocket

PAGE, FIGURE = ROOT / "docs" / "budget.md", ROOT / "docs" / "figures" / "budget.svg"
BUDGETED_RECORD = ROOT / "benchmarks" / "results" / "budgeted.json"
ISAS = {"avx2": "AVX2", "avx512": "AVX-512", "avx512vnni": "AVX-512 VNNI"}
LONG, SHORT, POCKET = "cells-4-epochs", "cells-2-epochs", "pocket-6-epochs"
BASELINE = {LONG: "tune", SHORT: "tune", POCKET: "taught"}
ENGINE = "engine, measured"
BUDGETED, PLAIN = "pocket-budget-cifar10", "pocket-cifar10"
ANN = "int8 ANN, OpenVINO"
MEMORIES = ("32 KB SRAM", "1 MB SRAM", "DRAM")
PAPER_CELLS = {
    "CIFAR-10/ResNet-20/LBQ/T=1": "LBQ, N=5, T=1",
    "accumulation/LBQ (1)": "LBQ, N=1, T=2",
    "accumulation/LBQ (2)": "LBQ, N=2, T=2",
    "accumulation/LBQ (5)": "LBQ, N=5, T=2",
    "accumulation/LBQ (10)": "LBQ, N=10, T=2",
    "accumulation/LBQ (20)": "LBQ, N=20, T=2",
    "accumulation/Binary": "binary LIF, T=2",
    "ablation/ANN": "ANN, float32",
}
WAYS = {
    "start": "trained for 6 epochs, not tuned",
    "tune": "tuned without a budget",
    "tune-popcount": "budget, non-zero bits",
    "tune-unary": "budget, units",
    "tune-events": "budget, non-zero levels",
    "tune-log": "budget, log2(1 + level)",
    "tune-unary-popcount": "budget, units, then non-zero bits",
    "interpolated-popcount": "budget, non-zero bits, slope c(S + 1) - c(S)",
    "interpolated-taught-popcount": "budget, non-zero bits, slope c(S + 1) - c(S), "
    "taught by the ANN",
    "late-popcount": "budget, non-zero bits, falling over 70 % of the tuning",
    "distil": "taught by itself before tuning, no budget",
    "distil-popcount": "budget, non-zero bits, taught by itself before tuning",
    "taught": "taught by the ANN of pocket size, no budget",
    "taught-popcount": "budget, non-zero bits, taught by the ANN of pocket size",
    "steps-popcount": "budget, only steps are tuned",
    "scratch-popcount": "budget from the first step on",
    "hoyer": "Hoyer's measure",
    "planes": "group lasso over bit planes",
    "shift": "biases lowered, then tuned",
    "powers": "levels 0, 1, 2, 4",
    "untuned-powers": "levels 0, 1, 2, 4, not tuned",
    "largest": "largest level per layer, then tuned",
    "largest-untuned": "largest level per layer, not tuned",
    "powers-popcount": "levels 0, 1, 2, 4, budget",
    "narrow": "fewer channels",
    "levels": "fewer levels",
    "ann": "ANN with fewer channels",
}
UNITS = {"hoyer": "weight", "planes": "weight", "shift": "by", "levels": "N ="}

TEXT = """# Trained to a budget, beside the ANN

Compare networks that were trained to a budget with an int8 ANN, by accuracy, operations, energy and
time. [Make it cheaper](how-to/make-it-cheaper.md) shows how to train one. `lbq_paper.budget_page`
writes this page from records.

![Accuracy against cost](figures/budget.svg)

A budget is the number of accumulations per image that training aims at. Every non-zero bit of a
level counts once for each output that it reaches. The ANN has one product per MAC for every image.

## Small networks: which way saves most

{cells}. The largest level N is 5, and there is one timestep. Trained for 6 epochs, then tuned for 4
with and without a budget, each from the same weights and on the same batches. Mean over seeds;
differences are to tuning without a budget. "To 0.69" means 0.69 of the accumulations before tuning.
c(S) is the cost of level S, and "slope" says which gradient of it training uses.

{long}

The same with 2 epochs of tuning, seed 0 only. Networks of this size differ by about half a point
from seed to seed, so smaller differences mean nothing. "Largest level per layer" lowers the largest
level of one layer after the other. Each time it takes the layer and the level for which the loss on
512 training images rises least per accumulation saved. It stops when the accumulations have fallen
to the given share of those before tuning.

{short}

Trained for 6 epochs as in the paper, with T and N as given:

{paper}

{cells_conclusion}

## Pocket size: from the ANN to bursts

ResNet-20 at 1/8 of the paper's width. The trained ReLU network becomes bursts at one timestep
(`lbq.from_ann`) and is tuned for 6 epochs; the ReLU network teaches. Accuracies of float32
networks, one seed:

{pocket}

In integers (8 bits), all 10,000 test images; operations on padding are left out. Energy is that of
arithmetic and memory with the constants of [operation counts and energy](costs.md): Han (2016) for
32 KB SRAM, Horowitz (2014) for 1 MB SRAM and DRAM.

{integers}

## Time

Milliseconds per image, one thread, CIFAR-10 test images, fastest of {rounds} interleaved rounds.
ONNX Runtime cannot be limited to an instruction set, so the times for one batch size in its row are
repeated measurements of the same program.

{times}

{time_conclusion}

## Limits

- **Small networks.** They are not trained to the end: four more epochs without a budget are worth
  2.3 points. Tuning that saves operations falls behind tuning that does not. The gap was
  0.3 points after 2 epochs and {gap:.2f} after 4. A better teacher makes it smaller, not zero.
- **Pocket size.** Six epochs are too few: the losses were still falling. At one timestep without
  a budget the network is {behind:.1f} points behind the float32 ANN, which was trained for 30
  epochs; the budget takes another half point.
- **Time.** For one image the engine is faster than both dense engines on all three instruction
  sets. For 64 images its time is within a few percent of OpenVINO's, on AVX2 longer. Summing
  up currents takes half of the engine's time, the neurons a fifth. Layers of 16 channels fill half
  of a register tile, so each product needs a separate load.

Commands: `python -m lbq_paper.budget_search cells --seeds 0 1 2 --epochs 4 --shares 0.69`,
`python -m lbq_paper.budget_search pocket --epochs 6 --lr 0.02`, `python
benchmarks/bench_budgeted.py --isas avx2 avx512 avx512vnni` at commit ef42d9f; later networks are
measured by `benchmarks/bench_against_ann.py`.
"""


class Point(NamedTuple):
    """Mean over seeds."""

    name: str
    accuracy: float
    deviation: float
    cost: float
    """Bit-sparse accumulations per image, or MACs of an ANN."""
    active: float
    seeds: int
    is_ann: bool = False

    @property
    def millions(self) -> str:
        """Return the cost as text."""
        return f"{self.cost / 1e6:.2f} M{' MACs' if self.is_ann else ''}"

    @property
    def activity(self) -> str:
        """Return the share of active neurons as text."""
        return "" if self.is_ann else f"{self.active:.1%}"

    @property
    def percent(self) -> str:
        """Return the accuracy with its spread as text."""
        spread = f" ± {100 * self.deviation:.2f}" if self.seeds > 1 else ""
        return f"{100 * self.accuracy:.2f}{spread} %"


def read(path: Path) -> Any:
    """Read a record."""
    return json.loads(path.read_text())


def title(way: str) -> str:
    """Describe a way, with its number."""
    kind, _, number = way.rpartition("-")
    if kind not in WAYS:
        return WAYS[way]
    if kind in ("narrow", "ann"):
        return f"{WAYS[kind]}, {number} of the width"
    return f"{WAYS[kind]}, {UNITS.get(kind, 'to')} {number}"


def tuned(folder: str) -> dict[str, list[dict[str, Any]]]:
    """Return the records of every way, by its name."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((ROOT / "results" / "budget" / folder).glob("*.json")):
        found[path.stem.rpartition("-")[0]].append(read(path))
    return found


def point(name: str, rows: list[dict[str, Any]]) -> Point:
    """Average over seeds."""
    accuracies = [row["accuracy"] for row in rows]
    is_ann = not rows[0]["bit_sparse_acs"]
    costs = [row["ann_macs"] if is_ann else row["bit_sparse_acs"] for row in rows]
    deviation = statistics.stdev(accuracies) if len(rows) > 1 else float("nan")
    active = statistics.mean(row["active"] for row in rows)
    mean = statistics.mean(accuracies)
    return Point(name, mean, deviation, statistics.mean(costs), active, len(rows), is_ann)


def paper_cells() -> list[Point]:
    """Return the small experiments of the paper's ways: N, T, binary, ANN."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in (ROOT / "results" / "pocket").glob("*.json"):
        record = read(path)
        for entry in set(record["entries"]) & PAPER_CELLS.keys():
            counts = record["counts"]
            images = counts["num_images"]
            rows[entry].append(
                {
                    "accuracy": record["measured_correct"] / images,
                    "bit_sparse_acs": counts.get("bit_sparse_acs", 0) / images,
                    "ann_macs": counts["ann_macs"],
                    "active": record.get("active_ratio", 0.0),
                }
            )
    points = [point(PAPER_CELLS[entry], found) for entry, found in rows.items()]
    return sorted(points, key=lambda p: p.cost)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def against_baseline(folder: str) -> Iterator[list[str]]:
    """Compare every way with tuning without a budget, over the seeds that both have."""
    ways = tuned(folder)
    plain = {row["seed"]: row for row in ways[BASELINE[folder]]}
    points = sorted((point(way, rows) for way, rows in ways.items()), key=lambda p: p.cost)
    for found in points:
        rows = [row for row in ways[found.name] if row["seed"] in plain]
        gains = [100 * (row["accuracy"] - plain[row["seed"]]["accuracy"]) for row in rows]
        savings = [
            row["bit_sparse_acs"] / plain[row["seed"]]["bit_sparse_acs"] - 1
            for row in rows
            if row["bit_sparse_acs"]
        ]
        yield [
            title(found.name),
            found.percent,
            f"{statistics.mean(gains):+.2f}" if gains else "",
            found.millions,
            f"{statistics.mean(savings):+.1%}" if savings else "",
            found.activity,
            str(found.seeds),
        ]


def in_integers(record: dict[str, Any]) -> Iterator[list[str]]:
    """Yield accuracy in integers, counts and energy with memory of the networks of one shape."""
    accuracies, energies = record["accuracy"], record["energy"]
    key = "int{bits}, 32-bit sums, {memory}, uJ"
    for name, known in energies.items():
        yield [
            f"`{name}`",
            f"{accuracies[name]:.2%}",
            f"{known['bit_sparse_acs'] / 1e6:.2f} M",
            f"{known['fp_macs'] / 1e6:.2f} M",
            *(f"{known[key.format(bits=8, memory=m)]['burst']:.1f}" for m in MEMORIES),
        ]
    known = energies[BUDGETED]
    for bits, accuracy in ((8, f"{accuracies[ANN]:.2%}"), (4, "not trained")):
        yield [
            f"ANN in int{bits}",
            accuracy,
            "",
            f"{known['ann_macs'] / 1e6:.2f} M",
            *(f"{known[key.format(bits=bits, memory=m)]['ann']:.1f}" for m in MEMORIES),
        ]


def time_rows(times: dict[str, Any]) -> Iterator[list[str]]:
    """Yield milliseconds per image on every instruction set, batch 1 and 64."""
    batches = list(times[next(iter(times))])
    names = {ENGINE: f"`{BUDGETED}`, engine", PLAIN: f"`{PLAIN}`, engine"}
    rows: dict[str, Any] = times[next(iter(times))][batches[0]]
    for row in rows:
        values = [per_image(times, isa, batch, row) for isa in times for batch in batches]
        yield [names.get(row, row), *(f"{value:.2f}" for value in values)]


def per_image(times: dict[str, Any], isa: str, batch: str, row: str) -> float:
    """Return milliseconds."""
    return times[isa][batch][row]["min_ms"] / int(batch.split()[1])


def ann_accuracy() -> float:
    """Return the accuracy of the trained ReLU network in float32."""
    return read(ROOT / "results" / "training" / "pocket-ann.json")["accuracy_after_last_epoch"]


def budgeted_and_plain(folder: str) -> tuple[Point, Point]:
    """Return tuning with a budget of non-zero bits, and without."""
    ways = tuned(folder)
    way = next(way for way in ways if way.startswith("tune-popcount"))
    return point(way, ways[way]), point("tune", ways["tune"])


def gap(folder: str) -> float:
    """Return the points of accuracy that the budget costs."""
    found, plain = budgeted_and_plain(folder)
    return 100 * (plain.accuracy - found.accuracy)


def cells_conclusion() -> str:
    """Describe the effect of the budget on the small networks."""
    found, plain = budgeted_and_plain(LONG)
    return (
        f"Over {found.seeds} seeds the budget removes {1 - found.cost / plain.cost:.1%} of the "
        f"accumulations and costs {gap(LONG):.2f} points of accuracy."
    )


def time_conclusion(times: dict[str, Any]) -> str:
    """Compare the budgeted network with the faster of the two dense engines."""
    sentences: list[str] = []
    for isa, batches in times.items():
        for batch, rows in batches.items():
            dense = {
                row: v["times_the_engine"] for row, v in rows.items() if row.startswith("int8")
            }
            best = min(dense, key=lambda row: dense[row])
            engine = best.rpartition(", ")[2]
            fastest = rows[best]["times_the_engine_min"]
            sentences.append(f"{ISAS[isa]}, {batch}: {dense[best]:.2f}, {fastest:.2f} ({engine})")
    listed = "; ".join(sentences)
    return (
        f"Speed of the budgeted network relative to the faster int8 ANN, by medians and by the "
        f"fastest rounds: {listed}."
    )


def draw_cells(axes: Axes, points: list[Point], paper: list[Point]) -> None:
    """Draw accuracy over operations of the small networks."""
    groups = {
        "tuned under a budget": [p for p in points if "popcount" in p.name or "log" in p.name],
        "other ways": [p for p in points if "popcount" not in p.name and "log" not in p.name],
        "as in the paper": paper,
    }
    anns = [p for found in groups.values() for p in found if p.is_ann]
    for (name, found), colour, marker in zip(groups.items(), COLOURS, "osD", strict=False):
        _dots(axes, [p for p in found if not p.is_ann], marker, colour, name)
    _dots(axes, anns, "^", COLOURS[6], "ANN (MACs)")
    axes.set(xlabel="accumulations per image, millions", ylabel="accuracy, %", xlim=(0, None))
    axes.set_title("small networks")
    axes.legend()


def _dots(axes: Axes, points: list[Point], marker: str, colour: str, name: str) -> None:
    x, y = [p.cost / 1e6 for p in points], [100 * p.accuracy for p in points]
    axes.plot(x, y, marker, color=colour, label=name)


def draw_pocket(axes: Axes, values: dict[str, tuple[float, float]], label: str) -> None:
    """Draw accuracy over one kind of cost of the networks of pocket size."""
    for (name, (cost, accuracy)), colour in zip(values.items(), COLOURS, strict=False):
        axes.plot([cost], [100 * accuracy], "o", color=colour, label=name)
    axes.set(xlabel=label, xlim=(0, None), ylim=(87.5, 91.5), title="pocket size, in integers")
    axes.legend(loc="lower right")


def draw(points: list[Point], paper: list[Point], record: dict[str, Any]) -> Figure:
    """Draw accuracy over operations, time and energy."""
    isa = [isa for isa in ISAS if isa in record][-1]
    accuracy, energy = record["accuracy"], record["energy"]
    rows = {BUDGETED: ENGINE, PLAIN: PLAIN, ANN: ANN}
    times = {
        name: (per_image(record, isa, "batch 1", row), accuracy[name]) for name, row in rows.items()
    }
    key = f"int8, 32-bit sums, {MEMORIES[1]}, uJ"
    spent = {name: (known[key]["burst"], accuracy[name]) for name, known in energy.items()}
    spent["int8 ANN"] = (energy[BUDGETED][key]["ann"], accuracy[ANN])
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        draw_cells(left, points, paper)
        draw_pocket(middle, times, f"ms per image, batch 1, {ISAS[isa]}")
        draw_pocket(right, spent, f"µJ per image, {MEMORIES[1]}")
        return figure


def page() -> str:
    """Return the page that the records give."""
    record = read(BUDGETED_RECORD)
    times = {isa: record[isa] for isa in ISAS if isa in record}
    paper = paper_cells()
    heads = ["", "accuracy", "points", "accumulations", "difference", "active", "seeds"]
    batches = [f"{ISAS[isa]}, {batch}" for isa, found in times.items() for batch in found]
    parts = {folder: table(heads, against_baseline(folder)) for folder in BASELINE}
    return TEXT.format(
        long=parts[LONG],
        short=parts[SHORT],
        pocket=parts[POCKET],
        paper=table(
            ["", "accuracy", "accumulations", "active", "seeds"],
            ([p.name, p.percent, p.millions, p.activity, str(p.seeds)] for p in paper),
        ),
        integers=table(
            ["", "accuracy", "accumulations", "products", *(f"µJ, {m}" for m in MEMORIES)],
            in_integers(record),
        ),
        rounds=record["rounds"],
        times=table(["ms per image", *batches], time_rows(times)),
        cells=describe_pocket().partition(", T = ")[0],
        gap=gap(LONG),
        behind=100 * ann_accuracy() - 100 * point("taught", tuned(POCKET)["taught"]).accuracy,
        cells_conclusion=cells_conclusion(),
        time_conclusion=time_conclusion(times),
    )


def main() -> None:
    """Write the page and its figure."""
    record = read(BUDGETED_RECORD)
    points = [point(way, rows) for folder in (LONG, SHORT) for way, rows in tuned(folder).items()]
    save_figure(draw(points, paper_cells(), record), FIGURE)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
