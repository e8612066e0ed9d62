"""Export to C99: one source file and its header, freestanding, for microcontrollers.

Weights are constants. Values are stored in one static arena, where values with disjoint lifetimes
share memory. Every type is the narrowest that the overflow proof allows. Timesteps run one after
the other, so only carries are kept between them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from lbq.atomic_files import atomic_write
from lbq.errors import LoweringError, ParameterError
from lbq.formats.device.c_kernels import KERNELS, SHIFT, WINDOW
from lbq.formats.device.memory_plan import plan_memory
from lbq.graph.graph import INPUT, LoweredNetwork, Node, output_ranges, prove
from lbq.graph.operators import (
    Concat,
    IntegerNeuron,
    Matmul,
    Merge,
    Multiply,
    Offset,
    Pool,
    Readout,
    Rearrange,
    Roll,
    Shortcut,
    Slice,
    Synapse,
    Upsample,
    ZeroPad,
)
from lbq.graph.operators.level_neuron import RESETS

TYPES = {
    "uint8_t": (0, 2**8 - 1),
    "int16_t": (-(2**15), 2**15 - 1),
    "int32_t": (-(2**31), 2**31 - 1),
}
"""Types of values and their ranges, narrowest first."""
BYTES = {"uint8_t": 1, "int8_t": 1, "int16_t": 2, "int32_t": 4}


def narrowest(low: int, high: int) -> str:
    """Return the narrowest type that holds a range."""
    return next(name for name, (a, b) in TYPES.items() if a <= low and high <= b)


@dataclass(frozen=True, kw_only=True)
class CSource:
    """A network as C, and the memory that it needs."""

    source: str = field(repr=False)
    header: str = field(repr=False)
    flash_bytes: int
    """Size of the constants."""
    ram_bytes: int
    """Size of the arena and the carries, without the caller's pixels and logits."""


def export_c(network: LoweredNetwork, path: Path, *, events: bool = False) -> CSource:
    """Write an integer network as ``path``, a ``.c`` file, and the ``.h`` file beside it.

    Args:
        network: an integer network.
        path: path of the source; its stem is the prefix of all public names.
        events: whether to skip zero levels and zero inputs instead of multiplying by them.
    """
    path = Path(path)
    if path.suffix != ".c" or not re.fullmatch(r"[a-zA-Z0-9_.-]+", path.stem):
        raise ParameterError(
            f"path must name a .c file of letters, digits, '_', '-' and '.', got {path}"
        )
    prefix = re.sub(r"[.-]", "_", path.stem)
    prefix = f"net_{prefix}" if prefix[0].isdigit() else prefix
    found = write_c(network, prefix=prefix, events=events, name=path.stem)
    atomic_write(path, found.source.encode())
    atomic_write(path.with_suffix(".h"), found.header.encode())
    return found


def write_c(network: LoweredNetwork, *, prefix: str, events: bool, name: str) -> CSource:
    """Return an integer network as C; see :func:`export_c`."""
    if not network.is_integer:
        raise LoweringError(
            "only integer networks can be written as C, but this one has real numbers; "
            "lower it with --bits 8, in Python with lbq.to_fixed_point"
        )
    return _Writer(network, prefix=prefix, events=events, name=name).write()


