"""Imports only go downward between packages, and each foreign tool has one owner."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))

LAYERS = [
    {"types", "errors", "atomic_files", "omp_wait_policy"},
    {"ranges", "preprocessing"},
    {"config_io"},
    {"functional"},
    {"kernels"},
    {"neurons", "data"},
    {"models"},
    {"deploy"},
    {"cost"},
    {"train"},
    {"formats", "pretrained"},
    {"analysis", "export", "predictor"},
    {"adapters", "auditing"},
    {"cli"},
]
LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}

OWNERS = {
    "torch.distributed": ("lbq/train/distributed.py",),
    "torch.fx": ("lbq/deploy/capture.py", "lbq/adapters/relu_to_neuron.py"),  # reads | rewrites
    "matplotlib": ("lbq/analysis/figures.py",),
    "triton": ("lbq/kernels/triton_kernels.py",),
    "PIL": ("lbq/data/encoded_images.py", "lbq/data/autoaugment.py"),
    "datasets": ("lbq/data/images.py",),
    "pyarrow": ("lbq/data/images.py",),
    "h5py": ("lbq/formats/nir.py",),
    "nir": ("lbq/formats/nir.py",),
    "onnx": ("lbq/formats/onnx_graph.py",),
    "onnxruntime": ("lbq/formats/onnx_run.py",),
    "openvino": ("lbq/formats/onnx_run.py",),
    "spikingjelly": ("lbq/adapters/spikingjelly.py",),
    "neurobench": ("lbq/adapters/neurobench.py",),
    "brevitas": ("lbq/adapters/brevitas.py",),
    "huggingface_hub": ("lbq/adapters/hub.py",),
}

CORE = {"lbq", "torch", "numpy", "safetensors", "tyro", "rich", "jaxtyping"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module
            if node.module in ("lbq", "torch"):  # whose names may be modules
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(path):
    return path.relative_to(ROOT / "src" / "lbq").with_suffix("").parts[0]


def named(path):
    return str(path.relative_to(ROOT / "src"))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_only_go_down_the_layers(path):
    here = package_of(path)
    if here == "__init__":
        return  # it may import everything
    for module in imports(path):
        assert not module.startswith("lbq_paper"), "the library never imports its users"
        there = module.split(".")[1] if module.startswith("lbq.") else here
        if there != here and there != "__version__":
            assert LAYER_OF[there] < LAYER_OF[here], (
                f"{here} imports a package that is not below it: {module}"
            )


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_foreign_tools_have_one_owner(path):
    for module in imports(path):
        for tool, owner in OWNERS.items():
            if module == tool or module.startswith(tool + "."):
                assert named(path) in owner


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_the_core_imports_only_what_it_declares(path):
    for module in imports(path):
        top = module.split(".")[0]
        declared = CORE | set(OWNERS)
        assert top in declared or top in sys.stdlib_module_names, module
