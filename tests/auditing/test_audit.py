"""Faults that published networks had, written from their equations, and the same without them."""

import html
import json
import runpy
from pathlib import Path

import pytest
import torch
import user_networks
from lowering import test_user_networks
from torch import nn

import lbq
from lbq.errors import ShapeError
from lbq.models import maxformer, spikeformer_5m
from lbq.neurons import HardResetLIF

T = 4


class TokenMixer(nn.Module):
    """A projection behind attention; its neuron reads ``[T * B, C]`` as time, or ``[T, B, C]``."""

    def __init__(self, *, leaks):
        super().__init__()
        self.leaks, self.proj_lif = leaks, HardResetLIF(threshold=0.5)
        self.proj = nn.Linear(8, 8)

    def forward(self, x):
        rows = self.proj(x)
        if self.leaks:
            return self.proj_lif(rows.flatten(0, 1).unsqueeze(1)).view_as(rows)
        return self.proj_lif(rows)


class Remembering(nn.Module):
    """A neuron that keeps its membrane between calls unless it is reset."""

    def __init__(self, *, resets):
        super().__init__()
        self.resets, self.membrane = resets, 0.0

    def forward(self, x):
        if self.resets:
            self.membrane = 0.0
        spikes = []
        for current in x:
            self.membrane = 0.9 * self.membrane + current
            spikes.append((self.membrane >= 1).to(current))
            self.membrane = self.membrane * (1 - spikes[-1])
        return torch.stack(spikes)


class TimeNorm(nn.Module):
    """A norm with the statistics of all timesteps, or of each alone."""

    def __init__(self, *, looks_ahead):
        super().__init__()
        self.axes = (0, 2) if looks_ahead else 2

    def forward(self, x):
        mean, std = x.mean(self.axes, keepdim=True), x.std(self.axes, keepdim=True)
        return (x - mean) / (std + 1e-3)


class Smoothed(nn.Module):
    """A neuron whose spikes are averaged with real weights, or are not."""

    def __init__(self, *, averages):
        super().__init__()
        self.averages, self.neuron = averages, lbq.BurstLIF(1, step=0.3)

    def forward(self, x):
        spikes = self.neuron(x)
        if self.averages:
            spikes = 0.61803 * spikes + 0.38197 * spikes.roll(1, -1) + 0.1 * spikes.roll(2, -1)
        return spikes


def network(layer):
    return nn.Sequential(
        nn.Linear(6, 8), lbq.RepeatOverTime(T), lbq.BurstLIF(3, step=0.2), nn.Linear(8, 8), layer,
        nn.Linear(8, 3), lbq.MeanOverTime(),
    )  # fmt: skip


def samples(count=12):
    torch.manual_seed(1)
    return 2 * torch.randn(count, 6)


FAULTS = {
    "leak": (lambda faulty: TokenMixer(leaks=faulty), "4.proj_lif"),
    "state": (lambda faulty: Remembering(resets=not faulty), "4"),
    "causality": (lambda faulty: TimeNorm(looks_ahead=faulty), "4"),
    "levels": (lambda faulty: Smoothed(averages=faulty), "4"),
}


@pytest.mark.parametrize("key", FAULTS)
def test_a_fault_is_found_with_its_module_and_mended_it_is_not(key):
    build, module = FAULTS[key]
    torch.manual_seed(0)
    spikes = ("4",) if key == "levels" else ()
    finding = lbq.audit(network(build(True)), samples(), spikes=spikes)[key]
    assert (finding.verdict, finding.module) == ("fails", module)
    assert finding.advice
    assert lbq.audit(network(build(False)), samples(), spikes=spikes)[key].verdict == "holds"


CLEAN = {
    "resnet": lambda: lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1)),
    "sew": lambda: lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1), block="sew"),
    "ms": lambda: lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1), block="ms"),
    "spikeformer": lambda: spikeformer_5m(10, width=0.25, blocks=(1, 1, 1, 1, 1), form="cifar"),
    "maxformer": lambda: maxformer(10, channels=64, blocks=(1, 1, 1), timesteps=2, form="cifar"),
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_networks_raise_no_alarm(name):
    torch.manual_seed(0)
    found = lbq.audit(CLEAN[name](), torch.randn(4, 3, 32, 32))
    for key in ("leak", "state", "causality", "determinism", "levels"):
        assert found[key].verdict != "fails", found[key]
    # the sum of all branches is real-valued, and the classifier of "ms" reads it
    assert found["deployability"].verdict == ("fails" if name == "ms" else "holds")


def test_counts_are_those_of_the_counter():
    torch.manual_seed(0)
    model, images = lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1)), torch.randn(5, 3, 16, 16)
    found, counts = lbq.audit(model, images), lbq.count_ops(model, images)
    assert found.products.total() == counts.total()
    assert found.products.real_macs == counts.fp_macs(padding="counted")
    assert found.timesteps == 2
    ours, theirs = found.energy, lbq.EnergyModel(padding="counted").estimate(counts)
    for row in theirs.arithmetic:
        assert ours[row.name].burst_mj == pytest.approx(row.burst_mj)
    assert ours.burst_traffic.state_bytes == theirs.burst_traffic.state_bytes
    estimate = found["counts"].evidence["rate_times_flops"]
    assert estimate == pytest.approx(counts.rate_estimate().acs / 5, rel=1e-3)  # pools apart


