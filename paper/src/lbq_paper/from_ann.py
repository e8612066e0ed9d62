r"""Accuracy of ``lbq.from_ann`` before and after one epoch of fine-tuning.

    python -m lbq_paper.from_ann results/training/pocket-ann --data $LBQ_DATA/cifar10 \
        --out results/from-ann.json

reads the record ``pocket-ann.json`` and the weights ``pocket-ann.safetensors`` beside it, turns the
ReLUs into neurons with 256 training images, and evaluates on the whole test set.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import lbq
from lbq.cli.samples import count_answers, open_samples, sample_batches
from lbq.data import Data, steps_per_epoch, train_batches
from lbq.train import Recipe, build_network
from lbq.train.optim import (
    OptimConfig,
    ScheduleConfig,
    build_optimizer,
    learning_rate_factor,
    set_learning_rate,
)
from lbq.train.recipe import recipe_from_document

CALIBRATION = 256
"""Training images for choosing steps and biases."""
FINE_TUNING = OptimConfig(lr=0.02)
"""A tenth of the learning rate that the network was trained with, falling to zero by a cosine."""
FORMS: dict[str, dict[str, Any]] = {
    "T=1": {"timesteps": 1},
    "T=2": {"timesteps": 2},
    "T=1, a step per channel": {"timesteps": 1, "per_channel": True},
    "T=2, the paper's neuron": {"timesteps": 2, "decay": 0.5, "reset_mode": "event"},
}
TUNED = ("T=1", "T=2")
"""Which of them are trained for an epoch."""


def main() -> None:
    """Evaluate every form, and fine-tune some."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="record and weights, without their suffixes")
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, help="test images; all by default")
    parser.add_argument("--max-level", type=int, default=5)
    parser.add_argument("--no-epoch", action="store_true", help="do not fine-tune")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=list(FORMS))
    parser.add_argument("--out", type=Path, help="write the record there as JSON")
    arguments = parser.parse_args()
    document = json.loads(arguments.run.with_suffix(".json").read_text())
    recipe = recipe_from_document(document["recipe"])
    data = open_samples(recipe, source=arguments.data, cache=Path("~/.cache/lbq"))
    ann = build_network(recipe.model, num_classes=data.num_classes).eval()
    ann.load_state_dict(load_file(arguments.run.with_suffix(".safetensors")))
    samples = next(sample_batches(data, split="train", limit=CALIBRATION, batch=CALIBRATION)).real
    record: dict[str, object] = {
        "network": recipe.name,
        "weights_sha256": document["weights_sha256"],
        "max_level": arguments.max_level,
        "images": arguments.images or data.num_test,
        "calibration_images": CALIBRATION,
        "fine_tuning": {"epochs": 1, "lr": FINE_TUNING.lr, "batch": recipe.batch},
        "versions": {"lbq": lbq.__version__, "torch": torch.__version__},
        "relu": _accuracy(ann, data, arguments.images),
        "forms": (rows := dict[str, dict[str, float]]()),
    }
    print(f"{'':26}{'at the start':>13}{'one epoch':>11}\n{'ReLU':26}{record['relu']:13.2%}")
    for name in arguments.forms:
        spiking = lbq.from_ann(ann, [samples], max_level=arguments.max_level, **FORMS[name])
        row = rows[name] = {"start": _accuracy(spiking, data, arguments.images)}
        line = f"{name:26}{row['start']:13.2%}"
        if name in TUNED and not arguments.no_epoch:
            _fine_tune(spiking, data, recipe)
            row["one_epoch"] = _accuracy(spiking, data, arguments.images)
            line += f"{row['one_epoch']:11.2%}"
        print(line, flush=True)
        if arguments.out:  # after every form, since an epoch takes minutes
            arguments.out.write_text(json.dumps(record, indent=1) + "\n")


def _accuracy(model: nn.Module, data: Data, images: int | None) -> float:
    """Evaluate in bf16 and channels last, as the recipe's own evaluation does."""
    model = model.to(memory_format=torch.channels_last).eval()  # pyright: ignore[reportCallIssue]

    @torch.no_grad()
    def answer(inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(inputs.contiguous(memory_format=torch.channels_last))

    return count_answers(answer, data, is_integer=False, batch=250, limit=images).accuracy


def _fine_tune(model: nn.Module, data: Data, recipe: Recipe) -> None:
    """Train for one epoch on the recipe's data, in bf16 and channels last, as the recipe does."""
    model = model.to(memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]
    optimizer = build_optimizer(model, FINE_TUNING)
    steps = steps_per_epoch(data, recipe.batch)
    batches = train_batches(data, seed=recipe.seed, epoch=0, global_batch=recipe.batch)
    for step, (images, target, _) in enumerate(batches):
        factor = learning_rate_factor(ScheduleConfig(), step=step, steps_per_epoch=steps, epochs=1)
        set_learning_rate(optimizer, factor * FINE_TUNING.lr)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(images.contiguous(memory_format=torch.channels_last))
        loss = F.cross_entropy(logits.float(), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"  step {step} of {steps}, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
