"""Operation counts as plain data: exact integers per edge and timestep."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, get_args

from lbq.config_io import DocumentError, dump_json, from_document, read_json, to_document
from lbq.errors import CountError, FormatError, ParameterError

FORMAT = "lbq-counts-5"

Padding = Literal["skipped", "counted"]
"""Whether dense MACs include products with the zeros of a padding. "skipped" leaves them out, as
exact fan-out does for accumulations. "counted" is the convention of the paper and of most tools."""

Rate = Literal["levels", "active"]
"""The rate of a layer: its mean level ("levels"), or its share of non-zero levels ("active")."""

ProductKind = Literal["unary", "bit_pairs", "bit_serial"]
"""How hardware multiplies two levels; see :class:`ProductCounts`."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Operations that levels cause in synapses; supports ``+``."""

    unary_acs: int = 0
    """Accumulations if a level S is sent as S unit events (Eq. 16)."""
    bit_sparse_acs: int = 0
    """Accumulations if a level is sent as its non-zero bits (Eq. 17)."""
    unit_event_acs: int = 0
    """Accumulations if every non-zero level is one event, as for binary and ternary neurons."""
    explicit_shifts: int = 0
    """Shifts on hardware that scales by powers of two at run time (Eq. 18)."""

    @property
    def saved(self) -> float:
        """Share of the unary accumulations that sending bits saves."""
        return 1 - self.bit_sparse_acs / self.unary_acs if self.unary_acs else 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(Counts)}
        )


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Levels that enter a synapse or a product, summed over all images."""

    size: int = 0
    """Number of levels, zeros included."""
    active: int = 0
    """Number of levels that are not zero."""
    levels: int = 0
    """Sum of the levels."""

    def rate(self, rate: Rate) -> float:
        """Return the mean level, or the share of non-zero ones."""
        return (self.levels if rate == "levels" else self.active) / max(1, self.size)

    def __add__(self, other: "Activity") -> "Activity":
        return Activity(
            size=self.size + other.size,
            active=self.active + other.active,
            levels=self.levels + other.levels,
        )


@dataclass(frozen=True, kw_only=True)
class EdgeCounts:
    """The counts of one edge at one timestep, summed over all images."""

    source: str
    target: str
    t: int
    is_identity: bool
    counts: Counts
    entering: Activity = Activity()
    """Levels that enter the synapse."""
    dense: int = 0
    """MACs of the synapse on these inputs, padding included."""


@dataclass(frozen=True, kw_only=True)
class ProductCounts:
    """Products of levels with levels, of one node at one timestep, summed over all images.

    Each product is counted under three conventions (docs/costs.md). These counts are never added to
    the accumulations of weights.
    """

    name: str
    """Path of the product, such as a matmul of attention."""
    t: int
    unary: int = 0
    """Products of unit events: one level times the other."""
    bit_pairs: int = 0
    """Products of single bits: the non-zero bits of one level times those of the other."""
    bit_serial: int = 0
    """Products of an integer with single bits: the non-zero bits of one level, where the other
    level is not 0."""
    dense: int = 0
    """Pairs of levels, zeros included."""
    left: Activity = Activity()
    """Levels of the left operand; empty if it is the result of a product."""
    right: Activity = Activity()
    """Levels of the right operand."""

    def __add__(self, other: "ProductCounts") -> "ProductCounts":
        counts = (f.name for f in fields(ProductCounts) if f.name not in ("name", "t"))
        return replace(
            self, **{name: getattr(self, name) + getattr(other, name) for name in counts}
        )


@dataclass(frozen=True, kw_only=True)
class LayerCounts:
    """Activity of one layer of neurons at one timestep, summed over all images."""

    layer: str
    t: int
    neurons: int
    """Neurons in the layer (of one image)."""
    active: int
    """Non-zero levels."""
    max_level: int
    """Largest level of the layer's neurons."""
    plane_formations: int
    """Non-zero bits, once however many synapses follow (Eq. 17)."""


@dataclass(frozen=True, kw_only=True)
class SynapseSize:
    """The size of one synapse, for one image."""

    name: str
    macs: int
    """Dense multiply-accumulates over all timesteps, without those that read padding."""
    padded_macs: int
    """The same including those that read padding."""
    timesteps: int | None
    """How often it runs: once, or at every timestep; None if unknown."""
    num_weights: int
    inputs: int
    """Input values of one timestep; of all of them if their number is unknown."""
    has_real_input: bool
    """Its input is real-valued, so it costs MACs."""

    def dense_macs(self, padding: Padding) -> int:
        """Return the MACs over all timesteps under one of the two conventions."""
        if padding not in get_args(Padding):
            raise ParameterError(f'padding must be "skipped" or "counted", got {padding!r}')
        return self.macs if padding == "skipped" else self.padded_macs


