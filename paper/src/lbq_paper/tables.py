"""The paper's tables beside ours: its numbers, and our measurements at its size and pocket size.

Numbers come from the records in the folder of results only; an entry without one says so.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from lbq_paper.charts import ABLATION_REFERENCE, CHARTS, chart_path
from lbq_paper.claims import (
    ABLATION,
    ACCUMULATIONS,
    ACCURACY,
    ENERGIES,
    CostClaim,
    printed_entries,
)
from lbq_paper.experiments import OPEN_POINTS, Table, describe_pocket
from lbq_paper.layers import behaviour_lines, first_behaviours
from lbq_paper.orderings import QUESTIONS, Conclusion, Ordering, conclude, orderings, rule
from lbq_paper.records import Record
from lbq_paper.results import (
    NO_EXPERIMENT,
    NOT_RUN,
    NOTHING,
    OLDER,
    SIZES,
    Results,
    Value,
    accuracy,
    energy_mj,
    energy_ratio,
    known,
    millions,
    reduction,
    shown,
)

_TITLES: dict[Table, str] = {
    "2": "Table 2: CIFAR, accuracy in percent",
    "3": "Table 3: ImageNet-1K, accuracy in percent",
    "4": "Table 4: events, accuracy in percent",
    "5": "Table 5: ablation on CIFAR-10, accuracy in percent",
    "6": "Table 6: accumulations, millions per image",
    "7": "Table 7: operations in millions and energy in mJ per image",
    "open": "What the paper leaves open: accuracy in percent, and what one choice changes",
}
_FOOT = f"""Accuracies are those after the last epoch, on all test samples, from the same forward
pass as the counts: mean +- standard deviation over n seeds. Pocket: {describe_pocket()}; these
numbers compare with each other, not with the paper's. {OLDER} computed by other code than the
present one."""
_TABLE_WIDTH = 100

_COMPARED = {"holds": "better", "does not hold": "worse"}

Line = tuple[str, ...]
"""The words of one row."""


def table_text(table: Table, results: Results) -> str:
    """Write one table as text."""
    lines = aligned(table_lines(table, results))
    foot = (fill(words, _TABLE_WIDTH) for words in (_FOOT, *_sources(table, results)))
    return "\n".join([_TITLES[table], "", *lines, "", *foot])


def table_lines(table: Table, results: Results) -> list[Line]:
    """Return a table as lines of words, its heading first."""
    return _LINES[table](results)


def aligned(lines: Sequence[Line]) -> list[str]:
    """Align columns, with a rule under the heading."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    head, *rest = padded
    return [head, "-" * len(head), *rest]


def _sources(table: Table, results: Results) -> Iterator[str]:
    """Name the records that a table was made from."""
    for size in SIZES:
        found = {
            record.path: record for at in results.entries(table) for record in results.at(at, size)
        }
        if found:
            commits = dict.fromkeys(record.body.get("commit") for record in found.values())
            names = " ".join(sorted(path.stem for path in found))
            yield f"From results/{size}, commit {', '.join(map(str, commits))}: {names}"


def _accuracy_lines(table: Table) -> Callable[[Results], list[Line]]:
    def lines(results: Results) -> list[Line]:
        claims = {c.entry: (str(c.accuracy), c.origin) for c in ACCURACY if str(c.table) == table}
        found: list[Line] = [("dataset / network / method / T", "paper", "", *SIZES.values())]
        for entry in _with_ours(claims, results, table):
            printed, origin = claims.get(entry, ("-", "not in the paper"))
            found.append((entry, printed, origin, *_both(results, entry, accuracy)))
        return found

    return lines


