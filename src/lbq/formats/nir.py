"""Export to and import from NIR, the exchange format of neuromorphic tools: exact, or an error.

Time is not part of a NIR graph. Its runner presents an image at every timestep (frames one by one)
and reads an output at every timestep; it takes the mean over time. The graph's metadata says so.
Several edges into a node are summed.
"""

import graphlib
import io
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch
from torch import Tensor

from lbq.atomic_files import atomic_write
from lbq.errors import FormatError, LBQError, LoweringError, MissingExtraError, install_command
from lbq.formats.metadata import empty_graph, read_metadata, write_metadata
from lbq.formats.nir_neuron import neuron_graph, read_neuron
from lbq.graph.graph import INPUT, LoweredNetwork, Node
from lbq.graph.operators import (
    GraphError,
    Merge,
    Offset,
    Operator,
    Pool,
    Readout,
    RealNeuron,
    Rearrange,
    Repeat,
    Shortcut,
    Synapse,
    Value,
)


def export_nir(network: LoweredNetwork, path: Path) -> None:
    """Write a lowered network of floats as a NIR graph (HDF5), or name what NIR cannot express."""
    nir = _library()
    file = io.BytesIO()
    nir.write(file, _Graph(nir, network).finish())
    check_file(file, source=str(path))
    atomic_write(Path(path), file.getvalue())


def import_nir(path: Path) -> LoweredNetwork:
    """Read what :func:`export_nir` wrote: a network with the same levels and logits."""
    nir = _library()
    try:
        check_file(Path(path), source=str(path))
        return _Reading(nir, nir.read(path), str(path)).finish()
    except LBQError:
        raise
    except Exception as error:  # h5py and nir raise many types
        raise FormatError(f"{path} is not a readable NIR graph: {error}") from error


def _library() -> ModuleType:
    try:
        import nir  # noqa: PLC0415 -- an extra  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise MissingExtraError(f"NIR needs its library: {install_command('nir')}") from error
    return nir


