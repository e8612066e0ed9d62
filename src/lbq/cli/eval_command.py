"""``lbq eval``: count the correct answers of a run, a pretrained network or a file."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from lbq.cli.args import UsageError, check_count, read
from lbq.cli.progress import progress_counter
from lbq.cli.samples import (
    Count,
    count_answers,
    load_task,
    open_config,
    open_samples,
    origin_recipe,
)
from lbq.cli.terminal import Console
from lbq.data import UNIT, AugmentConfig, Data, DataConfig, Normalization
from lbq.errors import FormatError, ParameterError
from lbq.graph import LoweredNetwork
from lbq.preprocessing import Pixels
from lbq.pretrained import IMAGE_SIZE, is_pretrained, load_pretrained, pretrained_record
from lbq.runtime import choose_backend, run_network
from lbq.runtime.run import Backend
from lbq.train.distributed import is_first_process, is_inside_launcher, launch_workers
from lbq.train.evaluation import Evaluation
from lbq.train.run_folder import evaluate_model, load_run, open_run_data
from lbq.train.task import Task

EXAMPLES = {
    "lbq eval runs/pocket": "the last checkpoint of a run",
    "lbq eval pocket-cifar10 --data uoft-cs/cifar10": "the network that comes with the library",
    "lbq eval net.lbq --backend planes": "integers, bit plane by bit plane",
    "lbq eval own.lbq --data DIR --size 32": "a bundle of your own network, on a folder of images",
    "lbq eval net.onnx --engine openvino --limit 500 --json": "another engine, 500 samples",
    "lbq eval runs/mine --model my_recipe.py": "a run of your own network and data",
}

SUFFIXES = (".lbq", ".onnx", ".pt2", ".nir")
"""Files that hold a network."""
BATCH = 100
"""Samples that run at once if there is no recipe."""


Rgb = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images become inputs, and which are tested, for a file without a recipe."""

    size: int | None = None
    """Scale images to this many pixels a side, for a file without a recipe."""
    mean: Rgb | None = None
    """Subtract these from R, G and B in 0..1, for real numbers without a recipe."""
    std: Rgb | None = None
    """Then divide by these."""
    split: str | None = None
    """Test on this split, for a file without a recipe; "test" or "validation" by default."""


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Count the correct answers of a network over its whole test set."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run, a file that was lowered or exported (.lbq, .onnx, .pt2, .nir), or
    pocket-cifar10."""
    step: int | None = None
    """Which checkpoint, the last one by default."""
    model: Path | None = None
    """Python file with recipe(), for a run or a file without a recipe; it gives the data."""
    data: str | None = None
    """Data source, if not the recipe's."""
    cache: Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    device: str = "auto"
    """ "auto" is a GPU where there is one; or cpu, cuda, cuda:1."""
    devices: int = 1
    """GPUs of this machine to use, or processes on CPUs."""
    workers: int = 0
    """Processes that prepare batches, per device."""
    engine: Literal["onnxruntime", "openvino"] | None = None
    """Engine of an .onnx file, ONNX Runtime by default."""
    backend: Literal["auto", "native", "dense", "unary", "planes"] | None = None
    """Backend of an .lbq file; "auto", the default, is "native" where it runs, else "dense"."""
    limit: int | None = None
    """Number of test samples for a file or pocket-cifar10; all by default."""
    images: Annotated[ImageOptions, tyro.conf.arg(name="")] = field(default_factory=ImageOptions)
    """Facts about the images that a file without a recipe does not store."""
    json: bool = False
    """Print one JSON object instead of text."""
    debug: bool = False
    """Show tracebacks of errors."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq eval``."""
    arguments = read(EvalArguments, words, command="lbq eval", examples=EXAMPLES)
    check_count("--devices", arguments.devices, at_least=1)
    check_count("--workers", arguments.workers)
    check_count("--limit", arguments.limit, at_least=1)
    check_count("--size", arguments.images.size, at_least=1)
    if arguments.model is not None and arguments.data is not None:
        raise UsageError(f"--model {arguments.model} gives the data: leave out --data")
    is_file = arguments.run.suffix in SUFFIXES and not arguments.run.is_dir()
    if is_file or is_pretrained(arguments.run):
        return _evaluate_file(arguments)
    is_own = arguments.images != ImageOptions()
    if arguments.limit or arguments.engine or arguments.backend or is_own:
        raise UsageError(
            f"--limit, --engine, --backend, --size, --mean, --std and --split are for files "
            f"({', '.join(SUFFIXES)}), not for runs"
        )
    if arguments.devices > 1 and not is_inside_launcher():
        return launch_workers(["-m", "lbq.cli", "eval", *words], devices=arguments.devices)
    found, data = _evaluate_run(arguments)
    if is_first_process():
        suffix = f", after {found.epoch} epochs ({found.step} steps)"
        if found.correct is not None:
            suffix = f", loss {found.loss:.4f}{suffix}"
        if not data["is_own"]:
            suffix += f"; on {data['source']}, which is not the data of the run"
        _print_scores(found, as_json=arguments.json, suffix=suffix, more={"data": data})
    return 0


