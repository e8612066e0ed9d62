"""Which neuron feeds which synapse, found by following one sample through the network.

Between a neuron and the synapses that read it lie only a few kinds of operations: reshapes, sums
of branches, max-pools (which keep integers) and average pools (which are linear and so belong to
the synapse behind them). They are followed while the network runs once; whatever else is done to a
burst makes it an ordinary real number, and the synapse behind it is counted in MACs. Nothing is
guessed: such operations are listed in :attr:`Wiring.untracked`.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lbq.cost.fan_out import conv_fan_out, linear_fan_out, pooled_fan_out
from lbq.cost.pools import Pool, bind, per_axis, read_pool
from lbq.cost.table import SynapseSize
from lbq.errors import ShapeError
from lbq.neurons.neuron import Neuron
from lbq.types import FanOut

_RESHAPES = {
    "clone", "contiguous", "detach", "dropout", "expand", "flatten", "reshape", "squeeze", "to",
    "unflatten", "unsqueeze", "view",
}  # fmt: skip
_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_LINEAR = ("input", "weight", "bias")
_INNOCENT = {"__get__", "__len__", "dim", "size", "numel", "is_floating_point", "is_contiguous"}


class Route(NamedTuple):
    """A way that bursts took: the neuron they came from and the pools they passed."""

    layer: str
    pools: tuple[Pool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Edge:
    """Levels of one layer entering one synapse."""

    source: str
    """Path of the neuron."""
    target: str
    """Path of the synapse; for an identity, of the block that adds it."""
    is_identity: bool
    """A shortcut that adds the burst itself: one accumulation per unit, not a synapse's."""
    max_pools: tuple[Pool, ...]
    """Pools that the level passes before it enters the synapse."""
    fan_out: FanOut
    """Outputs that each input position reaches; broadcasts against one instant of levels."""


@dataclass(kw_only=True)
class Wiring:
    """A network as seen by a counter."""

    edges: list[Edge] = field(default_factory=list[Edge])
    synapses: list[SynapseSize] = field(default_factory=list[SynapseSize])
    neurons: dict[str, int] = field(default_factory=dict[str, int])
    """Neurons in each layer, in running order."""
    timesteps: int = 1
    untracked: list[str] = field(default_factory=list[str])
    """Operations on bursts that were not followed, with the module that made them."""


@torch.no_grad()
def trace_wiring(model: nn.Module, example: Tensor) -> Wiring:
    """Follow one sample through the model, in eval mode, and write down who feeds whom.

    Args:
        model: any network of neurons and synapses.
        example: input of the model for a batch of one.
    """
    tracer = _Tracer()
    was_training = model.training
    with ExitStack() as stack:
        for name, module in model.named_modules():
            handles = (
                module.register_forward_pre_hook(tracer.entering(name)),
                module.register_forward_hook(tracer.leaving(name), always_call=True),
            )
            for handle in handles:
                stack.callback(handle.remove)
        stack.callback(model.train, was_training)
        model.eval()
        stack.enter_context(tracer)
        model(example)
    return tracer.wiring


