import numpy as np
import pytest

from lbq.data.events import Events
from lbq.data.recordings import CIFAR10_CLASSES, LAYOUTS, cifar10_dvs_test_numbers, open_archive
from lbq.errors import CorruptSample, FormatError


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return open_archive(str(folder))


def find(folder, kind, files):
    return LAYOUTS[kind].find(write(folder, files))


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


LABELS = "class,startTime_usec,endTime_usec\n1,100,200\n11,250,300\n1,310,400\n"


def gestures(labels=LABELS):
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
