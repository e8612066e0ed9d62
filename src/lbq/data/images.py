"""Labelled images: folders of classes, and everything that the ``datasets`` library reads.

The library reads hub ids, parquet files and webdataset shards (tar files that hold ``<key>.jpg``
and ``<key>.cls``); it runs no code that comes with a data set.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lbq.data.encoded_images import EncodedSet, EncodedSplit, count_classes
from lbq.data.image_folder import list_image_folder
from lbq.data.splits import evenly_spaced
from lbq.errors import FormatError, MissingExtraError, install_command

_LABELS = ("label", "fine_label", "cls")
_TEST_SPLITS = ("test", "validation", "val")


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
    if label in (None, _LABELS[0]) and (folder := list_image_folder(Path(source))) is not None:
        parts, classes = folder
        label, declared = _LABELS[0], len(classes)
        train_split = _choose_train(splits[0], list(parts), source)
        test_split = _choose_test(splits[1], list(parts), source)
        train, test = (parts[name] for name in (train_split, test_split))
        whole = EncodedSplit(train.labels, train), EncodedSplit(test.labels, test)
        files = [train.digest(), test.digest()]
    else:
        cache = (cache / "datasets").absolute()  # as the library names its files
        found = _load(source, cache)
        train_split = _choose_train(splits[0], list(found), source)
        columns = found[train_split].features
        label = _choose_label(label, list(columns), source)
        declared = getattr(columns[label], "num_classes", None) or 0
        labelled = [name for name in found if _is_labelled(found[name], label)]
        test_split = _choose_test(splits[1], labelled, source)
        whole = (
            _open_split(found[train_split], train_split, label=label, source=source),
            _open_split(found[test_split], test_split, label=label, source=source),
        )
        cached = [Path(file["filename"]) for file in found[train_split].cache_files]
        files = [str(file.relative_to(cache)) for file in cached]
    return EncodedSet(
        train=_limited(whole[0], limits[0]),
        test=_limited(whole[1], limits[1]),
        num_classes=count_classes(*whole, source, declared=declared),
        identity={
            "source": source,
            "files": files,
            "splits": [train_split, test_split],
            "label": label,
            "limits": list(limits),
        },
    )


@dataclass(frozen=True)
class _Column:
    """The image column of a split: cells with bytes, or with the path of a file.

    Arrow reads it: the library takes six times as long for a row.
    """

    cells: Any
    name: str
    index: NDArray[np.int64]
    """Rows of the column."""

    def fetch(self, i: int) -> tuple[str, bytes]:
        cell = self.cells[int(self.index[i])].as_py()
        path, encoded = cell["path"], cell["bytes"]
        name = f"{self.name}[{i}]" + (f" ({path})" if path else "")
        return name, Path(path).read_bytes() if encoded is None else encoded

    def lengths(self) -> NDArray[np.int64]:
        return _cell_lengths(self.cells)[self.index]

    def select(self, index: NDArray[np.int64]) -> "_Column":
        return replace(self, index=self.index[index])


def _open_split(split: Any, name: str, *, label: str, source: str) -> EncodedSplit:
    image_type = _datasets().Image
    images = [key for key, feature in split.features.items() if isinstance(feature, image_type)]
    if not images:
        raise FormatError(f"{source} has no column of images, it has {', '.join(split.features)}")
    cells = split.data.column(images[0])
    if cells.null_count:
        raise FormatError(
            f"{cells.null_count} rows of {name} in {source} have no image in the column "
            f"{images[0]!r}; the images of a set must lie in one column, in webdataset shards "
            f"under one suffix"
        )
    return EncodedSplit(_read_labels(split, label), _Column(cells, name, np.arange(len(cells))))


def _limited(rows: EncodedSplit, limit: int | None) -> EncodedSplit:
    if limit is None or limit >= len(rows):
        return rows
    chosen = evenly_spaced(len(rows), limit)
    return EncodedSplit(rows.labels[chosen], rows.encoded.select(chosen))


def _is_labelled(split: Any, label: str) -> bool:
    """Whether all samples have a class: benchmarks do not publish the labels of some splits."""
    if label not in split.features or len(split) == 0:
        return False
    is_whole = split.data.column(label).null_count == 0
    return is_whole and bool(_read_labels(split, label).min() >= 0)


def _read_labels(split: Any, label: str) -> NDArray[np.int64]:
    column = split.data.column(label)
    values = column.to_numpy()
    if column.null_count or values.dtype.kind not in "iub":
        raise FormatError(
            f"the column {label!r} holds {column[0].as_py()!r} ({column.type}) where whole "
            f"numbers are expected, one class for every image; name another column with label"
        )
    return values.astype(np.int64)


def _cell_lengths(cells: Any) -> NDArray[np.int64]:
    # pyarrow comes with datasets
    from pyarrow import compute as module  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    compute: Any = module
    lengths = compute.binary_length(compute.struct_field(cells, "bytes"))
    if lengths.null_count:  # a folder of files
        paths = compute.struct_field(cells, "path").to_pylist()
        return np.array([Path(path).stat().st_size for path in paths], np.int64)
    return np.asarray(lengths, np.int64)


def _choose_train(name: str, found: list[str], source: str) -> str:
    return _choose((name,), found, "split", source, setting="train_split")


def _choose_test(name: str | None, labelled: list[str], source: str) -> str:
    names = _TEST_SPLITS if name is None else (name,)
    return _choose(names, labelled, "labelled split", source, setting="test_split")


def _choose_label(name: str | None, columns: list[str], source: str) -> str:
    names = _LABELS if name is None else (name,)
    return _choose(names, columns, "label column", source, setting="label")


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
            f"reading image data sets needs the datasets library: {install_command('data')}"
        ) from error
    return datasets
