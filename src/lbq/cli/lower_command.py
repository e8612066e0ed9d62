"""``lbq lower RUN``: a trained network becomes a bundle, of integers by default."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor, nn

from lbq.cli.args import check_count, read
from lbq.cli.progress import show_status
from lbq.cli.samples import open_samples, sample_batches
from lbq.cli.terminal import Console
from lbq.config_io import Document, to_document
from lbq.data import Data
from lbq.deploy import LoweredNetwork, lower, prove, run_network, to_fixed_point
from lbq.errors import LBQError, ParameterError
from lbq.pretrained import IMAGE_SIZE, is_pretrained, load_pretrained, pretrained_recipe
from lbq.train.recipe import Recipe
from lbq.train.run_folder import load_run

Bits = Literal["8", "4", "16", "float"]
BATCH = 100
"""Samples that run at once."""

EXAMPLES = {
    "lbq lower runs/pocket": "8-bit integers, proven not to overflow, in net.lbq",
    "lbq lower runs/pocket --check 500": "and compare both networks on 500 test samples",
    "lbq lower runs/pocket --bits float --out real.lbq": "stop before rounding",
    "lbq lower pocket-cifar10": "a trained network that comes with the library",
}


@dataclass(frozen=True, kw_only=True)
class LoweringOptions:
    """How a run is lowered."""

    bits: Bits | None = None
    """Of the weights; "float" keeps real numbers. 8 by default."""
    calibrate: int = 512
    """Training samples that rounding errors are measured on and taken out; 0 for none."""
    data: str | None = None
    """Data source, if not the recipe's."""
    cache: Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    size: int | None = None
    """Side of the images, if neither the recipe nor any data say it."""
    step: int | None = None
    """Which checkpoint, the last one by default."""


@dataclass(frozen=True, kw_only=True)
class LowerArguments:
    """Lower a run's network: integer levels, integer weights, one file."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run, or the name of a network that comes with the library."""
    out: Path = Path("net.lbq")
    """File to write."""
    check: int = 0
    """Test samples on which the network of real numbers and the one of integers are compared."""
    options: Annotated[LoweringOptions, tyro.conf.arg(name="")] = field(
        default_factory=LoweringOptions
    )
    """How."""
    json: bool = False
    """Print one JSON object instead of text."""
    debug: bool = False
    """Show tracebacks of errors."""


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """What came of lowering a run."""

    real: LoweredNetwork
    network: LoweredNetwork
    """The one that was asked for: ``real`` itself, or its integers."""
    data: Data | None
    """The run's data, if they could be opened."""
    notes: tuple[str, ...]
    """Notes for the user."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq lower``."""
    from lbq.formats.bundle import save_network  # noqa: PLC0415 -- only this command needs it

    arguments = read(LowerArguments, words, command="lbq lower", examples=EXAMPLES)
    check_out(arguments.out)
    check_count("--check", arguments.check)
    lowered = lower_run(arguments.run, arguments.options)
    if arguments.check and lowered.data is None:
        raise ParameterError(f"--check needs the data: {' '.join(lowered.notes)}")
    is_replaced = arguments.out.exists()
    sha256 = save_network(lowered.network, arguments.out)
    found = _describe(lowered, arguments.out) | {"sha256": sha256, "replaced": is_replaced}
    if arguments.check and lowered.data is not None:
        found |= compare(lowered.real, lowered.network, lowered.data, limit=arguments.check)
    console = Console(soft_wrap=True)
    lines = [json.dumps(found)] if arguments.json else [*lowered.notes, *_sentences(found)]
    for line in lines:
        console.print_text(line)
    return 0


def lower_run(run: Path, options: LoweringOptions) -> Lowered:
    """Lower the network of a run, to fixed point unless real numbers were asked for."""
    check_count("--calibrate", options.calibrate)
    if is_pretrained(run):
        options = replace(options, size=options.size or IMAGE_SIZE)
    model, recipe, origin = _open_run(run, step=options.step)
    notes: list[str] = []
    data = None
    try:
        data = open_samples(recipe, source=options.data, cache=options.cache)
    except LBQError as error:
        if options.data is not None:
            raise
        notes.append(f"the run's data cannot be opened ({error}); pass --data.")
    with show_status(f"lowering {run}"):
        real = lower(model, _example(recipe, data, options))
        real.origin.update(recipe=to_document(recipe), **origin)
        if options.bits == "float":
            return Lowered(real=real, network=real, data=data, notes=tuple(notes))
        calibration = None
        if options.calibrate and data is not None:
            calibration = _calibration(data, options.calibrate)
        elif options.calibrate:
            notes.append("rounding errors were not calibrated away.")
        network = to_fixed_point(
            real,
            bits={None: 8, "4": 4, "8": 8, "16": 16}[options.bits],  # pyright: ignore[reportArgumentType]
            pixels=recipe.data.preprocessing,
            calibration=calibration,
        )
    return Lowered(real=real, network=network, data=data, notes=tuple(notes))


