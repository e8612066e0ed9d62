import pytest
import torch
from random_networks import RandomNetwork
from torch import nn
from torch.nn import functional as F

import lbq
from lbq.errors import LoweringError
from lbq.graph.operators import OPERATORS, Matmul, Shortcut, Synapse
from lbq.lowering.lower import lower
from lbq.runtime.run import run_network
from lbq.time import MeanOverTime, OverTime, RepeatOverTime


def levels_of(model, inputs):
    seen = {}

    def watch(layer, t, x):
        seen[layer, t] = x

    if isinstance(model, lbq.LoweredNetwork):
        return seen, run_network(model, inputs, watch=watch)
    with torch.no_grad(), lbq.watch_levels(model, watch):
        return seen, model(inputs)


@pytest.mark.parametrize("seed", range(12))
def test_a_random_network_keeps_every_level(seed):  # S5
    model = RandomNetwork(seed, for_integers=False).double()
    inputs = model.inputs().double() / 64
    net = lower(model, inputs)
    expected, logits = levels_of(model, inputs)
    got, answer = levels_of(net, inputs)
    assert list(got) == list(expected)
    assert sum(int((got[key] != expected[key]).sum()) for key in got) == 0
    torch.testing.assert_close(answer, logits, rtol=1e-9, atol=1e-9)


def test_a_lowered_network_has_only_nodes_and_trains_nothing():
    net = lower(lbq.resnet18(10, width=1 / 16).eval(), torch.zeros(1, 3, 32, 32))
    assert all(isinstance(node, OPERATORS) for node in net.operators.values())
    assert not any(tensor.requires_grad for tensor in net.tensors.values())


def test_the_model_is_not_changed():
    model = lbq.resnet20(10, width=1 / 16).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(UserWarning, match="in train mode"):
        lower(model, torch.zeros(1, 3, 16, 16))
    assert model.training
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_neurons_keep_their_paths():
    model = lbq.resnet20(10, width=1 / 16).eval()
    net = lower(model, torch.zeros(1, 3, 16, 16))
    expected = [name for name, m in model.named_modules() if isinstance(m, lbq.BurstLIF)]
    assert [path for path, _ in net.neurons()] == expected
    assert isinstance(net.operators["stages.0.0.synapse1.0"], Synapse)
    assert isinstance(net.operators["stages.0.0.shortcut"], Shortcut)


class Forward(nn.Module):
    """A network whose forward is given: two branches of currents and a neuron."""

    def __init__(self, forward):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 5)
        self.neuron, self.wide = lbq.BurstLIF(step=0.2), nn.Linear(12, 5)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def in_place(net, x):
    y = net.a(x)
    y.add_(net.b(x))
    return net.c(net.neuron(y)).mean(0)


def under_its_old_name(net, x):
    y = z = net.a(x)
    z += net.b(x)
    return net.c(net.neuron(y)).mean(0)


def dropped(net, x):
    bursts = net.neuron(net.a(x))
    bursts.mul_(2)
    return net.c(bursts).mean(0)


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (
            lambda n, x: n.neuron(torch.cat([y := n.a(x), x], 2) + torch.cat([x, y], 2)),
            "the network itself .*concatenate parts of equal sizes",
        ),
        (lambda n, x: n.c(n.neuron(n.a(x)) * 0).mean(0), "it multiplies by 0"),
        (lambda n, x: n.c(1 / n.neuron(n.a(x))).mean(0), "reciprocal"),
        (
            lambda n, x: n.c(torch.div(n.neuron(n.a(x)), 0.5, rounding_mode="floor")).mean(0),
            "rounding_mode",
        ),
        (lambda n, x: n.c(n.neuron(n.a(x))).mean(0, keepdim=True), "keepdim"),
        (lambda n, x: n.c(F.dropout(n.neuron(n.a(x)))).mean(0), "drops values in eval mode"),
        (
            lambda n, x: n.c((y := n.a(x)) * n.neuron(y)).mean(0),
            "only products of levels are exact",
        ),
        (lambda n, x: n.wide(n.a(x)), "cannot run the example, of shape"),
        (lambda n, x: n.c(n.neuron(n.a(x)))[..., 0].mean(0), "keep an axis of length 1"),
    ],
)
def test_unsupported_functions_and_arguments_are_refused(forward, why):
    with pytest.raises(LoweringError, match=why):
        lower(Forward(forward).eval(), torch.randn(3, 7, 4))


