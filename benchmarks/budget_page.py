"""The page on accuracy against cost, and its figure, from records.

    python benchmarks/budget_page.py        writes docs/budget.md and its figure again

Records: ``results/budget`` (budget_search.py), ``results/pocket`` (lbq_paper's small experiments),
``benchmarks/results/budgeted.json`` (times and accuracies in integers), ``results/training`` and
those of the pretrained networks.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from lbq.analysis.figures import COLOURS, STYLE, WIDE, save_figure

ROOT = Path(__file__).parents[1]
PAGE, FIGURE = ROOT / "docs" / "budget.md", ROOT / "docs" / "figures" / "budget.svg"
ISAS = {"avx2": "AVX2", "avx512": "AVX-512", "avx512vnni": "AVX-512 VNNI"}
BASELINE = "tune"
ENGINE = "engine, measured"
MEMORIES = ("32 KB SRAM", "1 MB SRAM", "DRAM")
OTHER_CELLS = {
    "CIFAR-10/ResNet-20/LBQ/T=1": "LBQ, N=5, T=1, 6 epochs",
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
    "tune-unary-popcount": "budget, units, then bits",
    "distil": "taught by the untuned network, no budget",
    "distil-popcount": "budget, non-zero bits, taught by the untuned network",
    "steps-popcount": "budget, only steps are tuned",
    "scratch-popcount": "budget from the first step on",
    "hoyer": "Hoyer's measure",
    "planes": "group lasso over bit planes",
    "shift": "biases lowered, then tuned",
    "powers": "levels 0, 1, 2, 4",
    "powers-popcount": "levels 0, 1, 2, 4, budget",
    "narrow": "fewer channels",
    "levels": "fewer levels",
    "ann": "ANN with fewer channels",
}


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


def read(path: Path) -> Any:
    """Read a record."""
    return json.loads(path.read_text())


def title(way: str) -> str:
    """Return what a way does, with its number."""
    kind, _, number = way.rpartition("-")
    if kind not in WAYS:
        return WAYS[way]
    unit = {"hoyer": "weight", "planes": "weight", "shift": "by", "levels": "N ="}.get(kind)
    if kind in ("narrow", "ann"):
        return f"{WAYS[kind]}, {number} of the width"
    return f"{WAYS[kind]}, {unit} {number}" if unit else f"{WAYS[kind]}, to {number}"


def tuned(size: str) -> dict[str, list[dict[str, Any]]]:
    """Return the records of every way, by its name."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted((ROOT / "results" / "budget" / size).glob("*.json")):
        record = read(path)
        found[record["way"]].append(record)
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


