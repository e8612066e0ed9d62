"""The charts at the top of docs/results.md, from the records of the small experiments."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from lbq.errors import ParameterError
from lbq_paper.claims import ABLATION, ACCUMULATIONS
from lbq_paper.records import Record
from lbq_paper.results import Results, Value, accuracy, known, millions, reduction

ABLATION_REFERENCE = "ablation/LBQ/learnable"
CHARTS = {
    "ablation": "Ablation: points of accuracy ahead of LBQ, with the standard deviation over seeds",
    "levels": "Accumulations saved by sending bits, against the largest level",
    "pareto": "Accuracy against operations per image at pocket size",
}
"""Names of the files and their titles, in the order of the page."""
_LEVELS = (1, 2, 5, 10, 20)
_NETWORK = "CIFAR-10/ResNet-20"


class Mean(NamedTuple):
    """Mean and standard deviation over seeds; the latter is 0 for one seed."""

    value: float
    deviation: float


def chart_path(out: Path, name: str) -> Path:
    """Return the path of a chart."""
    return out / f"results-{name}.svg"


def save_charts(out: Path, results: Results) -> list[Path]:
    """Draw all charts from the records at pocket size."""
    if not results.at(ABLATION_REFERENCE, "pocket"):
        raise ParameterError(
            "the charts compare with LBQ, which was not run at pocket size; "
            "python -m lbq_paper run --size pocket --table 5 --data DATA"
        )
    from lbq.analysis import figures  # noqa: PLC0415 -- an extra

    out.mkdir(parents=True, exist_ok=True)
    drawn = {
        "ablation": figures.draw_differences(ablation(results), "points ahead of LBQ"),
        "levels": figures.draw_lines(
            saved_by_level(results), "largest level N", "accumulations saved, %"
        ),
        "pareto": figures.draw_groups(
            pareto(results),
            "accumulations (ANN: multiply-accumulates) per image, millions",
            "accuracy, %",
        ),
    }
    for name, figure in drawn.items():
        figures.save_figure(figure, chart_path(out, name))
    return [chart_path(out, name) for name in drawn]


def ablation(results: Results) -> dict[str, dict[str, Mean]]:
    """Return, for the paper and for us, by how many points every method is ahead of LBQ."""
    lbq = next(float(claim.accuracy) for claim in ABLATION if claim.method == "LBQ")
    others = [claim for claim in ABLATION if claim.entry != ABLATION_REFERENCE]
    ours = {
        claim.entry: results.differences(claim.entry, ABLATION_REFERENCE, "pocket", accuracy)
        for claim in others
    }
    return {
        "paper, full size": {_method(c.entry): Mean(float(c.accuracy) - lbq, 0) for c in others},
        "here, pocket size": {
            _method(entry): _mean(found) for entry, found in ours.items() if found
        },
    }


def saved_by_level(results: Results) -> dict[str, dict[float, Mean]]:
    """Return how many percent of accumulations bits save, by the largest level."""
    ours = {n: known(results.at(_of_level(n), "pocket"), reduction) for n in _LEVELS}
    return {
        "paper, full size": {
            claim.max_level: Mean(float(claim.reduction_percent), 0)
            for claim in ACCUMULATIONS
            if claim.max_level is not None
        },
        "here, pocket size": {n: _mean(found) for n, found in ours.items() if found},
    }


def pareto(results: Results) -> dict[str, list[tuple[str, Mean, Mean]]]:
    """Return groups of networks: name, operations in millions and accuracy of each."""
    others = [
        entry
        for entry in results.entries("2")
        if entry.startswith(_NETWORK) and "/LBQ/" not in entry and results.at(entry, "pocket")
    ]
    groups = {
        "LBQ, two timesteps": {f"N={n}": _of_level(n) for n in _LEVELS},
        "LBQ, N=5": {f"T={t}": f"{_NETWORK}/LBQ/T={t}" for t in (1, 4)},
        "V1, V2, V3": {
            claim.method: claim.entry for claim in ABLATION if claim.method.startswith("V")
        },
        "other multi-level neurons": {entry.split("/")[2]: entry for entry in others},
        "binary, ternary": {
            _method(claim.entry).replace(" Spike", ""): claim.entry
            for claim in ABLATION
            if claim.method in ("Binary LIF", "Ternary Spike")
        },
        "ANN": {"ANN": "ablation/ANN"},
    }
    return {
        group: [
            (name, _mean(known(records, _operations)), _mean(known(records, accuracy)))
            for name, entry in members.items()
            if known(records := results.at(entry, "pocket"), accuracy)
        ]
        for group, members in groups.items()
    }


def _operations(record: Record) -> float | None:
    acs: Value = millions("bit_sparse_acs")
    found = acs(record)
    return millions("fp_macs")(record) if found is None else found


def _of_level(level: int) -> str:
    return f"accumulation/LBQ ({level})"


def _method(entry: str) -> str:
    return entry.removeprefix("ablation/").replace("/", ", ")


def _mean(values: Iterable[float]) -> Mean:
    found: Sequence[float] = list(values)
    return Mean(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0)
