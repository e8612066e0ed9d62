import pytest
import torch
from random_networks import RandomNetwork

from lbq.deploy.backends.description import Described, fingerprint, shape_behind
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


def test_a_fingerprint_changes_with_the_numbers():
    model = RandomNetwork(1)
    net = to_fixed_point(lower(model, model.inputs().float()))
    before = fingerprint(net)
    assert fingerprint(net) == before
    next(net.buffers()).add_(1)
    assert fingerprint(net) != before
