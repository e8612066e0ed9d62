r"""Burst networks as accurate as the ReLU network that they start from, and their neighbours.

    python -m lbq_paper.accuracy train burst-7 --seed 0 --data $LBQ_DATA/cifar10
    python -m lbq_paper.accuracy measure burst-7 --seed 0 --data $LBQ_DATA/cifar10

Every network is taught by the trained ReLU network in results/training, for ``--epochs``, and the
average of its weights is kept. ``train`` goes on where it was stopped, and evaluates on the test
set once, at the end; with ``--held-out`` it trains on 45,000 images and evaluates on the other
5,000 after every epoch, to choose settings by. ``measure`` writes the record: right answers on all
test images in float32 and in integers, operations and energy, and beside it the weights.

    burst-N           the ReLU network by ``lbq.from_ann`` with levels 0..N, one timestep
    burst-N-from-M    the same, from the tuned burst-M of this seed, which ``measure`` has kept
    burst-N-budget-B  burst-N tuned to B accumulations per MAC of the ReLU network
    ann               the ReLU network itself, tuned for as many epochs
    ann-S             a ReLU network of S times the width, from scratch
    spikeformer       the pretrained spiking transformer, tuned by AdamW at a 40th of ``--lr``
    int4              levels 0..15 and, but for the first and the last layer, weights of 4 bits: a
                      4-bit ANN, which at one timestep is the same thing
"""

import argparse
import json
import re
import time
from copy import deepcopy
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parametrize

import lbq
from lbq.adapters.run_record import run_history
from lbq.cli.samples import count_answers, open_samples, sample_batches
from lbq.config_io import to_document
from lbq.cost.energy import HAN_2016, HOROWITZ_2014
from lbq.data import Data
from lbq.data.splits import Split, Splits
from lbq.neurons import named_neurons
from lbq.pretrained import pretrained_recipe
from lbq.train import (
    ModelConfig,
    OptimConfig,
    ScheduleConfig,
    TeacherConfig,
    TrainConfig,
    build_network,
)
from lbq.train.allocator import keep_freed_memory
from lbq.train.recipe import Recipe
from lbq.train.recipes import pocket_budget
from lbq_paper.checkout import ROOT
from lbq_paper.int8_ann import int8_onnx, onnx_runtime, openvino, without_time
from lbq_paper.trained_network import ann_recipe, trained_ann

HELD_OUT = 5_000
"""Training images, the last ones, that settings are chosen on."""
CALIBRATION, COUNTED = 512, 1_000
"""Training images that ranges are chosen by, and test images that operations are counted on."""
TRANSFORMER = "pocket-spikeformer-cifar10"
NAME = re.compile(r"int4|burst-\d+(?:-from-(?P<before>\d+))?(?:-budget-(?P<budget>0\.\d+))?")
MEMORIES = (
    (HAN_2016, HAN_2016.sram),
    (HOROWITZ_2014, HOROWITZ_2014.sram),
    (HOROWITZ_2014, "DRAM"),
)


@dataclass(frozen=True)
class Part:
    """Some samples of a split."""

    whole: Split
    index: NDArray[np.int64]

    @property
    def labels(self) -> NDArray[np.int64]:
        """One class per sample."""
        return self.whole.labels[self.index]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return self.whole.shape

    def read(self, index: NDArray[np.int64]) -> NDArray[Any]:
        """Read samples."""
        return self.whole.read(self.index[index])


def held_out(data: Data) -> Data:
    """Return the training set alone, with its last samples in place of the test set."""
    train = data.splits.train
    first, last = np.split(np.arange(len(train.labels)), [len(train.labels) - HELD_OUT])
    splits = Splits(
        train=Part(train, first),
        test=Part(train, last),
        num_classes=data.num_classes,
        digest=f"{data.digest}, the last {HELD_OUT} of train held out",
    )
    return replace(data, splits=splits)


class FourBits(nn.Module):
    """Weights rounded to 4 bits per output channel, with the gradient of the identity."""

    def forward(self, weight: Tensor) -> Tensor:
        """Round to -7..7 times a scale that reaches the channel's largest weight."""
        largest = weight.detach().abs().flatten(1).amax(1).clamp(min=1e-8)
        scale = (largest / 7).reshape(-1, *[1] * (weight.dim() - 1))
        rounded = (weight / scale).round().clamp(-7, 7) * scale
        return weight + (rounded - weight).detach()


