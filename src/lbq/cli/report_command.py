"""``lbq report RUN [RUN ...]``: the results of runs as one self-contained HTML page."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import torch
import tyro
from torch import nn

from lbq.analysis.attention_maps import AttentionMaps, read_attention
from lbq.analysis.layer_stats import (
    LayerMembranes,
    LevelCounts,
    LevelProfile,
    MembraneCounts,
    read_steps,
)
from lbq.analysis.run_summary import RunSummary
from lbq.atomic_files import atomic_write
from lbq.cli.args import UsageError, check_count, read
from lbq.cli.eval_command import SUFFIXES
from lbq.cli.lower_command import check_out
from lbq.cli.progress import show_status
from lbq.cli.samples import load_task, open_samples, sample_batches
from lbq.cli.terminal import Console
from lbq.config_io import to_document
from lbq.cost import EnergyModel, EnergyReport, OpCounter
from lbq.cost.count_table import CountTable
from lbq.data import Data
from lbq.data.user_data import UserData
from lbq.errors import CountError, LBQError, MissingExtraError, ParameterError
from lbq.neurons.watch import named_neurons, watch_levels
from lbq.pretrained import is_pretrained, load_pretrained, pretrained_recipe, pretrained_record
from lbq.train.metrics import read_metrics_log
from lbq.train.recipe import Recipe
from lbq.train.run_folder import RunFolder, load_run
from lbq.train.task import Task

BATCH = 100
"""Samples that run at once."""

_UNMEASURED = "Levels, costs and energy were not measured"

EXAMPLES = {
    "lbq report runs/pocket": "one run, in report.html",
    "lbq report runs/pocket runs/wide --out both.html": "several, side by side",
    "lbq report runs/pocket --limit 0": "what the run's folder holds; no data needed",
    "lbq report pocket-cifar10 --data uoft-cs/cifar10": "the network that comes with the library",
    "lbq report runs/mine --model my_recipe.py": "a run of your own network and data",
}


@dataclass(frozen=True, kw_only=True)
class ReportArguments:
    """Write the results of runs as one HTML page: curves, steps, levels, costs, energy, recipe."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs, or pocket-cifar10; several are compared."""
    out: Path = Path("report.html")
    """File to write."""
    model: Path | None = None
    """Python file with recipe(), for runs without a recipe; it gives model and data."""
    data: str | None = None
    """Data source of all these runs, if not that of their recipes."""
    cache: Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    limit: int = 1000
    """Test samples to watch levels and count costs on, spread over the test set; 0 for none."""
    step: int | None = None
    """Which checkpoint, the last one by default."""
    json: bool = False
    """Print one JSON object instead of text."""
    debug: bool = False
    """Show tracebacks of errors."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a network on test samples."""

    levels: LevelProfile
    membranes: tuple[LayerMembranes, ...]
    table: CountTable
    attention: AttentionMaps | None


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq report``."""
    arguments = read(ReportArguments, words, command="lbq report", examples=EXAMPLES)
    check_out(arguments.out)
    if not arguments.runs:
        raise UsageError("name the folder of a run: lbq report RUN [RUN ...]")
    for path in arguments.runs:
        check_is_no_file(path)
    check_count("--limit", arguments.limit)
    if arguments.step is not None and len(arguments.runs) > 1:
        raise UsageError("--step is for one run; runs are compared at their last checkpoints")
    from lbq.analysis.report import render  # noqa: PLC0415 -- an extra

    facts = [
        gather(out, name=name, arguments=arguments)
        for out, name in zip(arguments.runs, run_names(arguments.runs), strict=True)
    ]
    with show_status(f"drawing {arguments.out}"):
        atomic_write(arguments.out, render(facts).encode())
    console = Console(soft_wrap=True)
    notes = [
        f"{each.name}: {note}" if len(facts) > 1 else note for each in facts for note in each.notes
    ]
    size = arguments.out.stat().st_size
    lines = [*notes, f"{arguments.out}: {size:,} bytes"]
    if arguments.json:
        lines = [json.dumps({"file": str(arguments.out), "bytes": size, "notes": notes})]
    for line in lines:
        console.print_text(line)
    return 0


def check_is_no_file(path: Path) -> None:
    """Raise for a lowered or exported network: it holds nothing that a report shows."""
    if path.suffix in SUFFIXES and not path.is_dir():
        raise ParameterError(
            f"{path} names a lowered network, which has no training curves, steps or "
            f"membranes; a report needs the folder of the run: `lbq report runs/NAME`. For the "
            f"file there are `lbq eval {path}` (accuracy) and, in integers, `lbq bench {path}` "
            f"(active levels and time of every layer); lbq.OpCounter counts your own network "
            f"before it is lowered"
        )


def gather(out: Path, *, name: str, arguments: ReportArguments) -> RunSummary:
    """Read a run's folder, and measure its network if its data can be opened."""
    if is_pretrained(out):
        return gather_pretrained(str(out), arguments=arguments)
    folder, task = RunFolder(out), None
    if arguments.model is not None and not folder.has_recipe:
        task = load_task(arguments.model)
    run = load_run(out, None if task is None else task.model, step=arguments.step)
    source = run.recipe if task is None else task
    found = measure_if_possible(run.model, source, name, run.metadata.get("data"), arguments)
    return RunSummary(
        name=name,
        step=run.step,
        metrics_log=tuple(read_metrics_log(folder.metrics_log)),
        recipe=to_document(run.config),
        provenance={key: run.metadata.get(key) for key in ("commit", "code", "data", "versions")},
        steps=read_steps(run.model),
        **found,
    )


