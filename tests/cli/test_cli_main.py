import errno
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import lbq
from lbq.cli import main as cli
from lbq.cli.args import UsageError
from lbq.cli.main import explain, is_out_of_memory
from lbq.errors import LBQError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_the_version_is_told(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"{lbq.__version__}\n"


def test_help_lists_the_commands(capsys):
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"lbq {name}" in out for name in cli.COMMANDS)


def test_no_command_shows_them_all(capsys):
    assert cli.main([]) == 2
    assert "lbq train" in capsys.readouterr().out


def fail_with(error, monkeypatch):
    def fail(words):
        raise error

    monkeypatch.setitem(cli.COMMANDS, "train", (fail, ""))


def test_a_mistake_is_explained_without_a_traceback(monkeypatch, capsys):
    fail_with(LBQError("the batch [of 3] is too small"), monkeypatch)
    assert cli.main(["train"]) == 1
    assert capsys.readouterr().err == "error: the batch [of 3] is too small\n"


def test_a_mistake_shows_its_traceback_if_asked(monkeypatch, capsys):
    fail_with(LBQError("too small"), monkeypatch)
    assert cli.main(["train", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_crash_shows_its_traceback_and_differs_from_a_user_error(monkeypatch, capsys):
    fail_with(RuntimeError("our fault"), monkeypatch)
    assert cli.main(["train"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_a_process_that_lost_the_others_says_so_in_a_line(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "3")
    fail_with(RuntimeError("[pair.cc] Connection closed by peer\nmore"), monkeypatch)
    assert cli.main(["train"]) == 70
    assert capsys.readouterr().err == "process 3: [pair.cc] Connection closed by peer\n"


def test_ctrl_c_has_the_usual_code(monkeypatch):
    fail_with(KeyboardInterrupt(), monkeypatch)
    assert cli.main(["train"]) == 130


@pytest.mark.multi
def test_the_module_is_the_command():
    command = [sys.executable, "-m", "lbq.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, lbq.__version__)


def test_the_message_of_our_own_error_becomes_one_line():
    assert explain(LBQError("two faults:\n  a\n  b\n")) == "two faults: a; b"
    assert explain(UsageError("no such flag")) == "no such flag"


def test_what_the_system_refuses_is_told_with_its_path(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        (tmp_path / "nowhere").read_bytes()
    assert explain(error.value) == (
        f"{tmp_path}/nowhere: No such file or directory; check the path"
    )


def test_a_broken_disk_is_a_crash_and_may_be_tried_again():
    assert explain(OSError(errno.EIO, "Input/output error", "net.lbq")) is None
    assert explain(RuntimeError("our fault")) is None


def test_torch_out_of_memory_is_recognised():
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(error.value)
    assert explain(error.value).startswith("out of memory: take a smaller batch")
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())


def test_the_help_and_the_page_list_every_exit_code_and_format(capsys):
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    codes = [int(code) for code in re.findall(r"^  (\d+) ", said, re.M)]
    assert codes == [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.M)]
    for text in (said, page):
        assert all(name in text for name in ("ONNX", "NIR", "C", "Verilog"))
