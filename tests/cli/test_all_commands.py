"""The whole pipeline: train, lower, export, and count the same right answers at the end."""

import json
import os

from lbq.cli.main import main

SMALL = ["--data.limit", "256", "--data.limit-test", "100", "--epochs", "1"]


def recipe():
    """CIFAR-10 where it lies here, else the synthetic set."""
    folder = os.environ.get("LBQ_DATA")
    return ["pocket", "--data", f"{folder}/cifar10"] if folder else ["smoke"]


def test_from_training_to_onnx_runtime(tmp_path, capsys):
    run, bundle, onnx = (str(tmp_path / name) for name in ("run", "net.lbq", "net.onnx"))
    cache = ["--cache", str(tmp_path / "cache")]
    assert main(["train", *recipe(), *SMALL, "--out", run, *cache]) == 0
    assert main(["lower", run, "--out", bundle, "--calibrate", "64", *cache]) == 0
    assert main(["export", bundle, "--to", "onnx", "--out", onnx]) == 0
    capsys.readouterr()
    found = []
    for path in (bundle, onnx):
        assert main(["eval", path, "--json", *cache]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0].pop("backend") is not None
    assert found[1].pop("backend") is None  # another engine
    assert found[0] == found[1]
    assert found[0]["count"] == 100
