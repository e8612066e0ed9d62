"""Which neuron feeds which synapse, traced with one sample.

Between a neuron and the synapses that read it lie only a few kinds of operations: reshapes, sums
of branches, max-pools (which keep integers) and average pools (which are linear and so belong to
the synapse behind them). They are followed while the network runs once; whatever else is done to a
burst makes it an ordinary real number, and the synapse that reads it is counted in MACs; such
operations are listed in :attr:`Connectivity.untracked`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from lbq.cost.count_table import SynapseSize
from lbq.cost.fan_out import FanOutMap, conv_fan_out, linear_fan_out, num_valid_taps
from lbq.cost.time_tracker import Timesteps, TimeTracker
from lbq.deploy.operators import Shortcut
from lbq.deploy.pool_args import PoolArgs, bind, global_pool, per_axis, read_pool
from lbq.errors import CountError, ShapeError, TimeError
from lbq.models.time import RepeatOverTime
from lbq.neurons.neuron import Neuron
from lbq.types import FanOut

_MAX_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
_RESHAPES = {
    "clone", "contiguous", "detach", "detach_", "expand", "flatten", "requires_grad_", "reshape",
    "squeeze", "to", "unflatten", "unsqueeze", "view",
}  # fmt: skip
_ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__"}
_SCALINGS = {"mul", "div", "mul_", "div_"}
_PRODUCTS = {
    "addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "chain_matmul", "conv_transpose1d",
    "conv_transpose2d", "conv_transpose3d", "dot", "einsum", "gru", "gru_cell", "inner",
    "linalg_multi_dot", "lstm", "lstm_cell", "__matmul__", "matmul", "mm",
    "multi_head_attention_forward", "mv", "_native_multi_head_attention", "__rmatmul__", "rnn_relu",
    "rnn_relu_cell", "rnn_tanh", "rnn_tanh_cell", "scaled_dot_product_attention", "tensordot",
    "_transformer_encoder_layer_fwd", "vdot",
}  # fmt: skip
_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_LINEAR = ("input", "weight", "bias")
_METADATA_QUERIES = {
    "__get__", "__len__", "dim", "size", "numel", "is_floating_point", "is_contiguous",
}  # fmt: skip


class Route(NamedTuple):
    """The neuron that bursts came from and the pools they passed."""

    layer: str
    pools: tuple[PoolArgs, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Edge:
    """Levels of one layer entering one synapse."""

    source: str
    """Path of the neuron, or of another node that computes integers, such as a product."""
    target: str
    """Path of the synapse; for an identity, of the block that adds it."""
    is_identity: bool
    """A shortcut that adds the burst itself: one accumulation per unit, not a synapse's."""
    needs: tuple[str, ...]
    """Neurons whose levels decide what enters: the source, if that is a neuron."""
    carry: Callable[[Mapping[str, Tensor]], Tensor]
    """Returns what enters the synapse, given the levels ``[B, *n]`` of these neurons."""
    fan_out: FanOut
    """Outputs that each input position reaches; broadcasts against what enters."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LevelProduct:
    """A node that multiplies levels by levels."""

    name: str
    needs: tuple[str, ...]
    """Neurons whose levels decide its operands."""
    dense: int
    """Pairs of levels that meet, for one sample at one timestep."""
    count: Callable[[Mapping[str, Tensor]], tuple[int, int, int]]
    """Counts unary, bit-pair and bit-serial products, given the levels of these neurons."""


@dataclass(kw_only=True)
class Connectivity:
    """Edges, synapses and neurons of a network."""

    edges: list[Edge] = field(default_factory=list[Edge])
    products: list[LevelProduct] = field(default_factory=list[LevelProduct])
    synapses: list[SynapseSize] = field(default_factory=list[SynapseSize])
    neurons: dict[str, int] = field(default_factory=dict[str, int])
    """Neurons in each layer, in running order."""
    max_levels: dict[str, int] = field(default_factory=dict[str, int])
    """Largest level of each layer."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Shape of each layer's levels, of one sample at one timestep."""
    layer_timesteps: dict[str, int] = field(default_factory=dict[str, int])
    """Timesteps of each layer."""
    timesteps: int = 1
    untracked: list[str] = field(default_factory=list[str])
    """Operations on bursts that were not followed, with the module that made them."""
    uncounted: list[str] = field(default_factory=list[str])
    """Products that are neither convolutions nor linear layers: nothing counts them."""


