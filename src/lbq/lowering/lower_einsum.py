"""Lower an einsum to the operators that it stands for: moves, and a product or sums."""

import math
from collections.abc import Sequence
from typing import Any, NoReturn

from torch import Tensor

from lbq.graph.capture import Call, Constant
from lbq.graph.layout import TIME
from lbq.lowering import lower_arithmetic, lower_moves, lower_pools, lower_synapses
from lbq.lowering.context import Context, Handler
from lbq.lowering.values import Symbolic

_STEPS: dict[str, Handler] = {
    **{"aten.permute": lower_moves.permute, "aten.view": lower_moves.view},
    **{"aten.linear": lower_synapses.multiply, "aten.matmul": lower_arithmetic.matmul},
    **{"aten.sum": lower_pools.reduce, "aten.mean": lower_pools.reduce},
    "aten.mul": lower_arithmetic.scale,
}
_ELLIPSIS = "9876543210"
"""Letters of the axes that "..." stands for; the last of them is 0 in every operand."""


class Step(Call):
    """An operator that an einsum stands for; messages call it an einsum."""

    @property
    def name(self) -> str:
        """Return "einsum"."""
        return "einsum"


def einsum(context: Context, call: Call) -> Symbolic:
    """Lower a product with a weight, a product of levels, a sum, or a permutation of axes."""
    made = steps(context, call)
    for step in made:
        context.values[step] = _STEPS[step.operator](context, step)
    return context.symbolic(made[-1])


def steps(context: Context, call: Call) -> list[Step]:
    """Return the operators that an einsum stands for, in order; the last gives its result.

    Raises LoweringError for other einsums.

    Args:
        context: has the values of the operands.
        call: the einsum.
    """
    return _Einsum(context, call).read()