class _Writer:
    """Writes the parts of the file, node by node."""

    def __init__(self, network: LoweredNetwork, *, prefix: str, events: bool, name: str) -> None:
        self.network, self.prefix, self.events, self.name = network, prefix, events, name
        self.values, self.ranges, self.bounds = (
            network.values(),
            output_ranges(network),
            prove(network),
        )
        self.kernels: dict[str, str] = {}
        self.constants: list[str] = []
        self.carries: list[tuple[str, str, int]] = []  # type, name and size
        self.flash = self.carry_bytes = 0
        self.numbers = {path: n for n, path in enumerate(network.operators)}
        self.plan = plan_memory(network, self.type_of)

    # Types and places

    def type_of(self, path: str) -> str:
        """Return the type of a node's values."""
        if path == INPUT:
            return "uint8_t"
        low, high = self.ranges[path]
        node = self.network.operators[path]
        if path in self.bounds and not isinstance(node, IntegerNeuron):
            low, high = min(low, self.bounds[path].low), max(high, self.bounds[path].high)
        return narrowest(low, high)

    def value(self, path: str) -> str:
        """Return the expression of a node's values."""
        path = self.plan.origins[path]
        if path == INPUT:
            return "frame" if self.network.takes_frames else "pixels"
        return f"arena.{_short(self.type_of(path))} + {self.plan.places[path]}"

    # Constants and kernels

    def constant(self, name: str, values: Tensor | np.ndarray, kind: str) -> str:
        """Write an array of constants; return its name."""
        flat = np.asarray(values.cpu() if isinstance(values, Tensor) else values).reshape(-1)
        numbers = [_literal(int(v)) for v in flat]
        rows = [", ".join(numbers[i : i + 20]) for i in range(0, len(numbers), 20)]
        body = ",\n    ".join(rows)
        self.constants.append(f"static const {kind} {name}[{len(flat)}] = {{\n    {body}}};\n")
        self.flash += len(flat) * BYTES[kind]
        return name

    def kernel(self, name: str, *types: str) -> str:
        """Add a kernel for these types to the file; return its name."""
        full = "_".join([name, *map(_short, types)])
        code = KERNELS[name].replace("NAME", full)
        for letter, kind in zip("XWY", types, strict=False):
            code = re.sub(rf"\b{letter}\b", kind, code)
        self.kernels[full] = code
        return full

    # Nodes

    def write(self) -> CSource:
        """Return the whole file."""
        parts = {
            "once": list(self._lines(self.plan.once)),
            "always": list(self._lines(self.plan.always)),
        }
        return _assemble(self, parts)

    def _lines(self, refs: Sequence[Node]) -> Iterator[str]:
        for ref in refs:
            node = ref.operator
            value = self.values[ref.path]
            shape = " x ".join(map(str, value.shape))
            shown = re.sub(r"[^a-zA-Z0-9_.-]", "_", ref.path)  # a path must not end the comment
            yield f"/* {shown}: {type(node).__name__}, {shape} */"
            writer = _WRITERS.get(type(node))
            if writer is None:
                raise LoweringError(
                    f"{ref.path} ({type(node).__name__}) cannot be written as C; "
                    f"lbq-run and ONNX support this network"
                )
            yield from writer(self, ref, node)

    def synapse(self, ref: Node, node: Synapse) -> Iterator[str]:
        """Start with the bias, then add products of weights and levels."""
        number, (source,) = self.numbers[ref.path], ref.inputs
        yield self._start(ref, node.bias)
        entering, leaving = self.values[source].shape, self.values[ref.path].shape
        kind = "int8_t" if node.weight.element_size() == 1 else "int16_t"
        weight = self.constant(f"weight_{number}", node.weight, kind)
        skips = self.events and (source != INPUT or self.network.takes_frames)
        if node.weight.dim() == 2:
            features = self.values[source].size  # as channels, or as a row under one wide kernel
            window = [1, 1 if skips else features], [1, 1], [0, 0], [1, 1]
            space, made = (1, 1 if skips else features), (1, 1)
            channels, groups = features if skips else 1, 1
        else:
            kernel = node.weight.shape[2:]
            window = tuple(
                _plane(axis, one)
                for axis, one in (
                    (kernel, 1),
                    (node.stride, 1),
                    (node.padding, 0),
                    (node.dilation, 1),
                )
            )
            space, made = _plane(entering[1:], 1), _plane(leaving[1:], 1)
            channels, groups = entering[0], node.groups
        numbers = [
            channels,
            *space,
            len(node.weight),
            *made,
            *(n for axis in window for n in axis),
            groups,
        ]
        shape = ", ".join(map(str, numbers))
        self.constants.append(f"static const struct window window_{number} = {{{shape}}};\n")
        name = "convolve_events" if skips else "convolve"
        kernel = self.kernel(
            name, self.type_of(self.plan.origins[source]), kind, self.type_of(ref.path)
        )
        yield f"{kernel}(&window_{number}, {self.value(source)}, {weight}, {self.value(ref.path)});"

    def _start(self, ref: Node, bias: Tensor | None) -> str:
        """Set the values of a node to its bias."""
        value, kind = self.values[ref.path], self.type_of(ref.path)
        if bias is None:
            return f"{self.kernel('clear', kind)}({self.value(ref.path)}, {value.size});"
        name = self.constant(f"bias_{self.numbers[ref.path]}", bias, "int32_t")
        count = bias.numel()
        start = self.kernel("start", kind)
        return f"{start}({self.value(ref.path)}, {name}, {count}, {value.size // count});"

    def shortcut(self, ref: Node, node: Shortcut) -> Iterator[str]:
        """Multiply every channel by its weight."""
        number, (source,) = self.numbers[ref.path], ref.inputs
        yield self._start(ref, node.bias)
        value = self.values[ref.path]
        weights = np.broadcast_to(node.weight.cpu().numpy().reshape(-1), value.shape[:1])
        weight = self.constant(f"weight_{number}", weights, "int16_t")
        kernel = self.kernel(
            "scale", self.type_of(self.plan.origins[source]), "int16_t", self.type_of(ref.path)
        )
        size = value.size // value.shape[0]
        yield (
            f"{kernel}({self.value(source)}, {weight}, {self.value(ref.path)}, "
            f"{value.shape[0]}, {size});"
        )

    def pool(self, ref: Node, node: Pool) -> Iterator[str]:
        """Compute the maximum or the sum of every window."""
        (source,) = ref.inputs
        entering, leaving = self.values[source].shape, self.values[ref.path].shape
        numbers = [entering[0], *_plane(entering[1:], 1), entering[0], *_plane(leaving[1:], 1)]
        for axis, one in ((node.kernel, 1), (node.stride, 1), (node.padding, 0)):
            numbers += _plane(axis, one)
        window = f"window_{self.numbers[ref.path]}"
        shape = ", ".join(map(str, [*numbers, 1, 1, entering[0]]))
        self.constants.append(f"static const struct window {window} = {{{shape}}};\n")
        types = self.type_of(self.plan.origins[source]), "int32_t", self.type_of(ref.path)
        kernel = self.kernel("pool_max" if node.kind == "max" else "pool_sum", *types)
        yield f"{kernel}(&{window}, {self.value(source)}, {self.value(ref.path)});"

    def neuron(self, ref: Node, node: IntegerNeuron) -> Iterator[str]:
        """Decay, integrate, count thresholds, reset."""
        number, value, (source,) = self.numbers[ref.path], self.values[ref.path], ref.inputs
        kind = narrowest(self.bounds[ref.path].low, self.bounds[ref.path].high)
        kind = "int16_t" if kind == "uint8_t" else kind
        thresholds = self.constant(f"thresholds_{number}", node.thresholds.T, "int32_t")
        reset = self.constant(f"reset_{number}", node.reset_amount, "int32_t")
        carry = "0"
        if self.network.timesteps > 1:
            carry = f"carry_{number}"
            self.carries.append((kind, carry, value.size))
            self.carry_bytes += BYTES[kind] * value.size
        numbers = [
            value.shape[0],
            value.size // value.shape[0],
            len(node.thresholds),
            int(node.thresholds.shape[1] > 1),
            int(node.reset_amount.numel() > 1),
            node.multiplier,
            node.shift,
            f"RESET_{node.reset.upper()}",
            int(node.resets_after_decay),
        ]
        shape = ", ".join(map(str, numbers))
        self.constants.append(f"static const struct neuron neuron_{number} = {{{shape}}};\n")
        kernel = self.kernel("emit", self.type_of(self.plan.origins[source]), kind, "uint8_t")
        yield (
            f"{kernel}(&neuron_{number}, {self.value(source)}, {thresholds}, {reset}, {carry}, "
            f"{self.value(ref.path)});"
        )

    def merge(self, ref: Node, node: Merge) -> Iterator[str]:
        """Add."""
        terms = " + ".join(f"({self.value(name)})[i0]" for name in ref.inputs)
        yield from self._loop((self.values[ref.path].size,), ref, "i0", terms)

    def offset(self, ref: Node, node: Offset) -> Iterator[str]:
        """Add a constant."""
        shape = self.values[ref.path].shape
        bias = self.constant(f"bias_{self.numbers[ref.path]}", node.bias, "int32_t")
        at, there = _index(shape, shape), _index(tuple(node.bias.shape), shape)
        terms = f"({self.value(ref.inputs[0])})[{at}] + {bias}[{there}]"
        yield from self._loop(shape, ref, at, terms)

    def multiply(self, ref: Node, node: Multiply) -> Iterator[str]:
        """Multiply, repeating axes of length 1."""
        shape = self.values[ref.path].shape
        left, right = (
            f"(int32_t)({self.value(name)})[{_index(self.values[name].shape, shape)}]"
            for name in ref.inputs
        )
        yield from self._loop(shape, ref, _index(shape, shape), f"{left} * {right}")

    def matmul(self, ref: Node, node: Matmul) -> Iterator[str]:
        """Multiply matrices."""
        left, right = ref.inputs
        types = [self.type_of(self.plan.origins[name]) for name in (left, right)]
        kernel = self.kernel("multiply", *types, self.type_of(ref.path))
        groups, rows, terms = self.values[left].shape
        columns = self.values[right].shape[2]
        yield (
            f"{kernel}({self.value(left)}, {self.value(right)}, {self.value(ref.path)}, "
            f"{groups}, {rows}, {terms}, {columns});"
        )

    def concat(self, ref: Node, node: Concat) -> Iterator[str]:
        """Copy the parts one after the other."""
        whole, start = self.values[ref.path].shape, 0
        for name in ref.inputs:
            shape = self.values[name].shape
            shifts = [start if axis == node.axis else 0 for axis in range(len(shape))]
            at = _index(
                whole, whole, [f"(i{n} + {s})" if s else f"i{n}" for n, s in enumerate(shifts)]
            )
            yield from self._loop(shape, ref, at, f"({self.value(name)})[{_index(shape, shape)}]")
            start += shape[node.axis]

    def slice(self, ref: Node, node: Slice) -> Iterator[str]:
        """Copy a part of an axis."""
        yield from self._taken(ref, node.axis, f"({node.start} + {node.step} * i{node.axis})")

    def roll(self, ref: Node, node: Roll) -> Iterator[str]:
        """Copy an axis from another start, wrapping around at its end."""
        length = self.values[ref.path].shape[node.axis]
        step = f"i{node.axis}" if node.step > 0 else f"({length} - i{node.axis})"
        yield from self._taken(ref, node.axis, f"(({node.start} + {step}) % {length})")

    def _taken(self, ref: Node, axis: int, index: str) -> Iterator[str]:
        shape, entering = self.values[ref.path].shape, self.values[ref.inputs[0]].shape
        names = [index if n == axis else f"i{n}" for n in range(len(shape))]
        there = _index(entering, entering, names)
        source = f"({self.value(ref.inputs[0])})[{there}]"
        yield from self._loop(shape, ref, _index(shape, shape), source)

    def rearrange(self, ref: Node, node: Rearrange) -> Iterator[str]:
        """Copy in another order of the axes."""
        moved = [node.sizes[axis] for axis in node.order]
        names = [f"i{node.order.index(axis)}" for axis in range(len(node.sizes))]
        there = _index(node.sizes, node.sizes, names)
        source = f"({self.value(ref.inputs[0])})[{there}]"
        yield from self._loop(moved, ref, _index(moved, moved), source)

    def upsample(self, ref: Node, node: Upsample) -> Iterator[str]:
        """Repeat every position, or put zeros between two."""
        shape, entering = self.values[ref.path].shape, self.values[ref.inputs[0]].shape
        source = self.value(ref.inputs[0])
        factors = (1, *node.factors)
        if node.fill == "nearest":
            names = [f"(i{n} / {f})" if f > 1 else f"i{n}" for n, f in enumerate(factors)]
            there = _index(entering, entering, names)
            yield from self._loop(shape, ref, _index(shape, shape), f"({source})[{there}]")
            return
        yield self._start(ref, None)
        names = [f"(i{n} * {f})" if f > 1 else f"i{n}" for n, f in enumerate(factors)]
        there = _index(entering, entering)
        yield from self._loop(entering, ref, _index(shape, shape, names), f"({source})[{there}]")

    def zero_pad(self, ref: Node, node: ZeroPad) -> Iterator[str]:
        """Clear the output and copy into its middle."""
        shape, entering = self.values[ref.path].shape, self.values[ref.inputs[0]].shape
        yield self._start(ref, None)
        before = (0, *node.before)
        names = [f"(i{n} + {b})" if b else f"i{n}" for n, b in enumerate(before)]
        source = f"({self.value(ref.inputs[0])})[{_index(entering, entering)}]"
        yield from self._loop(entering, ref, _index(shape, shape, names), source)

    def readout(self, ref: Node, node: Readout) -> Iterator[str]:
        """Add to the logits, or write those of this timestep."""
        source = self.value(ref.inputs[0])
        size, start = self.values[ref.path].size, self._output_starts()[ref.path]
        if node.over_time == "sum":
            yield f"for (int32_t i0 = 0; i0 < {size}; ++i0) {{"
            yield f"    logits[{start} + i0] += ({source})[i0];"
        else:
            place = (
                f"{start} + t * {size} + i0" if self.values[ref.path].has_time else f"{start} + i0"
            )
            yield f"for (int32_t i0 = 0; i0 < {size}; ++i0) {{"
            yield f"    logits[{place}] = ({source})[i0];"
        yield "}"

    def _output_starts(self) -> dict[str, int]:
        starts, start = {}, 0
        for path in self.network.outputs:
            starts[path] = start
            start += self.output_size(path)
        return starts

    def output_size(self, path: str) -> int:
        """Return the number of integers of an output."""
        value = self.values[path]
        return value.size * (self.network.timesteps if value.has_time else 1)

    def _loop(self, shape: Sequence[int], ref: Node, at: str, terms: str) -> Iterator[str]:
        """Yield nested loops that set ``value[at]`` to ``terms``."""
        for axis, size in enumerate(shape):
            indent = "    " * axis
            yield f"{indent}for (int32_t i{axis} = 0; i{axis} < {size}; ++i{axis}) {{"
        kind, depth = self.type_of(ref.path), len(shape)
        yield f"{'    ' * depth}({self.value(ref.path)})[{at}] = ({kind})({terms});"
        for axis in reversed(range(depth)):
            yield "    " * axis + "}"


