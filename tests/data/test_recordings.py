"""Sets of recordings: archives, layouts, and frames that a linear classifier can learn."""

import os
import shutil
import zipfile

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lbq.data import recordings
from lbq.data.events import Events, count_frames, read_events
from lbq.data.recordings import (
    CIFAR10_CLASSES,
    LAYOUTS,
    cifar10_dvs_test_numbers,
    open_archive,
    open_recordings,
)
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


def swap_x_and_y(file):
    """Rewrite a recording with the same size and times."""
    state = file.stat()
    events = np.frombuffer(file.read_bytes(), np.uint8).reshape(-1, 5)
    file.write_bytes(events[:, [1, 0, 2, 3, 4]].tobytes())
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def zip_folder(folder, path):
    with zipfile.ZipFile(path, "w") as zipped:  # stored: the same sizes
        for file in sorted(folder.rglob("*.bin")):
            zipped.write(file, file.relative_to(folder))


@pytest.mark.parametrize("is_zipped", [False, True])
def test_rewritten_recordings_are_packed_again(nmnist_folder, tmp_path, is_zipped):
    folder = shutil.copytree(nmnist_folder, tmp_path / "n")
    source = tmp_path / "n.zip" if is_zipped else folder
    found = []
    for is_swapped in (False, True):
        if is_swapped:
            swap_x_and_y(sorted(folder.glob("Train/*/*.bin"))[2])
        if is_zipped:
            zip_folder(folder, source)
        found.append(open_set(source, "nmnist", tmp_path / "c"))
    before, after = (data.train.read(np.array([2]))[0] for data in found)
    assert np.array_equal(after, before.swapaxes(-1, -2))
    assert found[0].digest != found[1].digest


def test_files_that_are_no_recordings_do_not_matter(nmnist_folder, tmp_path):
    folder = shutil.copytree(nmnist_folder, tmp_path / "n")
    for note in ("one", "another"):
        (folder / "notes.md").write_text(note)
        open_set(folder, "nmnist", tmp_path / "c")
    assert len(list((tmp_path / "c").iterdir())) == 1


FILES = {"b/2.bin": b"two" * 50, "a/1.bin": b"one" * 40, "a/note.txt": b"hello"}


def write_folder(folder, files=FILES):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return open_archive(str(folder))


