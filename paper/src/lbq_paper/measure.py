"""Measure a trained network on every test sample: its answers, and the cost of its levels."""

from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn

from lbq.analysis.layer_stats import LayerLevels, LevelCounts
from lbq.config_io import Document
from lbq.cost import OpCounter, Padding, count_macs
from lbq.data import Data, eval_batches, open_data
from lbq.errors import ParameterError
from lbq.neurons import Neuron, NeuronStep, Surrogate, named_neurons, watch_levels
from lbq.train import Recipe, load_run
from lbq.train.optim import Precision
from lbq.train.prefetch import prefetch_to_device

MACS_PADDING: Padding = "counted"
"""The paper's convention for MACs: products with padding count (docs/decisions/0006)."""
_DIGITS = 6
"""Digits after the point of numbers that are measured, not counted."""


def measure_run(run: Path, *, cache: str | Path, device: torch.device) -> Document:
    """Measure the last checkpoint of a run on the whole test set of its recipe."""
    loaded = load_run(run)
    model, recipe = loaded.model, loaded.recipe
    data = open_data(recipe.data, cache)
    return {"data_sha256": data.digest, **measure(model, data, recipe, device=device)}


@torch.inference_mode()
def measure(model: nn.Module, data: Data, recipe: Recipe, *, device: torch.device) -> Document:
    """Return correct answers, counts and, for every layer, its step and the levels it emits.

    The network runs in the precision and memory order of its training, but is never compiled: its
    levels are watched. Compiled training rounds elsewhere, so its last evaluation may differ a
    little.
    """
    model = model.to(device)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    example = _example(data).to(device)
    if not any(named_neurons(model)):
        correct = _answer(model, data, recipe, device)
        macs = sum(count_macs(model, example, padding=MACS_PADDING).values())
        counts = {
            "num_images": data.num_test,
            "macs_padding": MACS_PADDING,
            "ann_macs": macs,
            "fp_macs": macs * data.num_test,
        }
        return {"measured_correct": correct, "counts": counts, "layers": []}
    neurons = dict(named_neurons(model))
    levels = LevelCounts({layer: neuron.max_level for layer, neuron in neurons.items()})
    counter = OpCounter(model, example)
    with watch_levels(model, counter), watch_levels(model, levels):
        correct = _answer(model, data, recipe, device)
    return {
        "measured_correct": correct,
        "counts": counts_of(counter),
        "active_ratio": round(counter.table().active_ratio(), _DIGITS),
        "layers": [
            {"layer": found.layer, **_settings(neurons[found.layer]), **levels_of(found)}
            for found in levels.profile().layers
        ],
    }


def counts_of(counter: OpCounter) -> Document:
    """Return the totals over all images as whole numbers, and operations not followed."""
    table = counter.table()
    total, products = table.total(), table.total_products()
    conventions = ("unary", "bit_pairs", "bit_serial", "dense")
    of_levels = {name: getattr(products, name) for name in conventions}
    return {
        "num_images": table.num_images,
        "macs_padding": MACS_PADDING,
        "ann_macs": table.ann_macs(padding=MACS_PADDING),
        "fp_macs": table.fp_macs(padding=MACS_PADDING),
        "unary_acs": total.unary_acs,
        "bit_sparse_acs": total.bit_sparse_acs,
        "unit_event_acs": total.unit_event_acs,
        "explicit_shifts": total.explicit_shifts,
        "plane_formations": table.plane_formations(),
        "identity_unary_acs": table.identities().unary_acs,
        **({"level_products": of_levels} if table.products else {}),
        "untracked": list(table.untracked),
        "uncounted": list(table.uncounted),
    }


def levels_of(layer: LayerLevels) -> Document:
    """Return the share of active neurons, P(k | k > 0) for k = 1..N, and its normalised entropy."""
    return {
        "active": round(layer.active_ratio, _DIGITS),
        "levels": [round(share, _DIGITS) for share in layer.shares or ()],
        "entropy": None if layer.entropy is None else round(layer.entropy, _DIGITS),
    }


def _answer(model: nn.Module, data: Data, recipe: Recipe, device: torch.device) -> int:
    """Count the right answers over the test set."""
    correct, precision = 0, Precision(recipe.precision, device)
    batches = eval_batches(data, batch=recipe.test_batch)
    for x, target, _ in prefetch_to_device(batches, device, channels_last=recipe.channels_last):
        with precision.autocast():
            logits = model(x)
        correct += int((logits.argmax(1) == target).sum())
    return correct


def _example(data: Data) -> Tensor:
    """Return one test sample with a batch axis."""
    return next(eval_batches(data, batch=1)).x


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


BATCH = 50
"""Images at once; it divides the milestones and changes no count."""


@torch.inference_mode()
def count_exactly(model: nn.Module, data: Data, *, milestones: tuple[int, ...]) -> Document:
    """Count, in float64, after each of so many test images, in the order of the test set."""
    last = max(milestones, default=0)
    if not 0 < last <= data.num_test or any(milestone % BATCH for milestone in milestones):
        raise ParameterError(
            f"milestones are multiples of {BATCH} up to {data.num_test}, got {milestones}"
        )
    model = deepcopy(model).double()
    batches = eval_batches(data, batch=BATCH)
    counter: OpCounter | None = None
    correct, found = 0, list[Document]()
    for index, batch in enumerate(batches, 1):
        images = batch.x.double()
        counter = counter or OpCounter(model, images[:1])
        with watch_levels(model, counter):
            correct += int((model(images).argmax(1) == batch.target).sum())
        if index * BATCH in milestones:
            found.append({"correct": correct, **counts_of(counter)})
        if index * BATCH == last:
            break
    return {"precision": "float64", "data_sha256": data.digest, "after": found}
