"""Many short-lived processes for the price of one: a warm process that forks.

Importing torch takes seconds; a fork takes milliseconds. The warm process imports ``lbq.train``
once, runs nothing itself, and forks a child for every rank of every job. A job is a function of
``tests/jobs.py``, called with JSON arguments; its answer is written to a JSON file.

Run as a script it is the warm process; imported it is the client. Every wait has an end, and only
processes that were started here are ever signalled.
"""

import faulthandler
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__)
JOBS = HERE.with_name("jobs.py")
TIMEOUT_S = 120


class Job:
    """Processes that were started together, one per rank."""

    def __init__(self, pool, pids, folder):
        self.pool, self.pids, self.folder = pool, pids, folder
        self.ended = {}

    def kill(self, rank=0, number=signal.SIGKILL):
        if self.pids[rank] not in self.ended:
            os.kill(self.pids[rank], number)

    def wait(self, timeout=TIMEOUT_S):
        """Return the exit code of every rank (minus the signal if it was killed)."""
        end = time.monotonic() + timeout
        while set(self.ended) != set(self.pids):
            self.poll()
            if time.monotonic() > end:
                for rank in range(len(self.pids)):
                    self.kill(rank)
                raise TimeoutError(f"still running after {timeout} s: {self.log()}")
            time.sleep(0.005)
        return [self.ended[pid] for pid in self.pids]

    def poll(self):
        self.ended |= self.pool.ended(self.pids)
        return self.ended

    def answers(self, timeout=TIMEOUT_S):
        """Return what the function returned on every rank; fail with its log if one did not."""
        codes = self.wait(timeout)
        assert codes == [0] * len(self.pids), f"exit codes {codes}\n{self.log()}"
        names = [self.folder / f"answer-{rank}.json" for rank in range(len(self.pids))]
        return [json.loads(name.read_text()) for name in names]

    def log(self):
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*")))


class WorkerPool:
    """The client of a warm process."""

    def __init__(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, HERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._ask({"ask": "ready"})

    def start(self, function, *, world=1, **arguments):
        folder = Path(tempfile.mkdtemp(prefix="lbq-job-"))
        request = {"ask": "start", "function": function, "world": world, "folder": str(folder)}
        return Job(self, self._ask(request | {"arguments": arguments}), folder)

    def run(self, function, *, world=1, **arguments):
        return self.start(function, world=world, **arguments).answers()

    def ended(self, pids):
        answer = self._ask({"ask": "ended", "pids": pids})
        return {int(pid): code for pid, code in answer.items()}

    def close(self):
        """Ask it to leave: a process forked from this one may still hold the pipe open."""
        self._ask({"ask": "leave"})
        self.process.wait(TIMEOUT_S)
        self.process.stdin.close()
        self.process.stdout.close()

    def _ask(self, request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT_S)
        assert ready, "the warm process does not answer"
        return json.loads(self.process.stdout.readline())


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def work(jobs, request, rank, port):
    """Be one rank of a job; never returns."""
    world, folder = request["world"], Path(request["folder"])
    log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(0)
    faulthandler.dump_traceback_later(TIMEOUT_S / 2, exit=True)  # a hang tells where
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    code = 70
    try:
        answer = getattr(jobs, request["function"])(**request["arguments"])
        (folder / f"answer-{rank}.json").write_text(json.dumps(answer))
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve():
    """Fork what the client asks for until it asks to leave or closes the pipe."""
    spec = importlib.util.spec_from_file_location("jobs", JOBS)
    jobs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(jobs)
    ended = {}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        answer = "ready"
        if request["ask"] == "start":
            answer, port = [], free_port()
            for rank in range(request["world"]):
                pid = os.fork()
                if pid == 0:
                    work(jobs, request, rank, port)
                answer.append(pid)
        elif request["ask"] == "ended":
            for pid in request["pids"]:
                if pid not in ended and (found := os.waitpid(pid, os.WNOHANG))[0]:
                    ended[pid] = os.waitstatus_to_exitcode(found[1])
            answer = {pid: ended[pid] for pid in request["pids"] if pid in ended}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if request["ask"] == "leave":
            break
    os._exit(0)  # nothing here is worth an orderly end of torch


if __name__ == "__main__":
    serve()
