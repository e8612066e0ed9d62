"""Sets of recordings from their files to frames; a linear classifier as the judge."""

import os
import shutil
import zipfile

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lbq.data.events import count_frames, read_events
from lbq.data.recordings import open_recordings
from lbq.errors import CorruptSample, FormatError


def open_set(source, kind, cache, *, timesteps=1, slicing="number", size=None, limits=(None, None)):
    return open_recordings(
        str(source),
        kind,
        timesteps=timesteps,
        slicing=slicing,
        size=size,
        limits=limits,
        cache=cache,
    )


@pytest.fixture(scope="module")
def nmnist_folder(real_data, tmp_path_factory):
    """Twelve real recordings in the published layout."""
    folder = tmp_path_factory.mktemp("nmnist")
    with zipfile.ZipFile(real_data / "nmnist-1100/nmnist_small.zip") as file:
        names = file.namelist()
        file.extractall(folder, [*names[:8], *names[1000:1004]])
    return folder


def logistic_accuracy(data):
    """Fit a logistic regression to the logarithms of counts, and count right answers."""
    x, x_test = (
        torch.from_numpy(split.read(np.arange(len(split.labels))).astype(np.float32)).flatten(1)
        for split in (data.train, data.test)
    )
    x, x_test = x.log1p(), x_test.log1p()
    mean, std = x.mean(0), x.std(0) + 0.1 * x.std()
    x, x_test = (x - mean) / std, (x_test - mean) / std
    weight = torch.zeros(x.shape[1], data.num_classes, requires_grad=True)
    target = torch.from_numpy(data.train.labels)
    optimizer = torch.optim.LBFGS([weight], max_iter=60)

    def loss():
        optimizer.zero_grad()
        value = F.cross_entropy(x @ weight, target) + 1e-3 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    right = (x_test @ weight).argmax(1) == torch.from_numpy(data.test.labels)
    return right.float().mean().item()


def test_a_linear_classifier_reads_nmnist(real_data, cache):
    data = open_set(real_data / "nmnist-1100/nmnist_small.zip", "nmnist", cache)
    assert (len(data.train.labels), len(data.test.labels)) == (1000, 100)
    assert data.train.shape == (1, 2, 34, 34)
    assert logistic_accuracy(data) >= 0.87


def test_a_linear_classifier_tells_objects_apart_on_another_day(real_data, cache):
    source = real_data / "dvs128-objects/dvs128_objects_aedat.zip"
    data = open_set(source, "dvs128-objects", cache, size=32)
    assert (len(data.train.labels), len(data.test.labels)) == (678, 313)
    assert logistic_accuracy(data) >= 0.847


def test_frames_are_those_of_the_files(nmnist_folder, tmp_path):
    data = open_set(nmnist_folder, "nmnist", tmp_path, timesteps=4, slicing="time")
    files = sorted(nmnist_folder.glob("Train/*/*.bin"))
    frames = data.train.read(np.arange(8))
    for file, label, frame in zip(files, data.train.labels, frames, strict=True):
        events = read_events(file.read_bytes(), file.name)
        assert np.array_equal(frame, count_frames(events, 4, "time", sensor=34))
        assert label == int(file.parent.name)


def test_a_folder_and_a_zip_file_give_the_same_set(nmnist_folder, tmp_path):
    zipped = shutil.make_archive(str(tmp_path / "n"), "zip", nmnist_folder)
    one, other = (open_set(source, "nmnist", tmp_path / "c") for source in (nmnist_folder, zipped))
    assert one.digest == other.digest


def test_other_frames_are_another_set(nmnist_folder, tmp_path):
    digests = {
        open_set(nmnist_folder, "nmnist", tmp_path, **options).digest
        for options in (
            {"timesteps": 2},
            {"timesteps": 2, "slicing": "time"},
            {"timesteps": 2, "size": 17},
            {"timesteps": 2, "limits": (4, 2)},
        )
    }
    assert len(digests) == 4


