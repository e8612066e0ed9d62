"""The time that a budget costs: a training step of ResNet-20 with and without ``lbq.CostBudget``.

    python benchmarks/bench_budget.py --out benchmarks/results/budget.json

Interleaved, fp32, random images, freed memory kept as in training; the budget is below the cost, so
its gradient is computed. Both parts of a round run at the same clock, so the ratios of rounds are
compared, by their median.
"""

import argparse
import statistics
from functools import partial
from pathlib import Path

import torch
from measure import interleaved, write_record
from torch.nn import functional as F

import lbq
from lbq.train.allocator import keep_freed_memory
from lbq.train.provenance import git_commit


def step(model: torch.nn.Module, images: torch.Tensor, budget: lbq.CostBudget | None) -> None:
    """Run forward and backward."""
    loss = F.cross_entropy(model(images), torch.arange(len(images)) % 10)
    (loss if budget is None else loss + budget()).backward()


def main() -> None:
    """Measure both widths."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--widths", type=float, nargs="+", default=[0.125, 1.0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    record: dict[str, object] = {"commit": git_commit()}
    for width in options.widths:
        plain, limited = (lbq.resnet20(10, width=width) for _ in range(2))
        images = torch.randn(options.batch, 3, 32, 32)
        budget = lbq.CostBudget(limited, images[:1], budget=0.01)
        runs = {
            "plain": partial(step, plain, images, None),
            "budget": partial(step, limited, images, budget),
        }
        times = interleaved(runs, rounds=options.rounds, warmups=2, device="cpu")
        rounds = zip(times["budget"], times["plain"], strict=True)
        ratios = {
            "by_rounds": statistics.median(limited / plain for limited, plain in rounds),
            "by_minima": min(times["budget"]) / min(times["plain"]),
        }
        print(f"width {width}: {ratios['by_rounds']:.3f}, {ratios['by_minima']:.3f} by minima")
        record[f"width {width}"] = ratios
    write_record(options.out, record)


if __name__ == "__main__":
    main()