def with_timesteps(synapses: Iterable[SynapseSize]) -> Iterator[tuple[SynapseSize, int]]:
    """Yield every synapse with its number of timesteps; raise CountError if one is unknown."""
    for synapse in synapses:
        if synapse.timesteps is None:
            raise CountError(
                f"the number of timesteps of {synapse.name} is unknown, so the MACs of an ANN "
                f"cannot be counted: its input could not be followed from a neuron, from "
                f"frames or from RepeatOverTime. Use RepeatOverTime and OverTime, or reshape "
                f"with torch's own functions"
            )
        yield synapse, synapse.timesteps


@dataclass(frozen=True, kw_only=True)
class RateEstimate:
    """Operations by the rule "rate times FLOPs", for all images."""

    acs: float
    """Accumulations of synapses."""
    products: float
    """Products of levels with levels."""


@dataclass(frozen=True, kw_only=True)
class CountTable:
    """All counts of a run, with exact fan-out.

    Example:
        >>> table = counter.table()
        >>> table.total().bit_sparse_acs / table.num_images
    """

    num_images: int
    timesteps: int
    synapses: tuple[SynapseSize, ...]
    edges: tuple[EdgeCounts, ...]
    layers: tuple[LayerCounts, ...]
    untracked: tuple[str, ...] = ()
    """Operations on bursts that could not be followed; synapses behind them count as MACs."""
    uncounted: tuple[str, ...] = ()
    """Operations that no count includes, such as products of real numbers."""
    products: tuple[ProductCounts, ...] = ()
    """Products of levels with levels."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Operations that were not followed or not counted."""
        return (
            *(f"Not followed, so its synapses count as MACs: {what}." for what in self.untracked),
            *(f"Not counted at all: {what}." for what in self.uncounted),
            *(
                f"Timesteps unknown, so MACs of the ANN are not given: {s.name}."
                for s in self.synapses
                if s.timesteps is None
            ),
        )

    def total(self) -> Counts:
        """Sum over edges and timesteps, without identity shortcuts."""
        return sum((e.counts for e in self.edges if not e.is_identity), Counts())

    def identities(self) -> Counts:
        """Sum the additions of identity shortcuts; the paper does not count them."""
        return sum((e.counts for e in self.edges if e.is_identity), Counts())

    def by_edge(self) -> dict[tuple[str, str], Counts]:
        """Sum over timesteps for every (source, target), without identity shortcuts."""
        found: dict[tuple[str, str], Counts] = {}
        for edge in self.edges:
            if not edge.is_identity:
                key = edge.source, edge.target
                found[key] = found.get(key, Counts()) + edge.counts
        return found

    def by_timestep(self) -> tuple[Counts, ...]:
        """Sum over edges for every timestep, without identity shortcuts."""
        return tuple(
            sum((e.counts for e in self.edges if e.t == t and not e.is_identity), Counts())
            for t in range(self.timesteps)
        )

    def total_products(self) -> ProductCounts:
        """Sum the products of levels with levels over nodes and timesteps."""
        return sum(self.products, ProductCounts(name="total", t=0))

    def rate_estimate(self, rate: Rate = "levels") -> "RateEstimate":
        """Estimate the operations by the usual rule, rate times FLOPs.

        Most papers multiply the MACs of a layer, including padding, by the mean rate of its inputs.
        They multiply the products of attention by the rates of both operands. Both are inexact,
        because fan-out and levels differ between positions.

        Args:
            rate: "levels" (a level S is S spikes) or "active" (a level counts once).
        """
        if rate not in get_args(Rate):
            raise ParameterError(f'rate must be "levels" or "active", got {rate!r}')
        edges = (e for e in self.edges if not e.is_identity)
        return RateEstimate(
            acs=sum(edge.entering.rate(rate) * edge.dense for edge in edges),
            products=sum(
                product.dense
                * math.prod(side.rate(rate) for side in (product.left, product.right) if side.size)
                for product in self.products
            ),
        )

    def plane_formations(self) -> int:
        """Sum the non-zero bits of all layers, except binary and ternary layers."""
        return sum(layer.plane_formations for layer in self.layers if layer.max_level > 1)

    def fp_macs(self, *, padding: Padding = "skipped") -> int:
        """Sum the MACs of synapses with a real-valued input, for all images.

        Args:
            padding: "skipped" counts as for accumulations, "counted" as the paper does.
        """
        return self.num_images * sum(
            s.dense_macs(padding) for s in self.synapses if s.has_real_input
        )

    def ann_macs(self, *, padding: Padding = "skipped") -> int:
        """Sum the MACs of the same network as an ANN: every synapse once, for one image.

        Args:
            padding: "skipped" counts as for accumulations, so that a ratio of the two has one rule
                on both sides; "counted" is the paper's convention.
        """
        return sum(s.dense_macs(padding) // n for s, n in self.synapses_with_timesteps())

    def synapses_with_timesteps(self) -> Iterator[tuple[SynapseSize, int]]:
        """Yield every synapse with its number of timesteps; raise CountError if one is unknown."""
        return with_timesteps(self.synapses)

    def active_ratios(self) -> dict[str, float]:
        """Return for every layer the share of non-zero levels, over images and timesteps."""
        active, seen = Counter[str](), Counter[str]()
        for layer in self.layers:
            active[layer.layer] += layer.active
            seen[layer.layer] += layer.neurons * self.num_images
        return {name: active[name] / max(1, seen[name]) for name in active}

    def active_ratio(self) -> float:
        """Average the active ratios of the layers without weights, as the paper does."""
        ratios = self.active_ratios().values()
        return sum(ratios) / max(1, len(ratios))

    def save(self, path: str | Path) -> None:
        """Write the table as JSON."""
        Path(path).write_text(dump_json({"format": FORMAT, **to_document(self)}))

    @classmethod
    def load(cls, path: str | Path) -> "CountTable":
        """Read a table that :meth:`save` wrote."""
        try:
            document = read_json(path, expected_format=FORMAT)
            del document["format"]
            return from_document(cls, document)
        except DocumentError as error:
            raise FormatError(
                f"{path} is not a count table of this version: {error}; count again"
            ) from error

    def compare(self, other: "CountTable") -> str:
        """Return both tables side by side as text, per image, with their ratio."""
        rows = [f"{'per image':28}{'this':>14}{'other':>14}{'ratio':>9}"]
        products = bool(self.products or other.products)
        pairs = zip(self._lines(products), other._lines(products), strict=True)
        for (name, mine), (_, theirs) in pairs:
            ratio = f"{mine / theirs:9.3f}" if theirs else f"{'-':>9}"
            rows.append(f"{name:28}{mine:14.3f}{theirs:14.3f}{ratio}")
        return "\n".join(rows)

    def __str__(self) -> str:
        if self.num_images == 0:
            return (
                "nothing was counted: no image ran while levels were watched; run the model inside "
                "`with lbq.watch_levels(model, counter):`"
            )
        scale, active = 1e6 * max(1, self.num_images), self.active_ratios()
        edges = self.by_edge()
        wide = max(map(len, ("total", *(source for source, _ in edges)))) + 2
        lines = self._lines(bool(self.products))
        label = max(len(name) for name, _ in lines) + 1
        wider = max(len("into") + 2, label - wide - 8, *(len(target) + 2 for _, target in edges))

        def row(source: str, target: str, share: float | None, counts: Counts) -> str:
            ratio = f"{'':8}" if share is None else f"{share:8.1%}"  # products have none
            return (
                f"{source:{wide}}{target:{wider}}{ratio}{counts.unary_acs / scale:12.3f}"
                f"{counts.bit_sparse_acs / scale:12.3f}{counts.saved:8.1%}"
            )

        heading = f"{'active':>8}{'unary ACs':>12}{'bit-sparse':>12}{'saved':>8}"
        rows = [f"{'from':{wide}}{'into':{wider}}{heading}"]
        rows += [row(a, b, active.get(a), counts) for (a, b), counts in edges.items()]
        rows.append(row("total", "", self.active_ratio(), self.total()))
        rows += [f"{name:{wide + wider + 8}}{value:12.3f}" for name, value in lines[2:]]
        rows.append(
            f"millions per image, mean of {self.num_images} image(s), {self.timesteps} timestep(s) "
            f"summed; exact fan-out:\nsynapses into padding are not counted, in ACs and in MACs"
        )
        return "\n".join((*rows, *self.notes))

    def _lines(self, with_products: bool) -> list[tuple[str, float]]:
        """Return the rows of the table, in millions per image."""
        total, scale = self.total(), 1e6 * max(1, self.num_images)
        products = self.total_products()
        of_levels = [
            ("level products, unary", products.unary / scale),
            ("level products, bit pairs", products.bit_pairs / scale),
            ("level products, bit-serial", products.bit_serial / scale),
            ("level products, dense", products.dense / scale),
        ]
        return [
            ("unary ACs", total.unary_acs / scale),
            ("bit-sparse ACs", total.bit_sparse_acs / scale),
            ("unit-event ACs", total.unit_event_acs / scale),
            ("explicit shifts", total.explicit_shifts / scale),
            ("plane formations", self.plane_formations() / scale),
            ("FP MACs", self.fp_macs() / scale),
            ("identity adds (unary)", self.identities().unary_acs / scale),
            *(of_levels if with_products else ()),
        ]
