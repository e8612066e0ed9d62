"""What layers do with their levels, read back from records: steps, activity, distributions."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from lbq.analysis import LayerLevels, LayerStep, LevelProfile, StepProfile
from lbq.train.document import Document
from lbq_paper.cells import Size
from lbq_paper.claims import TEXT
from lbq_paper.records import Record
from lbq_paper.results import NOT_RUN, Results

VARIANTS = {
    "V1": "ablation/V1/fixed",
    "V2": "ablation/V2/fixed",
    "V3": "ablation/V3/learnable",
    "LBQ": "ablation/LBQ/learnable",
}
"""The networks of the paper's Figure 4, and where they are found."""

_LEARNED = ("lbq", "v3", "ternary-learned")
_PPM = 10**6
"""Records round shares to so many parts."""


@dataclass(frozen=True)
class Behaviour:
    """One network's layers."""

    steps: StepProfile
    levels: LevelProfile


def behaviour_of(record: Record) -> Behaviour:
    """Read the layers of a record.

    A record keeps shares, not counts, so levels are counted in parts of 10^12: what comes out
    again are the shares that it holds.
    """
    layers, kind = record.body["layers"], record.body["recipe"]["model"]["neuron"]["kind"]
    return Behaviour(
        StepProfile(
            layers=tuple(_step(layer, kind in _LEARNED) for layer in layers if layer["step"])
        ),
        LevelProfile(
            num_images=record.body["counts"]["num_images"],
            layers=tuple(_levels(layer) for layer in layers),
        ),
    )


def behaviours(results: Results, size: Size) -> dict[str, Behaviour]:
    """Return the first seed of every variant that was run and did not diverge."""
    found = {name: results.at(place, size) for name, place in VARIANTS.items()}
    return {
        name: behaviour_of(records[0])
        for name, records in found.items()
        if records and "layers" in records[0].body
    }


def behaviour_lines(found: dict[str, Behaviour]) -> list[tuple[str, ...]]:
    """Set Section 5.5's numbers beside ours: heading, then a line for each."""
    columns = [f"{name}, {who}" for name in VARIANTS for who in ("paper", "ours")]
    lines: list[tuple[str, ...]] = [("what", *columns)]
    said = {claim.statement: claim.value for claim in TEXT}
    for what, (value, digits) in _MEASURES.items():
        line = [what]
        for name in VARIANTS:
            ours = value(found[name]) if name in found else None
            missing = "-" if name in found else NOT_RUN
            line.append(_printed(said.get(f"{what}, {name}")))
            line.append(missing if ours is None else f"{ours:.{digits}f}")
        lines.append(tuple(line))
    return lines


def _learned(value: Callable[[StepProfile], float]) -> Callable[[Behaviour], float | None]:
    return lambda found: value(found.steps) if found.steps.is_learned else None


_MEASURES: dict[str, tuple[Callable[[Behaviour], float | None], int]] = {
    "smallest learned step": (_learned(lambda steps: min(steps.means)), 3),
    "largest learned step": (_learned(lambda steps: max(steps.means)), 3),
    "coefficient of variation of the step": (_learned(lambda steps: steps.variation), 2),
    "active ratio": (lambda found: found.levels.active_ratio, 3),
    "normalised entropy": (lambda found: found.levels.entropy, 3),
    "P(k=1 | k>0)": (lambda found: _percent(found.levels.share(1)), 1),
}
"""What is measured, named as :mod:`lbq_paper.claims` names it, and its digits."""


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _printed(value: Decimal | None) -> str:
    return "-" if value is None else str(value)


def _step(layer: Document, is_learned: bool) -> LayerStep:
    steps = layer["step"]
    return LayerStep(
        layer=layer["layer"],
        mean=sum(steps) / len(steps),
        smallest=min(steps),
        largest=max(steps),
        is_learned=is_learned,
    )


def _levels(layer: Document) -> LayerLevels:
    active = round(_PPM * layer["active"])
    shares = [round(_PPM * share) for share in layer["levels"]] or [0] * layer["max_level"]
    counts = [active * share for share in shares]
    return LayerLevels(layer=layer["layer"], counts=(_PPM**2 - sum(counts), *counts))
