"""``lbq eval FILE``, or the name of a network of the shelf: run by whoever takes it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lbq.cli.samples import Count, count_answers, open_samples, recipe_of
from lbq.deploy import LoweredNetwork, run
from lbq.deploy.run import Backend
from lbq.errors import FormatError, ParameterError
from lbq.shelf import is_on_shelf, pretrained, record_of

SUFFIXES = (".lbq", ".onnx", ".pt2", ".nir")
"""Files that hold a network."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A network from a file: how it answers, and what it says about itself."""

    answer: Callable[[Tensor], Tensor]
    is_integer: bool
    origin: dict[str, Any]


def evaluate_file(
    path: Path,
    *,
    cache: Path,
    source: str | None = None,
    limit: int | None = None,
    batch: int | None = None,
    engine: str | None = None,
    backend: str | None = None,
) -> Count:
    """Count the right answers of a file's network over the test set of its recipe.

    Args:
        path: a file that ends in one of ``SUFFIXES``, or a name of the shelf.
        cache: where data sets are kept once they are decoded.
        source: where the data lie, if not where the recipe says.
        limit: ask so many samples only, spread over the test set.
        batch: samples at once; the recipe's unless said.
        engine: that runs an ONNX file.
        backend: that multiplies levels in a bundle.
    """
    opened = open_network(path, engine=engine, backend=backend)
    recipe = recipe_of(opened.origin, source=path)
    return count_answers(
        opened.answer,
        open_samples(recipe, source=source, cache=cache),
        is_integer=opened.is_integer,
        batch=batch or recipe.test_batch,
        limit=limit,
    )


def open_network(path: Path, *, engine: str | None = None, backend: str | None = None) -> Opened:
    """Open a network by its name on the shelf, or by the ending of its file."""
    if not path.is_file() and not is_on_shelf(path):
        raise FormatError(f"there is no file {path}")
    if engine is not None and path.suffix != ".onnx":
        raise ParameterError(f"--engine runs .onnx files, not {path.name}")
    if backend is not None and path.suffix not in (".lbq", ".nir"):
        raise ParameterError(f"--backend is for .lbq files, not {path.name}")
    if is_on_shelf(path):
        return _open_pretrained(str(path))
    if path.suffix == ".onnx":
        return _open_onnx(path, engine or "onnxruntime")
    if path.suffix == ".pt2":
        return _open_pt2(path)
    if path.suffix == ".nir":
        from lbq.export.nir import import_nir  # noqa: PLC0415 -- an extra

        return _lowered(import_nir(path), backend or "dense")
    return _lowered(load_bundle(path), backend or "dense")


def load_bundle(path: Path) -> LoweredNetwork:
    """Load a bundle; a complaint names its file."""
    from lbq.export.bundle import load  # noqa: PLC0415 -- one door at a time

    try:
        return load(path)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _lowered(network: LoweredNetwork, backend: str) -> Opened:
    kind: Backend = backend  # pyright: ignore[reportAssignmentType] -- run() checks it

    dtype = network.example().dtype

    def answer(inputs: Tensor) -> Tensor:
        return run(network, inputs.to(dtype), backend=kind)

    return Opened(answer=answer, is_integer=network.is_integer, origin=network.origin)


def _open_pretrained(name: str) -> Opened:
    model = pretrained(name)

    @torch.no_grad()
    def answer(inputs: Tensor) -> Tensor:
        return model(inputs)

    return Opened(answer=answer, is_integer=False, origin={"recipe": record_of(name)["recipe"]})


def _open_onnx(path: Path, engine: str) -> Opened:
    from lbq.export.onnx_graph import read_onnx_facts  # noqa: PLC0415 -- an extra
    from lbq.export.onnx_run import OnnxRunner  # noqa: PLC0415

    facts = read_onnx_facts(path)  # refuses what is no ONNX file, in words
    runner = OnnxRunner(path, engine=engine)  # pyright: ignore[reportArgumentType] -- it checks

    def answer(inputs: Tensor) -> Tensor:
        return torch.from_numpy(runner(inputs.numpy()))

    return Opened(answer=answer, is_integer=facts["is_integer"], origin=facts["origin"])


def _open_pt2(path: Path) -> Opened:
    from lbq.export.pt2 import read_pt2  # noqa: PLC0415 -- torch.export is slow to import

    program, facts = read_pt2(path)

    @torch.no_grad()
    def answer(inputs: Tensor) -> Tensor:
        return program(inputs)

    return Opened(answer=answer, is_integer=facts["is_integer"], origin=facts["origin"])