_WRITERS: dict[type, Callable[..., Iterator[str]]] = {
    Synapse: _Writer.synapse,
    Shortcut: _Writer.shortcut,
    Pool: _Writer.pool,
    IntegerNeuron: _Writer.neuron,
    Merge: _Writer.merge,
    Offset: _Writer.offset,
    Multiply: _Writer.multiply,
    Matmul: _Writer.matmul,
    Concat: _Writer.concat,
    Slice: _Writer.slice,
    Roll: _Writer.roll,
    Rearrange: _Writer.rearrange,
    Upsample: _Writer.upsample,
    ZeroPad: _Writer.zero_pad,
    Readout: _Writer.readout,
}


def _assemble(writer: _Writer, parts: dict[str, list[str]]) -> CSource:
    network, prefix = writer.network, writer.prefix
    inputs = writer.values[INPUT].size * (network.timesteps if network.takes_frames else 1)
    outputs = sum(writer.output_size(path) for path in network.outputs)
    arena = [f"    {kind} {_short(kind)}[{n}];" for kind, n in writer.plan.sizes.items()]
    ram = sum(BYTES[kind] * n for kind, n in writer.plan.sizes.items()) + writer.carry_bytes
    guard, unit = f"{prefix.upper()}_H", network.logit_scale
    public = prefix.upper()
    given = "frames, one behind the other" if network.takes_frames else "pixels"
    header = f"""/* {writer.name}: a spiking network in integers, written by lbq. */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#define {public}_INPUTS {inputs}  /* bytes that {prefix}_run reads: {given}, channels first */
#define {public}_OUTPUTS {outputs}  /* integers that it writes: logits, in units of {unit:.9g} */
#define {public}_TIMESTEPS {network.timesteps}
#define {public}_RAM_BYTES {ram}  /* static memory */
#define {public}_FLASH_BYTES {writer.flash}  /* constants */

/* Compute the logits of one sample; return the index of the largest. Not reentrant. */
int {prefix}_run(const uint8_t *pixels, int32_t *logits);
"""
    frames = network.takes_frames
    if frames:
        header += f"""
/* The same, frame by frame: reset, then one call for each timestep t from 0 on. */
void {prefix}_reset(int32_t *logits);
void {prefix}_step(const uint8_t *frame, int32_t t, int32_t *logits);
"""
    header += "\n#endif\n"
    carries = "".join(f"static {kind} {name}[{size}];\n" for kind, name, size in writer.carries)
    cleared = [*writer.carries, ("int32_t", "logits", outputs)]
    clear = "\n".join(
        f"    {writer.kernel('clear', kind)}({name}, {size});" for kind, name, size in cleared
    )
    once, always = ("\n".join(f"    {line}" for line in parts[key]) for key in ("once", "always"))
    has_t = any(writer.values[path].has_time for path in network.outputs)
    source = f"""/* {writer.name}: a spiking network in integers, written by lbq.
 *
 * Every accumulator and membrane has the narrowest type that no input can overflow.
 * Constants: {writer.flash:,} bytes. Static memory: {ram:,} bytes.
 */
#include "{writer.name}.h"

"""
    joined = "\n".join(writer.kernels.values())
    source += WINDOW if "struct window" in joined else ""
    if "struct neuron" in joined:
        resets = ", ".join(f"RESET_{mode.upper()}" for mode in RESETS)
        source += f"enum {{ {resets} }};\n{SHIFT}"
    source += joined + "\n" + "\n".join(writer.constants) + "\n"
    if arena:
        source += "static struct {\n" + "\n".join(arena) + "\n} arena;\n"
    static = "" if frames else "static "
    taken = "const uint8_t *frame, " if frames else ""
    read = {writer.plan.origins[name] for ref in writer.plan.always for name in ref.inputs}
    reads_pixels = not frames and INPUT in read
    taken = "const uint8_t *pixels, " if reads_pixels else taken
    source += f"""{carries}
{static}void {prefix}_reset(int32_t *logits)
{{
{clear}
}}

{static}void {prefix}_step({taken}int32_t t, int32_t *logits)
{{
{"" if has_t else "    (void)t;" + chr(10)}{always}
}}

int {prefix}_run(const uint8_t *pixels, int32_t *logits)
{{
    int best = 0;
{once}
    {prefix}_reset(logits);
    for (int32_t t = 0; t < {network.timesteps}; ++t) {{
        {prefix}_step({_passed(frames, reads_pixels, writer.values[INPUT].size)}t, logits);
    }}
    for (int i = 1; i < {writer.values[network.outputs[0]].size}; ++i) {{
        if (logits[i] > logits[best]) {{
            best = i;
        }}
    }}
    return best;
}}
"""
    return CSource(source=source, header=header, flash_bytes=writer.flash, ram_bytes=ram)


