import pytest

from lbq_paper.__main__ import Choice, main


def test_experiments_are_listed_with_their_state(capsys, tmp_path):
    words = ["list", "--group", "c", "--results", str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.count("not run") == 7
    assert "7 experiments, 0 recorded" in out


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["table", "5"], "97.45"),
        (["results"], "# Results"),
        (["figure", "3", "--out", "new"], "figure3.svg"),
    ],
)
def test_tables_pages_and_figures_are_written(words, printed, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--results", str(tmp_path)]) == 0
    assert printed in capsys.readouterr().out


def test_figure_4_comes_with_its_numbers(capsys, record, layers, tmp_path):
    record("ablation/V1/fixed", 0, 0.8, layers=layers(1.0), counts={"num_images": 10})
    words = ["figure", "4", "--out", str(tmp_path / "out"), "--results", str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "0.173" in out
    assert "not run" in out
    assert "figure4-pocket.png" in out


def test_parts_of_an_array_are_the_whole():
    whole = Choice().experiments()
    parts = [Choice(array_index=index, array_size=7).experiments() for index in range(7)]
    assert sorted(experiment.id for part in parts for experiment in part) == sorted(
        c.id for c in whole
    )
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["list", "--array-index", "3", "--array-size", "3"], "array_index must lie in 0..2"),
        (["list", "nothing-begins-so"], "no experiment is chosen"),
        (["run", "--group", "z"], "no experiment is chosen"),
        (["figure", "4", "--results", "."], "none was run at pocket size"),
        (["table", "5", "--results", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_errors_are_printed(words, message, capsys):
    assert main(words) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("words", "code"), [([], 2), (["--help"], 0), (["tabel", "5"], 2)])
def test_without_a_command_they_are_listed(words, code, capsys):
    assert main(words) == code
    assert "lbq_paper run" in "".join(capsys.readouterr())
