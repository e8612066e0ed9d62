"""Export to and import from NIR, the exchange format of neuromorphic tools: exact, or an error.

Time is not part of a NIR graph. Its runner presents an image at every timestep (frames one by one)
and reads an output at every timestep; it takes the mean over time. The graph's metadata says so.
Several edges into a node are summed.
"""

import graphlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from lbq.atomic_files import atomic_write
from lbq.errors import FormatError, LBQError, LoweringError, MissingExtraError, install_command
from lbq.formats.metadata import empty_graph, read_metadata, write_metadata
from lbq.formats.nir_neuron import neuron_graph, read_neuron
from lbq.graph.graph import INPUT, LoweredNetwork
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
        for path, node, inputs in network.nodes:
            values = [self._values[name] for name in inputs]
            why = self._why_not(path, node, values[0])
            if why is not None:
                raise LoweringError(f"{path} cannot be written as NIR: {why}")
            sources = [self._sources[name] for name in inputs]
            self._sources[path] = self._add(path, node, values[0].shape, sources)

    def finish(self) -> Any:
        """Return the whole graph, its types checked by NIR."""
        (over_time,) = self._over_time
        said = {"lbq": write_metadata(self._network), "over_time": over_time}
        return self._nir.NIRGraph(self._nodes, self._edges, metadata=said)

    def _why_not(self, path: str, node: Operator, value: Value) -> str | None:
        """Return why NIR cannot express a node that reads this value; None if it can."""
        if isinstance(node, Readout):
            self._over_time.add(node.over_time)
            if path not in self._network.outputs:
                return "more is computed with its mean over time; average last"
            if not value.has_time:
                return "it reads an input without time; repeat that over time"
            return None if len(self._over_time) == 1 else "other outputs are averaged otherwise"
        if isinstance(node, Synapse) and not node.is_linear:
            if node.groups != 1:
                return "NIR misreads the shapes of grouped convolutions"
            if len(set(node.weight.shape[2:])) > 1:
                return "NIR misreads the shapes of kernels that are not square"
        if isinstance(node, Synapse | Offset) and node.bias is not None:
            is_map = node.bias.dim() > 1 and math.prod(node.bias.shape[1:]) > 1
            return "its bias differs from place to place" if is_map else None
        instead = "export an .onnx, .pt2 or .lbq file"
        if isinstance(node, Pool):
            if node.kind == "max":
                return f"it has no max pools; {instead}"
            return None if len(node.kernel) == 2 else f"it has no pools along one axis; {instead}"
        is_flatten = isinstance(node, Rearrange) and (
            len(node.shape) == 1 and node.order == tuple(range(len(node.order)))
        )
        if is_flatten or isinstance(node, Synapse | Shortcut | Merge | Repeat | RealNeuron):
            return None
        return f"it has no operator for {node.op}; {instead}"

    def _add(
        self, path: str, node: Operator, entering: tuple[int, ...], sources: list[list[str]]
    ) -> list[str]:
        nir, shape = self._nir, self._values[path].shape
        if isinstance(node, Merge):
            return self._sum(path, sources)
        if isinstance(node, Repeat):
            return sources[0]
        if isinstance(node, Synapse):
            return self._synapse(path, node, entering, sources[0])
        if isinstance(node, Rearrange):
            return self._flattened(path, entering, sources[0])
        if isinstance(node, Offset):
            node = Shortcut(node.bias.new_ones(1), node.bias.flatten(), max_input=None)
        if isinstance(node, Shortcut):
            return self._put(path, _shortcut(nir, node, shape), sources[0])
        if isinstance(node, Pool):
            window = {"kernel_size": node.kernel, "stride": node.stride, "padding": node.padding}
            pool = nir.SumPool2d(**{name: np.array(size) for name, size in window.items()})
            return self._put(path, pool, sources[0])
        if isinstance(node, RealNeuron):
            timesteps = self._network.timesteps
            made = neuron_graph(nir, node, shape=shape, timesteps=timesteps, path=path)
            return self._put(path, made, sources[0])
        assert isinstance(node, Readout)
        return self._put(path, nir.Output({"output": np.array(shape)}), sources[0])

    def _put(self, name: str, node: Any, sources: list[str]) -> list[str]:
        self._nodes[name] = node
        self._edges += [(source, name) for source in sources]
        return [name]

    def _sum(self, path: str, terms: list[list[str]]) -> list[str]:
        """List what is added, from left to right; a sum inside a sum needs a node of its own."""
        listed = list(terms[0])
        for number, term in enumerate(terms[1:]):
            if len(term) > 1 or term[0] in listed:
                ones = np.ones(
                    self._values[path].shape, dtype=self._network.example().numpy().dtype
                )
                listed += self._put(f"{path}_term_{number}", self._nir.Scale(ones), term)
            else:
                listed += term
        return listed

    def _synapse(
        self, path: str, node: Synapse, entering: tuple[int, ...], sources: list[str]
    ) -> list[str]:
        nir, weight = self._nir, node.weight.numpy()
        bias = None if node.bias is None else node.bias.numpy().reshape(-1)
        if node.is_linear:
            sources = self._flattened(f"{path}_flatten", entering, sources)
            made = nir.Linear(weight) if bias is None else nir.Affine(weight, bias)
        else:
            made = _convolution(
                nir, entering[1:], weight, bias, node.stride, node.padding, node.dilation
            )
        return self._put(path, made, sources)

    def _flattened(self, path: str, shape: tuple[int, ...], sources: list[str]) -> list[str]:
        if len(shape) == 1:
            return sources
        flat = self._nir.Flatten({"input": np.array(shape)}, start_dim=0, end_dim=-1)
        return self._put(path, flat, sources)


