"""The timesteps that the values of a tensor belong to, tracked while a network runs.

A synapse runs once, or at every timestep, and the shape of its input cannot say which:
``x.reshape(-1, D)`` folds time into rows, where tokens look the same. So each tensor that descends
from a neuron, from frames or from a repetition over time is accompanied by the first and the last
timestep that each of its values belongs to. Operations that move values are applied to these as
well, sums and means widen the range, and a value that belongs to all timesteps has no time any
more. What cannot be followed is unknown.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, cast
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

_INF = float("inf")

_SAME_ORDER = {
    "clone", "contiguous", "detach", "double", "flatten", "float", "half", "reshape", "reshape_as",
    "squeeze", "to", "type", "unflatten", "unsqueeze", "view", "view_as",
}  # fmt: skip
"""The order of values is kept, as in a reshape."""
_INDEXING = {
    "__get__", "__getitem__", "broadcast_to", "chunk", "expand", "expand_as", "flip",
    "index_select", "moveaxis", "movedim", "narrow", "permute", "repeat", "repeat_interleave",
    "roll", "select", "split", "swapaxes", "swapdims", "t", "tensor_split", "tile", "transpose",
    "unbind",
}  # fmt: skip
"""Values of the first argument move."""
_CONCATENATIONS = {"cat", "concat", "concatenate", "stack"}
_REDUCTIONS = {
    "all", "amax", "amin", "any", "argmax", "argmin", "logsumexp", "max", "mean", "median", "min",
    "prod", "std", "sum", "var",
}  # fmt: skip
_PRODUCTS = {"__matmul__", "bmm", "linear", "matmul", "mm"}
"""The last axis of the first argument is summed over."""
_BY_ROWS = {"conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"}
_UNORDERED = {"addmm", "as_strided", "baddbmm", "dot", "einsum", "inner", "outer", "tensordot"}
"""The first axis of the answer need not be that of the arguments."""
_REPEATING = _CONCATENATIONS | {
    "__add__", "__iadd__", "__mul__", "__radd__", "__rmul__", "add", "broadcast_to", "expand",
    "expand_as", "mul", "repeat", "repeat_interleave", "tile",
}  # fmt: skip
"""How networks repeat a static input over time by hand."""


@dataclass(frozen=True, eq=False)
class _Timed:
    """The timesteps of every value, from inf to -inf where a value has none."""

    first: Tensor
    last: Tensor
    timesteps: int
    origins: frozenset[int]
    """Where time may have begun; a neuron confirms that it did."""


_State = _Timed | Literal["static", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Timesteps:
    """The timesteps at which a synapse ran in one call."""

    at: frozenset[int] = frozenset()
    """Empty for a static input."""
    origins: frozenset[int] = frozenset()


class TimeTracker:
    """Follows time through the operations of a network.

    Args:
        model: whose parameters and other stored tensors have no time.
        example: its input for a batch of one; several rows may be frames, which a neuron decides.
    """

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        self._states: dict[int, tuple[ReferenceType[Tensor], _State]] = {}
        self._num_origins = 0
        self._confirmed: set[int] = set()
        self._began_unseen = False
        for module in model.modules():
            stored = (*module.parameters(False), *module.buffers(False), *vars(module).values())
            for tensor in stored:
                if isinstance(tensor, Tensor):
                    self._set(tensor, "static")
        self._set(example, self._begin(example) if len(example) > 1 else "static")

    def emit(self, bursts: Tensor) -> None:
        """Note the output of a neuron or of RepeatOverTime: time is the first axis."""
        self._set(bursts, _timed_rows(bursts))

    def receive(self, currents: Tensor) -> None:
        """Note the input of a neuron: its rows are timesteps."""
        state, steps = self._get(currents), len(currents)
        if steps > 1 and isinstance(state, _Timed):
            expected = _timed_rows(currents).first
            if all(torch.equal(bound, expected) for bound in (state.first, state.last)):
                self._confirmed |= state.origins
        elif steps > 1 and state == "static":
            self._began_unseen = True

    def moments(self, inputs: Tensor, *, is_linear: bool) -> Timesteps | None:
        """Return the timesteps at which a synapse ran on these inputs; None if unknown.

        Args:
            inputs: what a linear layer reads along the last axis, a convolution row by row.
            is_linear: which of the two.
        """
        state = self._get(inputs)
        if isinstance(state, _Timed):
            state = _over_features(state) if is_linear else _over_rows(state)
        if isinstance(state, str):
            return Timesteps() if state == "static" else None
        times, counts = state.first.unique(return_counts=True)
        if not torch.equal(state.first, state.last) or len(counts.unique()) > 1:
            return None  # a value belongs to some timesteps, or timesteps have unequal shares
        return Timesteps(at=frozenset(map(int, times.tolist())), origins=state.origins)

    def is_certain(self, moments: Timesteps) -> bool:
        """Return, after the run, whether these are timesteps and no other axis."""
        return moments.origins <= self._confirmed and not (self._began_unseen and not moments.at)

    def follow(self, func: Any, name: str, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Note the timesteps of an operation's output."""
        if name == "__setitem__":
            self._assign(*args)
            return
        call = _Call(func, name, args, kwargs, [*_tensors((*args, *kwargs.values()))])
        outputs = [*_tensors(output)]
        moved = call.argument("input", index=0)
        state = self._get(moved) if isinstance(moved, Tensor) else "static"
        if name in _INDEXING and isinstance(state, _Timed):
            bounds = [[*_tensors(call.on(bound))] for bound in (state.first, state.last)]
            for given, first, last in zip(outputs, *bounds, strict=True):
                self._set(given, _settled(first, last, state))
        else:
            for given in outputs:
                self._set(given, self._result(call, given))

    def pass_rows(self, inputs: Tensor, output: Tensor) -> None:
        """Note the output of a module that is not traced and keeps its rows."""
        state = self._get(inputs)
        self._set(output, state if isinstance(state, str) else _as_rows_of([state], output))

    def _result(self, call: "_Call", output: Tensor) -> _State:
        states = [self._get(tensor) for tensor in call.tensors]
        timed = [state for state in states if isinstance(state, _Timed)]
        if not timed:
            if "unknown" in states:
                return "unknown"
            return self._begin(output) if _has_repeated(call, output) else "static"
        if call.name in _SAME_ORDER and output.numel() == timed[0].first.numel():
            first, last = (b.reshape(output.shape) for b in (timed[0].first, timed[0].last))
            return _settled(first, last, timed[0])
        if call.name in _CONCATENATIONS and "unknown" not in states:
            bounds = [self._bounds(tensor) for tensor in call.tensors]
            return _merged(timed, *(call.on([pair[k] for pair in bounds]) for k in (0, 1)))
        if call.name in _REDUCTIONS and len(states) == 1:
            return _reduced(timed[0], call, output)
        if call.name in _PRODUCTS and timed == [self._get(call.argument("input", index=0))]:
            features = _over_features(timed[0])
            return features if isinstance(features, str) else _widened(features, output)
        if call.name in _UNORDERED or (call.name in _PRODUCTS and output.dim() < 3):
            return "unknown"
        if call.name not in _BY_ROWS | _PRODUCTS and _is_elementwise(call, timed, output):
            return _combined([_widened(state, output) for state in timed])
        return _as_rows_of(timed, output)

    def _assign(self, target: Tensor, index: Any, value: Any) -> None:
        """Follow ``target[index] = value``."""
        states = [self._get(target), *(self._get(tensor) for tensor in _tensors(value))]
        timed = [state for state in states if isinstance(state, _Timed)]
        if "unknown" in states:
            self._set(target, "unknown")
        elif timed:
            first, last = (bound.clone() for bound in self._bounds(target))
            if isinstance(states[-1], _Timed) and isinstance(value, Tensor):
                first[index], last[index] = self._bounds(value)
            self._set(target, _merged(timed, first, last))
        elif isinstance(value, Tensor) and target.dim() and len(target) > 1:
            self._set(target, self._begin(target))  # a buffer may be filled timestep by timestep

    def _begin(self, tensor: Tensor) -> _Timed:
        self._num_origins += 1
        return _timed_rows(tensor, frozenset((self._num_origins,)))

    def _bounds(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        state = self._get(tensor)
        if isinstance(state, _Timed):
            return state.first, state.last
        none = torch.full(tensor.shape, _INF, device=tensor.device)
        return none, -none

    def _get(self, tensor: Tensor) -> _State:
        holder, state = self._states.get(id(tensor), (None, "unknown"))
        return state if holder is not None and holder() is tensor else "unknown"

    def _set(self, tensor: Tensor, state: _State) -> None:
        self._states[id(tensor)] = ref(tensor), state  # weak: activations may be large


@dataclass(frozen=True, eq=False)
class _Call:
    func: Any
    name: str
    args: Any
    kwargs: dict[str, Any]
    tensors: list[Tensor]

    def on(self, first: Any) -> Any:
        """Call the same with another first argument."""
        rest = {key: value for key, value in self.kwargs.items() if key not in ("input", "tensors")}
        return self.func(first, *self.args[1:], **rest)

    def argument(self, *names: str, index: int) -> Any:
        """Return an argument by any of its names or by its place; None if it is not given."""
        given = [self.kwargs[name] for name in names if name in self.kwargs]
        return given[0] if given else self.args[index] if len(self.args) > index else None


def _timed_rows(like: Tensor, origins: frozenset[int] = frozenset()) -> _Timed:
    times = torch.arange(len(like), dtype=torch.float32, device=like.device)
    rows = times.reshape(-1, *[1] * (like.dim() - 1)).expand(like.shape)
    return _Timed(rows, rows, len(like), origins)


def _has_repeated(call: _Call, output: Tensor) -> bool:
    """Return whether static tensors were repeated along a first axis, where time may begin."""
    if call.name not in _REPEATING or not call.tensors or output.dim() == 0 or len(output) == 1:
        return False
    largest = max(tensor.numel() for tensor in call.tensors)
    repeated = [tensor.shape for tensor in call.tensors if tensor.numel() == largest]
    rows = {shape[0] for shape in repeated if len(shape) == output.dim()}
    return output.numel() > largest and len(output) not in rows


def _is_elementwise(call: _Call, timed: list[_Timed], output: Tensor) -> bool:
    """Return whether shapes allow that every value depends on the values at its own place."""
    if all(state.first.shape == output.shape for state in timed):
        return True
    try:
        return torch.broadcast_shapes(*(t.shape for t in call.tensors)) == output.shape
    except RuntimeError:
        return False


def _reduced(state: _Timed, call: _Call, output: Tensor) -> _State:
    axes = call.argument("dim", "axis", index=1)
    axes = tuple(range(state.first.dim())) if axes in (None, (), []) else axes
    keep = call.argument("keepdim", "keepdims", index=2) is True
    first, last = state.first.amin(axes, keep), state.last.amax(axes, keep)
    return _settled(first, last, state) if first.shape == output.shape else "unknown"


def _over_features(state: _Timed) -> _State:
    """Combine along the last axis, all of which enters every output."""
    return _settled(state.first.amin(-1, True), state.last.amax(-1, True), state)


def _over_rows(state: _Timed) -> _State:
    """Return the timesteps of each row, if all values of a row have the same (or none)."""
    first, last = state.first.flatten(1), state.last.flatten(1)
    earliest, latest = first.amin(1), last.amax(1)
    is_one = (first.where(first != _INF, -_INF).amax(1) == earliest) | (earliest == _INF)
    is_one &= (last.where(last != -_INF, _INF).amin(1) == latest) | (latest == -_INF)
    return _settled(earliest, latest, state) if bool(is_one.all()) else "unknown"


def _as_rows_of(timed: list[_Timed], output: Tensor) -> _State:
    """Combine row by row: convolutions, pools and most other operations keep the first axis."""
    found: list[_Timed] = []
    for state in timed:
        rows = _over_rows(state) if state.first.dim() else "unknown"
        if isinstance(rows, str) or not output.dim() or len(rows.first) != len(output):
            return "unknown"
        shape = (-1, *[1] * (output.dim() - 1))
        first, last = (bound.reshape(shape) for bound in (rows.first, rows.last))
        found.append(_widened(_Timed(first, last, rows.timesteps, rows.origins), output))
    return _combined(found)


def _widened(state: _Timed, output: Tensor) -> _Timed:
    first, last = (bound.expand(output.shape) for bound in (state.first, state.last))
    return _Timed(first, last, state.timesteps, state.origins)


def _combined(timed: list[_Timed]) -> _State:
    """Combine value by value."""
    first = reduce(torch.minimum, (state.first for state in timed))
    return _merged(timed, first, reduce(torch.maximum, (state.last for state in timed)))


def _merged(timed: list[_Timed], first: Tensor, last: Tensor) -> _State:
    if len({state.timesteps for state in timed}) > 1:
        return "unknown"
    origins = frozenset[int]().union(*(state.origins for state in timed))
    return _settled(first, last, _Timed(first, last, timed[0].timesteps, origins))


def _settled(first: Tensor, last: Tensor, like: _Timed) -> _State:
    """Return a state of these bounds: static if every value belongs to all timesteps or to none."""
    end = like.timesteps - 1
    if first.numel() == 0:
        return "unknown"
    if bool((first > last).all()) or (end and bool(((first == 0) & (last == end)).all())):
        return "static"
    return _Timed(_by_row(first), _by_row(last), like.timesteps, like.origins)


def _by_row(bound: Tensor) -> Tensor:
    """Store one value per row where rows have one: bounds are as large as activations."""
    if bound.dim() < 2:
        return bound
    rows = bound.flatten(1)[:, :1].reshape(-1, *[1] * (bound.dim() - 1)).expand(bound.shape)
    return rows if torch.equal(rows, bound) else bound


def _tensors(values: Any) -> Iterable[Tensor]:
    """Yield the tensors in nested lists and tuples."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in cast(Iterable[Any], values):
            yield from _tensors(value)
