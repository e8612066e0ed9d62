"""Planted faults are found by module; clean networks raise no alarm; the rest is "not checked"."""

import planted_faults as planted
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

import lbq
from lbq.auditing.behaviour import Behaviour
from lbq.auditing.products import watch_products
from lbq.neurons import BinaryLIF, Neuron

BEHAVIOUR = {
    "causality": planted.LOOKS_AHEAD,
    "state": planted.KEEPS_STATE,
    "leak": planted.LEAKS,
    "determinism": planted.RANDOM,
}


def check(key, model):
    """Run one check of an audit."""
    x = planted.frames() if isinstance(model, planted.Frames) else planted.samples()
    behaviour = Behaviour(
        model,
        x,
        batch_axis=int(isinstance(model, planted.Frames)),
        is_neuron=lambda path, module: isinstance(module, Neuron),
    )
    checks = {
        "causality": behaviour.check_causality,
        "state": behaviour.check_state,
        "leak": behaviour.check_batch,
        "determinism": behaviour.check_determinism,
    }
    return checks[key]()


@pytest.mark.parametrize(("key", "name"), [(key, n) for key in BEHAVIOUR for n in BEHAVIOUR[key]])
def test_a_planted_fault_is_found_by_module(key, name):
    torch.manual_seed(0)
    build, module = BEHAVIOUR[key][name]
    found = check(key, build())
    assert (found.verdict, found.module) == ("fails", module), found.sentence


@pytest.mark.parametrize("name", planted.RANDOM)
def test_random_numbers_are_not_blamed_on_state_or_batch(name):
    if name == "the clock":  # no seed repeats it: the state says so
        return
    torch.manual_seed(0)
    build, _ = planted.RANDOM[name]
    assert check("state", build()).verdict == "holds"
    assert check("leak", build()).verdict == "holds"


def products(model, x):
    with (
        torch.no_grad(),
        watch_products(model.eval(), lambda path, module: isinstance(module, Neuron)) as found,
    ):
        for _ in range(2):
            model(x)
    return found


@pytest.mark.parametrize("name", planted.PRODUCTS)
def test_a_product_of_real_numbers_is_found_by_module(name):
    torch.manual_seed(0)
    spec = planted.PRODUCTS[name]
    current, modules = spec if isinstance(spec, tuple) else (spec, {})
    found = products(planted.Net(current=current, **modules), planted.samples())
    paths = {row.path for row in found.rows.values() if row.multiplies_currents}
    paths |= {call.path for call in found.functions}
    expected = next(
        (p for p, m in modules.items() if not isinstance(m, torch.jit.ScriptModule)), ""
    )
    assert paths
    assert all(path == expected or path.startswith(f"{expected}.") for path in paths), paths


@pytest.mark.parametrize("name", planted.UNKNOWN)
def test_what_is_not_known_is_reported_as_not_checked(name):
    torch.manual_seed(0)
    finding = lbq.audit(planted.Net(current=planted.UNKNOWN[name]), planted.samples())[
        "multiplications"
    ]
    assert finding.verdict == "unknown"
    assert finding.sentence.startswith("not checked: ")
    assert finding.sentence.count("the network itself") or "neuron2" in finding.sentence


class Loop(nn.Module):
    """Frames in a loop over time; a neuron written by hand, with a membrane."""

    def __init__(self):
        super().__init__()
        self.first, self.readout = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        membrane, answers = torch.zeros(x.shape[1], 8).to(x), []
        for frame in x:
            membrane = 0.8 * membrane + self.first(frame)
            spikes = (membrane >= 0.5).to(x)
            membrane = membrane * (1 - spikes)
            answers.append(self.readout(spikes))
        return torch.stack(answers)


class Attention(nn.Module):
    """Queries, keys and values are levels; a learned scale."""

    def __init__(self):
        super().__init__()
        self.enter, self.scale = nn.Linear(6, 8), nn.Parameter(torch.tensor([0.37]))
        self.neuron, self.out = lbq.BurstLIF(3, step=0.2), lbq.BurstLIF(3, step=0.3)
        self.maps = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.neurons = nn.ModuleList(lbq.BurstLIF(3, step=0.2) for _ in range(3))
        self.readout = nn.Linear(8, 3)

    def forward(self, x):  # [T, B, N, C]
        x = self.neuron(self.enter(x))
        q, k, v = (neuron(fc(x)) for neuron, fc in zip(self.neurons, self.maps, strict=True))
        return self.readout(self.out(q @ k.mT @ v * self.scale)).mean(2).mean(0)


def with_second(change):
    net = planted.Net()
    net.second = change(net.second)
    return net


