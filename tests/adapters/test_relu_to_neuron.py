import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lbq
from lbq.adapters.relu_to_neuron import with_neurons
from lbq.errors import LoweringError


class Block(nn.Module):
    """A residual block as people write them: one ReLU module, called twice."""

    def __init__(self, channels):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + x)


class Net(nn.Module):
    """Modules and functions, reshapes by numbers, a shortcut from before the first ReLU."""

    def __init__(self, *, asks_early=False):
        super().__init__()
        self.asks_early = asks_early
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.block = Block(4)
        self.skip = nn.Conv2d(3, 4, 1)
        self.fc1, self.fc2 = nn.Linear(4 * 16, 8), nn.Linear(8, 5)

    def forward(self, x):
        early = x.size(0)
        out = F.relu(self.conv(x))
        out = self.block(out) + self.skip(x)
        out = F.max_pool2d(torch.relu(out), 2)
        out = out.view(early if self.asks_early else out.size(0), -1)
        return self.fc2(self.fc1(out).relu())


IMAGES = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def net(**options):
    torch.manual_seed(0)
    return Net(**options).eval()


def rectifier(module, channels):
    return nn.ReLU()


def instant_neuron(module, channels):
    """A neuron that remembers nothing: every timestep answers as the first."""
    return lbq.BurstLIF(255, step=0.01, decay=0.0)


@pytest.mark.parametrize("asks_early", [False, True])
@pytest.mark.parametrize("timesteps", [1, 3])
def test_with_rectifiers_it_answers_as_before(asks_early, timesteps):
    model = net(asks_early=asks_early)
    timed = with_neurons(model, IMAGES, timesteps=timesteps, build=rectifier)
    torch.testing.assert_close(timed(IMAGES), model(IMAGES))
    assert timed(IMAGES[:2]).shape == (2, 5)  # another batch


def test_every_place_gets_a_neuron_of_its_own():
    timed = with_neurons(net(), IMAGES, timesteps=2, build=instant_neuron)
    paths = [path for path, _ in lbq.neurons.named_neurons(timed)]
    assert sorted(paths) == ["block.relu", "block.relu_2", "relu", "relu_2", "relu_3"]
    assert not any(isinstance(module, nn.ReLU) for module in timed.modules())


def test_neurons_are_built_for_the_channels_that_arrive():
    channels = []
    with_neurons(
        net(), IMAGES, timesteps=2, build=lambda module, c: channels.append(c) or nn.ReLU()
    )
    assert channels == [4, 4, 4, 4, 8]


@pytest.mark.parametrize(("asks_early", "stem_batch"), [(False, 3), (True, 6)])
def test_what_lies_before_the_first_neuron_runs_once_unless_numbers_are_asked(
    asks_early, stem_batch
):
    timed = with_neurons(net(asks_early=asks_early), IMAGES, timesteps=2, build=instant_neuron)
    seen = {}
    for path in ("conv", "skip", "block.conv1", "fc2"):
        timed.get_submodule(path).register_forward_pre_hook(
            lambda m, args, p=path: seen.update({p: len(args[0])})
        )
    timed(IMAGES)
    assert seen == {"conv": stem_batch, "skip": stem_batch, "block.conv1": 6, "fc2": 6}


def test_neurons_see_every_timestep_in_order():
    class Memory(lbq.neurons.Neuron):
        def scan(self, currents, carry):
            return currents.cumsum(0), currents.to(torch.uint8), currents[0]

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    x = torch.rand(4, 2)
    timed = with_neurons(model, x, timesteps=3, build=lambda module, channels: Memory(1))
    currents = model[0](x)
    torch.testing.assert_close(timed(x), model[2](currents * 2))  # the mean of 1, 2, 3


def test_the_result_can_be_lowered_and_counted():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), Block(4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
    )
    timed = with_neurons(model, IMAGES, timesteps=2, build=instant_neuron).double()
    lowered = lbq.lower(timed, IMAGES[:1].double())
    torch.testing.assert_close(lowered(IMAGES.double()), timed(IMAGES.double()))
    counter = lbq.OpCounter(timed, IMAGES[:1].double())
    with lbq.watch_levels(timed, counter):
        timed(IMAGES.double())
    assert not counter.table().untracked
    assert counter.table().total().unary_acs > 0


def test_a_network_with_time_keeps_its_class_and_its_weights():
    def relu(channels):
        return nn.ReLU()

    ann = lbq.resnet20(10, timesteps=1, width=1 / 16, blocks=(1, 1, 1), neuron=relu).eval()
    timed = with_neurons(ann, IMAGES, timesteps=2, build=rectifier)
    assert isinstance(timed, lbq.SpikingResNet)
    assert timed is not ann
    torch.testing.assert_close(timed(IMAGES), ann(IMAGES))
    assert set(timed.state_dict()) == set(ann.state_dict())


class Functional(nn.Module):
    def forward(self, x):
        return F.relu(x)


def test_what_cannot_be_done_is_refused_in_words():
    class Fickle(nn.Module):
        def forward(self, x):
            return x.relu() if x.sum() > 0 else x

    with pytest.raises(LoweringError, match="branch on values"):
        with_neurons(Fickle(), IMAGES, timesteps=1, build=rectifier)
    with pytest.raises(LoweringError, match="no ReLU"):
        with_neurons(nn.Sequential(nn.GELU()), IMAGES, timesteps=1, build=rectifier)
    shared = nn.ReLU()
    for relus, why in (
        ([shared, shared], "is called 2 times"),
        ([Functional()], "as a function"),
        ([nn.GELU()], "no ReLU"),
    ):
        timed = nn.Sequential(lbq.RepeatOverTime(1), *relus, lbq.MeanOverTime())
        with pytest.raises(LoweringError, match=why):
            with_neurons(timed, IMAGES, timesteps=1, build=rectifier)
    events = lbq.resnet20(10, width=1 / 16, form="events", neuron=lambda channels: nn.ReLU())
    with pytest.raises(LoweringError, match="takes frames"):
        with_neurons(events, IMAGES, timesteps=1, build=rectifier)
