"""``as_module``: a lowered network as a torch module."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from lbq.graph.graph import LoweredNetwork, Node
from lbq.graph.operators import LevelNeuron, Operator


def as_module(network: LoweredNetwork) -> nn.Module:
    """Return a module that computes the same as the network, with its tensors as buffers.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> program = torch.export.export(lbq.graph.as_module(net), (torch.randn(2, 3, 16, 16),))
    """
    return _Network(network)


class _Network(nn.Module):
    def __init__(self, network: LoweredNetwork) -> None:
        super().__init__()
        self._network = network
        self._index = {path: number for number, path in enumerate(network.operators)}
        self.nodes = nn.ModuleList(
            NeuronModule(operator)
            if isinstance(operator, LevelNeuron)
            else OperatorModule(operator)
            for operator in network.operators.values()
        )

    def forward(self, inputs: Tensor) -> Any:
        return self._network(inputs, self._compute)

    def _compute(self, node: Node, *values: Tensor) -> Tensor:
        return self.nodes[self._index[node.path]](*values)


class OperatorModule(nn.Module):
    """An operator whose tensors are buffers."""

    def __init__(self, operator: Operator) -> None:
        super().__init__()
        self._operator = operator
        for role in operator.tensors():
            self.register_buffer(role, getattr(operator, role))

    def forward(self, *values: Tensor) -> Tensor:
        """Compute the operator with the buffers as its tensors."""
        tensors = {role: getattr(self, role) for role in self._operator.tensors()}
        return replace(self._operator, **tensors)(*values)


class NeuronModule(OperatorModule):
    """A neuron; returns levels, ``[T, B, *n]``."""
