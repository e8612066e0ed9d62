"""Single trials of faults, called by the tests and by long_trials.py.

A trial returns what it measured, and raises AssertionError if a guarantee does not hold. The ids
are P for processes and disks, D for distributed training, X for hostile input.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from lbq.config_io import to_document
from lbq.train.checkpoint import CheckpointFolder
from lbq.train.metrics import read_metrics_log
from lbq.train.recipe import write_recipe


def records(out, event):
    return [r for r in read_metrics_log(out / "metrics.jsonl") if r["event"] == event]


def last_step(out):
    """Return the last step in the metrics log, of any attempt."""
    steps = [record["step"] for record in records(out, "train")]
    return steps[-1] if steps else 0


def num_logged(out):
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b'"event": "train"') if path.exists() else 0


def wait_for(condition, timeout=60):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


def reference(pool, tiny, folder, *, world=1, is_taught=False, **changes):
    """Run without a fault; return recipe and hashes of the final state."""
    recipe = to_document(tiny.tiny_recipe(**changes))
    out = folder / "reference"
    options = {"save_every_s": 1e9}
    pool.run(
        "train_run", world=world, out=str(out), recipe=recipe, options=options, is_taught=is_taught
    )
    return recipe, tiny.final_hashes(out)


def kill_chain(pool, tiny, out, recipe, expected, *, kills, interval, rng, is_taught=False):
    """P1: kill a run ``kills`` times at random moments, then let it finish: bit-exact."""
    done = worst = 0
    options = {"log_every": 1, "save_every_steps": interval, "save_every_s": 1e9}
    start = {"out": str(out), "recipe": recipe, "options": options, "is_taught": is_taught}
    while done < kills:
        job = pool.start("train_run", **start)
        before = num_logged(out)
        wait_for(lambda job=job, before=before: num_logged(out) > before or job.poll())
        time.sleep(rng.uniform(0, 0.4))
        reached = last_step(out)
        job.kill()
        code = job.wait()[0]
        if code == 0:  # it finished before it was killed: start again
            assert tiny.final_hashes(out) == expected
            shutil.rmtree(out)
            continue
        assert code == -signal.SIGKILL, job.log()
        done += 1
        kept = max(CheckpointFolder(out / "checkpoints").steps(), default=0)
        worst = max(worst, last_step(out) - kept)
        assert last_step(out) - kept <= interval, (reached, kept)
    job = pool.start("train_run", **start)
    assert job.wait() == [0], job.log()
    assert tiny.final_hashes(out) == expected
    return {"kills": done, "most_steps_lost": worst}


AVERAGED = (
    {"ema_decay": 0.9, "accumulate": 2},
    {"ema_decay": 0.99, "accumulate": 4, "precision": "bf16"},
    {"ema_decay": 0.5, "accumulate": 2, "precision": "fp16", "seed": 4},
    {"ema_decay": 0.999, "accumulate": 4, "seed": 5},
    {"ema_decay": 0.9, "deterministic": "canonical", "shards": 4},
)
"""P9: settings of runs with a moving average; canonical mode has shards in place of parts."""


def terminate(pool, tiny, out, recipe, expected, *, world, rng):
    """P3: SIGTERM at a random moment, to a random rank: current step saved, exit 143."""
    options = {"log_every": 1, "save_every_s": 1e9}
    job = pool.start("train_run", world=world, out=str(out), recipe=recipe, options=options)
    wait_for(lambda: num_logged(out) > 0)
    time.sleep(rng.uniform(0, 1.0))
    start = time.monotonic()
    job.kill(rng.randrange(world), signal.SIGTERM)
    codes = job.wait(60)
    seconds = time.monotonic() - start
    finished = codes == [0] * world
    if not finished:
        assert codes == [143] * world, job.log()
        assert seconds < 30
        saved = max(CheckpointFolder(out / "checkpoints").steps())
        assert saved == last_step(out) == records(out, "stop")[-1]["step"]
        job = pool.start("train_run", world=world, out=str(out), recipe=recipe, options=options)
        assert job.wait() == [0] * world, job.log()
    assert tiny.final_hashes(out) == expected
    return {"seconds_to_exit": round(seconds, 3), "was_finished": finished}


def children(pid):
    """List the child processes of a process."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # ended meanwhile
            if int(path.read_text().rsplit(")", 1)[1].split()[1]) == pid:
                found.append(int(path.parent.name))
    return sorted(found)


