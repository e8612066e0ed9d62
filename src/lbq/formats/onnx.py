"""``export_onnx``: a lowered network as an ONNX file that other engines run."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import nn

from lbq.deploy.graph import INPUT, PIXEL_MAX, Bound, LoweredNetwork, NodeRef, prove
from lbq.deploy.operators import (
    EXACT_FLOAT32,
    LevelNeuron,
    Merge,
    Pool,
    Readout,
    Repeat,
    Shortcut,
    Synapse,
)
from lbq.errors import LoweringError, ParameterError
from lbq.formats.metadata import network_metadata
from lbq.formats.onnx_graph import Graph, TimedValue, stack
from lbq.formats.onnx_int8 import Int8FusionGroups, fits_int8
from lbq.formats.onnx_integers import IntegerNodes
from lbq.formats.onnx_real import RealNodes, check_exact

Style = Literal["exact", "fast", "int8", "int8-lossy"]
STYLES: tuple[Style, ...] = get_args(Style)
ANSWER = "logits"
"""The name of the graph's first output."""

_log = logging.getLogger(__name__)


@torch.no_grad()
def export_onnx(
    network: LoweredNetwork,
    path: str | Path,
    *,
    style: Style = "exact",
    outputs_levels: bool = False,
) -> None:
    """Write a lowered network as an ONNX file; the size of the batch stays free.

    Args:
        network: what :func:`lbq.lower` or :func:`lbq.to_fixed_point` returned.
        path: the file; replaced if there is one.
        style: how an integer network is computed. "exact": in integers, whatever their size.
            "fast": in float32, where the overflow proof shows that float32 rounds nothing; same
            bits, or a refusal. "int8": for one timestep only; convolutions are int8 where an
            engine can keep the bits of what follows, a few levels at thresholds differ by one.
            "int8-lossy": sums with a shortcut are rounded to bytes, too, so thresholds move by up
            to a sixteenth of a step. A network of real numbers has one style, "exact".
            All but "exact" keep integers in float32, so OpenVINO needs INFERENCE_PRECISION_HINT=f32
            on CPUs with bfloat16; a line of the log says so.
        outputs_levels: whether every neuron's levels ``[T, B, ...]`` leave the graph as well,
            under the neuron's path.
    """
    if style not in STYLES:
        raise ParameterError(f"style must be one of {', '.join(STYLES)}, got {style!r}")
    if style != "exact" and not network.is_integer:
        raise ParameterError(
            f'a network of real numbers has one style, "exact", got {style!r}; lbq.to_fixed_point '
            f"makes integers of it"
        )
    path = Path(path)
    written = _Written(network, style, outputs_levels)
    metadata = network_metadata(network) | {"style": style, "levels": written.level_outputs}
    if written.fusion_groups is not None:
        metadata["num_inexact_channels"] = written.fusion_groups.num_inexact_channels
    written.graph.save(path, metadata)
    if network.is_integer and style != "exact":
        _log.warning(
            "%s holds integers in float32: OpenVINO computes these in bfloat16 on CPUs that can "
            "(AMX, AVX512-BF16) and changes answers; compile it with INFERENCE_PRECISION_HINT=f32, "
            "as lbq.formats.run_onnx does",
            path,
        )


