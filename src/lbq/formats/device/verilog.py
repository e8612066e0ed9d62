"""Export to Verilog: a design that runs a small network, its memories, a testbench and vectors.

The widths of all words come from the overflow proof. The design itself is in verilog_engine.py.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from lbq.atomic_files import atomic_write
from lbq.errors import LoweringError, ParameterError
from lbq.formats.device.memory_plan import plan_memory
from lbq.formats.device.verilog_engine import ENGINE, TESTBENCH
from lbq.graph.graph import INPUT, LoweredNetwork, Node, prove
from lbq.graph.operators import (
    IntegerNeuron,
    Merge,
    Operator,
    Pool,
    Readout,
    Shortcut,
    Synapse,
    Weighted,
)
from lbq.graph.operators.level_neuron import RESETS
from lbq.runtime.run import run_network

VARIANTS = ("unary", "planes", "powers")
"""How a level adds its weight: unit by unit, by non-zero bits, or as one power of two."""
FIELDS = (
    "op",
    "source",
    "target",
    "count",
    "channels",
    "height",
    "width",
    "made",
    "made_height",
    "made_width",
    "positions",
    "kernel_y",
    "kernel_x",
    "taps",
    "stride_y",
    "stride_x",
    "stride_y_full",
    "stride_x_full",
    "pad_y",
    "pad_x",
    "dilation_y",
    "dilation_x",
    "weight_base",
    "weight_step",
    "bias_base",
    "repeats",
    "has_bias",
    "depthwise",
    "kind",
    "threshold_base",
    "reset_base",
    "carry_base",
    "max_level",
    "thresholds_differ",
    "resets_differ",
    "multiplier",
    "shift",
    "reset_mode",
    "is_sum",
    "adds",
)
_KEYWORDS = frozenset(
    """
    accept_on alias always always_comb always_ff always_latch and assert assign assume automatic
    before begin bind bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle
    checker class clocking cmos config const constraint context continue cover covergroup
    coverpoint cross deassign default defparam design disable dist do edge else end endcase
    endchecker endclass endclocking endconfig endfunction endgenerate endgroup endinterface
    endmodule endpackage endprimitive endprogram endproperty endsequence endspecify endtable
    endtask enum event eventually expect export extends extern final first_match for force
    foreach forever fork forkjoin function generate genvar global highz0 highz1 if iff ifnone
    ignore_bins illegal_bins implements implies import incdir include initial inout input inside
    instance int integer interconnect interface intersect join join_any join_none large let
    liblist library local localparam logic longint macromodule matches medium modport module
    nand negedge nettype new nexttime nmos nor noshowcancelled not notif0 notif1 null or output
    package packed parameter pmos posedge primitive priority program property protected pull0
    pull1 pulldown pullup pulsestyle_ondetect pulsestyle_onevent pure rand randc randcase
    randsequence rcmos real realtime ref reg reject_on release repeat restrict return rnmos
    rpmos rtran rtranif0 rtranif1 s_always s_eventually s_nexttime s_until s_until_with scalared
    sequence shortint shortreal showcancelled signed small soft solve specify specparam static
    string strong strong0 strong1 struct super supply0 supply1 sync_accept_on sync_reject_on
    table tagged task this throughout time timeprecision timeunit tran tranif0 tranif1 tri tri0
    tri1 triand trior trireg type typedef union unique unique0 unsigned until until_with untyped
    use uwire var vectored virtual void wait wait_order wand weak weak0 weak1 while wildcard
    wire with within wor xnor xor
    """.split()  # noqa: SIM905
)
"""Of SystemVerilog (IEEE 1800-2017), which has those of Verilog-2005."""
_OPS = {"end": 0, "start": 1, "synapse": 2, "neuron": 3, "pool": 4, "add": 5, "read": 6}
_Instruction = dict[str, int]
"""Numbers by the name of their field; those left out are 0."""


def export_verilog(network: LoweredNetwork, path: Path, *, samples: Tensor | None = None) -> None:
    """Write an integer network as a design, ``path``, and what belongs to it beside it.

    ``net.v`` is the module ``net``; its memories are ``net_*.hex``, and ``net_tb.v`` is a testbench
    that runs ``samples`` and compares every logit with those of the library.

    Args:
        network: of integers, of linear layers, convolutions, pools, shortcuts and neurons.
        path: of the design, a ``.v`` file.
        samples: uint8 inputs of the network; four random ones by default.
    """
    path = Path(path)
    name, folder = path.stem, path.parent
    if path.suffix != ".v" or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
        raise ParameterError(
            f"the design is a .v file with the name of its module: letters a to z, digits and '_', "
            f"not a digit first; got {path}"
        )
    if name in _KEYWORDS:
        raise ParameterError(
            f"{name!r} is a keyword of Verilog or SystemVerilog, so no tool reads a module of that "
            f"name; got {path}, choose another such as {name}_net.v"
        )
    if not network.is_integer:
        raise LoweringError(
            "Verilog is written of integer networks, and this one has real numbers; "
            "lower it with --bits 8, in Python with lbq.to_fixed_point"
        )
    design = _Design(network)
    if samples is None:
        shape = network.example(4).shape
        generator = torch.Generator().manual_seed(0)
        samples = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    files = {f"{name}.v": design.write(name), f"{name}_tb.v": design.testbench(name, samples)}
    for memory, values in design.memories.items():
        files[f"{name}_{memory}.hex"] = _hex(values, design.widths[memory])
    outputs = run_network(network, samples, backend="dense")
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    logits = torch.cat([output.flatten(1) for output in several], 1)  # [B, outputs]
    by_sample = samples.transpose(0, 1) if network.takes_frames else samples
    files[f"{name}_samples.hex"] = _hex(by_sample.reshape(-1).numpy(), 8)
    files[f"{name}_logits.hex"] = _hex(logits.reshape(-1).numpy(), 32)
    for file, text in files.items():
        atomic_write(folder / file, text.encode())


@dataclass
class _Memory:
    """A read-only memory while it is filled."""

    values: list[np.ndarray] = field(default_factory=list)
    size: int = 0

    def add(self, values: Tensor) -> int:
        """Append; return the first address."""
        start, flat = self.size, values.cpu().numpy().astype(np.int64).reshape(-1)
        self.values.append(flat)
        self.size += len(flat)
        return start

    def all(self) -> np.ndarray:
        return np.concatenate([*self.values, *([] if self.size else [np.zeros(1, np.int64)])])


class _Design:
    """The program of a network, and the contents and widths of its memories."""

    def __init__(self, network: LoweredNetwork) -> None:
        self.network, self.values = network, network.values()
        bounds = prove(network)
        self.plan = plan_memory(network, self._kind, holds_input=True)
        self._memories = {name: _Memory() for name in ("weights", "biases", "thresholds", "resets")}
        self._num_carries = 0
        once = [line for ref in self.plan.once for line in self._instructions(ref)]
        always = [line for ref in self.plan.always for line in self._instructions(ref)]
        self.program = [*once, *always, {"op": _OPS["end"]}]
        self.loop = len(once)
        self.memories = {name: memory.all() for name, memory in self._memories.items()}
        self.widths = {
            name: _bits(int(values.min()), int(values.max()))
            for name, values in self.memories.items()
        }
        neurons = {path for path, _ in network.neurons()}
        sums = [b for p, b in bounds.items() if p not in neurons and p not in network.outputs]
        membranes = [b for path, b in bounds.items() if path in neurons]
        self.current_bits = max(_bits(b.low, b.high) for b in sums)
        self.current_bits = max(self.current_bits, self.widths["weights"] + 1)
        self.carry_bits = max((_bits(b.low, b.high) for b in membranes), default=2)
        largest = max(v.max_level or 0 for v in self.values.values())
        self.level_bits = max(8, largest.bit_length())

    def _kind(self, path: str) -> str:
        return "currents" if self.values[path].max_level is None else "levels"

    def _instructions(self, ref: Node) -> Iterator[_Instruction]:
        common = {
            "source": self.plan.places[self.plan.origins[ref.inputs[0]]],
            "target": self.plan.places.get(ref.path, 0),
            "count": self.values[ref.path].size,
        }
        write = _WRITERS.get(type(ref.operator))
        if write is None:
            _refuse(ref, "it has no form in hardware")
        for instruction in write(self, ref, ref.operator):
            yield common | instruction

    def synapse(self, ref: Node, node: Synapse) -> Iterator[_Instruction]:
        """Multiply by the weights of a convolution or a linear layer."""
        entering, leaving = self.values[ref.inputs[0]].shape, self.values[ref.path].shape
        if node.is_linear:
            features = int(np.prod(entering))
            found = _row(channels=features, made=len(node.weight), width=1)
            return self._products(ref, node, found | {"weight_step": features})
        if node.groups > 1 and {node.groups} != {len(node.weight), entering[0]}:
            _refuse(ref, f"it has {node.groups} groups of several channels")
        if any(stride not in (1, 2, 4) for stride in node.stride):
            _refuse(ref, f"its stride is {node.stride}")
        space, made, kernel = (
            _plane(axes, 1) for axes in (entering[1:], leaving[1:], node.weight.shape[2:])
        )
        taps, is_depthwise = kernel[0] * kernel[1], node.groups > 1
        found = {"channels": entering[0], "made": 1 if is_depthwise else leaving[0]}
        found |= _pair("height", "width", space) | _pair("made_height", "made_width", made)
        found |= _pair("kernel_y", "kernel_x", kernel)
        found |= _pair("dilation_y", "dilation_x", _plane(node.dilation, 1))
        found |= _pair("pad_y", "pad_x", _plane(node.padding, 0))
        strides = [stride.bit_length() - 1 for stride in _plane(node.stride, 1)]
        found |= _pair("stride_y", "stride_x", strides)
        found |= {"taps": taps, "positions": made[0] * made[1]}
        found |= {"depthwise": int(is_depthwise), "weight_step": entering[0] * taps}
        return self._products(ref, node, found)

    def shortcut(self, ref: Node, node: Shortcut) -> Iterator[_Instruction]:
        """Multiply by one weight per channel."""
        channels, *space = self.values[ref.path].shape
        found = _row(channels=channels, made=1, width=int(np.prod(space)))
        found |= {"depthwise": 1, "kind": 2}
        return self._products(ref, replace(node, weight=node.weight.expand(channels)), found)

    def _products(self, ref: Node, node: Weighted, found: _Instruction) -> Iterator[_Instruction]:
        """Start with the bias, then add products of weights and levels."""
        start = {"op": _OPS["start"], "repeats": 1}
        if node.bias is not None:
            repeats = self.values[ref.path].size // node.bias.numel()
            base = self._memories["biases"].add(node.bias)
            start |= {"repeats": repeats, "has_bias": 1, "bias_base": base}
        yield start
        if self.plan.origins[ref.inputs[0]] == INPUT:
            found["kind"] = 1
        base = self._memories["weights"].add(node.weight)
        yield {"op": _OPS["synapse"]} | found | {"weight_base": base}

    def neuron(self, ref: Node, node: IntegerNeuron) -> Iterator[_Instruction]:
        """Integrate, count thresholds and reset."""
        if node.resets_after_decay:
            _refuse(ref, "it resets after its decay")
        value = self.values[ref.path]
        base, self._num_carries = self._num_carries, self._num_carries + value.size
        yield {
            "op": _OPS["neuron"],
            "threshold_base": self._memories["thresholds"].add(node.thresholds.T),
            "reset_base": self._memories["resets"].add(node.reset_amount),
            "carry_base": base,
            "max_level": len(node.thresholds),
            "thresholds_differ": int(node.thresholds.shape[1] > 1),
            "resets_differ": int(node.reset_amount.numel() > 1),
            "multiplier": node.multiplier,
            "shift": node.shift,
            "reset_mode": RESETS.index(node.reset),
            "positions": value.size // value.shape[0],
        }

    def pool(self, ref: Node, node: Pool) -> Iterator[_Instruction]:
        """Take the largest level of every window, or the sum."""
        entering, leaving = self.values[ref.inputs[0]].shape, self.values[ref.path].shape
        if self.values[ref.inputs[0]].max_level is None:
            raise LoweringError(f"{ref.path} pools currents; the engine pools levels")
        found = {"op": _OPS["pool"], "channels": entering[0], "is_sum": int(node.kind == "sum")}
        found |= _pair("height", "width", _plane(entering[1:], 1))
        found |= _pair("made_height", "made_width", _plane(leaving[1:], 1))
        found |= _pair("kernel_y", "kernel_x", _plane(node.kernel, 1))
        found |= _pair("stride_y_full", "stride_x_full", _plane(node.stride, 1))
        yield found | _pair("pad_y", "pad_x", _plane(node.padding, 0))

    def merge(self, ref: Node, node: Merge) -> Iterator[_Instruction]:
        """Copy the first currents and add the others."""
        for n, name in enumerate(ref.inputs):
            source = self.plan.places[self.plan.origins[name]]
            yield {"op": _OPS["add"], "source": source, "adds": int(n > 0)}

    def readout(self, ref: Node, node: Readout) -> Iterator[_Instruction]:
        """Add to the logits."""
        if node.over_time != "sum":
            _refuse(ref, f'its readout over time is "{node.over_time}", not "sum"')
        before = self.network.outputs[: self.network.outputs.index(ref.path)]
        yield {"op": _OPS["read"], "target": sum(self.values[path].size for path in before)}

    def write(self, name: str) -> str:
        """Return the design."""
        sizes = self.plan.sizes
        outputs = sum(self.values[path].size for path in self.network.outputs)
        carries = max(1, self._num_carries)
        depths = {"L": sizes["levels"], "A": sizes["currents"], "C": carries, "O": outputs}
        depths |= {
            letter: len(self.memories[memory])
            for letter, memory in zip("WBTR", self.memories, strict=True)
        }
        largest = {key: max(line.get(key, 0) for line in self.program) for key in FIELDS}
        of_map = ("channels", "height", "width", "made", "made_height", "made_width")
        lengths = (*of_map, "kernel_y", "kernel_x")
        places = max(largest[key] for key in lengths)
        current, carry, level = self.current_bits, self.carry_bits, self.level_bits
        compared = max(carry, self.widths["thresholds"])
        steps = 1 if self.network.takes_frames else self.network.timesteps
        words: dict[str, str | int] = {"NAME": name, "LOOP": self.loop, "STEPS": steps}
        words |= {f"{letter}D": depth for letter, depth in depths.items()}
        words |= {f"{letter}A": _address(depth) for letter, depth in depths.items()}
        words |= {"LW": level, "AW": current, "CW": carry, "MW": carry, "PW": carry + 18}
        words |= {
            f"{letter}W": self.widths[memory]
            for letter, memory in zip("WBTR", self.memories, strict=True)
        }
        words |= {f"RESET_{mode.upper()}": number for number, mode in enumerate(RESETS)}
        words |= {
            "PA": _address(len(self.program) + 1),
            "XA": max(1, places.bit_length() + 1),
            "IA": max(1, max(*depths.values(), largest["count"]).bit_length() + 1),
            "TC": max(2, steps.bit_length() + 1),
            "CLEARED": max(carries, outputs),
            "PIXEL": _resized("write_pixel", 8, level, is_signed=False),
            "BIAS": _resized("bias_q", self.widths["biases"], current),
            "CURRENT_M": _resized("current_q", current, carry),
            "CURRENT_O": _resized("current_q", current, 32),
            "WEIGHT": _resized("weight_q", self.widths["weights"], current),
            "RESET_M": _signed(_resized("reset_q", self.widths["resets"], carry)),
            "UNITS_M": _signed(_resized("units", level, carry, is_signed=False)),
            "MEMBRANE_K": _signed(_resized("membrane", carry, compared)),
            "THRESHOLD_K": _signed(_resized("threshold_q", self.widths["thresholds"], compared)),
        }
        bits = {key: max(1, largest[key].bit_length()) for key in FIELDS}
        bits |= dict.fromkeys(lengths, int(words["XA"]))
        bits |= dict.fromkeys(("count", "repeats", "positions"), int(words["IA"]))
        bits |= dict.fromkeys(("source", "target"), max(int(words[k]) for k in ("LA", "AA", "OA")))
        bits |= {"weight_base": int(words["WA"]), "weight_step": int(words["WA"])}
        bits |= {"bias_base": int(words["BA"]), "threshold_base": int(words["TA"])}
        bits |= {"reset_base": int(words["RA"]), "carry_base": int(words["CA"])}
        bits |= {"max_level": self.level_bits, "reset_mode": 2, "kind": 2, "op": 3}
        counters = dict.fromkeys(("ev_c", "ev_y", "ev_x", "ky", "kx"), int(words["XA"]))
        words["WIDE"] = "\n".join(
            f"    wire signed [31:0] {key}_w = {_resized(key, n, 32, is_signed=False)};"
            for key, n in (bits | counters).items()
            if f"{key}_w" in ENGINE
        )
        words["FIELDS"] = "\n".join(f"    reg [{bits[key] - 1}:0] {key};" for key in FIELDS)
        words["DEFAULTS"] = "\n".join(f"        {key} = 0;" for key in FIELDS)
        words["PROGRAM"] = "\n".join(
            f"            {n}: begin {' '.join(f'{k} = {v};' for k, v in line.items() if v)} end"
            for n, line in enumerate(self.program)
        )
        return _filled(ENGINE, words)

    def testbench(self, name: str, samples: Tensor) -> str:
        """Return the testbench."""
        frames = self.network.timesteps if self.network.takes_frames else 1
        count = samples.shape[1 if self.network.takes_frames else 0]
        outputs = sum(self.values[path].size for path in self.network.outputs)
        words: dict[str, str | int] = {
            "NAME": name,
            "SAMPLES": count,
            "FRAMES": frames,
            "PIXELS": self.values[INPUT].size,
            "FIRST": self.plan.places[INPUT],
            "OUTPUTS": outputs,
            "LA": _address(self.plan.sizes["levels"]),
            "OA": _address(outputs),
        }
        return _filled(TESTBENCH, words)


_WRITERS: dict[type[Operator], Callable[..., Iterator[_Instruction]]] = {
    Synapse: _Design.synapse,
    Shortcut: _Design.shortcut,
    IntegerNeuron: _Design.neuron,
    Pool: _Design.pool,
    Merge: _Design.merge,
    Readout: _Design.readout,
}


def _refuse(ref: Node, why: str) -> NoReturn:
    raise LoweringError(
        f"{ref.path} ({type(ref.operator).__name__}): {why}; the Verilog engine runs linear "
        f"layers, convolutions of one group or of single channels with strides 1, 2, "
        f"4, pools of levels, sums of currents, shortcuts, and neurons; C "
        f"(--to c) takes every integer network"
    )


def _filled(template: str, words: dict[str, str | int]) -> str:
    return re.sub(r"@(\w+?)@", lambda found: str(words[found.group(1)]), template)


def _bits(low: int, high: int) -> int:
    """Return the bits of a signed number in this range."""
    return max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0, 1) + 1


def _address(depth: int) -> int:
    return max(1, (depth - 1).bit_length())


def _resized(name: str, bits: int, wanted: int, *, is_signed: bool = True) -> str:
    """Return an expression of a value in another width, which holds it by proof."""
    if bits == wanted:
        return name
    if bits > wanted:
        return f"{name}[{wanted - 1}:0]"
    filler = f"{name}[{bits - 1}]" if is_signed else "1'b0"
    return f"{{{{{wanted - bits}{{{filler}}}}}, {name}}}"


def _signed(expression: str) -> str:
    return f"$signed({expression})"


def _hex(values: np.ndarray, bits: int) -> str:
    """Return the words of a memory, two's complement, one per line."""
    digits, mask = -(-bits // 4), (1 << bits) - 1
    return "".join(f"{int(value) & mask:0{digits}x}\n" for value in values)


def _row(*, channels: int, made: int, width: int) -> _Instruction:
    """Return the sizes of maps of one row under a window of one position."""
    found = {"channels": channels, "height": 1, "width": width, "made": made}
    found |= {"made_height": 1, "made_width": width, "positions": width, "taps": 1}
    return found | {"kernel_y": 1, "kernel_x": 1, "dilation_y": 1, "dilation_x": 1}


def _plane(axes: Sequence[int], missing: int) -> list[int]:
    return [missing] * (2 - len(axes)) + list(axes)


def _pair(first: str, second: str, numbers: Sequence[int]) -> dict[str, int]:
    return {first: int(numbers[0]), second: int(numbers[1])}
