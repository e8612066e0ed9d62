"""A bundle gives back the network that was saved, bit for bit, or nothing."""

import hashlib
import io
import json
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from bundles import EditableBundle, tiny_network, with_operator
from onnx_networks import MEAN, RESNETS, STD, lowered_resnet

import lbq
from lbq import neurons
from lbq.errors import LBQError
from lbq.formats import BundleError, digest, load_network, save_network
from lbq.graph.graph import GraphBuilder
from lbq.graph.operators import Readout, Synapse
from lbq.lowering import lower, to_fixed_point
from lbq.preprocessing import Pixels
from lbq.runtime import run_network

SHAPES = [("resnet20", "basic"), ("resnet20", "sew"), ("resnet18", "basic"), ("resnet19", "basic")]


@pytest.mark.parametrize(("name", "block"), SHAPES)
@pytest.mark.parametrize("bits", [None, 4, 8, 16])
def test_a_network_comes_back_bit_for_bit(name, block, bits, tmp_path):
    network, inputs = lowered_resnet(RESNETS[name], timesteps=2, bits=bits, block=block)
    origin = {"recipe": name, "bits": bits, "nested": [1, 2.5, None, {"ä": True}]}
    network = replace(network, origin=origin)
    save_network(network, tmp_path / "net.lbq")
    again = load_network(tmp_path / "net.lbq")
    assert torch.equal(run_network(again, inputs), run_network(network, inputs))
    assert [n[::2] for n in again.nodes] == [n[::2] for n in network.nodes]
    assert (again.origin, again.logit_scale) == (network.origin, network.logit_scale)
    assert [repr(n.operator) for n in again.nodes] == [repr(n.operator) for n in network.nodes]
    mine, theirs = network.tensors, again.tensors
    assert list(mine) == list(theirs)
    assert all(torch.equal(mine[k], theirs[k]) and mine[k].dtype == theirs[k].dtype for k in mine)


def renamed_readout(name, tmp_path):
    """Write the tiny network with another path for its last node."""
    save_network(tiny_network(), tmp_path / "net.lbq")
    draft = EditableBundle((tmp_path / "net.lbq").read_bytes())
    draft.manifest["nodes"][-1]["path"] = name
    (tmp_path / "net.lbq").write_bytes(draft.pack())
    return tmp_path / "net.lbq"


@pytest.mark.parametrize("name", ["forward", "nodes", "fc.readout", "fc.weight", "stem"])
def test_a_node_may_have_any_name(name, tmp_path):
    assert load_network(renamed_readout(name, tmp_path)).outputs == (name,)


@pytest.mark.parametrize(
    "neuron",
    [
        lambda channels: neurons.BurstLIF(step=neurons.LearnedStep(0.4, channels=channels)),
        lambda channels: neurons.BurstLIF(3, step=0.3, reset_mode="level"),
        lambda channels: neurons.BinaryLIF(),
        lambda channels: neurons.TernaryLIF(),
        lambda channels: neurons.OriginalTernaryLIF(),
        lambda channels: neurons.IntegerLIF(),
        lambda channels: neurons.MultiLevelLIF(),
        lambda channels: neurons.LMHT(2),
    ],
    ids=["per channel", "level", "binary", "ternary", "original", "I-LIF", "MLF", "LM-HT"],
)
def test_every_neuron_of_the_library_can_be_saved(neuron, tmp_path):
    model = lbq.resnet20(10, timesteps=2, neuron=neuron, width=1 / 16).double().eval()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    network = lower(model, images)
    save_network(network, tmp_path / "net.lbq")
    assert torch.equal(
        run_network(load_network(tmp_path / "net.lbq"), images), run_network(network, images)
    )


def test_a_binary_network_of_integers_can_be_saved(tmp_path):
    model = lbq.resnet20(10, timesteps=2, neuron=lambda c: neurons.BinaryLIF(), width=1 / 16)
    network = lower(model.eval(), torch.randn(2, 3, 16, 16))
    integers = to_fixed_point(network, pixels=Pixels(mean=MEAN, std=STD))
    save_network(integers, tmp_path / "net.lbq")
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    assert torch.equal(
        run_network(load_network(tmp_path / "net.lbq"), images), run_network(integers, images)
    )


