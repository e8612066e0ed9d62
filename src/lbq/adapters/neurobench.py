"""NeuroBench 2: lbq networks in its harness, and lbq's counts as one of its metrics.

Its own counter knows binary events only and counts levels as MACs (docs/costs.md).
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lbq.cost.op_counter import OpCounter
from lbq.errors import MissingExtraError
from lbq.graph.graph import LoweredNetwork
from lbq.graph.torch_module import NeuronModule, as_module
from lbq.neurons.neuron import Neuron
from lbq.neurons.watch import watch_levels

try:
    from neurobench.metrics.abstract import (  # pyright: ignore[reportMissingImports]
        AccumulatedMetric,
    )
    from neurobench.models import NeuroBenchModel  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise MissingExtraError(
        "the adapter for NeuroBench needs it: pip install 'neurobench>=2'"
    ) from error


class BurstModel(NeuroBenchModel):
    """An lbq network, lowered or not, as NeuroBench runs it: batch first, then time.

    NeuroBench takes its neurons for activations, so its activation sparsity is that of the levels.

    Args:
        network: the result of :func:`lbq.lower`, or any network with lbq neurons.
        example: an input with a batch of one; not needed for a lowered network.
        takes_frames: whether it takes ``[T, B, ...]``; not needed for a lowered network.
    """

    def __init__(
        self,
        network: nn.Module | LoweredNetwork,
        example: Tensor | None = None,
        *,
        takes_frames: bool = False,
    ) -> None:
        super().__init__()
        is_lowered = isinstance(network, LoweredNetwork)
        self.network = as_module(network) if is_lowered else network.eval()
        self.takes_frames = network.takes_frames if is_lowered else takes_frames
        self.counter = OpCounter(network, example, batch_axis=int(self.takes_frames))
        self.counted_before = _counts(self.counter)
        """Counts before the last batch."""
        self.add_activation_module(NeuronModule if is_lowered else Neuron)
        if is_lowered:
            modules = (m for m in self.network.modules() if isinstance(m, NeuronModule))
            for (path, _), module in zip(network.neurons(), modules, strict=True):
                module.register_forward_hook(partial(self._count, path))

    @torch.no_grad()
    def __call__(self, batch: Tensor) -> Tensor:
        """Return the logits; frames come as ``[B, T, ...]``."""
        self.counted_before = _counts(self.counter)
        inputs = batch.transpose(0, 1) if self.takes_frames else batch
        with watch_levels(self.network, self.counter):  # those of a lowered network are hooked
            return self.network(inputs)

    def _count(self, path: str, module: nn.Module, args: Any, levels: Tensor) -> None:
        for t, level in enumerate(levels.unbind(0)):
            self.counter(path, t, level)

    def __net__(self) -> nn.Module:
        """Return the network."""
        return self.network


class BurstOperations(AccumulatedMetric):
    """Operations per sample: the counts of :class:`lbq.OpCounter`, divided by the samples.

    ``unary_acs``, ``bit_sparse_acs``, ``unit_event_acs``, ``explicit_shifts``,
    ``plane_formations`` and ``fp_macs`` (docs/costs.md), and ``products_unary``,
    ``products_bit_pairs`` and ``products_bit_serial`` if levels are multiplied by levels. It needs
    a :class:`BurstModel`.
    """

    def __init__(self) -> None:
        super().__init__(requires_hooks=False)
        self.reset()

    def reset(self) -> None:
        """Set the counts to zero; the harness calls this before a run."""
        self._start: dict[str, int] | None = None
        self._now: dict[str, int] = {}

    def __call__(self, model: Any, preds: Tensor, data: tuple[Tensor, Tensor]) -> dict[str, float]:
        """Add the counts of the batch that the model has just run."""
        if self._start is None:
            self._start = model.counted_before
        self._now = _counts(model.counter)
        return self.compute()

    def compute(self) -> dict[str, float]:
        """Return the mean counts of one sample."""
        start = self._start or {}
        grown = {name: count - start.get(name, 0) for name, count in self._now.items()}
        samples = grown.pop("samples", 0)
        return {name: count / max(1, samples) for name, count in grown.items()}


def _counts(counter: OpCounter) -> dict[str, int]:
    table = counter.table()
    total, products = table.total(), table.total_products()
    of_levels = {
        "products_unary": products.unary,
        "products_bit_pairs": products.bit_pairs,
        "products_bit_serial": products.bit_serial,
    }
    return {
        "unary_acs": total.unary_acs,
        "bit_sparse_acs": total.bit_sparse_acs,
        "unit_event_acs": total.unit_event_acs,
        "explicit_shifts": total.explicit_shifts,
        "plane_formations": table.plane_formations(),
        "fp_macs": table.fp_macs(),
        **(of_levels if table.products else {}),
        "samples": table.num_images,
    }
