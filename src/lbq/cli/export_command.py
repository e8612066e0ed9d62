"""``lbq export SOURCE --to FORMAT``: write a bundle or a run for other engines."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lbq.cli.args import UsageError, read
from lbq.cli.eval_command import load_bundle
from lbq.cli.lower_command import LoweringOptions, check_out, lower_run
from lbq.cli.progress import show_status
from lbq.cli.terminal import Console
from lbq.errors import FormatError
from lbq.graph import LoweredNetwork
from lbq.pretrained import is_pretrained

Format = Literal["onnx", "pt2", "nir", "bundle", "c", "verilog"]

EXAMPLES = {
    "lbq export net.lbq --to onnx --out net.onnx": "for ONNX Runtime and OpenVINO",
    "lbq export net.lbq --to pt2 --out net.pt2": "for torch where lbq is not installed",
    "lbq export runs/pocket --to nir --out net.nir": "for neuromorphic tools, in real numbers",
    "lbq export net.lbq --to c --out net.c": "for microcontrollers: net.c and net.h",
    "lbq export net.lbq --to verilog --out net.v": "for FPGAs: a design and its testbench",
}


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Write a lowered network in another format; a run is lowered first."""

    source: Annotated[Path, tyro.conf.Positional]
    """A bundle (.lbq), the folder of a run, or the name of a network of the library."""
    to: Format
    """ "onnx" for ONNX Runtime and OpenVINO, "pt2" for torch alone, "nir" for neuromorphic tools
    (real numbers only), "c" for microcontrollers, "verilog" for FPGAs, "bundle" for lbq."""
    out: Path
    """File to write."""
    style: Literal["exact", "fast", "int8", "int8-lossy"] = "exact"
    """How an ONNX file computes integers; "int8-lossy" moves thresholds a little."""
    events: bool = False
    """Write C that skips zero levels instead of multiplying by them."""
    options: Annotated[LoweringOptions, tyro.conf.arg(name="")] = field(
        default_factory=LoweringOptions
    )
    """How a run is lowered; a bundle is already lowered."""
    json: bool = False
    """Print one JSON object instead of text."""
    debug: bool = False
    """Show tracebacks of errors."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq export``."""
    arguments = read(ExportArguments, words, command="lbq export", examples=EXAMPLES)
    check_out(arguments.out)
    console = Console(soft_wrap=True)
    network, notes = _open(arguments)
    is_replaced = arguments.out.exists()
    with show_status(f"writing {arguments.out}"):
        beside = write(
            network,
            arguments.to,
            arguments.out,
            style=arguments.style,
            events=arguments.events,
        )
    size = arguments.out.stat().st_size
    if arguments.json:
        found = {"file": str(arguments.out), "format": arguments.to, "bytes": size}
        found["replaced"] = is_replaced
        found |= {"is_integer": network.is_integer, "notes": [*notes, *beside]}
        lines = [json.dumps(found)]
    else:
        kind = "integers" if network.is_integer else "real numbers"
        lines = [*notes, f"{arguments.out}: {size:,} bytes, {kind}", *beside]
        if is_replaced:
            lines.append(f"{arguments.out} was there before and is replaced")
    for line in lines:
        console.print_text(line)
    return 0


def write(
    network: LoweredNetwork,
    to: Format,
    out: Path,
    *,
    style: Literal["exact", "fast", "int8", "int8-lossy"] = "exact",
    events: bool = False,
) -> tuple[str, ...]:
    """Write a lowered network in one of the formats; return notes about files beside it."""
    if to != "onnx" and style != "exact":
        raise UsageError(f"--style {style} is for --to onnx, not {to}")
    if to != "c" and events:
        raise UsageError(f"--events is for --to c, not {to}")
    if to == "onnx":
        from lbq.formats.onnx import export_onnx  # noqa: PLC0415

        export_onnx(network, out, style=style)
    elif to == "pt2":
        from lbq.formats.pt2 import export_pt2  # noqa: PLC0415

        export_pt2(network, out)
    elif to == "nir":
        from lbq.formats.nir import export_nir  # noqa: PLC0415

        export_nir(network, out)
    elif to == "c":
        from lbq.formats.device import export_c  # noqa: PLC0415

        found = export_c(network, out, events=events)
        return (
            f"{out.with_suffix('.h')}: its header",
            f"{found.flash_bytes:,} bytes of constants, {found.ram_bytes:,} of static memory",
        )
    elif to == "verilog":
        from lbq.formats.device import export_verilog  # noqa: PLC0415

        export_verilog(network, out)
        bench = out.with_name(f"{out.stem}_tb.v")
        return (
            f"{bench}: a testbench with four random samples; memories: {out.stem}_*.hex",
            f"run it in {out.parent}: iverilog -g2005 -o sim {bench.name} {out.name} && ./sim",
        )
    else:
        from lbq.formats.bundle import save_network  # noqa: PLC0415

        save_network(network, out)
    return ()


def _open(arguments: ExportArguments) -> tuple[LoweredNetwork, tuple[str, ...]]:
    """Return the network, and notes about how it was lowered."""
    options = arguments.options
    if arguments.source.is_dir() or is_pretrained(arguments.source):
        if options.bits is None and arguments.to == "nir":
            options = replace(options, bits="float")
        lowered = lower_run(arguments.source, options)
        return lowered.network, lowered.notes
    if options != LoweringOptions():
        raise UsageError(
            f"{arguments.source} is not the folder of a run: --bits, --calibrate, --model, --data, "
            f"--cache, --size and --step belong to `lbq lower`"
        )
    if not arguments.source.is_file():
        raise FormatError(f"there is no bundle and no run at {arguments.source}")
    return load_bundle(arguments.source), ()
