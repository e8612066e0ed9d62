"""Replace the ReLUs of a network by neurons, and correct the biases before them."""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError
from torch.nn import functional as F

from lbq.errors import LoweringError
from lbq.graph.capture import Call, capture
from lbq.neurons.batch_axis import find_batch_axis
from lbq.neurons.neuron import Neuron
from lbq.neurons.watch import removing_hooks
from lbq.time import FramesIn, ImagesIn, MeanOverTime, RepeatOverTime, merge_time, split_time

_LEAVES = (Neuron, RepeatOverTime, MeanOverTime, ImagesIn)
_NO_PLACE = (
    "this network has no ReLU, as a module or a function, so there is no place for a neuron; other "
    "activations have no levels"
)


@dataclass(frozen=True, kw_only=True)
class ReplacementSpec:
    """Which modules and functions are replaced by neurons."""

    modules: tuple[type[nn.Module], ...] = (nn.ReLU,)
    functions: frozenset[Any] = frozenset(
        (F.relu, torch.relu, torch.relu_, F.relu_, "relu", "relu_")
    )
    leaves: tuple[type[nn.Module], ...] = ()
    """Modules that are not traced into, besides torch's own."""


def with_neurons(
    network: nn.Module,
    example: Tensor,
    *,
    timesteps: int,
    build: Callable[[nn.Module | None, int], nn.Module],
    replaced: ReplacementSpec | None = None,
) -> nn.Module:
    """Return a copy of the network, in eval mode, with a neuron in place of every ReLU.

    Layers before the first neurons run once per image, the rest at every timestep, and the output
    is the mean over time. A ReLU that is called in two places becomes two neurons. A network that
    repeats its input over time by itself keeps its class, and every ReLU in it must be a separate
    module.

    Args:
        network: takes one tensor, batch first. It is not changed.
        example: an input, which gives the shapes.
        timesteps: number of timesteps (T).
        build: makes the neuron for a ReLU (None for a function) and its channels.
        replaced: modules and functions to replace; ReLUs by default.
    """
    found = ReplacementSpec() if replaced is None else replaced
    copied = copy.deepcopy(network).eval()
    if any(isinstance(module, FramesIn) for module in copied.modules()):
        raise LoweringError(
            "this network takes frames, so its ReLUs see a new input at every timestep; build it "
            "with form='cifar' or 'imagenet' for static images, or train neurons from the start"
        )
    if any(isinstance(module, RepeatOverTime) for module in copied.modules()):
        return _replaced(copied, example, timesteps, build, found)
    return _Rewriting(copied, example, timesteps, build, found).finish()


