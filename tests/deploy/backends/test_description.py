import pytest
import torch
from random_networks import RandomNetwork

from lbq.deploy.fixed_point import to_fixed_point
from lbq.deploy.lower import lower
from lbq.deploy.lowered_network import INPUT, LoweredNetwork
from lbq.deploy.native_engine import BufferSnapshot, NetworkDescription, output_shape
from lbq.deploy.nodes import IntegerNeuron, Merge, Pool, Readout, Repeat, Shortcut, Synapse
from lbq.deploy.run import run
from lbq.errors import LoweringError


@pytest.mark.parametrize("seed", range(4))
def test_shapes_are_those_that_torch_gives(seed):
    model = RandomNetwork(seed)
    inputs = model.inputs(batch=2)
    net = to_fixed_point(lower(model, inputs.float()), pixels=None)
    described, given = NetworkDescription(net), {}
    hooks = [
        node.register_forward_hook(lambda _, args, out, path=place.path: given.update({path: out}))
        for place, node in net.nodes()
    ]
    net(inputs)
    for hook in hooks:
        hook.remove()
    for path, out in given.items():
        leading = 2 if described.has_time[path] else 1
        assert out.shape[leading:] == described.torch_shape(path), path


def test_windows_with_holes_and_strides_are_measured():
    weight = torch.zeros(4, 2, 3, 2, dtype=torch.int8)
    conv = Synapse(weight, max_input=1, stride=(2, 1), padding=(1, 0), dilation=(2, 3))
    expected = conv(torch.zeros(1, 1, 2, 9, 8, dtype=torch.uint8)).shape[2:]
    assert output_shape(conv, (2, 9, 8)) == tuple(expected)
    pool = Pool("max", kernel=(3, 2), stride=(2, 2), padding=(1, 0))
    assert output_shape(pool, (2, 9, 8)) == (2, 5, 4)


def test_numbers_that_are_written_or_replaced_are_others():
    model = RandomNetwork(1)
    net = to_fixed_point(lower(model, model.inputs().float()), pixels=None)
    before = BufferSnapshot.of(net)
    assert before.matches(net)
    next(net.buffers()).add_(1)
    assert not before.matches(net)
    synapse = next(node for _, node in net.nodes() if isinstance(node, Synapse))
    for _ in range(3):  # a tensor that is gone may leave its id to the next
        before = BufferSnapshot.of(net)
        synapse.weight = synapse.weight.clone()
        assert not before.matches(net)


def test_numbers_made_in_inference_mode_are_numbers():
    model = RandomNetwork(1)
    with torch.inference_mode():
        net = to_fixed_point(lower(model, model.inputs().float()), pixels=None)
    assert BufferSnapshot.of(net).matches(net)


def linear(inputs, outputs, *, max_input=255, **options):
    weight = torch.ones(outputs, inputs, dtype=torch.int8)
    return Synapse(weight, max_input=max_input, bits=8, **options)


def neuron(channels=1):
    thresholds, reset_amount = torch.ones(2, channels).int(), torch.ones(channels).int()
    return IntegerNeuron(
        thresholds, multiplier=1, shift=1, reset_amount=reset_amount, reset="event"
    )


def two_means(net):
    net.add("a", linear(4, 3), INPUT)
    net.add("mean", Readout("sum"), "a")
    net.add("mean_2", Readout("sum"), "a")
    net.add("sum", Merge(), "mean", "mean_2")
    net.add("end", Readout("none"), "sum")


def other_shapes(net):
    net.add("a", linear(4, 3), INPUT)
    net.add("b", linear(4, 2), INPUT)
    net.add("sum", Merge(), "a", "b")
    net.add("end", Readout("sum"), "sum")


def no_end(net):
    net.add("a", linear(4, 3), INPUT)


def unread(net):
    net.add("a", linear(4, 3), INPUT)
    net.add("b", linear(4, 3), INPUT)
    net.add("end", Readout("sum"), "a")


def levels_at_the_end(net):
    net.add("a", linear(4, 3), INPUT)
    net.add("n", neuron(), "a")
    net.add("end", Readout("sum"), "n")


def wide_thresholds(net):
    net.add("a", linear(4, 3), INPUT)
    net.add("n", neuron(channels=5), "a")
    net.add("b", linear(3, 2, max_input=2), "n")
    net.add("end", Readout("sum"), "b")


def wide_weights(net):
    net.add("a", linear(7, 3), INPUT)
    net.add("end", Readout("sum"), "a")


def repeated_frames(net):
    net.add("a", linear(4, 3), INPUT)
    net.add("again", Repeat(2), "a")
    net.add("end", Readout("sum"), "again")


def still(net):
    net.add("a", linear(4, 3, has_time=False), INPUT)
    net.add("end", Readout("sum"), "a")


def wide_shortcut(net):
    net.add("a", Shortcut(torch.ones(9, dtype=torch.int16), max_input=255), INPUT)
    net.add("end", Readout("sum"), "a")


@pytest.mark.parametrize(
    ("fill", "why"),
    [
        (two_means, "mean: a network ends with its only readout"),
        (other_shapes, "sum: it reads shapes"),
        (no_end, "a: a network ends with its only readout"),
        (unread, "b: nothing reads it"),
        (levels_at_the_end, "end: it takes currents"),
        (wide_thresholds, "n: .* 5 numbers for its channels"),
        (wide_weights, r"a: .* weights of \(3, 7\)"),
        (repeated_frames, "again: it repeats what has time already"),
        (still, "a: has_time contradicts"),
        (wide_shortcut, "a: .* 9 numbers"),
    ],
)
def test_a_network_that_the_engine_was_not_made_for_does_not_run(fill, why):
    net = LoweredNetwork(timesteps=2, input_shape=(4,), takes_frames=True, logit_scale=1.0)
    fill(net)
    with pytest.raises(LoweringError, match=why):
        run(net, torch.zeros(2, 1, 4, dtype=torch.uint8), backend="native")


def test_a_pool_that_is_larger_than_what_it_reads_does_not_run():
    net = LoweredNetwork(timesteps=1, input_shape=(1, 4, 4), takes_frames=True, logit_scale=1.0)
    weight = torch.ones(1, 1, 3, 3, dtype=torch.int8)
    net.add("a", Synapse(weight, max_input=255, bits=8), INPUT)
    net.add("pool", Pool("sum", kernel=(3, 3)), "a")
    net.add("end", Readout("sum"), "pool")
    with pytest.raises(LoweringError, match=r"pool: .*smaller than its window"):
        NetworkDescription(net)