@pytest.mark.parametrize(
    "forward",
    [
        lambda n, x: n.c(n.neuron(n.a(x))).mean(0) / 3,
        lambda n, x: 2 * n.c(n.neuron(n.a(x))).mean(dim=0, keepdim=False),
        lambda n, x: n.c(n.neuron(torch.add(n.a(x), other=n.b(x)))).mean(0),
        lambda n, x: n.wide(torch.cat(tensors=[n.neuron(n.a(x)), n.neuron(n.b(x))], dim=2)).mean(0),
        lambda n, x: n.c(n.neuron(n.a(x).flatten(0, 1).unflatten(dim=0, sizes=x.shape[:2]))),
        lambda n, x: n.c(n.neuron(n.a(x).add_(n.b(x)))).mean(0),
        lambda n, x: n.c(n.neuron(torch.add(n.a(x), n.b(x), alpha=0.5))).mean(0),
        lambda n, x: n.c(n.neuron(torch.add(n.a(x), n.b(x), alpha=-0.5))).mean(0),
        lambda n, x: n.c(-n.neuron(n.a(x)) + 1).mean(0),
        lambda n, x: n.c((y := n.neuron(n.a(x))) * y).mean(0),
        lambda n, x: torch.cat([n.c(n.neuron(n.a(x)))] * 2, 2).mean(0),
        in_place,
        under_its_old_name,
        dropped,
    ],
)
def test_other_spellings_of_supported_functions_are_exact(forward):
    torch.manual_seed(0)
    model, frames = Forward(forward).double().eval(), torch.randn(3, 7, 4).double()
    net = lower(model, frames)
    torch.testing.assert_close(net(frames), model(frames), rtol=1e-12, atol=1e-12)


class Around(nn.Module):
    """A network with something between its neuron and its readout."""

    def __init__(self, middle):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), RepeatOverTime(2))
        self.neuron, self.middle = lbq.BurstLIF(), middle
        self.head = OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
        self.mean = MeanOverTime()

    def forward(self, x):
        return self.mean(self.head(self.middle(self.neuron(self.stem(x)))))


@pytest.mark.parametrize(
    ("middle", "name"),
    [
        (nn.ReLU(), "middle"),
        (OverTime(nn.Sigmoid()), r"middle\.0"),
        (OverTime(nn.MaxPool2d(2, ceil_mode=True)), r"middle\.0"),
        (OverTime(nn.InstanceNorm2d(4)), r"middle\.0"),
    ],
)
def test_an_unsupported_module_is_refused_with_its_path(middle, name):
    with pytest.raises(LoweringError, match=name):
        lower(Around(middle).eval(), torch.zeros(1, 3, 8, 8))


def test_time_merged_by_hand_is_lowered_exactly():
    class ByHand(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.readout = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)
            self.neuron = lbq.BurstLIF(step=lbq.LearnedStep(0.2, channels=4))

        def forward(self, frames):
            timesteps, batch = frames.shape[:2]
            x = self.neuron(self.conv(frames.flatten(0, 1)).unflatten(0, (timesteps, batch)))
            return self.readout(F.dropout(2 * x, training=False).mean(dim=(3, 4))).mean(0)

    model, frames = ByHand().double().eval(), torch.randn(3, 4, 2, 9, 9).double()
    net = lower(model, frames)
    torch.testing.assert_close(net(frames), model(frames), rtol=1e-12, atol=1e-12)


def test_flattened_channels_are_concatenated_and_added_to_features():
    class Both(nn.Module):
        def __init__(self, join, features):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(2, 3, 1), nn.Linear(8, 12)
            self.one, self.two, self.head = lbq.BurstLIF(), lbq.BurstLIF(), nn.Linear(features, 2)
            self.join = join

        def forward(self, x):
            t, b = x.shape[:2]
            maps = self.one(self.conv(x.flatten(0, 1)).unflatten(0, (t, b))).flatten(2)
            return self.head(self.join(maps, self.two(self.fc(x.flatten(2))))).mean(0)

    for join, features in ((lambda a, b: torch.cat([a, b], 2), 24), (lambda a, b: a + b, 12)):
        model, frames = Both(join, features).double().eval(), torch.randn(2, 5, 2, 2, 2).double()
        net = lower(model, frames)
        torch.testing.assert_close(net(frames), model(frames), rtol=1e-12, atol=1e-12)


