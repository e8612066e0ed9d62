"""Real full disks: train on a file system of a few kilobytes, then enlarge it.

Runs inside a mount namespace of its own (no privileges needed where user namespaces are allowed):

    unshare -Urm python tests/faults/full_disk.py FOLDER --trials 100

Prints one JSON object. Half of the trials skip the check of the free space before a write, so that
the write itself fails.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import tiny

from lbq import atomic_files
from lbq.errors import RunError
from lbq.train import RunOptions, train
from lbq.train.checkpoint import CheckpointFolder

OPTIONS = RunOptions(device="cpu", log_every=1, save_every_steps=1, save_every_s=1e9)


def in_child(function):
    """Run a function in a forked process; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            function()
            code = 0
        except RunError:
            code = 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def trial(recipe, expected, disk, rng):
    """Train on a small disk, enlarge it, and resume from the last valid checkpoint."""
    disk.mkdir()
    size, checks_space = rng.randrange(30_000, 260_000), rng.random() < 0.5
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        if not checks_space:
            atomic_files.check_space = lambda folder, num_bytes: None
        out = disk / "run"
        code = in_child(lambda: train(recipe, out, OPTIONS))
        folder = CheckpointFolder(out / "checkpoints")
        found = folder.load_newest()
        assert code in (0, 1), code
        assert not list(out.rglob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=20M", disk], check=True)
        assert in_child(lambda: train(recipe, out, OPTIONS)) == 0
        assert tiny.final_hashes(out) == expected
        return {"bytes": size, "gave_up": code == 1, "good_step": found.step if found else 0}
    finally:
        subprocess.run(["umount", disk], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    recipe = tiny.tiny_recipe(epochs=2)
    assert in_child(lambda: train(recipe, arguments.folder / "reference", OPTIONS)) == 0
    expected = tiny.final_hashes(arguments.folder / "reference")
    rng, found, failures = random.Random(arguments.seed), [], []
    real = atomic_files.check_space
    for number in range(arguments.trials):
        atomic_files.check_space = real
        try:
            found.append(trial(recipe, expected, arguments.folder / str(number), rng))
        except AssertionError as error:
            failures.append(f"trial {number}: {error}")
    sys.stdout.write(json.dumps({"passed": len(found), "failures": failures, "trials": found}))


if __name__ == "__main__":
    main()
