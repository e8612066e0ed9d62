"""``lbq completion SHELL``: a completion script that never starts torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import subcommand

from lbq.cli.args import read
from lbq.cli.audit_command import AuditArguments
from lbq.cli.bench_command import BenchArguments
from lbq.cli.doctor_command import DoctorArguments
from lbq.cli.eval_command import EvalArguments
from lbq.cli.export_command import ExportArguments
from lbq.cli.lower_command import LowerArguments
from lbq.cli.report_command import ReportArguments
from lbq.cli.train_command import TrainArguments
from lbq.train.recipes import RECIPES

EXAMPLES = {
    "lbq completion bash > ~/.local/share/bash-completion/completions/lbq": "for every new bash",
    "lbq completion zsh > ~/.zfunc/_lbq": "if fpath has ~/.zfunc",
}


@dataclass(frozen=True, kw_only=True)
class CompletionArguments:
    """Print a completion script for the shell."""

    shell: Annotated[Literal["bash", "zsh", "tcsh"], tyro.conf.Positional]
    """Which shell."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq completion``."""
    arguments = read(CompletionArguments, words, command="lbq completion", examples=EXAMPLES)
    try:
        tyro.cli(_all_commands(), prog="lbq", args=["--tyro-print-completion", arguments.shell])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _all_commands() -> Any:
    """Describe all commands at once; a recipe's name is a command of its own below ``train``."""
    recipes = [
        Annotated[TrainArguments, subcommand(name, default=TrainArguments(recipe=make()))]
        for name, make in RECIPES.items()
    ]

    @dataclass(frozen=True, kw_only=True)
    class Train:
        """Train a recipe."""

        recipe: Annotated[_any_of(recipes), tyro.conf.arg(name="")]  # pyright: ignore[reportInvalidTypeForm]

    commands = {
        "train": Train,
        "eval": EvalArguments,
        "lower": LowerArguments,
        "export": ExportArguments,
        "bench": BenchArguments,
        "report": ReportArguments,
        "audit": AuditArguments,
        "doctor": DoctorArguments,
        "completion": CompletionArguments,
    }
    return _any_of([Annotated[kind, subcommand(name)] for name, kind in commands.items()])


def _any_of(kinds: Sequence[Any]) -> Any:
    return reduce(or_, kinds)
