import errno
import os
import resource
import subprocess
import sys

import pytest

from lbq import atomic_files


def test_a_file_is_flushed_before_its_name_changes_and_its_folder_after(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)

        def record(*args, name=name, real=real):
            folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
            calls.append("fsync folder" if folder else name)
            return real(*args)

        monkeypatch.setattr(os, name, record)
    atomic_files.atomic_write(tmp_path / "file", b"new")
    assert calls == ["fsync", "replace", "fsync folder"]
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic_files.atomic_write(path, b"old")

    def fail(descriptor):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="the disk is broken"):
        atomic_files.atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_without_room_is_noticed_before_anything_is_written(tmp_path):
    with pytest.raises(OSError, match="bytes needed") as caught:
        atomic_files.check_space(tmp_path, 2**62)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path)


@pytest.mark.multi
def test_a_write_beyond_the_limit_of_a_file_keeps_the_old_one(tmp_path):
    path = tmp_path / "file"
    atomic_files.atomic_write(path, b"old")
    code = (
        "import pathlib, signal, sys; from lbq.atomic_files import atomic_write\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "atomic_write(pathlib.Path(sys.argv[1]), bytes(1_000_000))"
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
    atomic_files.remove_temporary_files(tmp_path)
    assert os.listdir(tmp_path) == ["file"]


def test_two_writers_of_one_path_do_not_disturb_each_other(tmp_path, monkeypatch):
    path, real = tmp_path / "file", os.replace

    def replace(source, target):  # another process writes the same path just before the rename
        monkeypatch.setattr(os, "replace", real)
        atomic_files.atomic_write(path, b"theirs")
        assert path.read_bytes() == b"theirs"
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    atomic_files.atomic_write(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert os.listdir(tmp_path) == ["file"]


def test_what_was_put_at_the_old_temporary_name_is_not_written_through(tmp_path):
    (tmp_path / "victim").write_bytes(b"theirs")
    (tmp_path / ".file.tmp").symlink_to(tmp_path / "victim")
    atomic_files.atomic_write(tmp_path / "file", b"ours")
    assert (tmp_path / "victim").read_bytes() == b"theirs"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o007])
def test_permissions_are_those_of_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        atomic_files.atomic_write(tmp_path / "file", b"ours")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask


WITHOUT_POSIX = """
import os, pathlib, sys
import torch
for name in ("fcntl", "resource", "pwd", "termios"):
    sys.modules[name] = None  # importing it raises ImportError
for name in ("statvfs", "uname", "fork", "getuid", "sched_getaffinity"):
    delattr(os, name)
real = os.open
def open_no_folder(path, *args, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return real(path, *args, **options)
os.open = open_no_folder
import shutil
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(2**40, 0, 2**40)
import lbq
network = lbq.lower(lbq.load_pretrained("pocket-cifar10"), torch.zeros(1, 3, 32, 32))
import lbq.atomic_files
lbq.atomic_files.os = type(sys)("os")  # os.name decides much in Python's own library
lbq.atomic_files.os.__dict__.update({**os.__dict__, "name": "nt"})
lbq.save_network(network, "net.lbq")
print(lbq.load_network("net.lbq").timesteps)
from lbq.train.run_folder import RunFolder
try:
    with RunFolder(pathlib.Path("run")).locked():
        pass
except lbq.LBQError as error:
    print(error)
"""


@pytest.mark.multi
def test_networks_are_loaded_and_saved_without_what_windows_lacks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2\n" in done.stdout
    assert "does not have; use Linux or macOS" in done.stdout
