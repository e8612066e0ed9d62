"""The long form of the fault tests; its records are in results/faults.

    python tests/faults/long_trials.py P1 P2 P3 P6 P8 P9 D1 --out results/faults

P1  200 SIGKILLs at random moments, 20 per run          bit-exact, at most 3 steps lost   6 min
P2  50 SIGKILLs of one of two ranks, under the supervisor   bit-exact, all restarted     20 min
P3  100 SIGTERMs, one and two ranks             no step lost, exit 143, within 30 s      10 min
P6  100 full disks (tmpfs)        the last valid checkpoint loads, the run resumes         5 min
P8  1,000 flipped bits and 200 truncations                         1,200 noticed          1 min
P9  100 SIGKILLs with a moving average and accumulation, 20 per run     bit-exact         5 min
D1  canonical mode for 1, 2, 4 ranks and 1 -> 4 -> 2, three recipes     one SHA-256       2 min

Times are those of two idle cores. `--scale 0.1` does a tenth of the trials; `--start 10` uses
other seeds and writes its own record, so that many trials can be run in pieces.
"""

import argparse
import json
import logging
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import tiny
import trials
from worker_pool import WorkerPool

from lbq.config_io import to_document
from lbq.train.provenance import git_commit

HERE = Path(__file__).parent


def repeat(count, trial):
    """Run a trial many times; return the results and the failures."""
    seen, failures = [], []
    for number in range(count):
        try:
            seen.append(trial(number))
        except (AssertionError, TimeoutError) as error:
            failures.append(f"trial {number}: {error}")
        if 10 * (number + 1) % count < 10:
            sys.stderr.write(f"{number + 1} of {count}, {len(failures)} failed\n")
    return seen, failures


def p1(pool, folder, scale, start):
    recipe, expected = trials.reference(pool, tiny, folder, epochs=25)
    chains = max(1, round(10 * scale))

    def chain(number):
        out, rng = folder / f"run{number}", Random(start + number)
        return trials.kill_chain(pool, tiny, out, recipe, expected, kills=20, interval=3, rng=rng)

    seen, failures = repeat(chains, chain)
    return {
        "trials": 20 * chains,
        "passed": sum(found["kills"] for found in seen),
        "most_steps_lost": max((found["most_steps_lost"] for found in seen), default=None),
        "failures": failures,
    }


def p2(pool, folder, scale, start):
    recipe = tiny.tiny_recipe(epochs=40)
    _, expected = trials.reference(pool, tiny, folder, world=2, epochs=40)
    count = max(1, round(50 * scale))

    def one(number):
        rng = Random(start + number)
        found = trials.kill_a_rank(tiny, folder / f"run{number}", recipe, expected, rng=rng)
        assert found["was_hit"], "the run was over before its rank could be killed"
        return found

    seen, failures = repeat(count, one)
    recovery = sorted(found["recovery_s"] for found in seen)
    return {
        "trials": count,
        "passed": len(seen),
        "median_recovery_s": statistics.median(recovery) if recovery else None,
        "longest_recovery_s": recovery[-1] if recovery else None,
        "failures": failures,
    }


def p3(pool, folder, scale, start):
    count = max(2, round(100 * scale))
    references = {}
    for world in (1, 2):
        place = folder / f"world{world}"
        references[world] = trials.reference(pool, tiny, place, world=world, epochs=15)

    def one(number):
        world = 1 + number % 2
        out, rng = folder / f"run{number}", Random(start + number)
        return trials.terminate(pool, tiny, out, *references[world], world=world, rng=rng)

    seen, failures = repeat(count, one)
    return {
        "trials": count,
        "passed": len(seen),
        "already_finished_when_signalled": sum(found["was_finished"] for found in seen),
        "longest_exit_s": max((found["seconds_to_exit"] for found in seen), default=None),
        "failures": failures,
    }


