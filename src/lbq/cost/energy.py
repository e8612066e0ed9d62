"""Energy estimates from operation counts, under several conventions.

An energy ratio depends on the energies per operation as much as on the two networks. The paper
compares float32 MACs of the ANN with float32 adds of its own network, but an int8 ANN of the same
shape needs less energy. A report therefore shows the paper's ratio, ratios with the same precision
on both sides, and memory traffic separately.

Memory traffic assumes int8 weights, activations of one byte, and no data kept on chip between
layers. A synapse reads its weights and inputs once each time it runs. A neuron writes its level
once. A burst network does so at every timestep, and also stores and loads its membranes (int32).
"""

from dataclasses import dataclass, replace

from lbq.cost.count_table import CountTable, Padding, ProductKind
from lbq.functional.op_costs import arithmetic_energy_pj

_PJ_PER_MJ = 1e9


@dataclass(frozen=True, kw_only=True)
class Technology:
    """Published energies of single operations, in picojoules."""

    name: str
    source: str
    fp32_add: float
    fp32_multiply: float
    fp16_add: float
    fp16_multiply: float
    int8_add: float
    int8_multiply: float
    int4_multiply: float
    int32_add: float
    sram_byte: float
    """One byte to or from a memory on the chip."""
    sram: str
    """Kind of that memory."""
    dram_byte: float
    """One byte to or from DRAM."""


HOROWITZ_2014 = Technology(
    name="45 nm",
    source='Horowitz, "Computing\'s energy problem", ISSCC 2014',
    fp32_add=0.9,
    fp32_multiply=3.7,
    fp16_add=0.4,
    fp16_multiply=1.1,
    int8_add=0.03,
    int8_multiply=0.2,
    int4_multiply=0.2 / 4,  # not published: a multiplier grows with the square of its width
    int32_add=0.1,
    sram_byte=100 / 8,  # published per 64 bits
    sram="1 MB SRAM",
    dram_byte=1300 / 8,  # published per 64 bits, the lower of 1.3 and 2.6 nJ
)
"""The paper's constants: 4.6 pJ per float32 MAC, 0.9 per float32 add, 0.1 per int32 add."""

HAN_2016 = replace(
    HOROWITZ_2014,
    source='arithmetic: Horowitz 2014; memory: Han et al., "EIE", ISCA 2016, Table I',
    sram_byte=5 / 4,  # published per 32 bits
    sram="32 KB SRAM",
    dram_byte=640 / 4,  # published per 32 bits
)
"""The same arithmetic with a small memory."""