CLEAN = {
    "plain": planted.Net,
    "frames": planted.Frames,
    "weight_norm": lambda: with_second(parametrizations.weight_norm),
    "old weight_norm": lambda: with_second(planted.quietly(nn.utils.weight_norm)),
    "spectral_norm": lambda: with_second(parametrizations.spectral_norm),
    "orthogonal": lambda: with_second(parametrizations.orthogonal),
    "pruned": lambda: with_second(lambda m: prune.l1_unstructured(m, "weight", 0.5)),
    "dropout": lambda: planted.Net(inner=lambda s, y: s.drop(y), drop=nn.Dropout()),
    "batch norm": lambda: planted.Net(
        current=lambda s, z: s.norm(z.flatten(0, 1)).view_as(z), norm=nn.BatchNorm1d(8)),
    "scaled by a vector": lambda: planted.Net(current=lambda s, z: z * s.gain),
    "divided by a constant": lambda: planted.Net(current=lambda s, z: z / 3),
    "bursts times a constant": lambda: planted.Net(inner=lambda s, y: 0.37 * y),
    "a causal convolution": lambda: planted.Net(inner=lambda s, y: planted.causal(y)),
    "a running sum": lambda: planted.Net(current=lambda s, z: z.cumsum(0)),
    "a delay": lambda: planted.Net(
        current=lambda s, z: torch.cat([z[:1] * 0, z[:-1]])),
    "the largest so far": lambda: planted.Net(current=lambda s, z: z.cummax(0).values),
    "gated by spikes": lambda: planted.Net(
        current=lambda s, z: z * (s.gate(z) > 0), gate=BinaryLIF(threshold=0.4)),
    "a mask": lambda: planted.Net(current=lambda s, z: z * torch.ones(8, 8).tril()[3].to(z)),
    "ReLU before the neuron": lambda: planted.Net(current=lambda s, z: z.relu()),
    "sorted channels": lambda: planted.Net(current=lambda s, z: z.sort(-1).values),
    "two outputs": lambda: planted.Net(end=lambda s, y: (y.mean(0), y.sum(0))),
    "a dictionary": lambda: planted.Net(end=lambda s, y: {"a": y.mean(0), "b": [y]}),
    "classes": lambda: planted.Net(end=lambda s, y: y.mean(0).argmax(1)),
    "a rate of the whole batch": lambda: planted.Net(end=lambda s, y: (y.mean(0), y.mean())),
    "an answer per timestep": lambda: planted.Net(end=lambda s, y: y),
    "scripted": lambda: with_second(planted.script),
    "compiled": lambda: with_second(lambda m: torch.compile(m, backend="eager")),
    "checkpointed": lambda: planted.Net(
        current=lambda s, z: torch.utils.checkpoint.checkpoint(F.relu, z, use_reentrant=False)),
    "loop over time": Loop,
}  # fmt: skip
ALARMS = ("leak", "state", "causality", "determinism", "multiplications", "levels")


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_network_raises_no_alarm(name):
    torch.manual_seed(0)
    model = CLEAN[name]()
    is_frames = isinstance(model, planted.Frames | Loop)
    x = planted.frames() if is_frames else planted.samples()
    found = lbq.audit(model, x, batch_axis=int(is_frames))
    wrong = {key: found[key].sentence for key in ALARMS if found[key].verdict != "holds"}
    if name == "loop over time":  # no module emits its spikes
        assert wrong.pop("levels")
    assert wrong == {}


def test_attention_of_levels_is_clean_and_its_products_are_counted():
    torch.manual_seed(0)
    found = lbq.audit(Attention(), 2 * torch.randn(3, 6, 5, 6), batch_axis=1)
    assert {key: found[key].verdict for key in ALARMS} == dict.fromkeys(ALARMS, "holds")
    assert sum(row.pairs for row in found.products.rows.values()) > 0


def test_accumulations_behind_weight_norm_are_counted():
    torch.manual_seed(0)
    plain, x = planted.Net(), planted.samples()
    normed = planted.Net()
    normed.load_state_dict(plain.state_dict())
    parametrizations.weight_norm(normed.second)
    counts = [lbq.audit(model, x).products.total() for model in (plain, normed)]
    assert counts[0] == counts[1]


def test_the_sentence_says_what_was_tried():
    found = lbq.audit(planted.Net(), planted.samples())
    assert "12 samples" in found["leak"].sentence
    assert "4 calls" in found["state"].sentence


def test_a_leak_that_needs_many_samples_is_found_among_all_that_were_given():
    def crowded(net, y):
        return y if y.shape[1] <= 40 else y - y.mean(1, keepdim=True)

    finding = lbq.audit(planted.Net(inner=crowded), planted.samples(100))["leak"]
    assert (finding.verdict, finding.module) == ("fails", "")
    clean = lbq.audit(planted.Net(), planted.samples(100))["leak"]
    assert clean.verdict == "holds"
    assert "all 100 in batches of 64" in clean.sentence


def test_pixels_on_a_grid_are_not_levels_unless_the_caller_says_so():
    torch.manual_seed(0)
    model = planted.Net()
    pixels = torch.randint(0, 256, (8, 6)) / 255
    found = lbq.audit(model, pixels)
    assert found.products.total() == lbq.count_ops(model, pixels).total()
    told = lbq.audit(model, pixels, input_levels=True)
    assert told.products.total().unary_acs > found.products.total().unary_acs
    assert told.products.real_macs == 0


def test_integers_are_levels():
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = planted.Net()

        def forward(self, x):
            return self.net(x.to(self.net.weight.dtype))

    torch.manual_seed(0)
    found = lbq.audit(Embedded(), torch.randint(0, 4, (8, 6)))
    assert found.products.real_macs == 0


def test_signed_levels_are_shown_as_such_and_have_no_integer_form():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), lbq.RepeatOverTime(2), lbq.neurons.TernaryLIF(),
        nn.Linear(8, 3), lbq.MeanOverTime(),
    )  # fmt: skip
    found = lbq.audit(model, planted.samples())
    assert "levels -1..1" in found["levels"].sentence
    assert found["deployability"].verdict == "fails"
    assert "has no integer form" in found["deployability"].sentence


def test_a_network_with_the_graph_of_a_training_step_is_copied():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.kept = nn.Linear(6, 6), None

        def forward(self, x):
            self.kept = self.fc(x)
            return (self.kept > 0).to(x)

    model = nn.Sequential(Keeping(), nn.Linear(6, 3))
    model(planted.samples()).sum().backward()
    assert lbq.audit(model, planted.samples())["state"].verdict == "holds"
