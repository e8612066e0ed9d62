import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import lbq
from lbq.errors import LoweringError
from lbq.graph.capture import EXPORTED_BATCH, Constant, capture
from lbq.time import RepeatOverTime


class Net(nn.Module):
    """Linear layers, a neuron and a forward that is given."""

    def __init__(self, forward):
        super().__init__()
        self.a, self.b, self.neuron = nn.Linear(4, 4), nn.Linear(4, 4), lbq.BurstLIF()
        self.drop, self.repeat = nn.Dropout(), RepeatOverTime(2)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def operators(forward, x=None):
    x = torch.zeros(2, 1, 4) if x is None else x
    model = forward if isinstance(forward, nn.Module) else Net(forward)
    return [call.operator for call in capture(model, x, batch_axis=int(x.dim() == 3)).calls]


def test_calls_have_the_paths_and_shapes_of_the_network():
    model = lbq.resnet20(10, width=1 / 16)
    calls = capture(model, torch.zeros(1, 3, 16, 16), batch_axis=0).calls
    neurons = {call.path: call for call in calls if call.operator == "lbq.neuron"}
    expected = [name for name, m in model.named_modules() if isinstance(m, lbq.BurstLIF)]
    assert list(neurons) == expected
    assert neurons["stages.1.0.neuron1"].shape == (2, EXPORTED_BATCH, 16, 8, 8)
    assert neurons["stages.1.0.neuron1"].module is model.stages[1][0].neuron1
    (conv,) = [call for call in calls if call.path == "stages.1.0.synapse1.0"]
    assert conv.operator == "aten.conv2d"
    assert conv.arguments["stride"] == [2, 2]
    assert conv.arguments["groups"] == 1  # a default
    assert [reader.path for reader in conv.readers] == ["stages.1.0.synapse1.1"]


def test_calls_know_their_line_of_code():
    def forward(net, x):
        return net.a(x) * 2

    calls = capture(Net(forward), torch.zeros(2, 1, 4), batch_axis=1).calls
    assert all(call.line.startswith("test_capture.py:") for call in calls[1:])


def test_hooks_and_code_that_asks_for_tensors_are_recorded():
    model = Net(lambda n, x: 2 * n.a(x) if isinstance(x, torch.Tensor) else n.a(x))
    model.a.register_forward_hook(lambda module, args, out: out + args[0])
    model.a.register_forward_pre_hook(lambda module, args: (args[0] / 2,))
    expected = ["input", "aten.div", "aten.linear", "aten.add", "aten.mul"]
    assert operators(model) == expected


def test_a_subclass_is_recorded_as_what_it_computes():
    class Shifted(lbq.BurstLIF):
        def forward(self, currents):
            return 2 * super().forward(currents - 0.3)

    model = Net(lambda n, x: n.neuron(x))
    model.neuron = Shifted()
    assert operators(model) == ["input", "aten.sub", "lbq.neuron", "aten.mul"]


def under_another_name(n, x):
    y = z = n.a(x)
    z += n.b(x)
    return n.neuron(y)


def behind_a_view(n, x):
    y = n.a(x)
    y.flatten(0, 1).add_(n.b(x).flatten(0, 1))
    return n.neuron(y)


def behind_dropout(n, x):
    y = n.a(x)
    n.drop(y).add_(n.b(x))
    return n.neuron(y)


@pytest.mark.parametrize("forward", [under_another_name, behind_a_view, behind_dropout])
def test_what_is_written_in_place_reaches_every_name(forward):
    calls = capture(Net(forward), torch.zeros(2, 1, 4), batch_axis=1).calls
    reached, waiting = set(), [calls[-1]]
    while waiting:
        call = waiting.pop()
        reached.add(call.path)
        waiting += [v for v in call.arguments.values() if not isinstance(v, Constant | int)]
        waiting = [v for v in waiting if hasattr(v, "operator")]
    assert {"a", "b", "neuron"} <= reached
    assert not any(call.operator.endswith("_") for call in calls)


def test_what_the_output_does_not_depend_on_is_left_out():
    def forward(net, x):
        net.neuron(net.b(x))
        return net.a(x)

    assert operators(forward) == ["input", "aten.linear"]


@pytest.mark.parametrize(
    "change",
    [parametrizations.weight_norm, parametrizations.spectral_norm, nn.utils.weight_norm],
)
def test_a_computed_weight_is_a_constant_with_the_value_of_eval_mode(change):
    model = Net(lambda n, x: n.a(x)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        change(model.a)
    (linear,) = capture(model, torch.zeros(2, 1, 4), batch_axis=1).calls[1:]
    weight = linear.arguments["weight"]
    assert isinstance(weight, Constant)
    x = torch.randn(3, 4)
    expected = model.a(x)
    assert torch.equal(nn.functional.linear(x, weight.compute(), model.a.bias), expected)


def test_constants_are_computed_from_what_the_model_holds_at_the_time():
    model = Net(lambda n, x: n.a(x) * torch.exp(n.b.bias[0]))
    product = capture(model, torch.zeros(2, 1, 4), batch_axis=1).calls[-1]
    nn.init.constant_(model.b.bias, 2.0)
    assert float(product.arguments["other"].compute()) == pytest.approx(7.389056)


def test_the_model_is_left_as_it_was():
    def forward(net, x):
        net.kept = net.a(x)
        return net.neuron(net.kept)

    model = Net(forward).train()
    nn.utils.parametrizations.weight_norm(model.b)
    before = [(module, dict(vars(module))) for module in model.modules()]
    capture(model, torch.zeros(2, 1, 4), batch_axis=1)
    for module, attributes in before:
        assert vars(module).keys() == attributes.keys()
        assert all(vars(module)[name] is value for name, value in attributes.items())


def loop(n, x):
    while x.sum() < 1:
        x = n.a(x)
    return x


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (
            lambda n, x: n.a(x) if x.max() > 0 else x,
            r"code in the network itself, test_capture\.py",
        ),
        (loop, "remove branches and loops"),
        (
            lambda n, x: n.a(x[..., :3]),
            r"cannot run the example, of shape \[2, 1, 4\].* in a, test_capture",
        ),
        (lambda n, x: n.neuron.stream(x, n.a(x)[0])[0], "forward passes a carry to neuron"),
    ],
)
def test_what_cannot_be_exported_is_refused_with_the_place_and_the_reason(forward, why, capfd):
    with pytest.raises(LoweringError, match=why):
        operators(forward)
    assert capfd.readouterr().err == ""


def test_a_forward_that_writes_into_a_buffer_is_refused():
    model = Net(lambda n, x: n.a(x) * n.count.add_(1))
    model.register_buffer("count", torch.zeros(1))
    with pytest.raises(LoweringError, match="buffer count in eval mode"):
        operators(model)


def test_random_numbers_are_no_constants():
    assert "aten.rand" in operators(lambda n, x: n.a(x) * torch.rand(1))


def test_networks_are_captured_where_jaxtyping_is_not_installed():
    code = """
import sys
sys.modules["jaxtyping"] = None  # as at a user's
import torch, lbq
model = lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1)).eval()
lbq.lower(model, torch.zeros(1, 3, 16, 16))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
