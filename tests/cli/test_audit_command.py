import json
import re

import pytest

from lbq.cli.audit_command import FOUND, KEYS
from lbq.cli.main import main

LEAKING = """
import torch
from torch import nn

import lbq


class Merged(nn.Module):
    def __init__(self):
        super().__init__()
        self.neuron = lbq.BurstLIF(1, step=0.3)

    def forward(self, x):
        return self.neuron(x.flatten(0, 1).unsqueeze(1)).view_as(x)


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 8), lbq.RepeatOverTime(2), MERGED, nn.Linear(8, 3), lbq.MeanOverTime()
    )


def samples():
    return torch.randn(8, 6)
"""


@pytest.fixture
def leaking(tmp_path):
    path = tmp_path / "leaking.py"
    path.write_text(LEAKING.replace("MERGED", "Merged()"))
    return str(path)


@pytest.fixture
def clean(tmp_path):
    path = tmp_path / "clean.py"
    path.write_text(LEAKING.replace("MERGED", "lbq.BurstLIF(step=0.3)"))
    return str(path)


def test_a_table_a_page_and_json(leaking, tmp_path, capsys):
    page = tmp_path / "audit.html"
    assert main(["audit", leaking, "--out", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "leaking, 8 samples" in shown
    assert "FAILS leak" in shown
    assert "2.neuron" in shown
    assert "Batch invariance: fails" in page.read_text()
    assert "default-src 'none'" in page.read_text()  # it may load nothing
    assert main(["audit", leaking, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [finding["key"] for finding in document["findings"]] == list(KEYS)


def test_a_page_shows_facts_without_colour_and_energies_with_their_ratio(clean, tmp_path):
    page = tmp_path / "audit.html"
    assert main(["audit", clean, "--out", str(page)]) == 0
    html = page.read_text()
    assert '<li class="verdict fact"><b>Counts</b>' in html
    assert ".verdict.fact { border-color: transparent; }" in html
    headings = re.findall(r"<th[^>]*>(ANN|this|ANN / this)</th>", html)
    assert headings == ["ANN", "this", "ANN / this"]
    assert "Microjoules per sample" in html


def test_the_exit_code_says_whether_what_was_named_fails(leaking, clean, capsys):
    assert main(["audit", leaking, "--fail-on", "state", "causality"]) == 0
    assert main(["audit", leaking, "--fail-on", "state", "leak"]) == FOUND
    assert main(["audit", clean, "--fail-on", "leak", "state", "levels", "deployability"]) == 0


def test_wrong_words_and_files_are_told(clean, tmp_path, capsys):
    assert main(["audit", clean, "--fail-on", "leaks"]) == 2
    assert "--fail-on takes leak, state" in capsys.readouterr().err
    path = tmp_path / "wrong.py"
    path.write_text("def model():\n    return 1\n\n\ndef samples():\n    return 2\n")
    assert main(["audit", str(path)]) == 1
    assert "must return an nn.Module and samples() a tensor, got int" in capsys.readouterr().err
    path.write_text("def model():\n    return 1\n")
    assert main(["audit", str(path)]) == 1
    assert "samples" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "missing.py")]) == 1
    assert "missing.py" in capsys.readouterr().err


def test_a_pretrained_network(tmp_path, capsys):
    words = ["audit", "pocket-cifar10", "--data", "synthetic", "--limit", "8", "--json"]
    assert main([*words, "--cache", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    verdicts = {finding["key"]: finding["verdict"] for finding in document["findings"]}
    assert document["samples"] == 8
    assert verdicts["leak"] == verdicts["deployability"] == "holds"


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "there is no file"), ("x = 1", "has no function model(); it must return the network")],
)
def test_a_file_that_is_missing_or_lacks_a_function_is_named(text, message, tmp_path, capsys):
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    assert main(["audit", str(path)]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert str(path) in error
    assert message in error
