"""Spiking networks with integer levels: learnable burst quantization, from training to integers.

The names below are the public API. ``lbq.functional`` holds the paper's equations, ``lbq.neurons``
neurons, steps and surrogates, ``lbq.data`` data sets, ``lbq.models`` networks, ``lbq.train``
training, ``lbq.deploy`` lowering and integer inference, ``lbq.export`` file formats,
``lbq.pretrained`` trained networks, ``lbq.cost`` operation counts, ``lbq.analysis`` plots and
reports, ``lbq.adapters`` other libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# before torch is imported
from lbq import omp_wait_policy as _waiting  # noqa: F401 # pyright: ignore[reportUnusedImport]

# isort: split

from lbq.adapters.ann import from_ann
from lbq.cost import EnergyModel, OpCounter, count_macs
from lbq.deploy import LoweredNetwork, Pixels, lower, run, to_fixed_point
from lbq.errors import LBQError
from lbq.export.bundle import load, save
from lbq.models import SpikingResNet, check_time, resnet18, resnet19, resnet20, resnet34
from lbq.neurons import (
    BoxET,
    BurstLIF,
    FixedStep,
    LearnedStep,
    ReLSGET,
    calibrate_steps,
    check_currents_finite,
    watch_levels,
)

if TYPE_CHECKING:
    from lbq.pretrained import load_pretrained

__version__ = "0.1.0"

__all__ = [
    "BoxET",
    "BurstLIF",
    "EnergyModel",
    "FixedStep",
    "LBQError",
    "LearnedStep",
    "LoweredNetwork",
    "OpCounter",
    "Pixels",
    "ReLSGET",
    "SpikingResNet",
    "calibrate_steps",
    "check_currents_finite",
    "check_time",
    "count_macs",
    "from_ann",
    "load",
    "load_pretrained",
    "lower",
    "resnet18",
    "resnet19",
    "resnet20",
    "resnet34",
    "run",
    "save",
    "to_fixed_point",
    "watch_levels",
]


_PACKAGES = (
    "adapters",
    "analysis",
    "cost",
    "data",
    "deploy",
    "errors",
    "export",
    "functional",
    "kernels",
    "models",
    "neurons",
    "pretrained",
    "train",
)
"""What docs/api documents besides the names above; imported when first used."""


def __getattr__(name: str) -> Any:
    """Import on first use what would make ``import lbq`` slow."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name != "load_pretrained":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lbq.pretrained import load_pretrained  # noqa: PLC0415

    globals()[name] = load_pretrained
    return load_pretrained


def __dir__() -> list[str]:
    """List what a user may use: the names of ``__all__``, the packages, the version."""
    return sorted([*__all__, *_PACKAGES, "__version__", "__doc__", "__file__", "__name__"])
