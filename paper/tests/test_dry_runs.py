"""Every recipe of Tables 2 to 4 at full size takes one step: real networks, shapes and optimizers.

The data are synthetic but as large as the real ones, and pass the recipe's own augmentation.
Rows of CIFAR-100 differ from those of CIFAR-10 in classes and Cutout, so LBQ stands for them.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from lbq.data import SYNTHETIC, open_data, train_batches
from lbq.train.build import build_gradients, build_state
from lbq.train.distributed import open_process_group
from lbq.train.prefetch import prefetch_to_device
from lbq.train.train_step import TrainStep
from lbq_paper.experiments import full_size_experiments

BATCH = 1
SIDES = {"cifar10": 32, "cifar100": 32}  # the others say theirs in the recipe
NUM_CLASSES = {
    "cifar10": 10,
    "cifar100": 100,
    "imagenet-1k": 1000,
    "cifar10-dvs": 10,
    "dvs-gesture": 11,
}


def rows():
    for experiment in full_size_experiments():
        entry = next(
            (p for p in experiment.entries if experiment.tables[0] in "234" and "T=" in p), None
        )
        if entry is None or experiment.seed:
            continue
        if not entry.startswith("CIFAR-100") or experiment.method == "LBQ":
            yield pytest.param(experiment.recipe, id=entry)


def shrunk(recipe):
    """Change what a CPU without the data cannot have, and nothing that the network sees."""
    name = recipe.data.source.rpartition("/")[2]
    augment = recipe.data.augment
    if augment.crop == "resized":  # needs files of other sizes
        augment = replace(augment, crop="pad", pad=28)
    data = replace(
        recipe.data,
        source=SYNTHETIC,
        size=recipe.data.size or SIDES[name],
        limit=BATCH,
        limit_test=1,
        augment=augment,
    )
    return replace(recipe, data=data, batch=BATCH), NUM_CLASSES[name]


@pytest.mark.parametrize("recipe", list(rows()))
def test_one_step_at_full_size(recipe, tmp_path):
    recipe, num_classes = shrunk(recipe)
    data = open_data(recipe.data, tmp_path)
    data = replace(data, splits=replace(data.splits, num_classes=num_classes))
    with open_process_group("cpu") as group:
        state = build_state(recipe.build_model(data.num_classes), recipe, group)
        train_step = TrainStep(state, build_gradients(recipe, state, group), recipe, group)
        batches = train_batches(data, seed=recipe.seed, epoch=0, global_batch=BATCH)
        (batch,) = prefetch_to_device(batches, group.device, channels_last=recipe.channels_last)
        assert batch.x.shape[-1] == recipe.data.size
        kernels = [p for p in state.model.parameters() if p.dim() == 4]
        before = [kernel.detach().clone() for kernel in kernels]
        lr = recipe.optim.lr
        result = train_step.run(batch, lr=lr, stop=False, hooks=nullcontext())
    assert 0 < result.loss < 100
    assert result.norm > 0
    moved = [not torch.equal(new, old) for new, old in zip(kernels, before, strict=True)]
    assert sum(moved) > 0.9 * len(moved)  # a silent layer has no gradient at the first step


def test_every_shape_of_the_paper_is_there():
    found = {param.values[0] for param in rows()}
    shapes = {(r.model.name, r.data.size, r.model.timesteps) for r in found}
    assert {name for name, _, _ in shapes} == {"resnet18", "resnet19", "resnet20", "resnet34"}
    assert {("resnet34", 224, 2), ("resnet20", 128, 10), ("resnet19", 128, 16)} <= shapes
    assert {t for name, size, t in shapes if (name, size) == ("resnet20", None)} == {1, 2, 4}