def descendants(pid):
    """List the child processes of a process, and theirs."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def rank_of(pid):
    with suppress(OSError):
        for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if pair.startswith(b"RANK="):
                return int(pair.removeprefix(b"RANK="))
    return None


def kill_a_rank(tiny, out, recipe, expected, *, rng):
    """P2: SIGKILL one of two ranks under the supervisor: it is restarted, and ends bit-exact."""
    found = {}

    def kill(process):
        time.sleep(rng.uniform(0, 0.5))
        ranks = {rank_of(pid): pid for pid in descendants(process.pid)}
        victim = ranks.get(rng.randrange(2))
        found["was_hit"] = victim is not None and process.poll() is None
        start, before = time.monotonic(), num_logged(out)
        if found["was_hit"]:
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: num_logged(out) > before or process.poll() is not None, 120)
        found["recovery_s"] = round(time.monotonic() - start, 2)

    supervised(tiny, out, recipe, expected, ["--devices", "2", "--timeout-s", "30"], kill)
    return found


def kill_a_loader_worker(tiny, out, recipe, expected):
    """P2: SIGKILL a worker of the data loader: the attempt ends, the next one ends bit-exact."""
    log = out.with_suffix(".log")

    def kill(process):
        while "restarting" not in log.read_text():  # a worker runs for one epoch
            assert process.poll() is None, log.read_text()
            for trainer in children(process.pid):
                for worker in children(trainer)[:1]:
                    with suppress(ProcessLookupError):
                        os.kill(worker, signal.SIGKILL)
            time.sleep(0.3)

    supervised(tiny, out, recipe, expected, ["--workers", "2"], kill)
    return log.read_text()


def supervised(tiny, out, recipe, expected, options, disturb):
    """Train under the supervisor while ``disturb(process)`` runs: it must end bit-exact."""
    path = out.with_suffix(".json")
    path.write_text(write_recipe(recipe))
    command = [sys.executable, "-m", "lbq.cli", "train", str(path), "--out", str(out), *options]
    command += ["--supervise", "--device", "cpu", "--log-every", "1", "--save-every-steps", "3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = open(out.with_suffix(".log"), "w")  # noqa: SIM115 -- the child writes on
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        wait_for(lambda: num_logged(out) > 0 or process.poll() is not None, 120)
        disturb(process)
        code = process.wait(240)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        log.close()
    assert code == 0, out.with_suffix(".log").read_text()
    assert tiny.final_hashes(out) == expected
    assert not descendants(process.pid)


def fill_the_disk(pool, tiny, out, recipe, expected, *, rng):
    """P6: saves fail for lack of space: the last valid checkpoint loads, and the run resumes."""
    first = rng.randrange(1, 5)
    options = {"log_every": 1, "save_every_steps": 2, "save_every_s": 1e9}
    forever = rng.random() < 0.5
    fault = {"kind": "full disk", "first_save": first, "last_save": 10**6 if forever else first + 1}
    job = pool.start("train_run", out=str(out), recipe=recipe, options=options, fault=fault)
    code = job.wait()[0]
    folder = CheckpointFolder(out / "checkpoints")
    assert not list(out.rglob("*.tmp"))
    assert len(records(out, "save_failed")) == (3 if forever else 2), job.log()
    found = folder.load_newest()
    if forever:
        assert code == 70
        assert f"could not be saved: [Errno 27] File too large: '{out}" in job.log()
        assert (found.step if found else 0) == 2 * (first - 1)
        assert pool.start("train_run", out=str(out), recipe=recipe, options=options).wait() == [0]
    else:
        assert code == 0, job.log()
    assert tiny.final_hashes(out) == expected
    return {"first_failing_save": first, "for_ever": forever}


def damage(folder, *, rng, truncate):
    """P8: flip one bit of a random file of the newest checkpoint, or truncate it."""
    checkpoints = CheckpointFolder(folder)
    newest, older = checkpoints.steps()[-1], checkpoints.steps()[-2]
    path = rng.choice(sorted(folder.glob(f"{newest:09d}.*")))
    raw = path.read_bytes()
    if truncate:
        path.write_bytes(raw[: rng.randrange(len(raw))])
    else:
        bit = rng.randrange(8 * len(raw))
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
    try:
        found = checkpoints.load_newest()
        assert found is not None
        assert found.step == older, f"damage of {path.name} was not noticed"
    finally:
        path.write_bytes(raw)