def _evaluate_run(arguments: EvalArguments) -> tuple[Evaluation, dict[str, Any]]:
    """Return the scores, and the data: their source, and whether they are the run's own."""
    task = None if arguments.model is None else load_task(arguments.model, needs_test=True)
    run = load_run(arguments.run, None if task is None else task.model, step=arguments.step)
    if task is None:
        data = open_run_data(run, cache=arguments.cache, source=arguments.data)
        source = arguments.data or run.recipe.data.source
    else:
        data, source = task.data, str(arguments.model)
    with progress_counter(f"test samples of {arguments.run}") as report:
        found = evaluate_model(
            run,
            data,
            loss=None if task is None else task.loss,
            metrics=None if task is None else task.metrics,
            device=arguments.device,
            workers=arguments.workers,
            progress=report if is_first_process() else None,
        )
    return found, {"source": source, "is_own": data.digest == run.metadata.get("data")}


def _evaluate_file(arguments: EvalArguments) -> int:
    ours = (arguments.step, arguments.devices, arguments.device, arguments.workers)
    if ours != (None, 1, "auto", 0):
        raise UsageError(
            "--step, --device, --devices and --workers are for runs; a file holds one network, "
            "which its engine runs on the CPU"
        )
    found = evaluate_file(
        arguments.run,
        cache=arguments.cache,
        source=arguments.data,
        limit=arguments.limit,
        engine=arguments.engine,
        backend=arguments.backend,
        images=arguments.images,
        task=None if arguments.model is None else load_task(arguments.model, needs_test=True),
    )
    suffix = "" if found.backend is None else f", backend {found.backend}"
    _print_scores(found, as_json=arguments.json, suffix=suffix)
    return 0


