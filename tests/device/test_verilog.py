import random
import re
import subprocess

import pytest
import torch
from device.boards import needs
from formats.device.test_c_source import mutants
from torch import nn

import lbq
from lbq import MeanOverTime, OverTime, RepeatOverTime
from lbq.formats.device.verilog import VARIANTS, export_verilog

pytestmark = needs("iverilog")


class Small(nn.Module):
    """A random small network of convolutions, pools, shortcuts and linear layers."""

    def __init__(self, seed, *, level_set="all"):
        super().__init__()
        dice = random.Random(seed)
        torch.manual_seed(seed)
        self.timesteps = dice.choice([1, 2, 3])
        self.takes_frames = dice.random() < 0.4
        self.shape = (dice.choice([1, 2]), dice.choice([5, 6]), dice.choice([5, 7]))
        channels = dice.choice([2, 3, 4])
        self.level_set, self.dice = level_set, dice
        stem = [nn.Conv2d(self.shape[0], channels, 3, padding=1, stride=dice.choice([1, 2]))]
        stem[0].weight.data /= 64  # of bytes
        stem += [nn.BatchNorm2d(channels)]
        self.stem = (
            OverTime(*stem)
            if self.takes_frames
            else nn.Sequential(*stem, RepeatOverTime(self.timesteps))
        )
        self.first = self.neuron()
        depthwise = dice.random() < 0.3
        groups = channels if depthwise else 1
        self.conv = OverTime(
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups), nn.BatchNorm2d(channels)
        )
        self.second = self.neuron()
        self.has_shortcut = dice.random() < 0.5
        pool = dice.choice([nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Identity()])
        self.adds_up = isinstance(pool, nn.AvgPool2d)
        self.pool = OverTime(pool) if not isinstance(pool, nn.Identity) else pool
        self.head = OverTime(nn.Flatten(), nn.LazyLinear(4))
        self.mean = MeanOverTime()
        self(self.inputs(1).float())

    def neuron(self):
        reset = self.dice.choice(["event", "level"])
        if self.level_set == "powers":
            return lbq.BurstLIF(4, step=0.4, level_set="powers")
        return lbq.BurstLIF(self.dice.choice([1, 3, 5]), step=0.4, reset_mode=reset)

    def inputs(self, batch):
        shape = (batch, *self.shape)
        shape = (self.timesteps, *shape) if self.takes_frames else shape
        return torch.randint(0, 256, shape, dtype=torch.uint8)

    def forward(self, x):
        levels = self.first(self.stem(x))
        currents = self.conv(levels)
        levels = self.second(currents + levels if self.has_shortcut else currents)
        return self.mean(self.head(self.pool(levels)))


def integers(model, inputs):
    lowered = lbq.lower(model.eval(), inputs.float(), batch_axis=1 if model.takes_frames else 0)
    return lbq.to_fixed_point(lowered, bits=8, pixels=None)


def simulate(folder, variant):
    """Run the testbench in Icarus; return what it prints as numbers by name."""
    number = VARIANTS.index(variant)
    subprocess.run(
        ["iverilog", "-g2005", f"-Pnet_tb.VARIANT={number}", "-o", "sim", "net_tb.v", "net.v"],
        cwd=folder,
        check=True,
    )
    done = subprocess.run(
        ["vvp", "-N", "sim"], cwd=folder, capture_output=True, text=True, check=True, timeout=300
    )
    return numbers(done.stdout)


def numbers(text):
    return {name: int(value) for name, value in re.findall(r"(\w+) +(\d+)", text)}


def counted(network, inputs):
    counter = lbq.OpCounter(network, network.example())
    lbq.run_network(network, inputs, watch=counter)
    return counter.table().total()