def _ablation_lines(results: Results) -> list[Line]:
    heading = ("method", "paper", "- LBQ", "full size", "- LBQ", "pocket", "- LBQ")
    lbq = next(claim.accuracy for claim in ABLATION if claim.method == "LBQ")
    found: list[Line] = [heading]
    for claim in ABLATION:
        line = [claim.entry.removeprefix("ablation/"), str(claim.accuracy)]
        line.append(f"{claim.accuracy - lbq:+}")
        for size in ("full", "pocket"):
            line.append(results.shown(claim.entry, size, accuracy))
            line.append(results.paired(claim.entry, ABLATION_REFERENCE, size, accuracy))
        found.append(tuple(line))
    return found


_COLUMNS: dict[Table, tuple[tuple[str, str, Value, int], ...]] = {
    "6": (
        ("unary ACs", "unary_acs_m", millions("unary_acs"), 2),
        ("bit-sparse ACs", "bit_sparse_acs_m", millions("bit_sparse_acs"), 2),
        ("saved, %", "reduction_percent", reduction, 2),
    ),
    "7": (
        ("accuracy, %", "accuracy", accuracy, 2),
        ("FP MACs", "fp_macs_m", millions("fp_macs"), 4),
        ("ACs", "acs_m", millions("bit_sparse_acs"), 4),
        ("formations", "plane_formations_m", millions("plane_formations"), 5),
        ("energy", "energy_mj", energy_mj, 5),
        ("ANN / this", "ratio", energy_ratio, 2),
    ),
}
"""Each row: its name, the field of the claim, our value and its digits."""


def _cost_lines(table: Table) -> Callable[[Results], list[Line]]:
    kind, printed = ("accumulation", ACCUMULATIONS) if table == "6" else ("energy", ENERGIES)
    claims: dict[str, CostClaim] = {f"{kind}/{claim.row}": claim for claim in printed}

    def lines(results: Results) -> list[Line]:
        found: list[Line] = [("method", "what", "paper", *SIZES.values())]
        for entry in _with_ours(claims, results, table):
            row = entry.removeprefix(f"{kind}/")
            for name, field, value, digits in _COLUMNS[table]:
                number = getattr(claims[entry], field) if entry in claims else "-"
                if number is not None:  # the paper leaves some empty
                    both = _both(results, entry, value, digits=digits)
                    found.append((row, name, str(number), *both))
        return found

    return lines


def _open_lines(results: Results) -> list[Line]:
    found: list[Line] = [("choice", "pocket", "instead of", "difference", "conclusion")]
    spread = results.spread("pocket", accuracy)
    for reference, choices in OPEN_POINTS.items():
        there = f"open/{reference}"
        found.append((reference, results.shown(there, "pocket", accuracy), "", "", ""))
        for row in choices:
            entry = f"open/{row}"
            conclusion = conclude(results.differences(entry, there, "pocket", accuracy), spread)
            found.append(
                (
                    row,
                    results.shown(entry, "pocket", accuracy),
                    reference,
                    results.paired(entry, there, "pocket", accuracy),
                    _COMPARED.get(conclusion, conclusion),
                )
            )
    return found


def _both(results: Results, entry: str, value: Value, *, digits: int = 2) -> tuple[str, str]:
    full = results.shown(entry, "full", value, digits=digits)
    return full, results.shown(entry, "pocket", value, digits=digits)


def _with_ours(claims: Mapping[str, object], results: Results, table: Table) -> list[str]:
    """List printed entries, then those that only we have."""
    return list(dict.fromkeys([*claims, *results.entries(table)]))


_LINES: dict[Table, Callable[[Results], list[Line]]] = {
    "2": _accuracy_lines("2"),
    "3": _accuracy_lines("3"),
    "4": _accuracy_lines("4"),
    "5": _ablation_lines,
    "6": _cost_lines("6"),
    "7": _cost_lines("7"),
    "open": _open_lines,
}


