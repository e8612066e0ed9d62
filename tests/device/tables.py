"""The tables of docs/how-to, written from results/devices.json.

python tests/device/tables.py   writes them into the pages, between their comments
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- of results/devices.json -->\n", "\n<!-- end -->"
NAMES = {
    "tiny_nmnist-all": "N-MNIST, levels 0..5",
    "tiny_nmnist-powers": "N-MNIST, levels 0, 1, 2, 4",
    "tiny_cifar-all": "CIFAR-10, levels 0..5",
    "tiny_cifar-powers": "CIFAR-10, levels 0, 1, 2, 4",
}


def tables():
    """Return the tables by page."""
    record = json.loads((ROOT / "results" / "devices.json").read_text())["networks"]
    rows = {name: record[key] for key, name in NAMES.items() if key in record}
    return {"microcontroller.md": _boards(rows), "fpga.md": _designs(rows)}


def _boards(rows):
    lines = [
        "| network | accuracy | code | flash | static memory | instructions, M3 | M7 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        for kind in ("dense", "events") if "board" in row else ():
            m3, m7 = (row["board"][f"cortex-{cpu}, {kind}"] for cpu in ("m3", "m7"))
            lines.append(
                f"| {name} | {_accuracy(row)} | {kind} | {m3['flash']:,} | {m3['ram']:,} | "
                f"{m3['instructions']:,.0f} | {m7['instructions']:,.0f} |"
            )
    return "\n".join(lines) + "\n"


def _designs(rows):
    lines = [
        "| network | variant | accumulations | cycles | LUTs | flip-flops | block RAMs | gates |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        for variant, found in row["verilog"].items() if "cells" in row else ():
            cells, generic = (row["cells"][f"{variant}, {kind}"] for kind in ("ice40", "generic"))
            flops = sum(n for cell, n in cells.items() if cell.startswith("SB_DFF"))
            gates = sum(n for cell, n in generic.items() if cell.startswith("$_"))
            lines.append(
                f"| {name} | {variant} | {found['accumulations'] / found['samples']:,.0f} | "
                f"{found['cycles_per_sample']:,.0f} | {cells['SB_LUT4']:,} | {flops:,} | "
                f"{cells['SB_RAM40_4K']} | {gates:,} |"
            )
    return "\n".join(lines) + "\n"


def _accuracy(row):
    found = row["network"]
    return f"{100 * found['accuracy']:.1f} % of {found['tested']:,}"


def write():
    """Replace the tables of the pages."""
    for name, table in tables().items():
        page = ROOT / "docs" / "how-to" / name
        parts = re.split(rf"(?<={BEGIN})(?s:.*)(?={END})", page.read_text())
        page.write_text(f"\n{table}".join(parts))


if __name__ == "__main__":
    write()
