"""The door: train a recipe in a folder, from the start or from wherever it was left."""

import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lbq.config_io import Document, to_document
from lbq.data import Data, open_data, steps_per_epoch
from lbq.errors import NonFiniteError, ParameterError, RunError
from lbq.ranges import Range, check_ranges
from lbq.train.evaluation import Evaluation
from lbq.train.journal import Journal, Listener, Record
from lbq.train.learning import Learner
from lbq.train.loop import Ending, Loop
from lbq.train.preemption import StopRequest, listening_for_stop
from lbq.train.prepare import build_gradients, build_state, calibrate, prepared_torch
from lbq.train.provenance import check_same_run, provenance
from lbq.train.recipe import Recipe
from lbq.train.run_folder import RunFolder
from lbq.train.saving import Saver
from lbq.train.state import TrainingState
from lbq.train.world import World, is_first_process, open_world

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
    """Steps between two lines of the journal."""
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

    ending: Ending | Literal["was finished"]
    """ "was finished" if there was nothing left to do."""
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
    listeners: Sequence[Listener] = (),
    wait_for_lock_s: float = 0.0,
) -> Outcome:
    """Train a recipe in a folder; if it was begun there, go on where it was left.

    Under torchrun every process calls this; only the first one writes, locks and tells.

    Args:
        recipe: what to compute.
        out: the folder of the run.
        options: where and how fast.
        listeners: are told every record of the journal.
        wait_for_lock_s: how long to wait for another process to leave the folder.
    """
    options = RunOptions() if options is None else options
    folder = RunFolder(out, keep=options.keep)
    is_first = is_first_process()
    with folder.locked(wait_s=wait_for_lock_s) if is_first else nullcontext():
        data = open_data(recipe.data, options.cache)
        with (
            listening_for_stop() as stop,
            open_world(options.device, timeout_s=options.timeout_s) as world,
        ):
            hear: list[Listener] = [Journal(folder.journal), *listeners] if is_first else []

            def tell(record: Record) -> None:
                for listener in hear:
                    listener(record)

            recipe.check_world(world.size)
            with prepared_torch(recipe, world.device, threads=options.threads):
                return _Run(recipe, folder, options, data, world, stop, tell).live()


@dataclass(frozen=True)
class _Run:
    """One life of a run, before and after its loop."""

    recipe: Recipe
    folder: RunFolder
    options: RunOptions
    data: Data
    world: World
    stop: StopRequest
    tell: Listener

    def live(self) -> Outcome:
        """Build or restore the state, and let the loop run."""
        state = build_state(self.recipe, self.data, self.world)
        facts = self._facts()
        is_fresh = not self._restore(state, facts)
        if is_fresh and self.recipe.calibrate is not None:
            calibrate(state.model, self.recipe, self.data, self.world)
        state.share(self.world)
        total = self.recipe.epochs * steps_per_epoch(self.data, self.recipe.batch)
        done = state.progress.evaluations
        if state.progress.step == total and done and done[-1].step == total:
            return self._outcome(state, "was finished")
        self._announce(state, total, is_fresh=is_fresh)
        try:
            ending = self._loop(state, facts).run()
        except NonFiniteError as error:
            last = max(self.folder.checkpoints.steps(), default=None)
            raise NonFiniteError(f"{error}. Last checkpoint: step {last}") from error
        return self._outcome(state, ending)

    def _facts(self) -> Document:
        return {
            "recipe": to_document(self.recipe),
            "num_classes": self.data.num_classes,
            "world": self.world.size,
            **provenance(self.data.digest),
        }

    def _restore(self, state: TrainingState, facts: Document) -> bool:
        """Take up the last whole checkpoint, read by the first process; False if there is none."""
        text = None
        if self.world.is_first:
            self.folder.checkpoints.sweep()
            found = self.folder.checkpoints.load_newest(quarantine=True)
            if found is not None:
                changed = check_same_run(found.facts, facts, allowed=self.options.allow_changed)
                for words in changed:
                    _log.warning("continuing though this changed: %s", words)
                state.restore(found)
                text = json.dumps(found.facts)
        facts_then = self.world.broadcast_text(text)
        if not facts_then:
            return False
        state.restore_facts(json.loads(facts_then))
        total = self.recipe.epochs * steps_per_epoch(self.data, self.recipe.batch)
        if state.progress.step > total:
            raise RunError(
                f"the checkpoint is of step {state.progress.step}, ahead of the {total} steps of "
                f"the recipe; raise epochs, or take another folder with --out"
            )
        return True

    def _announce(self, state: TrainingState, total: int, *, is_fresh: bool) -> None:
        if not self.world.is_first:
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
                "processes": self.world.size,
                "device": str(self.world.device),
                "threads": torch.get_num_threads(),
            }
        )

    def _loop(self, state: TrainingState, facts: Document) -> Loop:
        options, recipe = self.options, self.recipe
        saver = None
        if self.world.is_first:
            saver = Saver(
                self.folder.checkpoints,
                self.tell,
                every_s=options.save_every_s,
                every_steps=options.save_every_steps,
            )
        gradients = build_gradients(recipe, state, self.world)
        return Loop(
            recipe=recipe,
            data=self.data,
            world=self.world,
            state=state,
            learner=Learner(state, gradients, recipe, self.world),
            stop=self.stop,
            tell=self.tell,
            saver=saver,
            facts=facts,
            num_workers=options.workers,
            log_every=options.log_every,
            stop_at=options.stop_at,
        )

    def _outcome(self, state: TrainingState, ending: Ending | Literal["was finished"]) -> Outcome:
        was_asked = ending == "stopped" and state.progress.step != self.options.stop_at
        return Outcome(
            ending=ending,
            step=state.progress.step,
            evaluations=tuple(state.progress.evaluations),
            exit_code=self.stop.exit_code if was_asked else 0,
        )
