"""Counting and pricing: what the levels of a network cost behind its synapses."""

from lbq.cost.energy import (
    HAN_2016,
    HOROWITZ_2014,
    EnergyModel,
    EnergyReport,
    EnergyRow,
    Technology,
)
from lbq.cost.fan_out import Reach, conv_reach, linear_reach
from lbq.cost.macs import count_macs
from lbq.cost.table import Counts, CountTable, EdgeCounts, LayerCounts, Padding, SynapseSize
from lbq.cost.tally import Tally
from lbq.cost.traffic import Traffic, ann_traffic, burst_traffic
from lbq.cost.wiring import Edge, Wiring, trace_wiring

__all__ = [
    "HAN_2016",
    "HOROWITZ_2014",
    "CountTable",
    "Counts",
    "Edge",
    "EdgeCounts",
    "EnergyModel",
    "EnergyReport",
    "EnergyRow",
    "LayerCounts",
    "Padding",
    "Reach",
    "SynapseSize",
    "Tally",
    "Technology",
    "Traffic",
    "Wiring",
    "ann_traffic",
    "burst_traffic",
    "conv_reach",
    "count_macs",
    "linear_reach",
    "trace_wiring",
]
