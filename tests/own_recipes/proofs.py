"""Prove that runs of users' networks end with the same bits, whatever happened on the way.

    LBQ_DATA=... python tests/own_recipes/proofs.py vgg transformer mlp --kills 20 --out results/fit

For every recipe: the SHA-256 of the last checkpoint with 0, 1, 2 and 4 loader workers, after many
SIGKILLs at random moments, and with two processes under torchrun, whole and with a killed rank. One
JSON record per recipe. spikingjelly_network needs the environment of .ci/external.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

import lbq

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

from faults.trials import children  # noqa: E402
from tiny import final_hashes  # noqa: E402


def start(name, out, *, save_every_steps=3, **options):
    """Fork a process that trains; everything is imported already, so it starts at once."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        warnings.simplefilter("ignore")  # more loader workers than cores
        options = lbq.RunOptions(
            device="cpu", log_every=1, save_every_steps=save_every_steps, **options
        )
        lbq.fit(**importlib.import_module(name).recipe(), out=out, options=options)
        code = 0
    finally:
        os._exit(code)


def wait(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def whole(name, out, **options):
    """Train without a fault; return the hashes of the last checkpoint."""
    assert wait(start(name, out, **options)) == 0
    return final_hashes(out)


def kill(name, out, expected, *, kills, longest, rng):
    """SIGKILL a run at random moments; when it finished before, start another one."""
    done, finished = 0, 0
    while done < kills:
        child = start(name, out, workers=rng.choice((0, 0, 1, 2)))
        time.sleep(rng.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        if wait(child) == 0:
            assert final_hashes(out) == expected
            shutil.rmtree(out)
            finished += 1
            continue
        done += 1
    assert whole(name, out) == expected
    return {"kills": done, "finished_before_a_kill": finished}


def torchrun(name, out, *, kill_after=None, rng=None):
    """Train with two processes; SIGKILL one of them after some seconds."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(HERE / "run.py")]
    options = {"log_every": 1, "save_every_steps": 3, "timeout_s": 60}
    process = subprocess.Popen(
        [*command, name, str(out), json.dumps(options)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        stderr=subprocess.DEVNULL,
    )
    if kill_after is not None:
        log = out / "metrics.jsonl"
        while not (log.exists() and b'"train"' in log.read_bytes()):
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(kill_after)
        os.kill(rng.choice(children(process.pid)), signal.SIGKILL)
    return process.wait(600)


def prove(name, folder, *, kills, workers=(0, 1, 2, 4), rng):
    """Return the record of one recipe; raise AssertionError if a bit differs."""
    begin = time.monotonic()
    expected = whole(name, folder / "whole")
    seconds = time.monotonic() - begin
    for count in workers:
        assert whole(name, folder / f"workers{count}", workers=count) == expected, count
    longest = max(1.0, seconds / 4)
    killed = kill(name, folder / "killed", expected, kills=kills, longest=longest, rng=rng)
    assert torchrun(name, folder / "two") == 0
    two = final_hashes(folder / "two")
    assert torchrun(name, folder / "two_killed", kill_after=seconds / 8, rng=rng) != 0
    assert torchrun(name, folder / "two_killed") == 0
    assert final_hashes(folder / "two_killed") == two
    run = lbq.load_run(folder / "killed", importlib.import_module(name).recipe()["model"])
    last = run.evaluations[-1]
    return {
        "recipe": name,
        "parameters": sum(p.numel() for p in run.model.parameters()),
        "epochs": run.config.epochs,
        "steps": run.step,
        "accuracy": last.accuracy,
        "tested": last.count,
        "sha256": expected[1],
        "same_with_workers": list(workers),
        "same_after": killed,
        "torchrun_two_processes": {"sha256": two[1], "same_after_killed_rank": True},
        "seconds_uninterrupted": round(seconds, 1),
        "torch": torch.__version__,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.recipes:
        importlib.import_module(name).recipe()  # import before the first fork
        with tempfile.TemporaryDirectory() as folder:
            rng = random.Random(f"{arguments.seed} {name}")
            record = prove(name, Path(folder), kills=arguments.kills, rng=rng)
        sys.stdout.write(json.dumps(record) + "\n")
        (arguments.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
