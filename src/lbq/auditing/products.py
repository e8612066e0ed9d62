"""Find the products that a network computes, and whether their operands are levels.

Every operator of ATen is recorded while the network runs, whatever module or function calls it;
composite operators are recorded as their parts. An operator moves values, multiplies them, or is
not known (``operators.py``). Unknown operators are reported, never ignored. Every tensor is
followed from the input of the network, so products of weights alone do not count, and real numbers
that happen to lie on a grid, such as pixels, are not taken for levels.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,  # pyright: ignore[reportPrivateUsage]
)
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from lbq.auditing.level_values import MAX_LEVEL, Levels, find_levels
from lbq.auditing.operators import base_name, kind_of
from lbq.auditing.recording import hookable_modules
from lbq.cost.count_table import Activity, Counts, Rate
from lbq.cost.fan_out import FanOutMap, conv_fan_out, linear_fan_out
from lbq.cost.op_counter import BitCounts
from lbq.functional.planes import popcount_wide
from lbq.neurons.neuron import Neuron
from lbq.neurons.watch import removing_hooks

_MOST_PRODUCT = 2**20
"""Largest integer of an operand that may itself be the result of a product."""
_FEW = 16
"""With fewer values, real numbers may lie on a grid by chance."""
_DISTINCT = 4
"""So may fewer distinct ones."""
_MOST_KNOWN = 20_000
"""Number of tensors above which records of freed tensors are dropped."""

_CONVOLUTIONS = ("convolution", "_convolution", "mkldnn_convolution")
_MATRICES = ("mm", "bmm", "mv", "addmm", "addmv", "baddbmm", "linear", "dot", "vdot")
_EXITS = ("numpy", "__array__", "tolist", "data_ptr", "__dlpack__")
"""Methods by which values leave torch."""
_MEMORY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "resize")
"""Operators that return memory without values."""
_INTEGERS = ("bernoulli", "binomial", "geometric", "multinomial", "poisson", "randint", "randperm")
"""Random numbers that are integers."""
_PRODUCT_REDUCTIONS = ("prod", "multiply")
_FACTORS = ("weight", "scale")
"""Arguments that the values are multiplied with, or divided by."""
_CONSTANTS = (
    "full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like",
)  # fmt: skip
"""Operators that take only the shape of their input."""

ProductKind = Literal["weights", "levels", "scale"]
"""A product with weights, of two activations, or with constants that fold into weights."""


@dataclass(frozen=True, kw_only=True)
class ProductRow:
    """All calls of one operation in one module."""

    path: str = ""
    operator: str = ""
    kind: ProductKind
    macs: int = 0
    """Dense products, padding included, of all samples and timesteps."""
    real_macs: int = 0
    """Those with an operand that is not levels."""
    input_macs: int = 0
    """Those of weights with the input of the network."""
    counts: Counts = field(default_factory=Counts)
    """Accumulations of weights by levels."""
    pairs: int = 0
    """Products of levels, unary."""
    bit_pairs: int = 0
    """The same, bits times bits."""
    entering: Activity = field(default_factory=Activity)
    max_level: int = 0
    step: float | None = None
    num_weights: int = 0

    def __add__(self, other: "ProductRow") -> "ProductRow":
        return replace(
            self,
            macs=self.macs + other.macs,
            real_macs=self.real_macs + other.real_macs,
            input_macs=self.input_macs + other.input_macs,
            counts=self.counts + other.counts,
            pairs=self.pairs + other.pairs,
            bit_pairs=self.bit_pairs + other.bit_pairs,
            entering=self.entering + other.entering,
            max_level=max(self.max_level, other.max_level),
            step=self.step if other.step is None else other.step,
        )

    @property
    def multiplies_currents(self) -> bool:
        """Whether it multiplies real numbers other than the input of the network."""
        return self.real_macs > self.input_macs

    def rate_estimate(self, rate: Rate = "levels") -> float:
        """Estimate the operations by "rate times FLOPs": a rate times all MACs on levels.

        Args:
            rate: "levels" (a level S is S spikes) or "active" (a level counts once).
        """
        return self.entering.rate(rate) * (self.macs - self.real_macs)


@dataclass(frozen=True)
class Call:
    """An operator in a module."""

    operator: str
    path: str

    def __str__(self) -> str:
        return f"{self.operator} in {self.path or 'the network itself'}"


@dataclass
class Products:
    """The products of a network, and everything that could not be followed."""

    rows: dict[tuple[str, str, ProductKind], ProductRow] = field(
        default_factory=dict[Any, ProductRow]
    )
    functions: dict[Call, int] = field(default_factory=dict[Call, int])
    """Functions of real numbers, with the number of values they gave."""
    unchecked: dict[Call, int] = field(default_factory=dict[Call, int])
    """What could not be followed, with the number of values it gave."""

    @property
    def macs(self) -> int:
        """Return all dense products with weights and of activations."""
        return sum(row.macs for row in self.rows.values() if row.kind != "scale")

    @property
    def real_macs(self) -> int:
        """Return those with a real-valued operand."""
        return sum(row.real_macs for row in self.rows.values() if row.kind != "scale")

    def total(self) -> Counts:
        """Sum the accumulations."""
        return sum((row.counts for row in self.rows.values()), Counts())


@contextmanager
def watch_products(
    model: nn.Module,
    is_neuron: Callable[[str, nn.Module], bool] = lambda path, module: False,
    *,
    input_levels: bool = False,
) -> Generator[Products]:
    """Record the products of a network inside the ``with`` block.

    Call the network at least twice: values made outside torch show in the second call.

    Args:
        model: any network.
        is_neuron: whether a module is a neuron; its elementwise products are not recorded.
        input_levels: whether the input of the network is levels. Integers always are.
    """
    watch = _Watch(model, is_neuron, input_levels=input_levels)
    hooks = [h for path, m in hookable_modules(model) for h in watch.hooks(path, m)]
    with removing_hooks(hooks), _Exits(watch), watch:
        yield watch.found
    watch.report_foreign()


@contextmanager
def unwatched() -> Generator[None]:
    """Leave the computations inside the block unrecorded."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # pyright: ignore[reportPrivateUsage]
        yield


