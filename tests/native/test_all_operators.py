"""Random integer networks over all operators: all engines give the same integers."""

import subprocess

import numpy as np
import pytest
import torch
from integer_networks import integer_network, random_bytes
from native.test_lbq_run import from_csv, samples_first, with_classes

import lbq
from lbq.graph.operators import OPERATORS, Concat, Readout, RealNeuron, Slice
from lbq.kernels import native_scan as kernels
from lbq.runtime.native_engine import CHOICES, NativeEngine

pytestmark = pytest.mark.skipif(kernels.isa() is None, reason="the native library is not built")
SEEDS = range(40)


def outputs(answers):
    return answers if isinstance(answers, tuple) else (answers,)


def are_equal(some, others):
    pairs = zip(outputs(some), outputs(others), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def sums_over_time(network):
    readout = network.operators[network.outputs[-1]]
    assert isinstance(readout, Readout)
    return readout.over_time == "sum"


def test_the_networks_hold_every_operator_and_several_outputs():
    networks = [integer_network(seed) for seed in SEEDS]
    found = {type(node) for network in networks for node in network.operators.values()}
    assert found == set(OPERATORS) - {RealNeuron}
    assert max(len(network.outputs) for network in networks) > 3


@pytest.mark.parametrize("seed", SEEDS)
def test_the_engine_gives_what_dense_gives(seed):
    network = integer_network(seed)
    inputs = random_bytes(network, seed)
    expected = lbq.run_network(network, inputs, backend="dense")
    engine = NativeEngine(network, choice=CHOICES[seed % 3], isa=("scalar", None)[seed % 2])
    assert are_equal(engine.run(inputs, threads=1 + seed % 2), expected)


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_a_stream_gives_what_the_whole_sequence_gives(seed):
    network = integer_network(seed)
    inputs = random_bytes(network, seed)
    stream = lbq.stream(network)
    frames = inputs if network.takes_frames else [inputs] * network.timesteps
    answers = list(zip(*(outputs(stream(frame)) for frame in frames), strict=True))
    join = sum if sums_over_time(network) else torch.cat
    whole = tuple(join(parts) for parts in answers)
    assert are_equal(whole, lbq.run_network(network, inputs, backend="dense"))


@pytest.mark.parametrize("seed", SEEDS[:12])
def test_lbq_run_writes_every_output_of_a_row(seed, lbq_run, tmp_path):
    network = integer_network(seed)
    inputs = random_bytes(network, seed)
    answers = outputs(lbq.run_network(network, inputs, backend="dense"))
    leading = 1 if sums_over_time(network) else 2
    flat = [answer.flatten(leading) for answer in answers]
    rows = [with_classes(part if leading == 1 else part.transpose(0, 1)) for part in flat]
    expected = np.concatenate(rows, axis=-1)  # [B, n] or [B, T, n]
    bundle = tmp_path / "net.lbq"
    lbq.save_network(network, bundle)
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "a.npy", inputs.numpy())
    done = lbq_run(bundle, tmp_path / "in", tmp_path / "out", "--format", "npy")
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "out" / "a.npy.npy"), expected)
    raw = samples_first(network, inputs).numpy().tobytes()
    for isa in ("scalar", "interpreter"):
        text = lbq_run(bundle, "-", "--isa", isa, "--batch", 2, input=raw).stdout.decode()
        header = text.splitlines()[0].split(",")
        columns = from_csv(text)[:, leading:]
        assert np.array_equal(columns, expected.reshape(len(columns), -1))
        assert len(header) == columns.shape[1] + leading
        assert sum(name.startswith("class") for name in header) == len(answers)


def test_lbq_run_says_how_many_outputs_there_are(lbq_run, tmp_path):
    network = integer_network(0)
    lbq.save_network(network, tmp_path / "net.lbq")
    said = lbq_run("--check", tmp_path / "net.lbq").stdout.decode()
    assert f" of {len(network.outputs)} outputs" in said
    with pytest.raises(subprocess.CalledProcessError):
        lbq_run("--check", tmp_path).check_returncode()


def test_joined_and_taken_channels_keep_their_own_bounds(lbq_run, tmp_path):
    """The reader proves per channel, as Python does: another proof would refuse the file."""
    for seed in SEEDS:
        network = integer_network(seed)
        if any(isinstance(node, Concat | Slice) for node in network.operators.values()):
            lbq.save_network(network, tmp_path / f"{seed}.lbq")
    paths = sorted(tmp_path.glob("*.lbq"))
    assert len(paths) > 20
    done = lbq_run("--check", *paths)
    assert done.returncode == 0, done.stdout