def test_a_network_saved_twice_is_the_same_file(tmp_path):
    first = save_network(tiny_network(), tmp_path / "1.lbq")
    second = save_network(load_network(tmp_path / "1.lbq"), tmp_path / "2.lbq")
    assert first == second


def test_the_digest_is_the_one_that_everyone_computes(tmp_path):
    path = tmp_path / "net.lbq"
    returned = save_network(tiny_network(), path)
    assert returned == digest(path) == hashlib.sha256(path.read_bytes()).hexdigest()
    load_network(path, sha256=returned)


def test_the_payload_is_plain_safetensors_with_weights_of_four_bits_as_bytes(tmp_path):
    network = tiny_network()
    save_network(network, tmp_path / "net.lbq")
    data = (tmp_path / "net.lbq").read_bytes()
    tensors = safetensors.torch.load(data[64 + int.from_bytes(data[12:16], "little") :])
    weight = network.operators["block.conv"].weight
    assert weight.dtype == torch.int8
    assert torch.equal(tensors["block.conv.weight"], weight)


def test_a_network_that_would_be_refused_is_not_written(tmp_path):
    weight = tiny_network().operators["block.conv"].weight
    eight = torch.full_like(weight, 8)  # four bits hold 7
    network = with_operator(tiny_network(), "block.conv", weight=eight)
    with pytest.raises(LBQError):
        save_network(network, tmp_path / "net.lbq")
    assert not list(tmp_path.iterdir())


class _Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def _hostile(canary, draft):
    """Files that want to run code, most of them sealed like honest bundles."""
    raw = pickle.dumps(_Canary(canary))
    zipped, saved = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("archive/data.pkl", raw)
    torch.save({"weight": _Canary(canary)}, saved)
    target = json.loads(json.dumps(draft.manifest))
    target["nodes"][0]["settings"]["_target_"] = "os.system"
    kind = json.loads(json.dumps(draft.manifest))
    kind["nodes"][0]["kind"] = "builtins.open"
    yield from (raw, zipped.getvalue(), saved.getvalue())
    yield from (draft.pack(manifest=raw), draft.pack(table=raw))
    yield draft.pack(manifest=json.dumps(target).encode())
    yield draft.pack(manifest=json.dumps(kind).encode())


def test_files_that_want_to_run_code_are_refused_and_nothing_runs(tmp_path):  # X1
    path, canary = tmp_path / "net.lbq", tmp_path / "canary"
    save_network(tiny_network(), path)
    files = list(_hostile(canary, EditableBundle(path.read_bytes())))
    for data in files:
        path.write_bytes(data)
        with pytest.raises(BundleError):
            load_network(path)
        assert not canary.exists()
    pickle.loads(files[0]).close()  # otherwise this proves nothing
    assert canary.exists()


_MEASURE = """
import resource, sys
from lbq.formats import load_network
load_network(sys.argv[1])  # what is imported on first use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
load_network(sys.argv[2])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("dtype", [torch.int8, torch.float32])
def test_loading_takes_about_twice_the_file_of_memory(dtype, tmp_path):
    save_network(tiny_network(is_integer=dtype == torch.int8), tmp_path / "small.lbq")
    save_network(one_large_synapse(dtype), tmp_path / "large.lbq")
    paths = [tmp_path / "small.lbq", tmp_path / "large.lbq"]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *paths], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2 * paths[1].stat().st_size + 16 * 2**20


def one_large_synapse(dtype):
    """A classifier of 8 million weights, and nothing else."""
    is_integer = dtype == torch.int8
    network = GraphBuilder(
        timesteps=1,
        input_shape=(2**17,),
        takes_frames=True,
        logit_scale=1.0 if is_integer else None,
    )
    weight = torch.ones(64, 2**17, dtype=dtype)
    bits, max_input = (8, 255) if is_integer else (None, None)
    at = network.add("fc", Synapse(weight, max_input=max_input, bits=bits), "input")
    network.add("readout", Readout("none"), at)
    return network.finish()
