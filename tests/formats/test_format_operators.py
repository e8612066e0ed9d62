"""Every operator in every format and backend: the same integers."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from integer_networks import integer_network, random_bytes
from onnx_networks import ENGINES, answers, exported_answers, num_different
from operator_networks import NETWORKS, real_network

import lbq
from lbq.errors import LoweringError, ParameterError
from lbq.formats import export_onnx, export_pt2
from lbq.formats.onnx import OnnxRunner, read_onnx_metadata
from lbq.formats.pt2 import read_pt2, run_pt2
from lbq.graph.graph import Node, prove
from lbq.runtime.run import BACKENDS


def as_tuple(found):
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NETWORKS)
def test_every_backend_and_every_onnx_engine_gives_the_same_integers(name, seed):
    net, raw = NETWORKS[name](seed)
    expected = answers(net, raw)
    for backend in BACKENDS:
        found = as_tuple(lbq.run_network(net, raw, backend=backend))
        assert all(
            np.array_equal(one, other) for one, other in zip(found, expected.values(), strict=False)
        )
    for engine in ENGINES:
        assert not num_different(exported_answers(net, raw, engine=engine), expected)
        if all(max(-bound.low, bound.high) < 2**22 for bound in prove(net).values()):
            fast = exported_answers(net, raw, engine=engine, style="fast")
            assert not num_different(fast, expected)


@pytest.mark.parametrize("seed", range(int(os.environ.get("LBQ_RANDOM_GRAPHS", "10"))))
def test_a_random_graph_gives_the_same_integers_in_every_onnx_engine(seed):
    net = integer_network(seed)
    raw = random_bytes(net, seed)
    expected = answers(net, raw)
    for engine in ENGINES:
        assert not num_different(exported_answers(net, raw, engine=engine), expected)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_int8_file_without_inexact_channels_gives_the_same_integers(name, tmp_path):
    seed = next(seed for seed in range(99) if NETWORKS[name](seed)[0].timesteps == 1)
    net, raw = NETWORKS[name](seed)
    for style in ("int8", "int8-lossy"):
        export_onnx(net, tmp_path / "net.onnx", style=style, outputs_levels=True)
        assert read_onnx_metadata(tmp_path / "net.onnx")["num_inexact_channels"] == 0
        for engine in ENGINES:
            found = OnnxRunner(tmp_path / "net.onnx", engine=engine).run_all(raw.numpy())
            assert not num_different(found, answers(net, raw))


@pytest.mark.parametrize("name", NETWORKS)
def test_real_numbers_keep_their_levels_in_every_onnx_engine(name):
    integers, raw = NETWORKS[name](1)
    net, inputs = real_network(integers), raw.float()
    expected = answers(net, inputs)
    for engine in ENGINES:
        got = exported_answers(net, inputs, engine=engine)
        flipped = {path for path, _ in net.neurons() if (got[path] != expected[path]).any()}
        assert not flipped
        for path, values in expected.items():
            np.testing.assert_allclose(got[path], values, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_gives_the_same_integers_for_any_batch(name, tmp_path):
    net, raw = NETWORKS[name](1)
    export_pt2(net, tmp_path / "net.pt2")
    assert read_pt2(tmp_path / "net.pt2")[1]["outputs"] == list(net.outputs)
    for batch in (1, 3):
        inputs = raw.narrow(1 if net.takes_frames else 0, 0, batch)
        expected = as_tuple(lbq.run_network(net, inputs, backend="dense"))
        found = as_tuple(run_pt2(tmp_path / "net.pt2", inputs))
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_stream_adds_up_to_the_whole_sequence(name, monkeypatch):
    seed = next(seed for seed in range(99) if NETWORKS[name](seed)[0].timesteps > 1)
    net, raw = NETWORKS[name](seed)
    monkeypatch.setattr("lbq.runtime.native_engine.engine_of", refuse)
    for network, inputs, combine in (
        (net, raw, torch.sum),
        (real_network(net), raw.float(), torch.mean),
    ):
        stream = lbq.stream(network, timesteps=None if network.is_integer else net.timesteps)
        frames = inputs if net.takes_frames else [inputs] * net.timesteps
        outputs = [as_tuple(stream(frame)) for frame in frames]
        whole = as_tuple(lbq.run_network(network, inputs, backend="dense"))
        for parts, expected in zip(zip(*outputs, strict=True), whole, strict=True):
            total = combine(torch.stack(parts), 0).to(expected.dtype)
            torch.testing.assert_close(total, expected, rtol=1e-6, atol=0)


def test_a_file_names_its_outputs(tmp_path):
    net, raw = NETWORKS["outputs"](0)
    export_onnx(net, tmp_path / "net.onnx", outputs_levels=True)
    metadata = read_onnx_metadata(tmp_path / "net.onnx")
    assert metadata["outputs"] == list(net.outputs)
    runner = OnnxRunner(tmp_path / "net.onnx")
    names = list(runner.run_all(raw.numpy()))
    assert names[:2] == ["logits", "logits_2"]
    assert names[len(net.outputs) :] == metadata["levels"]
    assert len(runner(raw.numpy())) == len(net.outputs)


def test_a_neuron_with_the_name_of_an_output_is_refused(tmp_path):
    net, _ = NETWORKS["linear"](0)
    path, _ = next(net.neurons())
    renamed = (
        Node(_renamed(name, path), operator, _renamed(inputs, path))
        for name, operator, inputs in net.nodes
    )
    net = replace(net, nodes=tuple(renamed))
    export_onnx(net, tmp_path / "net.onnx")
    with pytest.raises(ParameterError, match="the neuron logits_2 has the name of an output"):
        export_onnx(net, tmp_path / "net.onnx", outputs_levels=True)


def refuse(network):
    raise LoweringError("the engine does not take this network")


def _renamed(value, path):
    if isinstance(value, tuple):
        return tuple(_renamed(one, path) for one in value)
    return "logits_2" if value == path else value
