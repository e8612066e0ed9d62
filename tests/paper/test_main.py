import pytest

from lbq_paper.__main__ import Choice, main


def test_cells_are_listed_with_their_state(capsys, tmp_path):
    words = ["list", "--group", "c", "--results", str(tmp_path)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.count("not run") == 6
    assert "6 cells, 0 recorded" in out


def test_a_table_is_printed(capsys, tmp_path):
    assert main(["table", "5", "--results", str(tmp_path)]) == 0
    assert "97.45" in capsys.readouterr().out


def test_figures_say_what_they_need(capsys):
    assert main(["figure", "3"]) == 1
    assert "lbq.analysis" in capsys.readouterr().err


def test_parts_of_an_array_are_the_whole():
    whole = Choice().cells()
    parts = [Choice(array_index=index, array_size=7).cells() for index in range(7)]
    assert sorted(cell.id for part in parts for cell in part) == sorted(c.id for c in whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["list", "--array-index", "3", "--array-size", "3"], "array_index must lie in 0..2"),
        (["list", "nothing-begins-so"], "no cell is chosen"),
        (["run", "--group", "z"], "no cell is chosen"),
    ],
)
def test_mistakes_are_told(words, complaint, capsys):
    assert main(words) == 1
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("words", "code"), [([], 2), (["--help"], 0), (["tabel", "5"], 2)])
def test_without_a_command_they_are_listed(words, code, capsys):
    assert main(words) == code
    assert "lbq_paper run" in "".join(capsys.readouterr())
