"""Deployment: lower a trained network, convert it to integers, prove its bounds, run it."""

from lbq.deploy.bounds import Bound, prove
from lbq.deploy.fixed_point import Pixels, quantize, to_fixed_point
from lbq.deploy.lower import lower
from lbq.deploy.lowered_network import LoweredNetwork
from lbq.deploy.run import choose_backend, run_network

__all__ = [
    "Bound",
    "LoweredNetwork",
    "Pixels",
    "choose_backend",
    "lower",
    "prove",
    "quantize",
    "run_network",
    "to_fixed_point",
]
