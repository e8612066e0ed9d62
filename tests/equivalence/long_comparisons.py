"""The long form of the equivalence tests; its records belong into results/equivalence.

    LBQ_RUN=lbq-run python tests/equivalence/long_comparisons.py \\
        lowering transformers graphs networks images bounds \\
        c_graphs c_pocket verilog_graphs --out results/equivalence

lowering  float64: trained against lowered, every shape, block and neuron, 1,000 CIFAR-10 images
          each                                                         0 levels differ
transformers  the same for the trained pocket transformer, 10,000 CIFAR-10 images, and for
          E-SpikeFormer 5 M at 224 pixels with random weights, 200 of them     0 levels differ
graphs    500 random networks over all operators, on every engine      0 integers differ
networks  those of tests/user_networks.py: 1,000 inputs each in float64, trained against lowered,
          and in integers on every engine                              0 levels, 0 integers differ
images    the pretrained networks in 8 bits on every engine, 1,000 CIFAR-10 images each    0 differ
          (--networks names those that run; the record keeps what it has of the others)
budgets   the cost in the loss and the counter, 200 random networks, three tables    0 differ
bounds    10,000 random layers and 10,000 random operators             0 integers outside the proof
c_graphs  50 random graphs as C, gcc and clang, dense and events, against lbq-run, 1,000 random
          inputs each; in Verilog (Icarus) 3 inputs, or refused by path        0 integers differ
c_pocket  the pocket network in 8 bits as C in the same way, 1,000 CIFAR-10 images     0 differ
verilog_graphs  200 random small graphs as C and in Verilog against the int64 oracle   0 differ

``--scale 0.1`` does a tenth. LBQ_DATA names the folder that holds cifar10.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

import user_networks  # noqa: E402
from cost import test_budget  # noqa: E402
from device.test_verilog import Small, integers, simulate  # noqa: E402
from equivalence import engines  # noqa: E402
from formats.device import test_c_source  # noqa: E402
from graph import test_bounds, test_operators  # noqa: E402
from integer_oracle import run_oracle  # noqa: E402
from lowering import test_user_networks  # noqa: E402
from random_graphs import RandomGraph  # noqa: E402
from random_networks import to_proven_integers  # noqa: E402

import lbq  # noqa: E402
from lbq import neurons  # noqa: E402
from lbq.formats.device import export_verilog  # noqa: E402
from lbq.models import spikeformer_5m  # noqa: E402
from lbq.pretrained import pretrained_recipe  # noqa: E402
from lbq.train.provenance import git_commit  # noqa: E402

NEURONS = {
    "LBQ": lambda c: lbq.BurstLIF(step=lbq.LearnedStep(0.4)),
    "LBQ per channel": lambda c: lbq.BurstLIF(step=lbq.LearnedStep(0.4, channels=c)),
    "LBQ level reset": lambda c: lbq.BurstLIF(3, step=0.3, reset_mode="level"),
    "LBQ learned decay": lambda c: lbq.BurstLIF(learn_decay=True),
    "V1": lambda c: lbq.BurstLIF(step=lbq.FixedStep(), surrogate=lbq.BoxET()),
    "binary": lambda c: neurons.BinaryLIF(threshold=0.5),
    "ternary": lambda c: neurons.TernaryLIF(step=0.4),
    "ternary original": lambda c: neurons.OriginalTernaryLIF(),
    "I-LIF": lambda c: neurons.IntegerLIF(),
    "MLF": lambda c: neurons.MultiLevelLIF(),
    "LM-HT": lambda c: neurons.LMHT(2),
}
TRANSFORMER = "pocket-spikeformer-cifar10"
SHAPES = {
    "resnet18": lbq.resnet18,
    "resnet19": lbq.resnet19,
    "resnet20": lbq.resnet20,
    "resnet34": lbq.resnet34,
}


def randomised(model):
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.3)
        if isinstance(module, lbq.LearnedStep):
            module.set_(torch.empty_like(module.raw_step).uniform_(0.3, 0.8))
    return model


@torch.no_grad()
def differing(model, net, images, batch=50):
    """Count levels that differ, and levels."""
    wrong = total = 0
    for some in images.split(batch, dim=1 if images.dim() == 5 else 0):
        pair = []
        for network in (model, net):
            levels = []

            def watch(layer, t, x, into=levels):
                into.append(x)

            if network is net:
                lbq.run_network(net, some, backend="dense", watch=watch)
            else:
                with lbq.watch_levels(model, watch):
                    model(some)
            pair.append(levels)
        wrong += sum(int((a.reshape(b.shape) != b).sum()) for a, b in zip(*pair, strict=True))
        total += sum(a.numel() for a in pair[0])
    return wrong, total


def lowering(scale):
    recipe = pretrained_recipe("pocket-cifar10")
    count = max(4, round(1000 * scale))
    _, images = engines.cifar10_bytes(Path(os.environ["LBQ_DATA"]) / "cifar10", count, recipe)
    images = images.double()
    frames = (
        images[None, :, :2, ::2, ::2].clamp(min=0).round().expand(2, -1, -1, -1, -1).contiguous()
    )
    cases = [(s, b, "LBQ") for s in SHAPES for b in ("basic", "sew", "ms")]
    cases += [("resnet20", "basic", n) for n in NEURONS if n != "LBQ"]
    rows = []
    for shape, block, neuron in cases:
        torch.manual_seed(len(rows))
        model = SHAPES[shape](10, timesteps=2, width=1 / 16, block=block, neuron=NEURONS[neuron])
        model = randomised(model).double().eval()
        given = frames if shape == "resnet19" else images
        net = lbq.lower(model, given[:, :1] if shape == "resnet19" else given[:1])
        wrong, total = differing(model, net, given)
        rows.append(
            {"shape": shape, "block": block, "neuron": neuron, "levels": total, "differ": wrong}
        )
        sys.stderr.write(f"{rows[-1]}\n")
    return {"images": count, "levels_differing": sum(row["differ"] for row in rows), "cases": rows}


def transformers(scale):
    cifar10 = Path(os.environ["LBQ_DATA"]) / "cifar10"
    recipe = pretrained_recipe(TRANSFORMER)
    small, large = (
        engines.cifar10_bytes(cifar10, max(4, round(count * scale)), recipe)[1].double()
        for count in (10_000, 200)
    )
    torch.manual_seed(0)
    cases = {
        TRANSFORMER: (lbq.load_pretrained(TRANSFORMER), small, 50),
        "spikeformer-5m": (
            randomised(spikeformer_5m(1000)),
            torch.nn.functional.interpolate(large, size=(224, 224), mode="bilinear"),
            4,
        ),
    }
    rows = []
    for name, (trained, given, batch) in cases.items():
        model = trained.double().eval()
        wrong, total = differing(model, lbq.lower(model, given[:1]), given, batch)
        rows.append({"network": name, "images": len(given), "levels": total, "differ": wrong})
        sys.stderr.write(f"{rows[-1]}\n")
    return {"levels_differing": sum(row["differ"] for row in rows), "cases": rows}


def graphs(scale):
    count, wrong, engines_seen, steps = max(1, round(500 * scale)), {}, {}, {}
    for seed in range(count):
        model = RandomGraph(1000 + seed)
        inputs = model.inputs()
        net = engines.integer_network(
            model,
            inputs,
            bits=(4, 8, 16)[seed % 3],
            calibrate=seed % 2,
            batch_axis=model.batch_axis,
        )
        for name in model.names:
            steps[name] = steps.get(name, 0) + 1
        with tempfile.TemporaryDirectory() as folder:
            found = engines.disagreements(engines.answers(net, inputs, Path(folder)))
        for name, differ in found.items():
            wrong[name] = wrong.get(name, 0) + differ
            engines_seen[name] = engines_seen.get(name, 0) + 1
        if differ_now := sum(found.values()):
            sys.stderr.write(f"seed {1000 + seed}: {differ_now} differ, {found}\n")
    return {
        "graphs": count,
        "integers_differing": wrong,
        "graphs_per_engine": engines_seen,
        "steps": steps,
    }


def networks(scale):
    count, rows = max(4, round(1000 * scale)), []
    for name in sorted(user_networks.NETWORKS):
        if name in test_user_networks.REFUSED:
            continue
        row = {"network": name, "levels": 0, "differ": 0}
        for _ in range(max(1, count // 50)):
            levels, differ = test_user_networks.differing_levels(name, samples=min(50, count))
            row["levels"], row["differ"] = row["levels"] + levels, row["differ"] + differ
        if name not in test_user_networks.REAL:
            model, axis = test_user_networks.build(name)
            raw = torch.randint(
                0, 256, test_user_networks.batch_of(name, axis, count), dtype=torch.uint8
            )
            net = to_proven_integers(lbq.lower(model, raw.float(), batch_axis=axis), bits=8)
            with tempfile.TemporaryDirectory() as folder:
                found = engines.answers(net, raw, Path(folder))
            row["integers"] = len(found["dense"])
            row["integers_differing"] = engines.disagreements(found)
        rows.append(row)
        sys.stderr.write(f"{row}\n")
    return {
        "inputs_each": count,
        "levels_differing": sum(row["differ"] for row in rows),
        "integers_differing": sum(sum(row.get("integers_differing", {}).values()) for row in rows),
        "networks": rows,
    }


def images(scale, networks):
    count, rows = max(4, round(1000 * scale)), []
    for network in networks:
        model, recipe = lbq.load_pretrained(network), pretrained_recipe(network)
        pixels, inputs = engines.cifar10_bytes(
            Path(os.environ["LBQ_DATA"]) / "cifar10", count, recipe
        )
        normalization = recipe.data.augment.normalization
        given = lbq.Pixels(mean=normalization.mean, std=normalization.std)
        net = lbq.to_fixed_point(
            lbq.lower(model, inputs[:1]), pixels=given, calibration=inputs[:256]
        )
        wrong = {}
        for some in pixels.split(50):
            with tempfile.TemporaryDirectory() as folder:
                found = engines.disagreements(engines.answers(net, some, Path(folder)))
            for name, differ in found.items():
                wrong[name] = wrong.get(name, 0) + differ
            sys.stderr.write(f"{network}: {len(some)} more images, {wrong}\n")
        rows.append({"network": network, "images": count, "integers_differing": wrong})
        rows[-1] |= {"commit": git_commit()}
    return {"networks": rows}


def c_graphs(scale):
    count, num_graphs = max(4, round(1000 * scale)), max(1, round(50 * scale))
    wrong, verilog = {}, no_verilog()
    for seed in range(num_graphs):
        model = RandomGraph(6000 + seed)
        inputs, axis = model.inputs(count), model.batch_axis
        few, bits = inputs.narrow(axis, 0, 3), (4, 8, 16)[seed % 3]
        net = engines.integer_network(model, few, bits=bits, calibrate=seed % 2, batch_axis=axis)
        for name, differ in differing_in_c(net, inputs).items():
            wrong[name] = wrong.get(name, 0) + differ
        add_verilog(verilog, net, few)
        sys.stderr.write(f"graph {seed}: {wrong} {verilog}\n")
    return {
        "graphs": num_graphs,
        "inputs_each": count,
        "integers_differing": wrong,
        "verilog": verilog,
    }


def c_pocket(scale):
    count = max(4, round(1000 * scale))
    net, pixels = pocket_network(count)
    return {"images": count, "integers_differing": differing_in_c(net, pixels)}


def verilog_graphs(scale):
    count, verilog = max(1, round(200 * scale)), no_verilog()
    wrong = {"C": 0, "dense backend": 0}
    for seed in range(count):
        model = Small(100 + seed, level_set="powers" if seed % 4 == 3 else "all")
        inputs = model.inputs(3)
        net = integers(model, inputs)
        with tempfile.TemporaryDirectory() as folder:
            rows, _ = test_c_source.run_c(net, inputs, Path(folder), events=bool(seed % 2))
        values = run_oracle(net, inputs)
        expected = np.concatenate([values[path] for path in net.outputs], 1)
        dense = lbq.run_network(net, inputs, backend="dense").numpy()  # what testbenches expect
        wrong["C"] += int((rows != expected).sum())
        wrong["dense backend"] += int((dense != expected).sum())
        add_verilog(verilog, net, inputs)
        sys.stderr.write(f"graph {seed}: {wrong} {verilog}\n")
    return {"graphs": count, "integers_differing": wrong, "verilog": verilog}


def differing_in_c(net, inputs):
    """Count the integers of C that are not those of lbq-run, by compiler and kind."""
    wrong = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = folder / "net.lbq"
        lbq.save_network(net, bundle)
        expected = engines.by_lbq_run(net, inputs, bundle)["lbq-run, interpreter"]
        values = net.values()
        steps = [net.timesteps if values[path].has_time else 1 for path in net.outputs]
        sizes = [n * values[path].size for n, path in zip(steps, net.outputs, strict=True)]
        for compiler in test_c_source.COMPILERS:
            for events in (False, True):
                rows, _ = test_c_source.run_c(net, inputs, folder, events=events, compiler=compiler)
                parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
                by_time = [
                    part.reshape(len(rows), n, -1).transpose(1, 0, 2).reshape(-1)  # [T, B, n]
                    for part, n in zip(parts, steps, strict=True)
                ]
                differ = np.concatenate(by_time) != expected
                wrong[f"{compiler}, {'events' if events else 'dense'}"] = int(differ.sum())
    return wrong


def no_verilog():
    """Return an empty record for ``add_verilog``."""
    return dict.fromkeys(("graphs", "integers_differing", "refused", "refused_without_path"), 0)


def add_verilog(record, net, inputs):
    """Run a network in Icarus, or count that it is refused by the path of a node."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            export_verilog(net, Path(folder) / "net.v", samples=inputs)
        except lbq.LBQError as error:
            is_by_path = str(error).split(" ")[0] in set(net.operators)
            record["refused" if is_by_path else "refused_without_path"] += 1
            return
        record["integers_differing"] += simulate(folder, "planes")["wrong"]
        record["graphs"] += 1


