"""Interleaved timing, the bytes saved for the backward pass, and records."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], object]
ONEDNN_CAPS = {
    "avx2": "AVX2",
    "avx2vnni": "AVX2_VNNI",
    "avx512": "AVX512_CORE",
    "avx512vnni": "AVX512_CORE_VNNI",
    "amx": "AVX512_CORE_AMX",
}
"""Instruction sets of the engine, and their names in oneDNN."""


def interleaved(
    runs: dict[str, Run], *, rounds: int, warmups: int, device: str
) -> dict[str, list[float]]:
    """Time every run once per round, in seconds, so that all of them see the same conditions.

    With one thread on a CPU it is CPU time: co-running jobs affect it less than wall time.
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


def bytes_kept(forward: Callable[[], Tensor]) -> int:
    """Count the bytes that the graph of a forward pass keeps, inputs and weights included.

    Each storage is counted once, whether autograd saved it unchanged, hooks packed it, or an
    autograd function stored it as an attribute of its context.
    """
    kept: dict[int, torch.UntypedStorage] = {}
    seen: set[Any] = set()
    result = forward()
    nodes = [result.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        for tensor in _tensors_of(node):
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
    return sum(storage.nbytes() for storage in kept.values())


def _tensors_of(node: Any) -> Iterator[Tensor]:
    """Yield the tensors that an autograd node saved, and the attributes of its context."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            saved = getattr(node, name)
            for each in saved if isinstance(saved, tuple) else (saved,):
                yield from _tensors_in(each.data)
    yield from _tensors_in(getattr(node, "__dict__", None))


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _tensors_in(vars(value))


def write_record(out: Path | None, record: Mapping[str, object]) -> None:
    """Write a record as JSON, if a path was given."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(record, indent=1) + "\n")


def on_each_isa(isas: Iterable[str]) -> dict[str, Any]:
    """Run this program once per instruction set, without ``--isas``; return the records.

    A process is limited when it starts: the engine by ``LBQ_ISA``, oneDNN and OpenVINO by
    ``ONEDNN_MAX_CPU_ISA``. ONNX Runtime has no such option.
    """
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--isas", nargs="+")
    own.add_argument("--out")
    others = own.parse_known_args()[1]
    records: dict[str, Any] = {}
    for isa in isas:
        print(f"\n== {isa}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "record.json"
            limits = {"LBQ_ISA": isa, "ONEDNN_MAX_CPU_ISA": ONEDNN_CAPS[isa]}
            command = [sys.executable, sys.argv[0], *others, "--out", str(out)]
            subprocess.run(command, env=os.environ | limits, check=True)  # noqa: S603 -- ourselves
            records[isa] = json.loads(out.read_text())
    return records


def _wait_for(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
