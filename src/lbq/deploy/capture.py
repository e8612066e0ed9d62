"""Writing down what a network does, call by call: the only file that knows torch.fx and models."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError

from lbq.errors import LoweringError
from lbq.models.time import FramesIn, ImagesIn, MeanOverTime, RepeatOverTime
from lbq.neurons.neuron import Neuron

_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "pow")
_IN_PLACE = (*(f"i{name}" for name in _OPERATORS), "setitem")
_LEAVES = (Neuron, RepeatOverTime, MeanOverTime, ImagesIn, FramesIn)


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One thing that the network does."""

    kind: Literal["input", "module", "function", "attribute", "output"]
    name: str
    """Of the function or method; of a module its class."""
    path: str
    """Of the module that is called, or inside which the function is called."""
    module: nn.Module | None
    args: tuple[Any, ...]
    """With calls where tensors enter."""
    kwargs: dict[str, Any]
    num_readers: int
    shape: tuple[int, ...] | None
    """Of what it gave for the example; None if that is no tensor."""
    says: dict[str, int] = field(default_factory=dict[str, int])
    """What a module that this file knows says about itself: ``timesteps``."""


def capture(model: nn.Module, example: Tensor) -> list[Call]:
    """Trace the model in eval mode and return its calls, in order.

    Args:
        model: any network whose forward torch.fx can trace.
        example: an input, to learn the shapes from.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        traced = fx.GraphModule(model, untyped(_Tracer().trace(model)))
        _check_in_place(traced.graph)
        traced.graph.eliminate_dead_code()
        shapes = _Shapes(traced)
    except (TraceError, TypeError) as error:
        raise LoweringError(
            f"this network cannot be traced: {error}; its forward may not decide by values"
        ) from error
    else:
        shapes.find(example)
    finally:
        for module, training in modes.items():
            module.training = training
    calls: dict[fx.Node, Call] = {}
    for node in traced.graph.nodes:
        calls[node] = _read(node, model, calls.__getitem__, shapes.found.get(node.name))
    return list(calls.values())


def _check_in_place(graph: fx.Graph) -> None:
    """Refuse writing into a tensor that is read again: a graph only knows what calls give.

    A traced ``+=`` is a sum with a new name; that nobody reads it is what is left to see of it.
    """
    order = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if not (_is_in_place(node) or (not node.users and _name_of(node) in _OPERATORS)):
            continue
        written = node.args[0] if node.args else None
        readers = written.users if isinstance(written, fx.Node) else ()
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


def untyped(graph: fx.Graph) -> fx.Graph:
    """Drop annotations from a graph: torch writes them as code, and cannot write ``Annotated``.

    Ours are ``Annotated`` wherever jaxtyping is not installed, that is, at our users'.
    """
    for node in graph.nodes:
        node.type = None
    return graph


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _LEAVES) or super().is_leaf_module(m, module_qualified_name)


class _Shapes(fx.Interpreter):
    """Runs the graph once and keeps every shape."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.found: dict[str, tuple[int, ...]] = {}

    def find(self, example: Tensor) -> None:
        """Run the example, or say that it does not fit."""
        try:
            with torch.no_grad():
                self.run(example)
        except (RuntimeError, TypeError, ValueError) as error:
            what = str(error).partition("\n")[0]
            raise LoweringError(
                f"the network cannot run the example, of shape {list(example.shape)}: {what}"
            ) from error

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.found[n.name] = tuple(result.shape)
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
        name, path = type(module).__name__, str(target)
    else:
        name, path = _name_of(node), _path_of(node)
    timesteps = module.timesteps if isinstance(module, RepeatOverTime | FramesIn) else None
    return Call(
        kind=_KINDS[node.op],
        name=name,
        path=path,
        module=module,
        args=map_arg(node.args, call_of),  # pyright: ignore
        kwargs=map_arg(node.kwargs, call_of),  # pyright: ignore
        num_readers=len(node.users),
        shape=shape,
        says={} if timesteps is None else {"timesteps": timesteps},
    )


def _name_of(node: fx.Node) -> str:
    """Return the name of the function or method that a node calls."""
    target: Any = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _path_of(node: fx.Node) -> str:
    """Return the path of the module inside which a node calls."""
    stack = list(node.meta.get("nn_module_stack", {}))
    return stack[-1] if stack else ""
