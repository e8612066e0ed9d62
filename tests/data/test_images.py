"""Reading images: real data, and small folders in all layouts."""

import io
import sys

import datasets
import numpy as np
import pytest
from PIL import Image

from lbq.data.encoded_images import to_bytes
from lbq.data.image_folder import list_image_folder
from lbq.data.images import open_images
from lbq.errors import FormatError, MissingExtraError


def open_both(source, cache, *, splits=("train", None), label=None, limits=(None, None)):
    return open_images(str(source), splits=splits, label=label, limits=limits, cache=cache)


def picture(seed):
    return np.random.default_rng(seed).integers(0, 256, (6, 5, 3), dtype=np.uint8)


def encode(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(folder, split, labels, *, start=0, column="label"):
    cells = [{"bytes": encode(picture(start + i)), "path": None} for i in range(len(labels))]
    features = datasets.Features({"image": datasets.Image(), column: datasets.Value("int64")})
    table = datasets.Dataset.from_dict({"image": cells, column: labels}, features=features)
    table.to_parquet(folder / f"{split}.parquet")


def test_cifar10_is_read_whole_and_in_order(real_data, cache):
    found = open_both(real_data / "cifar10", cache)
    assert (len(found.train), len(found.test), found.num_classes) == (50_000, 10_000, 10)
    assert np.bincount(found.train.labels).tolist() == [5000] * 10
    assert found.train.labels[:5].tolist() == [6, 9, 9, 4, 1]  # frog, truck, truck, deer, car
    assert found.train.decode(0).size == (32, 32)


def test_cifar100_is_read_by_its_fine_labels(real_data, cache):
    found = open_both(real_data / "cifar100-5k", cache)
    assert found.num_classes == 100
    coarse = open_both(real_data / "cifar100-5k", cache, label="coarse_label")
    assert coarse.num_classes == 20


def test_a_limited_set_is_spread_over_the_whole(real_data, cache):
    whole = open_both(real_data / "cifar10", cache)
    part = open_both(real_data / "cifar10", cache, limits=(500, 100))
    assert np.array_equal(part.train.labels, whole.train.labels[::100])
    assert np.array_equal(to_bytes(part.train.decode(7)), to_bytes(whole.train.decode(700)))
    assert len(part.test) == 100


def test_imagenet_keeps_its_thousand_classes(real_data, cache):
    found = open_both(real_data / "imagenet-200", cache, splits=("validation", "validation"))
    assert found.num_classes == 1000
    assert len(found.train) == 200
    assert min(found.train.decode(3).size) == 256


def test_parquet_files_and_folders_of_classes_take_the_same_road(tmp_path, cache):
    (tmp_path / "parquet").mkdir()
    write_parquet(tmp_path / "parquet", "train", [0, 0, 1, 1])
    write_parquet(tmp_path / "parquet", "test", [0, 1], start=4)
    for split, first, labels in [("train", 0, "aabb"), ("test", 4, "ab")]:
        for i, name in enumerate(labels, first):
            folder = tmp_path / "folder" / split / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.png").write_bytes(encode(picture(i)))
    by_parquet, by_folder = (open_both(tmp_path / name, cache) for name in ("parquet", "folder"))
    assert by_parquet.digest() == by_folder.digest()
    for found in (by_parquet, by_folder):
        assert found.train.labels.tolist() == [0, 0, 1, 1]
        assert found.test.labels.tolist() == [0, 1]
        for i in range(4):
            assert np.array_equal(to_bytes(found.train.decode(i)), picture(i).transpose(2, 0, 1))
    name, _ = by_folder.train.encoded.fetch(2)
    assert "2.png" in name


def test_a_split_without_labels_is_no_test_split(tmp_path, cache):
    write_parquet(tmp_path, "train", [0, 1])
    write_parquet(tmp_path, "test", [-1, -1])
    write_parquet(tmp_path, "validation", [1, 0, 1])
    assert open_both(tmp_path, cache).test.labels.tolist() == [1, 0, 1]
    with pytest.raises(FormatError, match="labelled split 'test'"):
        open_both(tmp_path, cache, splits=("train", "test"))


@pytest.mark.parametrize("label", [-100, 10**9])
def test_a_label_that_cannot_be_a_class_is_named_with_its_image(tmp_path, cache, label):
    write_parquet(tmp_path, "train", [0, label, 1])
    write_parquet(tmp_path, "test", [0, 1])
    with pytest.raises(FormatError, match=rf"train\[1\] in .* has the label {label}, expected"):
        open_both(tmp_path, cache)


@pytest.mark.parametrize(
    ("kind", "values", "shown"),
    [
        ("string", ["cat", "dog"], "'cat'"),
        ("float64", [0.0, 1.5], "0.0"),
        ("int64", [0, None], "0"),
    ],
)
def test_labels_that_are_no_whole_numbers_are_refused(tmp_path, cache, kind, values, shown):
    cells = [{"bytes": encode(picture(0)), "path": None}] * 2
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value(kind)})
    table = datasets.Dataset.from_dict({"image": cells, "label": values}, features=features)
    table.to_parquet(tmp_path / "train.parquet")
    write_parquet(tmp_path, "test", [0, 1])
    with pytest.raises(FormatError, match=rf"'label' holds {shown}.* whole numbers are expected"):
        open_both(tmp_path, cache)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", "---\nconfigs: [1, {\n---\n"),
        ("dataset_infos.json", "["),
        ("train.parquet", "PAR1" + "x" * 100),
    ],
)
def test_what_the_library_cannot_read_is_an_error_of_ours(tmp_path, cache, name, text):
    write_parquet(tmp_path, "train", [0, 1])
    write_parquet(tmp_path, "test", [0, 1])
    (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match=r"(?s)no images can be read from .*; give the id"):
        open_both(tmp_path, cache)


