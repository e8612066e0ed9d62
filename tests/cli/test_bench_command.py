import io
import json

import numpy as np
import pytest
from bundles import tiny_network

import lbq
from lbq.cli.bench_command import tabulate
from lbq.cli.main import main
from lbq.cli.terminal import Console
from lbq.kernels import native_scan as kernels
from lbq.runtime.native_engine import LayerTime, NetworkTime

pytestmark = pytest.mark.skipif(kernels.isa() is None, reason="the native library is not built")


@pytest.fixture
def network(tmp_path):
    lbq.save_network(tiny_network(), tmp_path / "net.lbq")
    return tmp_path / "net.lbq"


def bench(capsys, *words):
    assert main(["bench", *map(str, words), "--rounds", "2", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_layer_has_its_density_kernel_time_and_rate(capsys, network):
    found = bench(capsys, network)
    assert found["inputs"].startswith("noise")
    paths = {layer["path"] for layer in found["layers"]}
    assert {path for path, _ in tiny_network().neurons()} <= paths
    for layer in found["layers"]:
        assert layer["seconds"] > 0
        assert layer["kernel"] in ("events", "dense", "plain")
        assert layer["pair_density"] is None or 0 <= layer["pair_density"] <= 1
        assert layer["mac_per_second"] == pytest.approx(layer["products"] / layer["seconds"])
    assert found["seconds"] == pytest.approx(sum(layer["seconds"] for layer in found["layers"]))


def test_the_table_ends_with_everything_and_names_the_limit(capsys, network):
    assert main(["bench", str(network), "--rounds", "2"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "active pairs kernel us G MAC/s of the limit" in words
    assert " all " in words
    assert "the dense kernel on an ideal layer" in words


def test_own_inputs_decide_the_density(capsys, network, tmp_path):
    shape = (4, *tiny_network().input_shape)
    if tiny_network().takes_frames:
        shape = (tiny_network().timesteps, *shape)
    for name, value in (("black", 0), ("white", 255)):
        np.save(tmp_path / f"{name}.npy", np.full(shape, value, dtype=np.uint8))
    seen = [
        bench(capsys, network, "--inputs", tmp_path / f"{name}.npy", "--batch", 4)["layers"][0]
        for name in ("black", "white")
    ]
    assert [layer["pair_density"] for layer in seen] == [0, 1]


def test_the_test_set_of_the_recipe_is_taken_if_it_is_there(capsys, bundle):
    found = bench(capsys, bundle, "--batch", 2)
    assert not found["inputs"].startswith("noise")
    assert found["batch"] == 2


def test_a_file_that_is_not_there_is_named(capsys, tmp_path):
    assert main(["bench", str(tmp_path / "none.lbq")]) == 1
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--batch", "5"], 2, "--batch must be in 1..4, got 5"),
        (["--rounds", "0"], 2, "--rounds must be at least 1"),
        (["--inputs", "nowhere.npy"], 1, "--inputs nowhere.npy is not a readable .npy"),
        (["--isa", "abacus"], 1, "no such instruction set"),
        (["--data", "nowhere"], 1, "Recipe lacks epochs, batch, data"),
    ],
)
def test_user_errors_are_one_line(words, code, message, capsys, network):
    assert main(["bench", str(network), *words]) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]


def test_inputs_of_another_kind_are_refused(capsys, network, tmp_path):
    np.save(tmp_path / "real.npy", np.zeros((4, 2, 5, 5)))
    assert main(["bench", str(network), "--inputs", str(tmp_path / "real.npy")]) == 1
    assert "expected uint8" in capsys.readouterr().err


def test_a_line_break_in_a_name_does_not_break_the_table():
    layer = LayerTime(path="a\nb\tc", seconds=1e-6, kernel="dense", pair_density=0.5, products=10)
    console = Console(width=200, file=io.StringIO())
    times = NetworkTime(isa="avx2", limit=1e9, layers=(layer, layer))
    console.print(tabulate(times), markup=False)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4  # with heading and sum
    assert r"a\nb\tc" in lines[1]
