"""A run's record as a model card: what a stranger must know before using the weights."""

import json
from typing import Any

from lbq.train.recipe import Recipe

CARD = "README.md"


def write_card(record: dict[str, Any], recipe: Recipe, *, num_parameters: int) -> str:
    """Write the card of a network, from the record of the run that trained it.

    Args:
        record: what :func:`lbq.adapters.record.record_run` returned.
        recipe: the recipe in it.
        num_parameters: of the network.
    """
    return f"---\n{_front(record, recipe)}---\n\n{_body(record, recipe, num_parameters)}"


def _front(record: dict[str, Any], recipe: Recipe) -> str:
    """Write what the hub reads: YAML, every value of it as JSON, which needs no other quotes."""
    task = {"type": "image-classification"}
    source = {"name": recipe.data.source, "type": recipe.data.source}
    accuracy = {"type": "accuracy", "value": record["accuracy_after_last_epoch"]}
    result = {"task": task, "dataset": source, "metrics": [accuracy]}
    fields = {
        "library_name": "lbq",
        "tags": ["spiking-neural-network", "learnable-burst-quantization"],
        "metrics": ["accuracy"],
        "model-index": [{"name": recipe.name, "results": [result]}],
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())


def _body(record: dict[str, Any], recipe: Recipe, num_parameters: int) -> str:
    model, neuron = recipe.model, recipe.model.neuron
    best = record["best_on_test_set"]
    levels = "" if neuron.max_level is None else f", levels 0..{neuron.max_level}"
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    rows = {
        "network": f"{model.name}, width {model.width:g}, {num_parameters:,} parameters",
        "neuron": f"{neuron.kind}{levels}, {model.timesteps} timestep(s)",
        "data": f"{recipe.data.source}, SHA-256 `{record['data_sha256']}`",
        "accuracy after the last epoch": (
            f"{record['accuracy_after_last_epoch']:.2%} "
            f"({record['correct']:,} of {record['count']:,} test samples)"
        ),
        "best epoch, chosen on the test set": f"{best['accuracy']:.2%} (epoch {best['epoch']})",
        "training": (
            f"{recipe.epochs} epochs, batch {recipe.batch}, seed {recipe.seed}, "
            f"{record['minutes']:g} minutes on {record['machine']}"
        ),
        "code": f"commit `{record['commit']}`; {versions}",
        "weights": f"SHA-256 of the checkpoint `{record['weights_sha256']}`",
    }
    table = "".join(f"| {name} | {value} |\n" for name, value in rows.items())
    normalization = recipe.data.augment.normalization
    return f"""# {recipe.name}

A spiking network whose neurons emit integer levels ([lbq](https://pypi.org/project/lbq)).
`config.json` is data and `model.safetensors` numbers: loading them runs no code of theirs.

```python
from lbq.adapters.hub import from_pretrained

model = from_pretrained("this/repository")  # or a folder; in eval mode
```

Inputs are normalised by mean {list(normalization.mean)} and deviation {list(normalization.std)}.

| | |
|---|---|
{table}"""
