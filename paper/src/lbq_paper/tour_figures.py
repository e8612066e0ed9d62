"""Draw the figures of the tour: ``python -m lbq_paper.tour_figures DATA``, DATA holds CIFAR-10.

They are committed, so that the site is built without data and without matplotlib.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import lbq
from lbq import data
from lbq import functional as lbqf
from lbq_paper.checkout import ROOT

FOLDER = ROOT / "docs" / "figures"
BLUE, RED, GREY, GREEN = "#3b6ea5", "#c0504d", "#8a8a8a", "#5b8c5a"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "lbq",  # the same bytes every time
    "legend.frameon": False,
    "figure.facecolor": "white",  # readable on a dark page too
}


def draw_neuron() -> Figure:
    """Draw the membrane and the levels of a neuron for some currents."""
    torch.manual_seed(3)
    currents = torch.rand(14) * 1.3
    currents[7:10] += 1.6
    membranes, levels, carry = [], [], torch.zeros(())
    step = torch.tensor(0.5)
    for current in currents:  # the equations one by one: Eqs. 7, 6 and 8
        membrane = lbqf.integrate(carry, current, decay=0.5)
        level = lbqf.burst_level(membrane, step, max_level=5)
        carry = lbqf.soft_reset(membrane, level, step=step, reset=1.0)
        membranes.append(membrane.item())
        levels.append(int(level))
    bursts = lbq.BurstLIF(max_level=5, step=0.5)(currents.reshape(-1, 1, 1)).flatten()
    assert torch.equal(bursts, 0.5 * torch.tensor(levels)), "the neuron of the library agrees"

    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 3.6), sharex=True)
    for threshold in range(1, 6):
        above.axhline(0.5 * threshold, color=GREY, linewidth=0.5, linestyle=":")
    above.bar(range(14), currents, width=0.3, color="#d5dbe3", label="current")
    above.plot(membranes, "o-", color=BLUE, markersize=4, label="membrane")
    above.set_ylabel("potential")
    above.legend(loc="upper left", ncols=2)
    below.bar(range(14), levels, width=0.6, color=RED)
    for t, level in enumerate(levels):
        below.text(t, level + 0.1, str(level), ha="center", fontsize=8)
    below.set(xlabel="timestep", ylabel="level", ylim=(0, 5.8), xticks=range(14))
    return figure


def draw_staircase() -> Figure:
    """Draw the burst of a neuron over its membrane, and the slope that training uses."""
    membrane = torch.linspace(-1, 4, 2001)
    figure, (left, right) = plt.subplots(1, 2, figsize=(7, 2.8))
    for step, color in ((1.0, GREY), (0.5, RED), (0.25, BLUE)):
        gamma = torch.tensor(step)
        level = lbqf.burst_level(membrane, gamma, max_level=5)
        left.plot(membrane, gamma * level, color=color, label=f"step {step:g}")
    left.set(xlabel="membrane", ylabel="burst = step x level", title="forward: a staircase")
    left.legend()
    for tail, color in ((0.2, GREY), (0.5, RED), (0.8, BLUE)):
        surrogate = lbq.ReLSGET(tail=tail)
        current = (membrane * 2).reshape(1, 1, -1).requires_grad_()
        lbq.BurstLIF(max_level=5, step=1.0, surrogate=surrogate)(current).sum().backward()
        assert current.grad is not None
        right.plot(current.detach().flatten(), current.grad.flatten(), color=color)
        right.plot([], [], color=color, label=f"tail {tail:g}")
    right.set(xlabel="membrane / step", ylabel="slope", title="backward: a plateau with tails")
    right.legend()
    return figure


def draw_levels(cifar10: Path) -> Figure:
    """Draw how often the neurons of the trained pocket network emit each level."""
    config = data.DataConfig(source=str(cifar10), limit=10, limit_test=500)
    with tempfile.TemporaryDirectory() as cache:
        images = next(iter(data.eval_batches(data.open_data(config, Path(cache)), batch=500))).x
    model = lbq.load_pretrained("pocket-cifar10")
    counts: dict[str, torch.Tensor] = {}

    def count(layer: str, t: int, level: torch.Tensor) -> None:
        del t
        found = torch.bincount(level.flatten().long(), minlength=6)
        counts[layer] = counts.get(layer, torch.zeros(6)) + found

    with torch.no_grad(), lbq.watch_levels(model, count):
        model(images)
    figure, axes = plt.subplots(figsize=(7, 3))
    _stack(axes, torch.stack([found / found.sum() for found in counts.values()]))
    return figure


def _stack(axes: Axes, shares: torch.Tensor) -> None:
    colors = mpl.colormaps["viridis_r"]([0.05, 0.3, 0.55, 0.75, 0.95])
    below = torch.zeros(len(shares))
    places = list(range(len(shares)))
    for level in range(1, 6):
        share = 100 * shares[:, level]
        axes.bar(places, share, bottom=below, color=colors[level - 1], label=f"level {level}")
        below = below + share
    axes.set(xlabel="layer, from the image to the answer", ylabel="neurons, %", xticks=places)
    axes.legend(ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.18))


def main() -> None:
    """Draw all of them."""
    with mpl.rc_context(STYLE):
        for name, figure in {
            "neuron": draw_neuron(),
            "staircase": draw_staircase(),
            "levels": draw_levels(Path(sys.argv[1])),
        }.items():
            figure.savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
