"""Without any extra the library works; what is missing is named with its install line."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from lbq.errors import install_command

ROOT = Path(__file__).parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

LOADERS = {  # package: what needs it
    "datasets": 'data.open_data(data.DataConfig(source="here"), cache=Path("cache"))',
    "pillow": 'encoded_images.decode_image(b"", "one.png")',
    "tensorboard": 'metrics.TensorBoardCallback(Path("charts"))',
    "onnx": 'export_onnx(net, "net.onnx")',
    "onnxruntime": 'OnnxRunner("net.onnx")',
    "openvino": 'OnnxRunner("net.onnx", engine="openvino")',
    "huggingface-hub": 'from_pretrained("owner/name")',
    "nir": 'export_nir(net, "net.nir")',
    "matplotlib": 'importlib.import_module("lbq.analysis.figures")',
}

BARE = """
import importlib, json, pkgutil, sys
from pathlib import Path

EXTRAS = {"datasets", "pyarrow", "PIL", "tensorboard", "onnx", "onnxruntime", "openvino", "nir",
          "h5py", "matplotlib", "huggingface_hub", "brevitas", "neurobench", "spikingjelly",
          "jaxtyping", "beartype", "triton", "ray"}

class Blocker:  # as if none of them were installed
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
        return None

import torch._dynamo  # asks which packages there are by find_spec, and expects None
sys.meta_path.insert(0, Blocker())
import torch
import lbq
from lbq.errors import MissingExtraError
refused = []
for module in pkgutil.walk_packages(lbq.__path__, "lbq."):
    if module.name.endswith(("__main__", "._native", "triton_kernels")):
        continue
    try:
        importlib.import_module(module.name)
    except MissingExtraError:
        refused.append(module.name)

from lbq import data
from lbq.adapters.hub import from_pretrained
from lbq.data import encoded_images
from lbq.formats.nir import export_nir
from lbq.formats.onnx import export_onnx
from lbq.formats.onnx import OnnxRunner
from lbq.train import metrics

net = lbq.lower(lbq.resnet20(10, width=1 / 64).eval(), torch.zeros(1, 3, 8, 8))
Path("net.onnx").write_bytes(b"")
said = {}
for package, load in json.loads(sys.argv[1]).items():
    try:
        eval(load)
        said[package] = "nothing was missing"
    except MissingExtraError as error:
        said[package] = str(error)
from lbq.cli.main import main
code = main(["report", "nowhere"])
print(json.dumps({"refused": refused, "said": said, "code": code}))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """What a process without any extra has to say."""
    command = [sys.executable, "-c", BARE, json.dumps(LOADERS)]
    folder = tmp_path_factory.mktemp("bare")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}


def test_only_drawing_and_other_tools_need_more_to_be_imported(bare):
    assert set(bare["refused"]) <= {
        "lbq.adapters.brevitas",
        "lbq.adapters.neurobench",
        "lbq.adapters.spikingjelly",
        "lbq.analysis.figures",
        "lbq.analysis.report",
    }


@pytest.mark.parametrize("package", LOADERS)
def test_a_missing_package_is_named_with_the_line_that_installs_it(package, bare):
    [line] = re.findall(r"pip install (.*)", bare["said"][package])
    named = shlex.split(line)
    assert named in DECLARED.values()  # the packages themselves: no index has lbq
    assert package in [re.match(r"[\w-]+", name)[0] for name in named]


def test_a_command_says_it_in_one_line(bare):
    assert bare["code"] == 1
    [line] = [line for line in bare["stderr"].splitlines() if line.startswith("error: ")]
    assert line.endswith(": pip install matplotlib")


def test_no_text_offers_lbq_from_an_index():
    told = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    assert not [path for path in told if re.search(r"pip install '?lbq", path.read_text())]


def test_without_metadata_the_hint_names_the_file_that_lists_the_packages(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", missing)
    assert install_command("nir") == "install what pyproject.toml lists as nir"


def test_the_promised_extras_are_there():
    assert set(DECLARED) == {
        "data",
        "hub",
        "train",
        "onnx",
        "openvino",
        "nir",
        "ray",
        "report",
        "dev",
        "docs",
    }


def test_every_extra_but_docs_is_part_of_the_developers_own():
    names = {
        re.match(r"[\w-]+", line)[0]
        for extra, lines in DECLARED.items()
        if extra not in ("dev", "docs")
        for line in lines
    }
    assert names <= {re.match(r"[\w-]+", line)[0] for line in DECLARED["dev"]}
