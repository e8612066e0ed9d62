"""Enumerations that cross languages have one order, that of a header in ``native``."""

import re
from pathlib import Path
from typing import get_args

import pytest

from lbq.formats import RULES
from lbq.formats.bundle.container import DTYPES
from lbq.graph.operators import OPERATORS, IntegerNeuron, Readout, RealNeuron
from lbq.graph.operators.level_neuron import RESETS
from lbq.kernels.baseline_scan import Baseline
from lbq.kernels.native_scan import DTYPES as SCAN_DTYPES
from lbq.kernels.native_scan import RESET_MODES
from lbq.kernels.scan_interface import Keep
from lbq.runtime.native_engine import CHOICES
from lbq.types import ResetMode

NATIVE = Path(__file__).parents[2] / "native"


def header(name):
    """Return a header or source without comments."""
    text = (NATIVE / name).read_text()
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def c_enumeration(name, file, prefix):
    """Return the names behind a prefix, whose numbers must count from the first one on."""
    names, first = [], 0
    (body,) = re.findall(rf"enum \{{([^}}]*)\}} {name};", header(file))
    for entry in filter(None, (part.strip() for part in body.split(","))):
        enumerator, _, number = entry.partition(" = ")
        if enumerator.startswith(prefix):
            first = first if names else int(number)
            assert number in {"", str(first + len(names))}, f"{entry} is not in its place"
            names.append(enumerator.removeprefix(prefix).lower())
    return names


def listed(macro, file):
    """Return what a list ``#define MACRO(with) with(...) with(...)`` holds."""
    (body,) = re.findall(rf"#define {macro}\(with\)((?:.*\\\n)*.*)", header(file))
    return re.findall(r"with\((.*?)\)", body)


def members(name, file):
    """Return the enumerators of an ``enum class``, without their k."""
    (body,) = re.findall(rf"enum class {name} : \w+ \{{([^}}]*)\}};", header(file))
    return [snake_case(part.strip().removeprefix("k")) for part in body.split(",")]


def snake_case(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_reset_modes():
    resets = c_enumeration("lbq_reset_mode", "include/lbq.h", "LBQ_RESET_")
    assert resets == list(RESETS)
    assert [resets[number] for number in RESET_MODES.values()] == list(RESET_MODES)
    assert tuple(RESET_MODES) == get_args(ResetMode)


@pytest.mark.parametrize(
    ("name", "file", "prefix", "expected"),
    [
        ("lbq_baseline", "include/lbq.h", "LBQ_", get_args(Baseline)),
        ("lbq_saved", "include/lbq.h", "LBQ_SAVE_", get_args(Keep)),
        ("lbq_model_status", "include/lbq_model.h", "LBQ_RULE_", RULES),
    ],
)
def test_numbers_of_the_c_headers(name, file, prefix, expected):
    found = c_enumeration(name, file, prefix)
    assert found == [re.sub(r"[ -]", "_", word) for word in expected]


def test_statuses():
    model = c_enumeration("lbq_model_status", "include/lbq_model.h", "LBQ_MODEL_")
    engine = c_enumeration("lbq_engine_status", "engine/c_api.h", "LBQ_ENGINE_")
    kernels = c_enumeration("lbq_status", "include/lbq.h", "LBQ_")
    assert kernels[:2] == engine[:2] == model[:2] == ["ok", "bad_argument"]  # 0: success
    names = re.findall('"([a-z-]+)"', header("reader/rules.cc").partition("kStatuses[] =")[2])
    assert [name.replace("-", "_") for name in names] == [
        *model,
        *c_enumeration("lbq_model_status", "include/lbq_model.h", "LBQ_RULE_"),
    ]


def test_dtypes():
    scan = c_enumeration("lbq_dtype", "include/lbq.h", "LBQ_")
    assert scan == [str(dtype).replace("torch.", "").replace("float", "f") for dtype in SCAN_DTYPES]
    sizes = [f"{name}, {dtype.itemsize}" for name, dtype in DTYPES.items()]
    assert listed("LBQ_TYPES", "reader/manifest.h") == sizes


def test_operators():
    kinds = [snake_case(name) for name in listed("LBQ_OPERATORS", "engine/network.h")]
    integer = [kind.op for kind in OPERATORS if kind is not RealNeuron]
    assert sorted(kinds) == sorted(integer)
    assert IntegerNeuron.op in kinds


def test_settings_of_the_engine():
    assert members("Choice", "engine/engine.h") == list(CHOICES)
    kinds = get_args(Readout.settings()["over_time"])
    assert members("OverTime", "engine/network.h") == list(kinds)
