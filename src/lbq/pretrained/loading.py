"""Load a pretrained network by name: offline, and checked by its SHA-256.

A network is a folder beside this file: ``model.safetensors``, ``record.json`` (its training and
its results) and ``README.md``, the card that is generated from the record.
"""

import hashlib
from functools import cache
from pathlib import Path

from safetensors.torch import load

from lbq.config_io import Document, read_json
from lbq.errors import FormatError, ParameterError
from lbq.pretrained.model_card import write_card
from lbq.train.checkpoint import copy_tensors
from lbq.train.model_config import Network, build_network
from lbq.train.recipe import Recipe, recipe_from_document

FOLDER = Path(__file__).parent
IMAGE_SIZE = 32
"""Width and height of the images that every pretrained network takes."""

_OPENING = """
A trained network that comes with lbq, for examples, tests and documents that need real weights,
offline. It is small on purpose: at full width it would have about {times:.0f} times its weights.

```python
model = lbq.load_pretrained("{name}")
logits = model(images)  # [B, 3, {side}, {side}], normalised as below
```

`record.json` beside this file holds the whole recipe and the training curve; this card is
generated from it. It was trained with one seed; docs/results.md of the repository shows how much
seeds differ for a smaller network.
"""


def load_pretrained(name: str) -> Network:
    """Return a trained network in eval mode; nothing is downloaded.

    ``model.preprocessing`` says how its inputs are normalised.

    Example:
        >>> model = lbq.load_pretrained("pocket-cifar10")
        >>> model.preprocessing.mean
        (0.4914, 0.4822, 0.4465)
        >>> model(torch.randn(4, 3, 32, 32)).shape
        torch.Size([4, 10])

    Args:
        name: name of the network; :func:`pretrained_names` lists them.
    """
    record, path = pretrained_record(name), FOLDER / name / "model.safetensors"
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != record["weights_sha256"]:
        raise FormatError(
            f"{path} is damaged: its SHA-256 is {found[:12]}.., its record says "
            f"{record['weights_sha256'][:12]}..; install lbq again"
        )
    recipe = pretrained_recipe(name)
    model = build_network(recipe.model, num_classes=len(record["classes"]))
    model.preprocessing = recipe.data.preprocessing
    copy_tensors(load(data), model.state_dict(), what=str(path))
    return model.eval()


@cache
def pretrained_names() -> tuple[str, ...]:
    """List the pretrained networks."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/record.json")))


def is_pretrained(name: str | Path) -> bool:
    """Return whether a name is a pretrained network's and not that of a file or folder here."""
    return not Path(name).exists() and str(name) in pretrained_names()


def pretrained_record(name: str) -> Document:
    """Return the record of the run that trained a network: settings, data and results."""
    if name not in pretrained_names():
        names = ", ".join(map(repr, pretrained_names()))
        raise ParameterError(f"there is no pretrained network {name!r}; choose one of {names}")
    return read_json(FOLDER / name / "record.json")


def pretrained_recipe(name: str) -> Recipe:
    """Return the recipe that trained a network, with its data and their normalisation."""
    return recipe_from_document(pretrained_record(name)["recipe"])


def pretrained_card(name: str) -> str:
    """Write the card of a network, the ``README.md`` beside its record."""
    opening = _OPENING.format(
        name=name, side=IMAGE_SIZE, times=pretrained_recipe(name).model.width ** -2
    )
    num_parameters = sum(parameter.numel() for parameter in load_pretrained(name).parameters())
    return write_card(
        pretrained_record(name), name=name, opening=opening, num_parameters=num_parameters
    )
