"""``run_network``: run a lowered network on one of several backends."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from lbq.errors import ImplementationError, LoweringError, ParameterError
from lbq.functional.planes import bit_sparse_product, num_planes, to_planes
from lbq.graph.graph import INPUT, LoweredNetwork, Node
from lbq.graph.operators import LevelNeuron, Multiplying, Product, Shortcut, Weighted
from lbq.runtime import native_engine
from lbq.types import Watch

Backend = Literal["auto", "native", "dense", "unary", "planes"]


def by_sign(levels: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """Multiply positive and negative levels separately, as unsigned values, and subtract."""
    if not levels.dtype.is_signed or not bool((levels < 0).any()):
        return multiply(levels)
    return multiply(levels.clamp(min=0)) - multiply((-levels).clamp(min=0))


def dense_product(node: Multiplying, *levels: Tensor) -> Tensor:
    """Multiply the levels directly."""
    return node.multiply(*levels)


def unary_product(node: Multiplying, *levels: Tensor) -> Tensor:
    """Add one binary product per level reached: levels >= 1, levels >= 2, and so on.

    Between two levels that occur, all binary products are equal. One is computed and multiplied by
    their number. A product of two tensors of levels adds one for each pair of levels reached.
    """

    def add_up(multiply: Callable[[Tensor], Tensor], sizes: Tensor) -> Tensor:
        levels = [level for level in sizes.unique().tolist() if level] or [1]
        total = multiply((sizes >= levels[0]).to(torch.uint8)) * levels[0]
        for before, level in pairwise(levels):
            total = total + multiply((sizes >= level).to(torch.uint8)) * (level - before)
        return total

    return _in_parts(node, levels, add_up)


def planes_product(node: Multiplying, *levels: Tensor) -> Tensor:
    """Add one shifted binary product per non-empty bit plane, as Eq. 15 does.

    A product of two tensors of levels adds one for each pair of planes.
    """

    def add_up(multiply: Callable[[Tensor], Tensor], sizes: Tensor) -> Tensor:
        planes = to_planes(sizes, num_planes(max(1, int(sizes.max()) if sizes.numel() else 1)))
        product = bit_sparse_product(multiply, planes, dtype=torch.uint8)
        return product.to(torch.int32) if is_integer else product

    is_integer = not isinstance(node, Weighted) or node.is_integer
    return _in_parts(node, levels, add_up)


_AddUp = Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]


def _in_parts(node: Multiplying, levels: Sequence[Tensor], add_up: _AddUp) -> Tensor:
    """Multiply the parts of every operand with the parts of the others.

    An operand that is itself a product is not split into parts, because it has too many levels.
    """
    may_be_product = len(levels) > 1 or isinstance(node, Shortcut)

    def of_rest(multiply: Callable[..., Tensor], operands: Sequence[Tensor]) -> Tensor:
        first, *rest = operands

        def inner(part: Tensor) -> Tensor:
            return of_rest(partial(multiply, part), rest) if rest else multiply(part)

        if first.is_floating_point() or (may_be_product and first.dtype == torch.int32):
            return inner(first)
        return by_sign(first, partial(add_up, inner))

    return of_rest(node.multiply, levels)


BACKENDS: dict[Literal["dense", "unary", "planes"], Product] = {
    "dense": dense_product,
    "unary": unary_product,
    "planes": planes_product,
}
"""Products in torch; all give the same currents (in integers, the same bits)."""

_log = logging.getLogger(__name__)


@torch.no_grad()
def run_network(
    network: LoweredNetwork,
    inputs: Tensor,
    *,
    backend: Backend = "auto",
    watch: Watch | None = None,
) -> Any:
    """Run a lowered network and return its logits; integers for an integer network.

    A network with several outputs returns a tuple.

    Args:
        network: from :func:`lbq.lower` or :func:`lbq.to_fixed_point`.
        inputs: as the trained network takes them; uint8 pixels or counts for an integer network.
        backend: "native" is the C++ engine for integer networks on CPUs, with torch's number of
            threads. "dense" (multiply levels directly), "unary" (one product per level) and
            "planes" (one product per bit, Eq. 15) run in torch. "auto" is "native" if it is built
            and supports the network, else "dense" (:func:`~lbq.runtime.run.choose_backend`). All
            backends return the same integers.
        watch: called with every layer, timestep and level, as in :func:`lbq.watch_levels`.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> lbq.run_network(net, torch.randn(4, 3, 16, 16), backend="planes").shape
        torch.Size([4, 10])
    """
    if backend not in ("auto", "native", *BACKENDS):
        names = ", ".join(("auto", "native", *BACKENDS))
        raise ParameterError(f"backend must be one of {names}, got {backend!r}")
    network.check_input(inputs)
    if backend == "auto":
        backend = choose_backend(network) if inputs.device.type == "cpu" else "dense"
    if backend == "native":
        return native_engine.engine_of(network).run(inputs, watch=watch)
    return network(inputs, partial(_compute, BACKENDS[backend], watch))


def _compute(product: Product, watch: Watch | None, node: Node, *values: Tensor) -> Tensor:
    """Compute a node with a backend's product; pass the levels of a neuron to ``watch``."""
    if isinstance(node.operator, Multiplying) and INPUT not in node.inputs:
        return node.operator(*values, multiply=product)
    made = node.compute(*values)
    if watch is not None and isinstance(node.operator, LevelNeuron):
        for t, level in enumerate(made.unbind(0)):
            watch(node.path, t, level)
    return made


def choose_backend(network: LoweredNetwork) -> Literal["native", "dense"]:
    """Return the backend that ``backend="auto"`` chooses for this network.

    "native" for an integer network on the CPU, if the native library is built and supports the
    network; otherwise "dense", and the reason is logged at level INFO under ``lbq.runtime.run``.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> lbq.runtime.choose_backend(net)  # of real numbers
        'dense'
    """
    why = None
    if not network.is_integer:
        return "dense"
    if any(tensor.device.type != "cpu" for tensor in network.tensors.values()):
        why = "its tensors are not on the CPU"
    else:
        try:
            native_engine.engine_of(network)
        except (ImplementationError, LoweringError) as error:
            why = str(error)
    if why is not None:
        _log.info('backend "dense" runs instead of "native": %s', why)
    return "native" if why is None else "dense"
