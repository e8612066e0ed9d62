"""The long form of the device tests; its record belongs into results/devices.json.

    LBQ_RUN=lbq-run python tests/device/measure_devices.py --runs runs --out results/devices.json

Trains the two networks of ``examples/recipes`` in ``--runs``, each with levels 0..5 and with powers
of two, unless they are trained. CIFAR-10: 1,000 test images; N-MNIST: all 1,100 recordings.

c         on the host, gcc and clang with the undefined behaviour sanitizer, dense and events,
          against lbq-run                                                     0 integers differ
board     100 samples on Cortex-M3 and M7 in QEMU: flash, memory, instructions    0 differ
verilog   all samples in Verilator, 20 in Icarus, every variant: logits, accumulations against
          the library's counts, cycles                                        0 differ
cells     Yosys, for ice40 and for generic cells

``--only`` and ``--networks`` measure a part; the record keeps what it has of the others.
LBQ_DATA names the folder with cifar10 and nmnist-1100.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "recipes")]

from device.boards import BOARDS, run_on_board  # noqa: E402
from device.test_verilog import numbers  # noqa: E402
from formats.device.test_c_source import COMPILERS, run_c  # noqa: E402

import lbq  # noqa: E402
from lbq.formats.device.verilog import VARIANTS, export_verilog  # noqa: E402
from lbq.train.provenance import git_commit  # noqa: E402

DATA = Path(os.environ["LBQ_DATA"])
NETWORKS = {
    "tiny_nmnist": {"NMNIST": str(DATA / "nmnist-1100" / "nmnist_small.zip")},
    "tiny_cifar": {"CIFAR10": str(DATA / "cifar10")},
}
PARTS = ("c", "board", "verilog", "cells")
CELLS = {
    "ice40": "synth_ice40 -top net; stat",
    "generic": "synth -top net -run begin:fine; opt -fast -full; techmap; opt -fast; abc -fast; "
    "opt_clean; stat",
}


def call(*line, **settings):
    return subprocess.run(line, check=True, capture_output=True, text=True, **settings).stdout


def trained(name, levels, runs):
    """Return the bundle of a network, which is trained if there is none."""
    bundle, recipe = runs / f"{name}-{levels}.lbq", f"{ROOT}/examples/recipes/{name}.py"
    if not bundle.exists():
        os.environ["LEVELS"] = levels
        folder = runs / f"{name}-{levels}"
        call("lbq", "train", recipe, "--out", str(folder), env=os.environ)
        call("lbq", "lower", str(folder), "--model", recipe, "--out", str(bundle), env=os.environ)
    return bundle


def samples(name):
    """Return inputs in bytes, the classes, and how many of them, at the end, are for tests."""
    if name == "tiny_cifar":
        from tiny_cifar import Images  # noqa: PLC0415 -- reads its environment

        test = Images("test")
        return test.images[:1000], test.classes[:1000], 1000
    from tiny_nmnist import Recordings  # noqa: PLC0415

    parts = [Recordings(split) for split in ("Train", "Test")]
    frames = torch.cat([part.frames for part in parts]).transpose(0, 1).contiguous()
    return frames, [c for part in parts for c in part.classes], len(parts[1])


def on_host(net, bundle, inputs, folder):
    """Compare C programs with lbq-run."""
    given = inputs.transpose(0, 1).contiguous() if net.takes_frames else inputs
    text = subprocess.run(
        [os.environ["LBQ_RUN"], bundle, "-"],
        input=given.numpy().tobytes(),
        capture_output=True,
        check=True,
    ).stdout.decode()
    header, *lines = text.splitlines()
    names = header.split(",")
    first = next(i for i, name in enumerate(names) if name.startswith("class"))
    rows = np.loadtxt(lines, delimiter=",", dtype=np.int64, ndmin=2)
    rows = rows[:, [i for i in range(first, len(names)) if not names[i].startswith("class")]]
    found = {}
    for compiler in COMPILERS:
        for events in (False, True):
            logits, source = run_c(net, inputs, folder, events=events, compiler=compiler)
            kind = "events" if events else "dense"
            found[f"{compiler}, {kind}"] = int((logits != rows).sum())
    return {"differ": found, "constants": source.flash_bytes, "static": source.ram_bytes}


def on_boards(net, inputs, folder):
    """Run 100 samples on both boards."""
    axis = 1 if net.takes_frames else 0
    some = inputs.narrow(axis, 0, 100)
    expected, rows = lbq.run_network(net, some, backend="dense").numpy(), {}
    for cpu in BOARDS:
        for events in (False, True):
            found = run_on_board(net, some, folder, cpu=cpu, events=events)
            rows[f"{cpu}, {'events' if events else 'dense'}"] = {
                "differ": int((found.logits != expected).sum()),
                "instructions": float(found.instructions.mean()),
                "flash": found.flash,
                "ram": found.ram,
            }
    return rows


def in_simulators(net, inputs, folder, variants):
    """Run the testbench of a design; compare its counter with the library's."""
    export_verilog(net, folder / "net.v", samples=inputs)
    axis, rows = 1 if net.takes_frames else 0, {}
    count = inputs.shape[axis]

    def counted(given):
        counter = lbq.OpCounter(net, net.example())
        lbq.run_network(net, given, watch=counter)
        total = counter.table().total()
        return {"unary": total.unary_acs, "planes": total.bit_sparse_acs}

    expected, few = counted(inputs), counted(inputs.narrow(axis, 0, 20))
    for variant in variants:
        number = VARIANTS.index(variant)
        line = ["verilator", "--binary", "-O3", "-CFLAGS", "-O3", f"-GVARIANT={number}"]
        line += [
            "-Wno-fatal",
            "--x-assign",
            "fast",
            "--x-initial",
            "fast",
            "--top-module",
            "net_tb",
            "--Mdir",
            f"built{number}",
            "net_tb.v",
            "net.v",
        ]
        call(*line, cwd=folder)
        started = time.time()
        seen = numbers(call(f"built{number}/Vnet_tb", cwd=folder))
        seconds = time.time() - started
        line = ["iverilog", "-g2005", f"-Pnet_tb.VARIANT={number}", "-Pnet_tb.SAMPLES=20"]
        call(*line, "-o", "sim", "net_tb.v", "net.v", cwd=folder)
        icarus = numbers(call("vvp", "-N", "sim", cwd=folder))
        key = "unary" if variant == "unary" else "planes"
        rows[variant] = {
            "samples": seen["samples"],
            "differ": seen["wrong"],
            "accumulations": seen["accumulations"],
            "accumulations_of_the_library": expected[key],
            "cycles_per_sample": seen["cycles"] / count,
            "verilator_seconds": round(seconds, 1),
            "icarus": {
                "samples": icarus["samples"],
                "differ": icarus["wrong"],
                "accumulations": icarus["accumulations"],
                "accumulations_of_the_library": few[key],
            },
        }
    return rows


