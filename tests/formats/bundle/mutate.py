"""Damaged and hostile bundles by the thousand: each is refused with our error, or runs.

    python tests/formats/bundle/mutate.py --count 100000 --out results/faults/bundle-mutations.json

Half of the mutants carry a right digest, so that the rules behind it are reached.
"""

import argparse
import collections
import copy
import json
import math
import random
import resource
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from bundles import EditableBundle, tiny_network

from lbq.config_io import parse_json
from lbq.errors import LBQError
from lbq.formats import load_network, save_network
from lbq.formats.bundle.bundle import check_regions
from lbq.formats.bundle.container import read_file, read_tensor_table, unpack, view_tensor
from lbq.formats.bundle.manifest import KINDS, read_manifest
from lbq.formats.bundle.validation import build, check_graph
from lbq.graph import prove
from lbq.runtime import run_network

SECONDS = 1.0
"""No mutant may take longer."""
SLACK_MB = 64
"""Nor may all of them together take more memory than this beyond the start."""
RUNNABLE = 2**17
"""Values of all nodes and timesteps that are run here; larger networks are only loaded."""

VALUES = [0, 1, 2, 3, -1, 7, 255, 256, 4096, 4097, 2**16, 2**31 - 1, 2**31, 2**63, 10**30]
VALUES += [True, False, None, "", "input", "none", "F32", "I8", "zeros", *KINDS]
VALUES += ["\ud800", "é" * 200]
VALUES += [[], {}, [1], [1, 1], [0, 0], [65536, 65536], 0.0, -0.5, 1.5, 1e308, float("nan")]


def places(tree, found=None):
    """List every (container, key) of a document."""
    found = [] if found is None else found
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        found.append((tree, key))
        if isinstance(value, dict | list):
            places(value, found)
    return found


def edit(tree, rng):
    """Change one place of a document, gently or not."""
    box, key = rng.choice(places(tree))
    value = box[key]
    how = rng.randrange(10)
    if how == 0 and type(value) is int:
        box[key] = rng.choice([value + 1, value - 1, 2 * value, -value])
    elif how == 1:
        del box[key]
    elif how == 2:
        other, name = rng.choice(places(tree))
        other[name], box[key] = copy.deepcopy(value), copy.deepcopy(other[name])
    elif how == 3 and isinstance(box, list):
        box.insert(rng.randrange(len(box) + 1), copy.deepcopy(value))
    elif how == 4 and isinstance(box, dict):
        box[rng.choice(["_target_", "extra", "path", "bits"])] = rng.choice(VALUES)
    elif how >= 5:  # something of the same type, from elsewhere or a favourite
        others = [b[k] for b, k in places(tree)] + VALUES
        alike = [other for other in others if type(other) is type(value) and other != value]
        box[key] = copy.deepcopy(rng.choice(alike or VALUES))
    else:
        box[key] = rng.choice(VALUES)


def mutate(data, rng):
    """Return a mutant of a bundle."""
    how = rng.choice(["flip", "cut", "splice", "manifest", "manifest", "table", "numbers", "text"])
    raw = bytearray(data)
    if how == "flip":
        for _ in range(rng.choice([1, 1, 8])):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        return how, bytes(raw)
    if how == "cut":
        size = rng.randrange(len(raw))
        return how, bytes(raw[:size] if rng.random() < 0.8 else raw + raw[:size])
    if how == "splice":
        first, second = sorted(rng.sample(range(len(raw)), 2))
        at = rng.randrange(len(raw))
        return how, bytes(raw[:at] + raw[first:second] + raw[at + (second - first) :])
    draft = EditableBundle(data)
    if how == "numbers":
        for _ in range(rng.choice([1, 4])):
            value = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            draft.numbers[rng.randrange(len(draft.numbers))] = value
        if rng.random() < 0.5 and draft.manifest["logit_scale"] is not None:
            write_true_bounds(draft)
        return how, draft.pack()
    if how == "text":  # the JSON itself, its digest right
        part = rng.choice(["manifest", "table"])
        text = bytearray(json.dumps(getattr(draft, part)).encode())
        text[rng.randrange(len(text))] = rng.choice(b'{}[]",:0129e.-\\\x00\xff tfn')
        return how, draft.pack(**{part: bytes(text)})
    for _ in range(rng.choice([1, 1, 2])):
        edit(getattr(draft, how), rng)
    return how, draft.pack()


def write_true_bounds(draft):
    """Write the bounds that hold into a draft, so that a change of its numbers can be accepted."""
    content = unpack(bytearray(draft.pack()))
    try:
        manifest = read_manifest(parse_json(content.manifest, "it"))
        check_regions(manifest, read_tensor_table(content.payload))
        network = build(manifest, partial(view_tensor, content.payload))
        bounds = prove(network)
    except LBQError:
        return
    for node in draft.manifest["nodes"]:
        if node["bound"] is not None:
            bound = bounds[node["path"]]
            node["bound"] = {"low": bound.low, "high": bound.high, "bits": bound.bits}


def size_of(path):
    """Count the values of all nodes and timesteps of a bundle that was accepted."""
    read = read_manifest(parse_json(read_file(path).manifest, "it"))
    return read.timesteps * sum(math.prod(info.shape) for info in check_graph(read).values())


def attempt(path):
    """Load and run a mutant; say how it ended. Anything but our own error escapes."""
    try:
        network = load_network(path)
    except LBQError as error:
        return f"refused: {getattr(error, 'rule', type(error).__name__)}"
    if size_of(path) > RUNNABLE:
        return "loaded, too large to run here"
    answer = run_network(network, network.example(2), backend="dense")
    assert answer.shape[-2] == 2
    return "ran"


def mutants(count, seed):
    """Attempt so many mutants; return outcomes by kind of mutation, and the slowest."""
    rng = random.Random(seed)
    outcomes = collections.Counter()
    slowest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.lbq"
        originals = []
        for is_integer in (True, False):
            save_network(tiny_network(is_integer=is_integer), path)
            originals.append(path.read_bytes())
        for _ in range(count):
            how, data = mutate(rng.choice(originals), rng)
            path.write_bytes(data)
            start = time.process_time()  # a busy machine is not our fault
            try:
                outcome = attempt(path)
            except BaseException:
                Path(tempfile.gettempdir(), "escaped.lbq").write_bytes(data)  # to look at
                raise
            seconds = time.process_time() - start
            slowest = max(slowest, seconds)
            assert seconds < SECONDS, (how, outcome, seconds)
            outcomes[f"{how}: {outcome}"] += 1
    return outcomes, slowest


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    mutants(50, seed=-1)  # what torch loads on first use
    before, start = peak_mb(), time.perf_counter()
    outcomes, slowest = mutants(options.count, options.seed)
    grown = peak_mb() - before
    assert grown < SLACK_MB, f"{grown:.0f} MB"
    report = {
        "count": options.count,
        "seed": options.seed,
        "outcomes": dict(sorted(outcomes.items())),
        "seconds": round(time.perf_counter() - start, 1),
        "slowest_seconds": round(slowest, 4),
        "peak_memory_mb": round(peak_mb(), 1),
        "peak_memory_grown_mb": round(grown, 1),
    }
    text = json.dumps(report, indent=1) + "\n"
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
