"""Run experiments: each is trained, measured and recorded once, over any number of restarts."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Literal

from lbq.data import SYNTHETIC
from lbq.errors import LBQError, NonFiniteError, RunError
from lbq.train import Recipe, RunOptions, train, write_recipe
from lbq.train.allocator import keep_freed_memory
from lbq.train.distributed import choose_device, is_inside_launcher
from lbq.train.metrics import Callback, Record
from lbq.train.run_folder import RunFolder
from lbq.train.supervisor import Supervisor, catch_stop_signals
from lbq_paper.experiments import Experiment
from lbq_paper.measure import measure_run
from lbq_paper.records import read_records, record_path, write_failure, write_record

Ending = Literal["recorded", "already recorded", "locked by another process", "stopped"]

Log = Callable[[str], None]

_STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a run that was asked to stop and is saved."""
_LOG_EVERY = 200
"""Steps between two lines about a run."""


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """Where and how experiments run; nothing here changes a number."""

    out: Path
    """Folder of the records."""
    folder: Path
    """Folder of the runs; processes that share it share the work."""
    data: Path | None = None
    """The data set, or the folder that holds it under its name; the hub if None."""
    devices: int = 1
    """GPUs of this machine, or processes on CPUs."""
    keep_weights: bool = False
    """Put the weights beside the record."""
    accept_older: bool = False
    """Leave an experiment alone if it was recorded with other code."""
    options: RunOptions = field(default_factory=RunOptions)
    """Options of training."""


def run_experiments(
    experiments: Sequence[Experiment],
    work: RunnerOptions,
    *,
    log: Log,
    limit_minutes: float | None = None,
) -> int:
    """Run experiments in order; return 0, 1 if one failed, or 128 + signal if stopped."""
    if is_inside_launcher():
        raise RunError(
            "lbq_paper was started by a launcher, in several processes that would take different "
            "experiments; start it once and pass --devices N: it launches the workers itself"
        )
    num_failed = 0
    with catch_stop_signals() as stop, _alarm(limit_minutes):
        for index, experiment in enumerate(experiments, 1):
            if stop:
                return stop.exit_code
            head = f"[{index}/{len(experiments)}] {experiment.id} {experiment.method}"
            head += f", seed {experiment.seed}"
            try:
                ending = run_experiment(experiment, work, log=partial(_log_with_head, log, head))
            except LBQError as error:
                num_failed += 1
                log(f"{head}: failed: {error}")
                continue
            log(f"{head}: {ending}")
            if ending == "stopped":
                log("everything is saved; the same command continues")
                return stop.exit_code
    return 1 if num_failed else 0


def run_experiment(experiment: Experiment, work: RunnerOptions, *, log: Log) -> Ending:
    """Train, measure and record one experiment, as far as that was not done before."""
    if is_recorded(experiment, work):
        return "already recorded"
    folder = RunFolder(work.folder / experiment.id)
    run = folder.path / "run"
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.locked())
        except RunError:
            return "locked by another process"
        if is_recorded(experiment, work):  # by another process, meanwhile
            return "already recorded"
        try:
            if not _train(_located(experiment.recipe, work.data), run, work, _progress(log)):
                return "stopped"
            device = choose_device(work.options.device)
            measured = measure_run(run, cache=work.options.cache, device=device)
        except NonFiniteError as error:
            log(f"diverged: {error}")
            write_failure(work.out, experiment, run, str(error))
            return "recorded"
        if work.keep_weights:  # before the record, which marks completion
            _keep_weights(run, record_path(work.out, experiment).with_suffix(".safetensors"))
        write_record(work.out, experiment, run, measured)
    return "recorded"


def is_recorded(experiment: Experiment, work: RunnerOptions) -> bool:
    """Return whether nothing is left to do."""
    if record_path(work.out, experiment).exists():
        return True
    return work.accept_older and experiment.key in read_records(work.out)


def _train(recipe: Recipe, run: Path, work: RunnerOptions, progress: Callback) -> bool:
    """Train to the end; False if it was asked to stop.

    Code may have changed since an earlier attempt. The code that decides numbers is in the
    experiment's id, and so in the folder's name.
    """
    options = replace(work.options, allow_changed=("code",))
    if work.devices == 1:
        keep_freed_memory()
        return train(recipe, run, options, callbacks=[progress]).ending != "stopped"
    run.mkdir(parents=True, exist_ok=True)
    file = run.parent / "recipe.json"
    file.write_text(write_recipe(recipe))
    args = ["-m", "lbq.cli", "train", str(file), "--out", str(run), "--allow-changed", "code"]
    args += ["--devices", str(work.devices), "--device", options.device]
    args += ["--cache", str(options.cache), "--workers", str(options.workers)]
    args += ["--save-every-s", str(options.save_every_s)]
    if options.threads is not None:
        args += ["--threads", str(options.threads)]
    checkpoints = RunFolder(run).checkpoints
    job = Supervisor([sys.executable, *args], progress=lambda: max(checkpoints.steps(), default=-1))
    code = job.run()
    if code not in (0, *_STOPPED):
        raise RunError(f"training on {work.devices} devices ended with exit code {code}")
    return code == 0


def _progress(log: Log) -> Callback:
    """Log a line when a run begins, every few hundred steps, and at every evaluation."""

    def report(record: Record) -> None:
        match record["event"]:
            case "start" | "resume":
                log(f"{record['event']} at step {record['step']} of {record['total_steps']}")
            case "train" if record["step"] % _LOG_EVERY == 0:
                rate, accuracy = record["samples_per_s"], record["accuracy"]
                log(f"epoch {record['epoch']:.1f}, {rate:,.0f}/s, training {accuracy:.1%}")
            case "evaluation":
                log(f"epoch {record['epoch']}, test {record['accuracy']:.2%}")
            case _:
                pass

    return report


def _log_with_head(log: Log, head: str, text: str) -> None:
    log(f"{head}: {text}")


def _located(recipe: Recipe, data: Path | None) -> Recipe:
    """Point a recipe at its data; raise if their folder holds another set."""
    name = PurePath(recipe.data.source).name
    if data is None or recipe.data.source == SYNTHETIC:
        return recipe
    if (data / name).exists():
        source = data / name
    elif name in (data.name, data.stem):
        source = data
    else:
        raise RunError(
            f"this experiment needs the data set {name}, but {data} neither has this name nor "
            f"holds it; pass the folder that holds {name} as --data"
        )
    return replace(recipe, data=replace(recipe.data, source=str(source)))


def _keep_weights(run: Path, path: Path) -> None:
    checkpoints = RunFolder(run).checkpoints
    stem = f"{checkpoints.steps()[-1]:09d}"
    found = {p.name: p for p in checkpoints.folder.glob(f"{stem}.*.safetensors")}
    model = found.get(f"{stem}.average.safetensors", found[f"{stem}.model.safetensors"])
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model, path)


@contextmanager
def _alarm(minutes: float | None) -> Generator[None]:
    """Ask this process to stop, as a scheduler would, when the time is over."""
    if minutes is None:
        yield
        return
    timer = threading.Timer(60 * minutes, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
