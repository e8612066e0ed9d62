import json

import pytest
import torch

from lbq.cli.lower_command import LoweringOptions, lower_run
from lbq.cli.main import main
from lbq.cli.samples import open_samples, sample_batches
from lbq.formats.bundle import digest, load_network
from lbq.graph import prove
from lbq.graph.operators import Synapse
from lbq.runtime import run_network
from lbq.train.run_folder import load_run


def test_a_run_becomes_a_proven_bundle_that_knows_its_recipe(trained, bundle, capsys):
    again = bundle.with_name("again.lbq")
    words = ["lower", str(trained), "--out", str(again), "--check", "20", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    network = load_network(again)
    assert network.is_integer
    assert network.origin["recipe"]["name"] == "tiny"
    assert network.origin["step"] == 4
    assert found["bytes"] == again.stat().st_size
    assert found["sha256"] == digest(again)
    assert sum(found["accumulators"].values()) == len(prove(network))
    assert found["checked"] == 20
    assert found["levels_moved"] == pytest.approx(levels_moved(trained, network, limit=20))
    assert 0 < found["levels_moved"] < 0.2
    assert abs(found["accuracy"] - found["accuracy_real"]) <= 0.25


def levels_moved(folder, network, *, limit):
    """Watch both networks on the same test samples."""
    recipe = load_run(folder).recipe
    data = open_samples(recipe, source=None, cache=folder.parent)
    real = lower_run(folder, LoweringOptions(bits="float")).network
    seen = {"real": [], "integer": []}
    for samples in sample_batches(data, limit=limit, batch=limit):
        run_network(real, samples.real, watch=lambda *at: seen["real"].append(at[2].flatten()))
        run_network(network, samples.raw, watch=lambda *at: seen["integer"].append(at[2].flatten()))
    one, other = (torch.cat(levels) for levels in seen.values())
    return (one != other).double().mean().item()


@pytest.mark.parametrize("bits", ["4", "8", "16"])
def test_weights_get_the_bits_that_were_asked_for(trained, tmp_path, bits):
    out = tmp_path / "net.lbq"
    assert main(["lower", str(trained), "--out", str(out), "--bits", bits]) == 0
    network = load_network(out)
    found = {
        s.bits for p, s in network.operators.items() if p.startswith("stages") if is_synapse(s)
    }
    assert found == {int(bits)}
    most = max(int(s.weight.int().abs().max()) for s in network.operators.values() if is_synapse(s))
    assert 2 ** (int(bits) - 1) > most or bits == "4"  # the first layer has 8 bits
    assert most > 2 ** (int(bits) - 2)


def is_synapse(module):
    return isinstance(module, Synapse)


def test_calibration_looks_at_training_samples_only(trained, tmp_path, monkeypatch):
    asked = []

    def spying(data, **options):
        asked.append(options.get("split", "test"))
        return sample_batches(data, **options)

    monkeypatch.setattr("lbq.cli.lower_command.sample_batches", spying)
    assert main(["lower", str(trained), "--out", str(tmp_path / "net.lbq")]) == 0
    assert asked == ["train"]


def test_a_pretrained_network_goes_by_its_name(without_data, tmp_path, capsys):
    out = tmp_path / "net.lbq"
    assert main(["lower", "pocket-cifar10", "--out", str(out)]) == 0
    network = load_network(out)
    assert network.is_integer
    assert network.origin["pretrained"] == "pocket-cifar10"
    assert network.input_shape == (3, 32, 32)
    assert main(["lower", "pocket-cifar10", "--out", str(out), "--step", "3"]) == 2
    assert "no checkpoints" in capsys.readouterr().err


def test_people_are_told_in_sentences(trained, tmp_path, capsys):
    out = tmp_path / "net.lbq"
    assert main(["lower", str(trained), "--out", str(out), "--bits", "4", "--check", "10"]) == 0
    words = capsys.readouterr().out
    assert f"{out}: {out.stat().st_size:,} bytes" in words
    assert "proven not to overflow" in words
    assert "on 10 test samples: accuracy" in words
    assert "on 64 calibration samples: " in words
    assert "replaced" not in words
    assert main(["lower", str(trained), "--out", str(out), "--calibrate", "0"]) == 0
    words = capsys.readouterr().out
    assert "no calibration samples" in words
    assert f"{out} was there before and is replaced" in words


def test_real_numbers_answer_as_the_trained_network(trained):
    lowered = lower_run(trained, LoweringOptions(bits="float"))
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        expected = load_run(trained).model(images)
    torch.testing.assert_close(run_network(lowered.network, images), expected, rtol=1e-4, atol=1e-4)


def test_data_that_are_gone_are_said_and_worked_around(trained, without_data, tmp_path, capsys):
    words = ["lower", str(trained), "--out", str(tmp_path / "net.lbq")]
    assert main(words) == 0
    captured = capsys.readouterr().out
    assert "there is no folder data/x" in captured
    assert "not corrected" in captured
    assert main([*words, "--check", "5"]) == 1
    assert "--check needs the data" in capsys.readouterr().err
    assert main([*words, "--data", "data/x"]) == 1
