"""``run``: a lowered network on a backend of choice, watched or not."""

from contextlib import nullcontext
from typing import Literal

import torch
from torch import Tensor

from lbq.deploy.backends import dense, native, planes, unary
from lbq.deploy.network import LoweredNetwork
from lbq.deploy.nodes import Multiply
from lbq.errors import ParameterError
from lbq.neurons.watch import watch_levels
from lbq.types import Watch

Backend = Literal["dense", "unary", "planes", "native"]

BACKENDS: dict[Literal["dense", "unary", "planes"], Multiply] = {
    "dense": dense.multiply,
    "unary": unary.multiply,
    "planes": planes.multiply,
}
"""How levels are multiplied in torch; all give the same currents (in integers, the same bits)."""


@torch.no_grad()
def run(
    network: LoweredNetwork,
    inputs: Tensor,
    *,
    backend: Backend = "dense",
    watch: Watch | None = None,
) -> Tensor:
    """Run a lowered network and return its logits; of an integer network, integers.

    Args:
        network: what :func:`lbq.lower` or :func:`lbq.to_fixed_point` returned.
        inputs: as the trained network takes them; uint8 pixels or counts for an integer network.
        backend: "dense" (levels as numbers), "unary" or "planes" (bit by bit, Eq. 15); or "native",
            the engine in C++ for integer networks on CPUs, on as many threads as torch has.
        watch: called with every layer, timestep and level, as in :func:`lbq.watch_levels`.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> lbq.run(net, torch.randn(4, 3, 16, 16), backend="planes").shape
        torch.Size([4, 10])
    """
    if backend != "native" and backend not in BACKENDS:
        names = ", ".join((*BACKENDS, "native"))
        raise ParameterError(f"backend must be one of {names}, got {backend!r}")
    network.check_input(inputs)
    if backend == "native":
        return native.run(network, inputs, watch)
    with nullcontext() if watch is None else watch_levels(network, watch):
        return network(inputs, BACKENDS[backend])
