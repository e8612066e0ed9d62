"""Write digests of what random networks become, to compare two commits bit for bit.

    python tests/equivalence/digests.py --seeds 0 500 --out after.jsonl
    python tests/equivalence/digests.py --compare before.jsonl after.jsonl

A line of JSON for each network. Digested are the parameters, the outputs of the trained and of the
lowered network, the integers of every backend, the bundle and its integers when read again, and the
counts of both networks. The script uses public names only, so an older commit runs it too.
"""

import argparse
import hashlib
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1])]

from random_graphs import RandomGraph  # noqa: E402
from random_networks import to_proven_integers  # noqa: E402

import lbq  # noqa: E402

BACKENDS = ("dense", "planes", "unary", "native")


def digest(*parts):
    """Return the digest of tensors, bytes and everything that has a repr."""
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, torch.Tensor):
            found.update(f"{part.dtype} {tuple(part.shape)}".encode())
            found.update(part.detach().contiguous().numpy().tobytes())
        else:
            found.update(part if isinstance(part, bytes) else repr(part).encode())
    return found.hexdigest()[:16]


def tensors(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


def table_parts(table):
    """Return the figures of a table of counts."""
    return (
        table.num_images,
        table.timesteps,
        table.synapses,
        table.edges,
        table.layers,
        table.products,
    )


@torch.no_grad()
def digests(seed, folder):
    """Return the digests of one network by name."""
    model = RandomGraph(seed)
    raw = model.inputs()
    images = (raw.float() / 255 - 0.4) / 0.25
    found = {"seed": seed, "parameters": digest(*model.state_dict().values())}
    found["trained"] = digest(*tensors(model(images)))
    try:
        lowered = lbq.lower(model, images, batch_axis=model.batch_axis)
    except lbq.LBQError:
        return found | {"lowered": "refused"}
    found["lowered"] = digest(*tensors(lbq.run_network(lowered, images, backend="dense")))
    channels = lowered.input_shape[0]
    net = to_proven_integers(
        lowered,
        bits=(4, 8, 16)[seed % 3],
        pixels=lbq.Pixels(mean=[0.4] * channels, std=[0.25] * channels),
        calibration=images if seed % 2 else None,
    )
    for backend in BACKENDS:
        found[backend] = digest(*tensors(lbq.run_network(net, raw, backend=backend)))
    lbq.save_network(net, folder / "net.lbq")
    found["bundle"] = digest((folder / "net.lbq").read_bytes())
    again = lbq.load_network(folder / "net.lbq")
    found["read again"] = digest(*tensors(lbq.run_network(again, raw, backend="dense")))
    counter = lbq.OpCounter(lowered)
    lbq.run_network(lowered, images, backend="dense", watch=counter)
    found["counts, lowered"] = digest(*table_parts(counter.table()))
    table = lbq.count_ops(model, images, batch_axis=model.batch_axis)
    found["counts, trained"] = digest(*table_parts(table))
    return found


def compare(before, after):
    """Return the number of networks in both files, and of differing digests by name.

    A network that is refused has fewer digests, and must be refused in both files.
    """
    pair = [
        {row["seed"]: row for row in map(json.loads, Path(path).read_text().splitlines())}
        for path in (before, after)
    ]
    shared = sorted(pair[0].keys() & pair[1].keys())
    assert shared, "the two files have no network in common"
    differing = Counter()
    for seed in shared:
        for name, found in pair[1][seed].items():
            differing[name] += pair[0][seed].get(name) != found
    return len(shared), dict(differing)


def main():
    parser = argparse.ArgumentParser(description="Digests of random networks.")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 500), metavar=("FIRST", "END"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"))
    args = parser.parse_args()
    if args.compare:
        count, differing = compare(*args.compare)
        sys.stdout.write(json.dumps({"networks": count, "differing": differing}, indent=1) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder, args.out.open("a") as lines:
        for seed in range(*args.seeds):
            lines.write(json.dumps(digests(seed, Path(folder))) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()