def pocket_network(count):
    """Return the pretrained pocket network in integers, and images as bytes."""
    name, cifar10 = "pocket-cifar10", Path(os.environ["LBQ_DATA"]) / "cifar10"
    recipe = pretrained_recipe(name)
    pixels, inputs = engines.cifar10_bytes(cifar10, count, recipe)
    normalization = recipe.data.augment.normalization
    given = lbq.Pixels(mean=normalization.mean, std=normalization.std)
    lowered = lbq.lower(lbq.load_pretrained(name), inputs[:1])
    return lbq.to_fixed_point(lowered, pixels=given, calibration=inputs[:256]), pixels


def budgets(scale):
    count, wrong, refused, seed = max(1, round(200 * scale)), 0, 0, 0
    done = 0
    while done < count:
        model, seed = RandomGraph(3000 + seed).eval(), seed + 1
        x, axis = model.inputs().float(), model.batch_axis
        one = x.narrow(axis, 0, 1)
        try:
            for table in test_budget.COUNTS:
                budget = lbq.CostBudget(model, one, table=table, budget=0.1, batch_axis=axis)
                model(x)
                wrong += budget.cost != test_budget.counted(model, x, table, axis)
                budget.remove()
        except lbq.LBQError as error:
            refused += 1
            sys.stderr.write(f"seed {3000 + seed - 1}: {error}\n")
            continue
        done += 1
    return {"networks": count, "differ": wrong, "refused": refused}


