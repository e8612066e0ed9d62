"""Packed sets on disk, damaged and full, and splits in memory."""

import json
import multiprocessing
import pickle
import resource
import signal

import numpy as np
import pytest

from lbq.data.packed import SplitContents, open_packed
from lbq.data.splits import InMemory, Split, evenly_spaced
from lbq.errors import CorruptSample, FormatError

SAMPLES = np.random.default_rng(0).integers(0, 256, (12, 3, 4, 5), dtype=np.uint8)
LABELS = np.arange(12) % 3


def contents(samples=SAMPLES):
    return {
        "train": SplitContents(LABELS[:8], samples.shape[1:], np.uint8, iter(samples[:8])),
        "test": SplitContents(LABELS[8:], samples.shape[1:], np.uint8, iter(samples[8:])),
    }


def pack(cache, *, name="a", make=contents):
    return open_packed(cache, identity={"source": name}, num_classes=3, contents=make)


def never():
    raise AssertionError("the set is packed already")


def test_what_was_packed_is_read_back(tmp_path):
    for make in (contents, never):
        data = pack(tmp_path, make=make)
        assert np.array_equal(data.train.read(np.array([7, 0])), SAMPLES[[7, 0]])
        assert np.array_equal(data.test.read(np.arange(4)), SAMPLES[8:])
        assert np.array_equal(data.test.labels, LABELS[8:])
        assert data.train.shape == (3, 4, 5)
        assert data.num_classes == 3


def test_the_digest_tells_contents_apart_and_not_sources(tmp_path):
    digest = pack(tmp_path).digest
    assert pack(tmp_path, name="b").digest == digest
    other = SAMPLES.copy()
    other[5, 0, 0, 0] ^= 1
    assert pack(tmp_path, name="c", make=lambda: contents(other)).digest != digest


def flip_a_bit(path):
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("train.npy", flip_a_bit),
        ("test-labels.npy", flip_a_bit),
        ("train.npy", lambda path: path.write_bytes(path.read_bytes()[:-7])),
        ("train.npy", lambda path: path.unlink()),
        ("manifest.json", lambda path: path.write_text("{")),
        ("manifest.json", lambda path: path.write_text(json.dumps({"format": 99}))),
        ("manifest.json", lambda path: path.unlink()),
    ],
)
def test_a_damaged_set_is_packed_again(tmp_path, name, damage):
    digest = pack(tmp_path).digest
    (path,) = tmp_path.rglob(name)
    damage(path)
    words = "another hash" if damage is flip_a_bit else "packing again"
    with pytest.warns(UserWarning, match=words):
        assert pack(tmp_path).digest == digest
    assert list(tmp_path.glob("*.damaged-*"))


def test_a_set_that_cannot_be_decoded_leaves_nothing_behind(tmp_path):
    def samples():
        yield SAMPLES[0]
        raise CorruptSample("cat.jpg")

    broken = SplitContents(LABELS[:8], (3, 4, 5), np.uint8, samples())
    with pytest.raises(CorruptSample, match=r"cat\.jpg"):
        pack(tmp_path, make=lambda: {"train": broken})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path):
    huge = SplitContents(LABELS, (1 << 50,), np.uint8, iter(()))
    with pytest.raises(FormatError, match="MiB left"):
        pack(tmp_path, make=lambda: {"train": huge})


def pack_with_little_room(cache):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
    with pytest.raises(OSError, match="File too large"):
        pack(cache)


def test_a_disk_that_runs_full_leaves_nothing_behind(tmp_path):
    process = multiprocessing.get_context("fork").Process(
        target=pack_with_little_room, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def test_two_processes_that_pack_at_once_leave_one_good_set(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=pack, args=(tmp_path,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(list(tmp_path.iterdir())) == 1
    assert np.array_equal(pack(tmp_path, make=never).test.read(np.arange(4)), SAMPLES[8:])


def test_a_split_travels_to_another_process_as_a_path(tmp_path):
    split = pack(tmp_path).train
    sent = pickle.dumps(split)
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent).read(np.arange(8)), SAMPLES[:8])


def test_a_subset_is_spread_evenly_over_the_set():
    assert evenly_spaced(10, 5).tolist() == [0, 2, 4, 6, 8]
    assert evenly_spaced(10_007, 3).tolist() == [0, 3335, 6671]
    assert evenly_spaced(4, None).tolist() == evenly_spaced(4, 9).tolist() == [0, 1, 2, 3]


def test_samples_in_memory_are_a_split():
    split = InMemory(np.arange(24, dtype=np.uint8).reshape(4, 1, 2, 3), np.array([1, 0, 1, 0]))
    assert isinstance(split, Split)
    assert split.shape == (1, 2, 3)
    assert split.read(np.array([2, 0]))[:, 0, 0, 0].tolist() == [12, 0]
