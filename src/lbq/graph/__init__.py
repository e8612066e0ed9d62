"""The network as a typed graph of operators, how it is captured, and the proof of its bounds."""

from lbq.graph.graph import Bound, LoweredNetwork, prove
from lbq.graph.torch_module import as_module

__all__ = ["Bound", "LoweredNetwork", "as_module", "prove"]
