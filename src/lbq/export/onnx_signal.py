"""What travels along the edges of an exported graph, and how it holds time.

Synapses want all instants in one batch, neurons want them one by one. A signal knows the form it
has and makes the other when asked, once.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from lbq.export.onnx_graph import Graph

Time = Literal["still", "shown", "moving"]
"""No time axis; one image shown at every timestep; another value at every timestep."""


@dataclass
class TimedValue:
    """A value of the graph at every timestep.

    Args:
        time: how it depends on time.
        shape: of one sample at one instant.
        timesteps: number of instants (T).
        folded: name of all instants in one batch, ``[T * B, *shape]``; of a still or shown signal
            ``[B, *shape]``.
        instants: names of the instants, ``[B, *shape]`` each.
        low: smallest integer that it can hold; meaningless among real numbers.
        high: largest.
        is_byte: whether its integers travel as uint8; others travel as int32.
    """

    time: Time
    shape: tuple[int, ...]
    timesteps: int
    folded: str | None = None
    instants: list[str] = field(default_factory=list[str])
    low: int = 0
    high: int = 0
    is_byte: bool = False

    @property
    def largest(self) -> int:
        """The largest size of an integer that it can hold."""
        return max(-self.low, self.high)

    def batch(self, graph: Graph) -> str:
        """Return the name of what one operator can compute at once."""
        if self.folded is None:
            self.folded = join(graph, self.instants)
        return self.folded

    def all_instants(self, graph: Graph) -> str:
        """Return the name of ``[T * B, *shape]``, a shown signal repeated."""
        return join(graph, self.by_instant(graph)) if self.time == "shown" else self.batch(graph)

    def by_instant(self, graph: Graph) -> list[str]:
        """Return the names of all instants."""
        if self.time != "moving":
            return [self.batch(graph)] * self.timesteps
        if not self.instants:
            assert self.folded is not None
            one = self.timesteps == 1
            self.instants = [self.folded] if one else graph.split(self.folded, self.timesteps)
        return self.instants


def join(graph: Graph, instants: list[str]) -> str:
    """Put instants behind each other in one batch, ``[T * B, ...]``."""
    return instants[0] if len(instants) == 1 else graph.op("Concat", *instants, axis=0)


def stack(graph: Graph, instants: list[str]) -> str:
    """Stack instants along a time axis of their own, ``[T, B, ...]``."""
    axis = graph.constant(np.array([0]), np.int64)
    rows = [graph.op("Unsqueeze", instant, axis) for instant in instants]
    return join(graph, rows)
