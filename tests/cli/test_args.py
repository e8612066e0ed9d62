import os
import pty
import sys
from dataclasses import dataclass

import pytest

from lbq.cli.args import UsageError, describe, in_one_line, read, without_none
from lbq.cli.main import main


@dataclass(frozen=True, kw_only=True)
class Pour:
    """Pour tea.

    What else a reader of the code should know.
    """

    cups: int = 1
    """How many."""


EXAMPLES = {"pour": "one cup", "pour --cups 3": "three"}


def test_words_become_fields():
    assert read(Pour, ["--cups", "3"], command="pour", examples=EXAMPLES) == Pour(cups=3)
    default = Pour(cups=5)
    assert read(Pour, [], command="pour", examples=EXAMPLES, default=default) == default


def test_help_shows_examples(capsys):
    with pytest.raises(SystemExit) as leaving:
        read(Pour, ["--help"], command="pour", examples=EXAMPLES)
    assert not leaving.value.code
    out = capsys.readouterr().out
    assert "Pour tea.\n\nexamples:\n  pour           one cup\n  pour --cups 3  three\n" in out
    assert "How many." in out
    assert describe(Pour, EXAMPLES) in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cup", "3"], "Unrecognized options: --cup, 3; did you mean --cups?"),
        (
            ["--cups", "many"],
            "Error parsing --cups: invalid literal for int() with base 10: 'many'",
        ),
        (["--cups"], "Missing value for argument '--cups'. Expected 1 values"),
    ],
)
def test_a_wrong_word_is_one_line_that_names_the_help(words, message):
    with pytest.raises(UsageError) as error:
        read(Pour, words, command="pour", examples=EXAMPLES)
    assert str(error.value) == f"{message}; `pour --help` lists what it takes"


def test_both_kinds_of_boxes_are_read():
    round_box = "╭─ Title ─╮\n│ Too hot  │\n│ ──────── │\n│ see help │\n╰──────────╯\n"
    plain_box = "  Title \n ------ \n  Too \n  hot. \n  ------- \n  see help \n\n"
    assert in_one_line(round_box) == in_one_line(plain_box) == "Too hot"


def help_in_a_terminal():
    """What ``--help`` writes to a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 -- the process ends here
            read(Pour, ["--help"], command="pour", examples=EXAMPLES)
        except SystemExit:
            sys.stdout.flush()
        finally:
            os._exit(0)
    seen = b""
    try:
        while piece := os.read(terminal, 4096):
            seen += piece
    except OSError:  # how a terminal says that the other side is gone
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    return seen.decode()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking beside threads: we only print
def test_no_color_is_respected_in_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in help_in_a_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "Pour tea." in help_in_a_terminal()
    assert "\x1b[" not in help_in_a_terminal()


@pytest.mark.parametrize("command", ["eval", "lower", "export", "bench", "report", "audit"])
def test_no_help_shows_none(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    said = capsys.readouterr().out
    assert "None" not in said
    assert " INT " in said or " PATH" in said


def test_columns_stay_where_they_are_without_none():
    before = (
        "| --step {None}|INT  which (default: None) |\n| --a {None,b} c (default:  |\n|  None)  |"
    )
    after = without_none(before)
    assert "None" not in after
    assert [len(line) for line in after.splitlines()] == [len(line) for line in before.splitlines()]
    assert "--step INT         which" in after
