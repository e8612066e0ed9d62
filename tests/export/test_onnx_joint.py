import torch
from onnx_networks import integer_resnet

import lbq
from lbq.deploy.nodes import Shortcut, Synapse
from lbq.export.onnx_joint import find_joints


def test_all_neurons_but_the_first_take_their_convolutions():
    net, _ = integer_resnet(lbq.resnet20, timesteps=1, bits=8)
    groups = find_joints(net)
    assert set(groups) == {path for path, _ in net.neurons()} - {"stem_neuron"}
    taken = [node for group in groups.values() for node in group.nodes]
    assert len(taken) == len(set(taken))
    shortcuts = {place.path for place, node in net.nodes() if isinstance(node, Shortcut)}
    assert shortcuts <= set(taken)


def test_a_joined_projection_gives_the_sum_of_both_branches():
    net, _ = integer_resnet(lbq.resnet20, timesteps=1, bits=8)
    group = find_joints(net)["stages.1.0.neuron2"]
    branches = [net.get_submodule(path) for path in group.nodes]
    wide, narrow = sorted(
        (node for node in branches if isinstance(node, Synapse)),
        key=lambda node: -node.weight.shape[2],
    )
    inside = torch.randint(0, 6, (2, wide.weight.shape[1], 8, 8), dtype=torch.uint8)
    before = torch.randint(0, 6, (2, narrow.weight.shape[1], 16, 16), dtype=torch.uint8)
    assert group.strides == ((1, 1), (2, 2))
    joined = torch.cat([inside, before[..., ::2, ::2]], dim=1)
    expected = wide(inside[None]) + narrow(before[None])
    torch.testing.assert_close(group.synapse(joined[None]), expected, rtol=0, atol=0)


def test_a_current_with_a_second_reader_is_not_taken():
    net, _ = integer_resnet(lbq.resnet20, timesteps=1, bits=8, block="sew")
    readers = {}
    for place in net.plan:
        for name in place.inputs:
            readers[name] = readers.get(name, 0) + 1
    groups = find_joints(net)
    assert groups
    assert all(readers[node] == 1 for group in groups.values() for node in group.nodes)