@torch.no_grad()
def trace_connectivity(model: nn.Module, example: Tensor) -> Connectivity:
    """Trace one sample through the model, in eval mode.

    Args:
        model: any network of neurons and synapses.
        example: input of the model for a batch of one.
    """
    tracer = _Tracer(model, example)
    modes = {module: module.training for module in model.modules()}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            handles = (
                module.register_forward_pre_hook(tracer.entering(name)),
                module.register_forward_hook(tracer.leaving(name), always_call=True),
            )
            for handle in handles:
                stack.callback(handle.remove)
        stack.callback(_restore, modes)
        model.eval()
        stack.enter_context(tracer)
        model(example)
    return tracer.finished()


class _Tracer(TorchFunctionMode):
    """Intercepts every torch function that the model calls and tracks bursts."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.connectivity = Connectivity()
        self._example = example
        self._time = TimeTracker(model, example)
        self._runs: list[_Run] = []
        self._stack: list[str] = []
        self._inside = 0  # of modules that are followed as a whole
        self._routes: dict[int, tuple[Tensor, tuple[Route, ...]]] = {}
        self._mixed: dict[int, Tensor] = {}  # sums of bursts and currents

    def finished(self) -> Connectivity:
        """Return the connectivity after the model has run."""
        self.connectivity.synapses = [_size_of(runs, self._time) for runs in _grouped(self._runs)]
        return self.connectivity

    def entering(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self._stack.append(name)
            self._inside += isinstance(module, Neuron | Shortcut)
            if isinstance(module, Neuron) and args and isinstance(args[0], Tensor):
                self._time.receive(args[0])

        return hook

    def leaving(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()
            if isinstance(module, RepeatOverTime):
                self._time.emit(output)
            if isinstance(module, Shortcut):
                self._inside -= 1
                self._shortcut(name, args[0])
                self._time.pass_rows(args[0], output)
            if isinstance(module, Neuron):
                self._inside -= 1
                if isinstance(output, Tensor):
                    self._emitted(name, output, module.max_level)

        return hook

    def _emitted(self, layer: str, bursts: Tensor, max_level: int) -> None:
        if bursts.shape[1] != 1:
            _refuse_batch(layer, self._example, bursts)
        if layer in self.connectivity.neurons:
            raise CountError(
                f"the neuron {layer} runs twice in one pass, so its levels cannot be told apart; "
                f"give every place in the network a neuron of its own"
            )
        self.connectivity.neurons[layer] = bursts[0].numel()
        self.connectivity.max_levels[layer] = max_level
        self.connectivity.timesteps = max(self.connectivity.timesteps, len(bursts))
        self.connectivity.layer_timesteps[layer] = len(bursts)
        self.connectivity.shapes[layer] = tuple(bursts.shape[2:])
        self._time.emit(bursts)
        self._tag(bursts, (Route(layer),))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if not self._inside:
            name = getattr(func, "__name__", str(func))
            self._time.follow(func, name, args, kwargs, output)
            if name in _PRODUCTS:
                self.connectivity.uncounted.append(self._here(name))
            elif isinstance(output, Tensor):
                self._follow(name, args, kwargs, output)
            else:
                self._note_untracked(name, args)  # several tensors, or none
                if name == "__setitem__":
                    self._forget(args[0], name)
        return output

    def _follow(self, name: str, args: Any, kwargs: dict[str, Any], output: Tensor) -> None:
        first = args[0] if args else kwargs.get("input")
        routes = self._routes_of(first)
        if (output is first and name not in _RESHAPES) or kwargs.get("out") is not None:
            self._forget(output, name)  # in place: earlier routes are invalid
        if name in ("conv1d", "conv2d", "conv3d"):
            self._convolution(bind(_CONV, args, kwargs), output)
        elif name == "linear":
            self._linear(bind(_LINEAR, args, kwargs), output)
        elif name in _ADDITIONS:
            self._addition(routes, bind(("input", "other"), args, kwargs), output)
        elif name == "cat":
            self._concatenation(bind(("tensors", "dim"), args, kwargs), output)
        elif name in _RESHAPES and isinstance(first, Tensor) and output.numel() == first.numel():
            self._tag(output, routes)
            if id(first) in self._mixed:
                self._mixed[id(output)] = output
        elif _is_scaling(name, args, kwargs) or _is_idle_dropout(name, args, kwargs):
            self._tag(output, routes)
        elif routes and (pool := _pool(name, args, kwargs)) and _can_follow(routes, pool):
            self._tag(output, tuple(r._replace(pools=(*r.pools, pool)) for r in routes))
        else:
            self._note_untracked(name, (*args, *kwargs.values()), known=bool(routes))

    def _addition(self, mine: tuple[Route, ...], call: dict[str, Any], output: Tensor) -> None:
        added = call["other"]
        other = self._routes_of(added)
        if (mine and other) or (mine and isinstance(added, int | float) and added == 0):
            self._tag(output, mine + other)  # a sum of bursts enters a synapse branch by branch
        elif mine and not isinstance(added, Tensor):
            self.connectivity.untracked.append(self._here("add"))
        elif mine or other:  # a burst added to a current: an identity shortcut
            self._mixed[id(output)] = output
            for route in mine or other:
                self._add_edge(route, FanOutMap(axes=(), width=1), is_identity=True)

    def _shortcut(self, name: str, inputs: Tensor) -> None:
        """Follow a lowered identity shortcut: the block that holds it adds its currents."""
        self._stack.append(name.rpartition(".")[0])
        for route in self._routes_of(inputs):
            self._add_edge(route, FanOutMap(axes=(), width=1), is_identity=True)
        self._stack.pop()

    def _concatenation(self, call: dict[str, Any], output: Tensor) -> None:
        """Follow channels side by side: fan-out is the same for every channel."""
        parts = [self._routes_of(part) for part in call["tensors"]]
        channels = output.dim() - 3 if output.dim() > 3 else output.dim() - 1
        if all(parts) and call.get("dim", 0) % output.dim() == channels:
            self._tag(output, tuple(route for part in parts for route in part))
        else:
            self._note_untracked("cat", call["tensors"])

    def _note_untracked(self, name: str, values: Any, *, known: bool = False) -> None:
        """List an operation that loses track of bursts; metadata queries are not listed."""
        nested = (
            v for value in values for v in (value if isinstance(value, list | tuple) else [value])
        )
        if name not in _METADATA_QUERIES and (
            known or any(self._routes_of(value) for value in nested)
        ):
            self.connectivity.untracked.append(self._here(name))

    def _forget(self, written: Tensor, name: str) -> None:
        """Drop the routes of a tensor that was written into, and of its views."""
        routes = self._routes.pop(id(written), None)
        memory = written.untyped_storage().data_ptr()
        views = [
            key
            for key, (tensor, _) in self._routes.items()
            if tensor.untyped_storage().data_ptr() == memory
        ]
        for key in views:
            del self._routes[key]
        if views and not routes:
            self.connectivity.untracked.append(self._here(name))

    def _here(self, name: str) -> str:
        return f"{name} in {self._stack[-1] or 'the model'}"

    def _convolution(self, call: dict[str, Any], output: Tensor) -> None:
        weight = cast(Tensor, call["weight"])
        kernel, size = weight.shape[2:], call["input"].shape[2 - weight.dim() :]
        places = output.shape[2 - weight.dim() :]
        stride, dilation = (per_axis(call.get(key, 1), size) for key in ("stride", "dilation"))
        taps = num_valid_taps(
            size,
            places,
            kernel,
            stride=stride,
            padding=_paddings(call.get("padding", 0), kernel, dilation),
            dilation=dilation,
        )
        exact = output.numel() // math.prod(places) * taps * weight.shape[1]
        if self._synapse(call["input"], weight, exact, output.numel() * weight[0].numel()):
            reach = conv_fan_out(
                size,
                weight.shape,
                stride=stride,
                padding=_even_paddings(call.get("padding", 0), kernel, dilation),
                dilation=dilation,
                groups=call.get("groups", 1),
            )
            for route in self._routes_of(call["input"]):
                self._add_edge(route, reach, is_identity=False)

    def _linear(self, call: dict[str, Any], output: Tensor) -> None:
        weight = cast(Tensor, call["weight"])
        macs = output.numel() * weight.shape[1]
        if self._synapse(call["input"], weight, macs, macs):
            for route in self._routes_of(call["input"]):
                self._add_edge(route, linear_fan_out(len(weight)), is_identity=False)

    def _synapse(self, inputs: Tensor, weight: Tensor, macs: int, padded_macs: int) -> bool:
        """Record a synapse; return whether levels enter it."""
        routes = self._routes_of(inputs)
        if id(inputs) in self._mixed:
            self.connectivity.untracked.append(f"sum of bursts and currents into {self._stack[-1]}")
        moments = self._time.moments(inputs, is_linear=weight.dim() == 2)
        self._runs.append(
            _Run(
                name=self._stack[-1],
                macs=macs,
                padded_macs=padded_macs,
                num_weights=weight.numel(),
                num_inputs=inputs.numel(),
                has_real_input=not routes,
                moments=moments,
                static_input=inputs if moments is not None and not moments.at else None,
            )
        )
        return bool(routes)

    def _add_edge(self, route: Route, reach: FanOutMap, *, is_identity: bool) -> None:
        for pool in (p for p in reversed(route.pools) if not p.is_max):
            if not pool.is_global:
                reach = reach.through_avg_pool(
                    pool.size, kernel=pool.kernel, stride=pool.stride, padding=pool.padding
                )
            elif reach.fan_out().unique().numel() > 1:
                raise CountError(
                    f"{self._stack[-1]} is a convolution behind a mean over part of the axes of "
                    f"{route.layer}, which cannot be counted; use a pool of fixed size"
                )
            else:  # everything is averaged into one place
                reach = FanOutMap(axes=(), width=int(reach.fan_out().max()))
        max_pools = tuple(pool for pool in route.pools if pool.is_max)
        self._check_fit(route.layer, max_pools, reach)
        self.connectivity.edges.append(
            Edge(
                source=route.layer,
                target=self._stack[-1],
                is_identity=is_identity,
                needs=(route.layer,),
                carry=partial(_pooled, route.layer, max_pools),
                fan_out=reach.fan_out(),
            )
        )

    def _check_fit(self, layer: str, max_pools: tuple[PoolArgs, ...], reach: FanOutMap) -> None:
        """Raise CountError if levels were rearranged in space before a convolution."""
        shape = self.connectivity.shapes[layer]
        for pool in max_pools:
            shape = (*shape[: -len(pool.size)], *pool.output_size())
        if reach.axes and (len(shape), *shape[1:]) != (
            len(reach.axes) + 1,
            *(len(axis) for axis in reach.axes),
        ):
            raise CountError(
                f"{self._stack[-1]} reads positions {[len(axis) for axis in reach.axes]}, but the "
                f"levels of {layer} have shape {list(shape)}; levels that are rearranged in space "
                f"before a convolution cannot be counted"
            )

    def _tag(self, tensor: Tensor, routes: tuple[Route, ...]) -> None:
        if routes:
            self._routes[id(tensor)] = tensor, routes  # holding the tensor keeps its id unique

    def _routes_of(self, value: Any) -> tuple[Route, ...]:
        _, routes = self._routes.get(id(value), (None, ()))
        return routes


def _pooled(layer: str, pools: tuple[PoolArgs, ...], levels: Mapping[str, Tensor]) -> Tensor:
    """Pass levels through max-pools; the result keeps its dtype."""
    level = levels[layer]
    for pool in pools:
        reduce = _MAX_POOLS[len(pool.size) - 1]
        pooled = reduce(level.float(), pool.kernel, pool.stride, pool.padding)
        level = pooled.to(level.dtype)  # 0..255 are exact in float32
    return level


def _restore(modes: dict[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training


@dataclass(frozen=True, kw_only=True, eq=False)
class _Run:
    """One call of a synapse."""

    name: str
    macs: int
    padded_macs: int
    num_weights: int
    num_inputs: int
    has_real_input: bool
    moments: Timesteps | None
    """None if its timesteps are unknown."""
    static_input: Tensor | None
    """The input, if it has no time, to detect that it is read again."""

    def continues(self, before: "list[_Run]") -> bool:
        """Return whether this is the same synapse at other timesteps, not a second use."""
        last = before[-1]
        if self.moments is None or last.moments is None or self.name != last.name:
            return False
        if self.has_real_input != last.has_real_input or self.num_weights != last.num_weights:
            return False
        if not self.moments.at:  # reading a static input again repeats the same work
            return self.static_input is last.static_input
        return all(run.moments and run.moments.at.isdisjoint(self.moments.at) for run in before)


def _grouped(runs: list[_Run]) -> list[list[_Run]]:
    """Group the calls of a loop over time."""
    groups: list[list[_Run]] = []
    for run in runs:
        for group in groups:
            if run.continues(group):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def _size_of(runs: list[_Run], tracker: TimeTracker) -> SynapseSize:
    moments = [run.moments for run in runs]
    times = [
        max(1, len(each.at)) for each in moments if each is not None and tracker.is_certain(each)
    ]
    known = sum(times) if len(times) == len(runs) else None
    return SynapseSize(
        name=runs[0].name,
        macs=sum(run.macs for run in runs),
        padded_macs=sum(run.padded_macs for run in runs),
        timesteps=known,
        num_weights=runs[0].num_weights,
        inputs=sum(run.num_inputs for run in runs) // (known or 1),
        has_real_input=runs[0].has_real_input,
    )


def _refuse_batch(layer: str, example: Tensor, bursts: Tensor) -> None:
    """Raise for an example that is no batch of one, or for a network without a time axis."""
    shape, batch = list(bursts.shape), bursts.shape[1]
    leading = example.shape[: 1 if example.dim() % 2 == 0 else 2]
    if batch in leading or len(bursts) != len(example):
        raise ShapeError(
            f"the example must be one sample, but {layer} emitted a batch of {batch}; pass a batch "
            f"of one, time first if the model takes frames (it emitted {shape})"
        )
    raise TimeError(
        f"{layer} emitted {shape}. A neuron takes time as the first axis and the batch as the "
        f"second, but here the first axis has length {len(bursts)}, that of the example "
        f"{list(example.shape)}: if it is a batch B and not T, this network has no time axis. Add "
        f"RepeatOverTime(T) before the first neuron and OverTime around the layers between neurons "
        f"(lbq.check_time tests for this). If the example is a sequence, time first, pass one "
        f"sample of it"
    )


def _is_scaling(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether this is a product with, or a quotient by, a positive number, unrounded."""
    call = bind(("input", "other"), args, kwargs)
    factor = call.get("other")
    is_positive = isinstance(factor, int | float) and factor > 0
    return name in _SCALINGS and is_positive and call.get("rounding_mode") is None


