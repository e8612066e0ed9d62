import zipfile

import pytest

from lbq.data import recordings as archive
from lbq.data.recordings import open_archive
from lbq.errors import CorruptSample, FormatError

FILES = {"b/2.bin": b"two" * 50, "a/1.bin": b"one" * 40, "a/note.txt": b"hello"}


def write_folder(path, files=FILES):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def write_zip(path, files=FILES, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def test_a_folder_and_a_zip_file_hold_the_same(tmp_path):
    folder = open_archive(str(write_folder(tmp_path / "folder")))
    zipped = open_archive(str(write_zip(tmp_path / "a.zip")))
    assert folder.sizes == zipped.sizes
    assert list(folder.sizes) == sorted(FILES)
    for name, content in FILES.items():
        assert folder.read(name) == zipped.read(name) == content


def test_files_are_found_by_how_their_names_end(tmp_path):
    files = open_archive(str(write_folder(tmp_path)))
    assert files.named(".bin") == ["a/1.bin", "b/2.bin"]
    assert files.named(".bin", ".txt") == ["a/1.bin", "a/note.txt", "b/2.bin"]


@pytest.mark.parametrize("name", ["../out.bin", "/etc/out.bin", "a/../../out.bin"])
def test_a_name_that_points_outside_is_only_a_name(tmp_path, name):
    hostile = open_archive(str(write_zip(tmp_path / "a.zip", {name: b"x" * 99})))
    before = sorted(tmp_path.rglob("*"))
    assert hostile.read(name) == b"x" * 99
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    bomb = open_archive(str(write_zip(tmp_path / "a.zip", {"zeros.bin": bytes(30_000_000)})))
    with pytest.raises(CorruptSample, match=r"zeros\.bin claims 30000000"):
        bomb.read("zeros.bin")


def test_a_file_larger_than_any_recording_is_refused(tmp_path, monkeypatch):
    files = open_archive(str(write_folder(tmp_path)))
    monkeypatch.setattr(archive, "MAX_BYTES", 100)
    with pytest.raises(CorruptSample, match=r"b/2\.bin has 150 bytes"):
        files.read("b/2.bin")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_flipped_bit_in_a_zip_file_is_noticed(tmp_path, compression):
    path = write_zip(tmp_path / "a.zip", compression=compression)
    damaged = bytearray(path.read_bytes())
    damaged[39] ^= 1  # in the first member
    path.write_bytes(damaged)
    with pytest.raises(CorruptSample, match=r"b/2\.bin"):
        open_archive(str(path)).read("b/2.bin")


def test_a_file_that_vanished_is_named(tmp_path):
    files = open_archive(str(write_folder(tmp_path)))
    (tmp_path / "a/1.bin").unlink()
    with pytest.raises(CorruptSample, match=r"a/1\.bin"):
        files.read("a/1.bin")


def test_what_is_neither_folder_nor_zip_is_refused(tmp_path):
    (tmp_path / "x").write_text("no zip")
    for source in (tmp_path / "x", tmp_path / "missing"):
        with pytest.raises(FormatError, match="neither"):
            open_archive(str(source))
