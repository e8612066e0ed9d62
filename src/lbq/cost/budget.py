"""``CostBudget``: the exact cost of a network's levels as a term of the loss.

The cost of a forward pass is the sum over all edges of fan-out times c(level), for any table c: one
per unit ("unary"), per non-zero bit ("popcount") or per non-zero level ("events"). The cost is
exact. Its gradient at level S is (c(S + 1) - c(S - 1)) / 2, the gradient of the expected cost if
membranes had noise of up to one step. The popcount pulls levels 1, 2 and 4 down. It leaves level 3
where it is, because 2 and 4 cost the same. The gradient is added to that of the bursts and passes
through the neuron's own surrogate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lbq.cost.connectivity import Connectivity, Edge, read_connectivity
from lbq.cost.count_table import with_timesteps
from lbq.errors import CountError, ParameterError
from lbq.functional.planes import popcount
from lbq.kernels.level_cost import LevelCost
from lbq.neurons.watch import named_neurons
from lbq.ranges import Range, check_ranges

CostTable = Literal["unary", "popcount", "events"]


@dataclass(eq=False)
class _Layer:
    """The edges that leave one neuron."""

    path: str
    direct: LevelCost | None = None
    """Cost of the edges that levels enter unchanged, with the sum of their fan-outs."""
    carried: tuple[tuple[Edge, LevelCost], ...] = ()
    """Edges behind a pool or another operator, and the cost of the integers that enter them."""
    levels: Tensor | None = None
    """Levels of the last forward pass."""


class CostBudget:
    """Adds the cost of levels to a loss, until it is below a budget.

    It watches the neurons of a model. After a forward pass, calling it returns the term to add to
    the loss, and :attr:`cost` is the exact cost of that pass. :meth:`remove` removes its hooks.

    Example:
        >>> model = lbq.resnet20(10, width=1 / 16)
        >>> budget = lbq.CostBudget(model, torch.randn(1, 3, 16, 16), budget=0.3)
        >>> images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 2, 3])
        >>> loss = torch.nn.functional.cross_entropy(model(images), labels) + budget()
        >>> loss.backward()
        >>> budget.cost_per_mac > 0
        True

    Args:
        model: the network that is trained.
        example: input of the model for a batch of one.
        table: "popcount" (bit-sparse accumulations), "unary", "events", or the cost of every level
            0..N.
        budget: cost to reach, per MAC of the same network as an ANN: 0.5 is one accumulation for
            two MACs.
        weight: weight of the term ``weight * max(0, cost / budget - 1)``; 0 changes nothing.
        floor: layers with a smaller share of active levels get no gradient from the term.
        batch_axis: batch axis of the example, as in :class:`lbq.OpCounter`.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        *,
        table: CostTable | Sequence[float] = "popcount",
        budget: float,
        weight: float = 1.0,
        floor: float = 0.02,
        batch_axis: int | None = None,
    ) -> None:
        self.budget, self.weight, self.floor = budget, weight, floor
        check_ranges(
            self,
            ParameterError,
            budget=Range(0, is_open_below=True),
            weight=Range(0),
            floor=Range(0, 1, is_open_above=True),
        )
        connectivity = read_connectivity(model, example, batch_axis=batch_axis)
        if not connectivity.neurons:
            raise CountError("no neuron of this model ran on the example, so there is no cost")
        self._macs = sum(
            s.dense_macs("skipped") // n for s, n in with_timesteps(connectivity.synapses)
        )
        neurons = dict(named_neurons(model))
        costs = _table(table, max(connectivity.max_levels.values()))
        signed = {path for path, neuron in neurons.items() if neuron.is_signed}
        self._layers = _layers(connectivity, costs, signed)
        self._terms: list[Tensor] = []
        self._samples, self._is_read = 0, False
        self._hooks = [model.register_forward_pre_hook(self._begin)]
        self._hooks += [
            hook
            for path, layer in self._layers.items()
            for hook in (
                neurons[path].emit.register_forward_hook(partial(self._see, layer)),
                neurons[path].output.register_forward_hook(
                    partial(self._price, layer, neurons[path])
                ),
            )
        ]

    @property
    def cost(self) -> int | float:
        """Return the cost of the last forward pass over all samples, as OpCounter counts it."""
        total = sum(float(term.detach()) for term in self._terms)
        return int(total) if total == int(total) else total

    @property
    def cost_per_mac(self) -> float:
        """Return the cost per sample and MAC of the ANN, the unit of ``budget``."""
        return self.cost / max(1, self._samples) / self._macs

    def __call__(self) -> Tensor:
        """Return the loss term of the last forward pass, with its gradient."""
        if not self._terms:
            raise CountError("no neuron has emitted yet; run the model before calling the budget")
        self._is_read = True
        total = torch.stack(self._terms).sum() / self._samples
        return self.weight * (total / (self.budget * self._macs) - 1).clamp(min=0).float()

    def remove(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def _begin(self, model: nn.Module, args: Any) -> None:
        self._terms, self._is_read = [], False

    def _see(self, layer: _Layer, emit: nn.Module, args: Any, levels: Tensor) -> None:
        layer.levels = levels.detach()

    def _price(
        self, layer: _Layer, neuron: nn.Module, output: nn.Module, args: Any, bursts: Tensor
    ) -> Tensor:
        levels = layer.levels
        assert levels is not None
        layer.levels, self._samples = None, levels.shape[1]
        size = _burst_per_level(neuron).to(bursts.device)
        bursts, cost = _Priced.apply(bursts, size, levels, layer, self.floor)
        if self._is_read:  # a part of the model runs, not the model itself
            self._begin(output, args)
        self._terms.append(cost)
        return bursts


def _table(given: CostTable | Sequence[float], max_level: int) -> Tensor:
    """Return the cost of every level 0..N, with the last cost repeated."""
    levels = torch.arange(max_level + 1)
    if given == "unary":
        costs = levels
    elif given == "popcount":
        costs = popcount(levels.to(torch.uint8))
    elif given == "events":
        costs = levels.clamp(max=1)
    elif isinstance(given, str):
        raise ParameterError(
            f'table must be "unary", "popcount", "events" or one number per level, got {given!r}'
        )
    else:
        costs = torch.tensor(list(given))
        is_sound = len(costs) > max_level and bool(((costs >= 0) & costs.isfinite()).all())
        if not is_sound or costs[0] != 0:
            raise ParameterError(
                f"a table must have the costs of levels 0..{max_level}, finite and not negative, "
                f"with 0 for level 0, got {given}"
            )
    return costs.double()


def _burst_per_level(neuron: nn.Module) -> Tensor:
    """Return the burst of level 1."""
    step: Tensor | nn.Module | None = getattr(neuron, "step", None)
    if isinstance(step, Tensor):
        return step
    return torch.full((1,), float(getattr(neuron, "scale", 1.0))) if step is None else step()


def _layers(connectivity: Connectivity, table: Tensor, signed: set[str]) -> dict[str, _Layer]:
    def cost(path: str, fan_out: Tensor) -> LevelCost:
        costs = table[: connectivity.max_levels[path] + 1]  # levels end at the layer's own N
        return LevelCost(fan_out, costs, path in signed)

    layers = {path: _Layer(path) for path in connectivity.neurons}
    direct: dict[str, Tensor] = {}
    for edge in connectivity.edges:
        if edge.is_identity:
            continue
        if len(edge.needs) != 1:
            raise CountError(
                f"{edge.target} reads levels of several neurons at once ({', '.join(edge.needs)}); "
                f"a budget supports levels of one neuron only"
            )
        layer = layers[edge.needs[0]]
        if edge.source != layer.path:
            raise CountError(
                f"{edge.target} reads products of the levels of {layer.path}; a budget does not "
                f"support products of levels"
            )
        shape = connectivity.shapes[layer.path]
        probe = torch.zeros(1, *shape, dtype=torch.uint8)
        if edge.carry({layer.path: probe}) is probe:
            direct[layer.path] = direct.get(layer.path, 0) + edge.fan_out
        else:
            layer.carried = (*layer.carried, (edge, cost(layer.path, edge.fan_out)))
    for path, fan_out in direct.items():
        layers[path].direct = cost(path, fan_out)
    return {path: layer for path, layer in layers.items() if layer.carried or path in direct}


class _Priced(torch.autograd.Function):
    """The bursts, and the cost of their levels."""

    @staticmethod
    def forward(
        ctx: Any,
        bursts: Tensor,
        step: Tensor,
        levels: Tensor,
        layer: _Layer,
        floor: float,
    ) -> tuple[Tensor, Tensor]:
        total = torch.zeros((), dtype=torch.float64, device=bursts.device)
        moved, push, active = total, None, None
        if layer.direct is not None:
            total, moved, active = layer.direct.sums(levels)
        for edge, cost in layer.carried:
            with torch.enable_grad():
                given = levels.flatten(0, 1).float().requires_grad_()
                entering = edge.carry({layer.path: given})
            entered = entering.detach()
            total = total + cost.cost(entered)
            (back,) = torch.autograd.grad(entering, given, cost.slopes(entered).float())
            push = back.view_as(levels) + (0 if push is None else push)
        active = (levels != 0).sum() if active is None else active
        ctx.is_quiet = float(active) < floor * levels.numel()
        ctx.cost, ctx.moved = layer.direct, moved
        ctx.save_for_backward(step, levels, push)
        return bursts.view_as(bursts), total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad, grad_cost = grads
        if ctx.is_quiet or not bool(grad_cost):
            return grad, None, None, None, None
        step, levels, push = ctx.saved_tensors
        factor = grad_cost.float() / _along_channels(step, levels)
        extended = grad
        if ctx.cost is not None:
            extended = ctx.cost.add_gradient(extended, levels, factor)
        if push is not None:
            extended = extended + (push * factor).to(grad.dtype)
        if not ctx.needs_input_grad[1]:
            return extended, None, None, None, None
        if step.numel() == 1 and push is None:
            by_step = -ctx.moved * grad_cost / step
        else:  # the cost has no scale: it falls as the step grows
            extra = (extended - grad).float() * levels
            axes = [n for n in range(levels.dim()) if n != 2]
            by_step = -(extra.sum() if step.numel() == 1 else extra.sum(axes))
        return extended, by_step.reshape(step.shape).to(step.dtype), None, None, None


def _along_channels(step: Tensor, levels: Tensor) -> Tensor:
    return step.reshape([1, 1, -1] + [1] * (levels.dim() - 3)) if step.numel() > 1 else step
