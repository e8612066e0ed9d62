r"""Ways to spend fewer accumulations: accuracy against bit-sparse accumulations.

    python -m lbq_paper.budget_search --data $LBQ_DATA/cifar10 --seeds 0 1 2

The small network of ``lbq_paper`` (T = 1, N = 5) is trained once for every seed, then tuned in
every way for ``--epochs``; ``scratch-*`` are trained under the budget from their first step, for as
many epochs in all. The ReLU network of pocket size teaches ``taught-*``; the network before tuning
teaches ``distil-*``. A share is that of the accumulations before tuning. One record per way and
seed in ``--out``; those that exist are not run again. Networks of pocket size:
``lbq_paper.accuracy``.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import lbq
from lbq.cli.samples import open_samples, sample_batches
from lbq.data import Data, steps_per_epoch, train_batches
from lbq.neurons import named_neurons
from lbq.train import CostConfig, NeuronConfig, RunOptions, load_run, train
from lbq.train.optim import (
    OptimConfig,
    ScheduleConfig,
    build_optimizer,
    learning_rate_factor,
    set_learning_rate,
)
from lbq.train.provenance import git_commit
from lbq.train.recipe import Recipe
from lbq_paper.experiments import ABLATION, LBQ, study_recipe
from lbq_paper.measure import measure
from lbq_paper.trained_network import trained_ann

RAMP = 0.25
"""Share of the tuning over which the weight of a term rises."""

TEACHERS = {"distil": "start", "taught": "ann"}
"""Ways that have a teacher: the network before tuning, or the ReLU network of pocket size."""


class Watched:
    """Bursts of all neurons in the last forward pass, for terms other than a budget."""

    def __init__(self, model: nn.Module) -> None:
        self.bursts: dict[str, Tensor] = {}
        self.steps: dict[str, Callable[[], Tensor]] = {}
        for path, neuron in named_neurons(model):
            neuron.output.register_forward_hook(partial(self._keep, path))
            self.steps[path] = cast(Callable[[], Tensor], neuron.step)

    def _keep(self, path: str, module: nn.Module, args: Any, bursts: Tensor) -> None:
        self.bursts[path] = bursts

    def hoyer(self) -> Tensor:
        """Return (sum |x|)^2 / sum x^2 per neuron, averaged over layers."""
        terms = [x.sum() ** 2 / (x.square().sum() + 1e-6) / x.numel() for x in self.bursts.values()]
        return torch.stack(terms).mean()

    def planes(self) -> Tensor:
        """Return the group lasso over bit planes: each level's planes, weighted by 1 / norm."""
        terms: list[Tensor] = []
        for path, x in self.bursts.items():
            levels = x / self.steps[path]().detach()
            whole = levels.detach().round().to(torch.uint8)
            for plane in range(3):
                bit = (whole >> plane & 1).float()
                norm = bit.mean().sqrt() + 1e-3
                # A bit has no slope of its own: it falls or rises as its level does.
                sign = (whole + 1 >> plane & 1).float() - bit
                terms.append((bit + sign * (levels - levels.detach())).mean() / norm)
        return torch.stack(terms).mean()


def cost_of(model: nn.Module, images: Tensor, table: Any = "popcount") -> float:
    """Return the cost by this table per MAC of the ANN, over these images."""
    budget = lbq.CostBudget(model, images[:1], table=table, budget=1.0)
    with torch.no_grad():
        model.eval()(images)
    budget.remove()
    return budget.cost_per_mac


def _nothing(done: float) -> float:
    del done
    return 0.0


def _rising(of_bursts: Callable[[], Tensor], weight: float) -> Callable[[float], Tensor]:
    return lambda done: weight * min(1.0, done / RAMP) * of_bursts()


