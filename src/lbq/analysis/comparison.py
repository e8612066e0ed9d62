"""Several runs on one page, side by side."""

import math
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from lbq.analysis import figures
from lbq.analysis.html_page import Cell, figure, notes, number, page, paragraph, section, table
from lbq.analysis.levels import LevelProfile
from lbq.analysis.run_summary import RunSummary
from lbq.analysis.sections import MILLION, curves_figure, outcome
from lbq.analysis.settings import settings
from lbq.analysis.steps import StepProfile
from lbq.config_io import differences


def render_comparison(runs: Sequence[RunSummary]) -> str:
    """Write one page that sets several runs side by side."""
    rows = [[name, *cells] for name, cells in _compared(runs)]
    behaviour = [(run.name, run.steps, run.levels) for run in runs if run.levels]
    said = [
        f"{run.name}: {note}"
        for run in runs
        for note in (*run.notes, *(run.costs.notes if run.costs else ()))
    ]
    if len({run.provenance.get("data") for run in runs}) > 1:
        said.insert(0, OTHER_DATA)
    parts = [
        section(
            "numbers",
            "Side by side",
            table("Every run in a column", ["", *(run.name for run in runs)], rows),
            paragraph(CONVENTIONS),
        ),
        section("curves", "Training", curves_figure(runs)),
    ]
    if behaviour:
        parts.append(section("behaviour", "Layers", _behaviour_figure(behaviour)))
    parts.append(section("recipe", "What differs in the recipes", *_recipe_differences(runs)))
    return page(
        f"{len(runs)} runs compared",
        ", ".join(run.name for run in runs),
        [notes(said), *parts],
        opening=[f"{run.name}: {outcome(run)}" for run in runs],
    )


OTHER_DATA = (
    "These runs were not trained and tested on the same data (see the row data): their accuracies "
    "and costs cannot be compared."
)


CONVENTIONS = (
    "Active ratio and entropy are means over layers, each counting once. Accumulations use exact "
    "fan-out and are summed over timesteps, per image. An energy ratio says as much about the two "
    "prices as about the two networks: read the paper's next to the one like for like."
)


def _recipe_differences(runs: Sequence[RunSummary]) -> list[str]:
    first = runs[0].recipe
    keys = sorted({key for run in runs for key, _, _ in differences(first, run.recipe)})
    if not keys:
        return [paragraph("Nothing: all runs have the same recipe.")]
    found = [dict(settings(run.recipe)) for run in runs]
    rows = [[key, *(each.get(key, "-") for each in found)] for key in keys]
    return [table("Settings that are not the same", ["setting", *(r.name for r in runs)], rows)]


def _behaviour_figure(behaviour: Sequence[tuple[str, StepProfile, LevelProfile]]) -> str:
    return figure(
        "plot-behaviour",
        figures.to_svg(figures.draw_behaviour(behaviour)),
        label="Learned steps, entropy against activity, and level distributions of every run",
        caption="(a) Learned step of every layer. (b) Normalised conditional burst entropy and "
        "active ratio: small markers are layers, large ones their mean. Then, for every run, which "
        "levels above zero its layers emit.",
    )


def _compared(runs: Sequence[RunSummary]) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the rows of the comparison: what, and its value for every run."""
    yield "data", [_data(run) for run in runs]
    lasts = [run.last_evaluation for run in runs]
    yield "test accuracy", [number(100 * x["accuracy"] if x else None, ".2f", " %") for x in lasts]
    yield "right answers", [f"{x['correct']:,} of {x['count']:,}" if x else "-" for x in lasts]
    yield "epoch", [str(x["epoch"]) if x else "-" for x in lasts]
    starts = [next((r for r in run.journal if "parameters" in r), None) for run in runs]
    yield "parameters", [number(x["parameters"] if x else None, ",d") for x in starts]
    yield "timesteps", [str(run.recipe["model"]["timesteps"]) for run in runs]
    yield "largest level", [str(run.levels.max_level) if run.levels else "-" for run in runs]
    steps = [run.steps for run in runs]
    yield "smallest step", [number(min(s.means, default=None), ".4f") for s in steps]
    yield "largest step", [number(max(s.means, default=None), ".4f") for s in steps]
    yield "variation of steps", [number(_real(s.variation), ".3f") for s in steps]
    levels = [run.levels for run in runs]
    yield "active ratio", [number(x and x.active_ratio, ".4f") for x in levels]
    yield "entropy", [number(x and x.entropy, ".4f") for x in levels]
    is_signed = any(x and x.is_signed for x in levels)
    share = "P(|k| = 1 | k≠0)" if is_signed else "P(1 | k>0)"
    yield share, [number(x and x.share(1), ".4f") for x in levels]
    costs = [run.costs for run in runs]
    yield "unary ACs, M", [number(x and x.unary_acs / MILLION) for x in costs]
    yield "bit-sparse ACs, M", [number(x and x.bit_sparse_acs / MILLION) for x in costs]
    yield "saved by bits", [number(x and 100 * x.saved, ".1f", " %") for x in costs]
    yield "MACs of the ANN, M", [number(x and x.ann_macs / MILLION) for x in costs]
    prices = [{price.name: price.ratio for price in run.prices} for run in runs]
    for name in dict.fromkeys(name for each in prices for name in each):
        yield f"energy, ANN / this: {name}", [number(each.get(name), ".2f") for each in prices]


def _real(value: float) -> float | None:
    return None if math.isnan(value) else value


def _data(run: RunSummary) -> str:
    """Name the data of a run by their source and the first digits of their SHA-256."""
    source = PurePath(str(run.recipe["data"]["source"])).name
    digest = run.provenance.get("data")
    return f"{source}, {digest[:8]}" if digest else source