def _passed(frames: bool, reads_pixels: bool, size: int) -> str:
    if frames:
        return f"pixels + t * {size}, "
    return "pixels, " if reads_pixels else ""


def _short(kind: str) -> str:
    """Return the name of an array of this type in the arena, and the suffix of kernels."""
    return {"uint8_t": "u8", "int8_t": "i8", "int16_t": "i16", "int32_t": "i32"}[kind]


def _literal(value: int) -> str:
    """Return a 32-bit number as C; the smallest one has no literal."""
    return "(-2147483647 - 1)" if value == -(2**31) else str(value)


def _plane(axes: Sequence[int], missing: int) -> list[int]:
    """Return the two spatial axes; a missing one comes first."""
    return [missing] * (2 - len(axes)) + list(axes)


def _index(shape: Sequence[int], looped: Sequence[int], names: Sequence[str] | None = None) -> str:
    """Return the flat index of an element; axes of length 1 that are repeated stay at 0."""
    names = names or [f"i{n}" for n in range(len(shape))]
    terms: list[str] = []
    stride = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] > 1 or names[axis] != f"i{axis}":
            terms.append(names[axis] if stride == 1 else f"{names[axis]} * {stride}")
        stride *= shape[axis]
    del looped
    return " + ".join(reversed(terms)) or "0"
