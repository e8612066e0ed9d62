"""The door: train a recipe in a folder, from the start or from wherever it was left."""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lbq.config_io import Document, canonical_json, parse_json, to_document
from lbq.data import Data, open_data, steps_per_epoch
from lbq.errors import NonFiniteError, ParameterError, RunError
from lbq.ranges import Range, check_ranges
from lbq.train.distributed import ProcessGroup, is_first_process, open_process_group
from lbq.train.evaluation import Evaluation
from lbq.train.loop import Ending, Loop
from lbq.train.metrics import Callback, MetricsLog, Record
from lbq.train.preemption import StopRequest, catch_stop_signals
from lbq.train.prepare import build_gradients, build_state, calibrate, torch_settings
from lbq.train.provenance import check_same_run, provenance
from lbq.train.recipe import Recipe
from lbq.train.run_folder import RunFolder
from lbq.train.saving import Saver
from lbq.train.state import TrainingState
from lbq.train.train_step import TrainStep

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how fast a run goes: nothing here changes what it computes."""

    cache: str | Path = Path("~/.cache/lbq")
    """Where data sets are kept once they are decoded."""
    device: str = "auto"
    """ "auto" is a GPU where there is one; or cpu, cuda, cuda:1."""
    workers: int = 0
    """Processes that prepare batches, per device; 0 prepares them between the steps."""
    threads: int | None = None
    """Threads per device on CPUs; None leaves it to torch, canonical mode takes 1."""
    log_every: int = 50
    """Steps between two lines of the metrics_log."""
    save_every_s: float = 300.0
    """Seconds between two checkpoints: what a crash may cost."""
    save_every_steps: int | None = None
    """Steps between two checkpoints, besides the clock."""
    keep: int = 2
    """Checkpoints to keep, at least 2."""
    timeout_s: float = 300.0
    """How long the processes wait for each other before they fail."""
    allow_changed: tuple[str, ...] = ()
    """What may differ from the run that is continued, such as recipe.epochs, code or data."""
    stop_at: int | None = None
    """Stop, with a checkpoint, at this step."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be meant."""
        check_ranges(
            self,
            ParameterError,
            workers=Range(0),
            threads=Range(1),
            log_every=Range(1),
            save_every_s=Range(0),
            save_every_steps=Range(1),
            timeout_s=Range(0, 10**8, is_open_below=True),
            stop_at=Range(1),
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a life of a run ended."""

    ending: Ending | Literal["already finished"]
    """ "already finished" if there was nothing left to do."""
    step: int
    """Steps done, in all lives."""
    evaluations: tuple[Evaluation, ...]
    """Of all lives; the last one is the headline."""
    exit_code: int
    """0, or 128 + the signal that ended this life."""


def train(
    recipe: Recipe,
    out: str | Path,
    options: RunOptions | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    wait_for_lock_s: float = 0.0,
) -> Outcome:
    """Train a recipe in a folder; if it was begun there, go on where it was left.

    Under torchrun every process calls this; only the first one writes, locks and tells.

    Args:
        recipe: what to compute.
        out: the folder of the run.
        options: where and how fast.
        callbacks: are told every record of the metrics_log.
        wait_for_lock_s: how long to wait for another process to leave the folder.
    """
    options = RunOptions() if options is None else options
    folder = RunFolder(out, keep=options.keep)
    is_first = is_first_process()
    with folder.locked(wait_s=wait_for_lock_s) if is_first else nullcontext():
        data = open_data(recipe.data, options.cache)
        with (
            catch_stop_signals() as stop,
            open_process_group(options.device, timeout_s=options.timeout_s) as group,
        ):
            hear: list[Callback] = [MetricsLog(folder.metrics_log), *callbacks] if is_first else []

            def tell(record: Record) -> None:
                for listener in hear:
                    listener(record)

            recipe.check_world_size(group.size)
            with torch_settings(recipe, group.device, threads=options.threads):
                return _Run(recipe, folder, options, data, group, stop, tell).run()


@dataclass(frozen=True)
class _Run:
    """One life of a run, before and after its loop."""

    recipe: Recipe
    folder: RunFolder
    options: RunOptions
    data: Data
    group: ProcessGroup
    stop: StopRequest
    tell: Callback

    def run(self) -> Outcome:
        """Build or restore the state, and let the loop run."""
        state = build_state(self.recipe, self.data, self.group)
        metadata = self._metadata()
        is_fresh = not self._restore(state, metadata)
        if is_fresh and self.recipe.calibrate is not None:
            calibrate(state.model, self.recipe, self.data, self.group)
        state.broadcast(self.group)
        total = self.recipe.epochs * steps_per_epoch(self.data, self.recipe.batch)
        done = state.progress.evaluations
        if state.progress.step == total and done and done[-1].step == total:
            return self._outcome(state, "already finished")
        self._announce(state, total, is_fresh=is_fresh)
        try:
            ending = self._loop(state, metadata).run()
        except NonFiniteError as error:
            last = max(self.folder.checkpoints.steps(), default=None)
            raise NonFiniteError(f"{error}. Last checkpoint: step {last}") from error
        return self._outcome(state, ending)

    def _metadata(self) -> Document:
        return {
            "recipe": to_document(self.recipe),
            "num_classes": self.data.num_classes,
            "world_size": self.group.size,
            **provenance(self.data.digest),
        }

    def _restore(self, state: TrainingState, metadata: Document) -> bool:
        """Take up the last whole checkpoint, read by the first process; False if there is none."""
        text = None
        if self.group.is_first:
            self.folder.checkpoints.remove_partial()
            found = self.folder.checkpoints.load_newest(quarantine=True)
            if found is not None:
                changed = check_same_run(
                    found.metadata, metadata, allowed=self.options.allow_changed
                )
                for words in changed:
                    _log.warning("continuing though this changed: %s", words)
                state.restore(found)
                text = canonical_json(found.metadata)
        saved_metadata = self.group.broadcast_text(text)
        if not saved_metadata:
            return False
        state.restore_metadata(parse_json(saved_metadata, "the state of training"))
        total = self.recipe.epochs * steps_per_epoch(self.data, self.recipe.batch)
        if state.progress.step > total:
            raise RunError(
                f"the checkpoint is of step {state.progress.step}, ahead of the {total} steps of "
                f"the recipe; raise epochs, or take another folder with --out"
            )
        return True

    def _announce(self, state: TrainingState, total: int, *, is_fresh: bool) -> None:
        if not self.group.is_first:
            return
        self.folder.write_recipe(self.recipe)
        self.tell(
            {
                "event": "start" if is_fresh else "resume",
                "step": state.progress.step,
                "total_steps": total,
                "steps_per_epoch": total // self.recipe.epochs,
                "recipe": self.recipe.name,
                "recipe_sha256": self.recipe.digest(),
                "data_sha256": self.data.digest,
                "parameters": sum(p.numel() for p in state.model.parameters()),
                "processes": self.group.size,
                "device": str(self.group.device),
                "threads": torch.get_num_threads(),
            }
        )

    def _loop(self, state: TrainingState, metadata: Document) -> Loop:
        options, recipe = self.options, self.recipe
        saver = None
        if self.group.is_first:
            saver = Saver(
                self.folder.checkpoints,
                self.tell,
                every_s=options.save_every_s,
                every_steps=options.save_every_steps,
            )
        gradients = build_gradients(recipe, state, self.group)
        return Loop(
            recipe=recipe,
            data=self.data,
            group=self.group,
            state=state,
            train_step=TrainStep(state, gradients, recipe, self.group),
            stop=self.stop,
            tell=self.tell,
            saver=saver,
            metadata=metadata,
            num_workers=options.workers,
            log_every=options.log_every,
            stop_at=options.stop_at,
        )

    def _outcome(
        self, state: TrainingState, ending: Ending | Literal["already finished"]
    ) -> Outcome:
        was_asked = ending == "stopped" and state.progress.step != self.options.stop_at
        return Outcome(
            ending=ending,
            step=state.progress.step,
            evaluations=tuple(state.progress.evaluations),
            exit_code=self.stop.exit_code if was_asked else 0,
        )