def gather_pretrained(name: str, *, arguments: ReportArguments) -> RunSummary:
    """Read the record of a network that comes with the library, and measure the network."""
    if arguments.step is not None:
        raise UsageError(f"{name} comes with the library and has no checkpoints: no --step")
    model, record = load_pretrained(name), pretrained_record(name)
    count = record["count"]
    last = {
        "event": "finish",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "device": record["machine"],
    }
    evaluations = (
        {
            "event": "evaluation",
            **line,
            "correct": round(line["accuracy"] * count),
            "count": count,
            "best_on_test_set": record["best_on_test_set"],
        }
        for line in record["evaluations"]
    )
    training = ({"event": "train", **line} for line in record["curve"])
    provenance = {key: record[key] for key in ("commit", "versions", "machine", "minutes")}
    recipe = pretrained_recipe(name)
    found = measure_if_possible(model, recipe, name, record["data_sha256"], arguments)
    return RunSummary(
        name=name,
        step=None,
        metrics_log=(*training, *evaluations, last),
        recipe=to_document(recipe),
        provenance=provenance | {"data": record["data_sha256"]},
        steps=read_steps(model),
        **found,
    )


class Findings(TypedDict):
    """The fields of a run's facts that come from test samples."""

    levels: LevelProfile | None
    membranes: tuple[LayerMembranes, ...]
    counts: CountTable | None
    energy: EnergyReport | None
    attention: AttentionMaps | None
    notes: tuple[str, ...]


def measure_if_possible(
    model: nn.Module,
    source: Recipe | Task,
    name: str,
    digest: str | None,
    arguments: ReportArguments,
) -> Findings:
    """Measure a network on the data that it was trained and tested on, or note why not.

    Args:
        model: the network.
        source: the recipe that trained it, or the result of a user's recipe file.
        name: name of the run.
        digest: digest of the run's data; other data raise an error, as the accuracy is not theirs.
        arguments: arguments of the command.
    """
    notes: list[str] = []
    measured = energy = None
    if not any(True for _ in named_neurons(model)):
        notes.append("This network is an ANN: it has no levels, and no accumulations to count.")
    elif not arguments.limit:
        notes.append(f"{_UNMEASURED}: --limit 0.")
    else:
        try:
            data = _open(source, arguments)
            check_same_data(name, data, digest)
        except LBQError as error:
            if arguments.data is not None:
                raise
            has_advice = isinstance(error, MissingExtraError) or isinstance(source, Task)
            advice = "" if has_advice else " Pass --data."
            notes.append(f"{_UNMEASURED}: {error}.{advice}")
        else:
            try:
                measured = measure(model, data, limit=arguments.limit)
                energy = EnergyModel().estimate(measured.table)
            except CountError as error:
                measured = energy = None
                notes.append(f"{_UNMEASURED}: {error}.")
    return Findings(
        levels=measured.levels if measured else None,
        membranes=measured.membranes if measured else (),
        counts=measured.table if measured else None,
        energy=energy,
        attention=measured.attention if measured else None,
        notes=tuple(notes),
    )


def _open(source: Recipe | Task, arguments: ReportArguments) -> Data | UserData:
    if isinstance(source, Recipe):
        return open_samples(source, source=arguments.data, cache=arguments.cache)
    if source.data.num_test == 0:
        raise ParameterError(f"recipe() in {arguments.model} returns no eval_data")
    return source.data


def check_same_data(name: str, data: Data | UserData, digest: str | None) -> None:
    """Raise unless the data are the run's: other counts would stand beside its accuracy."""
    if data.digest != digest:
        what, advice = "recipe()", "return the data that the run was trained and tested on"
        if isinstance(data, Data):
            what, advice = data.config.source, "without --data every run opens its own data"
        raise ParameterError(
            f"{what} does not hold the data of {name}: their SHA-256 begins with "
            f"{data.digest[:12]}, that of the run's data with {str(digest)[:12]}; {advice}, and "
            f"`lbq eval` evaluates on other data"
        )


@torch.no_grad()
def measure(model: nn.Module, data: Data | UserData, *, limit: int) -> Measured:
    """Watch a network, in float32, while it answers test samples."""
    levels = LevelCounts({layer: neuron.max_level for layer, neuron in named_neurons(model)})
    membranes, counter, attention = MembraneCounts(model), None, None
    for samples in sample_batches(data, limit=limit, batch=min(BATCH, limit)):
        if counter is None:
            one, axis = samples.real.narrow(data.batch_axis, 0, 1), data.batch_axis
            counter = OpCounter(model, one, batch_axis=axis)
            attention = read_attention(model, samples.real)
        with watch_levels(model, levels), watch_levels(model, counter), membranes.watching():
            model(samples.real)
    assert counter is not None  # a test set has samples
    return Measured(
        levels=levels.profile(),
        membranes=membranes.layers(),
        table=counter.table(),
        attention=attention,
    )


def run_names(runs: Sequence[Path]) -> list[str]:
    """Name runs by their folders, or by the differing part of the paths if names are equal."""
    short = [out.name or out.resolve().name for out in runs]
    if len(set(short)) == len(short):
        return short
    paths = [out.absolute().parts for out in runs]
    while len({parts[0] for parts in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [parts[1:] for parts in paths]
    while len({parts[-1] for parts in paths}) == 1 and min(map(len, paths)) > 1:
        paths = [parts[:-1] for parts in paths]
    return ["/".join(parts) for parts in paths]