def test_several_outputs_are_a_tuple_in_order():
    def forward(n, x):
        bursts = n.neuron(n.a(x))
        return {
            "first": n.c(bursts).mean(0),
            "second": [n.wide(torch.cat([bursts] * 2, 2)).mean(0)],
        }

    model, frames = Forward(forward).double().eval(), torch.randn(3, 7, 4).double()
    first, second = lower(model, frames)(frames)
    torch.testing.assert_close(first, model(frames)["first"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(second, model(frames)["second"][0], rtol=1e-12, atol=1e-12)


def test_three_matrices_are_multiplied_in_the_cheaper_order():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))
            self.neurons = nn.ModuleList(lbq.BurstLIF(step=0.3) for _ in range(4))

        def forward(self, x):
            q, k, v = (
                n(f(x)) for n, f in zip(self.neurons[:3], (self.q, self.k, self.v), strict=True)
            )
            return self.neurons[3](0.1 * (q @ k.mT) @ v).mean(2)

    for tokens, inner in ((20, (1, 4, 4)), (3, (1, 3, 3))):
        model, x = Attention().double().eval(), torch.randn(2, 5, tokens, 4).double()
        net = lower(model, x, batch_axis=1)
        products = [
            net.values()[path] for path, node in net.operators.items() if isinstance(node, Matmul)
        ]
        assert [value.shape for value in products] == [inner, (1, tokens, 4)]
        torch.testing.assert_close(net(x), model(x), rtol=1e-12, atol=1e-12)


def test_modules_may_be_named_as_attributes_of_lowered_networks_are():
    class Names(nn.Module):
        def __init__(self):
            super().__init__()
            self.plan, self.neurons, self.values = nn.Linear(4, 6), lbq.BurstLIF(), nn.Linear(6, 2)

        def forward(self, x):
            return self.values(self.neurons(self.plan(x))).mean(0)

    model, frames = Names().double().eval(), torch.randn(3, 7, 4).double()
    net = lower(model, frames)
    assert [path for path, _ in net.neurons()] == ["neurons"]
    torch.testing.assert_close(net(frames), model(frames), rtol=1e-12, atol=1e-12)


def test_the_batch_axis_says_whether_the_first_axis_is_time():
    frames = nn.Sequential(OverTime(nn.Conv1d(3, 4, 3)), lbq.BurstLIF(), OverTime(nn.Flatten()))
    model, x = (
        nn.Sequential(*frames, nn.Linear(24, 5), MeanOverTime()).eval(),
        torch.randn(2, 6, 3, 8),
    )
    net = lower(model, x, batch_axis=1)
    assert (net.takes_frames, net.timesteps, net.input_shape) == (True, 2, (3, 8))
    torch.testing.assert_close(net(x), model(x))
    with pytest.raises(LoweringError, match="pass batch_axis=1"):
        lower(model, x)
    with pytest.raises(LoweringError, match="batch_axis=2"):
        lower(model, x, batch_axis=2)


def test_float32_flips_few_levels_and_keeps_the_answer():  # S9
    torch.manual_seed(0)
    model = lbq.resnet20(10, width=1 / 8).eval()
    images = torch.randn(16, 3, 32, 32)
    expected, logits = levels_of(model, images)
    got, answer = levels_of(lower(model, images[:1]), images)
    flipped = sum(int((got[key] != expected[key]).sum()) for key in got)
    assert flipped / sum(level.numel() for level in got.values()) < 1e-4  # reported for real nets
    assert torch.equal(answer.argmax(1), logits.argmax(1))


def test_a_lowered_network_compiles_to_equal_levels():
    net = lower(lbq.resnet20(10, width=1 / 16).double().eval(), torch.zeros(1, 3, 16, 16).double())
    images = torch.randn(2, 3, 16, 16).double()
    exported = torch.export.export(lbq.graph.as_module(net), (images,))
    torch.testing.assert_close(exported.module()(images), run_network(net, images))