def _convolution(
    nir: ModuleType,
    space: Sequence[int],
    weight: np.ndarray,
    bias: np.ndarray | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    """Return a convolution along one axis or two."""
    bias = np.zeros(len(weight), weight.dtype) if bias is None else bias
    if len(space) == 2:
        return nir.Conv2d(
            tuple(space),
            weight,
            tuple(stride),
            tuple(padding),
            tuple(dilation),
            groups=1,
            bias=bias,
        )
    return nir.Conv1d(space[0], weight, stride[0], padding[0], dilation[0], groups=1, bias=bias)


def _shortcut(nir: ModuleType, node: Shortcut, shape: Sequence[int]) -> Any:
    """A factor per channel; with a bias, a synapse whose weights are diagonal."""
    channels, axes = shape[0], len(shape) - 1
    weight = node.weight.expand(channels).numpy()
    if node.bias is None:
        shaped = weight.reshape(-1, *[1] * axes)
        return nir.Scale(np.ascontiguousarray(np.broadcast_to(shaped, tuple(shape))))
    bias = node.bias.expand(channels).numpy().copy()
    if not axes:
        return nir.Affine(np.diag(weight), bias)
    kernel = np.diag(weight).reshape(channels, channels, *[1] * axes)
    ones = (1,) * axes
    return _convolution(nir, shape[1:], kernel, bias, ones, (0,) * axes, ones)


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
        self._builder = empty_graph(metadata)
        self._into: dict[str, list[str]] = {name: [] for name in graph.nodes}
        for before, behind in graph.edges:
            self._into[behind].append(before)
        self._paths: dict[str, str] = {}
        self._values = dict(self._builder.finish().values())
        try:
            order = list(graphlib.TopologicalSorter(self._into).static_order())
        except graphlib.CycleError as error:
            raise FormatError(f"{source} has a loop outside of neurons: {error.args[1]}") from error
        outputs = [name for name in order if isinstance(graph.nodes[name], nir.Output)]
        for name in order:
            if name not in outputs:
                self._read(name, graph.nodes[name])
        if sorted(outputs) != sorted(metadata["outputs"]):
            raise FormatError(f"{source} has the outputs {outputs[:9]} and names others")
        for name in metadata["outputs"]:
            self._read(name, graph.nodes[name])

    def finish(self) -> LoweredNetwork:
        """Return the network."""
        return self._builder.finish()

    def _read(self, name: str, node: Any) -> None:
        nir = self._nir
        if isinstance(node, nir.Input):
            self._paths[name] = INPUT
            return
        before = self._joined(name)
        value = self._values[before]
        reads: dict[str, Any] = {"max_input": value.max_level, "has_time": value.has_time}
        if isinstance(node, nir.NIRGraph | nir.Output) and not value.has_time:
            before = self._add(f"{name}_repeat", Repeat(self._builder.timesteps), before)
        if isinstance(node, nir.Flatten):
            if self._is_read_by_synapses(name):  # these flatten their input
                self._paths[name] = before
                return
            made = Rearrange(
                sizes=value.shape,
                order=tuple(range(len(value.shape))),
                shape=(value.size,),
                has_time=value.has_time,
            )
        elif isinstance(node, nir.NIRGraph):
            made = read_neuron(nir, node, path=name)
        elif isinstance(node, nir.Output):
            made = Readout(self._graph.metadata["over_time"])
        elif isinstance(node, nir.SumPool2d):
            kernel, stride, padding = map(_pair, (node.kernel_size, node.stride, node.padding))
            made = Pool(
                "sum", kernel=kernel, stride=stride, padding=padding, has_time=value.has_time
            )
        elif isinstance(node, nir.Scale):
            made = Shortcut(_by_channel(node.scale, f"{name} in {self._source}"), **reads)
        else:
            made = self._synapse(name, node, reads)
        self._add(name, made, before)

    def _is_read_by_synapses(self, name: str) -> bool:
        readers = [behind for behind, before in self._into.items() if name in before]
        kinds = self._nir.Linear | self._nir.Affine
        return all(
            isinstance(self._graph.nodes[reader], kinds) and len(self._into[reader]) == 1
            for reader in readers
        )

    def _synapse(self, name: str, node: Any, reads: dict[str, Any]) -> Synapse:
        nir = self._nir
        if isinstance(node, nir.Conv1d | nir.Conv2d):
            as_sizes = _pair if isinstance(node, nir.Conv2d) else _single
            return Synapse(
                torch.from_numpy(node.weight),
                _bias(node.bias),
                stride=as_sizes(node.stride),
                padding=as_sizes(node.padding),
                dilation=as_sizes(node.dilation),
                groups=int(node.groups),
                **reads,
            )
        if isinstance(node, nir.Linear):
            return Synapse(torch.from_numpy(node.weight), **reads)
        if isinstance(node, nir.Affine):
            return Synapse(torch.from_numpy(node.weight), _bias(node.bias), **reads)
        raise FormatError(
            f"{name} in {self._source} is of kind {type(node).__name__}; lbq reads the NIR "
            f"graphs that it wrote"
        )

    def _joined(self, name: str) -> str:
        """Return the path of what enters a node: one value, or a sum of currents."""
        paths = [self._paths[before] for before in self._into[name]]
        if not paths:
            raise FormatError(f"nothing enters {name} in {self._source}")
        if len(paths) == 1:
            return paths[0]
        if any(self._values[path].has_time for path in paths):
            paths = [
                path
                if self._values[path].has_time
                else self._add(f"{path}_repeat", Repeat(self._builder.timesteps), path)
                for path in paths
            ]
        return self._add(f"{name}_merge", Merge(), *paths)

    def _add(self, name: str, node: Operator, *inputs: str) -> str:
        values = [self._values[path] for path in inputs]
        try:
            made = node.infer(values, timesteps=self._builder.timesteps)
        except GraphError as error:
            raise FormatError(f"{name} in {self._source} cannot be read: {error}") from error
        path = self._paths[name] = self._builder.add(name, node, *inputs)
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
