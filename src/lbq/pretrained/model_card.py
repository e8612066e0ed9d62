"""Write the card of a trained network from its record: what it is, and is not, good for."""

from lbq.config_io import Document
from lbq.train.recipe import Recipe, recipe_from_document
from lbq.train.run_folder import config_from_document
from lbq.train.train_config import TrainConfig

CARD = "README.md"

_CARD = """\
# {name}

{opening}

| | |
|---|---|
{table}
The {score} to compare with is that of the last epoch, since the best one was chosen on the test
set. It is that of one seed.{counted}

**Not for** decisions about anything but {source}: by its record it has seen nothing else, was not
tested against shifted or hostile samples, and its confidence is not calibrated.
"""

_COUNTED = """ Accumulations are counted in float64 over the {num_images:,} test images,
timesteps summed, with exact fan-out."""


def write_card(record: Document, *, name: str, opening: str, num_parameters: int) -> str:
    """Write what a user must know before using the weights.

    Args:
        record: record of the run that trained them, from ``record_run``; its classes and exact
            counts are included if the record has them.
        name: name of the network.
        opening: its purpose and how to load it from there, as Markdown.
        num_parameters: parameters of the network.
    """
    if "recipe" in record:
        recipe = config = recipe_from_document(record["recipe"])
        rows, source = _what_it_is(record, recipe, num_parameters), recipe.data.source
    else:
        config = config_from_document(record["config"], "the record")
        rows = {"network": f"{record['model']}, {num_parameters:,} parameters"}
        source = "the data that it was trained on"
    rows |= _what_it_came_to(record, config) | _how_it_was_made(record, config)
    return _CARD.format(
        name=name,
        opening=opening.strip(),
        table="".join(f"| {row} | {value} |\n" for row, value in rows.items()),
        source=source,
        score="accuracy" if "correct" in record else "loss",
        counted=_COUNTED.format(**_whole(record)) if "exact" in record else "",
    )


def _what_it_is(record: Document, recipe: Recipe, num_parameters: int) -> dict[str, str]:
    model, neuron = recipe.model, recipe.model.neuron
    levels = "" if neuron.max_level is None else f", levels 0 to {neuron.max_level}"
    times = "1 timestep" if model.timesteps == 1 else f"{model.timesteps} timesteps"
    width = "" if model.width == 1 else f" at {model.width:g} of its width"
    rows = {
        "network": f"{model.name}{width}, {num_parameters:,} parameters",
        "neurons": f"{neuron.kind}{levels}, {times}",
        "input": _input(recipe),
    }
    if "classes" in record:
        rows["classes, in order"] = ", ".join(record["classes"])
    return rows


def _input(recipe: Recipe) -> str:
    if recipe.data.is_events:
        return f"events counted into {recipe.data.timesteps} frames, not normalised"
    normalization = recipe.data.augment.normalization
    return f"RGB in 0..1, minus {normalization.mean}, divided by {normalization.std}"


def _what_it_came_to(record: Document, config: TrainConfig) -> dict[str, str]:
    best = record["best_on_test_set"]
    if "correct" not in record:
        loss = f"{record['loss_after_last_epoch']:.4g} on {record['count']:,} samples"
        return {
            "test loss after the last epoch": f"{loss}, in {config.precision}",
            "best epoch, chosen on the test set": f"{best['loss']:.4g}, epoch {best['epoch']}",
        }
    accuracy = record["accuracy_after_last_epoch"]
    right = f"{record['correct']:,} of {record['count']:,}"
    rows = {
        "test accuracy after the last epoch": f"{right} ({accuracy:.2%}), in {config.precision}",
        "best epoch, chosen on the test set": f"{best['accuracy']:.2%}, epoch {best['epoch']}",
    }
    if "exact" not in record:
        return rows
    whole = _whole(record)
    unary, bit_sparse, macs = (
        f"{whole[key] / whole['num_images'] / 1e6:.2f} M"
        for key in ("unary_acs", "bit_sparse_acs", "fp_macs")
    )
    saved = 1 - whole["bit_sparse_acs"] / whole["unary_acs"]
    rows |= {
        "right in float64": f"{whole['correct']:,} of {whole['num_images']:,}",
        "accumulations per image": f"{unary} unary, {bit_sparse} bit-sparse (-{saved:.2%})",
        "multiplications per image": (
            f"{macs} in the first layer; {whole['ann_macs'] / 1e6:.2f} M as an ANN (products with "
            f"padding {whole['macs_padding']})"
        ),
    }
    if "level_products" in whole:
        dense, bit_serial, pairs = (
            f"{whole['level_products'][key] / whole['num_images'] / 1e6:.2f} M"
            for key in ("dense", "bit_serial", "bit_pairs")
        )
        rows["products of levels with levels per image"] = (
            f"{pairs} of single bits, {bit_serial} with one side kept as an integer, {dense} dense"
        )
    return rows


def _how_it_was_made(record: Document, config: TrainConfig) -> dict[str, str]:
    optim = config.optim
    source = f"{config.data.source}, " if isinstance(config, Recipe) else ""
    rows = {"started from": record["started_from"]} if "started_from" in record else {}
    return rows | {
        "trained": (
            f"{config.epochs} epochs of batches of {config.batch}, {optim.kind} at {optim.lr}, "
            f"seed {config.seed}"
        ),
        "which took": f"{record['minutes']:g} minutes",
        "on": record["machine"],
        "with": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        "commit": record["commit"],
        "data": f"{source}SHA-256 `{record['data_sha256']}`",
        "SHA-256 of the checkpoint's weights": f"`{record['weights_sha256']}`",
    }


def _whole(record: Document) -> Document:
    """Return the counts over all test samples."""
    return record["exact"]["after"][-1]
