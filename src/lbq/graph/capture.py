"""Record the operators of a network with torch.export."""

import io
import logging
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.nn.modules import module as torch_module

from lbq.errors import LBQError, LoweringError
from lbq.neurons.module_state import eval_mode
from lbq.neurons.neuron import Neuron
from lbq.neurons.watch import foreign_library, named_neurons, running_uncompiled
from lbq.time import RepeatOverTime

EXPORTED_BATCH = 37
"""Batch size of the export: a prime, which rarely divides the size of another axis."""

_operators = torch.library.Library("lbq", "FRAGMENT")
_operators.define("neuron(Tensor currents, int index) -> Tensor")


@torch.library.register_fake("lbq::neuron")
def _fake_neuron(currents: Tensor, index: int) -> Tensor:  # pyright: ignore[reportUnusedFunction]
    return torch.empty_like(currents)


_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
"""The folders with the code of torch and of this library."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_DROPOUTS = tuple(
    f"aten.{kind}dropout.default" for kind in ("", "feature_", "alpha_", "feature_alpha_")
)
_SYNONYMS = {
    **{"aten.multiply": "aten.mul", "aten.divide": "aten.div", "aten.true_divide": "aten.div"},
    **{"aten.subtract": "aten.sub", "aten.concat": "aten.cat", "aten.concatenate": "aten.cat"},
    **{"aten.moveaxis": "aten.movedim", "aten.swapaxes": "aten.transpose"},
    **{"aten.swapdims": "aten.transpose", "aten._unsafe_view": "aten.view"},
}
_NOT_WRITES = ("aten.detach_.default",)
"""Operators whose schema says that they write, although they do not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Constant:
    """A tensor computed from parameters, buffers and numbers only, such as a weight."""

    name: str
    """Path of the parameter or buffer, or the operator that computes it."""
    shape: tuple[int, ...]
    compute: Callable[[], Any]
    """Computes the value from the current parameters and buffers of the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One operator of the exported network."""

    operator: str
    """Name of the operator: "aten.conv2d", "lbq.neuron", "getitem" or "input", for example."""
    arguments: dict[str, Any]
    """Arguments by name, with the defaults of the schema; tensors are calls or constants."""
    path: str
    """Path of the innermost module whose code calls the operator. Inside a neuron of another
    library it is the path of that neuron."""
    module: nn.Module
    """The module at this path; for "lbq.neuron", the neuron."""
    shape: tuple[int, ...]
    """Shape of the result for a batch of ``EXPORTED_BATCH``; empty if it is not a tensor."""
    line: str = ""
    """File and line of the network's code that calls the operator."""
    readers: list["Call"] = field(default_factory=list["Call"])
    """Calls that read the result, without the output of the network."""

    @property
    def is_layer(self) -> bool:
        """Whether a layer of torch or of this library calls it, not a block of layers."""
        kinds = (nn.Module, *_CONTAINERS)
        own = [k for k in type(self.module).__mro__ if k.__module__.startswith("torch.nn.modules.")]
        is_torch = bool(own) and own[0] not in kinds
        is_ours = isinstance(self.module, Neuron | RepeatOverTime)
        return is_torch or is_ours or foreign_library(self.module) is not None

    @property
    def name(self) -> str:
        """Return the class of the layer, or the operator."""
        return type(self.module).__name__ if self.is_layer else self.operator.rpartition(".")[2]

    @property
    def place(self) -> str:
        """Return the module that calls it, for error messages."""
        return self.path or "the network itself"


@dataclass(frozen=True, kw_only=True, eq=False)
class Captured:
    """The operators of a network from its input to its output, in order."""

    calls: list[Call]
    outputs: list[Call | Constant]
    """The tensors that forward returns; tuples, lists and dictionaries are flattened in order."""