def tune(
    model: nn.Module,
    data: Data,
    recipe: Recipe,
    options: argparse.Namespace,
    *,
    term: Callable[[float], Tensor | float] = _nothing,
    teacher: nn.Module | None = None,
    only: str = "",
    kept: Path,
) -> list[dict[str, float]]:
    """Train on, return losses; ``term`` gets the share of the tuning that is done.

    Every epoch is kept in ``kept``, and the next call continues from there.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(only in name)
    model = model.to(memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]
    config = OptimConfig(lr=options.lr, weight_decay=recipe.optim.weight_decay)
    optimizer = build_optimizer(model, config)
    steps = steps_per_epoch(data, recipe.batch)
    first, curve = _resumed(kept, model, optimizer)
    for epoch in range(first, options.epochs):
        batches = train_batches(
            data, seed=recipe.seed + 100, epoch=epoch, global_batch=recipe.batch
        )
        for n, (given, target, _) in enumerate(batches):
            step = epoch * steps + n
            factor = learning_rate_factor(
                ScheduleConfig(), step=step, steps_per_epoch=steps, epochs=options.epochs
            )
            set_learning_rate(optimizer, factor * config.lr)
            images = given.contiguous(memory_format=torch.channels_last)
            logits = model(images)
            loss = F.cross_entropy(logits, target, label_smoothing=recipe.label_smoothing)
            loss = loss + term(step / (options.epochs * steps))
            if teacher is not None:
                with torch.no_grad():
                    wanted = teacher(images).log_softmax(1)
                loss = loss + F.kl_div(
                    logits.log_softmax(1), wanted, reduction="batchmean", log_target=True
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if n % 100 == 0:
                curve.append({"epoch": round(step / steps, 3), "loss": round(loss.item(), 3)})
                print(f"  epoch {epoch} step {n}/{steps} loss {loss.item():.3f}", flush=True)
        _keep_epoch(kept, epoch + 1, model, optimizer, curve)
    return curve


def _keep_epoch(
    path: Path,
    done: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    curve: list[dict[str, float]],
) -> None:
    tensors = {f"model.{key}": value.contiguous() for key, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        if parameter in optimizer.state:
            tensors[f"momentum.{name}"] = optimizer.state[parameter]["momentum_buffer"].contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, new := path.with_suffix(".new"), {"done": json.dumps([done, curve])})
    new.replace(path)


def _resumed(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[int, list[dict[str, float]]]:
    if not path.exists():
        return 0, []
    with safe_open(path, "pt") as file:
        done, curve = json.loads(file.metadata()["done"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    model.load_state_dict({k[6:]: v for k, v in tensors.items() if k.startswith("model.")})
    for name, parameter in model.named_parameters():
        if f"momentum.{name}" in tensors:
            kept = torch.empty_like(parameter).copy_(tensors[f"momentum.{name}"])
            optimizer.state[parameter]["momentum_buffer"] = kept
    return done, curve


def ways(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every way by its name, with what :func:`run` does."""
    yield "start", {"epochs": 0}
    yield "tune", {}
    for share in options.shares:
        for table in ("popcount", "unary", "events"):
            yield f"tune-{table}-{share}", {"tables": (table,), "share": share}
        yield f"tune-unary-popcount-{share}", {"tables": ("unary", "popcount"), "share": share}
        concave = tuple(float(torch.tensor(1.0 + level).log2()) for level in range(6))
        yield f"tune-log-{share}", {"tables": (concave,), "share": share}
        for kind, teacher in TEACHERS.items():
            tables = {"tables": ("popcount",), "share": share}
            yield f"{kind}-popcount-{share}", {"teacher": teacher, **tables}
        yield f"steps-popcount-{share}", {"tables": ("popcount",), "share": share, "only": "step"}
        yield f"scratch-popcount-{share}", {"scratch": "popcount", "share": share}
    for kind, teacher in TEACHERS.items():
        yield kind, {"teacher": teacher}
    for weight in (0.3, 1.0, 3.0):
        yield f"hoyer-{weight}", {"of_bursts": "hoyer", "weight": weight}
        yield f"planes-{weight}", {"of_bursts": "planes", "weight": weight}
    for shift in (0.1, 0.2):
        yield f"shift-{shift}", {"shift": shift}
    yield "powers", {"powers": True}
    yield "untuned-powers", {"powers": True, "epochs": 0}
    for share in options.shares:
        yield f"largest-{share}", {"largest": share}
        yield f"largest-untuned-{share}", {"largest": share, "epochs": 0}
    for share in (0.5, 0.75):  # cheap ways to spend less, trained for as many epochs
        yield f"narrow-{share}", {"plain": LBQ, "narrow": share}
        yield f"ann-{share}", {"plain": ABLATION["ANN"], "narrow": share}
    for level in (2, 3):
        yield f"levels-{level}", {"plain": replace(LBQ, max_level=level), "narrow": 1.0}
    for share in options.shares:
        tables = {"tables": ("popcount",), "share": share}
        yield f"powers-popcount-{share}", {"powers": True, **tables}


def train_whole(recipe: Recipe, folder: Path, threads: int) -> None:
    """Train to the last epoch; a signal ends this program instead of leaving half a network.

    A network that older code has trained is used unchanged.
    """
    options = RunOptions(threads=threads, workers=0, allow_changed=("code",))
    outcome = train(recipe, folder, options=options)
    if outcome.exit_code:
        raise SystemExit(outcome.exit_code)


