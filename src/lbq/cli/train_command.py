"""``lbq train RECIPE``: in this process, in one process per device, or under a supervisor.

RECIPE is the name of a recipe, its JSON file, or a Python file with a function ``recipe()``.
"""

import difflib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from lbq.cli.args import UsageError, check_count, read
from lbq.cli.progress import Display, headline, summary
from lbq.cli.terminal import Console
from lbq.data import open_data
from lbq.errors import LBQError, RunError
from lbq.train.allocator import keep_freed_memory
from lbq.train.distributed import is_first_process, is_inside_launcher, launch_workers
from lbq.train.engine import run_task, train
from lbq.train.metrics import Callback, TensorBoardCallback
from lbq.train.recipe import Recipe, read_recipe
from lbq.train.recipe_file import load_recipe_file
from lbq.train.recipes import RECIPES
from lbq.train.run_folder import RunFolder
from lbq.train.supervisor import PARENT_PID, Supervisor
from lbq.train.task import RunOptions, Task
from lbq.train.train_config import TrainConfig

EXAMPLES = {
    "lbq train smoke": "half a minute, no download: does everything work?",
    "lbq train pocket --data uoft-cs/cifar10": "CIFAR-10; the same line again continues",
    "lbq train pocket --epochs 10 --optim.lr 0.05 --out runs/short": "change the recipe",
    "lbq train runs/short/recipe.json --out runs/again": "repeat another run",
    "lbq train ./my_recipe.py --epochs 3": "your own network and data, from a function recipe()",
}

_USAGE = f"""usage: lbq train RECIPE [OPTIONS]

RECIPE is one of {", ".join(RECIPES)},
the path of a recipe.json, or of your own Python file with a function recipe() that returns the
arguments of lbq.fit. `lbq train pocket --help` lists the options.

examples:
""" + "\n".join(f"  {line}\n      {what}" for line, what in EXAMPLES.items())

_WAIT_FOR_PREDECESSOR_S = 90.0
"""How long a supervised job waits for processes that its predecessor left running."""


@dataclass(frozen=True, kw_only=True)
class _CommonArguments:
    out: Path | None = None
    """Folder of the run; runs/<recipe> by default."""
    devices: int = 1
    """GPUs of this machine to train on, or processes on CPUs; leave it out under torchrun."""
    supervise: bool = False
    """Start again after a crash, from the last checkpoint."""
    tensorboard: bool = False
    """Write charts for TensorBoard too, into the run's folder."""
    json: bool = False
    """Print one JSON object at the end, and the progress on the standard error."""
    debug: bool = False
    """Show tracebacks of errors."""
    options: Annotated[RunOptions, tyro.conf.arg(name="")] = field(default_factory=RunOptions)
    """Where and how fast."""


@dataclass(frozen=True, kw_only=True)
class TrainArguments(_CommonArguments):
    """Train a recipe. The same command again continues where it stopped.

    Every field of the recipe can be changed: ``--epochs 10 --optim.lr 0.05 --model.timesteps 1``.
    """

    data: str | None = None
    """Data source, a hub id or a folder; short for --data.source."""
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    """What to compute."""


@dataclass(frozen=True, kw_only=True)
class FileArguments(_CommonArguments):
    """Train the model of a Python file. The same command again continues where it stopped.

    Every training setting can be changed: ``--epochs 10 --optim.lr 0.05``.
    """

    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    """How to train."""
    task: tyro.conf.Suppress[Task]
    """Model, data, loss and metrics of the file."""


