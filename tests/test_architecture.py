"""Imports only go downward between packages, and each foreign tool has one owner."""

import ast
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))

LAYERS = [  # from below; what a package may import lies below it
    {
        "types": "names of tensors and their axes",
        "errors": "exceptions",
        "atomic_files": "replaces files at once",
        "omp_wait_policy": "how threads wait",
    },
    {
        "ranges": "ranges of settings",
        "preprocessing": "`Pixels`",
        "carries": "the state of a stream",
        "functional": "the paper's equations",
    },
    {
        "config_io": "JSON and dataclasses",
        "time": "the time axis",
        "kernels": "the multi-step neuron as one operator",
    },
    {"neurons": "neurons, steps, surrogates", "data": "data sets, augmentation, batches"},
    {
        "models": "blocks, ResNets, transformers",
        "graph": "operators, the graph, its capture, the overflow proof",
    },
    {"runtime": "running lowered networks"},
    {"lowering": "from a trained network to a graph, and to integers"},
    {"formats": "files", "cost": "operation counts, energy, budgets"},
    {"train": "training"},
    {
        "analysis": "statistics, figures, reports",
        "pretrained": "networks shipped with the package",
        "export": "`lbq.export`",
        "predictor": "`lbq.Predictor`",
    },
    {"adapters": "other libraries", "auditing": "`lbq.audit`"},
    {"cli": "the command line"},
]
LAYER_OF = {package: layer for layer, packages in enumerate(LAYERS) for package in packages}
WRITE = "LBQ_WRITE_PAGES" in os.environ
MAP = ROOT / "ARCHITECTURE.md"

OWNERS = {
    "torch.distributed": ("lbq/train/distributed.py",),
    "torch.fx": ("lbq/graph/capture.py", "lbq/adapters/relu_to_neuron.py"),  # reads | rewrites
    "matplotlib": ("lbq/analysis/figures.py",),
    "triton": ("lbq/kernels/triton_kernels.py",),
    "PIL": ("lbq/data/encoded_images.py", "lbq/data/autoaugment.py"),
    "datasets": ("lbq/data/images.py",),
    "pyarrow": ("lbq/data/images.py",),
    "h5py": ("lbq/formats/nir.py",),
    "nir": ("lbq/formats/nir.py",),
    "onnx": ("lbq/formats/onnx/graph.py",),
    "onnxruntime": ("lbq/formats/onnx/run.py",),
    "openvino": ("lbq/formats/onnx/run.py",),
    "spikingjelly": ("lbq/adapters/spikingjelly.py",),
    "neurobench": ("lbq/adapters/neurobench.py",),
    "brevitas": ("lbq/adapters/brevitas.py",),
    "huggingface_hub": ("lbq/adapters/hub.py",),
}

CORE = {"lbq", "torch", "numpy", "safetensors", "tyro", "rich", "jaxtyping"}


def module_name(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in SOURCES}


def imports(path):
    """Yield what a file imports, in functions too; a name that is a module as that module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            yield from names & MODULES.keys()
            if names - MODULES.keys():
                yield node.module
            if node.module == "torch":  # whose names may be modules
                yield from names


def package_of(module):
    return module.split(".")[1] if module.startswith("lbq.") else module


def named(path):
    return str(path.relative_to(ROOT / "src"))


def layers_that_are_wrong(module, imported):
    """List the imports of a library's module that do not go down."""
    here, wrong = package_of(module), []
    for each in imported:
        there = package_of(each)
        if there == here or each.split(".")[0] not in ("lbq", "lbq_paper"):
            continue
        if LAYER_OF.get(there, len(LAYERS)) >= LAYER_OF[here]:
            wrong.append(each)
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_imports_only_go_down_the_layers(path):
    module = module_name(path)
    if module == "lbq":
        return  # it may import everything
    imported = set(imports(path))
    if package_of(module) == "cli":
        imported -= {"lbq"}  # its version
    assert not layers_that_are_wrong(module, imported)


def test_imports_that_go_up_sideways_or_to_the_top_are_seen():
    assert layers_that_are_wrong("lbq.cost.budget", ["lbq.train.engine"]) == ["lbq.train.engine"]
    assert layers_that_are_wrong("lbq.cost.budget", ["lbq.formats.nir"]) == ["lbq.formats.nir"]
    assert layers_that_are_wrong("lbq.train.provenance", ["lbq"]) == ["lbq"]
    assert layers_that_are_wrong("lbq.cli.main", ["lbq_paper.runner"]) == ["lbq_paper.runner"]
    assert layers_that_are_wrong("lbq.train.engine", ["lbq.cost.budget", "torch"]) == []


def test_every_package_has_a_layer():
    found = {package_of(module) for module in MODULES} - {"lbq"}
    assert {package for package in found if not package.startswith("_")} == LAYER_OF.keys()


def circles(graph):
    """Return the modules that import themselves, by way of others."""

    def reached(start):
        found, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    return sorted(module for module in graph if module in reached(module))


def test_no_module_imports_itself_by_way_of_others():
    graph = {name: set(imports(path)) & MODULES.keys() for name, path in MODULES.items()}
    assert circles(graph) == []


def test_circles_are_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]


def diagram():
    """Print the layers, the highest first."""
    lines = []
    for layer, packages in reversed(list(enumerate(LAYERS))):
        number = f"{layer:2d}"
        for package, what in packages.items():
            lines.append(f"{number}  {package:<16}{what}".rstrip())
            number = "  "
    return "```\n" + "\n".join(lines) + "\n```"


def test_the_map_has_the_diagram_of_the_layers():
    """``LBQ_WRITE_PAGES=1 pytest tests/test_architecture.py`` writes it anew."""
    text = MAP.read_text()
    before, _, rest = text.partition("```\n")
    _, _, after = rest.partition("\n```")
    if WRITE:
        MAP.write_text(before + diagram() + after)
    assert MAP.read_text() == before + diagram() + after


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
