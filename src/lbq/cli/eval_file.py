"""``lbq eval FILE``, or the name of a pretrained network: run by whoever takes it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lbq.cli.samples import Count, count_answers, open_config, origin_recipe
from lbq.data import UNIT, AugmentConfig, Data, DataConfig, Normalization
from lbq.deploy import LoweredNetwork, Pixels, choose_backend, run
from lbq.deploy.run import Backend
from lbq.errors import FormatError, ParameterError
from lbq.pretrained import IMAGE_SIZE, is_pretrained, load_pretrained, pretrained_record

SUFFIXES = (".lbq", ".onnx", ".pt2", ".nir")
"""Files that hold a network."""
BATCH = 100
"""Samples that run at once where no recipe says it."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A network from a file: how it answers, and what it says about itself."""

    answer: Callable[[Tensor], Tensor]
    is_integer: bool
    origin: dict[str, Any]
    input_shape: tuple[int, ...]
    """Of one sample at one instant."""
    takes_frames: bool
    backend: str | None = None
    """That runs a lowered network; None where another engine runs."""


Rgb = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """How images become inputs, and which are tested, for a file that carries no recipe."""

    size: int | None = None
    """Bring images to this many pixels a side, for a file without a recipe."""
    mean: Rgb | None = None
    """Subtract these from R, G and B in 0..1, for real numbers without a recipe."""
    std: Rgb | None = None
    """Then divide by these."""
    split: str | None = None
    """Test on this split, for a file without a recipe; "test" or "validation" by default."""


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
) -> Count:
    """Count the right answers of a file's network over the test set of its recipe, or over images.

    Args:
        path: a file that ends in one of ``SUFFIXES``, or a name of a pretrained network.
        cache: where data sets are kept once they are decoded.
        source: where the data lie, if not where the recipe says.
        limit: ask so many samples only, spread over the test set.
        batch: samples at once; the recipe's unless said.
        engine: that runs an ONNX file.
        backend: that runs a bundle; "auto" by default.
        images: what a file without a recipe does not say about its images.
    """
    opened = open_network(path, engine=engine, backend=backend)
    images = images or ImageOptions()
    if "recipe" in opened.origin:
        if images != ImageOptions():
            raise ParameterError(
                f"--size, --mean, --std and --split are for files without a recipe; {path} carries "
                f"one, which says all of this"
            )
        recipe = origin_recipe(opened.origin, source=path)
        config, own_batch = recipe.data, recipe.test_batch
        if source is not None:
            config = replace(config, source=source)
    else:
        config, own_batch = _own_images(path, opened, source, images), BATCH
    data = open_config(config, cache=cache)
    if "recipe" not in opened.origin:
        _check_images(path, opened, data)
    found = count_answers(
        opened.answer,
        data,
        is_integer=opened.is_integer,
        batch=batch or own_batch,
        limit=limit,
    )
    return replace(found, backend=opened.backend)


def _own_images(path: Path, opened: Opened, source: str | None, images: ImageOptions) -> DataConfig:
    """Configure the images that a file without a recipe is tested on, or say what is missing."""
    if source is None:
        raise ParameterError(
            f"{path} carries no recipe, so its test set is unknown: name one with --data, the hub "
            f"id of images or a folder with train/<class>/ and test/<class>/"
        )
    if opened.takes_frames or len(opened.input_shape) != 3 or opened.input_shape[0] != 3:
        what = "[T, B, ...] of " if opened.takes_frames else ""
        raise ParameterError(
            f"{path} takes {what}{opened.input_shape}, and without a recipe only RGB images "
            f"(3, height, width) can be read for it; compare its answers in Python: "
            f"lbq.run(lbq.load({str(path)!r}), inputs)"
        )
    if opened.is_integer and (images.mean is not None or images.std is not None):
        raise ParameterError(
            f"{path} holds integers and takes bytes: --mean and --std are part of it already"
        )
    if not opened.is_integer and (images.mean is None or images.std is None):
        raise ParameterError(
            f"{path} holds real numbers and does not say how its images were normalised: pass "
            f"--mean R G B --std R G B for (byte / 255 - mean) / std; 0 0 0 and 1 1 1 leave 0..1"
        )
    normalization = UNIT
    if images.mean is not None and images.std is not None:
        Pixels(mean=images.mean, std=images.std)  # refuses what no normalisation has
        normalization = Normalization(mean=images.mean, std=images.std)
    return DataConfig(
        source=source,
        size=images.size,
        train_split=images.split or "train",
        test_split=images.split,
        augment=AugmentConfig(normalization=normalization),
    )


def _check_images(path: Path, opened: Opened, data: Data) -> None:
    """Refuse images of another size, or of other classes, than a file without a recipe takes."""
    found, wanted = data.sample_shape, opened.input_shape
    if found != wanted:
        is_square = wanted[1] == wanted[2]
        raise ParameterError(
            f"{path} takes images of {wanted[1]} x {wanted[2]} pixels, those of "
            f"{data.config.source} have {found[1]} x {found[2]}; "
            + (f"pass --size {wanted[1]}" if is_square else "bring them to that size first")
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
        raise ParameterError(f"--engine runs .onnx files, not {path.name}")
    if backend is not None and path.suffix not in (".lbq", ".nir"):
        raise ParameterError(f"--backend is for .lbq files, not {path.name}")
    if is_pretrained(path):
        return _open_pretrained(str(path))
    if path.suffix == ".onnx":
        return _open_onnx(path, engine or "onnxruntime")
    if path.suffix == ".pt2":
        return _open_pt2(path)
    if path.suffix == ".nir":
        from lbq.export.nir import import_nir  # noqa: PLC0415 -- an extra

        return _lowered(import_nir(path), backend or "auto")
    return _lowered(load_bundle(path), backend or "auto")


def load_bundle(path: Path) -> LoweredNetwork:
    """Load a bundle; a complaint names its file."""
    from lbq.export.bundle import load  # noqa: PLC0415 -- one door at a time

    try:
        return load(path)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error


def _lowered(network: LoweredNetwork, backend: str) -> Opened:
    if backend == "auto":
        backend = choose_backend(network)
    kind: Backend = backend  # pyright: ignore[reportAssignmentType] -- run() checks it
    dtype = network.example().dtype

    def answer(inputs: Tensor) -> Tensor:
        return run(network, inputs.to(dtype), backend=kind)

    return Opened(
        answer=answer,
        is_integer=network.is_integer,
        origin=network.origin,
        input_shape=network.input_shape,
        takes_frames=network.takes_frames,
        backend=backend,
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
    )


def _open_onnx(path: Path, engine: str) -> Opened:
    from lbq.export.onnx_graph import read_onnx_metadata  # noqa: PLC0415 -- an extra
    from lbq.export.onnx_run import OnnxRunner  # noqa: PLC0415

    facts = read_onnx_metadata(path)  # refuses what is no ONNX file, in words
    runner = OnnxRunner(path, engine=engine)  # pyright: ignore[reportArgumentType] -- it checks

    def answer(inputs: Tensor) -> Tensor:
        return torch.from_numpy(runner(inputs.numpy()))

    return _opened(answer, facts)


def _open_pt2(path: Path) -> Opened:
    from lbq.export.pt2 import read_pt2  # noqa: PLC0415 -- torch.export is slow to import

    program, facts = read_pt2(path)

    @torch.no_grad()
    def answer(inputs: Tensor) -> Tensor:
        return program(inputs)

    return _opened(answer, facts)
