"""Networks of pocket size beside int8 ANNs: accuracy against operations, time and energy.

Records: ``results/accuracy`` (``lbq_paper.accuracy measure``, one per network and seed) and
``benchmarks/results/against-ann.json`` (``bench_against_ann.py``, times).
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lbq.analysis.figures import COLOURS, STYLE
from lbq_paper.checkout import ROOT

RECORDS = ROOT / "results" / "accuracy"
TIMES = ROOT / "benchmarks" / "results" / "against-ann.json"
ISAS = {"avx2": "AVX2", "avx512": "AVX-512", "avx512vnni": "AVX-512 VNNI", "amx": "AMX"}
MEMORIES = ("32 KB SRAM", "1 MB SRAM", "DRAM")
DENSE = "OpenVINO"
"""The engine whose answers and times stand for ANNs: the faster one."""


class Network(NamedTuple):
    """One network, over its seeds."""

    name: str
    rows: tuple[dict[str, Any], ...]

    @property
    def is_ann(self) -> bool:
        """Return whether it has ReLUs and runs on a dense engine."""
        return self.name.startswith("ann")

    @property
    def is_dense(self) -> bool:
        """Return whether all its products are counted, whatever the activations."""
        return self.is_ann or self.name == "int4"

    def mean(self, key: str) -> float:
        """Return the mean of a number of the records."""
        return statistics.mean(row[key] for row in self.rows)

    def accuracies(self) -> list[float]:
        """Return percent of right answers in integers, one per seed."""
        engine = DENSE if self.is_ann else "lbq"
        return [100 * row["correct_integers"][engine] / row["count"] for row in self.rows]

    @property
    def accuracy(self) -> float:
        """Return the mean accuracy in integers, in percent."""
        return statistics.mean(self.accuracies())

    @property
    def operations(self) -> float:
        """Return millions per image: accumulations and products, or the products of an ANN."""
        if self.is_dense:
            return self.mean("ann_macs") / 1e6
        return (self.mean("bit_sparse_acs") + self.mean("fp_macs")) / 1e6

    def energy(self, memory: str) -> float:
        """Return microjoules per image, arithmetic and memory."""
        bits, form = (4 if self.name == "int4" else 8), ("ann" if self.is_dense else "burst")
        key = f"int{bits}, 32-bit sums, {memory}, uJ"
        return statistics.mean(row[key][form] for row in self.rows)


def read_networks(folder: Path = RECORDS) -> list[Network]:
    """Return all networks that have records, the cheapest first."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text())
        found[row["network"]].append(row)
    networks = [Network(name, tuple(rows)) for name, rows in found.items()]
    return sorted(networks, key=lambda network: network.operations)


def title(name: str) -> str:
    """Say what a network is, in the words of the tables."""
    if name == "ann":
        return "int8 ANN"
    if name.startswith("ann-"):
        return f"int8 ANN, {name[4:]} of the width"
    if name == "int4":
        return "4-bit ANN"
    level, _, rest = name.removeprefix("burst-").partition("-")
    budget = rest.partition("budget-")[2]
    return f"levels 0..{level}" + (f", budget {budget}" if budget else "")


def milliseconds(times: dict[str, Any], network: str, isa: str, batch: int) -> float | None:
    """Return the time per image, of the fastest round; None if it was not measured."""
    name = f"{network}, {DENSE}" if network.startswith("ann") else network
    row = times[isa][f"batch {batch}"].get(name)
    return None if row is None else row["min_ms"] / batch


def accuracy_rows(networks: Iterable[Network]) -> Iterator[list[str]]:
    """Yield accuracies, operations and energies."""
    for network in networks:
        all_seeds = network.accuracies()
        spread = f" ± {statistics.stdev(all_seeds):.2f}" if len(all_seeds) > 1 else ""
        first = network.rows[0]
        floats = statistics.mean(100 * row["correct"] / row["count"] for row in network.rows)
        yield [
            title(network.name),
            f"{floats:.2f} %",
            f"{network.accuracy:.2f}{spread} %",
            str(len(all_seeds)),
            str(first["total_epochs"]),
            f"{network.operations:.2f} M",
            "" if network.is_dense else f"{network.mean('active'):.0%}",
            *(f"{network.energy(memory):.1f}" for memory in MEMORIES),
        ]


