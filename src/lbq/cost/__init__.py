"""Operation counts of a network and energy estimates from them."""

from lbq.cost.budget import CostBudget
from lbq.cost.connectivity import Connectivity, Edge, LevelProduct, read_connectivity
from lbq.cost.count_table import (
    Activity,
    Counts,
    CountTable,
    EdgeCounts,
    LayerCounts,
    Padding,
    ProductCounts,
    RateEstimate,
    SynapseSize,
)
from lbq.cost.energy import (
    HAN_2016,
    HOROWITZ_2014,
    EnergyModel,
    EnergyReport,
    EnergyRow,
    Technology,
    Traffic,
    ann_traffic,
    burst_traffic,
)
from lbq.cost.fan_out import FanOutMap, conv_fan_out, linear_fan_out
from lbq.cost.op_counter import OpCounter, count_macs, count_ops

__all__ = [
    "HAN_2016",
    "HOROWITZ_2014",
    "Activity",
    "Connectivity",
    "CostBudget",
    "CountTable",
    "Counts",
    "Edge",
    "EdgeCounts",
    "EnergyModel",
    "EnergyReport",
    "EnergyRow",
    "FanOutMap",
    "LayerCounts",
    "LevelProduct",
    "OpCounter",
    "Padding",
    "ProductCounts",
    "RateEstimate",
    "SynapseSize",
    "Technology",
    "Traffic",
    "ann_traffic",
    "burst_traffic",
    "conv_fan_out",
    "count_macs",
    "count_ops",
    "linear_fan_out",
    "read_connectivity",
]
