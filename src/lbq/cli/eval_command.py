"""``lbq eval RUN``, ``FILE`` or ``NAME``: the accuracy of a network on its whole test set."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lbq.cli.args import check_count, read
from lbq.cli.eval_file import SUFFIXES, ImageOptions, evaluate_file
from lbq.cli.following import counting
from lbq.cli.samples import Count
from lbq.cli.terminal import Console
from lbq.errors import ParameterError
from lbq.pretrained import is_pretrained
from lbq.train.distributed import is_first_process, is_inside_launcher, launch_workers
from lbq.train.evaluation import Evaluation
from lbq.train.run_folder import evaluate_run

EXAMPLES = {
    "lbq eval runs/pocket": "the last checkpoint of a run",
    "lbq eval pocket-cifar10 --data uoft-cs/cifar10": "the network that comes with the library",
    "lbq eval net.lbq --backend planes": "integers, bit plane by bit plane",
    "lbq eval own.lbq --data DIR --size 32": "a bundle of your own network, on a folder of images",
    "lbq eval net.onnx --engine openvino --limit 500 --json": "another engine, 500 samples",
}


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Count the right answers of a network over its whole test set."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of a run, a file that was lowered or exported (.lbq, .onnx, .pt2, .nir), or
    pocket-cifar10."""
    step: int | None = None
    """Which checkpoint; the last one unless said."""
    data: str | None = None
    """Where the data lie, if not where the recipe says."""
    cache: Path = Path("~/.cache/lbq")
    """Where data sets are kept once they are decoded."""
    device: str = "auto"
    """ "auto" is a GPU where there is one; or cpu, cuda, cuda:1."""
    devices: int = 1
    """GPUs of this machine to use, or processes on CPUs."""
    workers: int = 0
    """Processes that prepare batches, per device."""
    engine: Literal["onnxruntime", "openvino"] | None = None
    """Who runs an .onnx file; ONNX Runtime unless said."""
    backend: Literal["auto", "native", "dense", "unary", "planes"] | None = None
    """What runs an .lbq file; "auto", the default, is "native" where it can, else "dense"."""
    limit: int | None = None
    """Ask the network of a file, or pocket-cifar10, so many test samples only."""
    images: Annotated[ImageOptions, tyro.conf.arg(name="")] = field(default_factory=ImageOptions)
    """What a file without a recipe does not say about its images."""
    json: bool = False
    """Print one JSON object instead of a sentence."""
    debug: bool = False
    """Show tracebacks for mistakes too."""


def run(words: Sequence[str]) -> int:
    """Run the command with these words behind ``lbq eval``."""
    arguments = read(EvalArguments, words, command="lbq eval", examples=EXAMPLES)
    check_count("--devices", arguments.devices, at_least=1)
    check_count("--workers", arguments.workers)
    check_count("--limit", arguments.limit, at_least=1)
    check_count("--size", arguments.images.size, at_least=1)
    is_file = arguments.run.suffix in SUFFIXES and not arguments.run.is_dir()
    if is_file or is_pretrained(arguments.run):
        return _evaluate_file(arguments)
    is_own = arguments.images != ImageOptions()
    if arguments.limit or arguments.engine or arguments.backend or is_own:
        raise ParameterError(
            f"--limit, --engine, --backend, --size, --mean, --std and --split are for files "
            f"({', '.join(SUFFIXES)}), not for runs"
        )
    if arguments.devices > 1 and not is_inside_launcher():
        return launch_workers(["-m", "lbq.cli", "eval", *words], devices=arguments.devices)
    with counting(f"test samples of {arguments.run}") as tell:
        found = evaluate_run(
            arguments.run,
            cache=arguments.cache,
            step=arguments.step,
            source=arguments.data,
            device=arguments.device,
            workers=arguments.workers,
            progress=tell if is_first_process() else None,
        )
    if is_first_process():
        behind = f", loss {found.loss:.4f}, after {found.epoch} epochs ({found.step} steps)"
        _tell(found, as_json=arguments.json, behind=behind)
    return 0


def _evaluate_file(arguments: EvalArguments) -> int:
    ours = (arguments.step, arguments.devices, arguments.device, arguments.workers)
    if ours != (None, 1, "auto", 0):
        raise ParameterError(
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
    )
    behind = "" if found.backend is None else f", backend {found.backend}"
    _tell(found, as_json=arguments.json, behind=behind)
    return 0


def _tell(found: Evaluation | Count, *, as_json: bool, behind: str = "") -> None:
    """Say how many answers were right, for people or for programs."""
    words = f"test accuracy {found.accuracy:.2%} ({found.correct} of {found.count}){behind}"
    if as_json:
        words = json.dumps({**asdict(found), "accuracy": found.accuracy})
    Console(soft_wrap=True).print(words, markup=False, highlight=False)
