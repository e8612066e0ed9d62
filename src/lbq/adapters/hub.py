"""The Hugging Face hub: a trained network as a folder that anyone can load, and back.

``PyTorchModelHubMixin`` is not used: it loads a pickle where a repository has no safetensors, and
passes any configuration to a constructor.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from lbq.atomic_files import atomic_write
from lbq.config_io import dump_json, read_fields, read_json, to_document
from lbq.errors import FormatError, MissingExtraError, ParameterError, install_command
from lbq.models.resnet import SpikingResNet
from lbq.models.spikeformer import SpikeFormer
from lbq.pretrained.model_card import CARD, write_card
from lbq.ranges import Range
from lbq.train.checkpoint import parse_tensors
from lbq.train.provenance import structure_digest
from lbq.train.recipe import Recipe, recipe_from_document
from lbq.train.run_folder import load_tensors_into, network_from_tensors

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMAT = "lbq-network-2"
_FIELDS = {
    "format": str,
    "num_classes": Annotated[int, Range(1, 1 << 20)],
    "recipe": dict,
    "weights_sha256": str,
}
_OWN_FIELDS = {"format": str, "structure": str, "weights_sha256": str}
"""Fields of a network without a recipe: the digest of its structure in place of the recipe."""

_OPENING = """
A spiking network whose neurons emit integer levels ([lbq](https://pypi.org/project/lbq)).
`config.json` is data (the recipe, and the SHA-256 of `model.safetensors`) and `model.safetensors`
numbers: loading them runs no code of theirs.

```python
from lbq.adapters.hub import from_pretrained

model = from_pretrained("this/repository")  # or a folder; in eval mode
```
"""

_OWN_OPENING = """
A network that [lbq](https://pypi.org/project/lbq) trained, without its code: build the same
modules, then load the weights. `config.json` is data (a digest of the structure, and the SHA-256 of
`model.safetensors`) and `model.safetensors` numbers: loading them runs no code of theirs.

```python
from lbq.adapters.hub import from_pretrained

model = from_pretrained("this/repository", model=my_model)  # or a folder; in eval mode
```
"""


def save_pretrained(model: nn.Module, folder: str | Path, *, record: dict[str, Any]) -> None:
    """Write a trained network as a folder: weights, settings and model card.

    Args:
        model: the network, as :func:`lbq.train.run_folder.load_run` returns it.
        folder: the folder to write; created if it does not exist.
        record: record of the run that trained it, from ``record_run`` or read from its JSON file.

    Example:
        >>> model = lbq.train.load_run(Path("runs/pocket")).model
        >>> save_pretrained(model, "pocket", record=record_run(Path("runs/pocket")))
    """
    is_own = {"structure", "config", "model"} <= record.keys()
    if not is_own and not {"recipe", "accuracy_after_last_epoch"} <= record.keys():
        raise FormatError(
            f"save_pretrained needs the record of a run, got "
            f"{', '.join(record) or 'an empty one'}; pass the result of record_run, or its JSON "
            f"file"
        )
    folder = Path(folder)
    tensors = {n: tensor.detach().clone().contiguous() for n, tensor in model.state_dict().items()}
    described = _describe_own(model, record) if is_own else _describe(model, record, tensors)
    name = record["model"] if is_own else described["recipe"]["name"]
    weights = save_tensors(tensors, metadata={"format": "pt"})
    config = {
        "format": FORMAT,
        **described,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    card = write_card(
        record,
        name=name,
        opening=_OWN_OPENING if is_own else _OPENING,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
    )
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / WEIGHTS, weights)
    atomic_write(folder / CARD, f"---\n{_front_matter(record)}---\n\n{card}".encode())
    atomic_write(folder / CONFIG, dump_json(config).encode())


def _describe(
    model: nn.Module, record: dict[str, Any], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Return the data that rebuild a recipe's network; raise if it is not the record's."""
    recipe, num_classes = recipe_from_document(record["recipe"]), _num_classes(model)
    what = "the model, against its record's recipe,"
    network_from_tensors(recipe.model, tensors, num_classes=num_classes, what=what)
    return {"num_classes": num_classes, "recipe": to_document(recipe)}


def _describe_own(model: nn.Module, record: dict[str, Any]) -> dict[str, Any]:
    """Return the data that identify any other network; raise if it is not the record's."""
    if structure_digest(model) != record["structure"]:
        raise FormatError(
            "the model has other modules or settings than the record's model; pass the model that "
            "lbq.load_run loaded from the same run"
        )
    return {"structure": record["structure"]}


def from_pretrained(
    source: str | Path,
    model: nn.Module | None = None,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
) -> nn.Module:
    """Load a network that :func:`save_pretrained` wrote, in eval mode.

    ``preprocessing`` of a recipe's network says how its inputs are normalised.

    The weights are compared with their SHA-256 before they are parsed, and with the network that
    the configuration describes before it is built. Nothing in the folder is run or imported.

    Args:
        source: a folder, or the name of a repository on the hub (needs the extra ``[hub]``).
        model: for a run of :func:`lbq.fit`, a network of the same structure to load the weights
            into; leave it out for a recipe, whose network is built.
        revision: revision of the repository; name a commit to get the same bits tomorrow.
        local_files_only: take the repository from the cache, without network.
    """
    folder = _folder(source, revision, local_files_only)
    config = _read_config(folder)
    weights = _read(folder / WEIGHTS)
    found = hashlib.sha256(weights).hexdigest()
    if found != config["weights_sha256"]:
        raise FormatError(
            f"{folder / WEIGHTS} has SHA-256 {found}, but {CONFIG} says "
            f"{config['weights_sha256']}: the file is damaged or was replaced"
        )
    tensors, what = parse_tensors(folder / WEIGHTS, weights), str(folder / WEIGHTS)
    if "recipe" in config:
        if model is not None:
            raise ParameterError(f"{source} holds a recipe that builds the model; leave out model")
        recipe, num_classes = recipe_from_document(config["recipe"]), config["num_classes"]
        built = network_from_tensors(recipe.model, tensors, num_classes=num_classes, what=what)
        built.preprocessing = recipe.data.preprocessing
        return built.eval()
    if model is None:
        raise ParameterError(
            f"{source} does not say how its network is built; pass one of the same structure: "
            f"from_pretrained({str(source)!r}, model=my_model)"
        )
    load_tensors_into(model, tensors, structure=config["structure"], what=what)
    return model.eval()


def pretrained_recipe(
    source: str | Path, *, revision: str | None = None, local_files_only: bool = False
) -> Recipe:
    """Read the recipe that trained such a network, with its data and their normalisation."""
    config = _read_config(_folder(source, revision, local_files_only))
    if "recipe" not in config:
        raise FormatError(f"{source} holds no recipe, since the network was not trained by one")
    return recipe_from_document(config["recipe"])


def _front_matter(record: dict[str, Any]) -> str:
    """Write the part of a card that the hub reads: YAML, with each value quoted as JSON."""
    fields: dict[str, Any] = {
        "library_name": "lbq",
        "tags": ["spiking-neural-network", "learnable-burst-quantization"],
    }
    if "correct" in record:
        fields["metrics"] = ["accuracy"]
    if "recipe" in record:  # results need the name of a data set
        name, source = record["recipe"]["name"], record["recipe"]["data"]["source"]
        accuracy = {"type": "accuracy", "value": record["accuracy_after_last_epoch"]}
        result = {
            "task": {"type": "image-classification"},
            "dataset": {"name": source, "type": source},
            "metrics": [accuracy],
        }
        fields["model-index"] = [{"name": name, "results": [result]}]
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in fields.items())


def _folder(source: str | Path, revision: str | None, local_files_only: bool) -> Path:
    if Path(source).is_dir():
        return Path(source)
    if not isinstance(source, str) or source.count("/") != 1 or source.startswith((".", "/")):
        raise FormatError(
            f"{source} is neither a folder here nor the name of a repository, owner/name"
        )
    try:
        import huggingface_hub  # noqa: PLC0415 -- an extra
    except ImportError as error:
        raise MissingExtraError(
            f"loading from the hub needs it: {install_command('hub')}"
        ) from error
    try:
        found = huggingface_hub.snapshot_download(
            source,
            revision=revision,
            allow_patterns=[CONFIG, WEIGHTS],
            local_files_only=local_files_only,
        )
    except Exception as error:  # the hub's own, and those of the library that it calls
        raise FormatError(
            f"{source} cannot be read from the hub ({type(error).__name__}: {error}); check its "
            f"name and the connection, or name a folder"
        ) from error
    return Path(found)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    document = read_json(path, expected_format=FORMAT)
    is_own = isinstance(document, dict) and "structure" in document
    return read_fields(_OWN_FIELDS if is_own else _FIELDS, document, str(path))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FormatError(
            f"{path} cannot be read: {error.strerror}; save_pretrained writes it"
        ) from error


def _num_classes(model: nn.Module) -> int:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not isinstance(model, SpikingResNet | SpikeFormer) or not layers:
        raise FormatError(
            f"the model must be the network of the record's recipe, got {type(model).__name__}; "
            f"pass the model that lbq.load_run loaded from the same run"
        )
    return layers[-1].out_features