def budget_term(
    model: nn.Module, example: Tensor, tables: list[Any], costs: list[float], weight: float
) -> Callable[[float], Tensor]:
    """Return the term of one budget after the other; the weight rises once."""
    count = len(tables)
    current: list[Any] = [None, -1]

    def term(done: float) -> Tensor:
        now = min(count - 1, int(done * count))
        if current[1] != now:  # takes effect with the next forward pass
            if current[0] is not None:
                current[0].remove()
            current[:] = [lbq.CostBudget(model, example, table=tables[now], budget=costs[now]), now]
            return torch.zeros(())
        current[0].weight = weight * min(1.0, done / RAMP)
        return current[0]()

    return term


@torch.no_grad()
def shift_currents(model: nn.Module, shift: float) -> None:
    """Lower the bias of every normalisation by a part of the mean step."""
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    steps = [neuron.step().mean() for _, neuron in named_neurons(model)]  # pyright: ignore
    for norm in norms:
        norm.bias.sub_(shift * torch.stack(steps).mean())


def with_powers(model: nn.Module) -> nn.Module:
    """Give every neuron the levels 0, 1, 2, 4."""
    neurons: list[tuple[str, Any]] = list(named_neurons(model))
    for path, neuron in neurons:
        other = lbq.BurstLIF(
            4,
            step=deepcopy(neuron.step),
            decay=neuron.decay().item(),
            surrogate=deepcopy(neuron.surrogate),
            level_set="powers",
        )
        model.set_submodule(path, other)
    return model


def set_max_level(neuron: Any, level: int) -> None:
    """Make this the largest level of a burst neuron."""
    vars(neuron)["max_level"] = level  # together with its options
    neuron.options = replace(neuron.options, max_level=level, hi=neuron.surrogate.hi(level))


@torch.no_grad()
def limit_levels(model: nn.Module, images: Tensor, labels: Tensor, cost: float) -> dict[str, int]:
    """Lower the largest level of one neuron after the other until the cost per MAC is reached.

    Each time the neuron and level are chosen that raise the loss least for the saved cost.
    """
    neurons = dict(named_neurons(model.eval()))
    budget = lbq.CostBudget(model, images[:1], budget=1.0)

    def measured() -> tuple[float, float]:
        loss = F.cross_entropy(model(images), labels).item()
        return loss, budget.cost_per_mac

    now = measured()
    while now[1] > cost:
        found: list[tuple[float, str, int, tuple[float, float]]] = []
        for path, neuron in neurons.items():
            largest = neuron.max_level
            for level in range(1, largest):
                set_max_level(neuron, level)
                loss, saved = measured()
                if saved < now[1]:
                    found.append(((loss - now[0]) / (now[1] - saved), path, level, (loss, saved)))
            set_max_level(neuron, largest)
        if not found:
            break
        _, path, level, now = min(found)
        set_max_level(neurons[path], level)
    budget.remove()
    return {path: neuron.max_level for path, neuron in neurons.items()}


