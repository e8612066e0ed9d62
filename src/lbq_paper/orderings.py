"""Which orderings of the paper's ablation hold here: a rule, not an impression."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from lbq_paper.cells import Size
from lbq_paper.results import Results, accuracy
from lbq_paper.tables_as_printed import printed_cells

Verdict = Literal["holds", "does not hold", "cannot be told", "not run"]

RULE = """An ordering *holds* if, seed by seed, every difference has the paper's sign and their mean
is more than twice its standard error away from zero; it *does not hold* if the same is true of the
opposite sign; otherwise, and with one seed, it *cannot be told*. With two or three seeds this is a
sieve and no test of significance."""

ERRORS = 2.0
"""Standard errors that a mean must be away from zero."""

_BURSTS = ("V1/fixed", "V2/fixed", "V3/learnable", "LBQ/learnable")
_BEATEN = ("Binary LIF", "Ternary Spike/fixed", "Ternary Spike/learnable")

QUESTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "bursts beat binary and ternary spikes": tuple(
        (burst, other) for burst in _BURSTS for other in _BEATEN
    ),
    "a learned step beats a fixed one": (
        ("V3/learnable", "V1/fixed"),
        ("LBQ/learnable", "V2/fixed"),
        ("Ternary Spike/learnable", "Ternary Spike/fixed"),
    ),
    "ReLSG-ET beats Box-ET": (("V2/fixed", "V1/fixed"), ("LBQ/learnable", "V3/learnable")),
    "ternary spikes beat binary ones": (("Ternary Spike/fixed", "Binary LIF"),),
    "the ANN stays ahead": (("ANN", "LBQ/learnable"),),
}
"""What Table 5 is there to show: pairs of rows, the better one of the paper first."""


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """Two rows of Table 5, the one that is better in the paper first."""

    question: str
    better: str
    worse: str
    printed: Decimal
    """How much better, in points, in the paper."""
    differences: tuple[float, ...]
    """The same here, seed by seed."""

    @property
    def verdict(self) -> Verdict:
        """Say whether it holds here."""
        return judge(self.differences)


def orderings(results: Results, size: Size) -> list[Ordering]:
    """Look at every pair of rows that the paper draws a conclusion from."""
    cells = printed_cells()
    return [
        Ordering(
            question=question,
            better=better,
            worse=worse,
            printed=cells[f"ablation/{better}"] - cells[f"ablation/{worse}"],
            differences=tuple(
                results.differences(f"ablation/{better}", f"ablation/{worse}", size, accuracy)
            ),
        )
        for question, pairs in QUESTIONS.items()
        for better, worse in pairs
    ]


def judge(differences: Sequence[float]) -> Verdict:
    """Apply the rule to differences that should be positive."""
    if not differences:
        return "not run"
    if is_clear(differences):
        return "holds" if differences[0] > 0 else "does not hold"
    return "cannot be told"


def is_clear(differences: Sequence[float]) -> bool:
    """Say whether differences agree in sign and lie far enough from zero for their spread."""
    if len(differences) < 2:
        return False
    agree = all(d > 0 for d in differences) or all(d < 0 for d in differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return agree and abs(statistics.fmean(differences)) > ERRORS * error
