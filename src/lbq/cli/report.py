"""``lbq report RUN [RUN ...]``: what runs came to, as one page that needs nothing but itself."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from torch import Tensor

from lbq.analysis.facts import Costs, EdgeCost, Price, RunFacts
from lbq.analysis.levels import LevelCounts, LevelProfile
from lbq.analysis.membranes import LayerMembranes, MembraneCounts
from lbq.analysis.steps import read_steps
from lbq.cli.following import waiting
from lbq.cli.lower import check_out
from lbq.cli.reading import UsageError, check_count, read
from lbq.cli.samples import open_samples, pieces
from lbq.cost import EnergyModel, EnergyReport, Tally
from lbq.cost.table import CountTable
from lbq.data import Data
from lbq.durable import write_durably
from lbq.errors import CountError, LBQError, MissingExtraError
from lbq.models.resnet import SpikingResNet
from lbq.neurons.watch import named_neurons, watch_levels
from lbq.train.document import to_document
from lbq.train.journal import read_journal
from lbq.train.run_folder import RunFolder
from lbq.train.trained import load_trained

BATCH = 100
"""Samples that run at once."""

_UNMEASURED = "Levels, costs and energy were not measured"

EXAMPLES = {
    "lbq report runs/pocket": "one run, in report.html",
    "lbq report runs/pocket runs/wide --out both.html": "several, side by side",
    "lbq report runs/pocket --limit 0": "what the run's folder tells; no data needed",
}


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Write what runs came to as one HTML page: curves, steps, levels, costs, energy, recipe."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs; several are compared."""
    out: Path = Path("report.html")
    """File to write."""
    data: str | None = None
    """Where the data lie, if not where the recipe says."""
    cache: Path = Path("~/.cache/lbq")
    """Where data sets are kept once they are decoded."""
    limit: int = 1000
    """Test samples to watch levels and count costs on, spread over the test set; 0 for none."""
    step: int | None = None
    """Which checkpoint; the last one unless said."""
    json: bool = False
    """Print one JSON object instead of sentences."""
    debug: bool = False
    """Show tracebacks for mistakes too."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What was seen while a network answered test samples."""

    levels: LevelProfile
    membranes: tuple[LayerMembranes, ...]
    table: CountTable


def run(words: Sequence[str]) -> int:
    """Run the command with these words behind ``lbq report``."""
    arguments = read(ReportArguments, words, command="lbq report", examples=EXAMPLES)
    check_out(arguments.out)
    if not arguments.runs:
        raise UsageError("name the folder of a run: lbq report RUN [RUN ...]")
    check_count("--limit", arguments.limit)
    if arguments.step is not None and len(arguments.runs) > 1:
        raise UsageError("--step is for one run; runs are compared at their last checkpoints")
    from lbq.analysis.report import render  # noqa: PLC0415 -- an extra

    facts = [
        gather(out, name=name, arguments=arguments)
        for out, name in zip(arguments.runs, run_names(arguments.runs), strict=True)
    ]
    with waiting(f"drawing {arguments.out}"):
        write_durably(arguments.out, render(facts).encode())
    console = Console(soft_wrap=True)
    notes = [
        f"{each.name}: {note}" if len(facts) > 1 else note for each in facts for note in each.notes
    ]
    size = arguments.out.stat().st_size
    lines = [*notes, f"{arguments.out}: {size:,} bytes"]
    if arguments.json:
        lines = [json.dumps({"file": str(arguments.out), "bytes": size, "notes": notes})]
    for line in lines:
        console.print(line, markup=False, highlight=False)
    return 0


