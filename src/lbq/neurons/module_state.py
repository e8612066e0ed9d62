"""Copy, restore and list the state that modules store between calls.

Our neurons have no state. Those of other libraries keep membranes in attributes and buffers.
"""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn

from lbq.errors import ParameterError


def copy_network(model: nn.Module) -> nn.Module:
    """Copy a network, with its stored state.

    Python cannot copy tensors that a training step left with an autograd graph; here they are
    copied without the graph.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for tensor in _stored_tensors(vars(module)):
            if not tensor.is_leaf:
                memo[id(tensor)] = tensor.detach().clone()
    try:
        return deepcopy(model, memo)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ParameterError(
            f"the network cannot be copied ({error}), and only a copy runs, so that yours does not "
            f"change; remove attributes that copy.deepcopy cannot copy (open files, locks, "
            f"generators)"
        ) from error


@contextmanager
def keeping_state(model: nn.Module) -> Generator[None]:
    """Restore the stored state of every module when the block ends.

    Neurons of other libraries keep membranes in attributes, and a tracer would leave its own
    tensors there.
    """
    modules = (m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule))
    before = [(m, _contents(vars(m)), _values(m)) for m in modules]
    try:
        yield
    finally:
        for module, stored, buffers in before:
            vars(module).clear()
            vars(module).update({k: _refilled(v, kept) for k, (v, kept) in stored.items()})
            for name, value in buffers.items():
                with torch.no_grad():
                    module._buffers[name].copy_(value)  # pyright: ignore[reportOptionalMemberAccess, reportPrivateUsage]


@contextmanager
def eval_mode(model: nn.Module) -> Generator[None]:
    """Put the model into eval mode inside the block; restore modes and state afterwards."""
    modes = {module: module.training for module in model.modules()}
    try:
        with keeping_state(model):
            model.eval()
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _contents(stored: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        k: (v, v.copy() if isinstance(v, dict | list | set) else None) for k, v in stored.items()
    }


def _refilled(container: Any, contents: Any) -> Any:
    """Return the same object with its former contents."""
    if contents is not None:
        container.clear()
        container.extend(contents) if isinstance(container, list) else container.update(contents)
    return container


def _values(module: nn.Module) -> dict[str, Tensor]:
    buffers = module.named_buffers(recurse=False)
    return {name: value.detach().clone() for name, value in buffers}


def _stored_tensors(value: Any, depth: int = 4) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, dict | list | tuple):
        items = cast(Any, value).values() if isinstance(value, dict) else cast(Any, value)
        for item in items:
            yield from _stored_tensors(item, depth - 1)


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the tensors that modules hold: buffers and plain attributes."""
    found = dict(model.named_buffers())
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            for tensor in _stored_tensors(value) if not name.startswith("_parameters") else ():
                found[f"{path}.{name}".lstrip(".")] = tensor
    return {name: value.detach().clone() for name, value in found.items()}
