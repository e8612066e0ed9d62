import pytest
import torch
from random_networks import RandomNetwork

from lbq.deploy.backends.description import Described, Numbers, shape_behind
from lbq.deploy.fixed_point import to_fixed_point
from lbq.deploy.lower import lower
from lbq.deploy.nodes import Pool, Synapse

pytestmark = pytest.mark.as_shipped  # the annotation checks stop tracers


@pytest.mark.parametrize("seed", range(4))
def test_shapes_are_those_that_torch_gives(seed):
    model = RandomNetwork(seed)
    inputs = model.inputs(batch=2)
    net = to_fixed_point(lower(model, inputs.float()))
    described, given = Described(net), {}
    hooks = [
        node.register_forward_hook(lambda _, args, out, path=place.path: given.update({path: out}))
        for place, node in net.nodes()
    ]
    net(inputs)
    for hook in hooks:
        hook.remove()
    for path, out in given.items():
        leading = 1 if described.is_still[path] else 2
        assert out.shape[leading:] == described.torch_shape(path), path


def test_windows_with_holes_and_strides_are_measured():
    weight = torch.zeros(4, 2, 3, 2, dtype=torch.int8)
    conv = Synapse(weight, max_input=1, stride=(2, 1), padding=(1, 0), dilation=(2, 3))
    expected = conv(torch.zeros(1, 1, 2, 9, 8, dtype=torch.uint8)).shape[2:]
    assert shape_behind(conv, (2, 9, 8)) == tuple(expected)
    pool = Pool("max", kernel=(3, 2), stride=(2, 2), padding=(1, 0))
    assert shape_behind(pool, (2, 9, 8)) == (2, 5, 4)


def test_numbers_that_are_written_or_replaced_are_others():
    model = RandomNetwork(1)
    net = to_fixed_point(lower(model, model.inputs().float()))
    before = Numbers.of(net)
    assert before.are_those_of(net)
    next(net.buffers()).add_(1)
    assert not before.are_those_of(net)
    synapse = next(node for _, node in net.nodes() if isinstance(node, Synapse))
    for _ in range(3):  # a tensor that is gone may leave its id to the next
        before = Numbers.of(net)
        synapse.weight = synapse.weight.clone()
        assert not before.are_those_of(net)


def test_numbers_made_in_inference_mode_are_numbers():
    model = RandomNetwork(1)
    with torch.inference_mode():
        net = to_fixed_point(lower(model, model.inputs().float()))
    assert Numbers.of(net).are_those_of(net)
