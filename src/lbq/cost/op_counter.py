"""Exact operation counts while a network runs, and dense MACs.

The counts of Eqs. 16-18 are sums over the bits of the levels. The counter first counts how often
each bit is set at each position over the batch, in words of eight 8-bit lanes, then multiplies by
the exact fan-out of each edge.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lbq.cost.connectivity import Edge, LevelProduct, read_connectivity
from lbq.cost.count_table import (
    Activity,
    Counts,
    CountTable,
    EdgeCounts,
    LayerCounts,
    Padding,
    ProductCounts,
)
from lbq.errors import CountError, LevelError, ShapeError, TimeError
from lbq.functional.planes import num_planes
from lbq.graph.graph import LoweredNetwork
from lbq.neurons.batch_axis import find_batch_axis
from lbq.neurons.module_state import eval_mode
from lbq.neurons.watch import named_neurons, watch_levels
from lbq.runtime.run import run_network
from lbq.types import FanOut

_LANES = 0x0101010101010101
_ROWS = 255
"""Rows that can be added before an 8-bit lane overflows."""
_WORDS = 1 << 17
"""Words per chunk: 1 MiB, so that intermediates stay in the cache."""


class OpCounter:
    """Counts the operations of a model's levels; a callback of ``watch_levels``.

    For a lowered network it is the ``watch`` of :func:`lbq.run_network`.

    Counts add up over any number of batches, which must have the shapes and timesteps of the
    example.

    Example:
        >>> model = lbq.resnet20(10, width=1 / 16).eval()
        >>> counter = lbq.OpCounter(model, torch.randn(1, 3, 16, 16))
        >>> with lbq.watch_levels(model, counter):
        ...     logits = model(torch.randn(4, 3, 16, 16))
        >>> table = counter.table()
        >>> table.num_images, table.timesteps
        (4, 2)

    Args:
        model: the network whose neurons will be watched.
        example: input of the model for a batch of one, to trace which neuron feeds which
            synapse; optional for a lowered network.
        batch_axis: batch axis of the example. By default the axis of length 1. If the first two
            axes both have length 1, it is the first axis of vectors and images (2 or 4 axes) and
            the second of sequences.
    """

    def __init__(
        self,
        model: nn.Module | LoweredNetwork,
        example: Tensor | None = None,
        *,
        batch_axis: int | None = None,
    ) -> None:
        if example is None:
            if not isinstance(model, LoweredNetwork):
                raise CountError(
                    "OpCounter needs an example input, a batch of one, to trace the model"
                )
            example = model.example()
        self._connectivity = read_connectivity(model, example, batch_axis=batch_axis)
        if not self._connectivity.neurons:
            raise CountError(
                "no neuron of this model ran on the example, so there are no levels to count (an "
                "ANN, or neurons that are streamed instead of called); lbq.count_macs counts MACs"
            )
        is_lowered = isinstance(model, LoweredNetwork)
        named = model.neurons() if is_lowered else named_neurons(model)
        self._unused = {path for path, _ in named} - set(self._connectivity.neurons)
        """Neurons whose levels reach no output."""
        self._readers: list[Edge | LevelProduct] = [
            *self._connectivity.edges,
            *self._connectivity.products,
        ]
        self._leaving = {layer: list[int]() for layer in self._connectivity.neurons}
        for index, reader in enumerate(self._readers):
            for layer in reader.needs:
                self._leaving[layer].append(index)
        self._waiting: dict[tuple[int, int], dict[str, Tensor]] = {}
        self._edges: dict[tuple[int, int], tuple[Counts, Activity]] = {}
        self._products: dict[tuple[int, int], ProductCounts] = {}
        self._layers: dict[tuple[str, int], LayerCounts] = {}
        self._images: dict[tuple[str, int], int] = {}

    def __call__(self, layer: str, t: int, level: Tensor) -> None:
        """Add one timestep of one layer: ``level`` is ``[B, *n]`` in small integers."""
        if layer in self._unused:
            return
        if layer not in self._leaving:
            known = ", ".join(self._leaving) or "none"
            raise LevelError(
                f"the counter received levels of {layer!r}, but its model has no such neuron "
                f"(it has {known}); create the counter from the model that is watched"
            )
        self._check(layer, t, level)
        whole = BitCounts(level)
        self._count_layer(layer, t, level, whole)
        for index in self._leaving[layer]:
            reader, levels = self._readers[index], self._arrived(index, layer, t, level)
            if levels is None:
                continue
            if isinstance(reader, LevelProduct):
                self._count_product(index, reader, t, levels)
                continue
            entering = reader.carry(levels)
            bits = whole if entering is level else BitCounts(entering)
            counts, seen = self._edges.get((index, t), (Counts(), Activity()))
            self._edges[index, t] = counts + bits.weighted(reader.fan_out), seen + bits.activity

    def table(self) -> CountTable:
        """Return the counts so far."""
        self._check_complete()
        edges = self._connectivity.edges
        images = max(self._images.values(), default=0)
        return CountTable(
            num_images=images,
            timesteps=self._connectivity.timesteps,
            synapses=tuple(self._connectivity.synapses),
            edges=tuple(
                EdgeCounts(
                    source=edges[index].source,
                    target=edges[index].target,
                    t=t,
                    is_identity=edges[index].is_identity,
                    counts=counts,
                    entering=entering,
                    dense=edges[index].dense * images,
                )
                for (index, t), (counts, entering) in sorted(self._edges.items(), key=_first)
            ),
            layers=tuple(self._layers.values()),
            untracked=tuple(self._connectivity.untracked),
            uncounted=tuple(self._connectivity.uncounted),
            products=tuple(self._products[key] for key in sorted(self._products)),
        )

    def __str__(self) -> str:
        return str(self.table())

    def _check(self, layer: str, t: int, level: Tensor) -> None:
        """Raise if levels differ from those of the example."""
        steps, shape = self._connectivity.layer_timesteps[layer], self._connectivity.shapes[layer]
        if t >= steps:
            raise TimeError(
                f"{layer} emitted a level at timestep {t + 1}, but in the example it had {steps}; "
                f"create the counter from an example with the timesteps of the run"
            )
        if tuple(level.shape[1:]) != shape:
            raise ShapeError(
                f"{layer} emitted levels of shape {list(level.shape[1:])} per sample, but for the "
                f"example {list(shape)}; create the counter from an example of that size"
            )

    def _check_complete(self) -> None:
        """Raise if part of the counts is missing: fewer timesteps, or a run that was stopped."""
        seen = {
            (layer, t): self._images.get((layer, t), 0)
            for layer, steps in self._connectivity.layer_timesteps.items()
            for t in range(steps)
        }
        most = max(seen, key=seen.__getitem__)
        least = min(seen, key=seen.__getitem__)
        if seen[most] != seen[least]:
            raise CountError(
                f"{least[0]} emitted levels of {seen[least]} sample(s) at timestep {least[1] + 1}, "
                f"but {most[0]} of {seen[most]} at timestep {most[1] + 1}, because the run had "
                f"fewer timesteps than the example, was partial, or was stopped; count whole runs, "
                f"with an example of as many timesteps"
            )

    def _arrived(self, index: int, layer: str, t: int, level: Tensor) -> dict[str, Tensor] | None:
        """Return the levels that a reader needs; None until all its neurons have emitted."""
        needs = self._readers[index].needs
        levels = self._waiting.setdefault((index, t), {})
        if layer in levels:
            missing = ", ".join(name for name in needs if name not in levels)
            raise CountError(
                f"{layer} emitted levels at timestep {t + 1} twice before {missing} did, because "
                f"the run before was stopped; count whole runs with a new counter"
            )
        levels[layer] = level
        if len(levels) < len(needs):
            return None
        if len({len(rows) for rows in levels.values()}) > 1:
            raise CountError(
                f"levels of {', '.join(needs)} are combined, but have batches of "
                f"{[len(rows) for rows in levels.values()]}; count whole runs"
            )
        return self._waiting.pop((index, t))

    def _count_product(
        self, index: int, product: LevelProduct, t: int, levels: dict[str, Tensor]
    ) -> None:
        counted = replace(product.count(levels), t=t)
        before = self._products.get((index, t))
        self._products[index, t] = counted if before is None else before + counted

    def _count_layer(self, layer: str, t: int, level: Tensor, bits: "BitCounts") -> None:
        before = self._layers.get((layer, t))
        self._images[layer, t] = self._images.get((layer, t), 0) + len(level)
        self._layers[layer, t] = LayerCounts(
            layer=layer,
            t=t,
            neurons=self._connectivity.neurons[layer],
            max_level=self._connectivity.max_levels[layer],
            active=int(bits.active.sum()) + (before.active if before else 0),
            plane_formations=int(bits.planes.sum()) + (before.plane_formations if before else 0),
        )


def count_ops(
    model: nn.Module | LoweredNetwork, x: Tensor, *, batch_axis: int | None = None
) -> CountTable:
    """Count the operations that the levels of a model cause for these inputs.

    The model runs once on ``x``, in eval mode and without gradients; the counts are the sums over
    all its samples. For several batches, use :class:`lbq.OpCounter`. A network without neurons has
    no levels to count and raises an error; :func:`lbq.count_macs` counts its MACs.

    Args:
        model: any network with neurons, or a lowered one. It is not changed.
        x: inputs of the model.
        batch_axis: batch axis of ``x``. By default the first axis of vectors and images (2 or 4
            axes), the second of sequences (3 or 5 axes, time first).

    Example:
        >>> model = lbq.resnet20(10, width=1 / 16)
        >>> counts = lbq.count_ops(model, torch.randn(4, 3, 16, 16))
        >>> counts.num_images, counts.timesteps
        (4, 2)
        >>> report = lbq.EnergyModel().estimate(counts)
    """
    if isinstance(model, LoweredNetwork):
        counter = OpCounter(model)
        run_network(model, x, watch=counter)
        return counter.table()
    axis = find_batch_axis(x, batch_axis, model)
    with eval_mode(model):
        counter = OpCounter(model, x.narrow(axis, 0, 1), batch_axis=axis)
        with torch.no_grad(), watch_levels(model, counter):
            model(x)
    return counter.table()


class BitCounts:
    """How often each bit of the levels in a batch is set, by spatial position.

    Signs are ignored. Channels are added up, because they all have the same fan-out.
    """

    def __init__(self, level: Tensor) -> None:
        self.size = level.numel()
        if level.dim() == 1:  # one neuron per sample
            level = level.unsqueeze(1)
        if level.dtype not in (torch.uint8, torch.int8):
            self.planes, self.active = _count_wide(level)
            return
        channels, *space = level.shape[1:]
        size = level.abs() if level.dtype == torch.int8 else level
        flat = size.to(torch.uint8).flatten(1)  # [B, n]
        width = flat.shape[1]
        padded = F.pad(flat, (0, -width % 8)) if width % 8 else flat.contiguous()
        words = padded.view(torch.int64)  # [B, n / 8], eight lanes of one level each
        bits = num_planes(int(flat.max()) if flat.numel() else 0)
        chunk = max(1, _WORDS // max(1, words.shape[1]))
        counts = torch.zeros(bits + 1, *space, dtype=torch.int64, device=level.device)
        for rows in words.split(_ROWS):
            lanes = words.new_zeros(bits + 1, words.shape[1])
            for some in rows.split(chunk):
                _add_bits(some, lanes)
            by_value = lanes.view(torch.uint8)[:, :width].reshape(bits + 1, channels, *space)
            counts += by_value.sum(1, dtype=torch.int64)
        counts = counts.cpu()
        self.planes, self.active = counts[:-1], counts[-1]  # [K, *space], [*space]

    @property
    def activity(self) -> Activity:
        """Sum over positions."""
        by_plane = [int(plane.sum()) for plane in self.planes]
        return Activity(
            size=self.size,
            active=int(self.active.sum()),
            levels=sum(count << k for k, count in enumerate(by_plane)),
        )

    def weighted(self, fan_out: FanOut) -> Counts:
        """Multiply by the fan-out of every position and add up."""
        at_position = fan_out[0]  # the first axis of a fan-out stands for all channels
        by_plane = [int((plane * at_position).sum()) for plane in self.planes]
        return Counts(
            unary_acs=sum(count << k for k, count in enumerate(by_plane)),
            bit_sparse_acs=sum(by_plane),
            unit_event_acs=int((self.active * at_position).sum()),
            explicit_shifts=sum(by_plane[1:]),
        )


def _first(item: tuple[tuple[int, int], Any]) -> tuple[int, int]:
    return item[0]


def _count_wide(level: Tensor) -> tuple[Tensor, Tensor]:
    """Count the bits of integers of more than a byte, such as results of products."""
    size = level.abs()
    bits = num_planes(int(size.max()) if size.numel() else 0)
    planes = [((size >> k) & 1).sum((0, 1)) for k in range(bits)]
    active = (size != 0).sum((0, 1)).cpu()
    return torch.stack(planes).cpu() if planes else active.new_zeros(0, *active.shape), active


def _add_bits(words: Tensor, lanes: Tensor) -> None:
    """Add the bits of every lane to its plane, and whether any is set to the last plane."""
    any_bit = torch.zeros_like(words)
    for k in range(len(lanes) - 1):
        lowest = (words >> k).bitwise_and_(_LANES)
        any_bit.bitwise_or_(lowest)
        lanes[k] += lowest.sum(0)
    lanes[-1] += any_bit.sum(0)


def count_macs(
    model: nn.Module | LoweredNetwork,
    example: Tensor,
    *,
    padding: Padding = "skipped",
    batch_axis: int | None = None,
) -> dict[str, int]:
    """Count the MACs of convolutions and linear layers for one sample, all timesteps.

    Products of levels are listed too.

    By default MACs that read the zeros of a padding are left out, as in the accumulations of
    :class:`lbq.OpCounter`, so that a ratio of the two has one rule on both sides.
    ``padding="counted"`` includes them, which is the convention of the paper's ANN row and of most
    tools.

    Args:
        model: any network.
        example: input of the model for a batch of one.
        padding: "skipped" or "counted".
        batch_axis: as in :class:`lbq.OpCounter`.

    Example:
        >>> lbq.count_macs(torch.nn.Sequential(torch.nn.Linear(784, 10)), torch.ones(1, 784))
        {'0': 7840}
    """
    found: dict[str, int] = {}
    connectivity = read_connectivity(model, example, batch_axis=batch_axis)
    if connectivity.uncounted:
        raise CountError(
            f"only convolutions and linear layers are counted, but the model also contains "
            f"{', '.join(connectivity.uncounted)}"
        )
    for synapse in connectivity.synapses:
        found[synapse.name] = found.get(synapse.name, 0) + synapse.dense_macs(padding)
    for product in connectivity.products:
        found[product.name] = product.dense * connectivity.timesteps
    return found
