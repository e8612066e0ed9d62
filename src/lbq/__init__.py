"""Spiking networks with integer burst levels, from training to integer inference.

The names in ``__all__`` are the stable API. Packages: ``functional`` (the paper's equations),
``neurons``, ``models``, ``data``, ``train``, ``graph``, ``lowering``, ``runtime``, ``formats``,
``pretrained``, ``cost``, ``analysis``, ``auditing``, ``adapters`` (other libraries).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# before torch is imported
from lbq import omp_wait_policy as _waiting  # noqa: F401 # pyright: ignore[reportUnusedImport]

# isort: split

from lbq.adapters.ann import from_ann
from lbq.cost import CostBudget, EnergyModel, OpCounter, count_macs, count_ops
from lbq.errors import LBQError
from lbq.export import export
from lbq.formats.bundle import load_network, save_network
from lbq.graph import LoweredNetwork
from lbq.kernels.burst_packing import pack_bursts
from lbq.lowering import lower, quantize, to_fixed_point
from lbq.models import SpikingResNet, resnet18, resnet19, resnet20, resnet34
from lbq.neurons import (
    BoxET,
    BurstLIF,
    FixedStep,
    LearnedStep,
    ReLSGET,
    calibrate_steps,
    check_currents_finite,
    record_levels,
    watch_levels,
)
from lbq.neurons.batch_axis import check_time
from lbq.predictor import Predictor
from lbq.preprocessing import Pixels
from lbq.runtime import run_network, stream
from lbq.time import MeanOverTime, OverTime, RepeatOverTime

if TYPE_CHECKING:
    from lbq.auditing import audit
    from lbq.data import sample_rng
    from lbq.pretrained import load_pretrained
    from lbq.train import RunOptions, TrainConfig, fit, load_run, param_groups

__version__ = "0.2.0"

__all__ = [
    "BoxET",
    "BurstLIF",
    "CostBudget",
    "EnergyModel",
    "FixedStep",
    "LBQError",
    "LearnedStep",
    "LoweredNetwork",
    "MeanOverTime",
    "OpCounter",
    "OverTime",
    "Pixels",
    "Predictor",
    "ReLSGET",
    "RepeatOverTime",
    "RunOptions",
    "SpikingResNet",
    "TrainConfig",
    "audit",
    "calibrate_steps",
    "check_currents_finite",
    "check_time",
    "count_macs",
    "count_ops",
    "export",
    "fit",
    "from_ann",
    "load_network",
    "load_pretrained",
    "load_run",
    "lower",
    "pack_bursts",
    "param_groups",
    "quantize",
    "record_levels",
    "resnet18",
    "resnet19",
    "resnet20",
    "resnet34",
    "run_network",
    "sample_rng",
    "save_network",
    "stream",
    "to_fixed_point",
    "watch_levels",
]


_PACKAGES = (
    "adapters",
    "analysis",
    "auditing",
    "cost",
    "data",
    "errors",
    "formats",
    "functional",
    "graph",
    "kernels",
    "lowering",
    "models",
    "neurons",
    "pretrained",
    "runtime",
    "time",
    "train",
)
"""Documented packages; imported on first use."""

_LAZY = {
    "RunOptions": "train",
    "TrainConfig": "train",
    "audit": "auditing",
    "fit": "train",
    "load_pretrained": "pretrained",
    "load_run": "train",
    "param_groups": "train",
    "sample_rng": "data",
}
"""Names whose packages are imported on first use, because they would slow ``import lbq`` down."""


def __getattr__(name: str) -> Any:
    """Import packages, and the names of ``_LAZY``, on first use."""
    package = name if name in _PACKAGES else _LAZY.get(name)
    if package is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = import_module(f"{__name__}.{package}")
    if name in _LAZY:
        found = globals()[name] = getattr(found, name)
    return found


def __dir__() -> list[str]:
    """List the names of ``__all__``, the packages and the version."""
    return sorted([*__all__, *_PACKAGES, "__version__", "__doc__", "__file__", "__name__"])
