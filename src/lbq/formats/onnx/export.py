"""``export_onnx``: write a lowered network as an ONNX file."""

import logging
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from lbq.errors import LoweringError, ParameterError
from lbq.formats.metadata import network_metadata
from lbq.formats.onnx.graph import Graph, TimedValue, stack
from lbq.formats.onnx.int8 import Int8FusionGroups, fits_int8
from lbq.formats.onnx.integers import IntegerNodes
from lbq.formats.onnx.real import RealNodes, check_exact
from lbq.formats.onnx.run import answer_name, is_answer
from lbq.graph.graph import INPUT, Bound, LoweredNetwork, Node, output_ranges, prove
from lbq.graph.operators import (
    EXACT_FLOAT32,
    PIXEL_MAX,
    LevelNeuron,
    Operator,
    Readout,
    Repeat,
    Synapse,
)

Style = Literal["exact", "fast", "int8", "int8-lossy"]
STYLES: tuple[Style, ...] = get_args(Style)
_BYTE_MAX = 255

_log = logging.getLogger(__name__)


@torch.no_grad()
def export_onnx(
    network: LoweredNetwork,
    path: str | Path,
    *,
    style: Style = "exact",
    outputs_levels: bool = False,
) -> None:
    """Write a lowered network as an ONNX file for any batch size.

    The outputs are named ``logits``, ``logits_2`` and so on. The metadata list the paths of their
    readouts under ``outputs``.

    Args:
        network: the result of :func:`lbq.lower` or :func:`lbq.to_fixed_point`.
        path: path of the file; an existing file is replaced.
        style: how to compute an integer network. "exact" uses integer operators. "fast" uses
            float32 with the same results; it raises if the overflow proof cannot exclude rounding.
            "int8" is for one timestep only and uses int8 convolutions where possible; a few levels
            at thresholds differ by one. "int8-lossy" also rounds sums with a shortcut to bytes,
            which moves thresholds by up to a sixteenth of a step. A network of real numbers has
            one style, "exact". All styles but "exact" hold integers in float32, so OpenVINO needs
            INFERENCE_PRECISION_HINT=f32 on CPUs with bfloat16; a log message says so.
        outputs_levels: whether the graph also outputs every neuron's levels ``[T, B, ...]``, named
            by the neuron's path.
    """
    if style not in STYLES:
        raise ParameterError(f"style must be one of {', '.join(STYLES)}, got {style!r}")
    if style != "exact" and not network.is_integer:
        raise ParameterError(
            f'a network of real numbers has one style, "exact", got {style!r}; convert it to '
            f"integers with lbq.to_fixed_point"
        )
    path = Path(path)
    written = _Written(network, style, outputs_levels)
    metadata = network_metadata(network) | {"style": style, "levels": written.level_outputs}
    if written.fusion_groups is not None:
        metadata["num_inexact_channels"] = written.fusion_groups.num_inexact_channels
    written.graph.save(path, metadata)
    if network.is_integer and style != "exact":
        _log.warning(
            "%s holds integers in float32; on CPUs with bfloat16 (AMX, AVX512-BF16) OpenVINO "
            "rounds them and answers change; compile it with INFERENCE_PRECISION_HINT=f32, "
            "as lbq.formats.run_onnx does",
            path,
        )