def test_a_damaged_recording_stops_packing_with_its_name(nmnist_folder, tmp_path):
    folder = shutil.copytree(nmnist_folder, tmp_path / "n")
    victim = sorted(folder.glob("Train/*/*.bin"))[5]
    victim.write_bytes(victim.read_bytes()[:-1])
    with pytest.raises(CorruptSample, match=victim.name):
        open_set(folder, "nmnist", tmp_path / "c")
    assert list((tmp_path / "c").iterdir()) == []


def test_a_window_without_events_is_named(tmp_path):
    header = b"#!AER-DAT3.1\r\n#!END-HEADER\r\n"
    packet = np.array([1, 1], "<u2").tobytes() + np.array([8, 4, 0, 1, 1, 1], "<u4").tobytes()
    event = np.array([(5 << 17) | (6 << 2) | 1, 150], "<u4").tobytes()
    for user, split in (("user01", "train"), ("user24", "test")):
        (tmp_path / f"trials_to_{split}.txt").write_text(f"{user}.aedat\n")
        (tmp_path / f"{user}.aedat").write_bytes(header + packet + event)
        (tmp_path / f"{user}_labels.csv").write_text("class,a,b\n3,100,200\n")
    data = open_set(tmp_path, "dvs-gesture", tmp_path / "c")
    assert data.train.labels.tolist() == [2]
    assert data.train.read(np.array([0]))[0, 0, 0, 6, 5] == 1
    (tmp_path / "user24_labels.csv").write_text("class,a,b\n3,300,400\n")
    with pytest.raises(CorruptSample, match=r"user24\.aedat: no events between"):
        open_set(tmp_path, "dvs-gesture", tmp_path / "c")


def test_a_folder_in_another_layout_is_refused(tmp_path):
    (tmp_path / "readme.txt").write_text("nothing here")
    with pytest.raises(FormatError, match="no train recordings in the layout of nmnist"):
        open_set(tmp_path, "nmnist", tmp_path / "c")


def test_recordings_rewritten_with_the_same_sizes_and_times_are_packed_again(
    nmnist_folder, tmp_path
):
    folder = shutil.copytree(nmnist_folder, tmp_path / "n")
    before = open_set(folder, "nmnist", tmp_path / "c")
    file = sorted(folder.glob("Train/*/*.bin"))[2]
    events = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 5)
    state = file.stat()
    file.write_bytes(events[:, [1, 0, 2, 3, 4]].tobytes())  # x and y swapped
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    after = open_set(folder, "nmnist", tmp_path / "c")
    expected = before.train.read(np.array([2]))[0].swapaxes(-1, -2)
    assert np.array_equal(after.train.read(np.array([2]))[0], expected)
    assert after.digest != before.digest


def test_a_rewritten_zip_file_is_packed_again(nmnist_folder, tmp_path):
    digests = []
    for flips in (False, True):
        path, folder = tmp_path / "n.zip", tmp_path / f"n{flips}"
        shutil.copytree(nmnist_folder, folder)
        if flips:
            file = sorted(folder.glob("Test/*/*.bin"))[0]
            file.write_bytes(
                np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 5)[:, [1, 0, 2, 3, 4]].copy()
            )
        with zipfile.ZipFile(path, "w") as zipped:  # stored: the same sizes
            for file in sorted(folder.rglob("*.bin")):
                zipped.write(file, file.relative_to(folder))
        digests.append(open_set(path, "nmnist", tmp_path / "c").digest)
    assert digests[0] != digests[1]


def test_files_that_are_no_recordings_do_not_matter(nmnist_folder, tmp_path):
    folder = shutil.copytree(nmnist_folder, tmp_path / "n")
    for note in ("one", "another"):
        (folder / "notes.md").write_text(note)
        open_set(folder, "nmnist", tmp_path / "c")
    assert len(list((tmp_path / "c").iterdir())) == 1