def write_zip(path, files=FILES, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def test_a_folder_and_a_zip_file_hold_the_same(tmp_path):
    folder = write_folder(tmp_path / "folder")
    zipped = open_archive(str(write_zip(tmp_path / "a.zip")))
    assert folder.sizes == zipped.sizes
    assert list(folder.sizes) == sorted(FILES)
    for name, content in FILES.items():
        assert folder.read(name) == zipped.read(name) == content


def test_files_are_found_by_how_their_names_end(tmp_path):
    files = write_folder(tmp_path)
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
    files = write_folder(tmp_path)
    monkeypatch.setattr(recordings, "MAX_BYTES", 100)
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
    files = write_folder(tmp_path)
    (tmp_path / "a/1.bin").unlink()
    with pytest.raises(CorruptSample, match=r"a/1\.bin"):
        files.read("a/1.bin")


def test_what_is_neither_folder_nor_zip_is_refused(tmp_path):
    (tmp_path / "x").write_text("no zip")
    for source in (tmp_path / "x", tmp_path / "missing"):
        with pytest.raises(FormatError, match="neither"):
            open_archive(str(source))


def find(folder, kind, files):
    return LAYOUTS[kind].find(write_folder(folder, files))


def listed(recordings):
    return [(recording.file, recording.label) for recording in recordings]


def test_nmnist_is_split_by_its_folders(tmp_path):
    files = dict.fromkeys(
        ["Train/3/00002.bin", "Train/0/00001.bin", "Test/9/00001.bin", "readme.bin"], b""
    )
    train, test = find(tmp_path, "nmnist", files)
    assert listed(train) == [("Train/0/00001.bin", 0), ("Train/3/00002.bin", 3)]
    assert listed(test) == [("Test/9/00001.bin", 9)]


def test_the_index_of_cifar10_dvs_is_the_last_hundred_of_each_class_by_name():
    names = sorted(f"cifar10_cat_{number}.aedat" for number in range(1000))
    last = {int(name.removesuffix(".aedat").rpartition("_")[2]) for name in names[900:]}
    assert cifar10_dvs_test_numbers() == last
    assert len(last) == 100


@pytest.mark.parametrize("suffix", ["aedat", "npz"])
def test_cifar10_dvs_is_split_by_the_index(tmp_path, suffix):
    files = {
        f"{name}/cifar10_{name}_{number}.{suffix}": b""
        for name in CIFAR10_CLASSES
        for number in (0, 91, 100, 900, 909, 999)
    }
    train, test = find(tmp_path, "cifar10-dvs", files)
    assert len(train) == len(test) == 30
    assert {recording.label for recording in test} == set(range(10))
    assert all(f"{CIFAR10_CLASSES[recording.label]}_" in recording.file for recording in train)
    numbers = {int(r.file.removesuffix("." + suffix).rpartition("_")[2]) for r in test}
    assert numbers == {91, 909, 999}


def test_cifar10_dvs_recordings_are_turned_upright_once():
    one = [
        np.array([v], t) for v, t in ((5, np.int64), (3, np.uint16), (10, np.uint16), (1, np.uint8))
    ]
    turned = LAYOUTS["cifar10-dvs"].upright(Events(*one), "a.aedat")
    assert [int(v[0]) for v in (turned.t, turned.x, turned.y, turned.p)] == [5, 117, 124, 0]
    again = LAYOUTS["cifar10-dvs"].upright(turned, "a.npz")
    assert again is turned


GESTURE_LABELS = "class,startTime_usec,endTime_usec\n1,100,200\n11,250,300\n1,310,400\n"


def gestures(labels=GESTURE_LABELS):
    return {
        "DvsGesture/trials_to_train.txt": "user01_led.aedat\n\n",
        "DvsGesture/trials_to_test.txt": "user24_lab.aedat\n",
        "DvsGesture/user01_led.aedat": b"",
        "DvsGesture/user01_led_labels.csv": labels,
        "DvsGesture/user24_lab.aedat": b"",
        "DvsGesture/user24_lab_labels.csv": "class,startTime_usec,endTime_usec\n2,0,9\n",
    }


def test_gestures_are_parts_of_recordings_and_split_by_lists(tmp_path):
    train, test = find(tmp_path, "dvs-gesture", gestures())
    assert [(r.label, r.times) for r in train] == [
        (0, (100, 200)),
        (10, (250, 300)),
        (0, (310, 400)),
    ]
    assert [(r.file, r.label, r.times) for r in test] == [
        ("DvsGesture/user24_lab.aedat", 1, (0, 9))
    ]


def test_gestures_may_be_npz_files(tmp_path):
    files = dict.fromkeys(["events_np/train/10/a_0.npz", "events_np/test/0/b_0.npz"], b"")
    train, test = find(tmp_path, "dvs-gesture", files)
    assert listed(train) == [("events_np/train/10/a_0.npz", 10)]
    assert listed(test) == [("events_np/test/0/b_0.npz", 0)]


@pytest.mark.parametrize(
    "labels", ["class\n1,2\n", "class,a,b\nx,1,2\n", "class,a,b\n12,1,2\n", "class,a,b\n1,5,5\n"]
)
def test_a_damaged_table_of_gestures_is_named(tmp_path, labels):
    with pytest.raises(CorruptSample, match=r"user01_led_labels\.csv"):
        find(tmp_path, "dvs-gesture", gestures(labels))


def test_missing_lists_and_foreign_names_are_refused(tmp_path):
    with pytest.raises(FormatError, match=r"trials_to_train\.txt"):
        find(tmp_path / "a", "dvs-gesture", {"user01_led.aedat": b""})
    with pytest.raises(FormatError, match=r"cup\.aedat"):
        find(tmp_path / "b", "cifar10-dvs", {"cat/cup.aedat": b""})


def test_objects_are_windows_of_300_ms_of_both_days(real_data):
    archive = open_archive(str(real_data / "dvs128-objects/dvs128_objects_aedat.zip"))
    train, test = LAYOUTS["dvs128-objects"].find(archive)
    assert (len(train), len(test)) == (678, 313)
    assert {recording.label for recording in train} == {recording.label for recording in test}
    assert not {recording.file for recording in train} & {recording.file for recording in test}
    assert all(recording.times[1] - recording.times[0] == 300_000 for recording in train)
