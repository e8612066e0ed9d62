"""Measuring a trained network on every test sample: what it answers, and what its levels cost."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from lbq.cost import Tally, count_macs
from lbq.data import Data, open_data, test_batches
from lbq.models.resnet import SpikingResNet
from lbq.neurons import Neuron, NeuronStep, Surrogate, named_neurons, watch_levels
from lbq.train import Recipe, load_trained
from lbq.train.document import Document
from lbq.train.feeding import feed
from lbq.train.precision import Precision

_DIGITS = 6
"""Digits behind the point of what is measured and not counted."""


def measure_run(run: Path, *, cache: Path, device: torch.device) -> Document:
    """Measure the last checkpoint of a run on the whole test set of its recipe."""
    model, recipe, _ = load_trained(run)
    data = open_data(recipe.data, cache.expanduser())
    return {"data_sha256": data.digest, **measure(model, data, recipe, device=device)}


@torch.inference_mode()
def measure(model: SpikingResNet, data: Data, recipe: Recipe, *, device: torch.device) -> Document:
    """Return right answers, counts and, for every layer, its step and the levels it emits.

    The network runs as it was evaluated in training: same precision, same memory order.
    """
    model = model.to(device)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    example = _example(data).to(device)
    if not any(named_neurons(model)):
        correct = _answer(model, data, recipe, device)
        macs = sum(count_macs(model, example).values())
        counts = {"num_images": data.num_test, "ann_macs": macs, "fp_macs": macs * data.num_test}
        return {"measured_correct": correct, "counts": counts, "layers": []}
    tally, levels = Tally(model, example), LevelCounts()
    with watch_levels(model, tally), watch_levels(model, levels):
        correct = _answer(model, data, recipe, device)
    return {
        "measured_correct": correct,
        "counts": counts_of(tally),
        "active_ratio": round(tally.table().active_ratio(), _DIGITS),
        "layers": [
            {"layer": name, **_settings(neuron), **levels.describe(name, neuron.max_level)}
            for name, neuron in named_neurons(model)
        ],
    }


def counts_of(tally: Tally) -> Document:
    """Return the totals over all images as whole numbers, and what was not followed."""
    table = tally.table()
    total = table.total()
    return {
        "num_images": table.num_images,
        "ann_macs": table.ann_macs(),
        "fp_macs": table.fp_macs(),
        "unary_acs": total.unary_acs,
        "bit_sparse_acs": total.bit_sparse_acs,
        "unit_event_acs": total.unit_event_acs,
        "explicit_shifts": total.explicit_shifts,
        "plane_formations": table.plane_formations(),
        "identity_unary_acs": table.identities().unary_acs,
        "untracked": list(table.untracked),
        "uncounted": list(table.uncounted),
    }


class LevelCounts:
    """How often each layer emits each level, sign aside; use it as a watch."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def __call__(self, layer: str, t: int, level: Tensor) -> None:
        """Add one instant of one layer."""
        found = torch.bincount(level.flatten().to(torch.int16).abs()).tolist()
        before = self._counts.get(layer, [])
        longer = max(len(found), len(before))
        padded = [each + [0] * (longer - len(each)) for each in (found, before)]
        self._counts[layer] = [sum(pair) for pair in zip(*padded, strict=True)]

    def describe(self, layer: str, max_level: int) -> Document:
        """Return the share of active neurons, P(k | k > 0) for k = 1..N, and its entropy.

        The entropy is divided by log N, that of equally likely levels; one level has none.
        """
        counts = self._counts[layer] + [0] * (max_level + 1 - len(self._counts[layer]))
        active = sum(counts[1:])
        shares = [count / active for count in counts[1:]] if active else []
        entropy = -sum(p * math.log(p) for p in shares if p > 0)
        is_defined = max_level > 1 and active > 0
        return {
            "active": round(active / sum(counts), _DIGITS),
            "levels": [round(p, _DIGITS) for p in shares],
            "entropy": round(entropy / math.log(max_level), _DIGITS) if is_defined else None,
        }


def _answer(model: nn.Module, data: Data, recipe: Recipe, device: torch.device) -> int:
    """Count the right answers over the test set."""
    correct, precision = 0, Precision(recipe.precision, device)
    batches = test_batches(data, batch=recipe.test_batch)
    for x, target, _ in feed(batches, device, channels_last=recipe.channels_last):
        with precision.autocast():
            logits = model(x)
        correct += int((logits.argmax(1) == target).sum())
    return correct


def _example(data: Data) -> Tensor:
    """Return one test sample with a batch axis."""
    return next(test_batches(data, batch=1)).x


def _settings(neuron: Neuron) -> Document:
    """Return step and tail, learned or not; null where a neuron has none."""
    step = getattr(neuron, "step", None)
    value = step() if isinstance(step, NeuronStep) else step
    surrogate = getattr(neuron, "surrogate", None)
    tail = surrogate.tail() if isinstance(surrogate, Surrogate) else None
    return {
        "max_level": neuron.max_level,
        "step": _numbers(value) if isinstance(value, Tensor) else None,
        "tail": None if tail is None else _numbers(tail),
    }


def _numbers(values: Tensor) -> list[float]:
    return [round(value, _DIGITS) for value in values.flatten().tolist()]
