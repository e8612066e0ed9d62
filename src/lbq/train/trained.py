"""What came out of a run: its network, and how good it is."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from lbq.data import open_data, steps_per_epoch
from lbq.errors import FormatError, RunError
from lbq.models.resnet import SpikingResNet
from lbq.train.checkpoint import Checkpoint
from lbq.train.document import from_document
from lbq.train.evaluation import Evaluation, count_correct
from lbq.train.network import build_network
from lbq.train.precision import Precision
from lbq.train.recipe import Recipe
from lbq.train.run_folder import RunFolder
from lbq.train.state import copy_tensors
from lbq.train.world import open_world


def load_trained(out: str | Path, *, step: int | None = None) -> tuple[SpikingResNet, Recipe, int]:
    """Load the network of a run, in eval mode: its moving average if it has one.

    Every file is compared with its SHA-256 before it is parsed, and nothing is changed.

    Args:
        out: the folder of the run.
        step: of which checkpoint; the last one that is whole unless said.

    Returns:
        The network, the recipe it was trained by, and the steps it was trained for.
    """
    checkpoint = _find(out, step)
    recipe = from_document(Recipe, checkpoint.facts.get("recipe"))
    num_classes = checkpoint.facts.get("num_classes")
    if not isinstance(num_classes, int):
        raise FormatError(f"the checkpoint in {out} does not say for how many classes it is")
    model = build_network(recipe.model, num_classes=num_classes)
    prefix = "module." if "average" in checkpoint.parts else ""
    part = checkpoint.parts.get("average", checkpoint.parts.get("model", {}))
    named = {
        name.removeprefix(prefix): tensor
        for name, tensor in part.items()
        if name.startswith(prefix)
    }
    copy_tensors(named, model.state_dict(), what=f"the checkpoint in {out}")
    return model.eval(), recipe, checkpoint.step


def evaluate_run(
    out: str | Path,
    *,
    cache: str | Path,
    step: int | None = None,
    source: str | None = None,
    device: str = "auto",
    workers: int = 0,
    timeout_s: float = 300.0,
    tell: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Count the right answers of a run's network over its whole test set.

    Args:
        out: the folder of the run.
        cache: where data sets are kept once they are decoded.
        step: of which checkpoint; the last one that is whole unless said.
        source: where the data lie, if not where the recipe says.
        device: "auto", or torch's name of a device.
        workers: processes that prepare batches, per device.
        timeout_s: how long the processes wait for each other.
        tell: is told after every batch how many samples of how many this process has asked.
    """
    model, recipe, found = load_trained(out, step=step)
    data_config = recipe.data
    if source is not None:
        data_config = replace(data_config, source=source)
    data = open_data(data_config, cache)
    with open_world(device, timeout_s=timeout_s) as world:
        model = model.to(world.device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        counts = count_correct(
            model,
            data,
            world,
            precision=Precision(recipe.precision, world.device),
            batch=recipe.test_batch,
            num_workers=workers,
            channels_last=recipe.channels_last,
            tell=tell,
        )
    assert counts is not None  # nobody says stop here
    correct, count, loss = counts
    epoch = found // steps_per_epoch(data, recipe.batch)
    return Evaluation(step=found, epoch=epoch, correct=correct, count=count, loss=loss)


def _find(out: str | Path, step: int | None) -> Checkpoint:
    checkpoints = RunFolder(out).checkpoints
    if step is not None and step not in checkpoints.steps():
        raise RunError(f"{out} has no checkpoint of step {step}; it has {checkpoints.steps()}")
    found = checkpoints.load_newest() if step is None else checkpoints.load(step)
    if found is None:
        raise RunError(f"{out} has no checkpoint; is it the folder of a run?")
    return found
