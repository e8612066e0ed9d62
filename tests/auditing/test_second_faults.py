"""Whole networks of a second attack: their faults are found, the clean ones raise no alarm."""

import pytest
import second_faults as second
import torch
from torch import nn
from torch.nn import functional as F

import lbq
from lbq.auditing.finding import Finding

pytestmark = pytest.mark.filterwarnings(  # networks use these all the same
    "ignore:.*deprecated", "ignore:.*reduce.*:UserWarning", "ignore:torch.quantize"
)
ALARMS = ("leak", "state", "causality", "determinism", "multiplications", "levels")


def finding(build: type[nn.Module], key: str) -> Finding:
    x, axis = second.recordings(), 1
    if build in second.PICTURES:
        x, axis = second.pictures(), 0
    elif build is second.NormalisedBatchFirst:
        x, axis = x.transpose(0, 1).contiguous(), 0
    torch.manual_seed(0)
    return lbq.audit(build(), x, batch_axis=axis)[key]


@pytest.mark.parametrize("name", second.FAULTS)
def test_a_fault_is_found_by_module(name):
    key, build, module = second.FAULTS[name]
    found = finding(build, key)
    assert (found.verdict, found.module) == ("fails", module), found.sentence


@pytest.mark.parametrize("name", second.HIDDEN)
def test_a_fault_out_of_sight_is_not_said_to_hold(name):
    key, build = second.HIDDEN[name]
    found = finding(build, key)
    assert found.verdict == "unknown", found.sentence
    assert found.sentence.startswith("not checked: ")


@pytest.mark.parametrize("name", second.UNKNOWN)
def test_what_is_not_known_is_not_checked(name):
    found = finding(second.UNKNOWN[name], "multiplications")
    assert found.verdict == "unknown", found.sentence


@pytest.mark.parametrize("name", second.CLEAN)
def test_a_clean_network_raises_no_alarm(name):
    build, samples, axis = second.CLEAN[name]
    torch.manual_seed(0)
    found = lbq.audit(build(), samples(), batch_axis=axis)
    wrong = {key: found[key].sentence for key in ALARMS if found[key].verdict == "fails"}
    assert wrong == {}
    assert {found[key].verdict for key in ("leak", "state", "determinism", "multiplications")} == {
        "holds"
    }


def test_time_behind_the_batch_is_looked_at_and_clean_networks_hold():
    found = finding(second.NormalisedBatchFirst, "causality")
    assert "axis 1 of the input" in found.sentence
    build, samples, axis = second.CLEAN["convolutions on [B, T, ...]"]
    torch.manual_seed(0)
    assert lbq.audit(build(), samples(), batch_axis=axis)["causality"].verdict == "holds"


def test_a_leaky_relu_of_levels_is_no_product_of_currents():
    class Pair(second.Events):
        def spikes(self, s):
            return F.leaky_relu(s, 0.3)

    assert finding(Pair, "multiplications").verdict == "holds"


def test_two_calls_per_timestep_are_put_in_order():
    class Twice(second.Recurrent):
        def forward(self, x):
            v = s = torch.zeros(x.shape[1], 9).to(x)
            out = []
            for frame in x:
                v = 0.5 * v * (1 - s) + self.enter(frame) + self.again(s)
                s = second.spike(v - 0.5)
                v = v * (1 - s) + self.again(s)
                s = second.spike(v - 0.5)
                out.append(self.head(s))
            return torch.stack(out).sum(0)

    assert finding(Twice, "causality").verdict == "holds"
