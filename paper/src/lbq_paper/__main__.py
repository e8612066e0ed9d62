"""``python -m lbq_paper``: run the paper's experiments, print its tables, draw its figures."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lbq.errors import LBQError, ParameterError
from lbq.train import RunOptions
from lbq_paper.charts import save_charts
from lbq_paper.experiments import (
    Experiment,
    Size,
    Table,
    chosen,
    full_size_experiments,
    pocket_experiments,
)
from lbq_paper.layers import behaviour_lines, save_figure
from lbq_paper.results import Results, open_results
from lbq_paper.runner import RunnerOptions, run_experiments
from lbq_paper.tables import aligned, results_page, table_text

_USAGE = """usage:
  python -m lbq_paper list [--size pocket] [--table 5] [--group a]    experiments and their state
  python -m lbq_paper run [IDS] [--table 5] [--group a b] --data PATH  train, measure, record
  python -m lbq_paper table N                                         2 to 7, or open
  python -m lbq_paper figure N [--out FOLDER]                         3 or 4, or results: charts
  python -m lbq_paper results > docs/results.md                       all of it on one page"""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which experiments."""

    ids: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Beginnings of ids; all experiments if none are given."""
    size: Size = "pocket"
    """The paper's networks, or small ones."""
    table: Table | None = None
    """Those with an entry in this table."""
    group: tuple[str, ...] = ()
    """Small experiments by question: a ablation, b levels, c timesteps, d open points, e others."""
    array_index: int = 0
    """Which part to run, from 0; for job arrays."""
    array_size: int = 1
    """Number of parts."""

    def experiments(self) -> list[Experiment]:
        """Return the chosen experiments in the order in which they are run."""
        every = pocket_experiments() if self.size == "pocket" else full_size_experiments()
        if not 0 <= self.array_index < self.array_size:
            raise ParameterError(
                f"array_index must lie in 0..{self.array_size - 1}, got {self.array_index}"
            )
        found = chosen(every, ids=self.ids, table=self.table, groups=self.group)
        if not found:
            raise ParameterError("no experiment is chosen by these options; `list` shows them all")
        return found[self.array_index :: self.array_size]


@dataclass(frozen=True, kw_only=True)
class ListArguments:
    """List experiments in the order in which they are run."""

    choice: Annotated[Choice, tyro.conf.arg(name="")]
    """Which experiments."""
    results: Path = Path("results")
    """Folder of the records."""


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """Run experiments. Repeating the command skips recorded ones and resumes others."""

    choice: Annotated[Choice, tyro.conf.arg(name="")]
    """Which experiments."""
    data: Path | None = None
    """The data set, or the folder that holds it under its name; from the hub by default."""
    out: Path | None = None
    """Folder of the records; results/<size> by default."""
    run_dir: Path = Path("runs/experiments")
    """Folder of the runs. Processes that share it share the work."""
    limit_minutes: float | None = None
    """Save and stop after this many minutes."""
    devices: int = 1
    """GPUs of this machine for each experiment, or processes on CPUs."""
    device: str = "auto"
    """ "auto" is a GPU where there is one; or cpu, cuda, cuda:1."""
    workers: int = 0
    """Processes that prepare batches, per device."""
    threads: int | None = None
    """Threads on CPUs; None leaves it to torch."""
    cache: Path = Path("~/.cache/lbq")
    """Where data sets are kept once they are decoded."""
    save_every_s: float = 60.0
    """Seconds between two checkpoints: the most that a kill may cost."""
    keep_weights: bool = False
    """Put the weights beside the records."""
    accept_older: bool = False
    """Do not repeat experiments that were recorded with other code."""


@dataclass(frozen=True, kw_only=True)
class TableArguments:
    """Print a table: the paper's numbers, ours at full size and at pocket size."""

    table: Annotated[Table, tyro.conf.Positional]
    """2 to 7, or open."""
    results: Path = Path("results")
    """Folder of the records."""


