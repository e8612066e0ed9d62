"""Deployment: lower a trained network, convert it to integers, prove its bounds, run it."""

from lbq.deploy.fixed_point import Pixels, quantize, to_fixed_point
from lbq.deploy.graph import Bound, LoweredNetwork, prove
from lbq.deploy.lower import lower
from lbq.deploy.run import choose_backend, run_network
from lbq.deploy.stream import stream

__all__ = [
    "Bound",
    "LoweredNetwork",
    "Pixels",
    "choose_backend",
    "lower",
    "prove",
    "quantize",
    "run_network",
    "stream",
    "to_fixed_point",
]
