"""Decide by a rule which orderings of the paper hold here."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from lbq_paper.claims import TEXT, printed_entries
from lbq_paper.experiments import Size
from lbq_paper.layers import active_ratio, entropy, step_variation
from lbq_paper.results import Results, Spread, Value, accuracy, reduction

Conclusion = Literal["holds", "does not hold", "inconclusive", "not run"]

LEAST_FREEDOM = 4
"""Degrees of freedom below which a spread says nothing."""
_Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A statement of the paper about several pairs of rows: the first has more of something."""

    words: str
    pairs: tuple[tuple[str, str], ...]
    measure: str = "accuracy, %"
    """What is compared."""
    value: Value = accuracy
    """Reads it off a record."""
    entry: Callable[[str], str] = "ablation/{}".format
    """The entry of a row's experiments."""
    printed: Callable[[str], str] = "ablation/{}".format
    """The address or the words under which the paper prints the row's number."""
    digits: int = 2


def _said(measure: str) -> Callable[[str], str]:
    """Name the sentence of Section 5.5 about a row of the ablation."""
    return lambda row: f"{measure}, {row.partition('/')[0]}"


_LBQ, _V1, _V2, _V3 = "LBQ/learnable", "V1/fixed", "V2/fixed", "V3/learnable"
_BINARY, _TERNARY, _LEARNED = "Binary LIF", "Ternary Spike/fixed", "Ternary Spike/learnable"
_ENTROPY, _ACTIVE = "normalised entropy", "active ratio"
_VARIATION = "coefficient of variation of the step"

QUESTIONS = (
    Question(
        words="bursts beat binary and ternary spikes",
        pairs=tuple(
            (burst, other)
            for burst in (_V1, _V2, _V3, _LBQ)
            for other in (_BINARY, _TERNARY, _LEARNED)
        ),
    ),
    Question(
        words="a learned step beats a fixed one",
        pairs=((_V3, _V1), (_LBQ, _V2), (_LEARNED, _TERNARY)),
    ),
    Question(
        words="ReLSG-ET beats Box-ET",
        pairs=((_V2, _V1), (_LBQ, _V3)),
    ),
    Question(
        words="ternary spikes beat binary ones",
        pairs=((_TERNARY, _BINARY), (_LEARNED, _BINARY)),
    ),
    Question(words="the ANN stays ahead", pairs=(("ANN", _LBQ),)),
    Question(
        words="more timesteps help, and LBQ beats LM-HT",
        pairs=(("LBQ/T=2", "LBQ/T=1"), ("LBQ/T=4", "LBQ/T=2"), ("LBQ/T=2", "LM-HT (L=2)/T=2")),
        entry="CIFAR-10/ResNet-20/{}".format,
        printed="CIFAR-10/ResNet-20/{}".format,
    ),
    Question(
        words="five levels beat two",
        pairs=(("LBQ (5)", "LBQ (2)"),),
        entry="energy/{}".format,
        printed="energy/{}/accuracy".format,
    ),
    Question(
        words="bits save more with more levels",
        measure="saved, %",
        value=reduction,
        pairs=(("LBQ (5)", "LBQ (2)"), ("LBQ (10)", "LBQ (5)"), ("LBQ (20)", "LBQ (10)")),
        entry="accumulation/{}".format,
        printed="accumulation/{}/reduction".format,
    ),
    Question(
        words="learned steps vary more with ReLSG-ET",
        measure=_VARIATION,
        value=step_variation,
        pairs=((_LBQ, _V3),),
        printed=_said(_VARIATION),
        digits=3,
    ),
    Question(
        words="levels are more even with Box-ET, and with learned steps",
        measure=_ENTROPY,
        value=entropy,
        pairs=((_V1, _V2), (_V3, _LBQ), (_V3, _V1), (_LBQ, _V2)),
        printed=_said(_ENTROPY),
        digits=3,
    ),
    Question(
        words="more neurons are active with Box-ET, and with learned steps",
        measure=_ACTIVE,
        value=active_ratio,
        pairs=((_V1, _V2), (_V3, _LBQ), (_V3, _V1), (_LBQ, _V2)),
        printed=_said(_ACTIVE),
        digits=3,
    ),
)
"""The statements of the tables and of Section 5.5, the row with more first."""


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """Two rows, the one with more of it in the paper first."""

    question: Question
    more: str
    less: str
    printed: Decimal
    """How much more, in the paper."""
    differences: tuple[float, ...]
    """The same here, seed by seed."""
    spread: Spread

    @property
    def conclusion(self) -> Conclusion:
        """Return whether it holds here."""
        return conclude(self.differences, self.spread)


def orderings(results: Results, size: Size) -> list[Ordering]:
    """Compare every pair of rows from which the paper draws a conclusion."""
    printed = printed_entries() | {claim.statement: claim.value for claim in TEXT}
    return [
        Ordering(
            question=question,
            more=more,
            less=less,
            printed=printed[question.printed(more)] - printed[question.printed(less)],
            differences=tuple(
                results.differences(
                    question.entry(more), question.entry(less), size, question.value
                )
            ),
            spread=results.spread(size, question.value),
        )
        for question in QUESTIONS
        for more, less in question.pairs
    ]


def rule(spread: Spread) -> str:
    """Describe how a difference is judged, with the spread of accuracies as the example."""
    found = (
        f"of accuracies {spread.deviation:.2f} points, {spread.freedom} degrees of freedom"
        if spread.freedom
        else "not known yet"
    )
    return (
        "The criterion uses the standard deviation s between seeds, pooled over all small networks "
        f"with several seeds ({found}). The difference of two means over n seeds has the standard "
        "error s sqrt(2 / n). If it exceeds the 97.5 % quantile of Student's t times this error, "
        "the ordering *holds*, or *does not hold* if the sign is opposite; otherwise it is "
        "*inconclusive*. Of twenty pairs without a difference, one is expected to pass."
    )


def conclude(differences: Sequence[float], spread: Spread) -> Conclusion:
    """Apply the rule to differences that should be positive."""
    if not differences:
        return "not run"
    mean, error = statistics.fmean(differences), math.sqrt(2 / len(differences)) * spread.deviation
    if spread.freedom < LEAST_FREEDOM or abs(mean) <= student_quantile(spread.freedom) * error:
        return "inconclusive"
    return "holds" if mean > 0 else "does not hold"


def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to 1 % from 4 degrees of freedom on.

    The expansion of Cornish and Fisher (Abramowitz and Stegun, 26.7.5); scipy would be the largest
    package of this project for these four lines.
    """
    z, inverse = _Z, 1 / freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + inverse * (first + inverse * (second + inverse * third))
