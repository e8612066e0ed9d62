"""``lbq lower RUN``: convert a trained network to a bundle, of integers by default."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import EllipsisType
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor, nn

from lbq.cli.args import UsageError, check_count, read
from lbq.cli.progress import show_status
from lbq.cli.samples import (
    MISSING_PREPROCESSING,
    Preprocessing,
    load_task,
    open_samples,
    preprocessing_of,
    sample_batches,
    score,
)
from lbq.cli.terminal import Console
from lbq.config_io import Document, to_document
from lbq.data import Data
from lbq.data.user_data import UserData
from lbq.errors import LBQError, ParameterError, RunError
from lbq.graph import LoweredNetwork, prove
from lbq.lowering import lower, to_fixed_point
from lbq.pretrained import IMAGE_SIZE, is_pretrained, load_pretrained, pretrained_recipe
from lbq.runtime import run_network
from lbq.train.loss import Metric, correct_predictions
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
    "lbq lower runs/mine --model my_recipe.py": "a run of your own network and data",
}


@dataclass(frozen=True, kw_only=True)
class LoweringOptions:
    """How a run is lowered."""

    bits: Bits | None = None
    """Bits of the weights; "float" keeps real numbers. 8 by default."""
    calibrate: int = 512
    """Training samples on which rounding errors are measured and corrected; 0 for none."""
    model: Path | None = None
    """Python file with recipe(), for a run without a recipe; it gives model and data."""
    data: str | None = None
    """Data source, if not the recipe's."""
    cache: Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    size: int | None = None
    """Side of the images, if neither the recipe nor the data give it."""
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
    """Test samples on which the real-valued network and the integers are compared."""
    options: Annotated[LoweringOptions, tyro.conf.arg(name="")] = field(
        default_factory=LoweringOptions
    )
    """How."""
    json: bool = False
    """Print one JSON object instead of text."""
    debug: bool = False
    """Show tracebacks of errors."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained network, and the data needed to lower it."""

    model: nn.Module
    origin: Document
    """Where it comes from, for the file."""
    data: Data | UserData | None
    """The run's data, if they could be opened."""
    example: Tensor
    """One input."""
    preprocessing: Preprocessing
    metrics: dict[str, Metric]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """The result of lowering a run."""

    real: LoweredNetwork
    network: LoweredNetwork
    """The requested network: ``real`` itself, or its integers."""
    source: Trained
    """The network that was lowered."""
    notes: tuple[str, ...]
    """Notes for the user."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq lower``."""
    from lbq.formats.bundle import save_network  # noqa: PLC0415 -- only this command needs it

    arguments = read(LowerArguments, words, command="lbq lower", examples=EXAMPLES)
    check_out(arguments.out)
    check_count("--check", arguments.check)
    lowered = lower_run(arguments.run, arguments.options)
    data = lowered.source.data
    if arguments.check and data is None:
        raise ParameterError(f"--check needs the data: {' '.join(lowered.notes)}")
    if arguments.check and data is not None and data.num_test == 0:
        raise ParameterError(f"--check needs eval_data, and {arguments.options.model} has none")
    checked: dict[str, Any] = {}
    if arguments.check:
        checked = compare(lowered.real, lowered.network, lowered.source, limit=arguments.check)
    is_replaced = arguments.out.exists()
    sha256 = save_network(lowered.network, arguments.out)
    found = _describe(lowered, arguments.out) | {"sha256": sha256, "replaced": is_replaced}
    found |= checked
    console = Console(soft_wrap=True)
    lines = [json.dumps(found)] if arguments.json else [*lowered.notes, *_sentences(found)]
    for line in lines:
        console.print_text(line)
    return 0


def lower_run(run: Path, options: LoweringOptions) -> Lowered:
    """Lower the network of a run, to fixed point unless real numbers are requested."""
    check_count("--calibrate", options.calibrate)
    if run.suffix == ".lbq" and not run.is_dir():
        raise UsageError(
            f"{run} is the name of a bundle, which is lowered already; `lbq lower` takes the "
            f"folder of a run, and --out names the bundle it writes. Evaluate a bundle with "
            f"`lbq eval {run}`, convert it with `lbq export {run}`"
        )
    if not run.is_dir() and not is_pretrained(run):
        raise RunError(
            f"there is no run at {run}; name the folder of one, such as runs/pocket, or a network "
            f"that comes with the library, such as pocket-cifar10"
        )
    source = _open_recipe_run(run, options) if options.model is None else _open_run(run, options)
    is_real, notes = options.bits == "float", list(source.notes)
    if isinstance(source.preprocessing, EllipsisType) and not is_real:
        raise ParameterError(MISSING_PREPROCESSING)
    with show_status(f"lowering {run}"):
        real = lower(source.model, source.example)
        real.origin.update(source.origin)
        if is_real:
            return Lowered(real=real, network=real, source=source, notes=tuple(notes))
        calibration = None
        if options.calibrate and source.data is not None:
            calibration = _calibration(source.data, options.calibrate)
        elif options.calibrate:
            notes.append("rounding errors were not corrected.")
        network = to_fixed_point(
            real,
            bits={None: 8, "4": 4, "8": 8, "16": 16}[options.bits],  # pyright: ignore[reportArgumentType]
            pixels=source.preprocessing,
            calibration=calibration,
        )
    return Lowered(real=real, network=network, source=source, notes=tuple(notes))


