"""Write the results of a run as one JSON file that can be committed.

    python -m lbq_paper.record_run runs/pocket results/training/pocket.json [--weights]

With ``--weights`` the last checkpoint's weights are copied beside it, as ``.safetensors``.
"""

import argparse
import json
import shutil
from pathlib import Path

from lbq.adapters.run_record import record_run


def main() -> None:
    """Write the record, and the weights if asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", action="store_true", help="copy the weights too")
    arguments = parser.parse_args()
    found = record_run(arguments.run)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.weights:
        checkpoints = arguments.run / "checkpoints"
        newest = max(checkpoints.glob("*.model.safetensors"))
        average = newest.with_name(newest.name.replace(".model.", ".average."))
        weights = average if average.exists() else newest
        shutil.copyfile(weights, arguments.out.with_suffix(".safetensors"))
    print(f"{found['accuracy_after_last_epoch']:.2%} in {found['minutes']} minutes")


if __name__ == "__main__":
    main()