def test_a_limit_does_not_change_the_number_of_classes(tmp_path, cache):
    write_parquet(tmp_path, "train", [0, 1, 2])
    write_parquet(tmp_path, "test", [0, 1, 2])
    assert open_both(tmp_path, cache, limits=(1, 1)).num_classes == 3


def test_a_changed_file_is_another_set(tmp_path, cache):
    write_parquet(tmp_path, "train", [0, 1])
    write_parquet(tmp_path, "test", [0, 1])
    before = open_both(tmp_path, cache).identity
    assert open_both(tmp_path, cache).identity == before
    write_parquet(tmp_path, "test", [0, 1, 1])
    assert open_both(tmp_path, cache).identity != before


def test_what_is_missing_is_named(tmp_path, cache):
    write_parquet(tmp_path, "train", [0, 1], column="kind")
    write_parquet(tmp_path, "test", [0, 1], column="kind")
    with pytest.raises(FormatError, match="'image', 'kind'"):
        open_both(tmp_path, cache)
    assert open_both(tmp_path, cache, label="kind").num_classes == 2
    with pytest.raises(FormatError, match="no split 'dev', it has 'train', 'test'"):
        open_both(tmp_path, cache, splits=("dev", None), label="kind")


def test_a_folder_of_classes_without_splits_is_told_the_layout_and_the_flag(tmp_path, cache):
    for i, name in enumerate("ab"):
        (tmp_path / "flat" / name).mkdir(parents=True)
        (tmp_path / "flat" / name / f"{i}.png").write_bytes(encode(picture(i)))
    with pytest.raises(FormatError) as captured:
        open_both(tmp_path / "flat", cache)
    for words in ("it has 'train'", "test/<class>/", "--data.test-split", "test_split="):
        assert words in str(captured.value)
    found = open_both(tmp_path / "flat", cache, splits=("train", "train"))
    assert found.test.labels.tolist() == [0, 1]


def test_without_the_library_the_error_says_what_to_install(tmp_path, cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="pip install 'datasets>=4' pillow"):
        open_both(tmp_path, cache)


def test_a_folder_of_classes_is_what_the_datasets_library_finds_in_it(tmp_path, cache):
    folder = tmp_path / "set"
    names = ("train/b/2.png", "train/b/10.png", "train/b-c/1.JPEG", "train/a/x.webp", "val/c/1.jpg")
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        suffix = {"jpg": "JPEG"}.get(name[-3:], name.rpartition(".")[2].upper())
        Image.fromarray(picture(i)).save(folder / name, suffix)
    (folder / "train" / "b" / ".hidden").touch()
    (folder / "train" / "empty").mkdir()
    found = open_both(folder, cache)
    library = datasets.load_dataset(str(folder), cache_dir=str(cache))
    for split, rows in (("train", found.train), ("validation", found.test)):
        cells = library[split].cast_column("image", datasets.Image(decode=False))
        assert rows.labels.tolist() == cells["label"]
        fetched = [rows.encoded.fetch(i) for i in range(len(rows))]
        assert [name for name, _ in fetched] == [
            f"{split}[{i}] ({cell['path']})" for i, cell in enumerate(cells["image"])
        ]
    assert found.num_classes == library["train"].features["label"].num_classes
    before = found.identity
    assert open_both(folder, cache).identity == before
    (folder / "val/c/1.jpg").write_bytes(encode(picture(9)))
    assert open_both(folder, cache).identity != before


def test_a_folder_with_other_files_is_left_to_the_library(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "1.png").write_bytes(encode(picture(0)))
    assert list_image_folder(tmp_path) is not None
    for name in ("README.md", "train/metadata.csv", "train/a/1.gif", "train/a/more/2.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        assert list_image_folder(tmp_path) is None, name
        (tmp_path / name).unlink()
        if "more" in name:
            (tmp_path / name).parent.rmdir()
    assert list_image_folder(tmp_path / "nothing") is None
