"""This checkout's engine, ``lower`` and ``load_network`` against another checkout's, interleaved.

    git worktree add ../before COMMIT && (cd ../before && python setup.py build_ext --inplace)
    python benchmarks/compare_builds.py ../before --out benchmarks/results/builds.json

Each checkout builds the paper's ResNet-20 (random weights, levels as sparse by stage as the
paper's) in its own process; then all do the same in turns, on one thread: the native engine runs
one image, ``lower`` an eighth of the width, ``load_network`` the bundle of that. A third process is
a second copy of this checkout: its ratio to the first shows how much of a difference is noise. The
worker uses public names only, so an older commit runs it too.
"""

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from measure import write_record

HERE = Path(__file__).parents[1]


def tasks() -> dict[str, Callable[[], object]]:
    """Build the networks; return what is timed, by name."""
    import torch  # noqa: PLC0415 -- imports are the checkout's own
    from sparse_networks import BY_STAGE, MEAN, STD, build, by_stage, make_sparse  # noqa: PLC0415

    import lbq  # noqa: PLC0415

    torch.set_num_threads(1)
    net = build()
    torch.manual_seed(1)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    net = make_sparse(net, images, by_stage(net, BY_STAGE)) or net  # before 0.3 it changed net
    answers = lbq.run_network(net, images, backend="native")
    assert isinstance(answers, torch.Tensor)
    print(hashlib.sha256(answers.double().numpy().tobytes()).hexdigest(), flush=True)
    model, example = lbq.resnet20(10, width=1 / 8).eval(), torch.zeros(1, 3, 32, 32)
    integers = lbq.to_fixed_point(lbq.lower(model, example), pixels=lbq.Pixels(mean=MEAN, std=STD))
    bundle = Path(tempfile.mkdtemp()) / "net.lbq"
    lbq.save_network(integers, bundle)
    return {
        "engine": lambda: lbq.run_network(net, images[:1], backend="native"),
        "lower": lambda: lbq.lower(model, example),
        "load_network": lambda: lbq.load_network(bundle),
    }


def worker(repeats: int) -> None:
    """For every line that arrives, print the CPU seconds of one run of the task that it names."""
    timed = tasks()
    for line in sys.stdin:
        task = timed[line.strip()]
        runs = 1 if line.strip() == "lower" else repeats
        start = time.process_time()
        for _ in range(runs):
            task()
        print((time.process_time() - start) / runs, flush=True)


def start(checkout: Path, repeats: int) -> subprocess.Popen[str]:
    """Start a worker with the package and the benchmarks of a checkout."""
    path = f"{checkout / 'src'}{os.pathsep}{checkout / 'benchmarks'}"
    line = [sys.executable, "-P", __file__, str(checkout), "--worker", "--repeats", str(repeats)]
    return subprocess.Popen(  # noqa: S603 -- ourselves
        line,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str], line: str = "") -> str:
    """Send a line, if any, and return the worker's next one."""
    assert process.stdin is not None
    assert process.stdout is not None
    if line:
        process.stdin.write(line)
        process.stdin.flush()
    got = process.stdout.readline().strip()
    if not got:
        raise SystemExit("a worker ended: its message is above")
    return got


def main() -> None:
    """Run the workers in turns; print and store the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("other", type=Path, help="a checkout with its extension built in place")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5, help="runs per turn; lower runs once")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.repeats)
        return
    checkouts = {"before": options.other.resolve(), "now": HERE, "now, again": HERE}
    workers = {name: start(checkout, options.repeats) for name, checkout in checkouts.items()}
    answers = {name: answer(process) for name, process in workers.items()}
    if len(set(answers.values())) != 1:
        raise SystemExit(f"the integers differ: {answers}")
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for task in ("engine", "lower", "load_network"):
        rows[task] = compare(task, workers, options.rounds)
        for name, row in rows[task].items():
            print(f"{task:12} {name:12}", row)
    for process in workers.values():
        process.communicate()
    write_record(options.out, {"rounds": options.rounds, "same_integers": True, "runs": rows})


def compare(
    task: str, workers: Mapping[str, subprocess.Popen[str]], rounds: int
) -> dict[str, dict[str, float]]:
    """Time a task in all workers in turns; return times and ratios by worker."""
    times: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(3 + rounds):
        for name, process in workers.items():
            taken = float(answer(process, f"{task}\n"))
            if turn >= 3:
                times[name].append(taken)
    rows: dict[str, dict[str, float]] = {}
    for name, taken in times.items():
        ratios = [own / other for own, other in zip(taken, times["before"], strict=True)]
        rows[name] = {
            "median_ms": round(1e3 * statistics.median(taken), 3),
            "min_ms": round(1e3 * min(taken), 3),
            "times_before": round(statistics.median(ratios), 4),
            "times_before_by_minima": round(min(taken) / min(times["before"]), 4),
        }
    return rows


if __name__ == "__main__":
    main()