def run(name: str, way: dict[str, Any], seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train and measure, unless there is a record."""
    path = options.out / f"cells-{options.epochs}-epochs" / f"{name}-{seed}.json"
    if path.exists():
        return json.loads(path.read_text())
    began, curve, chosen = time.time(), list[dict[str, float]](), dict[str, int]()
    if "plain" in way:
        return trained_plainly(name, way, seed, options, path)
    model, recipe, data = start(seed, options)
    settings = f"lr-{options.lr}-weight-{options.weight}"
    kept = options.runs / f"{options.epochs}-epochs-{settings}" / f"{name}-{seed}.safetensors"
    images = next(sample_batches(data, split="train", limit=256, batch=256)).real
    before = cost_of(model, images)
    teachers = {"start": partial(deepcopy, model), "ann": trained_ann}
    teacher = teachers[way["teacher"]]().eval() if "teacher" in way else None
    if "scratch" in way:
        recipe = replace(
            recipe,
            epochs=recipe.epochs + options.epochs,
            budget=before * way["share"],
            cost=CostConfig(table=way["scratch"], weight=options.weight),
        )
        folder = options.runs / f"{name}-{seed}"
        train_whole(recipe, folder, options.threads)
        model = load_run(folder).model
    else:
        if "shift" in way:
            shift_currents(model, way["shift"])
        if way.get("powers"):
            model = with_powers(model)
        if "largest" in way:
            batch = next(sample_batches(data, split="train", limit=512, batch=512))
            chosen = limit_levels(model, batch.real, batch.target, before * way["largest"])
        term: Callable[[float], Tensor | float] = _nothing
        if "tables" in way:
            tables = [
                t if isinstance(t, str) else t[: options.max_level + 1] for t in way["tables"]
            ]
            costs = [way["share"] * cost_of(model, images, table) for table in tables]
            term = budget_term(model, images[:1], tables, costs, options.weight)
        if "of_bursts" in way:
            watched = Watched(model)
            term = _rising(getattr(watched, way["of_bursts"]), way["weight"])

        if way.get("epochs", options.epochs):
            only = way.get("only", "")
            curve = tune(
                model, data, recipe, options, term=term, teacher=teacher, only=only, kept=kept
            )
    record = written(path, name, model, data, recipe, options, began, curve, chosen)
    kept.unlink(missing_ok=True)
    return record


def trained_plainly(
    name: str, way: dict[str, Any], seed: int, options: argparse.Namespace, path: Path
) -> dict[str, Any]:
    """Train another network from scratch, without a budget."""
    began = time.time()
    recipe = small_recipe(way["plain"], seed, options)
    width = recipe.model.width * way["narrow"]
    recipe = replace(
        recipe,
        epochs=recipe.epochs + options.epochs,
        model=replace(recipe.model, width=width),
        compile=False,
    )
    folder = options.runs / f"{name}-{seed}"
    train_whole(recipe, folder, options.threads)
    data = open_samples(recipe, source=options.data, cache=options.cache)
    return written(path, name, load_run(folder).model, data, recipe, options, began, [], {})


def written(
    path: Path,
    name: str,
    model: nn.Module,
    data: Data,
    recipe: Recipe,
    options: argparse.Namespace,
    began: float,
    curve: list[dict[str, float]],
    largest: dict[str, int],
) -> dict[str, Any]:
    """Measure on the whole test set and write the record."""
    found = measure(model.eval(), data, recipe, device=torch.device("cpu"))
    counts = found["counts"]
    images = counts["num_images"]
    record = {
        "way": name,
        "seed": recipe.seed,
        "commit": git_commit(),
        "epochs": options.epochs,
        "lr": options.lr,
        "weight": options.weight,
        "accuracy": found["measured_correct"] / images,
        "bit_sparse_acs": counts.get("bit_sparse_acs", 0) / images,
        "unary_acs": counts.get("unary_acs", 0) / images,
        "unit_event_acs": counts.get("unit_event_acs", 0) / images,
        "ann_macs": counts["ann_macs"],
        "active": found.get("active_ratio", 0.0),
        "layers": found["layers"],
        "minutes": round((time.time() - began) / 60, 1),
        "curve": curve,
    }
    if largest:
        record["largest_levels"] = largest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def small_recipe(neuron: NeuronConfig, seed: int, options: argparse.Namespace) -> Recipe:
    """Return the recipe of ``lbq_paper``'s small experiments at one timestep."""
    recipe = study_recipe(neuron)
    return replace(
        recipe,
        precision="fp32",
        seed=seed,
        model=replace(recipe.model, timesteps=1),
        data=replace(recipe.data, source=options.data),
    )


def start(seed: int, options: argparse.Namespace) -> tuple[nn.Module, Recipe, Data]:
    """Return the trained network that is tuned."""
    recipe = small_recipe(replace(LBQ, max_level=options.max_level), seed, options)
    folder = options.runs / f"start-{seed}"
    train_whole(recipe, folder, options.threads)
    data = open_samples(recipe, source=options.data, cache=options.cache)
    return load_run(folder).model, recipe, data


def main() -> None:
    """Run the requested ways; print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, default=Path("results/budget"))
    parser.add_argument("--runs", type=Path, default=Path("runs/budget"))
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/lbq"))
    parser.add_argument("--only", nargs="+", help="names of ways")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of the tuning")
    parser.add_argument("--weight", type=float, default=1.0)
    parser.add_argument("--max-level", type=int, default=5)
    parser.add_argument("--shares", nargs="+", type=float, default=[0.7, 0.5, 0.35])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name, way in ways(options):
        if options.only and name not in options.only:
            continue
        rows = [run(name, way, seed, options) for seed in options.seeds]
        accuracy, acs, active = (
            statistics.mean(r[key] for r in rows)
            for key in ("accuracy", "bit_sparse_acs", "active")
        )
        print(
            f"{name:28}{accuracy:9.2%}{acs / 1e6:9.3f} M{active:8.1%} active  n={len(rows)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
