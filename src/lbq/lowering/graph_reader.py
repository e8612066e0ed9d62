"""``GraphReader``: translate the operators of a trained network into nodes of a graph."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lbq.errors import LoweringError
from lbq.graph.capture import EXPORTED_BATCH, Call
from lbq.graph.graph import INPUT, GraphBuilder
from lbq.graph.layout import Layout
from lbq.lowering import (
    lower_arithmetic,
    lower_einsum,
    lower_moves,
    lower_pools,
    lower_sequence,
    lower_synapses,
)
from lbq.lowering.context import Context, Handler
from lbq.lowering.values import ScaledInput, SymbolicValue, numbers

HANDLERS: dict[str, Handler] = {
    **lower_synapses.HANDLERS,
    **lower_pools.HANDLERS,
    **lower_moves.HANDLERS,
    **lower_sequence.HANDLERS,
    **lower_arithmetic.HANDLERS,
    **lower_einsum.HANDLERS,
}
"""Handlers by the name of the operator."""


@dataclass(frozen=True)
class Refusal:
    """The reason why no node of a graph computes an operator."""

    why: str


class GraphReader:
    """Reads operators one after the other by the rules of lowering.

    For an operator without a rule, lowering raises an error. Counting continues with real numbers.

    Args:
        example: one sample.
        has_time: whether the example is a sequence, time first.
        dtype: dtype of the graph's tensors.

    Attributes:
        builder: receives the nodes.
        context: the values of the operators that were read.
    """

    def __init__(self, example: Tensor, *, has_time: bool, dtype: torch.dtype) -> None:
        shape = tuple(example.shape[2 if has_time else 1 :])
        timesteps = len(example) if has_time else None
        self.builder = GraphBuilder(
            timesteps=timesteps or 0, input_shape=shape, takes_frames=has_time
        )
        self.context = Context(self.builder, dtype)
        term = ScaledInput(source=INPUT, shape=shape, scale=numbers(1.0), max_size=None)
        layout = Layout.of_node(shape, batch=EXPORTED_BATCH, timesteps=timesteps)
        self._input = SymbolicValue(terms=(term,), layout=layout)

    def read(self, call: Call) -> Any:
        """Return the value of a call, a tuple for several results.

        The caller stores it in ``context.values``. Raises LoweringError for unsupported arguments.
        """
        if call.operator == "input":
            return self._input
        return HANDLERS[call.operator](self.context, call)

    def try_to_read(self, call: Call) -> Any:
        """Return the value of a call, or a :class:`Refusal`."""
        if call.operator != "input" and call.operator not in HANDLERS:
            return Refusal(f"no node of a lowered network computes {call.operator}")
        try:
            return self.read(call)
        except LoweringError as error:
            return Refusal(str(error))
