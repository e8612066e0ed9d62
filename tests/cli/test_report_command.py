import json
import re
import shutil
from pathlib import Path

import pytest

from lbq.cli.main import main
from lbq.cli.report_command import measure, run_names
from lbq.cli.samples import open_samples
from lbq.cost import EnergyModel
from lbq.data import DataConfig
from lbq.pretrained import pretrained_record
from lbq.train.metrics import read_metrics_log
from lbq.train.model_config import ModelConfig, NeuronConfig
from lbq.train.recipe import write_recipe
from lbq.train.run_folder import load_run


def values(html, key):
    """The exact numbers of a section, in order."""
    part = html[html.index(f'<section id="{key}">') :]
    part = part[: part.index("</section>")]
    return [float(value) for value in re.findall(r'<data value="([^"]+)">', part)]


@pytest.fixture(scope="module")
def opened(trained, tmp_path_factory):
    loaded = load_run(trained)
    model, recipe = loaded.model, loaded.recipe
    return model, open_samples(recipe, source=None, cache=tmp_path_factory.mktemp("cache"))


def test_the_numbers_on_the_page_are_the_runs(trained, opened, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", str(trained), "--out", str(out), "--limit", "20"]) == 0
    assert f"{out}: {out.stat().st_size:,} bytes" in capsys.readouterr().out
    html = out.read_text()
    captured = [
        r for r in read_metrics_log(trained / "metrics.jsonl") if r["event"] == "evaluation"
    ]
    expected = [x for r in captured for x in (r["step"], 100 * r["accuracy"], r["loss"])]
    assert values(html, "curves") == expected
    model, data = opened
    steps = [n.step().double().item() for n in model.modules() if hasattr(n, "receive")]
    assert values(html, "steps") == steps
    table = measure(model, data, limit=20).table
    assert table.num_images == 20
    total = values(html, "costs")[-8:-5]  # before the table of other operations
    assert total[0] == table.total().unary_acs / 20 / 1e6
    assert total[1] == table.total().bit_sparse_acs / 20 / 1e6
    paper = EnergyModel().estimate(table)["paper"]
    assert values(html, "energy")[:3] == [paper.ratio, 1e3 * paper.ann_mj, 1e3 * paper.burst_mj]


def test_counts_and_statistics_agree_on_levels(opened):
    model, data = opened
    found = measure(model, data, limit=20)
    by_cost = found.table.active_ratios()
    assert {x.layer: x.active_ratio for x in found.levels.layers} == pytest.approx(by_cost)
    below = {m.layer: 1 - m.lower_tail for m in found.membranes}  # the first threshold is 1
    assert below == pytest.approx(by_cost, abs=2e-3)


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a"], ["a"]),
        (["runs/a", "runs/b"], ["a", "b"]),
        (["cells/a/run", "cells/b/run"], ["a", "b"]),
        (["cells/a/run", "other/a/run"], ["cells", "other"]),
        (["x/a/1/run", "x/b/2/run"], ["a/1", "b/2"]),
        (["a", "a"], ["a", "a"]),
    ],
)
def test_runs_are_named_by_what_differs(folders, names):
    assert run_names([Path(folder) for folder in folders]) == names


def test_several_runs_are_compared(trained, tmp_path):
    out = tmp_path / "both.html"
    words = ["report", str(trained), str(trained), "--out", str(out), "--limit", "10"]
    assert main(words) == 0
    html = out.read_text()
    assert "2 runs compared" in html
    assert html.count(f'class="number">{trained.name}</th>') == 2


def test_data_that_are_gone_are_said_and_worked_around(trained, tmp_path, monkeypatch, capsys):
    from lbq.cli import report_command as command  # noqa: PLC0415
    from lbq.errors import FormatError  # noqa: PLC0415

    def gone(*arguments, **options):
        raise FormatError("there is no folder data/x")

    monkeypatch.setattr(command, "open_samples", gone)
    out = tmp_path / "report.html"
    words = ["report", str(trained), "--out", str(out)]
    assert main(words) == 0
    assert "there is no folder data/x. Pass --data." in capsys.readouterr().out
    html = out.read_text()
    assert "there is no folder data/x" in html
    assert 'id="levels"' not in html
    assert 'id="steps"' in html
    assert main([*words, "--data", "data/x"]) == 1
    assert main([*words, "--limit", "0"]) == 0
    assert "--limit 0" in out.read_text()


@pytest.fixture(scope="module")
def trained_on_pictures(tiny, pictures, tmp_path_factory):
    """The folder of a run on other data than those of ``trained``."""
    folder = tmp_path_factory.mktemp("other")
    shutil.copytree(pictures, folder / "data")
    data = DataConfig(source=str(folder / "data"))
    (folder / "other.json").write_text(write_recipe(tiny.tiny_recipe(epochs=1, data=data)))
    words = ["--cache", str(folder / "cache"), "--out", str(folder / "run")]
    assert main(["train", str(folder / "other.json"), *words]) == 0
    return folder


