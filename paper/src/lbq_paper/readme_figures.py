"""The numbers and the figure of README.md and of the documentation's front page, from records.

    python -m lbq_paper.readme_figures            writes them again
    python -m lbq_paper.readme_figures --check    fails if a record says something else

Records: ``benchmarks/results/budgeted.json``, ``results/budget/pocket-6-epochs`` and those of the
pretrained networks. On both pages the text stands between two comments; the rest is by hand.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lbq.analysis.figures import COLOURS, STYLE, save_figure
from lbq.pretrained import load_pretrained, pretrained_record
from lbq_paper.budget_page import (
    ANN,
    BUDGETED,
    BUDGETED_RECORD,
    ENGINE,
    ISAS,
    PLAIN,
    POCKET,
    per_image,
    point,
    read,
    table,
    tuned,
)
from lbq_paper.checkout import ROOT
from lbq_paper.experiments import full_size_experiments

README, FRONT_PAGE = ROOT / "README.md", ROOT / "docs" / "index.md"
FIGURE = ROOT / "docs" / "figures" / "front.svg"
BEGIN, END = "<!-- by lbq_paper.readme_figures -->", "<!-- end -->"
FASTEST = "avx512vnni"
NAMES = {BUDGETED: "lbq, trained to a budget", PLAIN: "lbq, two timesteps", ANN: "int8 ANN"}
ROWS = {BUDGETED: ENGINE, PLAIN: PLAIN, ANN: ANN}
"""Networks, and their names in the records of times."""

TEXT = """![Accuracy against operations and time]({figure})

CIFAR-10 in integers, ResNet-20 at 1/8 of its width. Times are for one thread with {isa};
OpenVINO runs the int8 ANN. The network that was trained to a budget of operations needs
{fewer:.1f} times fewer of them than the int8 ANN, and all but {products} M are additions.
At one image it is {faster:.1f} times as fast.

**What it is not good at:**

- Accuracy: the int8 ANN is {behind:.1f} points ahead ({behind_plain:.1f} with two timesteps).
- Batches: at 64 images the int8 ANN takes {large:.0f} % less time ({large_avx2:.0f} % with AVX2).
- Memory: two timesteps move more bytes. If all of them go to DRAM, arithmetic and memory together
  take an estimated {dram:.1f} times the ANN's energy.
- Scale: small networks, trained on two CPU cores. The GPU kernels have not run on a GPU.
  {full_done} of the paper's {full_size} full-size experiments was run.

{details}
"""


def milliseconds(record: dict[str, Any], network: str, batch: int) -> float:
    """Return the time per image."""
    return per_image(record, FASTEST, f"batch {batch}", ROWS[network])


def operations(record: dict[str, Any], network: str) -> float:
    """Return millions per image: accumulations and products, or MACs of the ANN."""
    if network == ANN:
        return record["energy"][BUDGETED]["ann_macs"] / 1e6
    known = record["energy"][network]
    return (known["bit_sparse_acs"] + known["fp_macs"]) / 1e6


def numbers(record: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a row of every network."""
    for network, name in NAMES.items():
        yield [
            name if network == ANN else f"`{network}`: {name}",
            f"{100 * record['accuracy'][network]:.2f} %",
            f"{operations(record, network):.2f} M{' multiply-accumulates' * (network == ANN)}",
            *(f"{milliseconds(record, network, batch):.2f}" for batch in (1, 64)),
        ]


def block(page: Path) -> str:
    """Return the text of the records for one of the pages."""
    record = read(BUDGETED_RECORD)
    accuracy, energy = record["accuracy"], record["energy"]
    key = "int8, 32-bit sums, DRAM, uJ"
    is_readme = page == README
    heads = ["", "accuracy", "operations per image", "ms, one image", "ms per image, 64 images"]
    details = "More: [accuracy against cost](budget.md), [the engine](engine.md)."
    return TEXT.format(
        figure=FIGURE.relative_to(page.parent),
        isa=ISAS[FASTEST],
        fewer=operations(record, ANN) / operations(record, BUDGETED),
        products=f"{energy[BUDGETED]['fp_macs'] / 1e6:.2f}",
        faster=milliseconds(record, ANN, 1) / milliseconds(record, BUDGETED, 1),
        behind=100 * (accuracy[ANN] - accuracy[BUDGETED]),
        behind_plain=100 * (accuracy[ANN] - accuracy[PLAIN]),
        large=100 * (1 - record[FASTEST]["batch 64"][ANN]["times_the_engine_min"]),
        large_avx2=100 * (1 - record["avx2"]["batch 64"][ANN]["times_the_engine_min"]),
        dram=energy[PLAIN][key]["burst"] / energy[PLAIN][key]["ann"],
        full_size=len(full_size_experiments()),
        full_done=len(list((ROOT / "results" / "full").glob("*.json"))) or "None",
        details=table(heads, numbers(record)) if is_readme else details,
    )


