"""Two network namespaces as two hosts: one is lost and comes back, or packets between them are.

    sudo python tests/faults/host_losses.py --losses 20 --out results/faults/host-losses.json

Every host runs the loop of docs/scaling.md: torchrun, started again when it fails. A run of a
small network in canonical mode is disturbed once. It must end with the bits of an undisturbed run
of one process. Needs root, `ip` and `nft`; both hosts share the file system and the two cores.
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

AWAY_S = 5.0
"""How long a lost host stays away."""
DROPPED_S = 30.0
"""How long packets are dropped."""
TIMEOUT_S = 60
"""--timeout-s of the runs: longer than packets are dropped."""
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

    def start(self, recipe, out):
        """Start the loop that docs/scaling.md gives for several machines."""
        torchrun = f"{sys.executable} -m torch.distributed.run --nnodes 2 --nproc-per-node 1"
        torchrun += " --rdzv-backend c10d --rdzv-endpoint 10.213.0.1:29500 --rdzv-id 1"
        torchrun += f" --rdzv-conf is_host={int(self.is_rendezvous)} --local-addr {self.address}"
        torchrun += " --max-restarts 0 -m lbq.cli"
        train = f"train {shlex.quote(str(recipe))} --out {shlex.quote(str(out))} --device cpu"
        train += f" --log-every 1 --save-every-steps {SAVE_EVERY_STEPS} --timeout-s {TIMEOUT_S}"
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


def disturbed(folder, recipe, expected, disturb):
    """Train on two hosts while ``disturb(hosts, out)`` runs; it must end bit-exact."""
    out, path = folder / "run", folder / "recipe.json"
    folder.mkdir()
    path.write_text(write_recipe(recipe))
    with two_hosts() as hosts:
        try:
            for host in hosts:
                host.start(path, out)
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
        lost.start(out.with_name("recipe.json"), out)
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
    parser.add_argument("--drops", type=int, nargs="*", default=[30, 100], help="percents")
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    recipe = tiny.tiny_recipe(epochs=12, deterministic="canonical", shards=4)
    folder, start = Path(tempfile.mkdtemp(prefix="lbq-hosts-")), time.time()
    expected, seen, failures = undisturbed(folder, recipe), [], []
    faults = [drop_packets(percent) for percent in arguments.drops]
    faults += [lose_host(number % 2, Random(number)) for number in range(arguments.losses)]
    for number, disturb in enumerate(faults):
        try:
            seen.append(disturbed(folder / str(number), recipe, expected, disturb))
            sys.stderr.write(f"{number}: {seen[-1]}\n")
        except AssertionError as error:
            failures.append(f"trial {number}: {error}")
            sys.stderr.write(failures[-1] + "\n")
    lost = [found for found in seen if "host" in found]
    record = {
        "fault": "a host of two is lost",
        "trials": arguments.losses,
        "passed": len(lost),
        "away_s": AWAY_S,
        "recovery_s": {
            f"host {number}": _times([f["recovery_s"] for f in lost if f["host"] == number])
            for number in (0, 1)
        },
        "packets_dropped_for_s": DROPPED_S,
        "packets_dropped": [found for found in seen if "host" not in found],
        "failures": failures,
        "seconds": round(time.time() - start),
        "date": time.strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "torch": torch.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    text = json.dumps(record, indent=1)
    sys.stdout.write(text + "\n")
    if arguments.out:
        arguments.out.write_text(text + "\n")
    if not failures:
        shutil.rmtree(folder)
    sys.exit(1 if failures else 0)


def _times(seconds):
    if not seconds:
        return None
    return {"median": statistics.median(seconds), "shortest": min(seconds), "longest": max(seconds)}


if __name__ == "__main__":
    main()
