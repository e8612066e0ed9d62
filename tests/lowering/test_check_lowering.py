import pytest
import torch
from torch import nn

import lbq
from lbq.errors import LoweringError
from lbq.lowering.check_lowering import in_float64
from lbq.time import MeanOverTime, OverTime, RepeatOverTime


class Branching(nn.Module):
    """Computes something else for a batch of two than for the batch of the export."""

    def __init__(self, step):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), RepeatOverTime(2))
        self.neuron1, self.neuron2 = lbq.BurstLIF(step=step), lbq.BurstLIF(step=step)
        self.conv, self.head = (
            OverTime(nn.Conv2d(4, 4, 3)),
            OverTime(nn.Flatten(), nn.Linear(64, 3)),
        )

    def forward(self, x):
        bursts = self.neuron1(self.stem(x))
        if len(x) == 2:
            bursts = bursts * 1.001
        return self.head(self.neuron2(self.conv(bursts))).mean(0)


@pytest.mark.parametrize("step", [0.1, 9000.0])
def test_a_small_difference_is_found_even_behind_a_silent_neuron(step):
    model = Branching(step).eval()
    images = torch.zeros(1, 3, 8, 8)
    if step > 1:
        with torch.no_grad(), lbq.watch_levels(model, lambda layer, t, level: levels.append(level)):
            levels = []
            model(torch.randn(4, 3, 8, 8))
        assert not any(level.any() for level in levels)
    with pytest.raises(LoweringError, match="currents that reach neuron2 differ"):
        lbq.lower(model, images)


@pytest.mark.parametrize("size", [3, 5, 7])
def test_membranes_at_a_threshold_are_no_difference(size):
    """The mean of equal bursts is a multiple of the next neuron's step, up to rounding."""
    pool = nn.AvgPool2d(size, 1)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), RepeatOverTime(3), lbq.BurstLIF(), OverTime(pool), lbq.BurstLIF()
    )
    nn.init.constant_(model[0].weight, 1.0)
    nn.init.constant_(model[0].bias, 1.0)
    for value in (0.0, 1.0, 1 / 3):
        lbq.lower(model.eval(), torch.full((1, 3, 8, 8), value))


def test_numbers_and_random_states_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(6, 8), lbq.BurstLIF(), nn.Linear(8, 5), MeanOverTime()).eval()
    model[0].scale = torch.ones(3)
    before = {name: (id(value), value.dtype) for name, value in model.named_parameters()}
    state = torch.random.get_rng_state()
    lbq.lower(model, torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.random.get_rng_state(), state)
    after = {name: (id(value), value.dtype) for name, value in model.named_parameters()}
    assert after == before
    assert model[0].scale.dtype == torch.float32
    assert not any(module._forward_hooks for module in model.modules())


def test_shared_parameters_stay_shared_in_float64_and_come_back():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    model, weight = nn.Sequential(first, second), first.weight
    with in_float64(model):
        assert first.weight is second.weight
        assert first.weight.dtype == torch.float64
    assert first.weight is weight
    assert second.weight is weight


class Linear(nn.Module):
    """Two linear layers and a neuron, with a given forward."""

    def __init__(self, forward):
        super().__init__()
        self.a, self.b, self.neuron = nn.Linear(6, 8), nn.Linear(8, 5), lbq.BurstLIF(step=0.2)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def test_a_discarded_call_is_no_difference():
    def forward(net, x):
        net.neuron(2 * net.a(x))
        return net.b(net.neuron(net.a(x))).mean(0)

    model, frames = Linear(forward).eval(), torch.randn(2, 3, 6)
    torch.testing.assert_close(lbq.lower(model, frames)(frames), model(frames))


def test_a_network_for_one_batch_size_is_refused():
    def forward(net, x):
        return net.b(net.neuron(net.a(x).flatten(0, 1).unflatten(0, (2, 1)))).mean(0)

    with pytest.raises(LoweringError, match=r"with a batch of 37.*unflatten"):
        lbq.lower(Linear(forward).eval(), torch.randn(2, 1, 6))


def test_a_model_in_train_mode_is_lowered_as_in_eval_mode_with_a_warning():
    model = nn.Sequential(
        nn.Linear(6, 8), lbq.BurstLIF(step=0.2), nn.Dropout(), nn.Linear(8, 5), MeanOverTime()
    )
    frames = torch.randn(2, 3, 6)
    with pytest.warns(
        UserWarning, match=r"the network is in train mode.*call model.eval\(\) first"
    ):
        net = lbq.lower(model, frames)
    assert model.training
    torch.testing.assert_close(net(frames), model.eval()(frames))
    model[2].train()
    with pytest.warns(UserWarning, match="2 is in train mode"):
        lbq.lower(model, frames)


class Written(nn.Module):
    """A network with a forward pass of its own."""

    def __init__(self, forward):
        super().__init__()
        self.first, self.last, self.neuron = nn.Linear(4, 8), nn.Linear(8, 3), lbq.BurstLIF()
        self.written = forward

    def forward(self, x):
        return self.last(self.neuron(RepeatOverTime(2)(self.written(self, x)))).mean(0)


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: net.first(x.float()),
        lambda net, x: net.first(x.to(torch.float32)),
        lambda net, x: net.first(x.to(dtype=torch.float32)),
        lambda net, x: net.first(x.type(torch.float32)),
        lambda net, x: net.first(x).float(),
        lambda net, x: net.first(x.to(net.first.weight)),
    ],
)
def test_a_conversion_to_float32_is_lowered(forward):
    model, x = Written(forward).eval(), torch.randn(5, 4)
    torch.testing.assert_close(lbq.lower(model, x)(x), model(x))


def test_a_constant_of_another_dtype_is_refused_with_advice():
    model = Written(lambda net, x: net.first(x) @ torch.eye(8)).eval()
    with pytest.raises(LoweringError, match=r"same dtype.*dtype=x\.dtype"):
        lbq.lower(model, torch.randn(1, 4))


@pytest.mark.parametrize("name", ["first.weight", "first.bias", "neuron.decay.value"])
def test_a_nan_is_reported_where_it_is(name):
    model = Written(lambda net, x: net.first(x)).eval()
    model.state_dict()[name].view(-1)[0] = torch.nan
    with pytest.raises(LoweringError, match=f"^{name} holds a NaN or an infinity \\(1 of"):
        lbq.lower(model, torch.randn(1, 4))


def test_a_nan_in_the_example_is_reported_as_such():
    model = Written(lambda net, x: net.first(x)).eval()
    with pytest.raises(LoweringError, match=r"^the example holds a NaN"):
        lbq.lower(model, torch.full((1, 4), torch.nan))


@pytest.mark.parametrize(
    "pad", [(0, 0, 0, 0, 1, 0), (0, 0, 0, 0, 0, 2), (0, 0, 1, 0), (0, 0, 0, 1)]
)
def test_zeros_on_the_axis_of_time_or_of_the_batch_are_refused(pad):
    class Padded(Written):
        def forward(self, x):
            currents = RepeatOverTime(2)(self.first(x))
            return self.last(self.neuron(nn.functional.pad(currents, pad))).mean(0)

    with pytest.raises(LoweringError, match="it pads the time axis or the batch axis"):
        lbq.lower(Padded(None).eval(), torch.randn(1, 4))