def _open_recipe_run(run: Path, options: LoweringOptions) -> Trained:
    """Load a run by recipe, or a pretrained network, and its data if they can be opened."""
    if not is_pretrained(run):
        found = load_run(run, step=options.step)
        model, recipe, origin = found.model, found.recipe, {"step": found.step}
    elif options.step is not None:
        raise UsageError(f"{run} comes with the library and has no checkpoints: no --step here")
    else:
        options = replace(options, size=options.size or IMAGE_SIZE)
        model, recipe = load_pretrained(str(run)), pretrained_recipe(str(run))
        origin = {"pretrained": str(run)}
    data, notes = None, ()
    try:
        data = open_samples(recipe, source=options.data, cache=options.cache)
    except LBQError as error:
        if options.data is not None:
            raise
        notes = (f"the run's data cannot be opened ({error}); pass --data.",)
    return Trained(
        model=model,
        origin={"recipe": to_document(recipe), **origin},
        data=data,
        example=_example(recipe, data, options),
        preprocessing=recipe.data.preprocessing,
        metrics={"accuracy": correct_predictions},
        notes=notes,
    )


def _open_run(run: Path, options: LoweringOptions) -> Trained:
    """Load a run whose model and data come from the user's recipe file."""
    assert options.model is not None
    if options.data is not None or options.size is not None:
        raise UsageError(f"--model {options.model} gives the data: leave out --data and --size")
    if is_pretrained(run):
        raise UsageError(f"{run} comes with the library: leave out --model")
    task = load_task(options.model)
    found = load_run(run, task.model, step=options.step)
    return Trained(
        model=found.model,
        origin={"step": found.step},
        data=task.data,
        example=next(sample_batches(task.data, split="train", limit=1, batch=1)).real,
        preprocessing=preprocessing_of(found.model, task.data),
        metrics=task.metrics,
    )


def check_out(out: Path) -> None:
    """Raise an error before the work if the file cannot be written."""
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise ParameterError(f"{out} cannot be written: --out names a file in a folder that exists")


def compare(
    real: LoweredNetwork, integers: LoweredNetwork, source: Trained, *, limit: int
) -> dict[str, Any]:
    """Compute the metrics of both networks, and the share of levels that differ between them."""
    assert source.data is not None
    scores = {"real": dict.fromkeys(source.metrics, 0.0)}
    scores["integer"] = dict(scores["real"])
    count = moved = emitted = 0
    for samples in sample_batches(
        source.data, limit=limit, batch=BATCH, preprocessing=source.preprocessing
    ):
        seen = samples.raw if integers.is_integer else samples.real
        answer, levels = _watched(real, samples.real)
        other, other_levels = _watched(integers, seen)
        scales = ("real", answer, None), ("integer", other, integers.logit_scale)
        for name, logits, scale in scales:
            found = score(logits, samples.target, source.metrics, scale)
            for metric, value in found.items():
                scores[name][metric] += value
        count += len(samples.target)
        moved += sum(int((other_levels[at] != level).sum()) for at, level in levels.items())
        emitted += sum(level.numel() for level in levels.values())
    means = {name: value / count for name, value in scores["integer"].items()}
    means |= {f"{name}_real": value / count for name, value in scores["real"].items()}
    return {"checked": count, **means, "levels_moved": moved / max(emitted, 1)}


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


def _calibration(data: Data | UserData, limit: int) -> Tensor:
    read = sample_batches(data, split="train", limit=limit, batch=limit)
    return next(iter(read)).real


def _describe(lowered: Lowered, out: Path) -> dict[str, Any]:
    network = lowered.network
    found: dict[str, Any] = {
        "file": str(out),
        "bytes": out.stat().st_size,
        "parameters": sum(tensor.numel() for tensor in network.tensors.values()),
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
    times = "1 timestep" if found["timesteps"] == 1 else f"{found['timesteps']} timesteps"
    lines = [
        f"{found['file']}: {found['bytes']:,} bytes, {found['parameters']:,} parameters, "
        f"{found['neurons']} layers of neurons, {times}, {kind}"
    ]
    if found["is_integer"]:
        widths = [f"{n} of {bits} bits" for bits, n in found["accumulators"].items()]
        lines.append(f"proven not to overflow: accumulators and membranes, {', '.join(widths)}")
        lines.append(_agreement(found["agreement"]))
    if "checked" in found:
        lines.append(_checked(found))
    if found["replaced"]:
        lines.append(f"{found['file']} was there before and is replaced")
    return [*lines, f"sha256 {found['sha256']}"]


def _checked(found: dict[str, Any]) -> str:
    """Describe the comparison on test samples; a user's run may have no accuracy."""
    scores = [
        f"accuracy {value:.2%}, as real numbers {found['accuracy_real']:.2%}"
        if name == "accuracy"
        else f"{name} {value:.4g}, as real numbers {found[f'{name}_real']:.4g}"
        for name, value in found.items()
        if f"{name}_real" in found
    ]
    scores.append(f"{found['levels_moved']:.3%} of the levels moved")
    return f"on {found['checked']} test samples: {'; '.join(scores)}"


def _agreement(compared: dict[str, Any] | None) -> str:
    if compared is None:
        return "not compared with the real-valued network: there were no calibration samples"
    return (
        f"on {compared['samples']} calibration samples: {compared['answers']:.1%} of the answers "
        f"and {compared['levels']:.1%} of the levels are those of the real-valued network"
    )
