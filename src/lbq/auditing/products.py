"""Which products a network computes, and whether their operands are levels: seen from values.

Every convolution, linear layer, product of matrices and product of tensors is intercepted while the
network runs, whatever module or function calls it. An operand is *levels* if all its values are
integers 0..255, or signed ones, times one step, or one step per channel. This needs no knowledge of
the neurons, so it works for the networks of any library.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lbq.cost.count_table import Activity, Counts, Rate
from lbq.cost.fan_out import FanOutMap, conv_fan_out, linear_fan_out
from lbq.cost.op_counter import BitCounts
from lbq.deploy.pool_args import bind, per_axis
from lbq.functional.planes import popcount
from lbq.neurons.watch import removing_hooks

MAX_LEVEL = 255
_MOST_PRODUCT = 2**20
"""Largest integer of an operand that may itself be the result of a product."""
_SAMPLE, _DISTINCT = 4096, 512
"""Values that are looked at first: real numbers are found out by few."""
_FEW_VALUES = 2**16
"""Values that are tried with one step per channel before all are."""
_TOLERANCE = 1e-3
"""How far a value may be from a multiple of the step, in steps."""

Kind = Literal["weights", "levels", "scale"]
"""A product with weights, of two activations, or with constants element by element."""

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_MATRICES = ("matmul", "__matmul__", "bmm", "mm")
_ELEMENTWISE = ("mul", "mul_", "__mul__", "__rmul__", "__imul__", "div", "div_", "__truediv__")
_OTHERS = (
    "scaled_dot_product_attention", "einsum", "baddbmm", "addmm", "addbmm", "bilinear", "lstm",
    "gru", "softmax", "layer_norm", "group_norm", "gelu", "silu", "sigmoid", "tanh", "exp",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "tensordot",
)  # fmt: skip
"""Operations on real numbers that are listed, and not counted."""


@dataclass(frozen=True, eq=False)
class Levels:
    """Values as integers times a step."""

    integers: Tensor
    step: float
    """The smallest step of all channels."""
    max_level: int


@dataclass(frozen=True, kw_only=True)
class ProductRow:
    """All calls of one operation in one module."""

    path: str
    operator: str
    kind: Kind
    macs: int = 0
    """Dense products, padding included, of all samples and timesteps."""
    real_macs: int = 0
    """Those with an operand that is not levels."""
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
            counts=self.counts + other.counts,
            pairs=self.pairs + other.pairs,
            bit_pairs=self.bit_pairs + other.bit_pairs,
            entering=self.entering + other.entering,
            max_level=max(self.max_level, other.max_level),
            step=self.step if other.step is None else other.step,
        )

    def rate_estimate(self, rate: Rate = "levels") -> float:
        """Return what the rule "rate times FLOPs" says: a rate times all MACs on levels.

        Args:
            rate: "levels" (a level S is S spikes) or "active" (a level counts once).
        """
        return self.entering.rate(rate) * (self.macs - self.real_macs)


@dataclass
class Products:
    """What was seen."""

    rows: dict[tuple[str, str], ProductRow] = field(default_factory=dict[Any, ProductRow])
    others: dict[str, int] = field(default_factory=dict[str, int])
    """Operations that are listed only, with the number of values they gave."""

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
    model: nn.Module, is_neuron: Callable[[str, nn.Module], bool] = lambda path, module: False
) -> Generator[Products]:
    """Intercept the products of a network inside the ``with`` block.

    Args:
        model: any network.
        is_neuron: whether a module is a neuron; what it computes inside is not looked at.
    """
    watch = _Watch(model, is_neuron)
    hooks = [h for path, m in model.named_modules() for h in watch.hooks(path, m)]
    with removing_hooks(hooks), watch:
        yield watch.found


def find_levels(
    values: Tensor, *, channel_axis: int | None = None, most: int = MAX_LEVEL
) -> Levels | None:
    """Return values as integers times a step; None if they are real numbers.

    Args:
        values: any tensor.
        channel_axis: axis along which steps may differ.
        most: the largest integer.
    """
    if not values.is_floating_point():
        return _as_levels(values.double(), torch.ones(1, dtype=torch.float64), most)
    some = values.flatten()
    some = some[:: max(1, len(some) // _SAMPLE)].double()
    step = _common_step(some[some != 0].abs(), most)
    wide = torch.float32 if most <= MAX_LEVEL else torch.float64  # 24 bits tell 255 levels apart
    if step is not None and (found := _as_levels(values.to(wide), step.to(wide), most)):
        return found
    if channel_axis is None:
        return None
    axes = [n for n in range(values.dim()) if n != channel_axis % values.dim()]
    few = values[: max(1, _FEW_VALUES * len(values) // max(1, values.numel()))]
    for exact in (few.double(), values.double()):  # a few samples tell real numbers
        size = exact.abs()
        smallest = torch.where(size > 0, size, torch.full_like(size, torch.inf))
        found = _as_levels(exact, smallest.amin(axes, keepdim=True), most)
        if found is None:
            return None
    return found


def _common_step(sizes: Tensor, most: int) -> Tensor | None:
    """Return the largest number that all sizes are multiples of; None if it is too small.

    Euclid's algorithm on real numbers: of integers times a step it finds the step, or a multiple
    of it if the integers have a common factor.
    """
    if not len(sizes):
        return torch.ones(1, dtype=torch.float64)
    step, least = float(sizes.min()), float(sizes.max()) / (most + 0.5)
    for size in sizes.unique()[:_DISTINCT].tolist():
        step = _common_divisor(step, size)
        if step < least:
            return None
    return torch.tensor([step], dtype=torch.float64)


def _common_divisor(one: float, other: float) -> float:
    """Return the largest number that both are multiples of, but for rounding."""
    while other > 0:
        one, other = other, one % other
        if min(other, one - other) < _TOLERANCE * one:
            other = 0.0
    return one


def _as_levels(values: Tensor, step: Tensor, most: int) -> Levels | None:
    finite = torch.where(step.isfinite(), step, torch.ones_like(step))  # a channel of zeros
    if not values.numel():
        return Levels(values.to(torch.uint8), float(finite.min()), 0)
    ratio = values / finite
    integers = ratio.round()
    low, high = (int(side) if side.isfinite() else most + 1 for side in integers.aminmax())
    largest = max(-low, high)
    if largest > most or not float(ratio.sub_(integers).abs_().max()) <= _TOLERANCE:
        return None
    is_byte = largest <= MAX_LEVEL and low >= 0
    return Levels(
        integers.to(torch.uint8 if is_byte else torch.int32), float(finite.min()), largest
    )


class _Watch(TorchFunctionMode):
    def __init__(self, model: nn.Module, is_neuron: Callable[[str, nn.Module], bool]) -> None:
        super().__init__()
        self.found = Products()
        self._is_neuron, self._in_neuron = is_neuron, 0
        self._stack: list[str] = [""]
        self._stored = {id(t) for t in (*model.parameters(), *model.buffers())}
        self._inside = False

    def hooks(self, path: str, module: nn.Module) -> tuple[Any, Any]:
        def enter(module: nn.Module, args: Any) -> None:
            self._stack.append(path)
            self._in_neuron += self._is_neuron(path, module)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            self._stack.pop()
            self._in_neuron -= self._is_neuron(path, module)

        return (
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self._inside or self._in_neuron or not isinstance(output, Tensor):
            return output
        self._inside = True
        try:
            self._see(name, args, kwargs, output)
        finally:
            self._inside = False
        return output

    def _see(self, name: str, args: Any, kwargs: dict[str, Any], output: Tensor) -> None:
        if name in _CONVOLUTIONS:
            call = bind(_CONV, args, kwargs)
            if self._is_stored(call["weight"]):
                row = replace(_convolution(call, output), num_weights=call["weight"].numel())
                self._add(row, name, "weights")
                return
        elif name == "linear":
            call = bind(("input", "weight", "bias"), args, kwargs)
            if self._is_stored(call["weight"]):
                row = _linear(call["input"], call["weight"].shape)
                self._add(replace(row, num_weights=call["weight"].numel()), name, "weights")
                return
        elif name in _MATRICES:
            left, right = bind(("input", "other"), args, kwargs).values()
            if self._is_stored(right) and right.dim() == 2:
                self._add(_linear(left, right.shape[::-1]), name, "weights")
            elif not self._is_stored(left):
                self._add(_matmul(left, right, output), name, "levels")
            return
        elif name in _ELEMENTWISE:
            self._elementwise(name, bind(("input", "other"), args, kwargs), output)
            return
        if name in (*_CONVOLUTIONS, "linear", *_OTHERS):
            where = f"{name} in {self._stack[-1] or 'the network itself'}"
            self.found.others[where] = self.found.others.get(where, 0) + output.numel()

    def _elementwise(self, name: str, call: dict[str, Any], output: Tensor) -> None:
        left, right = call.get("input"), call.get("other")
        tensors = [v for v in (left, right) if isinstance(v, Tensor) and v.dim() > 0]
        moving = [v for v in tensors if not self._is_stored(v)]
        if not output.is_floating_point() or not moving:
            return
        if len(moving) < 2:
            self._add(
                ProductRow(path="", operator="", kind="scale", macs=output.numel()), name, "scale"
            )
            return
        operands = [find_levels(v) for v in moving]
        are_levels = all(operand is not None for operand in operands)
        row = ProductRow(
            path="",
            operator="",
            kind="levels",
            macs=output.numel(),
            real_macs=0 if are_levels else output.numel(),
        )
        if are_levels:
            one, other = (operand.integers.long().abs() for operand in operands if operand)
            row = replace(
                row,
                pairs=int((one * other).sum()),
                bit_pairs=int((_bits(one) * _bits(other)).sum()),
            )
        self._add(row, name, "levels")

    def _is_stored(self, value: Any) -> bool:
        is_view = isinstance(value, Tensor) and value._base is not None  # pyright: ignore[reportPrivateUsage]
        return id(value) in self._stored or (is_view and id(value._base) in self._stored)

    def _add(self, row: ProductRow, operator: str, kind: Kind) -> None:
        path = self._stack[-1]
        row = replace(row, path=path, operator=operator.strip("_"), kind=kind)
        before = self.found.rows.get((path, row.operator))
        self.found.rows[path, row.operator] = row if before is None else before + row


def _convolution(call: dict[str, Any], output: Tensor) -> ProductRow:
    inputs, weight = call["input"], call["weight"]
    kernel, size = weight.shape[2:], inputs.shape[2 - weight.dim() :]
    macs = output.numel() * weight[0].numel()
    stride, dilation = (per_axis(call.get(key, 1), size) for key in ("stride", "dilation"))
    padding = call.get("padding", 0)
    if isinstance(padding, str):
        spans = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        padding = 0 if padding == "valid" else [span // 2 for span in spans]
    reach = conv_fan_out(
        size,
        weight.shape,
        stride=stride,
        padding=per_axis(padding, size),
        dilation=dilation,
        groups=call.get("groups", 1),
    )
    batched = inputs if inputs.dim() == weight.dim() else inputs.unsqueeze(0)
    return _weighted(batched, reach, macs, channel_axis=1)


def _linear(inputs: Tensor, shape: tuple[int, ...]) -> ProductRow:
    outputs, features = shape
    macs = inputs.numel() * outputs
    return _weighted(inputs.reshape(-1, features), linear_fan_out(outputs), macs, channel_axis=1)


def _weighted(inputs: Tensor, reach: FanOutMap, macs: int, *, channel_axis: int) -> ProductRow:
    found = find_levels(inputs, channel_axis=channel_axis)
    if found is None:
        return ProductRow(path="", operator="", kind="weights", macs=macs, real_macs=macs)
    bits = BitCounts(found.integers)
    return ProductRow(
        path="",
        operator="",
        kind="weights",
        macs=macs,
        counts=bits.weighted(reach.fan_out()),
        entering=bits.activity,
        max_level=found.max_level,
        step=found.step,
    )


def _matmul(left: Tensor, right: Tensor, output: Tensor) -> ProductRow:
    macs = output.numel() * left.shape[-1]
    row = ProductRow(path="", operator="", kind="levels", macs=macs)
    one, other = (find_levels(side, most=_MOST_PRODUCT) for side in (left, right))
    if one is None or other is None:
        return replace(row, real_macs=macs)

    def pairs(a: Tensor, b: Tensor) -> int:
        return int((a.sum(-2) * b.sum(-1)).sum())

    a, b = one.integers.long().abs(), other.integers.long().abs()
    size = Activity(size=a.numel(), active=int((a != 0).sum()), levels=int(a.sum()))
    return replace(
        row, pairs=pairs(a, b), bit_pairs=pairs(_bits(a), _bits(b)), entering=size,
        max_level=min(MAX_LEVEL, max(one.max_level, other.max_level)),
    )  # fmt: skip


def _bits(levels: Tensor) -> Tensor:
    """Count the non-zero bits of integers of up to 31 bits."""
    return popcount(levels.to(torch.int32).unsqueeze(-1).view(torch.uint8)).sum(-1)