def model_config(name: str) -> ModelConfig:
    """Return the structure of a network."""
    if name == "spikeformer":
        return pretrained_recipe(TRANSFORMER).model
    config = ann_recipe().model
    if found := re.fullmatch(r"ann-(0\.\d+)", name):
        return replace(config, width=config.width * float(found[1]))
    if name == "ann":
        return config
    found = re.match(r"burst-(\d+)", name)
    neuron = replace(pocket_budget().model.neuron, max_level=int(found[1]) if found else 15)
    return replace(config, neuron=neuron)


def structure(name: str) -> nn.Module:
    """Return the network of this name with the weights that torch draws."""
    return build_network(model_config(name), num_classes=10).eval()


def with_bursts(name: str, source: nn.Module, samples: Tensor) -> nn.Module:
    """Return the network of this name with the weights and steps that ``from_ann`` chose."""
    model = structure(name)
    neurons = dict(named_neurons(model))
    max_level = next(iter(neurons.values())).max_level
    chosen = lbq.from_ann(source, [samples], max_level=max_level, timesteps=1)
    known = model.state_dict()
    model.load_state_dict(known | {k: v for k, v in chosen.state_dict().items() if k in known})
    with torch.no_grad():
        for mine, (_, theirs) in zip(neurons.values(), named_neurons(chosen), strict=True):
            mine.step.load_state_dict(theirs.step.state_dict())  # pyright: ignore
        torch.testing.assert_close(model(samples), chosen(samples), rtol=1e-4, atol=1e-4)
    return model


def build(name: str, data: Data, options: argparse.Namespace) -> tuple[nn.Module, TrainConfig]:
    """Return a network as it is before tuning, and how it is tuned."""
    samples, known = calibration(data), ann_recipe()
    config = TrainConfig(
        epochs=options.epochs,
        batch=known.batch,
        optim=OptimConfig(lr=options.lr, weight_decay=options.weight_decay),
        schedule=ScheduleConfig(moves="step"),
        precision="auto",
        channels_last=True,
        ema_decay=0.999,
        teacher=TeacherConfig(weight=options.teacher_weight, temperature=2.0),
        evaluate_every=1 if options.held_out else options.epochs,
        seed=options.seed,
    )
    if name == "ann":
        return trained_ann(), config
    if name == "spikeformer":
        optim = replace(pretrained_recipe(TRANSFORMER).optim, lr=options.lr / 40)
        return lbq.load_pretrained(TRANSFORMER), replace(config, optim=optim)
    if name.startswith("ann-"):
        torch.manual_seed(options.seed)
        schedule = replace(known.schedule, moves="step")
        return structure(name), replace(
            config, epochs=options.scratch_epochs, optim=known.optim, schedule=schedule
        )
    source, found = trained_ann(), NAME.fullmatch(name)
    if not found:
        raise SystemExit(f"there is no network {name!r}; see --help")
    if found["before"]:
        source = open_tuned(f"burst-{found['before']}", options.seed, options.out)
    model = with_bursts(name, source, samples)
    if name == "int4":
        _, *inner, _ = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
        for module in inner:
            parametrize.register_parametrization(module, "weight", FourBits())
    if found["budget"]:
        config = replace(config, budget=float(found["budget"]))
    return model, config


def train(name: str, options: argparse.Namespace) -> nn.Module:
    """Tune a network to its last epoch; return the average of its weights."""
    data = open_samples(ann_recipe(), source=options.data, cache=options.cache)
    if options.held_out:
        data = held_out(data)
    keep_freed_memory()
    model, config = build(name, data, options)
    folder = options.runs / f"{name}-{options.seed}"
    outcome = lbq.fit(
        model,
        data,
        data,
        config,
        folder,
        teacher=trained_ann(),
        callbacks=[_say],
        options=lbq.RunOptions(threads=options.threads, allow_changed=("code",)),
    )
    if outcome.exit_code:
        raise SystemExit(outcome.exit_code)
    fresh, _ = build(name, data, options)
    return lbq.load_run(folder, fresh).model


