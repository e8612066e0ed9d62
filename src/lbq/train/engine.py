"""The door: train a recipe in a folder, from the start or from wherever it was left."""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lbq.data import Data, open_data, steps_per_epoch, train_batches
from lbq.errors import NonFiniteError, RunError
from lbq.models.resnet import SpikingResNet
from lbq.neurons.calibrate import calibrate_steps
from lbq.train.allocator import keep_freed_memory
from lbq.train.document import Document, to_document
from lbq.train.evaluation import Evaluation, to_device
from lbq.train.gradients import AveragedGradients, CanonicalGradients, Gradients
from lbq.train.journal import Journal, Listener, Record
from lbq.train.learning import Learner
from lbq.train.loop import Ending, Loop
from lbq.train.loss import Lesson
from lbq.train.network import build_network
from lbq.train.optim import build_optimizer
from lbq.train.precision import Precision
from lbq.train.preemption import StopRequest, listening_for_stop
from lbq.train.provenance import check_unchanged, provenance
from lbq.train.recipe import Recipe
from lbq.train.run_folder import RunFolder
from lbq.train.running import RunningStatistics
from lbq.train.saving import Saver
from lbq.train.state import TrainingState
from lbq.train.world import World, is_first_process, open_world

_log = logging.getLogger(__name__)

_CALIBRATION_SAMPLES = 256


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how fast a run goes: nothing here changes what it computes."""

    cache: Path = Path("~/.cache/lbq")
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
    out: Path,
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
        data = open_data(recipe.data, options.cache.expanduser())
        with (
            listening_for_stop() as stop,
            open_world(options.device, timeout_s=options.timeout_s) as world,
        ):
            hear: list[Listener] = [Journal(folder.journal), *listeners] if is_first else []

            def tell(record: Record) -> None:
                for listener in hear:
                    listener(record)

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
        self.recipe.check_world(self.world.size)
        _prepare_torch(self.recipe, self.options.threads, self.world.device)
        state = build_state(self.recipe, self.data, self.world)
        facts = self._facts()
        is_fresh = not self._restore(state, facts)
        if is_fresh and self.recipe.calibrate is not None:
            _calibrate(state.model, self.recipe, self.data, self.world)
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
                changed = _check_same_run(found.facts, facts, self.options.allow_changed)
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


def build_state(recipe: Recipe, data: Data, world: World) -> TrainingState:
    """Build everything that is trained, as the seed wants it."""
    torch.manual_seed(recipe.seed)
    model = build_network(recipe.model, num_classes=data.num_classes).to(world.device)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    average = None
    if recipe.ema_decay is not None:
        mean = get_ema_multi_avg_fn(recipe.ema_decay)
        average = AveragedModel(model, multi_avg_fn=mean, use_buffers=True)
    if recipe.compile:
        model.compile()
    return TrainingState(
        model=model,
        optimizer=build_optimizer(model, recipe.optim),
        precision=Precision(recipe.precision, world.device),
        average=average,
    )


def build_gradients(recipe: Recipe, state: TrainingState, world: World) -> Gradients:
    """Build the way in which the processes compute gradients together."""
    lesson = Lesson(state.model, kind=recipe.loss, label_smoothing=recipe.label_smoothing)
    if recipe.deterministic == "canonical":
        return CanonicalGradients(lesson, world, precision=state.precision, shards=recipe.shards)
    return AveragedGradients(lesson, world, precision=state.precision, accumulate=recipe.accumulate)


def _prepare_torch(recipe: Recipe, threads: int | None, device: torch.device) -> None:
    is_canonical = recipe.deterministic == "canonical"
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cpu" and (threads is not None or is_canonical):
        torch.set_num_threads(1 if threads is None else threads)  # bits may depend on it
    if is_canonical:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(is_canonical)
    torch.backends.cudnn.benchmark = not is_canonical


def _check_same_run(then: Document, now: Document, allowed: Sequence[str]) -> list[str]:
    """Compare what a checkpoint was made with to what would continue it."""
    keys = ("recipe", "code", "data", "versions")
    before, after = ({key: facts.get(key) for key in keys} for facts in (then, now))
    if before["data"] == after["data"]:  # the same data may lie elsewhere
        before, after = (
            {
                **facts,
                "recipe": {**facts["recipe"], "data": {**facts["recipe"]["data"], "source": ""}},
            }
            for facts in (before, after)
        )
    return check_unchanged(before, after, allowed=allowed)


def _calibrate(model: SpikingResNet, recipe: Recipe, data: Data, world: World) -> None:
    """Set the steps from the first training samples, the same on every process."""
    assert recipe.calibrate is not None
    batches = train_batches(data, seed=recipe.seed, epoch=0, global_batch=recipe.batch)
    batch = next(iter(batches)).x
    axis = 1 if data.is_sequence else 0
    few = batch.narrow(axis, 0, min(_CALIBRATION_SAMPLES, batch.shape[axis]))
    inputs = to_device(few, world.device, channels_last=recipe.channels_last)
    statistics = RunningStatistics(model)
    before = statistics.read()
    calibrate_steps(model, [inputs], percentile=recipe.calibrate)
    statistics.write(before)
    statistics.forget_batches(1)