@pytest.mark.parametrize("seed", range(6))
def test_logits_and_accumulations_are_those_of_the_library(seed, tmp_path):
    model = Small(seed)
    inputs = model.inputs(3)
    net = integers(model, inputs)
    export_verilog(net, tmp_path / "net.v", samples=inputs)
    counts = counted(net, inputs)
    for variant, expected in (("unary", counts.unary_acs), ("planes", counts.bit_sparse_acs)):
        found = simulate(tmp_path, variant)
        assert (found["samples"], found["wrong"]) == (3, 0)
        if variant == "planes" and model.adds_up:  # it adds the bits of sums, the library of levels
            assert 0 < found["accumulations"] <= expected
        else:
            assert found["accumulations"] == expected


def test_levels_that_are_powers_of_two_need_one_accumulation(tmp_path):
    model = Small(1, level_set="powers")
    inputs = model.inputs(3)
    net = integers(model, inputs)
    export_verilog(net, tmp_path / "net.v", samples=inputs)
    found = simulate(tmp_path, "powers")
    assert found["wrong"] == 0
    assert found["accumulations"] == counted(net, inputs).bit_sparse_acs


def test_a_wrong_weight_is_seen_by_the_testbench(tmp_path):
    model = Small(0)
    inputs = model.inputs(2)
    export_verilog(integers(model, inputs), tmp_path / "net.v", samples=inputs)
    path = tmp_path / "net_weights.hex"
    lines = path.read_text().split()
    lines[:] = [format(int(word, 16) ^ 4, f"0{len(word)}x") for word in lines]
    path.write_text("\n".join(lines) + "\n")
    assert simulate(tmp_path, "planes")["wrong"] > 0


def test_a_mutated_bundle_gives_its_own_answers_or_none(tmp_path):
    model, exported = Small(4), 0
    for network, inputs in mutants(integers(model, model.inputs(1)), tmp_path, 12):
        try:
            export_verilog(network, tmp_path / "net.v", samples=inputs)
        except lbq.LBQError:
            continue
        exported += 1
        found = simulate(tmp_path, "planes")
        assert (found["samples"], found["wrong"]) == (3, 0)
    assert exported > 6


@needs("verilator", "make")
def test_verilator_computes_the_same(tmp_path):
    model = Small(3)
    inputs = model.inputs(3)
    export_verilog(integers(model, inputs), tmp_path / "net.v", samples=inputs)
    command = ["verilator", "--binary", "-Wno-fatal", "--top-module", "net_tb", "--Mdir", "built"]
    subprocess.run([*command, "net_tb.v", "net.v"], cwd=tmp_path, capture_output=True, check=True)
    done = subprocess.run(
        ["built/Vnet_tb"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert numbers(done.stdout) == simulate(tmp_path, "planes")


@needs("yosys")
def test_yosys_finds_block_memories_for_an_ice40(tmp_path):
    model = Small(2)
    export_verilog(integers(model, model.inputs(1)), tmp_path / "net.v")
    command = ["yosys", "-q", "-p", "read_verilog net.v; synth_ice40 -top net; tee -o stat stat"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    found = numbers((tmp_path / "stat").read_text())
    assert 0 < found["SB_LUT4"] < 5280  # what an UP5K has
    assert found["SB_RAM40_4K"] > 0


@needs("verilator")
def test_verilator_has_no_warning(tmp_path):
    model = Small(2)
    export_verilog(integers(model, model.inputs(1)), tmp_path / "net.v")
    command = ["verilator", "--lint-only", "-Wall", "--top-module", "net", "net.v"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_has_no_form_in_hardware_is_refused_by_its_path(tmp_path):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=3),
        RepeatOverTime(2),
        lbq.BurstLIF(),
        OverTime(nn.Flatten(), nn.Linear(16, 3)),
        MeanOverTime(),
    ).eval()
    net = lbq.to_fixed_point(lbq.lower(model, torch.randn(2, 1, 8, 8)), bits=8, pixels=None)
    with pytest.raises(lbq.LBQError, match=r"^0 \(Synapse\): its stride is \(3, 3\).*--to c"):
        export_verilog(net, tmp_path / "net.v")
