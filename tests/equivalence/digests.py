"""Write digests of what networks become, to compare two commits bit for bit.

    python tests/equivalence/digests.py --seeds 0 500 --out after.jsonl
    python tests/equivalence/digests.py --compare before.jsonl after.jsonl

A line of JSON for each random network and each pretrained one (LBQ_DATA names the folder that holds
cifar10). Digested are the parameters, the outputs of the trained and of the lowered network, the
integers of every backend, the bundle and its integers when read again, and the counts of both
networks. The script uses public names only, so an older commit runs it too.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parents[1])]

from equivalence import engines  # noqa: E402
from random_graphs import RandomGraph  # noqa: E402
from random_networks import to_proven_integers  # noqa: E402

import lbq  # noqa: E402
from lbq.pretrained import pretrained_names, pretrained_recipe  # noqa: E402

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
def digests(model, raw, images, folder, *, batch_axis, **options):
    """Return the digests of one network by name; raw is the bytes of the images.

    The options are those of ``to_fixed_point``.
    """
    found = {"parameters": digest(*model.state_dict().values())}
    found["trained"] = digest(*tensors(model(images)))
    try:
        lowered = lbq.lower(model, images, batch_axis=batch_axis)
    except lbq.LBQError:
        return found | {"lowered": "refused"}
    found["lowered"] = digest(*tensors(lbq.run_network(lowered, images, backend="dense")))
    net = to_proven_integers(lowered, **options)
    for backend in BACKENDS:
        found[backend] = digest(*tensors(lbq.run_network(net, raw, backend=backend)))
    lbq.save_network(net, folder / "net.lbq")
    found["bundle"] = digest((folder / "net.lbq").read_bytes())
    again = lbq.load_network(folder / "net.lbq")
    found["read again"] = digest(*tensors(lbq.run_network(again, raw, backend="dense")))
    counter = lbq.OpCounter(lowered)
    lbq.run_network(lowered, images, backend="dense", watch=counter)
    found["counts, lowered"] = digest(*table_parts(counter.table()))
    table = lbq.count_ops(model, images, batch_axis=batch_axis)
    found["counts, trained"] = digest(*table_parts(table))
    return found


def random_network(seed, folder):
    """Return the digests of a random network."""
    model = RandomGraph(seed)
    channels, raw = model.input_shape[0], model.inputs()
    images = (raw.float() / 255 - 0.4) / 0.25
    return digests(
        model,
        raw,
        images,
        folder,
        batch_axis=model.batch_axis,
        bits=(4, 8, 16)[seed % 3],
        pixels=lbq.Pixels(mean=[0.4] * channels, std=[0.25] * channels),
        calibration=images if seed % 2 else None,
    )


def pretrained_network(name, folder):
    """Return the digests of a pretrained network for 100 images of the test set."""
    recipe = pretrained_recipe(name)
    normalization = recipe.data.augment.normalization
    pixels = lbq.Pixels(mean=normalization.mean, std=normalization.std)
    raw, images = engines.cifar10_bytes(Path(os.environ["LBQ_DATA"]) / "cifar10", 100, recipe)
    model = lbq.load_pretrained(name)
    return digests(model, raw, images, folder, batch_axis=0, bits=8, pixels=pixels)


def compare(before, after):
    """Return the number of networks in both files, and of differing digests by name.

    A network that is refused has fewer digests, and must be refused in both files.
    """
    pair = [
        {row.pop("network"): row for row in map(json.loads, Path(path).read_text().splitlines())}
        for path in (before, after)
    ]
    shared = pair[0].keys() & pair[1].keys()
    assert shared, "the two files have no network in common"
    differing = Counter()
    for name in shared:
        for what, found in pair[1][name].items():
            differing[what] += pair[0][name].get(what) != found
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
    networks = dict.fromkeys(pretrained_names(), pretrained_network)
    networks |= dict.fromkeys(range(*args.seeds), random_network)
    with tempfile.TemporaryDirectory() as folder, args.out.open("w") as lines:
        for name, of_network in networks.items():
            row = {"network": name, **of_network(name, Path(folder))}
            lines.write(json.dumps(row) + "\n")
            lines.flush()


if __name__ == "__main__":
    main()
