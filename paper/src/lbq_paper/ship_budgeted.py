r"""Put a network that ``budget_search.py pocket --keep`` tuned among the pretrained ones.

    python -m lbq_paper.ship_budgeted results/budget/pocket-6-epochs/taught-popcount-0.6-0.json \
        pocket-budget-cifar10 --budget 0.26

copies its weights, writes its record, and needs ``record_exact.py`` after it for exact counts and
the card.
"""

import argparse
import hashlib
import json
from dataclasses import replace
from pathlib import Path

from lbq.adapters.run_record import machine_name
from lbq.config_io import to_document
from lbq.pretrained import pretrained_record
from lbq.pretrained.loading import FOLDER
from lbq.train import CostConfig
from lbq.train.provenance import provenance
from lbq.train.recipe import recipe_from_document
from lbq_paper.budget_search import pocket_recipe
from lbq_paper.trained_network import ANN


def main() -> None:
    """Copy the weights and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("name")
    parser.add_argument("--budget", type=float, required=True, help="accumulations per MAC")
    parser.add_argument("--max-level", type=int, default=5)
    options = parser.parse_args()
    found = json.loads(options.record.read_text())
    known = json.loads(ANN.with_suffix(".json").read_text())
    recipe = pocket_recipe(recipe_from_document(known["recipe"]), found["seed"], options.max_level)
    recipe = replace(
        recipe,
        epochs=found["epochs"],
        optim=replace(recipe.optim, lr=found["lr"]),
        budget=options.budget,
        cost=CostConfig(weight=found["weight"]),
    )
    weights = options.record.with_suffix(".safetensors").read_bytes()
    count, made = 10_000, provenance(known["data_sha256"])
    record = {
        "name": options.name,
        "classes": pretrained_record("pocket-cifar10")["classes"],
        "recipe": to_document(recipe),
        "started_from": (
            f"the ReLU network of {known['recipe']['epochs']} epochs "
            f"({known['accuracy_after_last_epoch']:.2%}) by `lbq.from_ann`, and taught by it"
        ),
        "accuracy_after_last_epoch": found["accuracy"],
        "correct": round(found["accuracy"] * count),
        "count": count,
        "best_on_test_set": {"accuracy": found["accuracy"], "epoch": found["epochs"]},
        "minutes": found["minutes"],
        "attempts": 1,
        "machine": machine_name(),
        "commit": found["commit"],
        "versions": made["versions"],
        "data_sha256": known["data_sha256"],
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "curve": found["curve"],
        "evaluations": [{"epoch": found["epochs"], "accuracy": found["accuracy"]}],
    }
    folder = FOLDER / options.name
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
