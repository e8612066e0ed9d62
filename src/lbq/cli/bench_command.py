"""``lbq bench FILE``: the time of every layer of an integer network on this machine."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.table import Table
from torch import Tensor

from lbq.cli.args import UsageError, check_count, read
from lbq.cli.eval_command import load_bundle
from lbq.cli.samples import open_samples, origin_recipe, sample_batches
from lbq.cli.terminal import Console, one_line
from lbq.errors import FormatError, LBQError, ParameterError
from lbq.graph import LoweredNetwork
from lbq.runtime.native_engine import MAX_TIMED_IMAGES, Choice, NetworkTime, time_layers

EXAMPLES = {
    "lbq bench net.lbq": "one test image on one thread: density, kernel, time and rate per layer",
    "lbq bench net.lbq --inputs images.npy --batch 4": "with your own images, four at once",
    "lbq bench net.lbq --choice dense --isa avx2 --json": "one kernel, for a program to read",
}


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """Time every layer of an integer network on the native engine, on one thread.

    Rates count the products of a dense engine. The limit is the rate of the engine's own dense
    kernel on an ideal layer on this machine, measured at the same time; events can exceed it.
    """

    file: Annotated[Path, tyro.conf.Positional]
    """A bundle of integers, as `lbq lower` writes it."""
    inputs: Path | None = None
    """A .npy file of uint8 inputs; else test samples of the recipe, else noise."""
    batch: int = 1
    """Inputs at once, at most 4."""
    rounds: int = 20
    """Number of runs; the fastest time of every layer counts."""
    choice: Choice = "measured"
    """Choose the kernel by the share of active levels, or always use one."""
    isa: str | None = None
    """Instruction set; the best one that LBQ_ISA allows by default."""
    data: str | None = None
    """Data source, if not the recipe's."""
    cache: Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    json: bool = False
    """Print one JSON object instead of a table."""
    debug: bool = False
    """Show tracebacks of errors."""


def run(words: Sequence[str]) -> int:
    """Run the command with the arguments of ``lbq bench``."""
    arguments = read(BenchArguments, words, command="lbq bench", examples=EXAMPLES)
    check_count("--rounds", arguments.rounds, at_least=1)
    if not 1 <= arguments.batch <= MAX_TIMED_IMAGES:
        raise UsageError(f"--batch must be in 1..{MAX_TIMED_IMAGES}, got {arguments.batch}")
    if not arguments.file.is_file():
        raise FormatError(f"there is no file {arguments.file}")
    network = load_bundle(arguments.file)
    inputs, source = choose_inputs(network, arguments)
    times = time_layers(
        network,
        inputs,
        rounds=arguments.rounds,
        choice=arguments.choice,
        isa=arguments.isa,
    )
    if arguments.json:
        found = {"file": str(arguments.file), "batch": arguments.batch, "inputs": source}
        line = json.dumps(found | describe(times))
        Console(soft_wrap=True).print_text(line)
        return 0
    console = Console()
    console.print(tabulate(times), markup=False)
    console.print(
        f"{times.isa}, one thread, {arguments.batch} of {source}; the limit is "
        f"{times.limit / 1e9:.1f} G MAC/s, the dense kernel on an ideal layer",
        markup=False,
        highlight=False,
    )
    return 0


def choose_inputs(network: LoweredNetwork, arguments: BenchArguments) -> tuple[Tensor, str]:
    """Return inputs and where they come from: densities mean little without real ones."""
    batch = arguments.batch
    if arguments.inputs is not None:
        return _read_inputs(arguments.inputs, batch, takes_frames=network.takes_frames)
    try:
        recipe = origin_recipe(network.origin, source=arguments.file)
        data = open_samples(recipe, source=arguments.data, cache=arguments.cache)
    except LBQError:
        if arguments.data is not None:
            raise
        generator = torch.Generator().manual_seed(0)
        example = network.example(batch)
        noise = torch.randint(0, 256, example.shape, dtype=torch.uint8, generator=generator)
        return noise, "noise (real images: --inputs images.npy)"
    return next(iter(sample_batches(data, limit=batch, batch=batch))).raw, f"{recipe.data.source}"


def _read_inputs(path: Path, batch: int, *, takes_frames: bool) -> tuple[Tensor, str]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ParameterError(f"--inputs {path} is not a readable .npy file: {error}") from None
    axis = 1 if takes_frames else 0
    if array.dtype != np.uint8 or array.ndim <= axis or array.shape[axis] < batch:
        raise ParameterError(
            f"--inputs {path} holds {array.dtype} {list(array.shape)}; expected uint8 with at "
            f"least {batch} samples along axis {axis}"
        )
    chosen = array[:, :batch] if takes_frames else array[:batch]
    return torch.from_numpy(np.ascontiguousarray(chosen)), path.name


def describe(times: NetworkTime) -> dict[str, Any]:
    """Return all measurements as data."""
    layers = [
        asdict(layer) | {"mac_per_second": layer.rate, "share_of_limit": times.share(layer)}
        for layer in times.layers
    ]
    seconds = sum(layer.seconds for layer in times.layers)
    return {
        "isa": times.isa,
        "limit_mac_per_second": times.limit,
        "seconds": seconds,
        "layers": layers,
    }


def tabulate(times: NetworkTime) -> Table:
    """Draw a row per layer, and one for all of them."""
    table = Table(box=None, pad_edge=False)
    table.add_column("layer", overflow="fold")
    for name in ("active pairs", "kernel", "us", "G MAC/s", "of the limit"):
        table.add_column(name, justify="left" if name == "kernel" else "right")
    for layer in times.layers:
        is_plain = layer.products == 0
        table.add_row(
            one_line(layer.path),
            "" if layer.pair_density is None else f"{layer.pair_density:.1%}",
            layer.kernel,
            f"{layer.seconds * 1e6:,.1f}",
            "" if is_plain else f"{layer.rate / 1e9:.1f}",
            "" if is_plain else f"{times.share(layer):.0%}",
        )
    seconds = sum(layer.seconds for layer in times.layers)
    rate = sum(layer.products for layer in times.layers) / seconds
    summary = (f"{seconds * 1e6:,.1f}", f"{rate / 1e9:.1f}", f"{rate / times.limit:.0%}")
    table.add_row("all", "", "", *summary)
    return table