def _is_idle_dropout(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    call = bind(("input", "p", "training", "inplace"), args, kwargs)
    return name == "dropout" and not call.get("training", True)


def _pool(name: str, args: Any, kwargs: dict[str, Any]) -> PoolArgs | None:
    """Read a pool or a mean over trailing axes; None if levels cannot be followed through it."""
    call = bind(("input", "dim"), args, kwargs)
    if name == "mean":
        return _mean(call["input"], call.get("dim"))
    if not name[-2:-1].isdigit() or "pool" not in name:
        return None
    size = call["input"].shape[-int(name[-2]) :]
    rest = {key: value for key, value in kwargs.items() if key != "input"}
    pool = read_pool(name, args[1:], rest, size=size)
    is_uneven = name.startswith("adaptive") and not (isinstance(pool, PoolArgs) and pool.is_global)
    return None if isinstance(pool, str) or is_uneven else pool


def _mean(values: Tensor, dim: int | Sequence[int] | None) -> PoolArgs | None:
    if dim is None:
        return None
    axes = sorted(d % values.dim() for d in ([dim] if isinstance(dim, int) else dim))
    is_trailing = axes == list(range(axes[0], values.dim())) and axes[0] >= 2
    return global_pool(values.shape[axes[0] :]) if is_trailing else None


def _can_follow(routes: tuple[Route, ...], pool: PoolArgs) -> bool:
    """A maximum keeps levels only if it is taken of the levels of one layer."""
    is_level = len(routes) == 1 and not any(not p.is_max for p in routes[0].pools)
    return is_level or not pool.is_max


def _paddings(
    padding: str | int | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Read how much a convolution pads before the first position, "same" and "valid" included."""
    if padding == "valid":
        return (0,) * len(kernel)
    if not isinstance(padding, str):
        return per_axis(padding, kernel)
    return tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))


def _even_paddings(
    padding: str | int | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Read a convolution's padding, which must be the same on both sides."""
    spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if padding == "same" and any(span % 2 for span in spans):
        raise CountError(
            f'padding="same" with an even kernel {tuple(kernel)} pads one side more than the '
            f"other, which is not counted; use an odd kernel or a number"
        )
    return _paddings(padding, kernel, dilation)