def draw() -> Figure:
    """Draw accuracy over operations, and over time."""
    record = read(BUDGETED_RECORD)
    with rc_context(STYLE):
        figure = Figure(figsize=(6.6, 2.7), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        looks = dict(zip(NAMES, zip(COLOURS, "os^", strict=False), strict=True))
        for network, (colour, marker) in looks.items():
            y = 100 * record["accuracy"][network]
            look = {"color": colour, "marker": marker, "ms": 7, "ls": ""}
            left.plot([operations(record, network)], [y], **look)
            x = [milliseconds(record, network, batch) for batch in (1, 64)]
            right.plot([x[0]], [y], **look)
            right.plot([x[1]], [y], **{**look, "mfc": "white"})
            _name(left, operations(record, network), y, NAMES[network], colour)
        _draw_tuned(left)
        right.plot([], [], "o", color="0.4", label="one image")
        right.plot([], [], "o", color="0.4", mfc="white", label="64 images")
        right.legend(loc="lower right")
        left.set(xlabel="operations per image, millions", ylabel="accuracy, %", xlim=(0, 46))
        right.set(xlabel=f"ms per image, {ISAS[FASTEST]}, one thread", xlim=(0, None))
        left.set_ylim(85.8, 91.6)
        return figure


def _draw_tuned(axes: Axes) -> None:
    """Draw the other networks that were tuned at one timestep; these are float32 accuracies."""
    points = sorted((point(way, rows) for way, rows in tuned(POCKET).items()), key=lambda p: p.cost)
    x, y = [p.cost / 1e6 for p in points], [100 * p.accuracy for p in points]
    axes.plot(x, y, ":", marker=".", color=COLOURS[0], alpha=0.6, lw=1, zorder=1)
    axes.annotate(
        "other budgets, float32", (x[0], y[0]), (8, -2), textcoords="offset points", color="0.4"
    )


def _name(axes: Axes, x: float, y: float, name: str, colour: str) -> None:
    place = (-6, 8) if x > 20 else (9, -10)
    side = "right" if x > 20 else "left"
    axes.annotate(name, (x, y), place, textcoords="offset points", color=colour, ha=side)


def with_block(page: Path) -> str:
    """Return the page with the text between the two comments written again."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} must hold {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{block(page)}\n{END}{after}"


def differences() -> Iterator[str]:
    """Yield every difference between the pages and the records."""
    for page in (README, FRONT_PAGE):
        if page.read_text() != with_block(page):
            yield f"{page.relative_to(ROOT)}: its numbers are not those of the records"
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder) / FIGURE.name
        save_figure(draw(), again)
        if again.read_bytes() != FIGURE.read_bytes():
            yield f"{FIGURE.relative_to(ROOT)} is not the figure of the records"
    yield from _by_hand()


def _by_hand() -> Iterator[str]:
    """Compare the lines that load a pretrained network with the network's record."""
    said = re.findall(r'load_pretrained\("([\w-]+)"\)  # .*?([\d.]+) MB, ([\d.]+) %', _readme())
    if not said:
        yield "README.md names no pretrained network with size and accuracy"
    for name, megabytes, percent in said:
        accuracy = 100 * pretrained_record(name)["accuracy_after_last_epoch"]
        size = sum(p.numel() * p.element_size() for p in load_pretrained(name).parameters()) / 1e6
        if f"{accuracy:.2f}" != percent or f"{size:.0f}" != megabytes:
            yield f"README.md: {name} has {size:.0f} MB and {accuracy:.2f} %"


def _readme() -> str:
    return README.read_text()


def main() -> int:
    """Write or check."""
    if sys.argv[1:] == ["--check"]:
        found = list(differences())
        print("\n".join(found) if found else "README.md, docs/index.md and their figure agree")
        if found:
            print("write them again: python -m lbq_paper.readme_figures")
        return bool(found)
    save_figure(draw(), FIGURE)
    for page in (README, FRONT_PAGE):
        page.write_text(with_block(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
