r"""Put a network that ``lbq_paper.accuracy measure`` kept among the pretrained ones.

    python -m lbq_paper.ship_tuned burst-15 pocket-15-cifar10 --seed 0

copies its weights, writes its record, and needs ``record_exact.py`` after it for exact counts and
the card.
"""

import argparse
import json
import shutil
from pathlib import Path

from lbq.pretrained import pretrained_record
from lbq.pretrained.loading import FOLDER
from lbq_paper.against_ann import RECORDS
from lbq_paper.trained_network import ANN, POCKET


def main() -> None:
    """Copy the weights and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("network")
    parser.add_argument("name", help="name of the pretrained network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=RECORDS)
    options = parser.parse_args()
    path = options.folder / f"{options.network}-{options.seed}.json"
    found, ann = json.loads(path.read_text()), json.loads(ANN.with_suffix(".json").read_text())
    accuracy = found["correct"] / found["count"]
    epochs = found["recipe"]["epochs"]
    before = found["total_epochs"] - epochs
    stages = f", tuned for {before} epochs with more levels," if before else ""
    record = {
        "name": options.name,
        "classes": pretrained_record(POCKET)["classes"],
        "started_from": (
            f"the ReLU network of {ann['recipe']['epochs']} epochs "
            f"({ann['accuracy_after_last_epoch']:.2%}) by `lbq.from_ann`{stages} and taught by it"
        ),
        "accuracy_after_last_epoch": accuracy,
        "best_on_test_set": {"accuracy": accuracy, "epoch": epochs},
        **{key: found[key] for key in ("recipe", "correct", "count", "weights_sha256")},
        **{key: found[key] for key in ("minutes", "attempts", "machine", "commit", "versions")},
        **{key: found[key] for key in ("data_sha256", "curve")},
        "evaluations": [{"epoch": epochs, "accuracy": accuracy}],
    }
    folder = FOLDER / options.name
    folder.mkdir(exist_ok=True)
    shutil.copyfile(path.with_suffix(".safetensors"), folder / "model.safetensors")
    (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
