"""Lowered networks that the tests of all formats share."""

import pytest
import torch

import lbq
from lbq.deploy import Pixels, lower, to_fixed_point

MEAN, STD = (0.49, 0.48, 0.44), (0.2, 0.2, 0.2)


def _stirred(model):
    """Give every batch norm statistics of its own, as training would."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.3)
    return model.eval()


def _make(name, is_integer):
    torch.manual_seed(0)
    build = getattr(lbq, name)
    model = _stirred(build(10, timesteps=2, width=1 / 16))
    if build.form == "events":
        bytes_ = torch.randint(0, 4, (2, 5, 2, 16, 16), dtype=torch.uint8)
        inputs, pixels = bytes_.float(), None
    else:
        bytes_ = torch.randint(0, 256, (5, 3, 16, 16), dtype=torch.uint8)
        mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
        inputs, pixels = (bytes_ / 255 - mean) / std, Pixels(mean=MEAN, std=STD)
    network = lower(model, inputs)
    network.origin["accuracy"] = 0.5
    if not is_integer:
        return network, inputs
    return to_fixed_point(network, bits=8, pixels=pixels, calibration=inputs), bytes_


@pytest.fixture(scope="session")
def make_lowered():
    """``make_lowered("resnet20", is_integer=True)``: a lowered network and inputs for it."""
    return _make


@pytest.fixture(scope="session")
def stirred():
    """``stirred(model)``: in eval mode, with batch statistics as if it had been trained."""
    return _stirred
