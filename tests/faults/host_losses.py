"""Two network namespaces as two hosts: one is lost and comes back, or packets between them are.

    sudo python tests/faults/host_losses.py --losses 20 --drops 30 100 --out host-losses.json

Every host runs the loop of docs/scaling.md: torchrun, started again when it fails. A run of a
small network in canonical mode is disturbed once. It must end with the bits of an undisturbed run
of one process. Needs root, `ip` and `nft`; both hosts share the file system and the cores. A
record that exists is continued, so that many trials can be run in pieces.
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import tiny
import trials

from lbq.train.provenance import git_commit
from lbq.train.recipe import write_recipe

AWAY_S = 3.0
"""How long a lost host stays away."""
DROPPED_S = 30.0
"""How long packets are dropped."""
TIMEOUT_S = {"lost host": 10, "dropped packets": 120}
"""--timeout-s of the runs."""
SAVE_EVERY_STEPS = 3
LIMIT_S = 600
"""Longest wait for anything."""


class Host:
    """A network namespace with one end of the link, and the training loop in it."""

    def __init__(self, number):
        self.name = f"lbq-{os.getpid()}-{number}"
        self.address = f"10.213.0.{number + 1}"
        self.is_rendezvous = number == 0
        self.loop = None
        ip("netns", "add", self.name)

    def set_link(self, state):
        ip("-n", self.name, "link", "set", "eth0", state)

    def start(self, recipe, out, timeout_s):
        """Start the loop that docs/scaling.md gives for several machines."""
        torchrun = f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1"
        torchrun += " --rdzv-backend c10d --rdzv-endpoint 10.213.0.1:29500 --rdzv-id 1"
        torchrun += f" --rdzv-conf is_host={int(self.is_rendezvous)} --local-addr {self.address}"
        torchrun += " --max-restarts 0 -m lbq.cli"
        train = f"train {shlex.quote(str(recipe))} --out {shlex.quote(str(out))} --device cpu"
        train += f" --log-every 1 --save-every-steps {SAVE_EVERY_STEPS} --timeout-s {timeout_s}"
        script = f"until {torchrun} {train}; do sleep 1; done"
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        with Path(f"{out}-{self.address}.log").open("a") as log:
            self.loop = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "bash", "-c", script],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )

    def kill(self):
        """SIGKILL every process of the host."""
        while pids := ip("netns", "pids", self.name).split():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.05)
        if self.loop is not None:
            self.loop.wait()

    def drop(self, percent):
        """Drop that share of the packets that arrive."""
        rule = f'iifname "eth0" numgen random mod 100 <= {percent - 1} drop'
        self._nft("add table inet faults")
        self._nft("add chain inet faults arriving { type filter hook input priority 0; }")
        self._nft(f"add rule inet faults arriving {rule}")

    def drop_nothing(self):
        self._nft("delete table inet faults")

    def _nft(self, rules):
        subprocess.run(["ip", "netns", "exec", self.name, "nft", rules], check=True)


def ip(*words):
    return subprocess.run(["ip", *words], check=True, text=True, stdout=subprocess.PIPE).stdout


@contextmanager
def two_hosts():
    """Two hosts and the link between them."""
    hosts = []
    try:
        hosts += [Host(0)]
        hosts += [Host(1)]
        one, other = hosts
        link = ["netns", one.name, "type", "veth", "peer", "name", "eth0", "netns", other.name]
        ip("link", "add", "eth0", *link)
        for host in hosts:
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.name, "link", "set", "lo", "up")
            host.set_link("up")
        yield hosts
    finally:
        for host in hosts:
            host.kill()
            ip("netns", "del", host.name)


def undisturbed(folder, recipe):
    """Train in one process; return the hashes of its final state."""
    out, path = folder / "undisturbed", folder / "recipe.json"
    path.write_text(write_recipe(recipe))
    train = [sys.executable, "-m", "lbq.cli", "train", path, "--out", out, "--device", "cpu"]
    subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
    return tiny.final_hashes(out)


def disturbed(folder, recipe, expected, disturb, timeout_s):
    """Train on two hosts while ``disturb(hosts, out)`` runs; it must end bit-exact."""
    out, path = folder / "run", folder / "recipe.json"
    folder.mkdir()
    path.write_text(write_recipe(recipe))
    with two_hosts() as hosts:
        try:
            for host in hosts:
                host.start(path, out, timeout_s)
            trials.wait_for(lambda: trials.num_logged(out) > SAVE_EVERY_STEPS, LIMIT_S)
            found = disturb(hosts, out)
            trials.wait_for(lambda: all(host.loop.poll() == 0 for host in hosts), LIMIT_S)
            assert tiny.final_hashes(out) == expected, "other bits than the undisturbed run"
        except AssertionError as error:
            logs = [log.read_text()[-2000:] for log in sorted(folder.glob("*.log"))]
            raise AssertionError("\n".join([str(error), *logs])) from error
    return found | {"resumed": len(trials.records(out, "resume"))}


def lose_host(number, rng):
    """Cut the link of a host and kill its processes; it comes back and starts its loop again."""

    def disturb(hosts, out):
        time.sleep(rng.uniform(0, 0.5))
        before = trials.num_logged(out)
        lost, start = hosts[number], time.monotonic()
        lost.set_link("down")
        lost.kill()
        time.sleep(AWAY_S)
        lost.set_link("up")
        lost.start(out.with_name("recipe.json"), out, TIMEOUT_S["lost host"])
        trials.wait_for(lambda: trials.num_logged(out) > before, LIMIT_S)
        assert any(host.loop.poll() is None for host in hosts), "the run was over before the loss"
        return {"host": number, "recovery_s": round(time.monotonic() - start, 2)}

    return disturb


def drop_packets(percent):
    """Drop packets in both directions for half a minute."""

    def disturb(hosts, out):
        for host in hosts:
            host.drop(percent)
        before = trials.num_logged(out)
        time.sleep(DROPPED_S)
        during = trials.num_logged(out) - before
        assert not trials.records(out, "finish"), "the run was over before the packets were back"
        for host in hosts:
            host.drop_nothing()
        start, before = time.monotonic(), trials.num_logged(out)
        trials.wait_for(lambda: trials.num_logged(out) > before, LIMIT_S)
        return {
            "dropped_percent": percent,
            "steps_meanwhile": during,
            "next_step_after_s": round(time.monotonic() - start, 2),
        }

    return disturb


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--losses", type=int, default=20, help="how many hosts are lost")
    parser.add_argument("--drops", type=int, nargs="*", default=[], help="percents of packets")
    parser.add_argument("--out", type=Path, required=True, help="the record, JSON")
    arguments = parser.parse_args()
    record = {"lost host": [], "dropped packets": [], "failures": []}
    if arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    first = len(record["lost host"])
    faults = [("dropped packets", drop_packets(percent)) for percent in arguments.drops]
    for number in range(first, first + arguments.losses):
        faults.append(("lost host", lose_host(number % 2, Random(number))))
    recipe = tiny.tiny_recipe(epochs=12, deterministic="canonical", shards=4)
    folder = Path(tempfile.mkdtemp(prefix="lbq-hosts-"))
    expected = undisturbed(folder, recipe)
    for number, (name, disturb) in enumerate(faults):
        place = folder / str(number)
        try:
            found = disturbed(place, recipe, expected, disturb, TIMEOUT_S[name])
            record[name].append(found)
        except AssertionError as error:
            record["failures"].append(f"{name}: {error}")
        record |= summary(record)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")
        sys.stderr.write(f"{json.dumps(record[name][-1:])} {len(record['failures'])} failed\n")
        shutil.rmtree(place)
    shutil.rmtree(folder)
    sys.exit(1 if record["failures"] else 0)


def summary(record):
    lost = record["lost host"]
    times = {number: [f["recovery_s"] for f in lost if f["host"] == number] for number in (0, 1)}
    return {
        "trials": sum(len(record[key]) for key in ("lost host", "dropped packets", "failures")),
        "passed": sum(len(record[key]) for key in ("lost host", "dropped packets")),
        "away_s": AWAY_S,
        "dropped_s": DROPPED_S,
        "timeout_s": TIMEOUT_S,
        "median_recovery_s": {n: statistics.median(t) for n, t in times.items() if t},
        "longest_recovery_s": {n: max(t) for n, t in times.items() if t},
        "date": time.strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


if __name__ == "__main__":
    main()