def _open_run(run: Path, *, step: int | None) -> tuple[nn.Module, Recipe, Document]:
    """Load the network of a run, or a pretrained one; return its origin too."""
    if not is_pretrained(run):
        found = load_run(run, step=step)
        return found.model, found.recipe, {"step": found.step}
    if step is not None:
        raise ParameterError(f"{run} comes with the library and has no checkpoints: no --step here")
    return load_pretrained(str(run)), pretrained_recipe(str(run)), {"pretrained": str(run)}


def check_out(out: Path) -> None:
    """Raise an error before the work if the file cannot be written."""
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise ParameterError(f"{out} cannot be written: --out names a file in a folder that exists")


def compare(
    real: LoweredNetwork, integers: LoweredNetwork, data: Data, *, limit: int
) -> dict[str, Any]:
    """Count right answers of both networks, and the levels that differ between them."""
    correct = {"real": 0, "integer": 0}
    count = moved = emitted = 0
    for samples in sample_batches(data, limit=limit, batch=BATCH):
        seen = samples.raw if integers.is_integer else samples.real
        answer, levels = _watched(real, samples.real)
        other, other_levels = _watched(integers, seen)
        for name, logits in (("real", answer), ("integer", other)):
            correct[name] += int((logits.argmax(1) == samples.target).sum())
        count += len(samples.target)
        moved += sum(int((other_levels[at] != level).sum()) for at, level in levels.items())
        emitted += sum(level.numel() for level in levels.values())
    return {
        "checked": count,
        "accuracy_real": correct["real"] / count,
        "accuracy": correct["integer"] / count,
        "levels_moved": moved / emitted,
    }


def _watched(network: LoweredNetwork, inputs: Tensor) -> tuple[Tensor, dict[Any, Tensor]]:
    levels: dict[Any, Tensor] = {}

    def see(path: str, t: int, level: Tensor) -> None:
        levels[path, t] = level

    return run_network(network, inputs, watch=see), levels


def _example(recipe: Recipe, data: Data | None, options: LoweringOptions) -> Tensor:
    size = options.size or recipe.data.size
    if data is not None:
        shape = data.sample_shape
    elif size is not None:
        shape = (2 if recipe.data.is_events else 3, size, size)
    else:
        raise ParameterError(
            "the size of the images is unknown without data; pass --data, or --size 32 for CIFAR"
        )
    image = shape[-3:]
    return torch.zeros(
        (recipe.model.timesteps, 1, *image) if recipe.data.is_events else (1, *image)
    )


def _calibration(data: Data, limit: int) -> Tensor:
    read = sample_batches(data, split="train", limit=limit, batch=limit)
    return next(iter(read)).real


def _describe(lowered: Lowered, out: Path) -> dict[str, Any]:
    network = lowered.network
    found: dict[str, Any] = {
        "file": str(out),
        "bytes": out.stat().st_size,
        "parameters": sum(buffer.numel() for buffer in network.buffers()),
        "neurons": len(list(network.neurons())),
        "timesteps": network.timesteps,
        "is_integer": network.is_integer,
    }
    if network.is_integer:
        widths = Counter(bound.bits for bound in prove(network).values())
        found["accumulators"] = {str(bits): widths[bits] for bits in sorted(widths)}
        compared = network.agreement
        found["agreement"] = None if compared is None else asdict(compared)
    return found


def _sentences(found: dict[str, Any]) -> list[str]:
    kind = "integers" if found["is_integer"] else "real numbers"
    lines = [
        f"{found['file']}: {found['bytes']:,} bytes, {found['parameters']:,} parameters, "
        f"{found['neurons']} layers of neurons, {found['timesteps']} timesteps, {kind}"
    ]
    if found["is_integer"]:
        widths = [f"{n} of {bits} bits" for bits, n in found["accumulators"].items()]
        lines.append(f"proven not to overflow: accumulators and membranes, {', '.join(widths)}")
        lines.append(_agreement(found["agreement"]))
    if "checked" in found:
        lines.append(
            f"on {found['checked']} test samples: accuracy {found['accuracy']:.2%}, as real "
            f"numbers {found['accuracy_real']:.2%}; {found['levels_moved']:.3%} of the levels moved"
        )
    if found["replaced"]:
        lines.append(f"{found['file']} was there before and is replaced")
    return [*lines, f"sha256 {found['sha256']}"]


def _agreement(compared: dict[str, Any] | None) -> str:
    if compared is None:
        return "not compared with the network of real numbers: there were no calibration samples"
    return (
        f"on {compared['samples']} calibration samples: {compared['answers']:.1%} of the answers "
        f"and {compared['levels']:.1%} of the levels are those of the network of real numbers"
    )