def _replaced(
    network: nn.Module,
    example: Tensor,
    timesteps: int,
    build: Callable[[nn.Module | None, int], nn.Module],
    replaced: ReplacementSpec,
) -> nn.Module:
    """Put neurons into a network that already has time."""
    _check_places(_traced(network, replaced), network, replaced)
    channels: dict[str, int] = {}

    def note(path: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        channels[path] = args[0].shape[2]  # [T, B, C, ...]

    places = {p: m for p, m in network.named_modules() if isinstance(m, replaced.modules)}
    hooks = [m.register_forward_pre_hook(partial(note, path)) for path, m in places.items()]
    with torch.no_grad(), removing_hooks(hooks):
        network(example)
    for path, module in places.items():
        network.set_submodule(path, build(module, channels[path]))
    for module in network.modules():
        if isinstance(module, RepeatOverTime):
            module.timesteps = timesteps
    return network.eval()


def _check_places(graph: fx.Graph, network: nn.Module, replaced: ReplacementSpec) -> None:
    """Raise LoweringError if a ReLU cannot be replaced module by module, or there is none."""
    counts = Counter[str]()
    for node in graph.nodes:
        if node.op == "call_module":
            is_place = isinstance(network.get_submodule(str(node.target)), replaced.modules)
            counts[str(node.target)] += is_place
        elif node.op in ("call_function", "call_method") and node.target in replaced.functions:
            raise LoweringError(
                "this network calls a ReLU as a function, and repeats its input over time by "
                "itself; make every ReLU a separate module (nn.ReLU())"
            )
    for path, count in counts.items():
        if count > 1:
            raise LoweringError(
                f"{path} is called {count} times, but would become one neuron; this network "
                f"repeats its input over time by itself, so use a separate ReLU for every call"
            )
    if not counts.total():
        raise LoweringError(_NO_PLACE)


def _traced(network: nn.Module, replaced: ReplacementSpec) -> fx.Graph:
    try:
        graph = _Tracer(replaced.leaves).trace(network)
    except (TraceError, TypeError) as error:
        raise LoweringError(
            f"this network cannot be traced: {error}; its forward must not branch on values"
        ) from error
    for node in graph.nodes:  # torch writes annotations as code, and cannot write Annotated
        node.type = None
    return graph


class _Tracer(fx.Tracer):
    def __init__(self, leaves: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self._leaves = (*_LEAVES, *leaves)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._leaves) or super().is_leaf_module(m, module_qualified_name)


class _Values(fx.Interpreter):
    """Runs the graph once and keeps the shapes of values whose first axis is the batch."""

    def __init__(self, module: fx.GraphModule, batch: int) -> None:
        super().__init__(module)
        self._batch = batch
        self.shapes: dict[fx.Node, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        is_tensor = n.op != "get_attr" and isinstance(result, Tensor) and result.dim() > 0
        if is_tensor and len(result) == self._batch:
            self.shapes[n] = tuple(result.shape)
        return result


class _Rewriting:
    def __init__(
        self,
        network: nn.Module,
        example: Tensor,
        timesteps: int,
        build: Callable[[nn.Module | None, int], nn.Module],
        replaced: ReplacementSpec,
    ) -> None:
        self._build, self._replaced = build, replaced
        self._module = fx.GraphModule(network, _traced(network, replaced))
        self._graph = self._module.graph
        values = _Values(self._module, len(example))
        with torch.no_grad():
            values.run(example)
        self._shapes = values.shapes
        self._module.add_submodule("repeat", RepeatOverTime(timesteps))
        self._module.add_submodule("mean", MeanOverTime())
        self._places = {n: self._module_of(n) for n in self._graph.nodes if self._is_place(n)}
        self._taken: set[str] = set()
        self._repeated: dict[fx.Node, fx.Node] = {}
        self._like: fx.Node | None = None
        """The first tensor that has time, [T, B, ...]."""

    def finish(self) -> nn.Module:
        """Rewrite the graph from its first ReLU to its output."""
        if not self._places:
            raise LoweringError(_NO_PLACE)
        timed = set(self._behind(list(self._places)))
        if self._needs_early_time(timed):
            first = next(node for node in self._graph.nodes if node.op == "placeholder")
            timed = set(self._behind([first])) - {first}
        for node in list(self._graph.nodes):
            if node.op == "output":
                node.args = map_arg(node.args, lambda n: self._mean(n) if n in timed else n)
            elif node in timed:
                self._enter_time(node, timed)
        self._graph.lint()
        self._module.recompile()
        self._module.delete_all_unused_submodules()
        return self._module.eval()

    def _is_place(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return isinstance(self._module_of(node), self._replaced.modules)
        is_call = node.op in ("call_function", "call_method")
        return is_call and node.target in self._replaced.functions

    def _module_of(self, node: fx.Node) -> nn.Module | None:
        is_module = node.op == "call_module"
        return self._module.get_submodule(str(node.target)) if is_module else None

    def _behind(self, first: list[fx.Node]) -> Iterator[fx.Node]:
        reached = set(first)
        for node in self._graph.nodes:
            if node in reached or reached & set(node.all_input_nodes):
                reached.add(node)
                if node.op != "output":
                    yield node

    def _needs_early_time(self, timed: set[fx.Node]) -> bool:
        """Return whether a static number, such as the batch size, is used after a neuron."""
        return any(
            source not in self._shapes and source not in timed and source.op != "get_attr"
            for node in timed
            for source in node.all_input_nodes
        )

    def _enter_time(self, node: fx.Node, timed: set[fx.Node]) -> None:
        if node not in self._places:
            with self._graph.inserting_before(node):
                node.args = map_arg(node.args, lambda n: self._folded(n, timed))
                node.kwargs = map_arg(node.kwargs, lambda n: self._folded(n, timed))
            return
        (source,) = node.all_input_nodes
        with self._graph.inserting_before(node):
            if source in timed:
                assert self._like is not None
                currents = self._graph.call_function(split_time, (source,), {"like": self._like})
            else:
                currents = self._repeat(source)
            path = self._add_neuron(node)
            bursts = self._graph.call_module(path, (currents,))
            folded = self._graph.call_function(merge_time, (bursts,))
        node.replace_all_uses_with(folded)
        timed.add(folded)
        self._graph.erase_node(node)

    def _folded(self, node: fx.Node, timed: set[fx.Node]) -> fx.Node:
        if node in timed or node not in self._shapes:
            return node
        return self._graph.call_function(merge_time, (self._repeat(node),))

    def _repeat(self, node: fx.Node) -> fx.Node:
        if node not in self._repeated:
            with self._graph.inserting_after(node):
                self._repeated[node] = self._graph.call_module("repeat", (node,))
            if self._like is None:
                self._like = self._repeated[node]
        return self._repeated[node]

    def _mean(self, node: fx.Node) -> fx.Node:
        assert self._like is not None
        with self._graph.inserting_before(self._graph.output_node()):
            sequence = self._graph.call_function(split_time, (node,), {"like": self._like})
            return self._graph.call_module("mean", (sequence,))

    def _add_neuron(self, node: fx.Node) -> str:
        """Make the neuron for a ReLU; its path is the ReLU's, changed if it is not unique."""
        module = self._places[node]
        stack = list(node.meta.get("nn_module_stack", {}))
        path = str(node.target) if module else f"{stack[-1] if stack else ''}.relu".lstrip(".")
        unique, number = path, 2
        while unique in self._taken or self._at(unique) not in (None, module):
            unique, number = f"{path}_{number}", number + 1
        self._taken.add(unique)
        self._module.add_submodule(unique, self._build(module, self._shapes[node][1]))
        return unique

    def _at(self, path: str) -> nn.Module | None:
        try:
            return self._module.get_submodule(path)
        except AttributeError:
            return None


_BIASED = (nn.Conv1d, nn.Conv2d, nn.Linear, nn.BatchNorm1d, nn.BatchNorm2d)
_WEIGHTED = ("conv1d", "conv2d", "linear", "batch_norm", "_native_batch_norm_legit_no_training")
_PASS_THROUGH = (
    *("add", "flatten", "unflatten", "view", "reshape", "squeeze", "unsqueeze"),
    *("expand", "dropout", "feature_dropout", "clone", "contiguous"),
)
"""Operators of torch that leave an added constant unchanged."""


def find_biases(network: nn.Module, example: Tensor) -> dict[str, nn.Module | None]:
    """Find for every neuron the synapse or norm whose bias only it reads, or None.

    Args:
        network: a network with neurons that torch.export can export.
        example: an input of the network.
    """
    calls = capture(network, example, batch_axis=find_batch_axis(example, None)).calls
    weighted = [call for call in calls if call.operator.removeprefix("aten.") in _WEIGHTED]
    uses = Counter(id(call.module) for call in weighted)

    def walk(call: object) -> nn.Module | None:
        if not isinstance(call, Call) or len(call.readers) != 1:
            return None
        if call in weighted:
            module = call.module if isinstance(call.module, _BIASED) else None
            has_bias = uses[id(module)] == 1 and getattr(module, "affine", True)
            return module if has_bias else None
        is_norm_result = call.operator == "getitem"  # of several that a batch norm returns
        is_kept = call.operator.removeprefix("aten.") in _PASS_THROUGH or is_norm_result
        if not is_kept or call.arguments.get("alpha", 1) != 1:
            return None
        return next((found for arg in call.arguments.values() if (found := walk(arg))), None)

    return {
        call.path: walk(call.arguments["currents"])
        for call in calls
        if call.operator == "lbq.neuron"
    }


@torch.no_grad()
def add_to_bias(module: nn.Module, offset: Tensor) -> None:
    """Add ``[1]`` or ``[C]`` to the bias of a synapse or norm; create it if missing."""
    bias, weight = getattr(module, "bias", None), module.weight
    if bias is None:
        assert isinstance(weight, Tensor)
        bias = nn.Parameter(weight.new_zeros(len(weight)))
        module.bias = bias
    bias.add_(offset)
