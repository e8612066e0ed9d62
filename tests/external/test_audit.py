"""Audits of SpikingJelly's and snnTorch's own networks: verdicts, and counts equal to a loop."""

import itertools
import os
import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import lbq

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing library is an error, here a skip
    for package in ("spikingjelly", "snntorch"):
        pytest.importorskip(package, reason=f"{package} is installed by .ci/external")

import snntorch
from spikingjelly.activation_based import functional, neuron, surrogate

# Their networks import a function that torchvision takes from torch.hub, to download weights. There
# is no torchvision for torch's CPU build, so the function comes from torch.hub itself.
_utils = ModuleType("torchvision._internally_replaced_utils")
_utils.load_state_dict_from_url = torch.hub.load_state_dict_from_url
with pytest.MonkeyPatch.context() as patch:
    patch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    patch.setitem(sys.modules, "torchvision._internally_replaced_utils", _utils)
    from spikingjelly.activation_based.model import sew_resnet, spiking_resnet

T = 4
ALARMS = ("leak", "state", "causality", "determinism", "levels")


class Resetting(nn.Module):
    """SpikingJelly's networks keep their membranes: reset before every call, as its users do."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        functional.set_step_mode(network, "m")

    def forward(self, images):
        functional.reset_net(self.network)
        return self.network(images.unsqueeze(0).repeat(T, 1, 1, 1, 1)).mean(0)


def jelly(build, **options):
    torch.manual_seed(0)
    network = build(
        spiking_neuron=neuron.IFNode, surrogate_function=surrogate.ATan(), num_classes=5, **options
    )
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.8, 1.6)
            nn.init.normal_(module.bias, 0.2, 0.3)
    return network


def forgetful():
    network = jelly(spiking_resnet.spiking_resnet18)
    functional.set_step_mode(network, "m")
    return nn.Sequential(lbq.RepeatOverTime(T), network, lbq.MeanOverTime())


class Tutorial5(nn.Module):
    """Fully connected, leaky neurons in a loop over time."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(48, 20), nn.Linear(20, 5)
        self.lif1, self.lif2 = snntorch.Leaky(beta=0.95), snntorch.Leaky(beta=0.95)

    def forward(self, x):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spikes = []
        for _ in range(T):
            spk1, mem1 = self.lif1(self.fc1(x.flatten(1)), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
        return torch.stack(spikes).sum(0)


class Tutorial6(nn.Module):
    """Convolutions with max pools before leaky neurons."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.fc1 = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3), nn.Linear(32, 5)
        self.lif1, self.lif2, self.lif3 = (snntorch.Leaky(beta=0.5) for _ in range(3))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        mem1, mem2, mem3 = (lif.init_leaky() for lif in (self.lif1, self.lif2, self.lif3))
        members = []
        for _ in range(T):
            spk1, mem1 = self.lif1(self.pool(self.conv1(x)), mem1)
            spk2, mem2 = self.lif2(self.pool(self.conv2(spk1)), mem2)
            spk3, mem3 = self.lif3(self.fc1(spk2.flatten(1)), mem3)
            members.append(spk3)
        return torch.stack(members).sum(0)


NETWORKS = {
    "spiking ResNet": (lambda: Resetting(jelly(spiking_resnet.spiking_resnet18)), 32),
    "SEW ResNet": (lambda: Resetting(jelly(sew_resnet.sew_resnet18, cnf="ADD")), 32),
    "tutorial 5": (Tutorial5, 4),
    "tutorial 6": (Tutorial6, 14),
}


def images(side, count=3):
    torch.manual_seed(1)
    return 2 * torch.randn(count, 3, side, side)


@pytest.mark.parametrize("name", NETWORKS)
def test_their_networks_raise_no_alarm(name):
    build, side = NETWORKS[name]
    torch.manual_seed(0)
    found = lbq.audit(build(), images(side))
    assert [f for f in found.findings if f.key in ALARMS and f.verdict == "fails"] == []
    assert all(emitter.is_certain for emitter in found.emitters)


def test_a_network_that_is_never_reset_is_found():
    finding = lbq.audit(forgetful(), images(32))["state"]
    assert finding.verdict == "fails"
    assert "reset_net" in finding.advice


def by_hand(model, x):
    """Perform every accumulation of every synapse that reads integers: unary, one by one."""
    total = [0]

    def perform(module, args, output):
        levels = args[0].detach()
        if not torch.equal(levels, levels.round()):
            return
        flat = levels.reshape(-1, *levels.shape[1 - module.weight.dim() :]).long()
        for index in flat.nonzero().tolist():
            level = int(flat[tuple(index)])
            total[0] += level * sum(1 for _ in targets(module, index[1:], output.shape))

    hooks = [
        m.register_forward_hook(perform)
        for m in model.modules()
        if isinstance(m, nn.Conv2d | nn.Linear)
    ]
    with torch.no_grad():
        model.eval()(x)
    for hook in hooks:
        hook.remove()
    return total[0]


def targets(module, at, shape):
    """Yield every output that one input reaches."""
    if isinstance(module, nn.Linear):
        yield from range(module.out_features)
        return
    _, row, column = at
    for channel in range(module.out_channels):
        for i, j in itertools.product(*map(range, module.kernel_size)):
            places = []
            for here, tap, axis in ((row, i, 0), (column, j, 1)):
                far = here + module.padding[axis] - tap * module.dilation[axis]
                places.append(divmod(far, module.stride[axis]))
            inside = all(
                rest == 0 and 0 <= place < size
                for (place, rest), size in zip(places, shape[-2:], strict=True)
            )
            if inside:
                yield channel, i, j


@pytest.mark.parametrize("name", ["tutorial 5", "tutorial 6"])
def test_counts_of_snntorch_equal_a_loop(name):
    build, side = NETWORKS[name]
    torch.manual_seed(0)
    model, x = build(), images(side)
    assert lbq.audit(model, x).products.total().unary_acs == by_hand(model, x) > 0


class Small(nn.Module):
    """A SpikingJelly block small enough for a loop: stride, padding, a shortcut of spikes."""

    def __init__(self):
        super().__init__()
        options = {"surrogate_function": surrogate.ATan(), "step_mode": "m"}
        self.conv1 = lbq.OverTime(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.conv2 = lbq.OverTime(nn.Conv2d(4, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4))
        self.conv3 = lbq.OverTime(nn.Conv2d(4, 4, 3, padding=1, bias=False))
        self.fc = nn.Linear(64, 5)
        self.sn1, self.sn2, self.sn3 = (
            neuron.LIFNode(**options),
            neuron.IFNode(**options),
            neuron.ParametricLIFNode(**options),
        )

    def forward(self, x):
        functional.reset_net(self)
        spikes = self.sn2(self.conv2(self.sn1(self.conv1(x.unsqueeze(0).repeat(T, 1, 1, 1, 1)))))
        return self.fc((spikes + self.sn3(self.conv3(spikes))).flatten(2)).mean(0)  # 0, 1 or 2


def test_counts_of_spikingjelly_equal_a_loop():
    torch.manual_seed(0)
    model, x = Small(), images(8)
    found = lbq.audit(model, x)
    assert found.products.total().unary_acs == by_hand(model, x) > 0
    assert found["leak"].verdict == found["state"].verdict == "holds"


def plain_jelly():
    """A network that keeps its membranes, in one layer."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), neuron.LIFNode(step_mode="m", detach_reset=True), nn.Linear(8, 3)
    )


def test_a_count_that_fails_leaves_their_state_as_it_was():
    model, x = plain_jelly(), torch.randn(T, 5, 6)
    with pytest.raises(lbq.LBQError):
        lbq.count_ops(model, x)
    assert model[1].v == 0.0
    assert lbq.audit(model, x)["state"].module == "1"


def test_an_audit_after_a_training_step_without_reset_runs():
    model, x = plain_jelly(), 2 * torch.randn(T, 5, 6)
    model(x).sum().backward()
    before = model[1].v.clone()
    assert lbq.audit(model, x)["state"].verdict == "fails"
    assert torch.equal(model[1].v, before)
