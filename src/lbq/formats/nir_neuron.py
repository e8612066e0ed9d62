"""Convert a neuron to a NIR sub-graph, and back.

NIR has no node with levels or with a reset that subtracts. A loop of simpler nodes has the same
dynamics, with dt = 1 and forward Euler::

    input -> LI(tau=1/(1-decay), r=1/(1-decay)) -> Threshold 1 -+-> output    (edges are summed)
              ^                                 -> Threshold 2 -+
              +-- Delay(1) <- Scale(-decay * reset_amount) <- Threshold 1 (or all of them)

An integrator without leak is ``I(r=1)``; a neuron without memory has only its thresholds. NIR
compares with ``>`` and lbq with ``>=``, so the file holds the next smaller floats. The equations
are those of the neuron, but other engines round at other places. This changes a level only if the
membrane is within a rounding error of a threshold.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lbq.errors import FormatError, LoweringError
from lbq.graph.operators import RealNeuron

DT = 1.0
"""The timestep, in NIR's unit of time."""

Floats = NDArray[Any]


def neuron_graph(
    nir: ModuleType, node: RealNeuron, *, shape: Sequence[int], timesteps: int, path: str
) -> Any:
    """Return the sub-graph of a neuron whose currents have this shape."""
    _check(node, path)
    names = [f"threshold_{level}" for level in range(1, node.max_level + 1)]
    below = torch.nextafter(node.thresholds, torch.full_like(node.thresholds, -torch.inf))
    nodes: dict[str, Any] = {
        "input": nir.Input({"input": np.array(shape)}),
        "output": nir.Output({"output": np.array(shape)}),
    }
    for name, threshold in zip(names, below, strict=True):
        nodes[name] = nir.Threshold(_over_space(threshold, shape))
    edges = [(name, "output") for name in names]
    if timesteps > 1 and (float(node.decay) > 0 or node.resets_after_decay):
        nodes["membrane"] = _integrator(nir, node, shape)
        edges += [("input", "membrane"), *(("membrane", name) for name in names)]
        if node.reset != "none" or node.resets_after_decay:
            kept = 1 if node.resets_after_decay else node.decay
            nodes["reset"] = nir.Scale(_over_space(-(kept * node.reset_amount), shape))
            nodes["delay"] = nir.Delay(_over_space(torch.full_like(node.decay, DT), shape))
            takes_one = node.reset == "event" and not node.resets_after_decay
            fed_back = names[:1] if takes_one else names
            edges += [(name, "reset") for name in fed_back]
            edges += [("reset", "delay"), ("delay", "membrane")]
    else:
        edges += [("input", name) for name in names]
    hints = {
        "dt": DT,
        "decay": node.decay.numpy(),
        "reset_amount": node.reset_amount.numpy(),
        "resets_after_decay": int(node.resets_after_decay),
    }
    return nir.NIRGraph(nodes, edges, metadata=hints)


def read_neuron(nir: ModuleType, graph: Any, *, path: str) -> RealNeuron:
    """Return the neuron of a sub-graph; ignore hints that contradict the nodes."""
    into: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for source, target in graph.edges:
        into[target].append(source)
    (output,) = _named(graph, nir.Output, path)
    names = into[output]
    if not names or any(not isinstance(graph.nodes[name], nir.Threshold) for name in names):
        raise FormatError(
            f"{path} is not one of lbq's neurons: its output must come from thresholds"
        )
    steps = np.stack([graph.nodes[name].threshold for name in names])
    thresholds = np.nextafter(steps, steps.dtype.type(np.inf))
    order = np.argsort(thresholds.reshape(len(thresholds), -1)[:, 0])
    thresholds = torch.from_numpy(_per_channel(thresholds[order], path))
    thresholds = (
        thresholds[:, :1].clone() if bool((thresholds == thresholds[:, :1]).all()) else thresholds
    )
    read = {name for threshold in names for name in into[threshold]}
    if read == set(_named(graph, nir.Input, path)):
        still = thresholds.new_zeros(1)
        return RealNeuron(thresholds, decay=still, reset_amount=still.clone(), reset="none")
    (membrane,) = read
    decay = _read_decay(nir, graph, membrane, path)
    feedback = [name for name in into[membrane] if isinstance(graph.nodes[name], nir.Delay)]
    if not feedback:
        return RealNeuron(thresholds, decay=decay, reset_amount=decay.new_zeros(1), reset="none")
    (scale,) = into[feedback[0]]
    taken = _read_reset_amount(graph, scale, decay, path)
    fed_back = set(into[scale])
    if fed_back not in ({names[order[0]]}, set(names)):
        raise FormatError(f"{path}: either the first threshold or all must be fed back")
    return RealNeuron(
        thresholds,
        decay=decay,
        reset_amount=taken[0],
        reset="event" if len(fed_back) == 1 else "level",
        resets_after_decay=taken[1],
    )


