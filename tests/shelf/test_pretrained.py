import hashlib
import shutil
import sys

import pytest
import torch

import lbq
from lbq.errors import FormatError, ParameterError
from lbq.shelf import pretrained as door
from lbq.shelf import pretrained_names, recipe_of, record_of
from lbq.train import RECIPES, build_network

NAMES = pretrained_names()


@pytest.fixture
def module():
    return sys.modules["lbq.shelf.pretrained"]


@pytest.mark.parametrize("name", NAMES)
def test_a_network_comes_ready_to_answer(name):
    model = lbq.pretrained(name)
    assert not model.training
    with torch.no_grad():
        logits = model(torch.zeros(2, 3, 32, 32))
    assert logits.shape == (2, len(record_of(name)["classes"]))


def test_pocket_cifar10_is_the_trained_network_of_its_recipe():
    recipe = recipe_of("pocket-cifar10")
    named = RECIPES["pocket"]()
    assert (recipe.model, recipe.optim, recipe.seed) == (named.model, named.optim, named.seed)
    steps = [
        neuron.step().item() for _, neuron in lbq.neurons.named_neurons(door("pocket-cifar10"))
    ]
    assert len(steps) == 19
    assert len(set(steps)) == 19  # all learned: none is where it started
    assert recipe.model.neuron.step not in steps


def test_the_data_of_a_record_are_found_on_the_hub_and_never_in_a_folder_here():
    """A bare name such as cifar10 would open a folder of that name where the user happens to be."""
    assert recipe_of("pocket-cifar10").data.source == "uoft-cs/cifar10"


def test_every_call_gives_a_network_of_its_own():
    first, second = door("pocket-cifar10"), door("pocket-cifar10")
    next(first.parameters()).data.zero_()
    assert next(second.parameters()).abs().sum() > 0


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(ParameterError, match=r"no pretrained network 'resnet50'.*'pocket-cifar10'"):
        lbq.pretrained("resnet50")


def test_a_damaged_file_is_refused_before_it_is_parsed(tmp_path, module, monkeypatch):
    shutil.copytree(module.SHELF / "pocket-cifar10", tmp_path / "pocket-cifar10")
    monkeypatch.setattr(module, "SHELF", tmp_path)
    file = tmp_path / "pocket-cifar10" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match=r"is damaged.*install lbq again"):
        door("pocket-cifar10")


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_record_and_small(name, module):
    data = (module.SHELF / name / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == record_of(name)["weights_sha256"]
    assert len(data) < 1.5e6
    built = build_network(recipe_of(name).model, num_classes=len(record_of(name)["classes"]))
    assert sum(p.numel() for p in built.parameters()) * 4 < len(data)