class _Graph:
    """A NIR graph as it grows, node by node of a lowered network."""

    def __init__(self, nir: ModuleType, network: LoweredNetwork) -> None:
        if network.is_integer:
            raise LoweringError(
                "NIR nodes compute in real numbers: export the float network (lbq lower --bits "
                "float) instead of the integer one"
            )
        self._nir, self._network, self._values = nir, network, network.values()
        self._nodes: dict[str, Any] = {INPUT: nir.Input({"input": np.array(network.input_shape)})}
        self._edges: list[tuple[str, str]] = []
        self._sources: dict[str, list[str]] = {INPUT: [INPUT]}
        """Which NIR nodes make the value of a path; several are summed."""
        self._over_time: set[str] = set()
        for ref in network.nodes:
            write = _WRITERS.get(type(ref.operator), _Graph.unknown)
            self._sources[ref.path] = write(self, ref, ref.operator)

    def finish(self) -> Any:
        """Return the whole graph, its types checked by NIR."""
        (over_time,) = self._over_time
        said = {"lbq": write_metadata(self._network), "over_time": over_time}
        return self._nir.NIRGraph(self._nodes, self._edges, metadata=said)

    def synapse(self, ref: Node, node: Synapse) -> list[str]:
        """Add a convolution along one axis or two, or a linear layer."""
        if node.is_linear:
            return self._linear(ref, node)
        if node.groups != 1:
            _refuse(ref, "NIR misreads the shapes of grouped convolutions")
        if len(set(node.weight.shape[2:])) > 1:
            _refuse(ref, "NIR misreads the shapes of kernels that are not square")
        nir, (_, *space), weight = self._nir, self._values[ref.inputs[0]].shape, node.weight
        bias = weight.new_zeros(len(weight)) if node.bias is None else _flat_bias(ref, node.bias)
        window, numbers = (node.stride, node.padding, node.dilation), bias.numpy()
        if len(space) == 2:
            made = nir.Conv2d(tuple(space), weight.numpy(), *window, groups=1, bias=numbers)
        else:
            sizes = (size for (size,) in window)
            made = nir.Conv1d(*space, weight.numpy(), *sizes, groups=1, bias=numbers)
        return self._put_behind(ref, made)

    def _linear(self, ref: Node, node: Synapse) -> list[str]:
        sources, weight = self._flattened(ref, f"{ref.path}_flatten"), node.weight.numpy()
        if node.bias is None:
            return self._put(ref.path, self._nir.Linear(weight), sources)
        bias = _flat_bias(ref, node.bias).numpy()
        return self._put(ref.path, self._nir.Affine(weight, bias), sources)

    def shortcut(self, ref: Node, node: Shortcut) -> list[str]:
        """Add a factor per channel; with a bias, a synapse whose weights are diagonal."""
        channels, *space = self._values[ref.path].shape
        weight, ones = node.weight.expand(channels), [1] * len(space)
        if node.bias is None:
            factors = weight.reshape(-1, *ones).expand(channels, *space).contiguous()
            return self._put_behind(ref, self._nir.Scale(factors.numpy()))
        kernel, bias = weight.diag().reshape(channels, channels, *ones), node.bias.expand(channels)
        return self.synapse(ref, Synapse(kernel, bias.contiguous(), max_input=None))

    def offset(self, ref: Node, node: Offset) -> list[str]:
        """Add a shortcut with a bias and the factor 1."""
        bias = _flat_bias(ref, node.bias)
        return self.shortcut(ref, Shortcut(bias.new_ones(1), bias, max_input=None))

    def pool(self, ref: Node, node: Pool) -> list[str]:
        """Add a sum over windows."""
        if node.kind == "max":
            _refuse(ref, f"it has no max pools; {_INSTEAD}")
        if len(node.kernel) != 2:
            _refuse(ref, f"it has no pools along one axis; {_INSTEAD}")
        window = map(np.array, (node.kernel, node.stride, node.padding))
        return self._put_behind(ref, self._nir.SumPool2d(*window))

    def merge(self, ref: Node, node: Merge) -> list[str]:
        """List the terms from left to right; a sum inside a sum needs a node of its own."""
        first, *terms = (self._sources[name] for name in ref.inputs)
        listed = list(first)
        for number, term in enumerate(terms):
            if len(term) > 1 or term[0] in listed:
                real = self._network.example().numpy().dtype
                ones = np.ones(self._values[ref.path].shape, dtype=real)
                listed += self._put(f"{ref.path}_term_{number}", self._nir.Scale(ones), term)
            else:
                listed += term
        return listed

    def rearrange(self, ref: Node, node: Rearrange) -> list[str]:
        """Add a flattening; NIR cannot express other orders of the values."""
        is_flatten = len(node.shape) == 1 and node.order == tuple(range(len(node.order)))
        return self._flattened(ref, ref.path) if is_flatten else self.unknown(ref, node)

    def repeat(self, ref: Node, node: Repeat) -> list[str]:
        """Add nothing, because NIR presents a static input at every timestep."""
        return self._sources[ref.inputs[0]]

    def neuron(self, ref: Node, node: RealNeuron) -> list[str]:
        """Add a sub-graph with the dynamics of the neuron."""
        shape, timesteps = self._values[ref.path].shape, self._network.timesteps
        made = neuron_graph(self._nir, node, shape=shape, timesteps=timesteps, path=ref.path)
        return self._put_behind(ref, made)

    def readout(self, ref: Node, node: Readout) -> list[str]:
        """Add an output; all outputs must treat time alike."""
        self._over_time.add(node.over_time)
        if ref.path not in self._network.outputs:
            _refuse(ref, "more is computed with its mean over time; average last")
        if not self._values[ref.inputs[0]].has_time:
            _refuse(ref, "it reads an input without time; repeat that over time")
        if len(self._over_time) > 1:
            _refuse(ref, "other outputs are averaged otherwise")
        shape = np.array(self._values[ref.path].shape)
        return self._put_behind(ref, self._nir.Output({"output": shape}))

    def unknown(self, ref: Node, node: Operator) -> list[str]:
        """Raise for an operator without a NIR node."""
        _refuse(ref, f"it has no operator for {node.op}; {_INSTEAD}")

    def _put_behind(self, ref: Node, made: Any) -> list[str]:
        return self._put(ref.path, made, self._sources[ref.inputs[0]])

    def _put(self, name: str, made: Any, sources: list[str]) -> list[str]:
        self._nodes[name] = made
        self._edges += [(source, name) for source in sources]
        return [name]

    def _flattened(self, ref: Node, name: str) -> list[str]:
        """Add a flattening of what a node reads, unless it has only one axis."""
        shape, sources = self._values[ref.inputs[0]].shape, self._sources[ref.inputs[0]]
        if len(shape) == 1:
            return sources
        flat = self._nir.Flatten({"input": np.array(shape)}, start_dim=0, end_dim=-1)
        return self._put(name, flat, sources)


_WRITERS: dict[type[Operator], Callable[..., list[str]]] = {
    Synapse: _Graph.synapse,
    Shortcut: _Graph.shortcut,
    Offset: _Graph.offset,
    Pool: _Graph.pool,
    Merge: _Graph.merge,
    Rearrange: _Graph.rearrange,
    Repeat: _Graph.repeat,
    RealNeuron: _Graph.neuron,
    Readout: _Graph.readout,
}
_INSTEAD = "export an .onnx, .pt2 or .lbq file"


def _refuse(ref: Node, why: str) -> NoReturn:
    raise LoweringError(f"{ref.path} cannot be written as NIR: {why}")


