r"""Burst networks as accurate as the ReLU network that they start from, and their neighbours.

    python -m lbq_paper.accuracy train burst-7 --seed 0 --data $LBQ_DATA/cifar10
    python -m lbq_paper.accuracy measure burst-7 --seed 0 --data $LBQ_DATA/cifar10

Every network is taught by the trained ReLU network in results/training, for ``--epochs``, and the
average of its weights is kept. ``train`` goes on where it was stopped, and evaluates on the test
set once, at the end; with ``--held-out`` it trains on 45,000 images and evaluates on the other
5,000 after every epoch, to choose settings by. ``measure`` writes the record: right answers on all
test images in float32 and in integers, and operations.

    burst-N           the ReLU network by ``lbq.from_ann`` with levels 0..N, one timestep
    burst-N-from-M    the same, from the tuned burst-M of this seed
    burst-N-budget-S  burst-N tuned to the share S of the accumulations that it has
    ann               the ReLU network itself
    ann-S             a ReLU network of S times the width, from scratch
    int4              levels 0..15 and weights of 4 bits: a 4-bit ANN, which at one timestep is the
                      same thing
"""

import argparse
import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parametrize

import lbq
from lbq.cli.samples import count_answers, open_samples, sample_batches
from lbq.data import Data
from lbq.data.splits import Split, Splits
from lbq.neurons import named_neurons
from lbq.train import OptimConfig, ScheduleConfig, TeacherConfig, TrainConfig, build_network
from lbq.train.allocator import keep_freed_memory
from lbq.train.provenance import provenance
from lbq_paper.budget_search import cost_of, pocket_recipe
from lbq_paper.checkout import ROOT
from lbq_paper.trained_network import ann_recipe, trained_ann

HELD_OUT = 5_000
"""Training images, the last ones, that settings are chosen on."""
CALIBRATION = 512


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


def with_bursts(source: nn.Module, samples: Tensor, *, max_level: int, seed: int) -> nn.Module:
    """Return the fused network of the recipes with what ``from_ann`` chose."""
    chosen = lbq.from_ann(source, [samples], max_level=max_level, timesteps=1)
    recipe = pocket_recipe(ann_recipe(), seed, max_level)
    model = build_network(recipe.model, num_classes=10).eval()
    known = model.state_dict()
    model.load_state_dict(known | {k: v for k, v in chosen.state_dict().items() if k in known})
    with torch.no_grad():
        for (_, mine), (_, theirs) in zip(named_neurons(model), named_neurons(chosen), strict=True):
            mine.step.load_state_dict(theirs.step.state_dict())  # pyright: ignore
        torch.testing.assert_close(model(samples), chosen(samples), rtol=1e-4, atol=1e-4)
    return model


def build(name: str, data: Data, options: argparse.Namespace) -> tuple[nn.Module, TrainConfig]:
    """Return a network as it is before tuning, and how it is tuned."""
    samples = next(sample_batches(data, split="train", limit=CALIBRATION, batch=CALIBRATION)).real
    known = ann_recipe()
    config = TrainConfig(
        epochs=options.epochs,
        batch=known.batch,
        optim=OptimConfig(lr=options.lr, weight_decay=options.weight_decay),
        schedule=ScheduleConfig(moves="step"),
        channels_last=True,
        ema_decay=0.999,
        teacher=TeacherConfig(weight=options.teacher_weight, temperature=2.0),
        evaluate_every=1 if options.held_out else options.epochs,
        seed=options.seed,
    )
    if name == "ann":
        return trained_ann(), config
    if found := re.fullmatch(r"ann-(0\.\d+)", name):
        model = replace(known.model, width=known.model.width * float(found[1]))
        schedule = replace(known.schedule, moves="step")
        config = replace(
            config, epochs=options.scratch_epochs, optim=known.optim, schedule=schedule
        )
        return replace(known, model=model, seed=options.seed).build_model(10), config
    if name == "int4":
        model = with_bursts(trained_ann(), samples, max_level=15, seed=options.seed)
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                parametrize.register_parametrization(module, "weight", FourBits())
        return model, config
    found = re.fullmatch(r"burst-(\d+)(?:-from-(\d+))?(?:-budget-(0\.\d+))?", name)
    if not found:
        raise SystemExit(f"there is no network {name!r}; see --help")
    source = trained_ann()
    if found[2]:
        before, _ = build(f"burst-{found[2]}", data, options)
        folder = options.runs / f"burst-{found[2]}-{options.seed}"
        source = lbq.load_run(folder, before).model
    model = with_bursts(source, samples, max_level=int(found[1]), seed=options.seed)
    if found[3]:
        config = replace(config, budget=cost_of(model, samples) * float(found[3]))
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
    """Count right answers and operations on the test set; write the record."""
    model = train(name, options).eval()
    data = open_samples(ann_recipe(), source=options.data, cache=options.cache)
    rows = lbq.train.read_metrics_log(options.runs / f"{name}-{options.seed}" / "metrics.jsonl")
    record: dict[str, Any] = {
        "network": name,
        "seed": options.seed,
        "epochs": build(name, data, options)[1].epochs,
        "lr": options.lr,
        "weight_decay": options.weight_decay,
        "teacher_weight": options.teacher_weight,
        "test_images": data.num_test,
        "correct": _correct(model, data),
        **{key: provenance(data.digest)[key] for key in ("commit", "versions")},
        "curve": [
            {key: round(row[key], 4) for key in ("epoch", "loss", "accuracy") if key in row}
            for row in rows
            if row["event"] == "train"
        ][::4],
    }
    samples = next(sample_batches(data, split="train", limit=CALIBRATION, batch=CALIBRATION)).real
    if not name.startswith("ann"):
        for module in model.modules():
            if parametrize.is_parametrized(module):
                parametrize.remove_parametrizations(module, "weight")
        model.preprocessing = ann_recipe().data.preprocessing  # pyright: ignore
        net = lbq.quantize(model, samples, bits=4 if name == "int4" else 8)
        record["correct_integers"] = count_answers(
            lambda raw: lbq.run_network(net, raw, backend="native"),
            data,
            is_integer=True,
            batch=500,
        ).correct
    test = next(sample_batches(data, limit=1_000, batch=1_000)).real
    with torch.inference_mode():
        table = lbq.count_ops(model, test)
    record |= {
        "counted_images": table.num_images,
        "bit_sparse_acs": table.total().bit_sparse_acs / table.num_images,
        "unary_acs": table.total().unary_acs / table.num_images,
        "ann_macs": table.ann_macs(),
        "active": table.active_ratio(),
    }
    path = options.out / f"{name}-{options.seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


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
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
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
        print({key: value for key, value in found.items() if key != "curve"})
    print(f"{(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