class _Einsum:
    def __init__(self, context: Context, call: Call) -> None:
        self._context, self._call = context, call
        self._operands: list[Any] = call.arguments["tensors"]
        ranks = [len(operand.shape) for operand in self._operands]
        self._letters, self._output = _read_letters(call.arguments["equation"], ranks)
        self._sizes: dict[str, int] = {}
        self._steps: list[Step] = []

    def read(self) -> list[Step]:
        """Return the operators; refuse what none computes."""
        for letters, operand in zip(self._letters, self._operands, strict=True):
            for letter, size in zip(letters, operand.shape, strict=True):
                if letters.count(letter) > 1:
                    self._refuse(letter, "is twice in one operand, a diagonal; use two letters")
                if self._sizes.setdefault(letter, size) != size:
                    sizes = f"{self._sizes[letter]} and {size}"
                    self._refuse(letter, f"is {sizes} long; give both operands the same length")
        if len(self._operands) == 1:
            return self._sum()
        if len(self._operands) > 2:
            self._refuse(why=f"has {len(self._operands)} operands; write an einsum per product")
        first, second = self._letters
        for letter in sorted({*first} ^ {*second}):
            if letter not in self._output:
                why = "is summed in one operand before the product"
                self._refuse(letter, f"{why}; keep it in the result, and sum that")
        for data in (0, 1):
            if isinstance(self._operands[1 - data], Constant):
                return self._weigh(data)
        return self._multiply()

    def _sum(self) -> list[Step]:
        """Add up axes; a sum over time is a mean times the number of timesteps."""
        (source,), (letters,) = self._operands, self._letters
        summed = _without(letters, self._output)
        times = "".join(letter for letter in summed if self._outer(0, letter) == [TIME])
        if times:
            source = self._add("mul", source.shape, self=source, other=self._size(times))
        for operator, gone in (("sum", _without(summed, times)), ("mean", times)):
            if gone:
                dims = [letters.index(letter) for letter in gone]
                letters = _without(letters, gone)
                source = self._add(operator, self._shape(letters), self=source, dim=dims)
        return self._finish(source, letters)

    def _weigh(self, data: int) -> list[Step]:
        """Multiply by a weight: a linear layer over the letters that are summed."""
        letters, own = self._letters[data], self._letters[1 - data]
        inner, outer = _without(letters, self._output), _without(own, letters)
        along = _without(own, inner + outer)
        self._check_inside(data, inner + along)
        if along:
            why = "stays in the result, so that the weight differs along it"
            self._refuse(along[0], f"{why}; write x * weight, or a convolution with groups")
        kept, weight = _without(letters, inner), self._operands[1 - data]
        shape = self._size(outer), self._size(inner)

        def matrix() -> Tensor:
            order = [own.index(letter) for letter in outer + inner]
            return weight.compute().permute(order).reshape(shape)

        source = self._grouped(data, [*kept, inner])
        made = self._add(
            "linear",
            (*source.shape[:-1], shape[0]),
            input=source,
            weight=Constant(name=weight.name, shape=shape, compute=matrix),
        )
        return self._finish(made, kept + outer)

    def _multiply(self) -> list[Step]:
        """Multiply matrices of levels."""
        left, right = self._letters
        inner = _without(left, self._output)
        rows, columns = _without(left, right), _without(right, left)
        both = _without(left, inner + rows)
        if not inner + rows + columns:
            self._refuse(why="multiplies element by element; write a * b")
        self._check_inside(0, rows + inner)
        self._check_inside(1, inner + columns)
        first = self._grouped(0, [*both, rows, inner])
        second = self._grouped(1, [*both, inner, columns])
        shape = (*self._shape(both), self._size(rows), self._size(columns))
        return self._finish(
            self._add("matmul", shape, self=first, other=second), both + rows + columns
        )

    def _grouped(self, side: int, groups: Sequence[str]) -> Call:
        """Return an operand with each group of letters as one axis."""
        source, letters = self._operands[side], self._letters[side]
        order = [letters.index(letter) for letter in "".join(groups)]
        if order != sorted(order):
            shape = [source.shape[axis] for axis in order]
            source = self._add("permute", shape, self=source, dims=order)
        return self._viewed(source, [self._size(group) for group in groups])

    def _finish(self, source: Call, letters: str) -> list[Step]:
        """Split groups into their letters, and put these in the order of the result."""
        source = self._viewed(source, self._shape(letters))
        order = [letters.index(letter) for letter in self._output]
        self._add("permute", self._shape(self._output), self=source, dims=order)
        return self._steps

    def _viewed(self, source: Call, shape: Sequence[int]) -> Call:
        return source if source.shape == tuple(shape) else self._add("view", shape, self=source)

    def _add(self, operator: str, shape: Sequence[int], /, **arguments: Any) -> Step:
        """Add an operator; the einsum stands for whatever reads its result."""
        call = self._call
        step = Step(
            operator=f"aten.{operator}",
            arguments=arguments,
            path=call.path,
            module=call.module,
            shape=tuple(shape),
            line=call.line,
            readers=[call],
        )
        self._steps.append(step)
        return step

    def _shape(self, letters: str) -> list[int]:
        return [self._sizes[letter] for letter in letters]

    def _size(self, letters: str) -> int:
        return math.prod(self._shape(letters))

    def _outer(self, side: int, letter: str) -> list[int]:
        """Return which of time and batch an axis is or contains."""
        value = self._context.values.get(self._operands[side])
        if not isinstance(value, Symbolic):
            return []
        axis = value.layout.axes[self._letters[side].index(letter)]
        return [factor.axis for factor in axis if factor.axis < 0]

    def _check_inside(self, side: int, letters: str) -> None:
        """Refuse letters of a matrix that are time or the batch."""
        for letter in letters:
            outer = self._outer(side, letter)
            if outer:
                what = "time" if TIME in outer else "the batch"
                why = f"is {what}, and a product is of one sample at one timestep"
                self._refuse(letter, f"{why}; keep it in values and the result, not in weights")

    def _refuse(self, letter: str = "", why: str = "") -> NoReturn:
        named = f'"{"..." if letter in _ELLIPSIS else letter}" in ' if letter else ""
        self._context.refuse(self._call, f'{named}"{self._call.arguments["equation"]}" {why}')


def _read_letters(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of every operand, and those of the result, one for each axis."""
    given, arrow, output = equation.replace(" ", "").partition("->")
    texts, widest = given.split(","), ""
    operands: list[str] = []
    for text, rank in zip(texts, ranks, strict=True):
        missing = rank - len(text.replace("...", ""))
        axes = _ELLIPSIS[len(_ELLIPSIS) - missing :]
        operands.append(text.replace("...", axes))
        widest = max(widest, axes, key=len)
    if arrow:
        return operands, output.replace("...", widest)
    once = (letter for letter in sorted(given) if letter.isalpha() and given.count(letter) == 1)
    return operands, widest + "".join(once)


def _without(letters: str, gone: str) -> str:
    return "".join(letter for letter in letters if letter not in gone)


HANDLERS: dict[str, Handler] = {"aten.einsum": einsum}