def older_cells() -> list[Point]:
    """Return the small experiments of the paper's ways: N, T, binary, ANN."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in (ROOT / "results" / "pocket").glob("*.json"):
        record = read(path)
        for entry in set(record["entries"]) & OTHER_CELLS.keys():
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
    return [point(OTHER_CELLS[e], rows[e]) for e in OTHER_CELLS if rows[e]]


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a Markdown table."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *map(list, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell_rows(ways: dict[str, list[dict[str, Any]]]) -> Iterator[list[str]]:
    """Compare every way with plain tuning, over the seeds that both have."""
    plain = {row["seed"]: row for row in ways[BASELINE]}
    points = sorted((point(way, rows) for way, rows in ways.items()), key=lambda p: p.cost)
    for found in points:
        rows = [row for row in ways[found.name] if row["seed"] in plain]
        differences = [row["accuracy"] - plain[row["seed"]]["accuracy"] for row in rows]
        shares = [
            1 - row["bit_sparse_acs"] / plain[row["seed"]]["bit_sparse_acs"]
            for row in rows
            if row["bit_sparse_acs"]
        ]
        yield [
            title(found.name),
            f"{found.accuracy:.2%}",
            f"{100 * statistics.mean(differences):+.2f}" if differences else "",
            f"{found.cost / 1e6:.2f} M{' MACs' if found.is_ann else ''}",
            f"{-statistics.mean(shares):+.0%}" if shares else "",
            "" if found.is_ann else f"{found.active:.1%}",
            str(found.seeds),
        ]


def pocket_rows(times: dict[str, Any]) -> Iterator[list[str]]:
    """Yield accuracy in integers, counts and energy with memory of the networks of one shape."""
    best = times[list(times)[-1]]
    for name, known in best["energy"].items():
        yield [
            f"`{name}`",
            f"{best['accuracy'][name]:.2%}",
            f"{known['bit_sparse_acs'] / 1e6:.2f} M",
            f"{known['fp_macs'] / 1e6:.2f} M",
            *(f"{known[f'int8, 32-bit sums, {memory}, uJ']['burst']:.0f}" for memory in MEMORIES),
        ]
    known = next(iter(best["energy"].values()))
    for bits, accuracy in ((8, best["accuracy"]["int8 ANN, OpenVINO"]), (4, None)):
        yield [
            f"ANN in int{bits}" + (", counted only" if accuracy is None else ""),
            "" if accuracy is None else f"{accuracy:.2%}",
            "",
            f"{known['ann_macs'] / 1e6:.2f} M",
            *(
                f"{known[f'int{bits}, 32-bit sums, {memory}, uJ']['ann']:.0f}"
                for memory in MEMORIES
            ),
        ]


def time_rows(times: dict[str, Any]) -> Iterator[list[str]]:
    """Yield milliseconds per image on every instruction set, batch 1 and 64."""
    isas = [isa for isa in ISAS if isa in times]
    batches = [key for key in times[isas[0]] if key.startswith("batch")]
    names = {
        ENGINE: "`pocket-budget-cifar10`, engine",
        "pocket-cifar10": "`pocket-cifar10`, engine",
    }
    for row in times[isas[0]][batches[0]]:
        values: list[str] = []
        for isa in isas:
            for batch in batches:
                found = times[isa][batch][row]["min_ms"] / int(batch.split()[1])
                values.append(f"{found:.2f}")
        yield [names.get(row, row), *values]


def draw(cells: list[Point], older: list[Point]) -> Figure:
    """Draw accuracy over cost of the small networks."""
    with rc_context(STYLE):
        figure = Figure(figsize=WIDE, layout="constrained")
        axes = figure.subplots()
        groups = {
            "tuned under a budget": [p for p in cells if "0." in p.name and not p.is_ann],
            "other ways": [p for p in cells if "0." not in p.name and not p.is_ann],
            "as in the paper": [p for p in older if not p.is_ann],
            "ANN (MACs)": [p for p in (*cells, *older) if p.is_ann],
        }
        for (name, points), colour, marker in zip(groups.items(), COLOURS, "osD^", strict=False):
            axes.plot(
                [p.cost / 1e6 for p in points],
                [100 * p.accuracy for p in points],
                marker,
                color=colour,
                label=name,
            )
        axes.set_xlabel("bit-sparse accumulations (ANN: MACs) per image, millions")
        axes.set_ylabel("accuracy, %")
        axes.set_xscale("log")
        axes.legend()
        return figure


def main() -> None:
    """Write the page and its figure."""
    cells, pocket = tuned("cells"), tuned("pocket")
    times = read(ROOT / "benchmarks" / "results" / "budgeted.json")
    times = {key: value for key, value in times.items() if key in ISAS}
    older = older_cells()
    save_figure(draw([point(way, rows) for way, rows in cells.items()], older), FIGURE)
    heads = ["", "accuracy", "against tuning", "accumulations", "saved", "active", "seeds"]
    text = (ROOT / "benchmarks" / "budget_page.md").read_text()
    isas = [ISAS[isa] for isa in times]
    tables = {
        "cells": table(heads, cell_rows(cells)),
        "older": table(
            ["", "accuracy", "accumulations", "active", "seeds"],
            (
                [
                    p.name,
                    f"{p.accuracy:.2%}",
                    f"{p.cost / 1e6:.2f} M{' MACs' if p.is_ann else ''}",
                    "" if p.is_ann else f"{p.active:.1%}",
                    str(p.seeds),
                ]
                for p in sorted(older, key=lambda p: p.cost)
            ),
        ),
        "pocket": table(
            ["", "accuracy", "accumulations", "multiplications", *(f"uJ, {m}" for m in MEMORIES)],
            pocket_rows(times),
        ),
        "tuned": table(
            ["", "accuracy", "accumulations", "active", "minutes"],
            (
                [
                    title(way),
                    f"{row['accuracy']:.2%}",
                    f"{row['bit_sparse_acs'] / 1e6:.2f} M",
                    f"{row['active']:.1%}",
                    f"{row['minutes']:.0f}",
                ]
                for way, rows in pocket.items()
                for row in rows
            ),
        ),
        "times": table(
            ["ms per image", *(f"{isa}, batch {n}" for isa in isas for n in (1, 64))],
            time_rows(times),
        ),
    }
    for name, written in tables.items():
        text = text.replace(f"{{{name}}}", written)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
