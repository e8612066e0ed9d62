"""The card of a network on the shelf, written from its record: what it is, and is not, good for."""

from lbq.train.document import Document, from_document
from lbq.train.recipe import Recipe

_COUNTED = ("unary_acs", "bit_sparse_acs", "fp_macs")

_CARD = """\
# {name}

{network} for {num_classes} classes of {source}, {timesteps} timesteps, levels 0 to {max_level}, one
learned step per layer. It comes with lbq for examples, tests and documents that need real trained
weights, offline. It is small on purpose: the paper's has about {times:.0f} times its weights.

```python
model = lbq.pretrained("{name}")
logits = model(images)  # [B, 3, 32, 32], normalised as below
```

| | |
|---|---|
| input | RGB in 0..1, minus {mean}, divided by {std} |
| classes, in order | {classes} |
| test accuracy after the last epoch | {correct:,} of {count:,} ({accuracy:.2f} %), in {precision} |
| the same in float64 | {exact_correct:,} of {exact_count:,} |
| accumulations per image | {unary:.2f} M unary, {bit_sparse:.2f} M bit-sparse (-{saved:.2f} %) |
| multiplications per image | {fp_macs:.2f} M in the first layer; {ann_macs:.2f} M as an ANN |
| trained | {epochs} epochs of batches of {batch}, {optimizer} at {lr}, seed {seed} |
| which took | {minutes} minutes |
| on | {machine} |
| with | {versions} |
| commit | {commit} |
| SHA-256 of the weights | {weights_sha256} |
| SHA-256 of the data | {data_sha256} |

The accuracy is that of the last epoch, not of the best. Accumulations are counted in float64 over
the {exact_count:,} test images, timesteps summed, with exact fan-out. This is one seed; how much
seeds differ is in docs/results.md of the repository.

**Not for** decisions about anything but {source}: it has seen nothing else, was not tested against
shifted or hostile images, and its confidence is not calibrated.

`record.json` beside this file holds the whole recipe and the training curve; this card is
generated from it.
"""


def model_card(record: Document) -> str:
    """Write the card of a network from its record."""
    recipe = from_document(Recipe, record["recipe"])
    model, normalization = recipe.model, recipe.data.augment.normalization
    whole = record["exact"]["after"][-1]
    millions = {key: whole[key] / whole["num_images"] / 1e6 for key in _COUNTED}
    return _CARD.format(
        name=record["name"],
        network=f"{model.name} at {model.width:g} of its width",
        times=model.width**-2,
        num_classes=len(record["classes"]),
        source=recipe.data.source,
        timesteps=model.timesteps,
        max_level=model.neuron.max_level,
        mean=normalization.mean,
        std=normalization.std,
        classes=", ".join(record["classes"]),
        correct=record["correct"],
        count=record["count"],
        accuracy=100 * record["accuracy_after_last_epoch"],
        precision=recipe.precision,
        exact_correct=whole["correct"],
        exact_count=whole["num_images"],
        unary=millions["unary_acs"],
        bit_sparse=millions["bit_sparse_acs"],
        saved=100 * (1 - whole["bit_sparse_acs"] / whole["unary_acs"]),
        fp_macs=millions["fp_macs"],
        ann_macs=whole["ann_macs"] / 1e6,
        epochs=recipe.epochs,
        batch=recipe.batch,
        optimizer=recipe.optim.kind,
        lr=recipe.optim.lr,
        seed=recipe.seed,
        minutes=record["minutes"],
        machine=record["machine"],
        versions=", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        commit=record["commit"],
        weights_sha256=record["weights_sha256"],
        data_sha256=record["data_sha256"],
    )
