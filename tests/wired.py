"""A network that is a function of some modules and its input."""

from torch import nn


class Wired(nn.Module):
    """Modules by name, and a function of this network and of the input."""

    def __init__(self, wire, **modules):
        super().__init__()
        self.wire = wire
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.wire(self, x)