Arguments = TrainArguments | FileArguments
Kind = TypeVar("Kind", TrainArguments, FileArguments)


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq train``."""
    arguments = parse(words)
    check_count("--devices", arguments.devices, at_least=1)
    out, devices = arguments.out, arguments.devices
    assert out is not None
    again = ["-m", "lbq.cli", "train", *words]
    if arguments.supervise and PARENT_PID not in os.environ:
        del arguments  # the data of a file: only the processes that train need them
        return _supervise(again, out)
    if devices > 1 and not is_inside_launcher():
        _check_devices(arguments)
        del arguments
        return launch_workers(again, devices=devices)
    return _train(arguments, out)


def _supervise(command: list[str], out: Path) -> int:
    if is_inside_launcher():
        raise RunError(
            "--supervise does not work inside torchrun: let the scheduler start the job again "
            "(docs/scaling.md)"
        )
    checkpoints = RunFolder(out).checkpoints
    job = Supervisor(
        [sys.executable, *command], progress=lambda: max(checkpoints.steps(), default=-1)
    )
    return job.run()


def _check_devices(arguments: Arguments) -> None:
    """Raise before any process is started, and decode the data of a recipe once."""
    if isinstance(arguments, FileArguments):
        arguments.config.check_world_size(arguments.devices)
        return
    arguments.recipe.check_world_size(arguments.devices)
    open_data(arguments.recipe.data, arguments.options.cache)


def _train(arguments: Arguments, out: Path) -> int:
    """Train in this process, one of possibly several."""
    keep_freed_memory()
    is_first = is_first_process()
    config = arguments.config if isinstance(arguments, FileArguments) else arguments.recipe
    display = Display(config, Console(stderr=arguments.json, soft_wrap=True)) if is_first else None
    callbacks: list[Callback] = [] if display is None else [display]
    if arguments.tensorboard and is_first:
        callbacks.append(TensorBoardCallback(out / "tensorboard"))
    wait_s = _WAIT_FOR_PREDECESSOR_S if PARENT_PID in os.environ else 0.0
    options = arguments.options
    try:
        if isinstance(arguments, FileArguments):
            task = replace(arguments.task, config=arguments.config)
            outcome = run_task(
                lambda: task,
                out,
                options,
                callbacks=callbacks,
                progress=display,
                wait_for_lock_s=wait_s,
            )
        else:
            if display is not None:
                display.wait(f"opening {arguments.recipe.data.source}")
            outcome = train(
                arguments.recipe,
                out,
                options,
                callbacks=callbacks,
                progress=display,
                wait_for_lock_s=wait_s,
            )
    finally:
        if display is not None:
            display.close()
    if display is not None and arguments.json:
        Console(soft_wrap=True).print_json(json.dumps(summary(outcome, out)), indent=None)
    elif display is not None:
        display.say(headline(outcome, out))
    return outcome.exit_code


def parse(words: Sequence[str]) -> Arguments:
    """Read the command line: the recipe, then flags that change it."""
    if words and words[0] in ("-h", "--help"):
        Console(soft_wrap=True).print_text(_USAGE)
        raise SystemExit(0)
    if not words or words[0].startswith("-"):
        raise UsageError(f"name a recipe first: lbq train RECIPE; {_choices()}")
    found = find_recipe(words[0])
    name = Path(words[0]).stem if words[0].endswith(".py") else None
    if isinstance(found, Task):
        default = FileArguments(config=found.config, task=found)
        arguments = _read(default, words)
    else:
        arguments = _read(TrainArguments(recipe=found), words)
        name = name or arguments.recipe.name
        if arguments.data is not None:
            data = replace(arguments.recipe.data, source=arguments.data)
            arguments = replace(arguments, recipe=replace(arguments.recipe, data=data))
    return arguments if arguments.out else replace(arguments, out=Path("runs") / str(name))


def _read(default: Kind, words: Sequence[str]) -> Kind:
    command = f"lbq train {words[0]}"
    try:
        return read(type(default), words[1:], command=command, examples=EXAMPLES, default=default)
    except (LBQError, UsageError) as error:
        raise UsageError(_with_option(str(error), words)) from error


def find_recipe(name: str) -> Recipe | Task:
    """Find a recipe by its name, or read it from a file; a Python file may return a task."""
    if name in RECIPES:
        return RECIPES[name]()
    if name.endswith(".json"):
        return read_recipe(Path(name))
    if name.endswith(".py"):
        return load_recipe_file(name)
    close = difflib.get_close_matches(name, RECIPES, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    raise UsageError(f"there is no recipe {name!r}; {guess}{_choices()}")


def _with_option(message: str, words: Sequence[str]) -> str:
    """Put the option before a message that begins with the name of its field.

    tyro's option has the path of the field's group in front.
    """
    message = re.sub(r"^Error parsing [\w.]+: ", "", message)
    field_name = message.split(maxsplit=1)[0]
    for word in words:
        option = word.partition("=")[0]
        last_part = option.removeprefix("--").rpartition(".")[2]
        if option.startswith("--") and last_part.replace("-", "_") == field_name:
            return f"{option}: {message}"
    return message


def _choices() -> str:
    return f"take one of {', '.join(RECIPES)}, or the path of a recipe.json or a my_recipe.py"
