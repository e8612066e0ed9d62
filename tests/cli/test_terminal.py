"""Text that would control a terminal, from recipes, networks, logs and warnings."""

import io
import logging
import subprocess
import sys
import warnings

import pytest
from rich.table import Table
from rich.text import Text

from lbq.cli import terminal
from lbq.cli.main import main
from lbq.cli.progress import Display
from lbq.cli.terminal import Console, printable
from lbq.train.recipe import write_recipe

HOSTILE = "a\x1b[31mred\x1b]0;title\x07\x9b2J\r\u202eb"
SHOWN = r"a\x1b[31mred\x1b]0;title\x07\x9b2J\r\u202eb"


def is_clean(text):
    return not set(text) & set("\x1b\x07\x9b\r\u202e")


def test_control_characters_are_shown_as_escapes():
    assert printable(HOSTILE) == SHOWN
    assert printable("two\nlines\tand a tab, \u00e9") == "two\nlines\tand a tab, \u00e9"


@pytest.mark.parametrize("soft_wrap", [True, False])
@pytest.mark.parametrize("form", ["text", "rich text", "cell", "title", "error"])
def test_no_text_reaches_the_terminal_unescaped(form, soft_wrap):
    table = Table("name", title=HOSTILE if form == "title" else None)
    table.add_row(HOSTILE)
    shown = {"rich text": Text(HOSTILE), "cell": table, "title": table}.get(form, HOSTILE)
    out = io.StringIO()
    console = Console(file=out, soft_wrap=soft_wrap, width=200)
    console.print(shown, markup=False, highlight=False)
    assert is_clean(out.getvalue())
    assert r"a\x1b[31mred\x1b]0;" in out.getvalue()


def test_colours_and_bars_of_our_own_still_work(tiny):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=200)
    console.print("[red]warning[/red]")
    assert "\x1b[31mwarning" in out.getvalue()
    display = Display(tiny.tiny_recipe(), console)
    display.wait(f"opening {HOSTILE} [/not markup]")
    display.close()
    assert "\x1b]0;title" not in out.getvalue()
    assert "[/not markup]" in out.getvalue()


def test_a_recipe_that_would_control_the_terminal_is_refused_in_plain_text(tiny, tmp_path, capsys):
    for field, value, message in (
        ("name", "tiny", "name must be usable as the name of a folder"),
        ("source", "synthetic", "source must be text without control characters"),
    ):
        hostile = write_recipe(tiny.tiny_recipe()).replace(
            f'"{field}": "{value}"', f'"{field}": "{value}\\u001b]0;title\\u0007"'
        )
        (tmp_path / "evil.json").write_text(hostile)
        assert main(["train", str(tmp_path / "evil.json"), "--help"]) == 1
        captured = capsys.readouterr()
        assert is_clean(captured.out + captured.err)
        assert message in captured.err


def test_logs_and_warnings_are_escaped_and_other_libraries_are_not_repeated(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    logger = logging.getLogger("lbq")
    monkeypatch.setattr(logger, "handlers", [])
    root = logging.getLogger()
    before = list(root.handlers)
    main(["--version"])
    assert root.handlers == before
    logging.getLogger("lbq.train.checkpoint").error("saved %s", HOSTILE)
    assert out.getvalue() == f"ERROR: saved {SHOWN}\n"
    text = warnings.formatwarning(HOSTILE, UserWarning, "file.py", 1, "")
    assert terminal.printable(text) == text


RETRY = """
from lbq.cli.main import main
main(["--version"])
from huggingface_hub.utils import logging
logging.get_logger("huggingface_hub.http").warning("Retrying in 1s")
"""


def test_a_retry_of_the_hub_is_printed_once():
    pytest.importorskip("huggingface_hub")
    command = [sys.executable, "-c", RETRY]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("Retrying in 1s") == 1
