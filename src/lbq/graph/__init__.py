"""The network as a typed graph of operators, how it is captured, and the proof of its bounds."""

from lbq.graph.graph import Bound, LoweredNetwork, prove

__all__ = ["Bound", "LoweredNetwork", "prove"]