def capture(model: nn.Module, example: Tensor, *, batch_axis: int) -> Captured:
    """Export the model in eval mode and return the operators that its output depends on.

    The model's own code and its hooks run on tensors without values. A neuron is recorded as one
    operator. The result of an in-place operation is recorded as a new value.

    Args:
        model: any network whose forward does not depend on values. It is not changed.
        example: an input that determines the shapes.
        batch_axis: axis of the samples in the example.
    """
    neurons = list(named_neurons(model))
    _check_model(model, neurons)
    shape = list(example.shape)
    shape[batch_axis] = EXPORTED_BATCH
    with eval_mode(model), _recorded_neurons(model, neurons), _quiet(), torch.no_grad():
        try:
            program = torch.export.export(model, (example.new_zeros(shape),), strict=False)
            if any(_writes(node) for node in program.graph.nodes):
                _remove_dropout(program.graph)
                program = program.run_decompositions({})
        except LBQError:
            raise
        except Exception as error:
            raise LoweringError(_failure(model, example, error)) from error
    for name in program.graph_signature.buffers_to_mutate.values():
        raise LoweringError(
            f"the forward of this network writes into its buffer {name} in eval mode, so that "
            f"one call can change the next; write into buffers in train mode only, and remove "
            f"layers of torch.ao.nn.qat"
        )
    return _Reader(program, model, neurons).read()


def overridden_methods(module: nn.Module, base: type[nn.Module]) -> list[str]:
    """List the methods of ``base``, except extra_repr, that a subclass or the object replaces."""
    kinds = type(module).__mro__
    names = {name for kind in kinds[: kinds.index(base)] for name in vars(kind)}
    return sorted(
        name
        for name in names | {name for name in vars(module) if _is_patched(module, name)}
        if callable(getattr(base, name, None))
        and not name.startswith("__")
        and name != "extra_repr"
    )


def forward_hooks(module: nn.Module) -> list[Any]:
    """List the hooks that a call of the module runs, with those registered for all modules."""
    own = (module._forward_pre_hooks, module._forward_hooks)  # pyright: ignore[reportPrivateUsage]
    return [hook for hooks in own for hook in hooks.values()] + _global_hooks()


def _global_hooks() -> list[Any]:
    shared = (
        torch_module._global_forward_pre_hooks,  # pyright: ignore[reportPrivateUsage]
        torch_module._global_forward_hooks,  # pyright: ignore[reportPrivateUsage]
    )
    return [hook for hooks in shared for hook in hooks.values()]


def _is_patched(module: nn.Module, name: str) -> bool:
    """Return whether a function was stored in the object itself.

    A method of the class that was stored in the object again, as Accelerate does, does not count.
    """
    value = vars(module)[name]
    is_own = (
        isinstance(value, MethodType)
        and value.__self__ is module
        and value.__func__ is getattr(type(module), name, None)
    )
    return callable(value) and not is_own and not isinstance(value, nn.Module | Tensor | type)


def _check_model(model: nn.Module, neurons: list[tuple[str, Neuron]]) -> None:
    """Raise for wrapped networks, and for hooks that cannot be compared."""
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise LoweringError(
            "this network was compiled by torch.compile; lower the original network, "
            "model._orig_mod"
        )
    is_wrapper = type(model).__module__.startswith(("torch.nn.parallel.", "torch.distributed."))
    if is_wrapper and isinstance(getattr(model, "module", None), nn.Module):
        raise LoweringError(
            f"a {type(model).__name__} wraps a network; lower the wrapped network, model.module"
        )
    for hook in _global_hooks():
        raise LoweringError(
            f"the forward hook {_name_of(hook)} is registered for all modules, also for those of "
            f"lowered networks; remove it (handle.remove()), or register it on modules of this "
            f"network"
        )
    for path, neuron in neurons:
        for hook in forward_hooks(neuron.receive):
            raise LoweringError(
                f"{path}.receive has the forward hook {_name_of(hook)}, so its currents cannot be "
                f"compared; remove the hook (handle.remove()), or register it on {path}"
            )


def _name_of(hook: Any) -> str:
    return getattr(hook, "__qualname__", None) or type(hook).__name__


