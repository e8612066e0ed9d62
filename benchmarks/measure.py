"""Interleaved timing, the bytes saved for the backward pass, and records."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

Run = Callable[[], object]


def interleaved(
    runs: dict[str, Run], *, rounds: int, warmups: int, device: str
) -> dict[str, list[float]]:
    """Time every run once per round, in seconds, so that all of them see the same conditions.

    With one thread on a CPU, CPU time: co-running jobs affect it less than wall time.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    is_alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if is_alone else time.perf_counter
    for turn in range(warmups + rounds):
        for name, run in runs.items():
            _wait_for(device)
            start = clock()
            run()
            _wait_for(device)
            if turn >= warmups:
                times[name].append(clock() - start)
    return times


def bytes_kept(run: Run) -> int:
    """Count the bytes saved for the backward pass, inputs and weights included, each storage once.

    Tensors that an autograd function stores as attributes of its context are not counted.
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storage.nbytes() for storage in kept.values())


def write_record(out: Path | None, record: Mapping[str, object]) -> None:
    """Write a record as JSON, if a path was given."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n")


def _wait_for(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