def p6(pool, folder, scale, start):
    count = max(1, round(100 * scale))
    command = ["unshare", "-Urm", sys.executable, HERE / "full_disk.py", folder]
    done = subprocess.run(
        [*command, "--trials", str(count)], stdout=subprocess.PIPE, check=True, text=True
    )
    found = json.loads(done.stdout)
    return {
        "trials": count,
        "passed": found["passed"],
        "runs_that_gave_up": sum(trial["gave_up"] for trial in found["trials"]),
        "failures": found["failures"],
    }


def p8(pool, folder, scale, start):
    out, options = folder / "run", {"save_every_steps": 6, "save_every_s": 1e9}
    recipe = to_document(tiny.tiny_recipe())
    pool.run("train_run", out=str(out), recipe=recipe, options=options)
    flips, cuts, rng = round(1000 * scale), round(200 * scale), Random(0)
    logging.disable(logging.ERROR)

    def one(number):
        truncate = number >= flips
        return trials.damage(out / "checkpoints", rng=rng, truncate=truncate)

    seen, failures = repeat(flips + cuts, one)
    logging.disable(logging.NOTSET)
    return {
        "trials": flips + cuts,
        "flips": flips,
        "truncations": cuts,
        "passed": len(seen),
        "failures": failures,
    }


def p9(pool, folder, scale, start):
    kills = max(1, round(20 * scale))

    def chain(number):
        changes = trials.AVERAGED[number]
        place, rng = folder / str(number), Random(start + number)
        recipe, expected = trials.reference(pool, tiny, place, epochs=8, **changes)
        found = trials.kill_chain(
            pool, tiny, place / "run", recipe, expected, kills=kills, interval=3, rng=rng
        )
        return found | {"changes": changes}

    seen, failures = repeat(len(trials.AVERAGED), chain)
    return {
        "trials": kills * len(trials.AVERAGED),
        "passed": sum(found["kills"] for found in seen),
        "most_steps_lost": max((found["most_steps_lost"] for found in seen), default=None),
        "runs": [found["changes"] for found in seen],
        "failures": failures,
    }


def d1(pool, folder, scale, start):
    forms = [{}, {"precision": "bf16", "channels_last": True}, {"precision": "fp16", "seed": 4}]

    def one(number):
        recipe = to_document(
            tiny.tiny_recipe(epochs=6, deterministic="canonical", shards=4, **forms[number])
        )
        place = folder / str(number)
        for world in (1, 2, 4):
            pool.run("train_run", world=world, out=str(place / str(world)), recipe=recipe)
        for world, stop_at in ((1, 5), (4, 14), (2, None)):
            out, options = str(place / "moving"), {"stop_at": stop_at}
            pool.run("train_run", world=world, out=out, recipe=recipe, options=options)
        found = [tiny.final_hashes(place / name) for name in ("1", "2", "4", "moving")]
        assert all(each == found[0] for each in found), found
        return found[0]

    seen, failures = repeat(len(forms), one)
    return {
        "trials": len(forms),
        "passed": len(seen),
        "sha256": [found[1]["model"] for found in seen],
        "failures": failures,
    }


FAULTS = {"P1": p1, "P2": p2, "P3": p3, "P6": p6, "P8": p8, "P9": p9, "D1": d1}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("faults", nargs="+", choices=FAULTS)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the trials to run")
    parser.add_argument("--start", type=int, default=0, help="seed of the first trial")
    parser.add_argument("--out", type=Path, help="folder for the records")
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.faults:
        folder = Path(tempfile.mkdtemp(prefix=f"lbq-{name}-"))
        pool = WorkerPool()
        start = time.time()
        try:
            found = FAULTS[name](pool, folder, arguments.scale, arguments.start)
        finally:
            pool.close()
            shutil.rmtree(folder, ignore_errors=True)
        record = {
            "fault": name,
            **found,
            "seconds": round(time.time() - start),
            "date": time.strftime("%Y-%m-%d"),
            "commit": git_commit(),
            "torch": torch.__version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        }
        failed += found["passed"] != found["trials"]
        text = json.dumps(record, indent=1)
        sys.stdout.write(text + "\n")
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            suffix = f"-{arguments.start}" if arguments.start else ""
            (arguments.out / f"{name}{suffix}.json").write_text(text + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