_NOTE = """<!-- Generated from the records in results/; do not edit.
Text: python -m lbq_paper results > docs/results.md
Charts: python -m lbq_paper figure results --out docs/figures
Figure 4: python -m lbq_paper figure 4 --out docs/figures -->"""
_PAGE_WIDTH = 110
_TRAINING_IMAGES = 50_000
"""Test images of CIFAR-10, on which all small experiments train."""
_CONCLUSIONS: tuple[Conclusion, ...] = ("holds", "does not hold", "inconclusive", "not run")
_FIGURE = "figures/figure4-pocket.svg"
_REDUCTION_ENTRY = "accumulation/LBQ (5)"


def results_page(results: Results) -> str:
    """Write the page; entries that were not run say so."""
    results = replace(results, marks_older=False)
    parts = [
        _NOTE,
        "# Results",
        "Compare our accuracies and operation counts of the paper's experiments with the paper's "
        "own. [Reproducing the paper](reproducing.md) describes how to run missing experiments, "
        "[the log](log.md) what did not help.",
        *_charts(results),
        *_state(results),
        "## Ablation (Table 5)",
        _markdown(_pocket_only(table_lines("5", results))),
        "## Largest level (Tables 6 and 7)",
        _reduction(results),
        "Table 7 follows the paper's convention: products with padding zeros count as MACs of the "
        'ANN and of the first layer, but not as accumulations. Elsewhere "ANN / this" excludes '
        "them on both sides ([operation counts](costs.md)).",
        _markdown(_pocket_only(table_lines("6", results))),
        _markdown(_pocket_only(table_lines("7", results))),
        "## Timesteps and other multi-level neurons (Table 2)",
        _markdown(_pocket_only(table_lines("2", results))),
        "## Choices that the paper leaves open",
        "Each row differs from its reference in one choice; the criterion is that of the "
        "orderings below.",
        _markdown(table_lines("open", results)),
        "## Behaviour of the layers (Section 5.5, Figure 4)",
        *_behaviour(results),
        *_orderings(results),
        *_origin(results),
    ]
    return (
        "\n\n".join(part if part[0] in "#|!<" else fill(part, _PAGE_WIDTH) for part in parts) + "\n"
    )


def _state(results: Results) -> Iterator[str]:
    done = {
        size: sum(
            experiment.size == size and experiment.key in found
            for experiment in results.experiments
        )
        for size, found in results.records.items()
    }
    total = Counter(experiment.size for experiment in results.experiments)
    yield (
        f"**Run so far:** {done['pocket']} of {total['pocket']} experiments at pocket size, "
        f"{done['full']} of {total['full']} at the paper's size (these need GPUs)."
    )
    yield (
        f"**Pocket size:** {describe_pocket()} (not the larger recipe `pocket` of "
        f"[training.md](training.md)). Accuracies are those after the last epoch "
        f"on all 10,000 test images, from the same forward pass as the counts: mean +- standard "
        f"deviation over n seeds. Compare them with each other, not with the paper's column. "
        f'Differences ("- LBQ") are computed per seed. Columns of a size without any runs are '
        f"left out."
    )


def _charts(results: Results) -> Iterator[str]:
    """Show the charts; without records of the reference there is nothing to compare."""
    if not results.at(ABLATION_REFERENCE, "pocket"):
        return
    for name, words in CHARTS.items():
        yield f"**{words}.**"
        yield f"![{words}]({chart_path(Path('figures'), name)})"


def _orderings(results: Results) -> Iterator[str]:
    found = orderings(results, "pocket")
    yield "## Which orderings of the paper hold at this size"
    yield rule(results.spread("pocket", accuracy))
    yield "[The log](log.md) discusses those that do not hold."
    yield _markdown([("the paper says", *_CONCLUSIONS), *map(_counted, _by_question(found))])
    heading = ("larger in the paper", "than", "of", "paper", "pocket", "conclusion")
    yield _markdown([heading, *map(_ordering, found)])


def _by_question(found: Sequence[Ordering]) -> list[list[Ordering]]:
    return [[each for each in found if each.question is question] for question in QUESTIONS]


