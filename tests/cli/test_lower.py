import json

import pytest
import torch

from lbq.cli.lower import LoweringOptions, lower_run
from lbq.cli.main import main
from lbq.deploy import prove, run
from lbq.export.bundle import digest, load
from lbq.train.trained import load_trained

pytestmark = pytest.mark.as_shipped  # torch.fx cannot trace the annotation checks


def test_a_run_becomes_a_proven_bundle_that_knows_its_recipe(trained, bundle, capsys):
    again = bundle.with_name("again.lbq")
    words = ["lower", str(trained), "--out", str(again), "--check", "20", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    network = load(again)
    assert network.is_integer
    assert network.origin["recipe"]["name"] == "tiny"
    assert network.origin["step"] == 4
    assert found["bytes"] == again.stat().st_size
    assert found["sha256"] == digest(again)
    assert sum(found["accumulators"].values()) == len(prove(network))
    assert found["checked"] == 20
    assert 0 <= found["levels_moved"] < 0.2
    assert abs(found["accuracy"] - found["accuracy_real"]) <= 0.25


def test_a_network_of_the_shelf_goes_by_its_name(without_data, tmp_path, capsys):
    out = tmp_path / "net.lbq"
    assert main(["lower", "pocket-cifar10", "--out", str(out)]) == 0
    network = load(out)
    assert network.is_integer
    assert network.origin["pretrained"] == "pocket-cifar10"
    assert network.input_shape == (3, 32, 32)
    assert main(["lower", "pocket-cifar10", "--out", str(out), "--step", "3"]) == 1
    assert "no checkpoints" in capsys.readouterr().err


def test_people_are_told_in_sentences(trained, tmp_path, capsys):
    out = tmp_path / "net.lbq"
    assert main(["lower", str(trained), "--out", str(out), "--bits", "4", "--check", "10"]) == 0
    words = capsys.readouterr().out
    assert f"{out}: {out.stat().st_size:,} bytes" in words
    assert "proven not to overflow" in words
    assert "on 10 test samples: accuracy" in words


def test_real_numbers_answer_as_the_trained_network(trained):
    lowered = lower_run(trained, LoweringOptions(bits="float"))
    images = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        expected = load_trained(trained)[0](images)
    torch.testing.assert_close(run(lowered.network, images), expected, rtol=1e-4, atol=1e-4)


def test_data_that_are_gone_are_said_and_worked_around(trained, without_data, tmp_path, capsys):
    words = ["lower", str(trained), "--out", str(tmp_path / "net.lbq")]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "there is no folder data/x" in told
    assert "not calibrated" in told
    assert main([*words, "--check", "5"]) == 1
    assert "--check needs the data" in capsys.readouterr().err
    assert main([*words, "--data", "data/x"]) == 1


def test_a_folder_without_a_run_is_a_mistake(tmp_path, capsys):
    assert main(["lower", str(tmp_path)]) == 1
    assert "has no checkpoint" in capsys.readouterr().err
