import hashlib
import shutil
import sys

import pytest
import torch

import lbq
from lbq.errors import FormatError, ParameterError
from lbq.pretrained import load_pretrained as load
from lbq.pretrained import pretrained_names, pretrained_recipe, pretrained_record
from lbq.train import RECIPES, build_network

NAMES = pretrained_names()


@pytest.fixture
def module():
    return sys.modules["lbq.pretrained.loading"]


@pytest.mark.parametrize("name", NAMES)
def test_a_network_comes_ready_to_answer(name):
    model = lbq.load_pretrained(name)
    assert not model.training
    with torch.no_grad():
        logits = model(torch.zeros(2, 3, 32, 32))
    assert logits.shape == (2, len(pretrained_record(name)["classes"]))


def test_pocket_cifar10_is_the_trained_network_of_its_recipe():
    recipe = pretrained_recipe("pocket-cifar10")
    named = RECIPES["pocket"]()
    assert (recipe.model, recipe.optim, recipe.seed) == (named.model, named.optim, named.seed)
    steps = [
        neuron.step().item() for _, neuron in lbq.neurons.named_neurons(load("pocket-cifar10"))
    ]
    assert len(steps) == 19
    assert len(set(steps)) == 19  # all learned: none is where it started
    assert recipe.model.neuron.step not in steps


def test_the_data_of_a_record_are_found_on_the_hub_and_never_in_a_folder_here():
    """A bare name such as cifar10 would open a folder of that name where the user happens to be."""
    assert pretrained_recipe("pocket-cifar10").data.source == "uoft-cs/cifar10"


def test_every_call_gives_a_network_of_its_own():
    first, second = load("pocket-cifar10"), load("pocket-cifar10")
    next(first.parameters()).data.zero_()
    assert next(second.parameters()).abs().sum() > 0


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(ParameterError, match=r"no pretrained network 'resnet50'.*'pocket-cifar10'"):
        lbq.load_pretrained("resnet50")


def test_a_damaged_file_is_refused_before_it_is_parsed(tmp_path, module, monkeypatch):
    shutil.copytree(module.FOLDER / "pocket-cifar10", tmp_path / "pocket-cifar10")
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    file = tmp_path / "pocket-cifar10" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match=r"is damaged.*install lbq again"):
        load("pocket-cifar10")


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_of_the_record_and_small(name, module):
    data = (module.FOLDER / name / "model.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == pretrained_record(name)["weights_sha256"]
    assert len(data) < 3e6
    built = build_network(
        pretrained_recipe(name).model, num_classes=len(pretrained_record(name)["classes"])
    )
    assert sum(p.numel() for p in built.parameters()) * 4 < len(data)
