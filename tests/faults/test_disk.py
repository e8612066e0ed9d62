"""Full disks and damaged files: the last valid checkpoint is found and used."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
import trials

from lbq.train.checkpoint import CheckpointFolder

pytestmark = pytest.mark.multi


def test_p6_a_disk_that_fills_up_loses_no_checkpoint(pool, tiny, tmp_path):
    recipe, expected = trials.reference(pool, tiny, tmp_path, epochs=4)
    for seed in range(4):
        out = tmp_path / str(seed)
        trials.fill_the_disk(pool, tiny, out, recipe, expected, rng=Random(seed))


def test_p8_a_run_resumes_bit_for_bit_from_the_older_checkpoint(pool, tiny, tmp_path):
    recipe, expected = trials.reference(pool, tiny, tmp_path)
    out = tmp_path / "run"
    options = {"save_every_steps": 4, "save_every_s": 1e9, "stop_at": 8}
    pool.run("train_run", out=str(out), recipe=recipe, options=options)
    assert CheckpointFolder(out / "checkpoints").steps() == [4, 8]
    path = out / "checkpoints" / "000000008.training.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    job = pool.start("train_run", out=str(out), recipe=recipe)
    assert job.wait() == [0], job.log()
    assert "step 8 is damaged, falling back" in job.log()
    assert trials.records(out, "resume")[0]["step"] == 4
    assert tiny.final_hashes(out) == expected
    assert (out / "checkpoints" / "000000008.json.corrupt").exists()


def test_p4_a_run_whose_checkpoints_are_all_damaged_is_not_started_again(pool, tiny, tmp_path):
    recipe, _ = trials.reference(pool, tiny, tmp_path)
    out = tmp_path / "reference"
    for path in (out / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"")
    job = pool.start("train_run", out=str(out), recipe=recipe)
    assert job.wait() == [70]
    assert "are damaged; restore one from a backup" in job.log()


def test_p7_a_kill_during_a_save_keeps_the_checkpoint_before(pool, tiny, tmp_path):
    """A file is renamed when it is complete: a partial one has a temporary name."""
    recipe, expected = trials.reference(pool, tiny, tmp_path)
    out = tmp_path / "run"
    pool.run("train_run", out=str(out), recipe=recipe, options={"stop_at": 6})
    folder = out / "checkpoints"
    shutil.copy(folder / "000000006.model.safetensors", folder / "000000009.model.safetensors")
    half = (folder / "000000006.training.safetensors").read_bytes()[:1000]
    (folder / ".000000009.training.safetensors.tmp").write_bytes(half)
    pool.run("train_run", out=str(out), recipe=recipe)
    assert tiny.final_hashes(out) == expected
    assert not list(folder.glob(".*"))
    assert not list(folder.glob("000000009*"))


def test_p6_on_a_real_full_disk(tmp_path):
    unshare = ["unshare", "-Urm"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mount namespaces are not allowed here")
    script = Path(__file__).with_name("full_disk.py")
    command = [*unshare, sys.executable, str(script), str(tmp_path), "--trials", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert any(trial["gave_up"] for trial in found["trials"])
