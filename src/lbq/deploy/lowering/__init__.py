"""Lower captured operators to nodes: one file per family of operators."""

from lbq.deploy.lowering.context import LoweredNeuron
from lbq.deploy.lowering.lowering import Lowering

__all__ = ["LoweredNeuron", "Lowering"]