def test_data_of_another_run_are_refused(trained, trained_on_pictures, tmp_path, capsys):
    """An accuracy on one data set never stands beside counts on another."""
    out, cache = tmp_path / "both.html", str(trained_on_pictures / "cache")
    other, data = trained_on_pictures / "run", str(trained_on_pictures / "data")
    words = ["--out", str(out), "--limit", "10", "--cache", cache]
    for runs in ([str(trained)], [str(other), str(trained)]):
        assert main(["report", *runs, "--data", data, *words]) == 1
        said = capsys.readouterr().err
        assert f"{data} does not hold the data of" in said
        assert "without --data every run opens its own data" in said
        assert not out.exists()
    assert main(["report", str(other), str(trained), *words]) == 0
    assert "were not trained and tested on the same data" in out.read_text()


def test_the_data_of_a_run_may_lie_elsewhere_but_not_have_changed(
    trained_on_pictures, pictures, tmp_path, capsys
):
    out, new = tmp_path / "a.html", trained_on_pictures / "data" / "test" / "dark" / "new.png"
    cache = ["--cache", str(trained_on_pictures / "cache")]
    words = ["report", str(trained_on_pictures / "run"), "--out", str(out), "--limit", "5", *cache]
    shutil.copy(pictures / "test" / "light" / "0.png", new)
    try:
        assert main(words) == 0
    finally:
        new.unlink()
    assert f"not measured: {trained_on_pictures / 'data'} does not hold" in capsys.readouterr().out
    assert 'id="costs"' not in out.read_text()
    assert main([*words, "--data", str(pictures)]) == 0
    assert 'id="costs"' in out.read_text()


def test_a_network_that_comes_with_the_library_is_reported_by_its_record(tmp_path, capsys):
    out, record = tmp_path / "a.html", pretrained_record("pocket-cifar10")
    words = ["report", "pocket-cifar10", "--out", str(out), "--cache", str(tmp_path)]
    assert main([*words, "--limit", "0"]) == 0
    html = out.read_text()
    assert "89.56 % of the test samples are answered correctly" in html
    expected = [x for r in record["evaluations"] for x in (100 * r["accuracy"], r["loss"])]
    assert values(html, "curves") == expected
    assert "8,956 of 10,000" in html
    assert record["data_sha256"] in html
    assert len(values(html, "steps")) == 19
    assert main([*words, "--limit", "5", "--data", "synthetic"]) == 1
    assert "does not hold the data of pocket-cifar10" in capsys.readouterr().err
    assert main([*words, "--step", "3"]) == 2
    assert "no --step" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["net.lbq", "net.onnx", "net.pt2", "net.nir"])
def test_a_file_is_told_what_a_report_needs_and_what_comes_nearest(tmp_path, capsys, name):
    (tmp_path / name).touch()
    assert main(["report", str(tmp_path / name), "--out", str(tmp_path / "a.html")]) == 1
    said = capsys.readouterr().err
    for words in ("the folder of the run", f"lbq eval {tmp_path / name}", "lbq.OpCounter"):
        assert words in said


def test_advice_and_names_of_notes_fit(trained, tmp_path, monkeypatch, capsys):
    from lbq.cli import report_command as command  # noqa: PLC0415
    from lbq.errors import MissingExtraError  # noqa: PLC0415

    def missing(*arguments, **options):
        raise MissingExtraError("data sets need datasets: pip install 'datasets>=4'")

    monkeypatch.setattr(command, "open_samples", missing)
    twice = (str(trained), str(trained))
    assert main(["report", *twice, "--out", str(tmp_path / "a.html")]) == 0
    said = capsys.readouterr().out.splitlines()[:2]
    assert all(line.startswith(f"{trained.name}: Levels") for line in said)
    assert all(line.endswith("pip install 'datasets>=4'.") for line in said)


def test_an_ann_is_reported_without_levels(tiny, tmp_path):
    model = ModelConfig(name="resnet20", width=1 / 64, neuron=NeuronConfig(kind="relu"))
    recipe = tmp_path / "ann.json"
    recipe.write_text(write_recipe(tiny.tiny_recipe(epochs=1, model=model)))
    assert main(["train", str(recipe), "--out", str(tmp_path / "ann")]) == 0
    out = tmp_path / "ann.html"
    assert main(["report", str(tmp_path / "ann"), "--out", str(out)]) == 0
    html = out.read_text()
    assert "This network is an ANN" in html
    assert 'id="plot-curves"' in html
    assert 'id="plot-steps"' not in html


def test_what_was_written_is_data_if_asked(trained, tmp_path, capsys):
    out = tmp_path / "a.html"
    assert main(["report", str(trained), "--limit", "0", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["file"], found["bytes"]) == (str(out), out.stat().st_size)
    assert "--limit 0" in found["notes"][0]
