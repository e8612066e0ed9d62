"""Ways to spend fewer accumulations, on the small experiments of ``lbq_paper``: T = 1, N = 5.

    python benchmarks/budget_search.py --data $LBQ_DATA/cifar10 --out results/budget
    python benchmarks/budget_search.py ... --only popcount-0.30 --seeds 0 1 2

One record per way and seed; those that exist are not run again, and a run that was stopped resumes.
At the end a table: accuracy on all test images after the last epoch, bit-sparse accumulations per
image, share of active neurons.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from lbq.train import BudgetConfig, RunOptions, train
from lbq.train.recipe import Recipe
from lbq_paper.experiments import LBQ, study_recipe
from lbq_paper.measure import measure_run


def ways(base: Recipe) -> Iterator[tuple[str, Recipe]]:
    """Yield every way by its name."""

    def levels(n: int) -> Recipe:
        return replace(base, model=replace(base.model, neuron=replace(LBQ, max_level=n)))

    yield "none", base
    for n in (1, 2, 3):
        yield f"levels-{n}", levels(n)
    for width in (0.1875, 0.21875):
        yield f"width-{width}", replace(base, model=replace(base.model, width=width))
    for table in ("popcount", "unary", "events"):
        for budget in (0.5, 0.4, 0.3, 0.2):
            for weight in (0.3, 1.0):
                config = BudgetConfig(budget=budget, table=table, weight=weight)
                yield f"{table}-{budget:.2f}-{weight}", replace(base, budget=config)


def run(name: str, recipe: Recipe, seed: int, options: argparse.Namespace) -> dict[str, object]:
    """Train and measure, unless there is a record."""
    path = options.out / f"{name}-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())
    folder = options.runs / f"{name}-{seed}"
    recipe = replace(recipe, seed=seed)
    settings = RunOptions(threads=options.threads, workers=0)
    train(recipe, folder, options=settings)
    found = measure_run(folder, cache=options.cache, device=torch.device("cpu"))
    counts, layers = found["counts"], found["layers"]
    images = counts["num_images"]
    record = {
        "way": name,
        "seed": seed,
        "accuracy": found["measured_correct"] / images,
        "bit_sparse_acs": counts["bit_sparse_acs"] / images,
        "unary_acs": counts["unary_acs"] / images,
        "ann_macs": counts["ann_macs"],
        "layers": layers,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def main() -> None:
    """Run what is asked for; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, default=Path("results/budget"))
    parser.add_argument("--runs", type=Path, default=Path("runs/budget"))
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/lbq"))
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    base = study_recipe(LBQ)
    base = replace(
        base,
        precision="fp32",
        model=replace(base.model, timesteps=1),
        data=replace(base.data, source=options.data),
    )
    for name, recipe in ways(base):
        if options.only and not any(name.startswith(word) for word in options.only):
            continue
        rows = [run(name, recipe, seed, options) for seed in options.seeds]
        means = [
            statistics.mean(float(str(r[key])) for r in rows)
            for key in ("accuracy", "bit_sparse_acs")
        ]
        print(f"{name:24}{100 * means[0]:8.2f} %{means[1] / 1e6:9.3f} M  n={len(rows)}", flush=True)


if __name__ == "__main__":
    main()
