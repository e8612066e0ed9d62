import torch

import lbq
from lbq.deploy.fixed_point import SHORTCUT_MAX, choose_units, group_currents
from lbq.deploy.lower import lower
from lbq.deploy.nodes import Synapse


def units(model, images):
    net = lower(model.eval(), images)
    groups = group_currents(net)
    best = {
        place.path: node.weight.double().flatten(1).abs().amax(1) / 127
        for place, node in net.nodes()
        if isinstance(node, Synapse)
    }
    choose_units(net, groups, best)
    return net, groups, best


def test_what_is_added_has_one_unit():
    _, groups, _ = units(lbq.resnet20(10, width=1 / 8), torch.zeros(1, 3, 16, 16))
    block = groups["stages.1.0.merge"]
    assert groups["stages.1.0.synapse2.0"] is block
    assert groups["stages.1.0.shortcut.0"] is block
    assert groups["stages.1.0.neuron2:currents"] is block
    assert groups["stages.1.0.synapse1.0"] is not block


def test_a_unit_fits_every_weight_of_its_group():
    net, groups, best = units(lbq.resnet20(10, width=1 / 8), torch.zeros(1, 3, 16, 16))
    for path, unit in best.items():
        assert bool((groups[path].unit >= unit).all())
    shortcut = net.get_submodule("stages.0.0.shortcut").weight.double()
    integers = shortcut / groups["stages.0.0.shortcut"].unit
    assert bool((integers.abs() <= SHORTCUT_MAX).all())


def test_all_classes_share_a_unit():
    _, groups, _ = units(lbq.resnet20(10, width=1 / 8), torch.zeros(1, 3, 16, 16))
    assert groups["readout"].unit.numel() == 1
