"""Run a lowered network: in torch, in the native engine, or one timestep at a time."""

from lbq.runtime.run import choose_backend, run_network
from lbq.runtime.stream import stream

__all__ = ["choose_backend", "run_network", "stream"]
