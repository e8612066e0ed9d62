"""Deployment: lower a trained network, convert it to integers, prove its bounds, run it."""

from lbq.deploy.bounds import Bound, prove
from lbq.deploy.fixed_point import Pixels, quantize, to_fixed_point
from lbq.deploy.lower import lower
from lbq.deploy.lowered_network import LoweredNetwork
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