def _flat_bias(ref: Node, bias: Tensor) -> Tensor:
    if bias.dim() > 1 and math.prod(bias.shape[1:]) > 1:
        _refuse(ref, "its bias differs from place to place")
    return bias.flatten()


class _Reading:
    """A lowered network as it grows, node by node of a NIR graph."""

    def __init__(self, nir: ModuleType, graph: Any, source: str) -> None:
        self._nir, self._graph, self._source = nir, graph, source
        said = graph.metadata
        if "lbq" not in said or said.get("over_time") not in ("mean", "none"):
            raise FormatError(
                f"{source} does not say for how many timesteps it runs; lbq reads the NIR graphs "
                f"that it wrote"
            )
        metadata = read_metadata(said["lbq"], source=source)
        self._builder, self._outputs = empty_graph(metadata), metadata["outputs"]
        self._into: dict[str, list[str]] = {name: [] for name in graph.nodes}
        for before, behind in graph.edges:
            self._into[behind].append(before)
        self._paths: dict[str, str] = {}
        self._values = dict(self._builder.finish().values())
        self._readers: dict[type, Callable[[str, Any, Value], Operator]] = {
            nir.Conv1d: self._convolution,
            nir.Conv2d: self._convolution,
            nir.Linear: self._linear,
            nir.Affine: self._affine,
            nir.Scale: self._scale,
            nir.SumPool2d: self._pool,
            nir.Flatten: self._flatten,
            nir.NIRGraph: self._neuron,
            nir.Output: self._output,
        }

    def finish(self) -> LoweredNetwork:
        """Return the network."""
        nodes, source = self._graph.nodes, self._source
        try:
            order = list(graphlib.TopologicalSorter(self._into).static_order())
        except graphlib.CycleError as error:
            raise FormatError(f"{source} has a loop outside of neurons: {error.args[1]}") from error
        outputs = [name for name in order if isinstance(nodes[name], self._nir.Output)]
        for name in order:
            if name not in outputs:
                self._read(name, nodes[name])
        if sorted(outputs) != sorted(self._outputs):
            raise FormatError(f"{source} has the outputs {outputs[:9]} and names others")
        for name in self._outputs:
            self._read(name, nodes[name])
        return self._builder.finish()

    def _read(self, name: str, node: Any) -> None:
        if isinstance(node, self._nir.Input):
            self._paths[name] = INPUT
            return
        before = self._joined(name)
        if isinstance(node, self._nir.Flatten) and self._is_read_by_synapses(name):
            self._paths[name] = before  # linear layers flatten their input
            return
        if type(node) not in self._readers:
            raise FormatError(
                f"{name} in {self._source} is of kind {type(node).__name__}; lbq reads the NIR "
                f"graphs that it wrote"
            )
        made = self._readers[type(node)](name, node, self._values[before])
        if isinstance(made, Readout | RealNeuron):
            before = self._timed(name, before)
        self._paths[name] = self._add(name, made, before)

    def _convolution(self, name: str, node: Any, value: Value) -> Synapse:
        made = self._affine(name, node, value)
        as_sizes = _pair if isinstance(node, self._nir.Conv2d) else _single
        stride, padding, dilation = map(as_sizes, (node.stride, node.padding, node.dilation))
        window = {"stride": stride, "padding": padding, "dilation": dilation}
        return replace(made, **window, groups=int(node.groups))

    def _affine(self, name: str, node: Any, value: Value) -> Synapse:
        return replace(self._linear(name, node, value), bias=_bias(node.bias))

    def _linear(self, name: str, node: Any, value: Value) -> Synapse:
        weight = torch.from_numpy(node.weight)
        return Synapse(weight, max_input=value.max_level, has_time=value.has_time)

    def _scale(self, name: str, node: Any, value: Value) -> Shortcut:
        weight = _by_channel(node.scale, f"{name} in {self._source}")
        return Shortcut(weight, max_input=value.max_level, has_time=value.has_time)

    def _pool(self, name: str, node: Any, value: Value) -> Pool:
        kernel, stride, padding = map(_pair, (node.kernel_size, node.stride, node.padding))
        return Pool("sum", kernel=kernel, stride=stride, padding=padding, has_time=value.has_time)

    def _flatten(self, name: str, node: Any, value: Value) -> Rearrange:
        order, shape = tuple(range(len(value.shape))), (value.size,)
        return Rearrange(sizes=value.shape, order=order, shape=shape, has_time=value.has_time)

    def _neuron(self, name: str, node: Any, value: Value) -> RealNeuron:
        return read_neuron(self._nir, node, path=name)

    def _output(self, name: str, node: Any, value: Value) -> Readout:
        return Readout(self._graph.metadata["over_time"])

    def _is_read_by_synapses(self, name: str) -> bool:
        kinds, nodes = self._nir.Linear | self._nir.Affine, self._graph.nodes
        readers = ((nodes[n], before) for n, before in self._into.items() if name in before)
        return all(isinstance(node, kinds) and before == [name] for node, before in readers)

    def _timed(self, name: str, path: str) -> str:
        """Return the path of a value with time; repeat it if it has none."""
        if self._values[path].has_time:
            return path
        return self._add(f"{name}_repeat", Repeat(self._builder.timesteps), path)

    def _joined(self, name: str) -> str:
        """Return the path of what enters a node: one value, or a sum of currents."""
        paths = [self._paths[before] for before in self._into[name]]
        if not paths:
            raise FormatError(f"nothing enters {name} in {self._source}")
        if len(paths) == 1:
            return paths[0]
        if any(self._values[path].has_time for path in paths):
            paths = [self._timed(path, path) for path in paths]
        return self._add(f"{name}_merge", Merge(), *paths)

    def _add(self, name: str, node: Operator, *inputs: str) -> str:
        values = [self._values[path] for path in inputs]
        try:
            made = node.infer(values, timesteps=self._builder.timesteps)
        except GraphError as error:
            raise FormatError(f"{name} in {self._source} cannot be read: {error}") from error
        path = self._builder.add(name, node, *inputs)
        self._values[path] = made
        return path


