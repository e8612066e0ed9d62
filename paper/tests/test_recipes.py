from decimal import Decimal

import pytest

from lbq.train.recipes import RECIPES
from lbq_paper.claims import HYPERPARAMETERS

TABLE_1 = {
    "imagenet-resnet34": "ImageNet-1K",
    "cifar10-resnet20": "CIFAR-10",
    "cifar100-resnet20": "CIFAR-100",
    "cifar10dvs-resnet20": "CIFAR10-DVS",
    "gesture-resnet19": "DVS128-Gesture",
}
GPUS = {"ImageNet-1K": 8}  # where the printed batch is that of one of several GPUs


def number(value):
    return Decimal(0) if value is None else value


@pytest.mark.parametrize("name", TABLE_1)
def test_the_recipes_of_the_paper_say_what_its_table_prints(name):
    recipe, dataset = RECIPES[name](), TABLE_1[name]
    claim = next(claim for claim in HYPERPARAMETERS if dataset in claim.datasets)
    augment, neuron = recipe.data.augment, recipe.model.neuron
    assert (neuron.kind, neuron.max_level) == ("lbq", claim.max_level)
    assert recipe.model.timesteps in claim.timesteps
    assert recipe.epochs == claim.epochs
    assert (recipe.data.size or 32) == claim.resolution
    assert recipe.batch == claim.batch_size * GPUS.get(dataset, 1)
    assert recipe.optim.kind == claim.optimizer.lower()
    assert recipe.optim.lr == float(claim.base_lr)
    assert recipe.schedule.warmup_epochs == (claim.warmup_epochs or 0)
    assert recipe.optim.weight_decay == float(claim.weight_decay)
    assert bool(augment.policy) == bool(claim.has_autoaugment)  # None: not printed
    assert augment.cutout in (claim.cutout_lengths or (0,))
    assert augment.mix.mixup == float(number(claim.mixup))
    assert augment.mix.cutmix == float(number(claim.cutmix))
    assert recipe.label_smoothing == float(claim.label_smoothing)
