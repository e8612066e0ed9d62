"""A network as a typed graph of operators, its capture from PyTorch, and its overflow proof."""

from lbq.graph.graph import Bound, LoweredNetwork, prove
from lbq.graph.torch_module import as_module

__all__ = ["Bound", "LoweredNetwork", "as_module", "prove"]
