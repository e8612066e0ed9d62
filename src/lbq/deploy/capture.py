"""Record the calls of a network with torch.fx."""

import operator
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lbq.errors import LBQError, LoweringError
from lbq.models.time import FramesIn, ImagesIn, MeanOverTime, RepeatOverTime
from lbq.neurons.neuron import Neuron

_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod", "matmul")
_IN_PLACE = (*(f"i{name}" for name in _OPERATORS), "setitem")
_LEAVES = (Neuron, RepeatOverTime, MeanOverTime, ImagesIn, FramesIn)
_WEIGHT_HOOKS = (BasePruningMethod, WeightNorm, SpectralNorm)
"""Hooks of torch that compute a weight and change neither inputs nor outputs."""
_FAILURES = (
    *(TraceError, TypeError, ValueError, RuntimeError, AttributeError, NameError),
    *(LookupError, AssertionError),
)
"""What Python raises where code meets a proxy instead of a tensor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One call of the traced network."""

    kind: Literal["input", "module", "function", "attribute", "output"]
    name: str
    """Of the function or method; of a module its class."""
    target: Any
    """The function, or the name of a method or attribute; of a module its class before torch's
    parametrizations."""
    path: str
    """Of the module that is called, or inside which the function is called."""
    module: nn.Module | None
    args: tuple[Any, ...]
    """Tensor arguments are the calls that computed them."""
    kwargs: dict[str, Any]
    num_readers: int
    """Calls that read its values; reading its shape does not count."""
    shape: tuple[int, ...] | None
    """Of its result for the example; None if that is no tensor."""
    timesteps: int | None = None
    """Of a RepeatOverTime or FramesIn."""


def capture(model: nn.Module, example: Tensor) -> list[Call]:
    """Trace the model in eval mode and return its calls, in order.

    Args:
        model: any network whose forward torch.fx can trace. Hooks and replaced methods that a
            trace does not record are refused.
        example: an input that determines the shapes.
    """
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise LoweringError(
            "this network was compiled by torch.compile; lower the network that was compiled, "
            "model._orig_mod"
        )
    with eval_mode(model):
        _check_no_hooks("", model, parts=[("", model)])
        traced = _traced(model)
        shapes = _Shapes(traced)
        shapes.find(example)
        _check_in_place(traced.graph, shapes.storages)
    traced.graph.eliminate_dead_code()
    calls: dict[fx.Node, Call] = {}
    for node in traced.graph.nodes:
        calls[node] = _read(node, model, calls.__getitem__, shapes.found.get(node.name))
    return list(calls.values())


@contextmanager
def eval_mode(model: nn.Module) -> Generator[None]:
    """Put the model into eval mode inside the block; restore every module's mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def overridden_methods(module: nn.Module, base: type[nn.Module]) -> list[str]:
    """List the methods of ``base``, except extra_repr, that a subclass or the object replaces."""
    kinds = type(module).__mro__
    names = {name for kind in kinds[: kinds.index(base)] for name in vars(kind)}
    return sorted(
        name
        for name in names | set(_patched(module))
        if callable(getattr(base, name, None))
        and not name.startswith("__")
        and name != "extra_repr"
    )


def compute_weights(module: nn.Module) -> None:
    """Run the hooks of torch that compute a weight, such as weight norm and pruning."""
    for hook in module._forward_pre_hooks.values():  # pyright: ignore[reportPrivateUsage]
        if isinstance(hook, _WEIGHT_HOOKS):
            hook(module, ())


def _traced(model: nn.Module) -> fx.GraphModule:
    tracer, before = _Tracer(), set(vars(model))
    try:
        return fx.GraphModule(model, strip_annotations(tracer.trace(model)))
    except LBQError:
        raise
    except _FAILURES as error:
        what = str(error).partition("\n")[0].partition(". ")[0]
        where = tracer.here or "the network itself"
        raise LoweringError(
            f"this network cannot be traced: {what} (in {where}); {_advice(model, what)}"
        ) from error
    finally:
        for name in set(vars(model)) - before:  # constants that the tracer stored
            delattr(model, name)


def _advice(model: nn.Module, what: str) -> str:
    if isinstance(getattr(model, "module", None), nn.Module):
        return f"a {type(model).__name__} wraps a network; lower that one, model.module"
    if "'len'" in what:
        return "write x.shape[0] instead of len(x)"
    return "its forward may not decide by values, or loop over a tensor's size"


def _check_no_hooks(
    path: str, module: nn.Module, *, parts: list[tuple[str, nn.Module]] | None = None
) -> None:
    """Raise for hooks and replaced methods, which a trace does not record.

    A trace calls the network's own forward and does not enter leaf modules; it enters all others
    as they are called, hooks included.

    Args:
        path: of the module.
        module: a leaf of the trace.
        parts: modules to check, with their paths; the module and its children by default.
    """
    watched = module.emit if isinstance(module, Neuron) else None  # its output is not used
    for name, part in parts or module.named_modules(prefix=path):
        where = name or "the network itself"
        for hook in forward_hooks(part):
            if part is not watched and not isinstance(hook, _WEIGHT_HOOKS):
                hook_name = getattr(hook, "__qualname__", None) or type(hook).__name__
                raise LoweringError(
                    f"{where} has the forward hook {hook_name}, which a lowered network "
                    f"would not have; remove it (handle.remove()), or make what it computes a "
                    f"module of the network"
                )
        patched = [n for n in _patched(part) if callable(getattr(type(part), n, None))]
        if patched:
            raise LoweringError(
                f"{where} has a {patched[0]} of its own, put into this object instead of its class "
                f"{type(part).__name__}, so what it computes cannot be known; write a class of "
                f"modules that compute the same"
            )


def _patched(module: nn.Module) -> Iterator[str]:
    """Yield the names of functions that were stored in the object itself.

    A method of its class that was put back there, as Accelerate does, replaces nothing.
    """
    for name, value in vars(module).items():
        is_own = (
            isinstance(value, MethodType)
            and value.__self__ is module
            and value.__func__ is getattr(type(module), name, None)
        )
        if callable(value) and not is_own and not isinstance(value, nn.Module | Tensor | type):
            yield name


def forward_hooks(module: nn.Module) -> list[Any]:
    """List the hooks that a call of the module runs, those of all modules included."""
    return [
        hook
        for hooks in (
            module._forward_pre_hooks,  # pyright: ignore[reportPrivateUsage]
            module._forward_hooks,  # pyright: ignore[reportPrivateUsage]
            torch_module._global_forward_pre_hooks,  # pyright: ignore[reportPrivateUsage]
            torch_module._global_forward_hooks,  # pyright: ignore[reportPrivateUsage]
        )
        for hook in hooks.values()
    ]


def _check_in_place(graph: fx.Graph, storages: dict[str, int]) -> None:
    """Raise if a tensor is written in place and read again: a graph only records results.

    Args:
        graph: as it was traced, dead calls included.
        storages: address of every call's result, if anything is written in place.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not _is_in_place(node):
            continue
        written = node.args[0] if node.args else None
        memory = storages.get(written.name) if isinstance(written, fx.Node) else None
        readers = {
            reader
            for other in graph.nodes
            if order[other] < order[node] and storages.get(other.name) == memory is not None
            for reader in other.users
        }
        if not node.users or any(order[reader] > order[node] for reader in readers):
            raise LoweringError(
                f"{_name_of(node)} in {_path_of(node) or 'the network itself'} writes into a "
                f"tensor that is read again under its old name; write `y = y + x` instead"
            )


