import shutil
import subprocess

import pytest

from lbq.cli.main import main
from lbq.train.recipes import RECIPES

ASK = """
source "$1"; shift
COMP_WORDS=(lbq "$@"); COMP_CWORD=$#; COMPREPLY=()
_tyro_lbq
echo "${COMPREPLY[*]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script for bash, as a user would keep it."""
    path = tmp_path_factory.mktemp("completion") / "lbq"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == 0
    return path


def finish(script, *words):
    """Ask bash how it would finish the last word."""
    command = [shutil.which("bash"), "-c", ASK, "bash", str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_bash_finishes_commands_recipes_flags_and_choices(script):
    assert finish(script, "tr") == ["train"]
    assert set(finish(script, "train", "")) >= set(RECIPES)
    assert finish(script, "train", "pocket", "--epo") == ["--epochs"]
    assert finish(script, "export", "net.lbq", "--to", "o") == ["onnx"]


def test_every_command_is_known_to_the_shell(script):
    from lbq.cli.main import COMMANDS  # noqa: PLC0415

    assert set(finish(script, "")) >= set(COMMANDS)
