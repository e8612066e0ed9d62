"""Processes that prepare batches ahead, in order, and may die.

A worker that is killed or hangs costs nothing but time: the pool is thrown away and a new one goes
on with the step that was due. What a step returns depends on the step alone, so nobody can tell.

Not torch's DataLoader: its SIGCHLD handler raises wherever the main thread happens to be, in the
middle of a training step too, and a run cannot go on from there.
"""

import os
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import multiprocessing

from lbq.errors import LoaderError

Result = TypeVar("Result")

RESTARTS = 3
TIMEOUT = 120.0
_AHEAD = 2
"""Steps that are prepared in advance, per worker."""


def map_in_order(
    task: Callable[[int], Result],
    steps: range,
    *,
    num_workers: int,
    timeout: float = TIMEOUT,
) -> Iterator[Result]:
    """Yield ``task(step)`` for every step, prepared by worker processes or, without any, here.

    Args:
        task: a pure function of the step.
        steps: consecutive steps.
        num_workers: number of processes; 0 for none.
        timeout: seconds to wait for a step before its worker counts as hung.

    Raises:
        LoaderError: if workers died or hung more than three times.
    """
    if num_workers == 0:
        yield from map(task, steps)
        return
    due, restarts = steps.start, 0
    while due < steps.stop:
        pool = _start_pool(task, num_workers)
        try:
            for result in _run(pool, range(due, steps.stop), _AHEAD * num_workers, timeout):
                yield result
                due += 1
        except (BrokenExecutor, TimeoutError) as error:
            restarts += 1
            what = "hung" if isinstance(error, TimeoutError) else "died"
            if restarts > RESTARTS:
                raise LoaderError(
                    f"a worker {what} at step {due}, after {RESTARTS} restarts; look for memory "
                    "that runs out (/dev/shm too) or storage that does not answer, or run with "
                    "num_workers=0 to see the error itself"
                ) from error
            warnings.warn(
                f"a worker {what} at step {due}; going on from there with new ones "
                f"({restarts} of at most {RESTARTS} restarts)",
                stacklevel=2,
            )
        finally:
            _kill(pool)


def _run(pool: ProcessPoolExecutor, steps: range, ahead: int, timeout: float) -> Iterator[Any]:
    """Yield the results in order, with ``ahead`` steps under way."""
    to_do = iter(steps)
    under_way: deque[Future[Any]] = deque(
        pool.submit(_run_task, step) for step in islice(to_do, ahead)
    )
    while under_way:
        yield under_way.popleft().result(timeout)
        under_way.extend(pool.submit(_run_task, step) for step in islice(to_do, 1))


def _start_pool(task: Callable[[int], Any], num_workers: int) -> ProcessPoolExecutor:
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    # torch's context sends tensors through shared memory, and a fork costs milliseconds
    context = multiprocessing.get_context("fork" if can_fork else None)
    return ProcessPoolExecutor(num_workers, context, _start_worker, (task, os.getpid()))


def _kill(pool: ProcessPoolExecutor) -> None:
    """End the workers, also those that do not listen any more."""
    processes = pool._processes  # pyright: ignore[reportPrivateUsage] -- public from 3.14 on
    for process in list((processes or {}).values()):
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)


_task: Callable[[int], Any] | None = None


def _start_worker(task: Callable[[int], Any], parent: int) -> None:
    global _task  # noqa: PLW0603 -- the one task of this process
    _task = task
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):  # the main process decides when to stop
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()


def _leave_with(parent: int) -> None:
    """End this worker when the main process is gone, even if that was killed."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _run_task(step: int) -> Any:
    assert _task is not None
    return _task(step)
