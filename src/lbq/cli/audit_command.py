"""``lbq audit``: examine a spiking network of any library."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from torch import Tensor, nn

from lbq.atomic_files import atomic_write
from lbq.auditing import audit
from lbq.auditing.audit_page import render_audit
from lbq.cli.args import UsageError, check_count, read
from lbq.cli.progress import show_status
from lbq.cli.samples import open_samples, sample_batches
from lbq.cli.terminal import Console
from lbq.errors import ParameterError
from lbq.pretrained import is_pretrained, load_pretrained, pretrained_recipe
from lbq.train.recipe_file import load_function
from lbq.train.run_folder import load_run

FOUND = 3
"""Exit code if a finding that ``--fail-on`` names fails or could not be checked."""
KEYS = (
    "leak", "state", "causality", "determinism", "multiplications", "levels",
    "virtual-timesteps", "counts", "deployability",
)  # fmt: skip

EXAMPLES = {
    "lbq audit my_model.py": "model() and samples() in your own file, of any library",
    "lbq audit my_model.py --fail-on leak state": "exit code 3 unless these hold, for CI",
    "lbq audit runs/pocket --out audit.html": "a run, as a page to attach to a paper",
    "lbq audit pocket-cifar10 --data uoft-cs/cifar10 --json": "for a program to read",
}


@dataclass(frozen=True, kw_only=True)
class AuditArguments:
    """Examine a network: leaks, state, multiplications, levels, counts, energy, deployability."""

    path: Annotated[Path, tyro.conf.Positional]
    """Python file with model() and samples(), the folder of a run, or pocket-cifar10."""
    limit: int = 256
    """Samples to run."""
    spikes: tuple[str, ...] = ()
    """Paths of modules that are neurons, if their values do not show it."""
    batch_axis: int | None = None
    """Axis of the samples; by default it follows from the number of axes."""
    input_levels: bool = False
    """The samples themselves are levels, such as event counts."""
    data: str | None = None
    """Data source of a run, if not the recipe's."""
    cache: Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    out: Path | None = None
    """HTML page to write."""
    fail_on: tuple[str, ...] = ()
    """Exit with code 3 if one of these fails or could not be checked."""
    json: bool = False
    """Print one JSON object instead of text."""
    debug: bool = False
    """Show tracebacks of errors."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq audit``."""
    arguments = read(AuditArguments, words, command="lbq audit", examples=EXAMPLES)
    check_count("--limit", arguments.limit)
    unknown = [key for key in arguments.fail_on if key not in KEYS]
    if unknown:
        raise UsageError(f"--fail-on takes {', '.join(KEYS)}, not {unknown[0]!r}")
    model, samples, axis = _load(arguments)
    with show_status("running the network"):
        found = audit(
            model,
            samples,
            batch_axis=axis,
            spikes=arguments.spikes,
            input_levels=arguments.input_levels,
            name=arguments.path.stem,
        )
    if arguments.out is not None:
        atomic_write(arguments.out, render_audit(found).encode())
    Console(soft_wrap=True).print_text(found.to_json() if arguments.json else str(found))
    return FOUND if found.failed(arguments.fail_on) else 0


def _load(arguments: AuditArguments) -> tuple[nn.Module, Tensor, int | None]:
    path = arguments.path
    if path.suffix == ".py":
        model = load_function(path, "model", returns="it must return the network, an nn.Module")
        samples = load_function(path, "samples", returns="it must return inputs, a tensor")
        if not isinstance(model, nn.Module) or not isinstance(samples, Tensor):
            raise ParameterError(
                f"model() in {path} must return an nn.Module and samples() a tensor, got "
                f"{type(model).__name__} and {type(samples).__name__}"
            )
        return model, samples, arguments.batch_axis
    if is_pretrained(path):
        model, recipe = load_pretrained(str(path)), pretrained_recipe(str(path))
    else:
        found = load_run(path)
        model, recipe = found.model, found.recipe
    data = open_samples(recipe, source=arguments.data, cache=arguments.cache)
    batches = sample_batches(data, limit=arguments.limit, batch=min(100, arguments.limit))
    axis = data.batch_axis
    return model, torch.cat([batch.real for batch in batches], axis), axis
