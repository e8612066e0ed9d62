"""Labelled images through the ``datasets`` library: a hub id, or a folder.

The library reads parquet files, folders of classes and webdataset shards (tar files that hold
``<key>.jpg`` and ``<key>.cls``); it runs no code that comes with a data set.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lbq.data.encoded_images import EncodedSet, EncodedSplit, count_classes
from lbq.data.splits import evenly_spaced
from lbq.errors import FormatError, MissingExtraError

_LABELS = ("label", "fine_label", "cls")
_TEST_SPLITS = ("test", "validation", "val")
_SLICE = 1000


def open_images(
    source: str,
    *,
    splits: tuple[str, str | None],
    label: str | None,
    limits: tuple[int | None, int | None],
    cache: Path,
) -> EncodedSet:
    """Open the training and the test split of a hub id or folder.

    Args:
        source: hub id, or folder.
        splits: names of both; the second is "test" or "validation" if None.
        label: column with the classes; "label", "fine_label" or "cls" if None.
        limits: how many samples of each to keep, spread evenly; all if None.
        cache: where the library may keep its own files.
    """
    cache = cache.absolute()  # as the library names its files
    found = _load(source, cache / "datasets")
    train_split = _choose((splits[0],), list(found), "split", source, setting="train_split")
    columns = found[train_split].features
    label = _choose(
        _LABELS if label is None else (label,),
        list(columns),
        "label column",
        source,
        setting="label",
    )
    test_splits = _TEST_SPLITS if splits[1] is None else (splits[1],)
    labelled = [name for name in found if _is_labelled(found[name], label)]
    test_split = _choose(test_splits, labelled, "labelled split", source, setting="test_split")
    whole = [
        _open_split(found[name], name, label=label, source=source)
        for name in (train_split, test_split)
    ]
    train, test = (_limited(rows, limit) for rows, limit in zip(whole, limits, strict=True))
    declared = getattr(columns[label], "num_classes", None) or 0
    files = [Path(file["filename"]) for file in found[train_split].cache_files]
    return EncodedSet(
        train=train,
        test=test,
        num_classes=count_classes(whole[0], whole[1], source, declared=declared),
        identity={
            "source": source,
            "files": [str(file.relative_to(cache / "datasets")) for file in files],
            "splits": [train_split, test_split],
            "label": label,
            "limits": list(limits),
        },
    )


@dataclass(frozen=True)
class _Column:
    """The image column of a split: cells with bytes, or with the path of a file."""

    split: Any
    column: str
    name: str

    def fetch(self, i: int) -> tuple[str, bytes]:
        cell = self.split[i][self.column]
        path, encoded = cell["path"], cell["bytes"]
        name = f"{self.name}[{i}]" + (f" ({path})" if path else "")
        return name, Path(path).read_bytes() if encoded is None else encoded

    def lengths(self) -> NDArray[np.int64]:
        split, count = self.split.with_format("arrow"), len(self.split)
        slices = (split[start : start + _SLICE] for start in range(0, count, _SLICE))
        return np.concatenate([_cell_lengths(table.column(self.column)) for table in slices])


def _open_split(split: Any, name: str, *, label: str, source: str) -> EncodedSplit:
    image_type = _datasets().Image
    images = [key for key, feature in split.features.items() if isinstance(feature, image_type)]
    if not images:
        raise FormatError(f"{source} has no column of images, it has {', '.join(split.features)}")
    image = images[0]
    split = split.select_columns([image, label]).cast_column(image, image_type(decode=False))
    if num_missing := split.with_format("arrow")[:].column(image).null_count:
        raise FormatError(
            f"{num_missing} rows of {name} in {source} have no image in the column {image!r}; the "
            f"images of a set must lie in one column, in webdataset shards under one suffix"
        )
    return EncodedSplit(_read_labels(split, label), _Column(split, image, name))


def _limited(rows: EncodedSplit, limit: int | None) -> EncodedSplit:
    if limit is None or limit >= len(rows):
        return rows
    chosen = evenly_spaced(len(rows), limit)
    column = cast(_Column, rows.encoded)
    return EncodedSplit(rows.labels[chosen], replace(column, split=column.split.select(chosen)))


def _is_labelled(split: Any, label: str) -> bool:
    """Whether all samples have a class: benchmarks keep the labels of some splits to themselves."""
    if label not in split.features or len(split) == 0:
        return False
    column = split.select_columns([label]).with_format("arrow")[:].column(label)
    return column.null_count == 0 and bool(_read_labels(split, label).min() >= 0)


def _read_labels(split: Any, label: str) -> NDArray[np.int64]:
    column = np.asarray(split.select_columns([label]).with_format("numpy")[:][label])
    if column.dtype.kind not in "iub":
        raise FormatError(
            f"the column {label!r} holds {column[:1].tolist()[0]!r} ({column.dtype}) where whole "
            f"numbers are expected, one class for every image; name another column with label"
        )
    return column.astype(np.int64)


def _cell_lengths(cells: Any) -> NDArray[np.int64]:
    # pyarrow comes with datasets
    from pyarrow import compute as module  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    compute: Any = module
    lengths = compute.binary_length(compute.struct_field(cells, "bytes"))
    if lengths.null_count:  # a folder of files
        paths = compute.struct_field(cells, "path").to_pylist()
        return np.array([Path(path).stat().st_size for path in paths], np.int64)
    return np.asarray(lengths, np.int64)


def _choose(
    wanted: tuple[str, ...], found: list[str], what: str, source: str, *, setting: str
) -> str:
    for name in wanted:
        if name in found:
            return name
    flags = f"--data.{setting.replace('_', '-')} (lbq train)"
    layout = ""
    if "split" in what:
        layout = "put the images into train/<class>/ and test/<class>/, or "
        flags += ", --split (lbq eval of a file without a recipe)"
    raise FormatError(
        f"{source} has no {what} {' or '.join(map(repr, wanted))}, it has "
        f"{', '.join(map(repr, found)) or 'none'}; {layout}name another with {flags} or "
        f"DataConfig({setting}=...)"
    )


def _load(source: str, cache: Path) -> Any:
    datasets = _datasets()
    try:
        return datasets.load_dataset(source, cache_dir=str(cache))
    except Exception as error:  # the library lets through what its parsers raise
        raise FormatError(
            f"no images can be read from {source} ({type(error).__name__}: {error}); give the id "
            f"of a data set on the hub, or a folder in a layout of docs/data.md"
        ) from error


def _datasets() -> Any:
    try:
        import datasets  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "reading image data sets needs the datasets library: pip install 'lbq[data]'"
        ) from error
    return datasets