def gather(out: Path, *, name: str, arguments: ReportArguments) -> RunFacts:
    """Read a run's folder, and measure its network if its data can be opened."""
    model, recipe, step = load_trained(out, step=arguments.step)
    folder = RunFolder(out)
    facts = folder.checkpoints.load(step).facts
    notes: list[str] = []
    measured = None
    if not any(True for _ in named_neurons(model)):
        notes.append("This network is an ANN: it has no levels, and no accumulations to count.")
    elif not arguments.limit:
        notes.append(f"{_UNMEASURED}: --limit 0.")
    else:
        try:
            data = open_samples(recipe, source=arguments.data, cache=arguments.cache)
        except LBQError as error:
            if arguments.data is not None:
                raise
            advice = "" if isinstance(error, MissingExtraError) else " Pass --data."
            notes.append(f"{_UNMEASURED}: {error}.{advice}")
        else:
            try:
                measured = measure(model, data, limit=arguments.limit)
            except CountError as error:
                notes.append(f"{_UNMEASURED}: {error}.")
    energy = EnergyModel().price(measured.table) if measured else None
    return RunFacts(
        name=name,
        step=step,
        journal=tuple(read_journal(folder.journal)),
        recipe=to_document(recipe),
        provenance={key: facts.get(key) for key in ("commit", "code", "data", "versions")},
        steps=read_steps(model),
        levels=measured.levels if measured else None,
        membranes=measured.membranes if measured else (),
        costs=costs_of(measured.table) if measured else None,
        prices=tuple(prices_of(energy)) if energy else (),
        prices_source=energy.technology.source if energy else "",
        notes=tuple(notes),
    )


@torch.no_grad()
def measure(model: SpikingResNet, data: Data, *, limit: int) -> Measured:
    """Watch a network, in float32, while it answers test samples."""
    levels = LevelCounts({layer: neuron.max_level for layer, neuron in named_neurons(model)})
    membranes, tally = MembraneCounts(model), None
    for piece in pieces(data, limit=limit, batch=min(BATCH, limit)):
        if tally is None:
            tally = Tally(model, _first(piece.real))
        with watch_levels(model, levels), watch_levels(model, tally), membranes.watching():
            model(piece.real)
    assert tally is not None  # a test set has samples
    return Measured(levels=levels.profile(), membranes=membranes.layers(), table=tally.table())


def costs_of(table: CountTable) -> Costs:
    """Turn a table of counts into numbers per image."""
    images, total = table.num_images, table.total()
    return Costs(
        num_images=images,
        timesteps=table.timesteps,
        edges=tuple(
            EdgeCost(
                source=source,
                target=target,
                unary_acs=counts.unary_acs / images,
                bit_sparse_acs=counts.bit_sparse_acs / images,
            )
            for (source, target), counts in table.by_edge().items()
        ),
        unary_acs=total.unary_acs / images,
        bit_sparse_acs=total.bit_sparse_acs / images,
        explicit_shifts=total.explicit_shifts / images,
        plane_formations=table.plane_formations() / images,
        fp_macs=table.fp_macs() / images,
        identity_acs=table.identities().unary_acs / images,
        ann_macs=table.ann_macs(),
        notes=table.notes,
    )


def prices_of(energy: EnergyReport) -> Iterator[Price]:
    """Yield the rows of an energy report."""
    groups = (("arithmetic", energy.arithmetic), ("memory traffic", energy.memory))
    for group, rows in groups:
        for row in rows:
            yield Price(
                group=group,
                name=row.name,
                convention=row.convention,
                ann_mj=row.ann_mj,
                burst_mj=row.burst_mj,
            )


def _first(samples: Tensor) -> Tensor:
    """Take one sample of a batch of images, or of frames whose time is first."""
    return samples[:, :1] if samples.dim() == 5 else samples[:1]


def run_names(runs: Sequence[Path]) -> list[str]:
    """Name runs by their folders; where these are called the same, by what differs in the paths."""
    short = [out.name or out.resolve().name for out in runs]
    if len(set(short)) == len(short):
        return short
    paths = [out.absolute().parts for out in runs]
    while len({parts[0] for parts in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [parts[1:] for parts in paths]
    while len({parts[-1] for parts in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [parts[:-1] for parts in paths]
    return ["/".join(parts) for parts in paths]