class _Written:
    """The graph of a network, written node by node."""

    def __init__(self, network: LoweredNetwork, style: Style, outputs_levels: bool) -> None:
        self.graph = Graph()
        self.level_outputs: list[str] = []
        self._network = network
        self._is_exact = network.is_integer and style == "exact"
        self._bounds = prove(network) if network.is_integer else {}
        if self._is_exact:
            is_wide = any(max(-b.low, b.high) >= EXACT_FLOAT32 for b in self._bounds.values())
            self._nodes = IntegerNodes(self.graph, is_wide=is_wide)
        else:
            self._nodes = RealNodes(self.graph, is_integer=network.is_integer)
        self.fusion_groups = None
        if style in ("int8", "int8-lossy"):
            self.fusion_groups = Int8FusionGroups(
                self.graph, network, is_lossy=style == "int8-lossy"
            )
        self._signals = {INPUT: self._enter()}
        for place, node in network.nodes():
            _check_node(place, node)
            if isinstance(node, Readout) and place != network.plan[-1]:
                raise LoweringError(
                    f"{place.path} cannot be exported: more is computed with its mean over time; "
                    f"average last"
                )
            try:
                with self.graph.at(place.path):
                    self._signals[place.path] = self._write(place, node)
            except LoweringError as error:
                raise LoweringError(f"{place.path} cannot be exported: {error}") from error
        if outputs_levels:
            for neuron_path, _ in network.neurons():
                self._output_levels(neuron_path)

    def _enter(self) -> TimedValue:
        network = self._network
        shape: tuple[int | str, ...] = ("B", *network.input_shape)
        if network.takes_frames:
            shape = (network.timesteps, *shape)
        dtype = np.uint8 if network.is_integer else np.float32
        value = self.graph.input(INPUT, dtype, shape)
        if network.takes_frames:
            folded = self.graph.constant(np.array([-1, *network.input_shape]), np.int64)
            value = self.graph.op("Reshape", value, folded)  # [T * B, ...]
        return TimedValue(
            "moving" if network.takes_frames else "still",
            network.input_shape,
            network.timesteps,
            folded=self._nodes.enter(value),
            high=PIXEL_MAX,
            is_byte=True,
        )

    def _write(self, place: NodeRef, node: nn.Module) -> TimedValue:
        inputs = [self._signals[name] for name in place.inputs]
        first, bound = inputs[0], self._bounds.get(place.path)
        if bound is not None and not self._is_exact:
            check_exact(bound.low, bound.high)
        is_joined = self.fusion_groups is not None and place.path in self.fusion_groups.nodes
        if isinstance(node, Synapse):
            if self.fusion_groups is not None and fits_int8(node):
                folded = first.batch(self.graph)
                value = None if is_joined else self.fusion_groups.current(node, folded)
            else:
                value = self._nodes.synapse(node, first)
            return _like(first, value, _seen(node, first.shape), bound)
        if is_joined:
            return _like(first, None, first.shape, bound)
        if isinstance(node, Shortcut):
            return _like(first, self._nodes.shortcut(node, first), first.shape, bound)
        if isinstance(node, Merge):
            return self._merge(inputs, bound)
        if isinstance(node, Pool):
            return self._pool(node, first)
        if isinstance(node, Repeat):
            return replace(first, time="shown")
        if isinstance(node, LevelNeuron):
            return TimedValue(
                "moving",
                first.shape,
                first.timesteps,
                instants=self._levels(place, node, bound),
                high=node.max_level,
                is_byte=True,
            )
        if isinstance(node, Readout):
            return self._answer(node, first)
        raise LoweringError(f"a {type(node).__name__} is no node of a lowered network")

    def _levels(self, place: NodeRef, node: LevelNeuron, bound: Bound | None) -> list[str]:
        if self.fusion_groups is not None and place.path in self.fusion_groups:
            graph, signals = self.graph, self._signals
            return [self.fusion_groups.write(place.path, lambda name: signals[name].batch(graph))]
        reach = (0, 0) if bound is None else (bound.low, bound.high)
        return self._nodes.neuron(node, self._signals[place.inputs[0]], reach)

    def _merge(self, inputs: list[TimedValue], bound: Bound | None) -> TimedValue:
        is_alike = all(signal.time == inputs[0].time for signal in inputs)
        values = [
            signal.batch(self.graph) if is_alike else signal.all_instants(self.graph)
            for signal in inputs
        ]
        merged = _like(inputs[0], self.graph.chain("Add", values), inputs[0].shape, bound)
        return merged if is_alike else replace(merged, time="moving")

    def _pool(self, node: Pool, inputs: TimedValue) -> TimedValue:
        shape = (inputs.shape[0], *_slide(node, inputs.shape[1:], node.kernel))
        area = node.kernel[0] * node.kernel[1] if node.kind == "sum" else 1
        low, high = inputs.low * area, inputs.high * area
        if node.kind == "sum" and any(node.padding):  # a window at the border holds less
            low, high = min(low, 0), max(high, 0)
        if self._network.is_integer and not self._is_exact:
            check_exact(low, high)
        pooled = _like(inputs, self._nodes.pool(node, inputs), shape, None)
        pooled.low, pooled.high = low, high
        pooled.is_byte = inputs.is_byte and node.kind == "max"
        return pooled

    def _answer(self, node: Readout, currents: TimedValue) -> TimedValue:
        value = self._nodes.readout(node, currents)
        shape = ("B", *currents.shape)
        if node.over_time == "none":
            shape = (currents.timesteps, *shape)
        self.graph.output(
            value, ANSWER, np.int32 if self._network.is_integer else np.float32, shape
        )
        return currents

    def _output_levels(self, path: str) -> None:
        signal = self._signals[path]
        with self.graph.at(f"{path}/levels"):
            value = stack(self.graph, signal.by_instant(self.graph))
        dtype = np.uint8 if self._is_exact else np.float32
        self.graph.output(value, path, dtype, (signal.timesteps, "B", *signal.shape))
        self.level_outputs.append(path)


def _like(
    signal: TimedValue, value: str | None, shape: tuple[int, ...], bound: Bound | None
) -> TimedValue:
    """Return a value with the time of another."""
    low, high = (0, 0) if bound is None else (bound.low, bound.high)
    return TimedValue(signal.time, shape, signal.timesteps, folded=value, low=low, high=high)


def _seen(node: Synapse, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape behind a synapse."""
    if node.is_linear:
        return (len(node.weight),)
    reach = [d * (k - 1) + 1 for k, d in zip(node.weight.shape[2:], node.dilation, strict=True)]
    return (len(node.weight), *_slide(node, shape[1:], reach))


def _slide(node: Synapse | Pool, space: Sequence[int], reach: Sequence[int]) -> list[int]:
    """Return how many positions a window has along each axis."""
    axes = zip(space, node.padding, reach, node.stride, strict=True)
    return [(size + 2 * pad - wide) // step + 1 for size, pad, wide, step in axes]


def _check_node(place: NodeRef, node: nn.Module) -> None:
    why = None
    if any(b.dtype == torch.float64 for b in node.buffers()):
        why = "it computes in float64, which engines do not; lower the network in float32"
    elif (
        isinstance(node, LevelNeuron)
        and node.resets_after_decay
        and bool((node.thresholds[0] <= 0).any())
    ):
        why = "it emits from rest, so its first reset has no timestep before it"
    if why is not None:
        raise LoweringError(f"{place.path} cannot be exported: {why}")
