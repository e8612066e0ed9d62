"""``Lowering``: convert the operators of a captured network to a lowered network."""

import torch
from torch import Tensor

from lbq.errors import LoweringError
from lbq.graph.capture import Call, Captured, foreign_advice
from lbq.graph.layout import BATCH, TIME, LayoutError
from lbq.graph.operators import Readout
from lbq.lowering import lower_arithmetic, lower_einsum, lower_moves, lower_pools, lower_synapses
from lbq.lowering.advice import ADVICE
from lbq.lowering.context import REPEAT
from lbq.lowering.graph_reader import HANDLERS, GraphReader
from lbq.lowering.values import Pending, SymbolicValue
from lbq.neurons.watch import foreign_library

_FOLDING = (
    *(
        lower_moves.view,
        lower_moves.permute,
        lower_moves.pass_on,
        lower_moves.convert,
        lower_moves.drop,
        lower_moves.take,
        lower_moves.shuffle_pixels,
    ),
    *(
        lower_synapses.normalise,
        lower_synapses.convolve,
        lower_synapses.multiply,
        lower_synapses.multiply_matrix,
    ),
    *(
        lower_pools.pool,
        lower_pools.reduce,
        lower_arithmetic.add,
        lower_arithmetic.scale,
        lower_arithmetic.negate,
    ),
)
"""Handlers that accept a pending synapse, if it is their only input."""


class Lowering:
    """Lowers a captured network.

    Args:
        captured: the operators of the network.
        example: one sample.
        has_time: whether the example is a sequence, time first.
        dtype: dtype of the lowered network's tensors.

    Attributes:
        network: the lowered network.
        neurons: the trained neurons by their path in the lowered network.
    """

    def __init__(
        self, captured: Captured, example: Tensor, has_time: bool, dtype: torch.dtype
    ) -> None:
        self._reader = GraphReader(example, has_time=has_time, dtype=dtype)
        self._context = self._reader.context
        self._builder, self.neurons = self._reader.builder, self._context.neurons
        for call in captured.calls:
            self._check_known(call)
        for call in captured.calls:
            self._lower(call)
        if not self._builder.timesteps:
            raise LoweringError(
                f"the example, {list(example.shape)}, is taken as static inputs, but this network "
                f"never repeats them over time; {REPEAT}, or pass frames, time first (with "
                f"batch_axis=1 if the example has four axes)"
            )
        self._output(captured)
        self._builder.remove_unread()
        self.network = self._builder.finish()

    def _check_known(self, call: Call) -> None:
        """Raise for an operator that has no handler, before its layer raises for another one."""
        if foreign_library(call.module) is not None:
            self._context.refuse(call, foreign_advice(call.module))
        advice = ADVICE.get(call.name)
        if advice or (call.operator != "input" and call.operator not in HANDLERS):
            none = f"no node of a lowered network computes {call.operator}"
            self._context.refuse(call, advice or ADVICE.get(call.operator, none))

    def _lower(self, call: Call) -> None:
        try:
            value = self._reader.read(call)
        except LayoutError as error:
            self._context.refuse(call, str(error))
            return
        if isinstance(value, Pending) and not _is_folded_further(call):
            value = self._context.materialize(value)
        self._context.values[call] = value

    def _output(self, captured: Captured) -> None:
        """Add a readout for every output."""
        calls = [output for output in captured.outputs if isinstance(output, Call)]
        if len(calls) < len(captured.outputs) or not calls:
            raise LoweringError(
                "the network itself cannot be lowered: it returns values that do not depend on "
                "its input; remove them from the output"
            )
        context = self._context
        signals = [context.repeated(context.materialize(context.symbolic(c))) for c in calls]
        if len(signals) == 1 and self._is_read_out(signals[0]):
            return
        for call, signal in zip(calls, signals, strict=True):
            self._read_out(call, signal, "readout")

    def _is_read_out(self, signal: SymbolicValue) -> bool:
        """Return whether the value is the output of the last node, a readout."""
        last, (first, *rest) = self._builder.nodes[-1], signal.terms
        is_last = not rest and first.source == last.path and first.is_current
        is_same = signal.layout == signal.layout.with_node(signal.layout.node, first=1)
        return is_last and is_same and isinstance(last.operator, Readout)

    def _read_out(self, call: Call, signal: SymbolicValue, path: str) -> None:
        layout = signal.layout
        leading = [[factor.axis for factor in axis] for axis in layout.axes[: layout.first_own]]
        over_time = "mean" if signal.is_mean else "none"
        if leading == [[TIME, BATCH]] and self._builder.timesteps == 1:
            over_time = "mean"  # over one timestep, which forward squeezes away
        elif leading != ([[TIME], [BATCH]] if layout.has_time else [[BATCH]]):
            self._context.refuse(call, "its result is an output but not [B, ...] or [T, B, ...]")
        signal = self._context.as_axes(call, signal, layout.first_own)
        currents = self._context.currents(signal, f"{path}_")
        self._context.add(path, Readout(over_time), currents.source)


def _is_folded_further(call: Call) -> bool:
    """Whether the only reader can fold itself into a pending value, or is a reshape."""
    if len(call.readers) != 1:
        return False
    (reader,) = call.readers
    handler = HANDLERS.get(reader.operator)
    num_signals = sum(isinstance(value, Call) for value in reader.arguments.values())
    takes_any = handler in (lower_arithmetic.matmul, lower_einsum.einsum)
    return takes_any or (num_signals == 1 and handler in _FOLDING)
