"""``lbq doctor``: check this machine: what was found, what is missing, how to fix it."""

import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path

import torch
from rich.table import Table

from lbq import __version__
from lbq.cli.args import read
from lbq.cli.terminal import Console
from lbq.errors import ImplementationError, install_command
from lbq.kernels import native_scan
from lbq.runtime.native_engine import NativeEngine, ideal_network
from lbq.train.distributed import available_backends
from lbq.train.optim import bf16_units

EXTRAS = {
    "datasets": ("data", "images: CIFAR, ImageNet, any folder in their layout"),
    "PIL": ("data", "decoding images"),
    "tensorboard": ("train", "charts: lbq train --tensorboard"),
    "onnx": ("onnx", "lbq export --to onnx"),
    "onnxruntime": ("onnx", "lbq eval net.onnx"),
    "openvino": ("openvino", "lbq eval net.onnx --engine openvino"),
    "nir": ("nir", "lbq export --to nir"),
    "matplotlib": ("report", "lbq report"),
    "huggingface_hub": ("hub", "networks from the Hugging Face hub"),
}
"""Module: the extra that installs it, and its purpose."""

EXAMPLES = {
    "lbq doctor": "a table of what was found, and how to fix the rest",
    "lbq doctor --json": "the same for a program, or for a report of a problem",
}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One result of the check."""

    what: str
    found: str
    is_well: bool = True
    advice: str = ""
    """What to do, if something is missing or slow."""


@dataclass(frozen=True, kw_only=True)
class DoctorArguments:
    """Check this machine. Nothing is changed or sent."""

    cache: Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    json: bool = False
    """Print JSON instead of a table."""
    debug: bool = False
    """Show tracebacks of errors."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq doctor``."""
    arguments = read(DoctorArguments, words, command="lbq doctor", examples=EXAMPLES)
    findings = list(examine(arguments.cache.expanduser()))
    console = Console(soft_wrap=arguments.json)
    if arguments.json:
        console.print_text(json.dumps([asdict(f) for f in findings]))
        return 0
    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        sign = "ok" if finding.is_well else "--"
        table.add_row(sign, finding.what, finding.found, finding.advice)
    console.print(table, markup=False)
    return 0


def examine(cache: Path) -> Iterator[Finding]:
    """Check versions, devices, threads, kernels, precision, disks and extras."""
    versions = f"lbq {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    yield Finding(what="versions", found=versions)
    yield _gpus()
    yield _threads()
    yield _kernels()
    yield _engine()
    yield _bf16()
    yield Finding(
        what="processes", found=f"{', '.join(available_backends()) or 'none'} for --devices"
    )
    yield _compiler()
    yield _disk("data cache", cache)
    yield _disk("here", Path.cwd())
    for module, (extra, purpose) in EXTRAS.items():
        yield _extra(module, extra, purpose)


def _gpus() -> Finding:
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        return Finding(what="GPUs", found=f"{count} x {torch.cuda.get_device_name(0)}")
    has_driver = Path("/dev/nvidiactl").exists()
    return Finding(
        what="GPUs",
        found="none that torch can use",
        is_well=not has_driver,
        advice="the driver is there: install a CUDA build of torch" if has_driver else "",
    )


def _threads() -> Finding:
    is_known = hasattr(os, "sched_getaffinity")  # on Linux
    cores = len(os.sched_getaffinity(0)) if is_known else os.cpu_count() or 1
    threads = torch.get_num_threads()
    limit = os.environ.get("OMP_NUM_THREADS")
    words = f"{threads} of {cores} cores" + (f" (OMP_NUM_THREADS={limit})" if limit else "")
    is_well = threads >= cores
    return Finding(
        what="threads",
        found=words,
        is_well=is_well,
        advice="" if is_well else f"lbq train --threads {cores}, or unset OMP_NUM_THREADS",
    )


def _kernels() -> Finding:
    isa = native_scan.isa()
    return Finding(
        what="native kernels",
        found=isa or f"{native_scan.load_error()}: neurons on CPUs run on plain torch",
        is_well=isa is not None,
        advice="" if isa else native_scan.HOW_TO_BUILD,
    )


def _engine() -> Finding:
    try:
        found, advice = NativeEngine(ideal_network()).isa, ""
    except ImplementationError as error:
        found, advice = "not built: integer networks run on torch", str(error)
    return Finding(what="native engine", found=found, is_well=not advice, advice=advice)


def _bf16() -> Finding:
    units = bf16_units()
    return Finding(
        what="bf16 on the CPU",
        found=", ".join(units) or "no unit for it",
        is_well=bool(units),
        advice="" if units else "fp32 is faster on this CPU; --precision auto chooses it",
    )


def _compiler() -> Finding:
    path = shutil.which("g++") or shutil.which("clang++")
    return Finding(
        what="C++ compiler",
        found=path or "none",
        is_well=path is not None,
        advice="" if path else "needed to build the native kernels and for --compile on CPUs",
    )


def _disk(what: str, folder: Path) -> Finding:
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    can_write = os.access(there, os.W_OK)
    return Finding(
        what=what,
        found=f"{folder}: {free / 1e9:,.1f} GB free" + ("" if can_write else ", not writable"),
        is_well=can_write and free > 1e9,
        advice=""
        if can_write and free > 1e9
        else "free some space, or choose --cache / --out elsewhere",
    )


def _extra(module: str, extra: str, purpose: str) -> Finding:
    package = {"PIL": "pillow"}.get(module, module)
    is_there = util.find_spec(module) is not None
    try:
        found = metadata.version(package) if is_there else "not installed"
    except metadata.PackageNotFoundError:  # another package has the module, or a mere folder
        found = "installed, version unknown"
    return Finding(
        what=f"extra {package}",
        found=found,
        is_well=is_there,
        advice="" if is_there else f"{install_command(extra)} for {purpose}",
    )