def _say(record: dict[str, Any]) -> None:
    if record["event"] in ("train", "evaluation"):
        shown = {k: round(v, 4) for k, v in record.items() if isinstance(v, float)}
        print(record["event"], record["step"], shown, flush=True)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Count right answers and operations on the test set; write the record and the weights."""
    model = train(name, options).eval()
    for module in model.modules():
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight")
    data = open_samples(ann_recipe(), source=options.data, cache=options.cache)
    folder = options.runs / f"{name}-{options.seed}"
    path = options.out / f"{name}-{options.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), path.with_suffix(".safetensors"))
    samples = calibration(data)
    test = next(sample_batches(data, limit=COUNTED, batch=COUNTED)).real
    config = build(name, data, options)[1]
    known = ann_recipe()
    recipe = Recipe(**vars(config), name=name, model=model_config(name), data=known.data)
    record: dict[str, Any] = {
        "network": name,
        "seed": options.seed,
        "total_epochs": total_epochs(name, data, options),
        "recipe": to_document(recipe),
        **run_history(folder),
        "weights_sha256": sha256(path.with_suffix(".safetensors").read_bytes()).hexdigest(),
        "count": data.num_test,
        "correct": _correct(model, data),
        "correct_integers": right_integers(name, model, samples, data),
        **operations(model, test),
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def total_epochs(name: str, data: Data, options: argparse.Namespace) -> int:
    """Return the epochs of tuning, those of the stage before included."""
    own, found = build(name, data, options)[1].epochs, NAME.fullmatch(name)
    if not found or not found["before"]:
        return own
    before = options.out / f"burst-{found['before']}-{options.seed}.json"
    return own + json.loads(before.read_text())["total_epochs"]


def calibration(data: Data) -> Tensor:
    """Return training images to choose ranges by."""
    return next(sample_batches(data, split="train", limit=CALIBRATION, batch=CALIBRATION)).real


def open_tuned(name: str, seed: int, folder: Path) -> nn.Module:
    """Return a network that ``measure`` has kept."""
    model = structure(name)
    model.load_state_dict(load_file(folder / f"{name}-{seed}.safetensors"))
    model.preprocessing = ann_recipe().data.preprocessing  # pyright: ignore
    return model


def right_integers(name: str, model: nn.Module, samples: Tensor, data: Data) -> dict[str, int]:
    """Count right answers on the test set in integers, by what runs them."""
    if name.startswith("ann"):
        onnx = int8_onnx(without_time(deepcopy(model)), samples)
        runs = {
            "ONNX Runtime": onnx_runtime(onnx, threads=1),
            "OpenVINO": openvino(onnx, (500, *samples.shape[1:]), threads=1),
        }
        right = dict.fromkeys(runs, 0)
        for batch in sample_batches(data, batch=500):
            for engine, run in runs.items():
                answers = torch.from_numpy(run(batch.real.numpy())).argmax(1)
                right[engine] += int((answers == batch.target).sum())
        return right
    model.preprocessing = ann_recipe().data.preprocessing  # pyright: ignore
    net = lbq.quantize(model, samples)
    count = count_answers(
        lambda raw: lbq.run_network(net, raw, backend="native"), data, is_integer=True, batch=500
    )
    assert count.correct is not None
    return {"lbq": count.correct}


def operations(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """Count per image, and estimate energy with memory, beside that of the ANN's products."""
    with torch.inference_mode():
        table = lbq.count_ops(model, images)
    found: dict[str, Any] = {
        "counted_images": table.num_images,
        "bit_sparse_acs": table.total().bit_sparse_acs / table.num_images,
        "unary_acs": table.total().unary_acs / table.num_images,
        "fp_macs": table.fp_macs() / table.num_images,
        "ann_macs": table.ann_macs(),
        "active": table.active_ratio(),
    }
    for technology, memory in MEMORIES:
        report = lbq.EnergyModel(technology=technology).estimate(table)
        for sums in ("int8, 32-bit sums", "int4, 32-bit sums"):
            rows = (report[sums], report[memory])
            found[f"{sums}, {memory}, uJ"] = {
                "burst": 1e3 * sum(row.burst_mj for row in rows),
                "ann": 1e3 * sum(row.ann_mj for row in rows),
            }
    return found


def _correct(model: nn.Module, data: Data) -> int:
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    @torch.no_grad()
    def answer(inputs: Tensor) -> Tensor:
        return model(inputs.contiguous(memory_format=torch.channels_last))

    found = count_answers(answer, data, is_integer=False, batch=250).correct
    assert found is not None
    return found


def main() -> None:
    """Train or measure one network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("train", "measure"))
    parser.add_argument("name")
    parser.add_argument("--data", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--scratch-epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--teacher-weight", type=float, default=1.0)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "accuracy")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/lbq"))
    options = parser.parse_args()
    began = time.monotonic()
    if options.what == "train":
        train(options.name, options)
    else:
        found = measure(options.name, options)
        print({key: found[key] for key in ("correct", "correct_integers", "bit_sparse_acs")})
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