def time_rows(networks: Iterable[Network], times: dict[str, Any]) -> Iterator[list[str]]:
    """Yield milliseconds per image on every instruction set, for one image and for 64."""
    for network in networks:
        found = [
            milliseconds(times, network.name, isa, batch)
            for isa in ISAS
            if isa in times
            for batch in (1, 64)
        ]
        if any(found):
            yield [
                title(network.name),
                *("" if value is None else f"{value:.2f}" for value in found),
            ]


def cheapest(networks: Iterable[Network], cost: Callable[[Network], float | None]) -> list[Network]:
    """Return the networks that none is both cheaper and at least as accurate than."""
    priced = [(price, network) for network in networks if (price := cost(network)) is not None]
    found: list[Network] = []
    for _, network in sorted(priced, key=lambda pair: (pair[0], -pair[1].accuracy)):
        if not found or network.accuracy > found[-1].accuracy:
            found.append(network)
    return found


def costs(times: dict[str, Any]) -> dict[str, Callable[[Network], float | None]]:
    """Return every kind of cost by its name."""
    found: dict[str, Callable[[Network], float | None]] = {
        "operations": lambda network: network.operations
    }
    for isa in (isa for isa in ISAS if isa in times):
        for batch, images in ((1, "one image"), (64, "64 images")):
            found[f"time, {ISAS[isa]}, {images}"] = lambda network, isa=isa, batch=batch: (
                milliseconds(times, network.name, isa, batch)
            )
    for memory in MEMORIES:
        found[f"energy, {memory}"] = lambda network, memory=memory: network.energy(memory)
    return found


def cheapest_rows(networks: list[Network], times: dict[str, Any]) -> Iterator[list[str]]:
    """Yield, for every kind of cost, which networks are the cheapest of their accuracy."""
    for name, cost in costs(times).items():
        front = cheapest(networks, cost)
        listed = ", ".join(f"{title(n.name)} ({n.accuracy:.2f} %)" for n in front)
        yield [name, listed]


def draw(networks: list[Network], times: dict[str, Any], isa: str) -> Figure:
    """Draw accuracy over operations, over time of one image and of 64, and over energy."""
    axes_of: dict[str, Callable[[Network], float | None]] = {
        "operations per image, millions": lambda n: n.operations,
        f"ms, one image, {ISAS[isa]}": lambda n: milliseconds(times, n.name, isa, 1),
        f"ms per image, 64 images, {ISAS[isa]}": lambda n: milliseconds(times, n.name, isa, 64),
        f"µJ per image, {MEMORIES[1]}": lambda n: n.energy(MEMORIES[1]),
    }
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        for axes, (label, cost) in zip(
            figure.subplots(1, 4, sharey=True), axes_of.items(), strict=True
        ):
            _draw_one(axes, networks, cost)
            axes.set(xlabel=label, xlim=(0, None))
        first = figure.axes[0]
        first.set_ylabel("accuracy in integers, %")
        first.legend(loc="lower right")
        return figure


def _draw_one(axes: Axes, networks: list[Network], cost: Callable[[Network], float | None]) -> None:
    groups = {
        "lbq": [n for n in networks if not n.is_dense],
        "int8 ANN": [n for n in networks if n.is_ann],
        "4-bit ANN": [n for n in networks if n.name == "int4"],
    }
    for (name, found), colour, marker in zip(groups.items(), COLOURS, "os^", strict=False):
        priced = [(price, n.accuracy) for n in found if (price := cost(n)) is not None]
        if priced:
            x, y = zip(*sorted(priced), strict=True)
            axes.plot(x, y, ":", marker=marker, color=colour, label=name, lw=1)
