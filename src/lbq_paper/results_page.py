"""docs/results.md: what was measured here, written from the records and from nothing else."""

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import fill

from lbq_paper.layers import behaviour_lines, first_behaviours
from lbq_paper.orderings import QUESTIONS, Conclusion, Ordering, orderings, rule
from lbq_paper.pocket_size import describe_pocket
from lbq_paper.records import Record
from lbq_paper.results import NO_EXPERIMENT, NOT_RUN, Results, accuracy, known, reduction, shown
from lbq_paper.tables import Line, table_lines
from lbq_paper.tables_as_printed import printed_entries

_WIDTH = 110
_TRAINING_IMAGES = 50_000
"""Of CIFAR-10, which all small experiments train on."""
_CONCLUSIONS: tuple[Conclusion, ...] = ("holds", "does not hold", "inconclusive", "not run")
_FIGURE = "figures/figure4-pocket.svg"
_REDUCTION_ENTRY = "accumulation/LBQ (5)"


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
        "## Largest level (Tables 6 and 7)",
        _reduction(results),
        "Table 7 follows the paper's convention: products with the zeros of a padding count as "
        "MACs, of the ANN and of the first layer, but not as accumulations. Elsewhere "
        '"ANN / this" leaves them out on both sides ([costs.md](costs.md)).',
        _markdown(_pocket_only(table_lines("6", results))),
        _markdown(_pocket_only(table_lines("7", results))),
        "## Timesteps, and other neurons with many levels (Table 2)",
        _markdown(_pocket_only(table_lines("2", results))),
        "## What the paper leaves open",
        "Each row differs from its reference in one choice. Judged as orderings are, below.",
        _markdown(table_lines("open", results)),
        "## What layers do (Section 5.5, Figure 4)",
        *_behaviour(results),
        *_orderings(results),
        *_origin(results),
    ]
    return "\n\n".join(part if part[0] in "#|!" else fill(part, _WIDTH) for part in parts) + "\n"


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
        f"{done['full']} of {total['full']} at the paper's size, which need GPUs."
    )
    yield (
        f"**Pocket size:** {describe_pocket()} (not the larger recipe `pocket` of "
        f"[training.md](training.md)). Accuracies are those of the network after the last "
        f"epoch on all 10,000 test images, by the same forward that was counted, mean +- standard "
        f"deviation over seeds (n). They compare with each other, never with the paper's column. A "
        f'difference ("- LBQ") is taken seed by seed.'
    )


def _orderings(results: Results) -> Iterator[str]:
    found = orderings(results, "pocket")
    yield "## Which orderings of the paper hold at this size"
    yield rule(results.spread("pocket", accuracy))
    yield "Where one does not hold, [log.md](log.md) says what was found."
    yield _markdown([("the paper says", *_CONCLUSIONS), *map(_counted, _by_question(found))])
    heading = ("more in the paper", "than", "of", "paper", "pocket", "conclusion")
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
        f"Percent of the accumulations that sending bits saves LBQ at N = 5: {words} here, "
        f"{printed_entries()[f'{_REDUCTION_ENTRY}/reduction']} in the paper."
    )


def _behaviour(results: Results) -> Iterator[str]:
    yield _markdown(behaviour_lines(results, "pocket"))
    if first_behaviours(results, "pocket"):
        yield "`python -m lbq_paper figure 4 --out docs/figures` draws the first seed of each:"
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
    rows.append(("minutes per experiment by the clock", _middle_and_most(minutes)))
    rows.append(("the same at the upper quartile of its own rate", _middle_and_most(undisturbed)))
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
    """List what records say under some keys, each with how many say it."""
    counts = Counter[str]()
    for record in records:
        value = record.body
        for key in keys:
            value = (value or {}).get(key)
        counts["not said" if value is None else str(value)[:digits]] += 1
    return "; ".join(f"{value} ({count})" for value, count in sorted(counts.items()))


def _pocket_only(lines: Sequence[Line]) -> list[Line]:
    """Keep the rows that small experiments could fill."""
    head, *rest = lines
    column = head.index("pocket")
    return [head, *(line for line in rest if line[column] != NO_EXPERIMENT)]


def _markdown(lines: Sequence[Line]) -> str:
    head, *rest = ([word.replace("|", "\\|") for word in line] for line in lines)
    rows = [head, ["---"] * len(head), *rest]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
