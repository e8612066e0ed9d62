import errno
import os
import resource
import subprocess
import sys

import pytest

from lbq import durable


def test_a_file_is_flushed_before_its_name_changes_and_its_folder_after(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def record(*args, name=name, real=real):
            folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
            calls.append("fsync folder" if folder else name)
            return real(*args)

        monkeypatch.setattr(os, name, record)
    durable.write_durably(tmp_path / "file", b"new")
    assert calls == ["fsync", "replace", "fsync folder"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    durable.write_durably(path, b"old")

    def fail(descriptor):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="the disk is broken"):
        durable.write_durably(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_without_room_is_noticed_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match="bytes wanted") as caught:
        durable.check_space(tmp_path, 2**62)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path)


@pytest.mark.multi
def test_a_write_beyond_the_limit_of_a_file_keeps_the_old_one(tmp_path):
    path = tmp_path / "file"
    durable.write_durably(path, b"old")
    code = (
        "import pathlib, signal, sys; from lbq.durable import write_durably\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "write_durably(pathlib.Path(sys.argv[1]), bytes(1_000_000))"
    )

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [sys.executable, "-c", code, path],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / ".file.tmp").write_bytes(b"half")
    (tmp_path / "file").write_bytes(b"whole")
    durable.remove_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["file"]
