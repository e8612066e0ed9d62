"""Shards that the webdataset library wrote and reads, and shards that somebody damaged."""

import io
import tarfile

import numpy as np
import pytest
import webdataset
from PIL import Image
from webdataset import tariterators

from lbq.data.encoded_images import to_bytes
from lbq.data.shards import open_shards
from lbq.errors import CorruptSample, FormatError


def picture(number):
    return np.random.default_rng(number).integers(0, 256, (20, 24, 3), dtype=np.uint8)


def png(number):
    buffer = io.BytesIO()
    Image.fromarray(picture(number)).save(buffer, "PNG")
    return buffer.getvalue()


def write_shard(path, numbers, labels=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for number in numbers:
            writer.write(
                {
                    "__key__": f"n{number % 3}/photo{number:04d}",
                    "png": png(number),
                    "cls": (labels or {}).get(number, str(number % 3)).encode(),
                    "txt": b"a caption",
                }
            )


@pytest.fixture
def folder(tmp_path):
    write_shard(tmp_path / "set/train-000000.tar", range(5))
    write_shard(tmp_path / "set/train-000001.tar", range(5, 9))
    write_shard(tmp_path / "set/val/000000.tar", range(20, 24))
    return tmp_path / "set"


def open_both(folder, *, splits=("train", None), limits=(None, None)):
    return open_shards(str(folder), splits=splits, limits=limits, cache=folder.parent / "cache")


def test_what_webdataset_wrote_is_read_in_its_order(folder):
    found = open_both(folder)
    assert found.num_classes == 3
    assert found.train.labels.tolist() == [number % 3 for number in range(9)]
    assert found.train.shards.tolist() == [0] * 5 + [1] * 4
    for number in range(9):
        pixels = to_bytes(found.train.decode(number))
        assert np.array_equal(pixels, picture(number).transpose(2, 0, 1))
    assert np.array_equal(to_bytes(found.test.decode(3)), picture(23).transpose(2, 0, 1))


def test_the_library_with_its_security_on_reads_the_same_samples(folder, monkeypatch):
    monkeypatch.setattr(webdataset.utils, "enforce_security", True)
    encoded = open_both(folder).train.encoded
    with (folder / "train-000000.tar").open("rb") as stream:
        files = ({**file, "__url__": ""} for file in tariterators.tar_file_iterator(stream))
        samples = list(tariterators.group_by_keys(files))
    for i, sample in enumerate(samples):
        name, image = encoded.fetch(i)
        assert image == sample["png"]
        assert name.startswith(sample["__key__"])


def test_members_are_listed_once(folder, monkeypatch):
    digest = open_both(folder).digest()
    monkeypatch.setattr(tarfile, "open", None)
    assert open_both(folder).digest() == digest


def test_a_changed_shard_is_listed_anew(folder):
    before = len(open_both(folder).train)
    write_shard(folder / "train-000001.tar", range(5, 16))
    assert len(open_both(folder).train) == before + 7


def test_a_limited_set_keeps_its_places(folder):
    found = open_both(folder, limits=(3, 2))
    assert found.train.shards.tolist() == [0, 0, 1]
    assert np.array_equal(to_bytes(found.train.decode(2)), picture(6).transpose(2, 0, 1))


def test_an_image_is_named_when_it_is_corrupt(folder):
    found = open_both(folder)
    path = folder / "train-000000.tar"
    _, start, length = found.train.encoded.places[2]
    content = bytearray(path.read_bytes())
    content[start + 60 : start + length] = bytes(length - 60)
    path.write_bytes(content)
    with pytest.raises(CorruptSample, match=r"n2/photo0002\.png in train-000000\.tar"):
        found.train.decode(2)


def test_a_shard_that_was_cut_off_later_names_the_image(folder):
    found = open_both(folder)
    path = folder / "train-000001.tar"
    _, start, length = found.train.encoded.places[8]
    with path.open("r+b") as file:
        file.truncate(start + length // 2)
    with pytest.raises(CorruptSample, match=r"photo0008\.png in train-000001\.tar is cut off"):
        found.train.encoded.fetch(8)


def test_links_and_devices_in_a_shard_are_no_images(folder):
    with tarfile.open(folder / "train-000002.tar", "w") as file:
        for name, kind in [("evil.png", tarfile.SYMTYPE), ("pipe.png", tarfile.FIFOTYPE)]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            file.addfile(member)
    assert len(open_both(folder).train) == 9


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"not a tar file" * 100),
        lambda path: path.write_bytes(path.read_bytes()[:1700]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"1\0\0\0\0\0", b"x\0\0\0\0\0")),
    ],
    ids=["other bytes", "cut off", "a class that is no number"],
)
def test_a_damaged_shard_is_named_when_it_is_listed(folder, damage):
    damage(folder / "train-000000.tar")
    with pytest.raises(FormatError, match=r"train-000000\.tar"):
        open_both(folder)


def test_compressed_shards_are_refused(folder):
    with tarfile.open(folder / "train-000003.tar", "w:gz") as file:
        file.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(FormatError, match="uncompressed"):
        open_both(folder)


def test_missing_shards_are_named(folder):
    with pytest.raises(FormatError, match="start with dev"):
        open_both(folder, splits=("dev", None))


def test_shards_without_images_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("train.tar", "test.tar"):
        tarfile.open(tmp_path / "empty" / name, "w").close()
    with pytest.raises(FormatError, match=r"no images with a \.cls"):
        open_both(tmp_path / "empty")


@pytest.mark.parametrize("label", ["-100", "-1", "1000000000", "1000"])
def test_a_label_that_cannot_be_a_class_is_named_with_its_image(folder, label):
    write_shard(folder / "train-000001.tar", range(5, 9), labels={7: label})
    named = (
        rf"n1/photo0007\.png in train-000001\.tar in .* has the label {label}, expected .* 0\.\."
    )
    for _ in range(2):  # also where the listing is packed already
        with pytest.raises(FormatError, match=named):
            open_both(folder)


def test_a_label_that_only_the_test_set_has_is_refused(folder):
    write_shard(folder / "val/000000.tar", range(20, 24), labels={21: "3"})
    with pytest.raises(FormatError, match=r"photo0021\.png .* label 3, expected .* 0\.\.2, as in"):
        open_both(folder)


@pytest.mark.parametrize("label", ["9" * 30, "1_0", "+1", "\u0663", "", "0x1", "1e3"])
def test_a_label_file_that_holds_no_number_is_named(folder, label):
    write_shard(folder / "train-000001.tar", range(5, 9), labels={7: label})
    with pytest.raises(FormatError, match=r"train-000001\.tar.*n1/photo0007\.cls holds"):
        open_both(folder)


def test_spaces_around_a_label_do_not_matter_and_parts_of_imagenet_keep_its_labels(folder):
    write_shard(folder / "train-000001.tar", range(5, 9), labels={7: " 999\n"})
    assert open_both(folder).num_classes == 1000
