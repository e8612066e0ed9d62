import json

import pytest

from lbq.cli.main import main
from lbq.formats.bundle import digest, load_network

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_a_bundle_copies_to_itself(bundle, tmp_path, capsys):
    out = tmp_path / "copy.lbq"
    assert main(["export", str(bundle), "--to", "bundle", "--out", str(out)]) == 0
    assert digest(out) == digest(bundle)
    assert "integers" in capsys.readouterr().out


def test_what_was_written_is_data_if_asked(bundle, tmp_path, capsys):
    out = tmp_path / "copy.lbq"
    assert main(["export", str(bundle), "--to", "bundle", "--out", str(out), "--json"]) == 0
    size = out.stat().st_size
    assert json.loads(capsys.readouterr().out) == {
        "file": str(out), "format": "bundle", "bytes": size, "is_integer": True, "notes": [],
        "replaced": False,
    }  # fmt: skip
    assert main(["export", str(bundle), "--to", "bundle", "--out", str(out)]) == 0
    assert f"{out} was there before and is replaced" in capsys.readouterr().out


def test_a_run_is_lowered_on_the_way(trained, tmp_path):
    out = tmp_path / "net.lbq"
    words = ["export", str(trained), "--to", "bundle", "--out", str(out), "--bits", "16"]
    assert main(words) == 0
    assert load_network(out).is_integer
    assert load_network(out).operators["stages.0.0.synapse1.0"].bits == 16


def test_so_is_a_pretrained_network(without_data, tmp_path):
    out = tmp_path / "net.lbq"
    words = ["export", "pocket-cifar10", "--to", "bundle", "--out", str(out)]
    assert main(words) == 0
    assert load_network(out).origin["pretrained"] == "pocket-cifar10"


def test_nir_gets_real_numbers_of_a_run_and_refuses_integers(trained, bundle, tmp_path, capsys):
    out = tmp_path / "net.nir"
    assert main(["export", str(trained), "--to", "nir", "--out", str(out)]) == 0
    assert "real numbers" in capsys.readouterr().out
    assert main(["export", str(bundle), "--to", "nir", "--out", str(out)]) == 1
    assert "--bits float" in capsys.readouterr().err


def test_c_comes_with_its_header_and_verilog_with_its_testbench(bundle, tmp_path, capsys):
    assert main(["export", str(bundle), "--to", "c", "--out", str(tmp_path / "net.c")]) == 0
    assert (
        "int net_run(const uint8_t *pixels, int32_t *logits);" in (tmp_path / "net.h").read_text()
    )
    assert "bytes of constants" in capsys.readouterr().out
    words = ["export", str(bundle), "--to", "verilog", "--out", str(tmp_path / "net.v")]
    assert main(words) == 0
    assert "module net_tb;" in (tmp_path / "net_tb.v").read_text()
    assert main(["export", str(bundle), "--to", "onnx", "--events", "--out", "net.onnx"]) == 2
    assert "--events is for --to c" in capsys.readouterr().err
    assert main(["export", str(bundle), "--to", "c", "--out", str(tmp_path / "net")]) == 1
    assert "path must name a .c file" in capsys.readouterr().err
