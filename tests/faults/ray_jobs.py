"""Jobs of examples/label_with_ray.py: their images, their workers, and what they wrote."""

import os
import signal
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

PROGRAM = Path(__file__).parents[2] / "examples" / "label_with_ray.py"


def write_images(folder, images, *, files):
    """Write images as Parquet files of id and raw bytes."""
    folder.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(len(images)), files)):
        rows = {"id": ids, "image": [images[i].tobytes() for i in ids]}
        parquet.write_table(pyarrow.table(rows), folder / f"{number:05d}.parquet")


def workers_of(pid):
    """List the processes under this one that hold a Predictor."""
    parents, titles = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            number = int(status.parent.name)
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
            parents[number] = int(lines["PPid"])
            titles[number] = (status.parent / "cmdline").read_bytes()
        except (OSError, KeyError):  # it has ended
            continue

    def is_under(number):
        while number in parents and number != pid:
            number = parents[number]
        return number == pid

    return [
        number
        for number, title in titles.items()
        if title.startswith(b"ray::MapWorker") and is_under(number)
    ]


def kill_one(pid, dice):
    """Kill one worker under this process; return whether there was one."""
    workers = workers_of(pid)
    if workers:
        os.kill(dice.choice(workers), signal.SIGKILL)
    return bool(workers)


def check_labels(folder, expected):
    """Fail unless every image has exactly one row, with these logits."""
    table = parquet.read_table(folder)
    ids = table["id"].to_numpy()
    assert np.array_equal(np.sort(ids), np.arange(len(expected))), "rows are missing or twice"
    logits = np.stack(table["logits"].to_numpy())
    assert np.array_equal(logits, expected[ids]), "integers"
    assert np.array_equal(table["class"].to_numpy(), expected[ids].argmax(1)), "classes"
