"""Count the answers and accumulations of a pretrained network exactly, for its record.

    python -m lbq_paper.record_exact pocket-cifar10 --data $LBQ_DATA/cifar10

runs all test images in float64 and writes the counts after ``--few`` and after all of them, then
the model card. paper/tests/test_exact.py counts the first few again.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from lbq.data import open_data
from lbq.pretrained import load_pretrained, pretrained_recipe, pretrained_record
from lbq.pretrained.loading import FOLDER, pretrained_card
from lbq.pretrained.model_card import CARD
from lbq_paper.measure import count_exactly


def main() -> None:
    """Count, and write record and card."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("--data", required=True)
    parser.add_argument("--few", type=int, default=2_000, help="images that a test counts again")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/lbq"))
    arguments = parser.parse_args()
    config = replace(pretrained_recipe(arguments.name).data, source=arguments.data)
    data = open_data(config, arguments.cache.expanduser())
    model, record = load_pretrained(arguments.name), pretrained_record(arguments.name)
    record["exact"] = count_exactly(model, data, milestones=(arguments.few, data.num_test))
    folder = FOLDER / arguments.name
    (folder / "record.json").write_text(json.dumps(record, indent=1) + "\n")
    (folder / CARD).write_text(pretrained_card(arguments.name))
    for counts in record["exact"]["after"]:
        right = f"{counts['correct']:,} of {counts['num_images']:,} right"
        print(f"{right}, {counts['unary_acs']:,} unary ACs")


if __name__ == "__main__":
    main()