def _print_scores(
    found: Evaluation | Count,
    *,
    as_json: bool,
    suffix: str = "",
    more: dict[str, Any] | None = None,
) -> None:
    """Print the accuracy, or loss and metrics if there is none, as text or JSON."""
    scores = [f"{name} {value:.4g}" for name, value in found.metrics.items()]
    if found.correct is not None:
        scores.insert(0, f"accuracy {found.accuracy:.2%} ({found.correct} of {found.count})")
    else:
        scores.insert(0, f"loss {found.loss:.4g}")
    words = f"test {', '.join(scores)}{suffix}"
    if as_json:
        fields = asdict(found) | {"accuracy": None if found.correct is None else found.accuracy}
        if found.loss is None:  # of a file with a recipe: only answers are counted
            del fields["loss"], fields["metrics"]
        words = json.dumps(fields | (more or {}))
    Console(soft_wrap=True).print_text(words)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A network from a file, and the facts that the file stores about it."""

    answer: Callable[[Tensor], Tensor]
    is_integer: bool
    origin: dict[str, Any]
    input_shape: tuple[int, ...]
    """Shape of one sample at one timestep."""
    takes_frames: bool
    logit_scale: float | None = None
    """Value of one unit of an integer output."""
    backend: str | None = None
    """Backend of a lowered network; None for other engines."""
    num_outputs: int = 1


def evaluate_file(
    path: Path,
    *,
    cache: Path,
    source: str | None = None,
    limit: int | None = None,
    batch: int | None = None,
    engine: str | None = None,
    backend: str | None = None,
    images: ImageOptions | None = None,
    task: Task | None = None,
) -> Count:
    """Count the correct answers of a file's network on a test set or on images.

    Args:
        path: a file that ends in one of ``SUFFIXES``, or the name of a pretrained network.
        cache: folder of decoded data sets.
        source: data source, if not the recipe's.
        limit: number of samples, spread over the test set; all by default.
        batch: samples at once; the recipe's by default.
        engine: engine of an ONNX file.
        backend: backend of a bundle; "auto" by default.
        images: facts about the images that a file without a recipe does not store.
        task: the user's recipe file, with test set, loss and metrics for a file without a recipe.
    """
    opened = open_network(path, engine=engine, backend=backend)
    if opened.num_outputs > 1:
        raise ParameterError(
            f"{path} has {opened.num_outputs} outputs, but lbq eval counts the answers of one; run "
            f"it with lbq.run_network or its engine, and measure each output"
        )
    images = images or ImageOptions()
    if task is not None:
        if "recipe" in opened.origin or images != ImageOptions():
            raise UsageError(
                f"--model is for files without a recipe, and its samples are already as the "
                f"network takes them: leave it out, or --size, --mean, --std and --split; {path}"
                + (" carries a recipe" if "recipe" in opened.origin else " carries none")
            )
        data, own_batch = task.data, task.config.test_batch
    elif "recipe" in opened.origin:
        if images != ImageOptions():
            raise UsageError(
                f"--size, --mean, --std and --split are for files without a recipe; {path} carries "
                f"one, which sets all of them"
            )
        recipe = origin_recipe(opened.origin, source=path)
        data = open_samples(recipe, source=source, cache=cache)
        own_batch = recipe.test_batch
    else:
        data = open_config(_own_images(path, opened, source, images), cache=cache)
        own_batch = BATCH
        _check_images(path, opened, data)
    found = count_answers(
        opened.answer,
        data,
        is_integer=opened.is_integer,
        batch=batch or own_batch,
        limit=limit,
        task=task,
        logit_scale=opened.logit_scale,
    )
    return replace(found, backend=opened.backend)


def _own_images(path: Path, opened: Opened, source: str | None, images: ImageOptions) -> DataConfig:
    """Configure the test images of a file without a recipe; raise if a value is missing."""
    if source is None:
        raise ParameterError(
            f"{path} carries no recipe, so its test set is unknown: name one with --data, the hub "
            f"id of images or a folder with train/<class>/ and test/<class>/, or pass --model "
            f"my_recipe.py"
        )
    if opened.takes_frames or len(opened.input_shape) != 3 or opened.input_shape[0] != 3:
        what = "[T, B, ...] of " if opened.takes_frames else ""
        raise ParameterError(
            f"{path} takes {what}{opened.input_shape}, and without a recipe only RGB images "
            f"(3, height, width) can be read for it; compare its answers in Python: "
            f"lbq.run_network(lbq.load_network({str(path)!r}), inputs)"
        )
    if opened.is_integer and (images.mean is not None or images.std is not None):
        raise ParameterError(
            f"{path} holds integers and takes bytes: it already contains the normalisation; leave "
            f"out --mean and --std"
        )
    if not opened.is_integer and (images.mean is None or images.std is None):
        raise ParameterError(
            f"{path} holds real numbers and does not store how its images were normalised: pass "
            f"--mean R G B --std R G B for (byte / 255 - mean) / std; 0 0 0 and 1 1 1 leave 0..1"
        )
    normalization = UNIT
    if images.mean is not None and images.std is not None:
        Pixels(mean=images.mean, std=images.std)  # raises for impossible values
        normalization = Normalization(mean=images.mean, std=images.std)
    return DataConfig(
        source=source,
        size=images.size,
        train_split=images.split or "train",
        test_split=images.split,
        augment=AugmentConfig(normalization=normalization),
    )


def _check_images(path: Path, opened: Opened, data: Data) -> None:
    """Raise if the size or the classes of the images do not fit the network."""
    found, wanted = data.sample_shape, opened.input_shape
    if found != wanted:
        is_square = wanted[1] == wanted[2]
        raise ParameterError(
            f"{path} takes images of {wanted[1]} x {wanted[2]} pixels, those of "
            f"{data.config.source} have {found[1]} x {found[2]}; "
            + (f"pass --size {wanted[1]}" if is_square else "scale them to that size first")
        )
    dtype = torch.uint8 if opened.is_integer else torch.float32
    num_answers = opened.answer(torch.zeros(1, *wanted, dtype=dtype)).shape[1]
    if num_answers != data.num_classes:
        raise ParameterError(
            f"{path} answers for {num_answers} classes, {data.config.source} has "
            f"{data.num_classes}; both must be the same classes in the same order"
        )


def open_network(path: Path, *, engine: str | None = None, backend: str | None = None) -> Opened:
    """Open a network by its pretrained name, or by the ending of its file."""
    if not path.is_file() and not is_pretrained(path):
        raise FormatError(f"there is no file {path}")
    if engine is not None and path.suffix != ".onnx":
        raise UsageError(f"--engine runs .onnx files, not {path.name}")
    if backend is not None and path.suffix not in (".lbq", ".nir"):
        raise UsageError(f"--backend is for .lbq files, not {path.name}")
    if is_pretrained(path):
        return _open_pretrained(str(path))
    if path.suffix == ".onnx":
        return _open_onnx(path, engine or "onnxruntime")
    if path.suffix == ".pt2":
        return _open_pt2(path)
    if path.suffix == ".nir":
        from lbq.formats.nir import import_nir  # noqa: PLC0415 -- an extra

        return _lowered(import_nir(path), backend or "auto")
    return _lowered(load_bundle(path), backend or "auto")


def load_bundle(path: Path) -> LoweredNetwork:
    """Load a bundle; errors name its file."""
    from lbq.formats.bundle import load_network  # noqa: PLC0415

    try:
        return load_network(path)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _lowered(network: LoweredNetwork, backend: str) -> Opened:
    if backend == "auto":
        backend = choose_backend(network)
    kind: Backend = backend  # pyright: ignore[reportAssignmentType] -- run_network checks it
    dtype = network.example().dtype

    def answer(inputs: Tensor) -> Tensor:
        return run_network(network, inputs.to(dtype), backend=kind)

    return Opened(
        answer=answer,
        is_integer=network.is_integer,
        origin=network.origin,
        input_shape=network.input_shape,
        takes_frames=network.takes_frames,
        logit_scale=network.logit_scale,
        backend=backend,
        num_outputs=len(network.outputs),
    )


def _open_pretrained(name: str) -> Opened:
    model = load_pretrained(name)

    @torch.no_grad()
    def answer(inputs: Tensor) -> Tensor:
        return model(inputs)

    return Opened(
        answer=answer,
        is_integer=False,
        origin={"recipe": pretrained_record(name)["recipe"]},
        input_shape=(3, IMAGE_SIZE, IMAGE_SIZE),
        takes_frames=False,
    )


def _opened(answer: Callable[[Tensor], Tensor], facts: dict[str, Any]) -> Opened:
    return Opened(
        answer=answer,
        is_integer=facts["is_integer"],
        origin=facts["origin"],
        input_shape=tuple(facts["input_shape"]),
        takes_frames=facts["takes_frames"],
        logit_scale=facts["logit_scale"],
        num_outputs=len(facts["outputs"]),
    )


def _open_onnx(path: Path, engine: str) -> Opened:
    from lbq.formats.onnx import OnnxRunner, read_onnx_metadata  # noqa: PLC0415 -- an extra

    facts = read_onnx_metadata(path)  # raises FormatError for other files
    runner = OnnxRunner(path, engine=engine)  # pyright: ignore[reportArgumentType] -- it checks

    def answer(inputs: Tensor) -> Tensor:
        return torch.from_numpy(runner(inputs.numpy()))

    return _opened(answer, facts)


def _open_pt2(path: Path) -> Opened:
    from lbq.formats.pt2 import read_pt2  # noqa: PLC0415 -- torch.export is slow to import

    program, facts = read_pt2(path)

    @torch.no_grad()
    def answer(inputs: Tensor) -> Tensor:
        return program(inputs)

    return _opened(answer, facts)