def _check(node: RealNeuron, path: str) -> None:
    why = None
    if node.is_signed:
        why = "it emits negative levels"
    elif node.per_threshold_state:
        why = "every level has its own membrane"
    elif node.mixture is not None:
        why = "it mixes timesteps"
    elif node.reset == "zero":
        why = "its reset sets the membrane to zero"
    elif not 0 <= float(node.decay) <= 1:
        why = f"its decay is {float(node.decay):g}, not in 0..1"
    if why is not None:
        raise LoweringError(f"{path} cannot be written as NIR exactly: {why}")


def _integrator(nir: ModuleType, node: RealNeuron, shape: Sequence[int]) -> Any:
    if float(node.decay) == 1:
        return nir.I(r=_over_space(torch.full_like(node.decay, 1 / DT), shape))
    tau, resistance = DT / (1 - node.decay), 1 / (1 - node.decay)
    return nir.LI(
        tau=_over_space(tau, shape),
        r=_over_space(resistance, shape),
        v_leak=_over_space(torch.zeros_like(tau), shape),
    )


def _read_decay(nir: ModuleType, graph: Any, name: str, path: str) -> Tensor:
    node = graph.nodes[name]
    if isinstance(node, nir.I):
        if not bool((node.r == 1 / DT).all()):
            raise FormatError(f"{path}: an integrator of lbq has r = {1 / DT:g}")
        return torch.ones(1, dtype=torch.from_numpy(node.r).dtype)
    if not isinstance(node, nir.LI) or np.any(node.v_leak) or np.ptp(node.tau):
        raise FormatError(f"{path}: its membrane must be I or LI with one tau, leaking to zero")
    tau = torch.from_numpy(node.tau.reshape(-1)[:1].copy())
    hint = torch.as_tensor(np.asarray(graph.metadata.get("decay", np.nan))).to(tau.dtype)
    decay = hint.reshape(1) if bool((DT / (1 - hint) == tau).all()) else 1 - DT / tau
    if not bool((torch.from_numpy(node.r) == 1 / (1 - decay)).all()):
        raise FormatError(f"{path}: its leaky membrane must have r = tau / dt")
    return decay


def _read_reset_amount(graph: Any, name: str, decay: Tensor, path: str) -> tuple[Tensor, bool]:
    """Return the amount that a reset subtracts, and whether it subtracts after the decay."""
    fed_back = torch.from_numpy(_per_channel(-graph.nodes[name].scale[None], path))[0]
    fed_back = fed_back[:1].clone() if bool((fed_back == fed_back[0]).all()) else fed_back
    if fed_back.numel() == 1 and bool(graph.metadata.get("resets_after_decay", False)):
        return fed_back, True
    hint = torch.as_tensor(np.asarray(graph.metadata.get("reset_amount", np.nan))).to(decay.dtype)
    if bool((decay * hint == fed_back).all()):
        return hint.reshape(-1), False
    return fed_back / decay, False


def _named(graph: Any, kind: type, path: str) -> list[str]:
    names = [name for name, node in graph.nodes.items() if isinstance(node, kind)]
    if len(names) != 1:
        raise FormatError(f"{path} has {len(names)} {kind.__name__} nodes; expected one")
    return names


def _over_space(values: Tensor, shape: Sequence[int]) -> Floats:
    """Repeat one value, or one per channel, at every position, because NIR does not broadcast."""
    shaped = values.reshape(-1, *[1] * (len(shape) - 1)).numpy()
    return np.ascontiguousarray(np.broadcast_to(shaped, tuple(shape)))


def _per_channel(values: Floats, path: str) -> Floats:
    """Read ``[N, C, *space]`` as ``[N, C]``."""
    flat = values.reshape(*values.shape[:2], -1)
    if np.ptp(flat, axis=2).any():
        raise FormatError(f"{path} differs between positions; lbq's neurons differ by channel only")
    return np.ascontiguousarray(flat[:, :, 0])
