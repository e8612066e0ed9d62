import importlib
import random
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import tiny_network
from equivalence import engines
from formats.bundle import mutate
from random_graphs import RandomGraph

import lbq
from lbq.formats.device import export_c
from lbq.graph.graph import INPUT, GraphBuilder

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
WARNINGS = ("all", "extra", "conversion", "shadow", "undef", "cast-qual", "error")
FLAGS = (
    *("-std=c99", "-ffreestanding", "-pedantic", "-O1"),
    *(f"-W{name}" for name in WARNINGS),
    *("-fsanitize=undefined", "-fno-sanitize-recover=all"),
)
MAIN = """
#include "net.h"
#include <stdio.h>
int main(void)
{
    static uint8_t pixels[NET_INPUTS];
    static int32_t logits[NET_OUTPUTS];
    while (fread(pixels, 1, NET_INPUTS, stdin) == NET_INPUTS) {
        net_run(pixels, logits);
        fwrite(logits, sizeof *logits, NET_OUTPUTS, stdout);
    }
    return 0;
}
"""


def run_c(network, inputs, folder, *, events=False, compiler="gcc", flags=FLAGS):
    """Compile a network; return its integers for all samples, one row each."""
    found = export_c(network, folder / "net.c", events=events)
    (folder / "main.c").write_text(MAIN)
    program = folder / "net"
    command = [compiler, *flags, "-o", str(program), str(folder / "net.c")]
    if "-ffreestanding" in flags:
        main = [flag for flag in flags if flag != "-ffreestanding"]
        subprocess.run(
            [compiler, *main, "-c", "-o", str(folder / "main.o"), str(folder / "main.c")],
            check=True,
        )
        command.append(str(folder / "main.o"))
    subprocess.run(command, check=True)
    samples = inputs.transpose(0, 1) if network.takes_frames else inputs
    done = subprocess.run(
        [str(program)],
        input=samples.contiguous().numpy().tobytes(),
        capture_output=True,
        check=True,
    )
    return np.frombuffer(done.stdout, "<i4").reshape(len(samples), -1), found


def expected(network, inputs):
    """Return the integers of the dense backend, one row per sample."""
    outputs = lbq.run_network(network, inputs, backend="dense")
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    rows = []
    for path, output in zip(network.outputs, several, strict=True):
        has_time = network.values()[path].has_time
        rows.append((output.transpose(0, 1) if has_time else output).flatten(1).numpy())
    return np.concatenate(rows, 1)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_compute_the_same_integers(seed, compiler, tmp_path):
    model = RandomGraph(5000 + seed)
    inputs = model.inputs()
    net = engines.integer_network(
        model, inputs, bits=(4, 8, 16)[seed % 3], calibrate=seed % 2, batch_axis=model.batch_axis
    )
    for events in (False, True):
        found, _ = run_c(net, inputs, tmp_path, events=events, compiler=compiler)
        assert np.array_equal(found, expected(net, inputs))


def mutants(network, folder, count):
    """Yield networks whose bundles were changed and are still valid, with inputs."""
    torch.manual_seed(0)
    dice, path = random.Random(0), folder / "mutant.lbq"
    lbq.save_network(network, path)
    data = path.read_bytes()
    while count:
        path.write_bytes(mutate.mutate(data, dice)[1])
        try:
            network = lbq.load_network(path)
        except lbq.LBQError:
            continue
        is_small = sum(value.size for value in network.values().values()) < 2**14
        if network.is_integer and is_small and network.timesteps < 9:
            count -= 1
            shape = network.example(3).shape
            yield network, torch.randint(0, 256, shape, dtype=torch.uint8)


def test_a_mutated_bundle_gives_its_own_answers_or_none(tmp_path):
    for network, inputs in mutants(tiny_network(), tmp_path, 15):
        found, _ = run_c(network, inputs, tmp_path)
        assert np.array_equal(found, expected(network, inputs))


def renamed(network, name):
    """Return a network whose nodes have other paths."""
    keys = ("timesteps", "input_shape", "takes_frames", "logit_scale")
    found = GraphBuilder(**{key: getattr(network, key) for key in keys})
    paths = {INPUT: INPUT}
    for path, operator, inputs in network.nodes:
        paths[path] = found.add(name, operator, *(paths[before] for before in inputs))
    return found.finish()


@pytest.mark.parametrize("name", ["x */ logits[0] = 7; /*", "pixels", "t * 2", "a??/", "n\né"])
def test_the_paths_of_nodes_are_no_code(name, tmp_path):
    network = renamed(tiny_network(), name)
    inputs = torch.randint(0, 256, network.example(3).shape, dtype=torch.uint8)
    found, source = run_c(network, inputs, tmp_path)
    assert np.array_equal(found, expected(network, inputs))
    assert source.source.isascii()


@pytest.mark.parametrize("name", ["9.c", "my-net.2.c"])
def test_the_name_of_the_file_becomes_an_identifier(name, tmp_path):
    export_c(tiny_network(), tmp_path / name)
    subprocess.run([COMPILERS[0], *FLAGS, "-c", name], cwd=tmp_path, check=True)


@pytest.mark.parametrize("name", ["net.h", 'a".c', "my net.c"])
def test_a_wrong_file_name_is_refused(name, tmp_path):
    with pytest.raises(lbq.LBQError, match=r"must name a \.c file"):
        export_c(tiny_network(), tmp_path / name)


@pytest.mark.parametrize(
    ("name", "shape"), [("tiny_cifar", (4, 3, 16, 16)), ("tiny_nmnist", (2, 4, 2, 17, 17))]
)
def test_the_tiny_recipes_fit_into_64_kilobytes(name, shape, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "examples" / "recipes")
    torch.manual_seed(0)
    model, inputs = importlib.import_module(name).network().eval(), torch.randint(0, 256, shape)
    lowered = lbq.lower(model, inputs.float(), batch_axis=len(shape) - 4)
    inputs, net = inputs.to(torch.uint8), lbq.to_fixed_point(lowered, bits=8, pixels=None)
    found, source = run_c(net, inputs, tmp_path)
    assert np.array_equal(found, expected(net, inputs))
    assert source.flash_bytes + source.ram_bytes < 60 * 1024  # the rest is code


def test_a_network_of_real_numbers_is_refused(tmp_path):
    net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
    with pytest.raises(lbq.LBQError, match=r"integer networks.*--bits 8"):
        export_c(net, tmp_path / "net.c")


def test_the_source_is_shown_by_its_sizes(tmp_path):
    shown = repr(export_c(tiny_network(), tmp_path / "net.c"))
    assert shown.startswith("CSource(flash_bytes=")
    assert len(shown) < 100
