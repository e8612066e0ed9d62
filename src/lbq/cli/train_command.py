"""``lbq train RECIPE``: in this process, in one process per device, or under a supervisor."""

import difflib
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from lbq.cli.args import UsageError, check_count, read
from lbq.cli.progress import Display, headline, summary
from lbq.cli.terminal import Console
from lbq.data import open_data
from lbq.errors import LBQError, RecipeError, RunError
from lbq.train.distributed import is_first_process, is_inside_launcher, launch_workers
from lbq.train.engine import RunOptions, train
from lbq.train.metrics import Callback, TensorBoardCallback
from lbq.train.recipe import Recipe, read_recipe
from lbq.train.recipes import RECIPES
from lbq.train.run_folder import RunFolder
from lbq.train.supervisor import PARENT_PID, Supervisor

EXAMPLES = {
    "lbq train smoke": "half a minute, no download: does everything work?",
    "lbq train pocket --data uoft-cs/cifar10": "CIFAR-10; the same line again continues",
    "lbq train pocket --epochs 10 --optim.lr 0.05 --out runs/short": "change the recipe",
    "lbq train runs/short/recipe.json --out runs/again": "train what another run trained",
}

_USAGE = f"""usage: lbq train RECIPE [OPTIONS]

RECIPE is one of {", ".join(RECIPES)},
or the path of a recipe.json. `lbq train pocket --help` lists the options.

examples:
""" + "\n".join(f"  {line}\n      {what}" for line, what in EXAMPLES.items())

_WAIT_FOR_PREDECESSOR_S = 90.0
"""How long a supervised job waits for what its predecessor left running."""


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """Train a recipe. The same command again continues where it was left.

    Every field of the recipe can be changed: ``--epochs 10 --optim.lr 0.05 --model.timesteps 1``.
    """

    out: Path | None = None
    """Folder of the run; runs/<recipe> by default."""
    data: str | None = None
    """Data source, a hub id or a folder; short for --data.source."""
    devices: int = 1
    """GPUs of this machine to train on, or processes on CPUs; under torchrun it decides."""
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
    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    """What to compute."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq train``."""
    arguments = parse(words)
    check_count("--devices", arguments.devices, at_least=1)
    recipe, out = arguments.recipe, arguments.out or Path("runs") / arguments.recipe.name
    again = ["-m", "lbq.cli", "train", *words]
    is_guarded = PARENT_PID in os.environ
    if arguments.supervise and not is_guarded:
        if is_inside_launcher():
            raise RunError(
                "--supervise belongs outside of torchrun: under a scheduler let the scheduler "
                "start the job again (docs/scaling.md)"
            )
        checkpoints = RunFolder(out).checkpoints
        job = Supervisor(
            [sys.executable, *again], progress=lambda: max(checkpoints.steps(), default=-1)
        )
        return job.run()
    if arguments.devices > 1 and not is_inside_launcher():
        recipe.check_world_size(arguments.devices)
        open_data(recipe.data, arguments.options.cache)  # decodes and checks the data once
        return launch_workers(again, devices=arguments.devices)
    display = None
    if is_first_process():
        display = Display(recipe, Console(stderr=arguments.json, soft_wrap=True))
    callbacks: list[Callback] = [] if display is None else [display]
    if arguments.tensorboard and is_first_process():
        callbacks.append(TensorBoardCallback(out / "tensorboard"))
    try:
        if display is not None:
            display.wait(f"opening {recipe.data.source}")
        outcome = train(
            recipe,
            out,
            arguments.options,
            callbacks=callbacks,
            wait_for_lock_s=_WAIT_FOR_PREDECESSOR_S if is_guarded else 0.0,
        )
    finally:
        if display is not None:
            display.close()
    if display is not None and arguments.json:
        Console(soft_wrap=True).print_json(json.dumps(summary(outcome, out)), indent=None)
    elif display is not None:
        display.say(headline(outcome, out))
    return outcome.exit_code


def parse(words: Sequence[str]) -> TrainArguments:
    """Read the command line: the recipe, then flags that change it."""
    if words and words[0] in ("-h", "--help"):
        Console(soft_wrap=True).print_text(_USAGE)
        raise SystemExit(0)
    if not words or words[0].startswith("-"):
        raise UsageError(f"name a recipe first: lbq train RECIPE; {_choices()}")
    default = TrainArguments(recipe=find_recipe(words[0]))
    try:
        arguments = read(
            TrainArguments,
            words[1:],
            command=f"lbq train {words[0]}",
            examples=EXAMPLES,
            default=default,
        )
    except (LBQError, UsageError) as error:
        raise UsageError(_with_option(str(error), words)) from error
    if arguments.data is None:
        return arguments
    data = replace(arguments.recipe.data, source=arguments.data)
    return replace(arguments, recipe=replace(arguments.recipe, data=data))


def find_recipe(name: str) -> Recipe:
    """Find a recipe by its name, or read it from a file."""
    if name in RECIPES:
        return RECIPES[name]()
    if name.endswith(".json"):
        return read_recipe(Path(name))
    close = difflib.get_close_matches(name, RECIPES, n=1)
    guess = f"did you mean {close[0]}? " if close else ""
    raise RecipeError(f"there is no recipe {name!r}; {guess}{_choices()}")


def _with_option(message: str, words: Sequence[str]) -> str:
    """Put the option before a message that begins with the name of its field.

    tyro puts the path of the field's group before it.
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
    return f"take one of {', '.join(RECIPES)}, or the path of a recipe.json"
