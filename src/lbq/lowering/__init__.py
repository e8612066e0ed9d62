"""Turn a trained network into a graph, compare the two, and convert the graph to integers."""

from lbq.lowering.fixed_point import quantize, to_fixed_point
from lbq.lowering.lower import lower

__all__ = ["lower", "quantize", "to_fixed_point"]
