"""How the benchmarks measure: interleaved rounds, and the bytes that wait for a backward."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

Run = Callable[[], object]


def interleaved(
    runs: dict[str, Run], *, rounds: int, warmups: int, device: str
) -> dict[str, list[float]]:
    """Time every run once per round, so that all of them see the same machine; in seconds.

    One thread on a CPU is timed by the time that it ran, which a busy neighbour disturbs less than
    the time that passed.
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
    """Count the bytes that wait for the backward, inputs and weights too, each storage once.

    What an autograd function hides from autograd, as an attribute of its context, is not seen.
    """
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(storage.nbytes() for storage in kept.values())


def _wait_for(device: str) -> None:
    """Wait until a GPU has done what it was told; a CPU always has."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