def cells(folder, variants):
    """Synthesise a design."""
    rows = {}
    for variant in variants:
        for kind, script in CELLS.items():
            whole = f"read_verilog net.v; chparam -set VARIANT {VARIANTS.index(variant)} net; "
            text = call("yosys", "-p", whole + script, cwd=folder)
            stat = text[text.rindex("Number of cells:") :]
            rows[f"{variant}, {kind}"] = {
                name: int(count) for name, count in re.findall(r"^ +(\S+) +(\d+)$", stat, re.M)
            }
    return rows


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    names = [f"{name}-{levels}" for name in NETWORKS for levels in ("all", "powers")]
    parser.add_argument("--networks", nargs="+", choices=names, default=names)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    commit, record = git_commit(), {"networks": {}}
    if arguments.out and arguments.out.exists():
        record = json.loads(arguments.out.read_text())
    for name, place in NETWORKS.items():
        os.environ.update(place)
        for levels in ("all", "powers"):
            if f"{name}-{levels}" not in arguments.networks:
                continue
            row = record["networks"].setdefault(f"{name}-{levels}", {})
            for part, found in measured(name, levels, arguments):
                row[part] = found
                row.setdefault("commits", {})[part] = commit
                sys.stdout.write(f"{name}-{levels} {part}: {json.dumps(found, indent=1)}\n")
                sys.stdout.flush()
                if arguments.out:
                    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


def measured(name, levels, arguments):
    """Yield the parts of a network's record and their names."""
    bundle = trained(name, levels, arguments.runs)
    net = lbq.load_network(bundle)
    inputs, classes, tested = samples(name)
    answers = lbq.run_network(net, inputs).argmax(1)
    right = (answers == torch.tensor(classes))[-tested:]
    about = {"accuracy": float(right.double().mean()), "tested": tested}
    yield "network", about | {"bytes": bundle.stat().st_size}
    variants = VARIANTS if levels == "powers" else VARIANTS[:2]
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        if "c" in arguments.only:
            yield "c", on_host(net, bundle, inputs, folder)
        if "board" in arguments.only:
            yield "board", on_boards(net, inputs, folder)
        if "verilog" in arguments.only:
            yield "verilog", in_simulators(net, inputs, folder, variants)
        if "cells" in arguments.only:
            export_verilog(net, folder / "net.v")
            yield "cells", cells(folder, variants)


if __name__ == "__main__":
    main()
