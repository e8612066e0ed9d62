"""The GPU kernels compiled to machine code, without a GPU: what the interpreter cannot know."""

import os
import re
import subprocess
import sys

import pytest
import torch
from kernels.baseline_cases import NEURONS
from kernels.cases import draw_case
from kernels.isas import require_triton

from lbq.kernels import ScanOptions, force_implementation, triton_baseline_scan
from lbq.kernels import triton_scan as binding
from lbq.kernels.scan_interface import layout_for

require_triton()
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("nothing is compiled under TRITON_INTERPRET=1", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.driver import driver  # noqa: E402

from lbq.kernels import triton_kernels  # noqa: E402

AMPERE, HOPPER, BLACKWELL = (GPUTarget("cuda", arch, 32) for arch in (80, 90, 100))
TURING, MI300 = GPUTarget("cuda", 75, 32), GPUTarget("hip", "gfx942", 64)


class NamedTarget:
    """Stands where the driver of a GPU would, and says which GPU that is."""

    def __init__(self, target):
        self.target = target

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.target

    def get_current_stream(self, device):
        return 0


class CompiledOnly:
    """Compiles a kernel for exactly the arguments that it is launched with, and keeps the code."""

    def __init__(self, kernel):
        self.kernel, self.codes = kernel, []

    def __getitem__(self, grid):
        def launch(*arguments, **keywords):
            self.codes.append(self.kernel.warmup(*arguments, grid=grid, **keywords).asm)

        return launch


@pytest.fixture
def compile_for(monkeypatch, tmp_path):
    """Run the binding on CPU tensors and return the code of both passes."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    passes = [
        CompiledOnly(triton_kernels.burst_forward),
        CompiledOnly(triton_kernels.burst_backward),
    ]
    monkeypatch.setattr(triton_kernels, "burst_forward", passes[0])
    monkeypatch.setattr(triton_kernels, "burst_backward", passes[1])

    def compile_passes(target, inputs, options):
        monkeypatch.setattr(driver, "_active", NamedTarget(target))
        binding.kernels.cache_clear()
        currents = inputs["currents"].detach().requires_grad_()
        rest = [inputs[k] for k in ("step", "tail", "decay", "reset", "carry")]
        bursts, _, carry, _ = binding.TritonBurstScan.apply(currents, *rest, options)
        torch.autograd.backward((bursts, carry), (bursts.detach(), carry.detach()))
        return tuple(compiled.codes.pop() for compiled in passes)

    yield compile_passes
    binding.kernels.cache_clear()


def arithmetic(ptx):
    """The floating-point instructions of a kernel."""
    return set(
        re.findall(r"^\s*(?:@%p\d+ )?((?:add|sub|mul|fma|div|rcp|ex2)\.\S*f32\S*)", ptx, re.M)
    )


def check_rounding(forward, backward):
    """Levels need divisions and sums that round as IEEE says, one by one."""
    assert "div.rn.f32" in arithmetic(forward)
    assert "div.rn.f32" in arithmetic(backward)
    for instruction in arithmetic(forward):
        operation, rounding, *_ = instruction.split(".")
        assert operation in ("add", "sub", "mul", "div"), instruction  # no fma
        assert rounding == "rn", instruction
        assert "ftz" not in instruction
    assert not re.search(r"div\.(full|approx)|rcp\.", backward)
    assert not re.search(r"^\s*(atom|red)\.", forward + backward, re.M)  # same bits every time


def test_every_variant_becomes_machine_code_that_rounds_as_torch_does(compile_for):
    seen, dtypes = [], (torch.float32, torch.bfloat16, torch.float16)
    for seed in range(3000, 3060):
        inputs, options, _ = draw_case(seed)
        if inputs["currents"].numel() == 0 or not layout_for(inputs["currents"], inputs["step"]):
            continue
        dtype = dtypes[seed % 3]
        inputs["currents"] = inputs["currents"].to(dtype)
        forward, backward = compile_for(AMPERE, inputs, options)
        assert forward["cubin"]
        assert backward["cubin"]
        check_rounding(forward["ptx"], backward["ptx"])
        if dtype != torch.float32:
            narrow = {torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
            assert re.search(rf"cvt\.rn\.{narrow}", forward["ptx"])
        seen.append((options, *(value is None for value in inputs.values())))
    for name in ("reset_mode", "detach_reset", "detach_carry"):
        assert len({getattr(options, name) for options, *_ in seen}) == (3 if "mode" in name else 2)
    assert {tail for *_, tail, _, _, _ in seen} == {carry for *_, carry in seen} == {True, False}


def per_channel(dtype, layout):
    currents = torch.randn(16, 64, 16, 16, dtype=dtype)
    if layout == "last":
        currents = currents.contiguous(memory_format=torch.channels_last)
    one = torch.ones(1)
    return {
        "currents": currents.unflatten(0, (2, 8)),
        "step": one if layout == "one step" else torch.ones(64, 1, 1),
        "tail": one,
        "decay": one,
        "reset": one,
        "carry": None,
    }


OPTIONS = ScanOptions(max_level=5, lo=1.0, hi=5.0)


@pytest.mark.parametrize("layout", ["one step", "first", "last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layout_moves_sixteen_bytes_at_once(compile_for, layout, dtype):
    forward, backward = compile_for(AMPERE, per_channel(dtype, layout), OPTIONS)
    for code in (forward["ptx"], backward["ptx"]):
        assert "ld.global.v4.b32" in code
        stores = re.findall(r"st\.global\S*", code)
        assert "st.global.v4.b32" in stores
        assert not {"st.global.b16", "st.global.b8"} & set(stores)


@pytest.mark.parametrize("target", [TURING, HOPPER, BLACKWELL], ids=lambda target: target.arch)
def test_other_generations_round_the_same(compile_for, target):
    for dtype in (torch.float32, torch.bfloat16):
        forward, backward = compile_for(target, per_channel(dtype, "last"), OPTIONS)
        assert forward["cubin"]
        assert backward["cubin"]
        check_rounding(forward["ptx"], backward["ptx"])


def test_amds_gpus_get_code_too(compile_for):
    forward, backward = compile_for(MI300, per_channel(torch.bfloat16, "last"), OPTIONS)
    assert forward["hsaco"]
    assert backward["hsaco"]
    assert "v_div_fixup_f32" in forward["amdgcn"]  # the last step of a division that rounds right


@pytest.mark.parametrize("name", NEURONS)
def test_the_neurons_of_other_papers_become_machine_code_without_fused_sums(
    name, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", NamedTarget(AMPERE))
    binding.kernels.cache_clear()
    passes = [CompiledOnly(triton_kernels.baseline_forward)]
    passes += [CompiledOnly(triton_kernels.baseline_backward)]
    monkeypatch.setattr(triton_kernels, "baseline_forward", passes[0])
    monkeypatch.setattr(triton_kernels, "baseline_backward", passes[1])
    monkeypatch.setattr(triton_baseline_scan, "triton_can_run", lambda *_, **__: True)
    currents = per_channel(torch.bfloat16, "last")["currents"].requires_grad_()
    with force_implementation("triton"):
        bursts, _, carry = NEURONS[name]().scan(currents, None)
    torch.autograd.backward((bursts, carry), (bursts.detach(), carry.detach()))
    forward, backward = (compiled.codes.pop() for compiled in passes)
    assert forward["cubin"]
    assert backward["cubin"]
    for instruction in arithmetic(forward["ptx"]):
        assert instruction.startswith(("add.rn", "sub.rn", "mul.rn")), instruction
    binding.kernels.cache_clear()


def test_without_a_gpu_plain_torch_runs_and_says_why(caplog):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    binding.kernels.cache_clear()
    assert binding.kernels() is None
    binding.kernels.cache_clear()
    assert "run on plain torch" in caplog.text
    assert "active drivers" in caplog.text


IMPORTS = """
import sys, torch, lbq
lbq.BurstLIF()(torch.randn(2, 3, 4))
assert "triton" not in sys.modules, "triton was imported without need"
from lbq.kernels import triton_kernels
import triton
assert triton_kernels.triton is triton is sys.modules["triton"]
assert triton.__name__ == "triton" and "lbq" not in triton.__file__
"""


def test_triton_is_imported_only_when_needed_and_is_not_our_own_file():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