def test_hand_written_neurons_are_found_by_their_values_and_counted_by_a_loop():
    class Spike(nn.Module):
        def forward(self, x):
            return 0.7 * (x / 0.5).floor().clamp(0, 3)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), Spike(), nn.Linear(8, 3)).eval()
    found = lbq.audit(model, samples())
    (emitter,) = found.emitters
    assert (emitter.path, emitter.is_certain, emitter.max_level) == ("1", False, 3)
    assert emitter.step == pytest.approx(0.7)
    with torch.no_grad():
        levels = (model[0](samples()) / 0.5).floor().clamp(0, 3).long()
    performed = sum(int(level) * 3 for level in levels.flatten())
    assert found.products.total().unary_acs == performed
    assert found.products.total().bit_sparse_acs == sum(
        int(level).bit_count() * 3 for level in levels.flatten()
    )
    assert any("spikes=" in note for note in found.notes)


def test_products_of_levels_are_counted_and_warn_of_spike_trains():
    torch.manual_seed(0)
    found = lbq.audit(CLEAN["spikeformer"](), torch.randn(4, 3, 32, 32))
    assert found["multiplications"].verdict == "holds"
    model = CLEAN["maxformer"]()  # binary: spike trains are what it has
    assert lbq.audit(model, torch.randn(4, 3, 32, 32))["virtual-timesteps"].verdict == "holds"


def test_real_products_are_named_with_their_share():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), lbq.RepeatOverTime(2), lbq.BurstLIF(step=0.2), nn.Linear(8, 8), nn.ReLU(),
        nn.Linear(8, 3), lbq.MeanOverTime(),
    )  # fmt: skip
    finding = lbq.audit(model, samples())["multiplications"]
    assert (finding.verdict, finding.module) == ("fails", "5")
    macs = {"first": 48, "second": 2 * 64, "third": 2 * 24}
    expected = (macs["first"] + macs["third"]) / sum(macs.values())
    assert finding.evidence["share"] == pytest.approx(expected)


def test_a_network_that_cannot_be_lowered_says_which_module_stops_it():
    model = nn.Sequential(nn.Linear(6, 8), lbq.RepeatOverTime(2), lbq.BurstLIF(), nn.LayerNorm(8))
    finding = lbq.audit(model, samples())["deployability"]
    assert finding.verdict == "fails"
    assert "LayerNorm in 3" in finding.sentence


def test_an_audit_as_json_and_as_text():
    found = lbq.audit(network(TokenMixer(leaks=True)), samples(), name="mixer")
    document = json.loads(found.to_json())
    assert document["format"] == "lbq-audit-1"
    assert {f["key"]: f["verdict"] for f in document["findings"]}["leak"] == "fails"
    assert "FAILS leak" in str(found)
    assert [f.key for f in found.failed(["leak", "state"])] == ["leak"]


def test_the_network_is_not_changed_and_one_sample_is_refused():
    model = network(Remembering(resets=False)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lbq.audit(model, samples())
    assert model.training
    assert model[4].membrane == 0.0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with pytest.raises(ShapeError, match="at least two"):
        lbq.audit(model, samples(1))


@pytest.mark.parametrize(
    "name", sorted(set(user_networks.NETWORKS) - set(test_user_networks.REFUSED))
)
def test_networks_as_users_write_them_raise_no_alarm(name):
    model, axis = test_user_networks.build(name)
    count = 4
    x = torch.randn(test_user_networks.batch_of(name, axis, count))
    found = lbq.audit(model, x, batch_axis=axis)
    alarms = ("leak", "state", "causality", "determinism", "levels")
    assert [f for f in found.findings if f.key in alarms and f.verdict == "fails"] == []
    assert found.num_samples == count


def test_a_leak_in_a_neuron_that_emits_nothing_is_found():
    class Silent(TokenMixer):
        def __init__(self, *, leaks):
            super().__init__(leaks=leaks)
            self.proj_lif = HardResetLIF(threshold=50.0)

    torch.manual_seed(0)
    found = lbq.audit(network(Silent(leaks=True)), samples())
    assert (found["leak"].verdict, found["leak"].module) == ("fails", "4.proj_lif")
    assert any("with larger currents: 4.proj_lif" in note for note in found.notes)
    assert lbq.audit(network(Silent(leaks=False)), samples())["leak"].verdict == "holds"


def test_the_page_in_the_documents_is_what_the_example_gives():
    root = Path(__file__).parents[2]
    example = runpy.run_path(str(root / "examples" / "leaking_attention.py"))
    found = lbq.audit(example["model"](), example["samples"](), name="leaking_attention")
    assert found["leak"].module == "neuron"
    page = (root / "docs" / "_static" / "audit-example.html").read_text()
    for finding in found.findings:
        if finding.key != "counts":  # of random weights: another processor may round otherwise
            assert html.escape(finding.sentence) in page


def test_many_samples_run_in_batches():
    """Also the trial whether the network runs in float64."""
    largest = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    model.register_forward_pre_hook(lambda module, args: largest.append(len(args[0])))
    lbq.audit(model, torch.randn(500, 1, 2, 2))
    assert max(largest) <= 64