def _single(value: Any) -> tuple[int]:
    return (int(value),)


def _pair(values: Any) -> tuple[int, int]:
    first, second = (int(value) for value in np.broadcast_to(values, 2))
    return first, second


def _bias(values: Any) -> Tensor | None:
    return torch.from_numpy(values) if np.any(values) else None


def _by_channel(values: Any, what: str) -> Tensor:
    flat = values.reshape(len(values), -1)
    if np.ptp(flat, axis=1).any():
        raise FormatError(f"{what} differs from place to place; lbq's shortcuts do so by channel")
    channels = torch.from_numpy(np.ascontiguousarray(flat[:, 0]))
    return channels[:1].clone() if bool((channels == channels[0]).all()) else channels


MAX_BYTES = 2**31
"""Bytes that a file may unpack to."""
_MAX_OBJECTS = 2**18
"""Groups and datasets of a file: an exported neuron has a few per threshold."""
_MAX_STRINGS = 2**16
"""Strings of a dataset: the names of an edge's two ends, mostly."""
_FILTERS = (1, 2, 3)
"""Numbers that HDF5 gave to deflate, shuffle and fletcher32."""


def check_file(file: Path | BinaryIO, *, source: str) -> None:
    """Raise ``FormatError`` about ``source`` unless nir can read the whole file safely."""
    import h5py as module  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] -- nir's

    h5py: Any = module  # its annotations lack what is used here
    with h5py.File(file, "r") as root:
        total, seen, waiting = 0, {h5py.h5o.get_info(root.id).addr}, [root]
        while waiting:
            group = waiting.pop()
            for name in group:
                where = f"{source} at {group.name}/{name}"[:240]
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise FormatError(
                        f"{where} holds a link to elsewhere, which nir does not write"
                    )
                found = group[name]
                address = h5py.h5o.get_info(found.id).addr
                if address in seen or len(seen) > _MAX_OBJECTS:
                    raise FormatError(f"{where} holds an object twice, or more than are read")
                seen.add(address)
                if isinstance(found, h5py.Group):
                    waiting.append(found)
                elif isinstance(found, h5py.Dataset):
                    total += _num_bytes(h5py, found, where, left=MAX_BYTES - total)
                if total > MAX_BYTES:
                    raise FormatError(f"{where} unpacks beyond {MAX_BYTES:,} bytes in all")


def _num_bytes(h5py: Any, found: Any, where: str, *, left: int) -> int:
    """Return how much memory reading a dataset takes; more than is left need not be exact."""
    created = found.id.get_create_plist()
    filters = [created.get_filter(k)[0] for k in range(created.get_nfilters())]
    strings = h5py.check_string_dtype(found.dtype)
    why = None
    if found.external or found.is_virtual:
        why = "takes its numbers from another file"
    elif not set(filters) <= set(_FILTERS):
        why = f"is packed by the filters {filters}"
    elif found.dtype.kind not in "iufbS" and strings is None:
        why = f"holds {found.dtype}"
    elif strings is not None and found.size > _MAX_STRINGS:
        why = f"holds {found.size:,} strings"
    if why is not None:
        raise FormatError(f"{where} {why}, which nir does not write")
    chunk = math.prod(found.chunks or (0,)) * found.dtype.itemsize
    num_bytes = max(found.nbytes, chunk)
    if strings is None or strings.length is not None or num_bytes > left:
        return num_bytes
    for index in np.ndindex(found.shape):  # many strings may be one and the same in the file
        num_bytes += len(found[index])
        if num_bytes > left:
            break
    return num_bytes