class _Tracer(TorchFunctionMode):
    """Sees every torch function that the model calls and keeps track of where bursts go."""

    def __init__(self) -> None:
        super().__init__()
        self.wiring = Wiring()
        self._stack: list[str] = []
        self._inside_neuron = 0
        self._routes: dict[int, tuple[Tensor, tuple[Route, ...]]] = {}

    def entering(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self._stack.append(name)
            self._inside_neuron += isinstance(module, Neuron)

        return hook

    def leaving(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()
            if isinstance(module, Neuron):
                self._inside_neuron -= 1
                if isinstance(output, Tensor):
                    self._emitted(name, output)

        return hook

    def _emitted(self, layer: str, bursts: Tensor) -> None:
        if bursts.shape[1] != 1:
            raise ShapeError(
                f"the example must be one sample, but {layer} emitted a batch of "
                f"{bursts.shape[1]}; pass a batch of one, time first if the model takes frames"
            )
        self.wiring.neurons[layer] = bursts[0].numel()
        self.wiring.timesteps = max(self.wiring.timesteps, len(bursts))
        self._tag(bursts, (Route(layer),))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if not self._inside_neuron and isinstance(output, Tensor):
            self._follow(getattr(func, "__name__", str(func)), args, kwargs or {}, output)
        return output

    def _follow(self, name: str, args: Any, kwargs: dict[str, Any], output: Tensor) -> None:
        first = args[0] if args else kwargs.get("input")
        routes = self._routes_of(first)
        if output is first:  # done in place: whatever was known of it is known no longer
            self._routes.pop(id(first), None)
        if name in ("conv1d", "conv2d", "conv3d"):
            self._convolution(bind(_CONV, args, kwargs), output)
        elif name == "linear":
            self._linear(bind(_LINEAR, args, kwargs), output)
        elif name in ("add", "add_", "__add__", "__radd__", "__iadd__"):
            self._addition(routes, self._routes_of(args[1]), output)
        elif name == "cat":
            self._concatenation(bind(("tensors", "dim"), args, kwargs), output)
        elif not routes:
            self._note_untracked(name, (*args, *kwargs.values()))
        elif name in _RESHAPES or (name in ("mul", "div") and isinstance(args[1], int | float)):
            self._tag(output, routes)
        elif (pool := read_pool(name, args, kwargs)) and _can_follow(routes, pool):
            self._tag(output, tuple(r._replace(pools=(*r.pools, pool)) for r in routes))
        else:
            self._note_untracked(name, args, known=True)

    def _addition(self, mine: tuple[Route, ...], other: tuple[Route, ...], output: Tensor) -> None:
        if mine and other:
            self._tag(output, mine + other)  # a sum of bursts enters a synapse branch by branch
            return
        for route in mine or other:  # a burst added to a current: an identity shortcut
            self._add_edges((route,), torch.ones(1, dtype=torch.int64), is_identity=True)

    def _concatenation(self, call: dict[str, Any], output: Tensor) -> None:
        """Follow channels side by side: fan-out is the same for every channel."""
        parts = [self._routes_of(part) for part in call["tensors"]]
        channels = output.dim() - 3 if output.dim() > 3 else output.dim() - 1
        if all(parts) and call.get("dim", 0) % output.dim() == channels:
            self._tag(output, tuple(route for part in parts for route in part))
        else:
            self._note_untracked("cat", call["tensors"])

    def _note_untracked(self, name: str, values: Any, *, known: bool = False) -> None:
        """List an operation that loses track of bursts; harmless questions are not listed."""
        nested = [
            v for value in values for v in (value if isinstance(value, list | tuple) else [value])
        ]
        if name not in _INNOCENT and (known or any(self._routes_of(value) for value in nested)):
            self.wiring.untracked.append(f"{name} in {self._stack[-1] or 'the model'}")

    def _convolution(self, call: dict[str, Any], output: Tensor) -> None:
        weight = cast(Tensor, call["weight"])
        size = call["input"].shape[-(weight.dim() - 2) :]
        fan_out = conv_fan_out(
            size,
            weight.shape,
            stride=per_axis(call.get("stride", 1), size),
            padding=_paddings(call.get("padding", 0), weight, call.get("dilation", 1), size),
            dilation=per_axis(call.get("dilation", 1), size),
            groups=call.get("groups", 1),
        )
        self._synapse(call["input"], weight, output.numel(), fan_out)

    def _linear(self, call: dict[str, Any], output: Tensor) -> None:
        weight = cast(Tensor, call["weight"])
        self._synapse(call["input"], weight, output.numel(), linear_fan_out(len(weight)))

    def _synapse(self, inputs: Tensor, weight: Tensor, outputs: int, fan_out: FanOut) -> None:
        routes = self._routes_of(inputs)
        instants = math.prod(inputs.shape[: 1 - weight.dim()])  # one sample: these are timesteps
        self.wiring.synapses.append(
            SynapseSize(
                name=self._stack[-1],
                macs=outputs * weight[0].numel(),
                instants=instants,
                num_weights=weight.numel(),
                inputs=inputs.numel() // instants,
                is_real=not routes,
            )
        )
        self._add_edges(routes, fan_out, is_identity=False)

    def _add_edges(self, routes: tuple[Route, ...], fan_out: FanOut, *, is_identity: bool) -> None:
        for route in routes:
            reached = fan_out
            for pool in (p for p in reversed(route.pools) if not p.is_max):
                if pool.kernel is None and reached.numel() > 1:
                    raise ShapeError(
                        f"{self._stack[-1]} is a convolution behind a mean over part of the axes "
                        f"of {route.layer}, which cannot be counted; use a pool of fixed size"
                    )
                if pool.kernel is not None:
                    reached = pooled_fan_out(
                        reached,
                        pool.size,
                        kernel=pool.kernel,
                        stride=pool.stride,
                        padding=pool.padding,
                    )
            self.wiring.edges.append(
                Edge(
                    source=route.layer,
                    target=self._stack[-1],
                    is_identity=is_identity,
                    max_pools=tuple(pool for pool in route.pools if pool.is_max),
                    fan_out=reached,
                )
            )

    def _tag(self, tensor: Tensor, routes: tuple[Route, ...]) -> None:
        self._routes[id(tensor)] = tensor, routes  # the tensor is held, so its id stays its own

    def _routes_of(self, value: Any) -> tuple[Route, ...]:
        _, routes = self._routes.get(id(value), (None, ()))
        return routes


def _can_follow(routes: tuple[Route, ...], pool: Pool) -> bool:
    """A maximum keeps levels only if it is taken of the levels of one layer."""
    is_level = len(routes) == 1 and not any(not p.is_max for p in routes[0].pools)
    return is_level or not pool.is_max


def _paddings(
    padding: str | int | Sequence[int], weight: Tensor, dilation: Any, size: Sequence[int]
) -> tuple[int, ...]:
    """Read a convolution's padding, "same" and "valid" included."""
    if padding == "valid":
        return (0,) * len(size)
    if not isinstance(padding, str):
        return per_axis(padding, size)
    spans = [d * (k - 1) for k, d in zip(weight.shape[2:], per_axis(dilation, size), strict=True)]
    if any(span % 2 for span in spans):
        raise ShapeError(
            f'padding="same" with an even kernel {tuple(weight.shape[2:])} pads one side more than '
            f"the other, which is not counted; pad by hand"
        )
    return tuple(span // 2 for span in spans)