def _counted(pairs: Sequence[Ordering]) -> Line:
    counts = Counter(each.conclusion for each in pairs)
    return pairs[0].question.words, *(str(counts[conclusion] or "") for conclusion in _CONCLUSIONS)


def _ordering(found: Ordering) -> Line:
    digits, measure = found.question.digits, found.question.measure
    ours = shown(found.differences, digits=digits, sign="+") if found.differences else "-"
    return found.more, found.less, measure, f"{found.printed:+}", ours, found.conclusion


def _reduction(results: Results) -> str:
    ours = known(results.at(_REDUCTION_ENTRY, "pocket"), reduction)
    words = shown(ours, digits=2) if ours else NOT_RUN
    return (
        f"Accumulations saved by transmitting bits, LBQ at N = 5, percent: {words} here, "
        f"{printed_entries()[f'{_REDUCTION_ENTRY}/reduction']} in the paper."
    )


def _behaviour(results: Results) -> Iterator[str]:
    yield _markdown(behaviour_lines(results, "pocket"))
    if first_behaviours(results, "pocket"):
        yield "The first seed of each:"
        yield f"![Steps, entropies and levels of the small networks, layer by layer]({_FIGURE})"


def _origin(results: Results) -> Iterator[str]:
    every = [found[0] for records in results.records.values() for found in records.values()]
    if not every:
        return
    yield "## Where these numbers come from"
    minutes = [record.body.get("minutes", 0.0) for record in every]
    undisturbed = [found for record in every if (found := _undisturbed_minutes(record))]
    rows: list[Line] = [("", "")]
    rows.append(("records", str(len(every))))
    rows.append(("hours of training", f"{sum(minutes) / 60:.1f}"))
    rows.append(("minutes per experiment, wall clock", _middle_and_most(minutes)))
    rows.append(("the same at the upper quartile of its throughput", _middle_and_most(undisturbed)))
    rows.append(("machine", _told(every, "machine")))
    rows.append(("native kernels", _told(every, "native_kernels")))
    rows.append(("commit", _told(every, "commit")))
    rows.append(("torch", _told(every, "versions", "torch")))
    rows.append(("digest of the numerics", _told(every, "numerics_sha256", digits=12)))
    yield _markdown(rows)


def _undisturbed_minutes(record: Record) -> float | None:
    """Estimate how long training would have taken at the rate of its better quarter.

    Experiments shared a machine of two cores with other work.
    """
    rates = [point["samples_per_s"] for point in record.body.get("curve", ())]
    if len(rates) < 2:
        return None
    *_, upper = statistics.quantiles(rates, n=4)
    recipe = record.body["recipe"]
    return recipe["epochs"] * _TRAINING_IMAGES / upper / 60


def _middle_and_most(minutes: Sequence[float]) -> str:
    if not minutes:
        return "-"
    return f"median {statistics.median(minutes):.1f}, most {max(minutes):.1f}"


def _told(records: Sequence[Record], *keys: str, digits: int | None = None) -> str:
    """List the values of records under some keys, each with the number of records."""
    counts = Counter[str]()
    for record in records:
        value = record.body
        for key in keys:
            value = (value or {}).get(key)
        counts["unknown" if value is None else str(value)[:digits]] += 1
    return "; ".join(f"{value} ({count})" for value, count in sorted(counts.items()))


def _pocket_only(lines: Sequence[Line]) -> list[Line]:
    """Keep the rows that small experiments could fill, and columns with any runs."""
    head, *rest = lines
    column = head.index("pocket")
    rows = [line for line in rest if line[column] != NO_EXPERIMENT]
    empty = {NOT_RUN, NO_EXPERIMENT, NOTHING}
    kept = [
        index
        for index in range(len(head))
        if index == column or {row[index] for row in rows} - empty
    ]
    return [tuple(line[index] for index in kept) for line in (head, *rows)]


def _markdown(lines: Sequence[Line]) -> str:
    head, *rest = ([word.replace("|", "\\|") for word in line] for line in lines)
    rows = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