class _Written:
    """The graph of a network, written node by node."""

    def __init__(self, network: LoweredNetwork, style: Style, outputs_levels: bool) -> None:
        self.graph = Graph()
        self.level_outputs: list[str] = []
        self._network, self._values = network, network.values()
        self._is_exact = network.is_integer and style == "exact"
        self._bounds = prove(network) if network.is_integer else {}
        self._ranges = output_ranges(network) if network.is_integer else {}
        if self._is_exact:
            is_wide = any(self._largest(ref.path) >= EXACT_FLOAT32 for ref in network.nodes)
            self._nodes = IntegerNodes(self.graph, is_wide=is_wide)
        else:
            is_int8 = style in ("int8", "int8-lossy")
            self._nodes = RealNodes(self.graph, is_integer=network.is_integer, is_int8=is_int8)
        self.fusion_groups = None
        if style in ("int8", "int8-lossy"):
            self.fusion_groups = Int8FusionGroups(
                self.graph, network, is_lossy=style == "int8-lossy"
            )
        self._signals = {INPUT: self._enter()}
        for ref in network.nodes:
            _check_node(ref)
            try:
                with self.graph.at(ref.path):
                    self._signals[ref.path] = self._write(ref)
            except LoweringError as error:
                raise LoweringError(f"{ref.path} cannot be exported: {error}") from error
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

    def _write(self, ref: Node) -> TimedValue:
        graph, groups, node = self.graph, self.fusion_groups, ref.operator
        inputs = [self._signals[name] for name in ref.inputs]
        is_joined = groups is not None and ref.path in groups.nodes
        if not is_joined and any(value.time != inputs[0].time for value in inputs):
            inputs = [value.with_all_instants(graph) for value in inputs]
        made = self._unwritten(ref.path, node, inputs[0])
        if is_joined:
            return made
        if groups is not None and ref.path in groups:
            signals = self._signals
            made.instants = [groups.write(ref.path, lambda name: signals[name].batch(graph))]
        elif isinstance(node, LevelNeuron):
            bound = self._bounds.get(ref.path, Bound(path=ref.path, low=0, high=0))
            made.instants = self._nodes.neuron(node, inputs[0], (bound.low, bound.high))
        elif groups is not None and isinstance(node, Synapse) and fits_int8(node):
            made.folded = groups.current(node, inputs[0].batch(graph))
        else:
            made.folded = getattr(self._nodes, node.op)(node, inputs, made)
            if isinstance(node, Readout):
                self._output(ref.path, made)
        return made

    def _unwritten(self, path: str, node: Operator, first: TimedValue) -> TimedValue:
        """Return a node's value before its name is known; raise if float32 would round."""
        value, (low, high) = self._values[path], self._ranges.get(path, (0, 0))
        if not self._is_exact:
            largest = max(self._largest(path), value.max_level or 0)
            check_exact(-largest, largest)
        time = first.time
        if isinstance(node, LevelNeuron | Repeat):
            time = "shown" if isinstance(node, Repeat) else "moving"
        is_byte = value.max_level is not None and value.max_level <= _BYTE_MAX
        return TimedValue(time, value.shape, first.timesteps, low=low, high=high, is_byte=is_byte)

    def _largest(self, path: str) -> int:
        """Return the largest absolute value that a node computes or outputs."""
        bound, (low, high) = self._bounds.get(path), self._ranges.get(path, (0, 0))
        return max(-low, high) if bound is None else max(-low, high, -bound.low, bound.high)

    def _output(self, path: str, made: TimedValue) -> None:
        outputs, value = self._network.outputs, self._values[path]
        if path not in outputs:
            raise LoweringError("another node reads its mean over time; average last")
        assert made.folded is not None
        shape = (*((made.timesteps,) if value.has_time else ()), "B", *value.shape)
        dtype = np.int32 if self._network.is_integer else np.float32
        self.graph.output(made.folded, answer_name(outputs.index(path)), dtype, shape)

    def _output_levels(self, path: str) -> None:
        if is_answer(path):
            raise ParameterError(
                f"the neuron {path} has the name of an output; rename it, or export without "
                f"outputs_levels"
            )
        signal = self._signals[path]
        with self.graph.at(f"{path}/levels"):
            value = stack(self.graph, signal.by_instant(self.graph))
        dtype = np.uint8 if self._is_exact else np.float32
        self.graph.output(value, path, dtype, (signal.timesteps, "B", *signal.shape))
        self.level_outputs.append(path)


def _check_node(ref: Node) -> None:
    why, node = None, ref.operator
    tensors = (getattr(node, role) for role in node.tensors())
    if any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors):
        why = "it computes in float64, but engines use float32; lower the network in float32"
    elif (
        isinstance(node, LevelNeuron)
        and node.resets_after_decay
        and bool((node.thresholds[0] <= 0).any())
    ):
        why = "it emits from rest, and its first reset would need an earlier timestep"
    if why is not None:
        raise LoweringError(f"{ref.path} cannot be exported: {why}")
