"""What came out of a run: its network, and how good it is."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lbq.data import open_data, steps_per_epoch
from lbq.errors import FormatError, RunError
from lbq.models.resnet import SpikingResNet
from lbq.train.checkpoint import Checkpoint
from lbq.train.distributed import open_process_group
from lbq.train.evaluation import Evaluation, count_correct
from lbq.train.model_config import NETWORKS, ModelConfig, build_network
from lbq.train.precision import Precision
from lbq.train.recipe import Recipe, recipe_from_document
from lbq.train.run_folder import RunFolder
from lbq.train.state import check_tensors, copy_tensors

_BLOCK = re.compile(r"stages\.(\d{1,9})\.(\d{1,9})\.")


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
    recipe = recipe_from_document(checkpoint.metadata.get("recipe"))
    num_classes = checkpoint.metadata.get("num_classes")
    if not isinstance(num_classes, int):
        raise FormatError(f"the checkpoint in {out} does not say for how many classes it is")
    prefix = "module." if "average" in checkpoint.parts else ""
    part = checkpoint.parts.get("average", checkpoint.parts.get("model", {}))
    named = {
        name.removeprefix(prefix): tensor
        for name, tensor in part.items()
        if name.startswith(prefix)
    }
    what = f"the checkpoint in {out}"
    model = network_from_tensors(recipe.model, named, num_classes=num_classes, what=what)
    return model.eval(), recipe, checkpoint.step


def network_from_tensors(
    config: ModelConfig, tensors: Mapping[str, Tensor], *, num_classes: int, what: str
) -> SpikingResNet:
    """Build a network and give it its parameters and buffers.

    The tensors are compared with the configuration before anything is allocated: a small file may
    describe a network of terabytes, or of a million blocks.

    Args:
        config: the network.
        tensors: its state dict.
        num_classes: number of logits.
        what: where the tensors come from, for errors.
    """
    expected = config.blocks or NETWORKS[config.name].shape.blocks
    found = {match.groups() for name in tensors if (match := _BLOCK.match(name))}
    counts = Counter(int(stage) for stage, _ in found)
    if [counts[stage] for stage in sorted(counts)] != list(expected):
        raise FormatError(
            f"{what} does not belong to this network: it has stages of "
            f"{[counts[stage] for stage in sorted(counts)]} blocks, the configuration says "
            f"{list(expected)}"
        )
    with torch.device("meta"):
        shapes = build_network(config, num_classes=num_classes).state_dict()
    check_tensors(tensors, shapes, what=what)
    model = build_network(config, num_classes=num_classes)
    copy_tensors(tensors, model.state_dict(), what=what)
    return model


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
    with open_process_group(device, timeout_s=timeout_s) as group:
        model = model.to(group.device)
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        counts = count_correct(
            model,
            data,
            group,
            precision=Precision(recipe.precision, group.device),
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