_MEMBRANE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes moved for one image."""

    weight_bytes: int
    """Weights read."""
    activation_bytes: int
    """Activations or levels written by neurons and read by synapses."""
    state_bytes: int
    """Membranes written at one timestep and read at the next."""

    @property
    def total(self) -> int:
        """All bytes."""
        return self.weight_bytes + self.activation_bytes + self.state_bytes


@dataclass(frozen=True, kw_only=True)
class EnergyRow:
    """Energies of the equivalent ANN and of this network under one convention, per image."""

    name: str
    convention: str
    ann_mj: float
    burst_mj: float

    @property
    def ratio(self) -> float:
        """Energy of the ANN divided by that of this network."""
        return self.ann_mj / self.burst_mj if self.burst_mj else float("inf")


@dataclass(frozen=True, kw_only=True)
class EnergyReport:
    """Energy estimates from one count table, one row per convention."""

    technology: Technology
    arithmetic: tuple[EnergyRow, ...]
    memory: tuple[EnergyRow, ...]
    ann_traffic: Traffic
    burst_traffic: Traffic
    notes: tuple[str, ...] = ()
    """Operations that the counts leave out."""

    @property
    def rows(self) -> tuple[EnergyRow, ...]:
        """All rows."""
        return (*self.arithmetic, *self.memory)

    def __getitem__(self, name: str) -> EnergyRow:
        """Return the row with that name."""
        return {row.name: row for row in self.rows}[name]

    def __str__(self) -> str:
        heading = f"energy per image, {self.technology.name}"
        rows = [f"{heading:30}{'ANN, uJ':>12}{'this, uJ':>12}{'ANN / this':>12}"]
        for group, members in (("arithmetic", self.arithmetic), ("memory traffic", self.memory)):
            rows.append(group)
            rows += [
                f"  {row.name:28}{row.ann_mj * 1e3:12.3f}{row.burst_mj * 1e3:12.3f}"
                f"{row.ratio:12.2f}"
                for row in members
            ]
        rows.append("conventions")
        rows += [f"  {row.name}: {row.convention}" for row in self.rows]
        rows.append(f"  source: {self.technology.source}")
        return "\n".join((*rows, *self.notes))


@dataclass(frozen=True, kw_only=True)
class EnergyModel:
    """Estimates energy from counts, by default with the paper's 45 nm constants.

    By default neither MACs nor accumulations include reads of padding.
    ``padding="counted"`` includes them in MACs only, as the paper's Table 7 does.

    Example:
        >>> model = lbq.resnet20(10, width=1 / 16).eval()
        >>> counter = lbq.OpCounter(model, torch.randn(1, 3, 16, 16))
        >>> with lbq.watch_levels(model, counter):
        ...     logits = model(torch.randn(4, 3, 16, 16))
        >>> report = lbq.EnergyModel().estimate(counter.table())
        >>> [row.name for row in report.arithmetic]
        ['paper', 'float16', 'int8, 32-bit sums', 'int8, 8-bit sums', 'int4, 32-bit sums']
    """

    technology: Technology = HOROWITZ_2014
    padding: Padding = "skipped"
    """Whether MACs that read padding are counted."""
    product_kind: ProductKind = "bit_serial"
    """How products of levels are executed, see :class:`lbq.cost.count_table.ProductCounts`."""
    product_pj: float | None = None
    """Energy of one such product. By default both sides leave out products of levels, and the
    report says so."""

    def estimate(self, table: CountTable) -> EnergyReport:
        """Estimate the energy of the network and of an ANN of the same shape, per image."""
        tech = self.technology
        ann, burst = ann_traffic(table), burst_traffic(table)
        conventions = (
            ("paper", "float32 multiply", tech.fp32_multiply, "float32 add", tech.fp32_add),
            ("float16", "float16 multiply", tech.fp16_multiply, "float16 add", tech.fp16_add),
            ("int8, 32-bit sums", "int8 multiply", tech.int8_multiply, "int32 add", tech.int32_add),
            ("int8, 8-bit sums", "int8 multiply", tech.int8_multiply, "int8 add", tech.int8_add),
            ("int4, 32-bit sums", "int4 multiply", tech.int4_multiply, "int32 add", tech.int32_add),
        )
        images, padding = max(1, table.num_images), self.padding
        is_priced = self.product_pj is not None and bool(table.products)
        products = table.total_products()
        products_pj = (self.product_pj or 0) * getattr(products, self.product_kind) / images
        ann_products = products.dense / images / table.timesteps if is_priced else 0
        priced = (
            f"{self.product_pj} pJ per product of levels ({self.product_kind}), a MAC in the ANN; "
        )
        arithmetic = tuple(
            EnergyRow(
                name=name,
                convention=f"{multiply} + {add} per MAC of the ANN, and of synapses with a "
                f"real-valued input; {add} per bit-sparse AC, int32 add per plane formation; "
                f"{priced if is_priced else ''}"
                f"padding is {'counted in MACs only' if padding == 'counted' else 'not counted'}",
                ann_mj=arithmetic_energy_pj(
                    fp_macs=table.ann_macs(padding=padding) + ann_products,
                    acs=0,
                    mac_pj=multiply_pj + add_pj,
                )
                / _PJ_PER_MJ,
                burst_mj=products_pj / _PJ_PER_MJ
                + arithmetic_energy_pj(
                    fp_macs=table.fp_macs(padding=padding) / images,
                    acs=table.total().bit_sparse_acs / images,
                    plane_formations=table.plane_formations() / images,
                    mac_pj=multiply_pj + add_pj,
                    ac_pj=add_pj,
                    formation_pj=tech.int32_add,
                )
                / _PJ_PER_MJ,
            )
            for name, multiply, multiply_pj, add, add_pj in conventions
        )
        memory = tuple(
            EnergyRow(
                name=name,
                convention=f"{ann.total / 1e6:.2f} MB against {burst.total / 1e6:.2f} MB moved; "
                f"int8 weights and activations; {pj:g} pJ per byte",
                ann_mj=ann.total * pj / _PJ_PER_MJ,
                burst_mj=burst.total * pj / _PJ_PER_MJ,
            )
            for name, pj in ((tech.sram, tech.sram_byte), ("DRAM", tech.dram_byte))
        )
        return EnergyReport(
            technology=tech,
            arithmetic=arithmetic,
            memory=memory,
            ann_traffic=ann,
            burst_traffic=burst,
            notes=(*table.notes, *_left_out(table, is_priced=is_priced)),
        )


def _left_out(table: CountTable, *, is_priced: bool) -> tuple[str, ...]:
    """Describe which products of levels an estimate leaves out."""
    if not table.products:
        return ()
    names = ", ".join(dict.fromkeys(product.name for product in table.products))
    memory = f"Memory traffic is without the operands and results of products of levels: {names}."
    unpriced = f"Products of levels have no price (EnergyModel.product_pj), left out: {names}."
    return (memory,) if is_priced else (unpriced, memory)


def ann_traffic(table: CountTable) -> Traffic:
    """Count the bytes of an int8 ANN of the same shape: every tensor once, no state."""
    synapses = [synapse for synapse, _ in table.synapses_with_timesteps()]
    reads = sum(synapse.inputs for synapse in synapses)
    return Traffic(
        weight_bytes=sum(synapse.num_weights for synapse in synapses),
        activation_bytes=reads + _num_neurons(table),
        state_bytes=0,
    )


def burst_traffic(table: CountTable) -> Traffic:
    """Count the bytes of the burst network with one-byte levels, over all its timesteps."""
    synapses = list(table.synapses_with_timesteps())
    reads = sum(synapse.inputs * instants for synapse, instants in synapses)
    neurons, passes = _num_neurons(table), table.timesteps - 1
    return Traffic(
        weight_bytes=sum(synapse.num_weights * instants for synapse, instants in synapses),
        activation_bytes=reads + neurons * table.timesteps,
        state_bytes=2 * _MEMBRANE_BYTES * neurons * passes,
    )


def _num_neurons(table: CountTable) -> int:
    return sum({layer.layer: layer.neurons for layer in table.layers}.values())
