"""The paper's tables beside ours: what it prints, what we measured at its size, and at pocket size.

Numbers come from committed records only; a place without one says so.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from lbq_paper.cells import Table
from lbq_paper.claims import AccumulationClaim, EnergyClaim
from lbq_paper.results import (
    OLDER,
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
_OPEN_REFERENCE = "open/as in the recipes"

_TITLES: dict[Table, str] = {
    "2": "Table 2: CIFAR, accuracy in percent",
    "3": "Table 3: ImageNet-1K, accuracy in percent",
    "4": "Table 4: events, accuracy in percent",
    "5": "Table 5: ablation on CIFAR-10, accuracy in percent",
    "6": "Table 6: accumulations, millions per image",
    "7": "Table 7: operations in millions and energy in mJ per image",
    "open": "What the paper leaves open: accuracy in percent, and its differences over seeds",
}
_FOOT = f"""Accuracies are those after the last epoch, on all test samples: mean +- standard
deviation over seeds (n). Pocket: one block per stage, a quarter of the width, 6 epochs; these
numbers compare with each other, not with the paper's. {OLDER} computed by other code than the
present one."""

Line = tuple[str, ...]
"""The words of one row."""


def table_text(table: Table, results: Results) -> str:
    """Write one table as text."""
    return "\n".join([_TITLES[table], "", *aligned(table_lines(table, results)), "", _FOOT])


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


def _accuracy_lines(table: Table) -> Callable[[Results], list[Line]]:
    def lines(results: Results) -> list[Line]:
        claims = {c.cell: (str(c.accuracy), c.origin) for c in ACCURACY if str(c.table) == table}
        found: list[Line] = [("dataset / network / method / T", "paper", "", "ours", "pocket")]
        for place in _with_ours(claims, results, table):
            printed, origin = claims.get(place, ("-", "not in the paper"))
            found.append((place, printed, origin, *_both(results, place, accuracy)))
        return found

    return lines


def _ablation_lines(results: Results) -> list[Line]:
    heading = ("method", "paper", "- LBQ", "ours", "- LBQ", "pocket", "- LBQ")
    lbq = next(claim.accuracy for claim in ABLATION if claim.method == "LBQ")
    found: list[Line] = [heading]
    for claim in ABLATION:
        line = [claim.cell.removeprefix("ablation/"), str(claim.accuracy)]
        line.append(f"{claim.accuracy - lbq:+}")
        for size in ("full", "pocket"):
            line.append(results.shown(claim.cell, size, accuracy))
            line.append(results.paired(claim.cell, _ABLATION_REFERENCE, size, accuracy))
        found.append(tuple(line))
    return found


def _accumulation_lines(results: Results) -> list[Line]:
    claims = {f"accumulation/{_row(claim)}": claim for claim in ACCUMULATIONS}
    columns: Sequence[tuple[str, Callable[[AccumulationClaim], Decimal], Value]] = (
        ("unary ACs", lambda claim: claim.unary_acs_m, millions("unary_acs")),
        ("bit-sparse ACs", lambda claim: claim.bit_sparse_acs_m, millions("bit_sparse_acs")),
        ("saved, %", lambda claim: claim.reduction_percent, reduction),
    )
    found: list[Line] = [("method", "what", "paper", "ours", "pocket")]
    for place in _with_ours(claims, results, "6"):
        claim = claims.get(place)
        for name, printed, value in columns:
            word = "-" if claim is None else str(printed(claim))
            row = place.removeprefix("accumulation/")
            found.append((row, name, word, *_both(results, place, value)))
    return found


def _energy_lines(results: Results) -> list[Line]:
    claims = {f"energy/{_row(claim)}": claim for claim in ENERGIES}
    columns: Sequence[tuple[str, Callable[[EnergyClaim], Decimal | None], Value]] = (
        ("accuracy, %", lambda claim: claim.accuracy, accuracy),
        ("FP MACs", lambda claim: claim.fp_macs_m, millions("fp_macs")),
        ("ACs", lambda claim: claim.acs_m, millions("bit_sparse_acs")),
        ("formations", lambda claim: claim.plane_formations_m, millions("plane_formations")),
        ("energy", lambda claim: claim.energy_mj, energy_mj),
        ("ANN / this", lambda claim: claim.ratio, energy_ratio),
    )
    found: list[Line] = [("method", "what", "paper", "ours", "pocket")]
    for place in _with_ours(claims, results, "7"):
        claim = claims.get(place)
        for name, printed, value in columns:
            number = None if claim is None else printed(claim)
            if claim is not None and number is None:
                continue  # the paper leaves this one empty for this row
            word = "-" if number is None else str(number)
            row = place.removeprefix("energy/")
            digits = 2 if name in ("accuracy, %", "ANN / this") else 4
            found.append((row, name, word, *_both(results, place, value, digits=digits)))
    return found


def _open_lines(results: Results) -> list[Line]:
    found: list[Line] = [("choice", "pocket", "- LBQ as in the recipes")]
    for place in results.places("open"):
        row = place.removeprefix("open/")
        difference = results.paired(place, _OPEN_REFERENCE, "pocket", accuracy)
        found.append((row, results.shown(place, "pocket", accuracy), difference))
    return found


def _both(results: Results, place: str, value: Value, *, digits: int = 2) -> tuple[str, str]:
    full = results.shown(place, "full", value, digits=digits)
    return full, results.shown(place, "pocket", value, digits=digits)


def _with_ours(claims: Mapping[str, object], results: Results, table: Table) -> list[str]:
    """List printed places, then those that only we have."""
    return list(dict.fromkeys([*claims, *results.places(table)]))


def _row(claim: AccumulationClaim | EnergyClaim) -> str:
    return claim.method if claim.max_level is None else f"{claim.method} ({claim.max_level})"


_LINES: dict[Table, Callable[[Results], list[Line]]] = {
    "2": _accuracy_lines("2"),
    "3": _accuracy_lines("3"),
    "4": _accuracy_lines("4"),
    "5": _ablation_lines,
    "6": _accumulation_lines,
    "7": _energy_lines,
    "open": _open_lines,
}
