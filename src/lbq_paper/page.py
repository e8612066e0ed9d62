"""docs/results.md: what was measured here, written from the records and from nothing else."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from textwrap import fill

from lbq_paper.behaviour import behaviour_lines, behaviours
from lbq_paper.orderings import ERRORS, RULE, Ordering, is_clear, orderings
from lbq_paper.pocket_size import pocket_science
from lbq_paper.records import Record
from lbq_paper.results import NO_CELL, Results, accuracy, reduction, shown
from lbq_paper.tables import Line, table_lines

_WIDTH = 110
_REFERENCE = "open/as in the recipes"
_FIGURE = "figures/figure4-pocket.svg"
_REDUCTION_PLACE, _REDUCTION_PRINTED = "accumulation/LBQ (5)", "40.52"


def results_page(results: Results) -> str:
    """Write the page; whatever was not run says so."""
    results = replace(results, marks_older=False)
    parts = [
        "# Results",
        "Written by `python -m lbq_paper results` from the records in `results/`: do not edit it. "
        "How to run what is missing: [reproducing.md](reproducing.md). What did not help: "
        "[log.md](log.md).",
        *_state(results),
        "## Ablation (Table 5)",
        _markdown(_pocket_only(table_lines("5", results))),
        *_orderings(results),
        "## Largest level (Tables 6 and 7)",
        _reduction(results),
        _markdown(_pocket_only(table_lines("6", results))),
        _markdown(_pocket_only(table_lines("7", results))),
        "## Timesteps, and other neurons with many levels (Table 2)",
        _markdown(_pocket_only(table_lines("2", results))),
        "## What the paper leaves open",
        f'A choice is "better" or "worse" than that of the recipes if all seeds agree and the mean '
        f"is more than {ERRORS:g} standard errors away from zero.",
        _markdown(_open(results)),
        "## What layers do (Section 5.5, Figure 4)",
        *_behaviour(results),
        *_origin(results),
    ]
    return "\n\n".join(part if part[0] in "#|!" else fill(part, _WIDTH) for part in parts) + "\n"


def _state(results: Results) -> Iterator[str]:
    recipe = pocket_science()
    model, blocks = recipe.model, recipe.model.blocks
    done = {
        size: sum(cell.size == size and cell.key in found for cell in results.cells)
        for size, found in results.records.items()
    }
    total = Counter(cell.size for cell in results.cells)
    yield (
        f"**Run so far:** {done['pocket']} of {total['pocket']} cells at pocket size, "
        f"{done['full']} of {total['full']} at the paper's size, which need GPUs."
    )
    yield (
        f"**Pocket size:** CIFAR-10, {model.name} with {blocks} blocks per stage at "
        f"{model.width:g} of the width, the first stage of stride {model.first_stage_stride}, "
        f"T = {model.timesteps}, {recipe.epochs} epochs. Accuracies "
        f"are those after the last epoch on all 10,000 test images, mean +- standard deviation "
        f"over seeds (n). They compare with each other, never with the paper's column. A "
        f'difference ("- LBQ") is taken seed by seed.'
    )


def _orderings(results: Results) -> Iterator[str]:
    found = orderings(results, "pocket")
    yield "### Which orderings hold at this size"
    yield RULE
    for question, members in groupby(found, key=lambda each: each.question):
        every = list(members)
        counts = Counter(each.verdict for each in every)
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        yield f"**{question[0].upper()}{question[1:]}:** {said}."
    yield "Where one does not hold, [log.md](log.md) says what was found."
    heading = ("better in the paper", "than", "paper", "pocket", "verdict")
    yield _markdown([heading, *map(_ordering, found)])


def _ordering(found: Ordering) -> Line:
    ours = shown(found.differences, digits=2, sign="+") if found.differences else "-"
    return found.better, found.worse, f"{found.printed:+}", ours, found.verdict


def _reduction(results: Results) -> str:
    values = [reduction(record) for record in results.at(_REDUCTION_PLACE, "pocket")]
    ours = [value for value in values if value is not None]
    words = shown(ours, digits=2) + " %" if ours else "not run"
    return (
        f"Accumulations that sending bits saves LBQ at N = 5: {words} here, "
        f"{_REDUCTION_PRINTED} % in the paper."
    )


def _open(results: Results) -> list[Line]:
    lines: list[Line] = [("choice", "pocket", "- recipes", "verdict")]
    for place in results.places("open"):
        differences = results.differences(place, _REFERENCE, "pocket", accuracy)
        lines.append(
            (
                place.removeprefix("open/"),
                results.shown(place, "pocket", accuracy),
                results.paired(place, _REFERENCE, "pocket", accuracy),
                "-" if place == _REFERENCE else _compared(differences),
            )
        )
    return lines


def _compared(differences: Sequence[float]) -> str:
    if not differences:
        return "not run"
    if not is_clear(differences):
        return "cannot be told"
    return "better" if differences[0] > 0 else "worse"


def _behaviour(results: Results) -> Iterator[str]:
    found = behaviours(results, "pocket")
    yield "First seed of each. `python -m lbq_paper figure 4 --out docs/figures` draws the figure."
    yield _markdown(behaviour_lines(found))
    if found:
        yield f"![Steps, entropies and levels of the small networks, layer by layer]({_FIGURE})"


def _origin(results: Results) -> Iterator[str]:
    every = [found[0] for records in results.records.values() for found in records.values()]
    if not every:
        return
    yield "## Where these numbers come from"
    hours = sum(record.body.get("minutes", 0.0) for record in every) / 60
    slowest = max(record.body.get("minutes", 0.0) for record in every)
    middle = statistics.median(record.body.get("minutes", 0.0) for record in every)
    rows: list[Line] = [("", "")]
    rows.append(("records", str(len(every))))
    rows.append(("hours of training", f"{hours:.1f}"))
    rows.append(("minutes per cell, median and most", f"{middle:.1f}, {slowest:.1f}"))
    rows.append(("machine", _told(every, "machine")))
    rows.append(("native kernels", _told(every, "native_kernels")))
    rows.append(("commit", _told(every, "commit")))
    rows.append(("torch", _told(every, "versions", "torch")))
    rows.append(("digest of the numerics", _told(every, "numerics_sha256", digits=12)))
    yield _markdown(rows)


def _told(records: Sequence[Record], *keys: str, digits: int | None = None) -> str:
    """List what records say under some keys, each with how many say it."""
    counts = Counter[str]()
    for record in records:
        value = record.body
        for key in keys:
            value = (value or {}).get(key)
        counts["not said" if value is None else str(value)[:digits]] += 1
    return "; ".join(f"{value} ({count})" for value, count in sorted(counts.items()))


def _pocket_only(lines: Sequence[Line]) -> list[Line]:
    """Keep the rows that small cells could fill."""
    head, *rest = lines
    column = head.index("pocket")
    return [head, *(line for line in rest if line[column] != NO_CELL)]


def _markdown(lines: Sequence[Line]) -> str:
    head, *rest = ([word.replace("|", "\\|") for word in line] for line in lines)
    rows = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
