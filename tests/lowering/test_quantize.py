"""``lbq.quantize`` is lower and to_fixed_point, with the preprocessing that the network carries."""

import copy

import pytest
import torch
from torch import nn

import lbq
from lbq.adapters.hub import from_pretrained, save_pretrained
from lbq.errors import LoweringError, ParameterError
from lbq.train import RECIPES

PIXELS = lbq.Pixels(mean=(0.5, 0.4, 0.3), std=(0.25, 0.3, 0.2))


def small():
    torch.manual_seed(0)
    return lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1)).eval()


def normalised(count, pixels=PIXELS, size=8):
    raw = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (pixels.mean, pixels.std))
    return raw, (raw / 255 - mean) / std


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_it_is_lower_and_to_fixed_point_in_one_call(bits):
    model, (raw, images) = small(), normalised(20)
    net = lbq.quantize(model, images, preprocessing=PIXELS, bits=bits)
    lowered = lbq.lower(model, images)
    expected = lbq.to_fixed_point(lowered, bits=bits, pixels=PIXELS, calibration=images)
    assert net.is_integer
    assert net.agreement == expected.agreement
    assert torch.equal(lbq.run_network(net, raw), lbq.run_network(expected, raw))
    lbq.graph.prove(net)


def test_the_normalisation_of_the_model_is_the_default():
    model, (raw, images) = small(), normalised(4)
    with pytest.raises(ParameterError, match=r"preprocessing=.*model\.preprocessing"):
        lbq.quantize(model, images)
    model.preprocessing = PIXELS
    expected = lbq.quantize(small(), images, preprocessing=PIXELS)
    found = lbq.quantize(model, images)
    assert torch.equal(lbq.run_network(found, raw), lbq.run_network(expected, raw))
    other = lbq.quantize(model, raw.float(), preprocessing=None)  # the argument goes first
    assert not torch.equal(lbq.run_network(other, raw), lbq.run_network(expected, raw))


def test_the_model_is_not_changed_and_train_mode_is_warned_of():
    model, (_, images) = small().train(), normalised(4)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.warns(UserWarning, match="train mode"):
        lbq.quantize(model, images, preprocessing=PIXELS)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("is_argument", [True, False])
def test_a_preprocessing_of_another_kind_is_refused(is_argument):
    model, (_, images) = small(), normalised(4)
    arguments = {"preprocessing": nn.Identity()} if is_argument else {}
    if not is_argument:
        model.preprocessing = lambda image: image
    with pytest.raises(ParameterError, match=r"must be lbq\.Pixels.*, got (Identity|function)"):
        lbq.quantize(model, images, **arguments)


def test_inputs_of_another_shape_are_refused():
    with pytest.raises(LoweringError, match="cannot run the example"):
        lbq.quantize(small(), torch.randn(2, 5, 8, 8), preprocessing=PIXELS)


def check_carries(model, pixels):
    """The attribute is plain: copies keep it, state dicts, lowering and torch.export ignore it."""
    assert model.preprocessing == pixels
    assert copy.deepcopy(model).preprocessing == pixels
    assert not [name for name in model.state_dict() if "preprocessing" in name]
    images = torch.zeros(2, 3, 32, 32)
    net = lbq.lower(model.eval(), images)
    torch.testing.assert_close(net(images), model(images), rtol=1e-4, atol=1e-4)
    torch.export.export(model, (images,))


def test_pretrained_networks_carry_their_normalisation():
    model = lbq.load_pretrained("pocket-cifar10")
    expected = lbq.data.CIFAR10
    check_carries(model, lbq.Pixels(mean=expected.mean, std=expected.std))
    raw, images = normalised(16, model.preprocessing, size=32)
    net = lbq.quantize(model, images)
    assert net.agreement.levels > 0.9
    assert lbq.run_network(net, raw).dtype == torch.int32


def test_networks_of_runs_carry_it(tmp_path):
    recipe = RECIPES["smoke"]()
    assert recipe.build_model(num_classes=4).preprocessing == recipe.data.preprocessing
    lbq.train.train(recipe, tmp_path, lbq.RunOptions(stop_at=1))
    assert lbq.load_run(tmp_path).model.preprocessing == recipe.data.preprocessing


def test_networks_of_the_hub_carry_it(tmp_path):
    record = lbq.pretrained.pretrained_record("pocket-cifar10")
    save_pretrained(lbq.load_pretrained("pocket-cifar10"), tmp_path, record=record)
    loaded = from_pretrained(tmp_path)
    assert loaded.preprocessing == lbq.load_pretrained("pocket-cifar10").preprocessing


def test_event_counts_are_not_normalised():
    config = lbq.data.DataConfig(source="events", kind="nmnist", timesteps=2)
    assert config.is_events
    assert config.preprocessing is None


def test_a_converted_ann_keeps_its_normalisation():
    ann = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    ann.preprocessing = PIXELS
    spiking = lbq.from_ann(ann.eval(), [torch.randn(4, 3, 8, 8)])
    assert spiking.preprocessing == PIXELS