@dataclass(frozen=True, kw_only=True)
class FigureArguments:
    """Draw a figure of the paper; for figure 4, also print Section 5.5's numbers beside ours."""

    figure: Annotated[Literal["3", "4", "results"], tyro.conf.Positional]
    """3: the surrogates. 4: steps, entropies and levels of layers, from records. results: the
    charts of docs/results.md, as SVG."""
    out: Path = Path("figures")
    """Folder to write into."""
    size: Size = "pocket"
    """Size of the networks."""
    results: Path = Path("results")
    """Folder of the records."""


@dataclass(frozen=True, kw_only=True)
class ResultsArguments:
    """Print all measurements as one page of Markdown."""

    results: Path = Path("results")
    """Folder of the records."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    commands: dict[str, Callable[[Sequence[str]], int]] = {
        "list": _list,
        "run": _run,
        "table": _table,
        "figure": _figure,
        "results": _results,
    }
    if not argv or argv[0] not in commands:
        is_help = bool(argv) and argv[0] in ("-h", "--help")
        print(_USAGE, file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 2
    try:
        return commands[argv[0]](argv[1:])
    except LBQError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _list(argv: Sequence[str]) -> int:
    arguments = tyro.cli(ListArguments, prog="lbq_paper list", args=list(argv))
    experiments = arguments.choice.experiments()
    records = _open(arguments.results).records[arguments.choice.size]
    num_done = 0
    for experiment in experiments:
        found = records.get(experiment.key, [])
        is_done = any(record.is_current for record in found)
        num_done += is_done
        state = "recorded" if is_done else "recorded by other code" if found else "not run"
        groups = f"group {' '.join(experiment.groups)}" if experiment.groups else ""
        tables = f"tables {' '.join(experiment.tables)}"
        head = f"{experiment.id}  seed {experiment.seed}  {experiment.method:26}"
        _print(f"{head}{groups:15}{tables:21}{state}")
    _print(f"{len(experiments)} experiments, {num_done} recorded")
    return 0


def _run(argv: Sequence[str]) -> int:
    arguments = tyro.cli(RunArguments, prog="lbq_paper run", args=list(argv))
    options = RunOptions(
        cache=arguments.cache,
        device=arguments.device,
        workers=arguments.workers,
        threads=arguments.threads,
        save_every_s=arguments.save_every_s,
    )
    work = RunnerOptions(
        out=arguments.out or Path("results") / arguments.choice.size,
        folder=arguments.run_dir,
        data=arguments.data,
        devices=arguments.devices,
        keep_weights=arguments.keep_weights,
        accept_older=arguments.accept_older,
        options=options,
    )
    experiments = arguments.choice.experiments()
    return run_experiments(experiments, work, log=_print, limit_minutes=arguments.limit_minutes)


def _table(argv: Sequence[str]) -> int:
    arguments = tyro.cli(TableArguments, prog="lbq_paper table", args=list(argv))
    _print(table_text(arguments.table, _open(arguments.results)))
    return 0


def _figure(argv: Sequence[str]) -> int:
    arguments = tyro.cli(FigureArguments, prog="lbq_paper figure", args=list(argv))
    if arguments.figure == "results":
        for path in save_charts(arguments.out, _open(arguments.results)):
            _print(str(path))
        return 0
    results = _open(arguments.results) if arguments.figure == "4" else None
    paths = save_figure(arguments.figure, arguments.out, results, arguments.size)
    if results:
        _print("\n".join(aligned(behaviour_lines(results, arguments.size))))
    for path in paths:
        _print(str(path))
    return 0


def _results(argv: Sequence[str]) -> int:
    arguments = tyro.cli(ResultsArguments, prog="lbq_paper results", args=list(argv))
    _print(results_page(_open(arguments.results)).removesuffix("\n"))
    return 0


def _open(folder: Path) -> Results:
    """Read the records; an empty folder is allowed, a missing one is an error."""
    if not folder.is_dir():
        raise ParameterError(
            f"there is no folder {folder}; pass --results, or run it in a checkout"
        )
    return open_results(folder)


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