@dataclass(frozen=True)
class _Origin:
    """How values were computed from the input of the network."""

    is_input: bool = False
    """Moved, added or scaled since they entered, nothing else."""
    is_rounded: bool = False
    """Integers times a step by the operators that made them."""


class _Ledger:
    """Where tensors come from, by their memory."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, _Origin | None]] = {}
        # a weak reference keeps the address from being used again
        self._opaque = WeakTensorKeyDictionary()
        self.unwritten: set[int] = set()
        """Memory that no operator has written."""

    def key(self, tensor: Tensor) -> int | None:
        try:
            return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
        except (NotImplementedError, RuntimeError):  # sparse, or of another library
            return None

    def knows(self, tensor: Tensor) -> bool:
        key = self.key(tensor)
        return tensor in self._opaque if key is None else key in self._known

    def origin(self, tensor: Tensor) -> _Origin | None:
        """Return the origin of values; None of constants."""
        key = self.key(tensor)
        if key is None:
            return self._opaque.get(tensor)
        return self._known[key][1] if key in self._known else None

    def put(self, tensor: Tensor, origin: _Origin | None) -> None:
        key = self.key(tensor)
        if key is None:
            self._opaque[tensor] = origin
            return
        self._known[key] = StorageWeakRef(tensor.untyped_storage()), origin
        self.unwritten.discard(key)
        if len(self._known) > _MOST_KNOWN:
            self._known = {k: v for k, v in self._known.items() if not v[0].expired()}
            self.unwritten &= self._known.keys()

    def leave_unwritten(self, tensor: Tensor) -> None:
        """Remember that the memory of a tensor has no values yet."""
        key = self.key(tensor)
        if key is not None:
            self.unwritten.add(key)


class _Exits(TorchFunctionMode):
    """Reports values that leave torch."""

    def __init__(self, watch: "_Watch") -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _EXITS and args and isinstance(args[0], Tensor):
            self._watch.see_exit(f"values that leave torch ({name.strip('_')})", args[0])
        return func(*args, **(kwargs or {}))


class _Watch(TorchDispatchMode):
    def __init__(
        self, model: nn.Module, is_neuron: Callable[[str, nn.Module], bool], *, input_levels: bool
    ) -> None:
        super().__init__()
        self.supports_higher_order_operators = True
        self.found = Products()
        self._is_neuron, self._input_levels = is_neuron, input_levels
        self._stack: list[str] = []
        self._neurons: list[bool] = []
        """Neurons whose calls are running: whether each is one of ours."""
        self._ledger, self._calls = _Ledger(), 0
        self._foreign: dict[tuple[int, Call], tuple[int, int, Any]] = {}
        """Tensors that no operator made: first call, size, and a reference that keeps the key."""
        for tensor in (*model.parameters(), *model.buffers()):
            self._ledger.put(tensor, None)

    def hooks(self, path: str, module: nn.Module) -> tuple[Any, Any]:
        is_neuron, is_ours = self._is_neuron(path, module), isinstance(module, Neuron)
        is_ours = is_ours and type(module).__module__.startswith("lbq.")

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if not self._stack:
                self._calls += 1
                for tensor in _tensors((args, kwargs)):
                    self._ledger.put(tensor, _Origin(True, not tensor.is_floating_point()))
            self._stack.append(path)
            self._look_for_foreign("", list(_tensors((args, kwargs))))
            if is_neuron:
                self._neurons.append(is_ours)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()
            if is_neuron:
                self._neurons.pop()
                for tensor in _tensors(output):
                    self._ledger.put(tensor, _Origin(is_rounded=True))

        return (
            module.register_forward_pre_hook(enter, with_kwargs=True),
            module.register_forward_hook(leave, always_call=True),
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):  # torch.cond, while_loop, ...
            return self._see_control_flow(func, args, kwargs)
        if _is_composite(func):  # in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        output = func(*args, **kwargs)
        if self._stack:
            self._see(func, args, kwargs, output)
        return output

    def _see_control_flow(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Note operators that call functions; the computations of these are not followed."""
        with unwatched():
            output = func(*args, **kwargs)
        moves = any(self._moves(tensor) for tensor in _tensors((args, kwargs)))
        for tensor in _tensors(output):
            self._ledger.put(tensor, _Origin() if moves else None)
            if moves and self._stack and not self._neurons:
                self._note(self.found.unchecked, func.name(), tensor)
        return output

    def _see(self, func: OpOverload, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        name, kind = base_name(func), kind_of(func)
        written = _written(func, args, kwargs)
        inputs = [t for t in _tensors((args, kwargs)) if all(t is not w for w in written)]
        self._look_for_foreign(name, inputs)
        if func._schema.is_mutable:  # pyright: ignore[reportPrivateUsage]
            inputs += [t for t in written if name not in ("copy", "zero", "fill")]
        outputs = [*written, *_tensors(output)]
        origins = [origin for t in inputs if (origin := self._ledger.origin(t)) is not None]
        if name == "_local_scalar_dense" and inputs:
            self.see_exit("values that leave torch (item)", inputs[0])
        if not outputs:
            return
        if kind == "random":
            result: _Origin | None = _Origin(is_rounded=name in _INTEGERS)
        elif not origins or name in _CONSTANTS:
            result = None
        elif self._neurons:
            self._see_in_neuron(name, kind, args, kwargs, outputs[-1])
            result = _Origin()
        else:
            result = self._follow(func, name, kind, args, kwargs, outputs[-1], origins)
        for tensor in outputs:
            integer = not tensor.is_floating_point() and not tensor.is_complex()
            origin = replace(result, is_rounded=True) if result and integer else result
            if (func.is_view or name == "set") and self._ledger.knows(tensor):
                continue  # the same memory
            self._ledger.put(tensor, origin)
            if name in _MEMORY or name == "set":  # a storage from elsewhere, of a pickle say
                self._ledger.leave_unwritten(tensor)

    def _see_in_neuron(
        self, name: str, kind: str | None, args: Any, kwargs: Any, output: Tensor
    ) -> None:
        """Ignore the elementwise operators of a neuron; products of matrices are synapses."""
        if kind == "contraction" and not self._neurons[-1]:
            self._contraction(name, args, kwargs, output)

    def _follow(
        self, func: OpOverload, name: str, kind: str | None, args: Any, kwargs: Any,
        output: Tensor, origins: list[_Origin],
    ) -> _Origin:  # fmt: skip
        """Record the products of an operator; return the origin of its results."""
        moved = _Origin(any(o.is_input for o in origins), all(o.is_rounded for o in origins))
        if kind is not None and self._has_moving_factor(func, args, kwargs):
            self._note(self.found.functions, name, output)
            return _Origin()
        match kind:
            case "moves" | "scales":
                return moved
            case "slope" if self._levels(args[0], most=_MOST_PRODUCT) is not None:
                return moved
            case "rounds":
                return _Origin(is_rounded=True)
            case "contraction":
                self._contraction(name, args, kwargs, output)
            case "product":
                return self._elementwise(name, args, kwargs, output, moved)
            case "norm" if not self._has_moving_statistics(func, args, kwargs):
                return replace(moved, is_rounded=False)
            case "norm" | "function" | "slope":
                self._note(self.found.functions, name, output)
            case _:
                self._note(self.found.unchecked, _full_name(func), output)
        return _Origin()

    def _has_moving_factor(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
        """Whether an argument makes an operator multiply values that depend on the input."""
        if (
            kind_of(func) in ("contraction", "product", "function")
            or base_name(func) == "embedding"
        ):
            return False  # seen as such; rows of a table are chosen, not multiplied
        call = _bind(func, args, kwargs)
        if call.get("reduce") in _PRODUCT_REDUCTIONS:
            return True
        return any(self._moves(call.get(key)) for key in _FACTORS)

    def _has_moving_statistics(self, func: OpOverload, args: Any, kwargs: dict[str, Any]) -> bool:
        call = _bind(func, args, kwargs)
        own = [call.get(key) for key in ("running_mean", "running_var", "mean", "invstd")]
        if any(isinstance(t, Tensor) and self._ledger.origin(t) is not None for t in own):
            return True
        is_legit = "no_training" in func.name() or "no_update" in func.name()
        return bool(call.get("training", not is_legit and "elemt" not in func.name()))

    # products

    def _contraction(self, name: str, args: Any, kwargs: Any, output: Tensor) -> None:
        if name in _CONVOLUTIONS:
            inputs, weight = args[0], args[1]
            if self._moves(inputs) and not self._moves(weight):
                row = _convolution(args, output, self._levels(inputs, channel_axis=1))
                self._add(row, name, inputs, weight)
                return
        elif name in _MATRICES:
            left, right = _matrices(name, [*args, *kwargs.values()])
            if self._moves(left) and self._moves(right):
                sides = (self._levels(side, most=_MOST_PRODUCT) for side in (left, right))
                self._add(_matmul(left, right, output, *sides), name)
            elif self._moves(left):
                self._add(_linear(left, right.shape[-1], self._levels(left)), name, left, right)
            elif self._moves(right):  # weights on the left
                turned = right.mT
                row = _linear(turned, left.shape[-2], self._levels(turned))
                self._add(row, name, right, left)
            return
        self._uncounted(name, args, kwargs, output)

    def _uncounted(self, name: str, args: Any, kwargs: Any, output: Tensor) -> None:
        """Note operators whose products are not counted: real ones fail, others are unchecked."""
        moving = [t for t in _tensors((args, kwargs)) if self._moves(t)]
        are_levels = all(self._levels(t) is not None for t in moving)
        found = self.found.unchecked if are_levels else self.found.functions
        self._note(found, name, output)

    def _elementwise(
        self, name: str, args: Any, kwargs: dict[str, Any], output: Tensor, moved: _Origin
    ) -> _Origin:
        factors, is_function = _factors(name, args, kwargs, self._moves)
        if is_function:
            self._note(self.found.functions, name, output)
            return _Origin()
        moving = [f for f in factors if self._moves(f)]
        fixed = [f for f in factors if isinstance(f, Tensor) and not self._moves(f)]
        rounds = name == "floor_divide" or kwargs.get("rounding_mode") is not None
        result = replace(moved, is_input=moved.is_input and not rounds)
        result = replace(result, is_rounded=result.is_rounded or rounds)
        if len(moving) < 2:
            is_larger = bool(moving) and moving[0].numel() < output.numel()
            fold = not is_larger and all(_folds(f, output) or _selects(f) for f in fixed)
            if not moving or fold:
                self._add(ProductRow(kind="scale", macs=output.numel()), name)
            else:  # a weight for every position, or several
                levels = self._levels(moving[0])
                self._add(_diagonal(levels, output), name, moving[0], fixed[0])
            return result
        if any(self._is_selection(f) for f in moving):
            self._add(ProductRow(kind="scale", macs=output.numel()), name)
            return replace(result, is_rounded=False)
        found = [self._levels(f, most=_MOST_PRODUCT) for f in moving]
        self._add(_pairs(found, output), name)
        return _Origin(is_rounded=None not in found)

    def _is_selection(self, values: Any) -> bool:
        """Whether values are zeros and one other number, by the operators that made them."""
        origin = self._ledger.origin(values)
        return origin is not None and origin.is_rounded and not origin.is_input and _selects(values)

    def _moves(self, value: Any) -> bool:
        """Whether a value depends on the input of the network, or is random."""
        return isinstance(value, Tensor) and self._ledger.origin(value) is not None

    def _levels(
        self, values: Tensor, *, channel_axis: int | None = -1, most: int = MAX_LEVEL
    ) -> Levels | None:
        origin = self._ledger.origin(values) or _Origin()
        if origin.is_input and not (self._input_levels or origin.is_rounded):
            return None
        if values.dim() < 2:
            channel_axis = None
        if most > MAX_LEVEL:
            channel_axis = None
        if not origin.is_rounded and not _has_evidence(values):
            return None
        return find_levels(values, channel_axis=channel_axis, most=most)

    # records

    def see_exit(self, what: str, values: Tensor) -> None:
        if self._stack and not self._neurons and self._moves(values) and values.is_floating_point():
            self._note(self.found.unchecked, what, values)

    def _look_for_foreign(self, name: str, inputs: list[Tensor]) -> None:
        """Remember tensors that no operator made: constants, or results of other libraries."""
        for tensor in inputs:
            key = self._ledger.key(tensor)
            is_new = not self._ledger.knows(tensor) or key in self._ledger.unwritten
            if key is None or not is_new or self._neurons or name in ("lift_fresh", *_MEMORY):
                continue
            call = Call("values made outside torch's operators", self._stack[-1])
            kept = StorageWeakRef(tensor.untyped_storage())
            self._foreign.setdefault((key, call), (self._calls, tensor.numel(), kept))

    def report_foreign(self) -> None:
        """Report tensors that came up after the first call: constants are there from the start."""
        for (_, call), (first, size, _) in self._foreign.items():
            if first > 1:
                self.found.unchecked[call] = self.found.unchecked.get(call, 0) + size

    def _note(self, found: dict[Call, int], operator: str, output: Tensor) -> None:
        call = Call(operator.strip("_"), self._stack[-1])
        found[call] = found.get(call, 0) + output.numel()

    def _add(
        self, row: ProductRow, operator: str, moving: Any = None, weight: Tensor | None = None
    ) -> None:
        path, operator = self._stack[-1], operator.strip("_")
        origin = self._ledger.origin(moving) if isinstance(moving, Tensor) else None
        if origin is not None and origin.is_input:
            row = replace(row, input_macs=row.real_macs)
        if weight is not None:
            row = replace(row, num_weights=_num_distinct(weight))
        row = replace(row, path=path, operator=operator)
        key = (path, operator, row.kind)
        before = self.found.rows.get(key)
        self.found.rows[key] = row if before is None else before + row


def _tensors(values: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))


@cache
def _is_composite(func: OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")  # pyright: ignore[reportPrivateUsage]


def _full_name(func: OpOverload) -> str:
    return base_name(func) if func.namespace == "aten" else func.name()


def _bind(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = (a.name for a in func._schema.arguments)  # pyright: ignore[reportPrivateUsage]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _written(func: OpOverload, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the arguments that an operator writes."""
    call = _bind(func, args, kwargs)
    changed = (
        call.get(a.name)
        for a in func._schema.arguments  # pyright: ignore[reportPrivateUsage]
        if a.alias_info is not None and a.alias_info.is_write
    )
    return [tensor for value in changed for tensor in _tensors(value)]


def _matrices(name: str, args: list[Any]) -> tuple[Tensor, Tensor]:
    """Return the factors of a product of matrices as ``[..., m, k]`` and ``[..., k, n]``."""
    left, right = args[1:3] if name.startswith(("addm", "baddbmm")) else args[:2]
    if name == "linear":
        right = right.mT
    if name.endswith(("mv", "dot")):
        right = right.unsqueeze(-1)
    return (left.unsqueeze(0) if left.dim() == 1 else left), right


def _factors(
    name: str, args: Any, kwargs: dict[str, Any], moves: Callable[[Any], bool]
) -> tuple[list[Any], bool]:
    """Return the factors, and whether the operator is another function of real numbers."""
    if name in ("addcmul", "addcdiv"):
        args = args[1:]
    if name == "lerp":
        weight = args[2] if len(args) > 2 else kwargs["weight"]
        difference = next((a for a in args[:2] if moves(a)), args[0])
        return [difference, weight], False
    one, other = args[0], args[1] if len(args) > 1 else kwargs.get("exponent", 2)
    if name in ("div", "addcdiv", "remainder", "fmod", "floor_divide"):
        return [one, other], moves(other)
    if name in ("pow", "square"):
        is_power = isinstance(other, int | float) and other == int(other) and other >= 0
        return ([one] if is_power and other < 2 else [one, one]), not is_power
    return [one, other], False


def _has_evidence(values: Tensor) -> bool:
    """Whether values on a grid are levels: many, with zeros among them or many different ones."""
    some = values.detach().flatten()[:4096]
    return len(some) >= _FEW and (bool((some == 0).any()) or len(some.unique()) >= _DISTINCT)


def _selects(values: Tensor) -> bool:
    """Whether all values are zero or one other number."""
    sizes = values.detach()
    if sizes.numel() == 0 or sizes.dtype == torch.bool:
        return True
    low, high = sizes.aminmax()
    return bool(((sizes == low) | (sizes == high)).all()) and bool(((low == 0) | (high == 0)).all())


def _folds(fixed: Tensor, output: Tensor) -> bool:
    """Whether a constant factor folds into weights: one number, or one per channel.

    One per position, per sample or per timestep does not.
    """
    shape = (1,) * (output.dim() - fixed.dim()) + tuple(fixed.shape)
    varies = [n for n, size in enumerate(shape) if size > 1]
    return len(varies) < 2 and (varies != [0] or output.dim() == 1)


def _num_distinct(weight: Tensor) -> int:
    """Count the weights, without repetitions by ``expand``."""
    sizes = zip(weight.shape, weight.stride(), strict=True) if not weight.is_sparse else ()
    count = 1
    for size, stride in sizes:
        count *= size if stride else 1
    return count


def _convolution(args: Any, output: Tensor, levels: Levels | None) -> ProductRow:
    inputs, weight, _, stride, padding, dilation, is_transposed, _, groups = args[:9]
    size = inputs.shape[2 - weight.dim() :]
    macs = (inputs if is_transposed else output).numel() * weight[0].numel()
    axes = len(size)
    stride, padding, dilation = (_per_axis(v, axes) for v in (stride, padding, dilation))
    shape = (weight.shape[1] * groups if is_transposed else weight.shape[0], *weight.shape[1:])
    reach = conv_fan_out(
        output.shape[-axes:] if is_transposed else size,
        shape,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    if is_transposed:  # from outputs to inputs: turned round
        turned = (axis.T[:n] for axis, n in zip(reach.axes, size, strict=True))
        reach = replace(reach, axes=tuple(turned))
    return _weighted(levels, reach, macs)


def _per_axis(value: Any, axes: int) -> list[int]:
    return list(value) * axes if len(value) == 1 else list(value)


def _linear(inputs: Tensor, outputs: int, levels: Levels | None) -> ProductRow:
    return _weighted(levels, linear_fan_out(outputs), inputs.numel() * outputs)


def _weighted(levels: Levels | None, reach: FanOutMap, macs: int) -> ProductRow:
    if levels is None:
        return ProductRow(kind="weights", macs=macs, real_macs=macs)
    integers = levels.integers
    bits = BitCounts(integers.flatten(0, -2) if not reach.axes and integers.dim() > 2 else integers)
    return ProductRow(
        kind="weights",
        macs=macs,
        counts=bits.weighted(reach.fan_out()),
        entering=bits.activity,
        max_level=levels.max_level,
        step=levels.step,
    )


def _diagonal(levels: Levels | None, output: Tensor) -> ProductRow:
    """Count a weight for every position: each level is added up once."""
    if levels is None:
        return ProductRow(kind="weights", macs=output.numel(), real_macs=output.numel())
    return _weighted(
        replace(levels, integers=levels.integers.expand(output.shape).reshape(1, -1)),
        linear_fan_out(1),
        output.numel(),
    )


def _matmul(
    left: Tensor, right: Tensor, output: Tensor, one: Levels | None, other: Levels | None
) -> ProductRow:
    macs = output.numel() * left.shape[-1]
    if one is None or other is None:
        return ProductRow(kind="levels", macs=macs, real_macs=macs)

    def pairs(a: Tensor, b: Tensor) -> int:
        return int((a.sum(-2) * b.sum(-1)).sum())

    a, b = one.integers.long().abs(), other.integers.long().abs()
    return ProductRow(
        kind="levels",
        macs=macs,
        pairs=pairs(a, b),
        bit_pairs=pairs(popcount_wide(a), popcount_wide(b)),
        entering=Activity(size=a.numel(), active=int((a != 0).sum()), levels=int(a.sum())),
        max_level=min(MAX_LEVEL, max(one.max_level, other.max_level)),
    )


def _pairs(factors: list[Levels | None], output: Tensor) -> ProductRow:
    """Count the products of two tensors, element by element."""
    row = ProductRow(kind="levels", macs=output.numel())
    found = [factor.integers.long().abs() for factor in factors if factor is not None]
    if len(found) < len(factors):
        return replace(row, real_macs=output.numel())
    one, other = found
    return replace(
        row,
        pairs=int((one * other).sum()),
        bit_pairs=int((popcount_wide(one) * popcount_wide(other)).sum()),
        max_level=min(MAX_LEVEL, max(f.max_level for f in factors if f is not None)),
    )