def _is_in_place(node: fx.Node) -> bool:
    name = _name_of(node)
    is_method = node.op == "call_method" and name.endswith("_") and not name.endswith("__")
    is_operator = node.op == "call_function" and name in _IN_PLACE
    return is_method or is_operator or node.kwargs.get("out") is not None


def strip_annotations(graph: fx.Graph) -> fx.Graph:
    """Drop annotations from a graph: torch writes them as code, and cannot write ``Annotated``.

    Those of lbq are ``Annotated`` where jaxtyping is not installed.
    """
    for node in graph.nodes:
        node.type = None
    return graph


class _Proxy(fx.Proxy):
    """Records in-place operators as such; torch's own proxy records ``+=`` as ``+``."""


def _in_place(name: str) -> Callable[[_Proxy, Any], Any]:
    function = getattr(operator, name)

    def record(self: _Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return record


for _name in _OPERATORS:
    setattr(_Proxy, f"__i{_name}__", _in_place(f"i{_name}"))


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self.here = ""
        """Path of the module whose forward is being traced."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        before, self.here = self.here, self.path_of_module(m)
        result = super().call_module(m, forward, args, kwargs)
        self.here = before
        return result

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _LEAVES) or super().is_leaf_module(m, module_qualified_name)


class _Shapes(fx.Interpreter):
    """Runs the graph once and keeps every shape, and addresses if anything is written in place."""

    def __init__(self, module: fx.GraphModule) -> None:
        writes = any(_is_in_place(node) for node in module.graph.nodes)
        # freed memory would be reused under other names
        super().__init__(module, garbage_collect_values=not writes)
        self._writes = writes
        self.found: dict[str, tuple[int, ...]] = {}
        self.storages: dict[str, int] = {}

    def find(self, example: Tensor) -> None:
        """Run the example; raise if it does not fit."""
        try:
            with torch.no_grad():
                self.run(example.clone() if self._writes else example)
        except (RuntimeError, TypeError, ValueError) as error:
            what = str(error).partition("\n")[0]
            raise LoweringError(
                f"the network cannot run the example, of shape {list(example.shape)}: {what}"
            ) from error

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.found[n.name] = tuple(result.shape)
            if self._writes:
                self.storages[n.name] = result.untyped_storage().data_ptr()
        return result


_KINDS: dict[str, Literal["input", "module", "function", "attribute", "output"]] = {
    "placeholder": "input",
    "call_module": "module",
    "call_function": "function",
    "call_method": "function",
    "get_attr": "attribute",
    "output": "output",
}


def _read(
    node: fx.Node,
    model: nn.Module,
    call_of: Callable[[fx.Node], Call],
    shape: tuple[int, ...] | None,
) -> Call:
    module = model.get_submodule(str(node.target)) if node.op == "call_module" else None
    target: Any = node.target
    if module is not None:
        _check_no_hooks(str(target), module)
        name, path = type(module).__name__, str(target)
        target = parametrize.type_before_parametrizations(module)
    else:
        name, path = _name_of(node), _path_of(node)
    timesteps = module.timesteps if isinstance(module, RepeatOverTime | FramesIn) else None
    return Call(
        kind=_KINDS[node.op],
        name=name,
        target=target,
        path=path,
        module=module,
        args=map_arg(node.args, call_of),  # pyright: ignore
        kwargs=map_arg(node.kwargs, call_of),  # pyright: ignore
        num_readers=sum(not _reads_shape(reader) for reader in node.users),
        shape=shape,
        timesteps=timesteps,
    )


def _reads_shape(node: fx.Node) -> bool:
    is_attribute = node.target is getattr and node.args[1:] == ("shape",)
    return is_attribute or (node.op == "call_method" and node.target in ("size", "dim"))


def _name_of(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    target: Any = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _path_of(node: fx.Node) -> str:
    """Return the path of the module inside which a node calls."""
    stack = list(node.meta.get("nn_module_stack", {}))
    return stack[-1] if stack else ""