def bounds(scale):
    count, outside = round(10_000 * scale), 0
    for seed in range(count):
        net = test_bounds.one_layer(seed, timesteps=1 + seed % 4)
        proven = test_bounds.membrane_bounds(net)["neuron"]
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randint(
            0, 256, (net.timesteps, 64, 2), dtype=torch.uint8, generator=generator
        )
        extreme = (noise > 127).to(torch.uint8) * 255
        for frames in (noise, extreme):
            for t, membrane in enumerate(test_bounds.membranes(net, frames)):
                low, high = (side.astype(int) for side in proven[t])
                outside += int(((membrane < low) | (membrane > high)).sum())
        outside += test_operators.values_outside(seed)
    return {"layers": count, "inputs_each": 128, "operators": count, "integers_outside": outside}


PARTS = {
    "lowering": lowering,
    "transformers": transformers,
    "graphs": graphs,
    "networks": networks,
    "images": images,
    "budgets": budgets,
    "bounds": bounds,
    "c_graphs": c_graphs,
    "c_pocket": c_pocket,
    "verilog_graphs": verilog_graphs,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--networks", nargs="+", default=lbq.pretrained.pretrained_names())
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    for name in arguments.parts:
        start = time.time()
        part = PARTS[name]
        part = partial(part, networks=arguments.networks) if name == "images" else part
        record = {"part": name, **part(arguments.scale)}
        if name == "images" and arguments.out and (arguments.out / "images.json").exists():
            before = json.loads((arguments.out / "images.json").read_text())["networks"]
            kept = [row for row in before if row["network"] not in arguments.networks]
            record["networks"] = kept + record["networks"]
        record |= {
            "seconds": round(time.time() - start),
            "date": time.strftime("%Y-%m-%d"),
            "commit": git_commit(),
            "torch": torch.__version__,
        }
        text = json.dumps(record, indent=1)
        sys.stdout.write(text + "\n")
        if arguments.out:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
