"""The operators of lowered networks: one file per family, one shape and one bound rule each."""

from collections.abc import Iterator

from lbq.graph.operators.arithmetic import LevelsProduct, Matmul, Merge, Multiply, Offset
from lbq.graph.operators.level_neuron import IntegerNeuron, LevelNeuron, NodeReset, RealNeuron
from lbq.graph.operators.moves import Concat, Move, Rearrange, Roll, Slice, Upsample, ZeroPad
from lbq.graph.operators.operator_base import (
    PIXEL_MAX,
    Bound,
    GraphError,
    Interval,
    Operator,
    Role,
    Value,
)
from lbq.graph.operators.pool import Pool
from lbq.graph.operators.sequence import Readout, Repeat
from lbq.graph.operators.synapse import EXACT_FLOAT32, Product, Shortcut, Synapse, Weighted

Multiplying = Weighted | LevelsProduct
"""Operators that multiply levels, by weights or by levels."""


def _operators(base: type[Operator]) -> Iterator[type[Operator]]:
    for kind in base.__subclasses__():
        if "op" in vars(kind):
            yield kind
        yield from _operators(kind)


OPERATORS = tuple(_operators(Operator))
"""Every operator: the classes of this package that have a name in bundles."""

__all__ = [
    "EXACT_FLOAT32",
    "OPERATORS",
    "PIXEL_MAX",
    "Bound",
    "Concat",
    "GraphError",
    "IntegerNeuron",
    "Interval",
    "LevelNeuron",
    "LevelsProduct",
    "Matmul",
    "Merge",
    "Move",
    "Multiply",
    "Multiplying",
    "NodeReset",
    "Offset",
    "Operator",
    "Pool",
    "Product",
    "Readout",
    "RealNeuron",
    "Rearrange",
    "Repeat",
    "Role",
    "Roll",
    "Shortcut",
    "Slice",
    "Synapse",
    "Upsample",
    "Value",
    "Weighted",
    "ZeroPad",
]