@contextmanager
def _recorded_neurons(model: nn.Module, neurons: list[tuple[str, Neuron]]) -> Generator[None]:
    """Record neurons as one operator inside the block.

    On exit, removes the attributes that code stored in modules meanwhile, because they may be
    tensors without values.
    """
    kept = [(module, dict(vars(module))) for module in model.modules()]
    for index, (path, neuron) in enumerate(neurons):
        vars(neuron)["stream"] = partial(_record, path, neuron, index)
    try:
        yield
    finally:
        for module, before in kept:
            vars(module).clear()
            vars(module).update(before)


def _record(
    path: str, neuron: Neuron, index: int, currents: Tensor, carry: Tensor | None
) -> tuple[Tensor, None]:
    if carry is not None:
        raise LoweringError(
            f"forward passes a carry to {path}, but a lowered network starts from rest; call the "
            f"neuron with the whole sequence, [T, B, ...]"
        )
    return torch.ops.lbq.neuron(neuron.receive(currents), index), None


@contextmanager
def _quiet() -> Generator[None]:
    """Run uncompiled, without torch's warnings and logs; errors still propagate."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), running_uncompiled(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _remove_dropout(graph: fx.Graph) -> None:
    """Remove dropouts that return their input, so that writes into the result reach the input."""
    outputs = graph.output_node().all_input_nodes
    for node in list(graph.nodes):
        if str(node.target) in _DROPOUTS and not node.args[2] and node not in outputs:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and str(node.target) not in _NOT_WRITES


def foreign_advice(neuron: nn.Module) -> str:
    """Return the advice for a neuron of another library."""
    return (
        f"it is a neuron of {foreign_library(neuron)}, and lbq does not know its thresholds; "
        f"replace it with lbq.BurstLIF, or with lbq.neurons.BinaryLIF for 0 and 1, and train the "
        f"network again"
    )


def _failure(model: nn.Module, example: Tensor, error: Exception) -> str:
    """Return the message for an export that failed: where, why, and what to do."""
    paths = {id(module): path for path, module in model.named_modules()}
    where, line, trace = "", "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        where = paths.get(id(frame.f_locals.get("self")), where)
        if not frame.f_code.co_filename.startswith((*_FOLDERS, "<")):
            line = f", {Path(frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    place = f"{where or 'the network itself'}{line}"
    what = str(error).partition("\n")[0]
    modules = dict(model.named_modules())
    for path in (where.rpartition(".")[0], where):
        if path in modules and foreign_library(modules[path]) is not None:
            name, at = type(modules[path]).__name__, path or "the network itself"
            return f"{name} in {at} cannot be lowered: {foreign_advice(modules[path])}"
    if any(word in str(error).lower() for word in ("data-dependent", "data dependent", ".item()")):
        return (
            f"this network cannot be lowered: code in {place} depends on the values of tensors; "
            f"remove branches and loops that depend on them"
        )
    return (
        f"the network cannot run the example, of shape {list(example.shape)}, with a batch of "
        f"{EXPORTED_BATCH}: {what} ({type(error).__name__} in {place})"
    )


class _Reader:
    """Reads the graph of an exported program."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        model: nn.Module,
        neurons: list[tuple[str, Neuron]],
    ) -> None:
        self._program, self._model, self._neurons = program, model, neurons
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._values: dict[fx.Node, Call | Constant] = {}

    def read(self) -> Captured:
        """Return the calls that the output depends on."""
        graph, signature = self._program.graph, self._program.graph_signature
        inputs = {spec.arg.name: spec.target for spec in signature.input_specs if spec.target}
        names = [getattr(spec.arg, "name", None) for spec in signature.output_specs]
        nodes = {node.name: node for node in graph.nodes}
        needed = _ancestors([nodes[name] for name in names if name is not None])
        calls: list[Call] = []
        for node in graph.nodes:
            if node not in needed:
                continue
            if node.name in inputs:
                self._values[node] = self._stored(node, inputs[node.name])
            elif node.op == "call_function" and _is_constant(node, self._values):
                self._values[node] = self._computed(node)
            else:
                self._values[node] = call = self._call(node)
                calls.append(call)
        outputs = [self._values[nodes[name]] for name in names if name is not None]
        return Captured(calls=calls, outputs=outputs)

    def _stored(self, node: fx.Node, name: str) -> Constant:
        *path, attribute = name.split(".")
        owner = self._modules.get(".".join(path))
        if owner is not None and hasattr(owner, attribute):
            return _constant(node, name, partial(getattr, owner, attribute))
        return _constant(node, name, partial(self._program.constants.__getitem__, name))

    def _computed(self, node: fx.Node) -> Constant:
        target: Any = node.target

        def value_of(source: fx.Node) -> Any:
            found = self._values[source]
            assert isinstance(found, Constant)
            return found.compute()

        @torch.no_grad()
        def compute() -> Any:
            return target(*map_arg(node.args, value_of), **map_arg(node.kwargs, value_of))

        return _constant(node, _operator_of(node), compute)

    def _call(self, node: fx.Node) -> Call:
        operator = "input" if node.op == "placeholder" else _operator_of(node)
        arguments: Any = map_arg(_arguments(node), cast(Any, self._values.__getitem__))
        stack = [path for path, _ in node.meta.get("nn_module_stack", {}).values()]
        foreign = [path for path in stack if foreign_library(self._modules.get(path, self._model))]
        path = foreign[0] if foreign else stack[-1] if stack else ""
        module = self._modules.get(path, self._model)
        if operator == "lbq.neuron":
            path, module = self._neurons[arguments["index"]]
        call = Call(
            operator=operator,
            arguments=arguments,
            path=path,
            module=module,
            shape=_shape_of(node),
            line=_line_of(node),
        )
        for source in node.all_input_nodes:
            value = self._values[source]
            if isinstance(value, Call):
                value.readers.append(call)
        return call


