"""Steps, activity and level distributions of layers, read from records; Figures 3 and 4."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lbq.analysis import LayerLevels, LayerStep, LevelProfile, StepProfile
from lbq.config_io import Document
from lbq.errors import ParameterError
from lbq_paper.claims import TEXT
from lbq_paper.experiments import Size
from lbq_paper.records import Record
from lbq_paper.results import NOTHING, SIZES, Results, Value

VARIANTS = {
    "V1": "ablation/V1/fixed",
    "V2": "ablation/V2/fixed",
    "V3": "ablation/V3/learnable",
    "LBQ": "ablation/LBQ/learnable",
}
"""The networks of the paper's Figure 4, and their entries."""

_LEARNED = ("lbq", "v3", "ternary-learned")
_PPM = 10**6
"""Records round shares to parts per million."""


@dataclass(frozen=True)
class Behaviour:
    """One network's layers."""

    steps: StepProfile
    levels: LevelProfile


def behaviour_of(record: Record) -> Behaviour:
    """Read the layers of a record.

    A record keeps shares, not counts, so levels are counted in parts of 10^12; the shares of these
    counts are those of the record.
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


def first_behaviours(results: Results, size: Size) -> dict[str, Behaviour]:
    """Return the first seed of every variant that was run and did not diverge."""
    return {
        name: behaviour_of(whole[0])
        for name, entry in VARIANTS.items()
        if (whole := [record for record in results.at(entry, size) if not record.is_diverged])
    }


def behaviour_lines(results: Results, size: Size) -> list[tuple[str, ...]]:
    """Return rows that compare Section 5.5's numbers with ours, over all seeds."""
    lines: list[tuple[str, ...]] = [("what", "network", "paper", SIZES[size])]
    said = {claim.statement: claim.value for claim in TEXT}
    for what, (value, digits) in _MEASURES.items():
        for name, entry in VARIANTS.items():
            ours = results.shown(entry, size, value, digits=digits)
            printed = said.get(f"{what}, {name}")
            if printed is not None or ours != NOTHING:
                lines.append((what, name, NOTHING if printed is None else str(printed), ours))
    return lines


def step_variation(record: Record) -> float | None:
    """Coefficient of variation of the learned steps over layers."""
    return _of_steps(record, lambda steps: steps.variation)


def active_ratio(record: Record) -> float | None:
    """Share of active neurons, each layer counting once; None without neurons."""
    levels = None if record.is_diverged else behaviour_of(record).levels
    return levels.active_ratio if levels is not None and levels.layers else None


def entropy(record: Record) -> float | None:
    """Entropy of the levels of active neurons, as a share of the largest one."""
    return None if record.is_diverged else behaviour_of(record).levels.entropy


def _ones(record: Record) -> float | None:
    """Percent of ones among the levels of active neurons."""
    share = None if record.is_diverged else behaviour_of(record).levels.share(1)
    return None if share is None else 100 * share


def _of_steps(record: Record, value: Callable[[StepProfile], float]) -> float | None:
    steps = None if record.is_diverged else behaviour_of(record).steps
    return None if steps is None or not steps.is_learned else value(steps)


_MEASURES: dict[str, tuple[Value, int]] = {
    "smallest learned step": (lambda record: _of_steps(record, lambda s: min(s.means)), 3),
    "largest learned step": (lambda record: _of_steps(record, lambda s: max(s.means)), 3),
    "coefficient of variation of the step": (step_variation, 3),
    "active ratio": (active_ratio, 3),
    "normalised entropy": (entropy, 3),
    "P(k=1 | k>0)": (_ones, 1),
}
"""The measurements by their names in :mod:`lbq_paper.claims`, and their digits."""


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


def save_figure(
    number: Literal["3", "4"], out: Path, results: Results | None, size: Size
) -> list[Path]:
    """Write a figure of the paper as SVG, PDF and PNG.

    Figure 3 shows the surrogates. Figure 4 shows the layers of those of V1, V2, V3 and LBQ that
    were run.
    """
    from lbq.analysis import figures  # noqa: PLC0415 -- an extra

    if number == "3":
        drawn, name = figures.draw_surrogates(), "figure3"
    else:
        assert results is not None
        found = first_behaviours(results, size)
        if not found:
            raise ParameterError(
                f"figure 4 shows {', '.join(VARIANTS)}, and none was run at {size} size; "
                f"python -m lbq_paper run --size {size} --table 5 --data DATA"
            )
        drawn = figures.draw_behaviour([(name, b.steps, b.levels) for name, b in found.items()])
        name = f"figure4-{size}"
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}{suffix}" for suffix in (".svg", ".pdf", ".png")]
    for path in paths:
        figures.save_figure(drawn, path)
    return paths
