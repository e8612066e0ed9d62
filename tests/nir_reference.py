"""NIR graphs executed literally: every node by its printed equation, timestep by timestep.

The slow clear version that the tests of ``lbq.formats.nir`` believe. It knows nothing of lbq and
reads no metadata. dt is 1, derivatives are taken by forward Euler, edges into a node are summed.
"""

import graphlib

import nir
import numpy as np

DT = 1.0


class Literal:
    """A graph with its state; ``step`` runs one timestep of a batch."""

    def __init__(self, graph):
        self.graph = graph
        self.into = {name: [] for name in graph.nodes}
        for before, behind in graph.edges:
            self.into[behind].append(before)
        # what leaves a delay was put in a timestep ago, so its inputs may come later
        waits = {
            name: [] if isinstance(node, nir.Delay) else self.into[name]
            for name, node in graph.nodes.items()
        }
        self.order = list(graphlib.TopologicalSorter(waits).static_order())
        self.state = {}
        self.inner = {
            name: Literal(node)
            for name, node in graph.nodes.items()
            if isinstance(node, nir.NIRGraph)
        }

    def step(self, x):
        """Answer an instant ``[B, ...]``; return the value of every node."""
        values = {}
        for name in self.order:
            node = self.graph.nodes[name]
            if isinstance(node, nir.Input):
                values[name] = x
            elif isinstance(node, nir.Delay):
                assert (node.delay == DT).all()
                values[name] = self.state.get(name, 0.0)
            else:
                values[name] = self.answer(name, node, self.summed(name, values))
        for name, node in self.graph.nodes.items():
            if isinstance(node, nir.Delay):
                self.state[name] = self.summed(name, values)
        return values

    def summed(self, name, values):
        total = values[self.into[name][0]]
        for before in self.into[name][1:]:
            total = total + values[before]
        return total

    def answer(self, name, node, x):
        if isinstance(node, nir.NIRGraph):
            inner = self.inner[name]
            return inner.step(x)[next(iter(node.outputs))]
        if isinstance(node, nir.LI):
            v = self.state.get(name, np.zeros_like(x))
            v = v + DT / node.tau * ((node.v_leak - v) + node.r * x)
            self.state[name] = v
            return v
        if isinstance(node, nir.I):
            v = self.state.get(name, np.zeros_like(x)) + DT * node.r * x
            self.state[name] = v
            return v
        if isinstance(node, nir.Threshold):
            return (x > node.threshold).astype(node.threshold.dtype)
        if isinstance(node, nir.Scale):
            return x * node.scale
        if isinstance(node, nir.Conv2d):
            return conv2d(x, node)
        if isinstance(node, nir.Conv1d):
            return conv1d(x, node)
        if isinstance(node, nir.SumPool2d):
            return windows(x, node.kernel_size, node.stride, node.padding).sum((-2, -1))
        if isinstance(node, nir.Flatten):
            assert (node.start_dim, node.end_dim) == (0, -1)
            return x.reshape(len(x), -1)
        if isinstance(node, nir.Affine):
            return x @ node.weight.T + node.bias
        if isinstance(node, nir.Linear):
            return x @ node.weight.T
        assert isinstance(node, nir.Output)
        return x


def conv2d(x, node):
    assert tuple(node.dilation) == (1, 1)
    assert node.groups == 1
    seen = windows(x, node.weight.shape[2:], node.stride, node.padding)
    return np.einsum("bchwij,ocij->bohw", seen, node.weight) + node.bias[:, None, None]


def conv1d(x, node):
    assert node.groups == 1
    padded = np.pad(x, ((0, 0), (0, 0), (node.padding,) * 2))
    taps = range(0, node.dilation * node.weight.shape[2], node.dilation)
    last = padded.shape[2] - taps[-1]
    parts = [
        np.einsum("bcl,oc->bol", padded[:, :, tap : tap + last : node.stride], node.weight[:, :, k])
        for k, tap in enumerate(taps)
    ]
    return sum(parts) + node.bias[:, None]


def windows(x, kernel, stride, padding):
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    seen = np.lib.stride_tricks.sliding_window_view(x, tuple(kernel), axis=(2, 3))
    return seen[:, :, :: stride[0], :: stride[1]]