def _constant(node: fx.Node, name: str, compute: Callable[[], Any]) -> Constant:
    return Constant(name=name, shape=_shape_of(node), compute=compute)


def _is_constant(node: fx.Node, values: dict[fx.Node, Call | Constant]) -> bool:
    """Return whether a node computes the same value at every call, whatever the input."""
    tags = getattr(node.target, "tags", ())
    is_random = torch.Tag.nondeterministic_seeded in tags
    sources = node.all_input_nodes
    return not is_random and all(isinstance(values[source], Constant) for source in sources)


def _ancestors(nodes: list[fx.Node]) -> set[fx.Node]:
    found, waiting = set(nodes), list(nodes)
    while waiting:
        new = [source for source in waiting.pop().all_input_nodes if source not in found]
        found.update(new)
        waiting += new
    return found


def _operator_of(node: fx.Node) -> str:
    """Return the name of an operator without its overload."""
    packet = getattr(node.target, "overloadpacket", None)
    name = str(packet or getattr(node.target, "__name__", node.target))
    return _SYNONYMS.get(name, name)


def _arguments(node: fx.Node) -> dict[str, Any]:
    schema = getattr(node.target, "_schema", None)
    if schema is None:  # getitem, and operators of torch that contain graphs
        return {**{str(index): value for index, value in enumerate(node.args)}, **node.kwargs}
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    given = {a.name: value for a, value in zip(schema.arguments, node.args, strict=False)}
    return {**defaults, **given, **node.kwargs}


def _shape_of(node: fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _line_of(node: fx.Node) -> str:
    """Return the last line of the network's own code in the node's stack trace."""
    lines = [line.split(",") for line in (node.meta.get("stack_trace") or "").splitlines()]
    places = [
        (parts[0].strip().removeprefix("File ").strip('"'), parts[1].removeprefix(" line "))
        for parts in lines
        if len(parts) == 3 and parts[0].strip().startswith("File ")
    ]
    own = [place for place in places if not place[0].startswith(_FOLDERS)]
    return f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else ""
