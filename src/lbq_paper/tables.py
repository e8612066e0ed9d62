"""The paper's tables beside ours: what it prints, what we measured at its size, and at pocket size.

Numbers come from the records in the folder of results only; an entry without one says so.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from textwrap import fill

from lbq_paper.claims import AccumulationClaim, EnergyClaim
from lbq_paper.experiments import Table
from lbq_paper.orderings import conclude
from lbq_paper.pocket_size import OPEN_POINTS, describe_pocket
from lbq_paper.results import (
    OLDER,
    SIZES,
    Results,
    Value,
    accuracy,
    energy_mj,
    energy_ratio,
    millions,
    reduction,
)
from lbq_paper.tables_as_printed import ABLATION, ACCUMULATIONS, ACCURACY, ENERGIES

_ABLATION_REFERENCE = "ablation/LBQ/learnable"

_TITLES: dict[Table, str] = {
    "2": "Table 2: CIFAR, accuracy in percent",
    "3": "Table 3: ImageNet-1K, accuracy in percent",
    "4": "Table 4: events, accuracy in percent",
    "5": "Table 5: ablation on CIFAR-10, accuracy in percent",
    "6": "Table 6: accumulations, millions per image",
    "7": "Table 7: operations in millions and energy in mJ per image",
    "open": "What the paper leaves open: accuracy in percent, and what one choice changes",
}
_FOOT = f"""Accuracies are those after the last epoch, on all test samples, of the same forward
that was counted: mean +- standard deviation over seeds (n). Pocket: {describe_pocket()}; these
numbers compare with each other, not with the paper's. {OLDER} computed by other code than the
present one."""
_WIDTH = 100

_ENERGY_DIGITS = {"accuracy, %": 2, "ANN / this": 2, "formations": 5, "energy": 5}
_COMPARED = {"holds": "better", "does not hold": "worse"}

Line = tuple[str, ...]
"""The words of one row."""


def table_text(table: Table, results: Results) -> str:
    """Write one table as text."""
    lines = aligned(table_lines(table, results))
    foot = (fill(words, _WIDTH) for words in (_FOOT, *_sources(table, results)))
    return "\n".join([_TITLES[table], "", *lines, "", *foot])


def table_lines(table: Table, results: Results) -> list[Line]:
    """Return a table as lines of words, its heading first."""
    return _LINES[table](results)


def aligned(lines: Sequence[Line]) -> list[str]:
    """Put words under one another, with a rule under the heading."""
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
            line.append(results.paired(claim.entry, _ABLATION_REFERENCE, size, accuracy))
        found.append(tuple(line))
    return found


def _accumulation_lines(results: Results) -> list[Line]:
    claims = {f"accumulation/{claim.row}": claim for claim in ACCUMULATIONS}
    columns: Sequence[tuple[str, Callable[[AccumulationClaim], Decimal], Value]] = (
        ("unary ACs", lambda claim: claim.unary_acs_m, millions("unary_acs")),
        ("bit-sparse ACs", lambda claim: claim.bit_sparse_acs_m, millions("bit_sparse_acs")),
        ("saved, %", lambda claim: claim.reduction_percent, reduction),
    )
    found: list[Line] = [("method", "what", "paper", *SIZES.values())]
    for entry in _with_ours(claims, results, "6"):
        claim = claims.get(entry)
        for name, printed, value in columns:
            word = "-" if claim is None else str(printed(claim))
            row = entry.removeprefix("accumulation/")
            found.append((row, name, word, *_both(results, entry, value)))
    return found


def _energy_lines(results: Results) -> list[Line]:
    claims = {f"energy/{claim.row}": claim for claim in ENERGIES}
    columns: Sequence[tuple[str, Callable[[EnergyClaim], Decimal | None], Value]] = (
        ("accuracy, %", lambda claim: claim.accuracy, accuracy),
        ("FP MACs", lambda claim: claim.fp_macs_m, millions("fp_macs")),
        ("ACs", lambda claim: claim.acs_m, millions("bit_sparse_acs")),
        ("formations", lambda claim: claim.plane_formations_m, millions("plane_formations")),
        ("energy", lambda claim: claim.energy_mj, energy_mj),
        ("ANN / this", lambda claim: claim.ratio, energy_ratio),
    )
    found: list[Line] = [("method", "what", "paper", *SIZES.values())]
    for entry in _with_ours(claims, results, "7"):
        claim = claims.get(entry)
        for name, printed, value in columns:
            number = None if claim is None else printed(claim)
            if claim is not None and number is None:
                continue  # the paper leaves this one empty for this row
            word = "-" if number is None else str(number)
            row = entry.removeprefix("energy/")
            digits = _ENERGY_DIGITS.get(name, 4)
            found.append((row, name, word, *_both(results, entry, value, digits=digits)))
    return found


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
    "6": _accumulation_lines,
    "7": _energy_lines,
    "open": _open_lines,
}
