"""``burst_scan`` against the reference for random arguments; its errors."""

import contextvars
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from kernels.cases import check_far_ratios, check_plateau_edges, draw_options, run

from lbq.errors import (
    ImplementationError,
    LBQError,
    LevelError,
    ParameterError,
    ShapeError,
    TimeError,
)
from lbq.kernels import (
    ScanOptions,
    burst_scan,
    burst_scan_reference,
    force_implementation,
    native_scan,
)

DRAWS_PER_SEED = 300
CHANNELS = 3


def draw_case(seed):
    """Random tensors that need a gradient, options, and weights of the loss."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    timesteps, n = rng.choice([1, 2, 4, 10, 16]), rng.choice([1, 2, 5, 10, 20, 255])
    options, has_tail = draw_options(rng, n)
    step_shape = rng.choice([(1,), (CHANNELS, 1)])
    gamma = 10 ** rng.uniform(-4, 4)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def coefficient(shape, low, high):
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    spread = gamma * rng.choice([1.0, n / 2, 3.0 * n])
    inputs = {
        "currents": normal(timesteps, 2, CHANNELS, 4) * spread,
        "step": gamma * coefficient(step_shape, 0.5, 2.0),
        "tail": coefficient(rng.choice([(1,), (CHANNELS, 1)]), 0.05, 0.95) if has_tail else None,
        "decay": coefficient((1,), 0.05, 1.0),
        "reset": coefficient(rng.choice([(1,), (CHANNELS, 1)]), 0.0, 1.0),
        "carry": normal(2, CHANNELS, 4) * gamma if rng.random() < 0.5 else None,
    }
    weights = normal(timesteps, 2, CHANNELS, 4), normal(2, CHANNELS, 4) * rng.choice([0.0, 1.0])
    return inputs, options, weights


def relative_error(got, expected):
    scale = expected.abs().max().item()
    return (got - expected).abs().max().item() / scale if scale else got.abs().max().item()


@pytest.mark.parametrize("seed", range(8))
def test_backward_is_what_autograd_makes_of_the_reference(seed):  # 2,400 draws
    for draw in range(DRAWS_PER_SEED):
        inputs, options, weights = draw_case(seed * DRAWS_PER_SEED + draw)
        out, grads = run(burst_scan, inputs, options, weights)
        expected, expected_grads = run(burst_scan_reference, inputs, options, weights)
        assert torch.equal(out.levels, expected.levels)
        assert torch.equal(out.bursts, expected.bursts)
        assert torch.equal(out.carry, expected.carry)
        for name, grad in expected_grads.items():
            assert relative_error(grads[name], grad) <= 1e-10, (name, draw, options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_ratios_give_no_nan_in_the_backward(dtype):
    check_far_ratios(burst_scan, dtype, steps=(1e-4, 1.0, 1e4))


@pytest.mark.parametrize("name", ["reference", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("keep", ["membranes", "currents"])
def test_slopes_change_exactly_at_the_edges_of_the_plateau(name, dtype, keep):  # Eq. 11
    with force_implementation(name):
        check_plateau_edges(keep=keep, dtype=dtype)


def test_only_membranes_or_currents_are_kept():
    with pytest.raises(ParameterError, match='"membranes" or "currents", got \'residues\''):
        ScanOptions(max_level=5, lo=1.0, hi=5.0, keep="residues")


def simple(currents, step=None, *, max_level=5, **arguments):
    options = ScanOptions(max_level=max_level, lo=1.0, hi=float(max_level))
    step = torch.tensor([0.4]) if step is None else step
    arguments = {"tail": 0.5, "decay": 0.5, "reset": 1.0, **arguments}
    return burst_scan(currents, step, options=options, **arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_currents_are_computed_in_float32(dtype):
    currents = torch.randn(4, 250, 1000, generator=torch.Generator().manual_seed(1)).to(dtype)
    out, exact = simple(currents), simple(currents.float())
    assert torch.equal(out.levels, exact.levels)  # 10^6 levels
    assert torch.equal(out.carry, exact.carry)
    assert out.bursts.dtype == dtype
    assert torch.equal(out.bursts, exact.bursts.to(dtype))


def test_gradients_come_back_in_the_dtype_of_their_inputs():
    currents = torch.randn(2, 3, 8).bfloat16().requires_grad_()
    step = torch.tensor([0.4], requires_grad=True)
    simple(currents, step).bursts.sum().backward()
    assert currents.grad.dtype == torch.bfloat16
    assert step.grad.dtype == torch.float32


def test_memory_layout_of_the_currents_is_kept():
    currents = torch.randn(6, 4, 5, 3).to(memory_format=torch.channels_last).unflatten(0, (2, 3))
    out = simple(currents)
    assert out.bursts.stride() == currents.stride()
    assert torch.equal(out.bursts, simple(currents.contiguous()).bursts)


def test_an_expanded_or_sliced_input_gives_the_same_as_a_copy():
    wide = torch.randn(2, 3, 4, 10)
    assert torch.equal(simple(wide[..., ::2]).bursts, simple(wide[..., ::2].clone()).bursts)
    still = torch.randn(3, 4).expand(5, 3, 4)
    assert torch.equal(simple(still).bursts, simple(still.clone()).bursts)


def test_an_empty_batch_gives_an_empty_answer():
    currents = torch.zeros(2, 0, 4, requires_grad=True)
    out = simple(currents)
    out.bursts.sum().backward()
    assert out.bursts.shape == out.levels.shape == currents.grad.shape == (2, 0, 4)


def test_a_second_derivative_is_refused_rather_than_wrong():
    currents = torch.randn(2, 3, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(
        simple(currents).bursts.square().sum(), currents, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def what_ran(output):
    """The implementation that wrote these bursts, read from autograd's graph."""
    names = {
        "NativeBurstScanBackward": "native",
        "PlainBurstScanBackward": "plain",
        "StackBackward0": "reference",
    }
    return names[output.bursts.grad_fn.name()]


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


needs_native = pytest.mark.skipif(
    native_scan.isa() is None, reason="the native kernels are not built"
)


@pytest.mark.parametrize("name", ["reference", "plain", pytest.param("native", marks=needs_native)])
def test_a_forced_implementation_runs_and_only_inside(name):
    chosen = what_ran(simple(leaf(2, 3, 4)))
    with force_implementation(name):
        assert what_ran(simple(leaf(2, 3, 4))) == name
        with force_implementation("reference"):
            assert what_ran(simple(leaf(2, 3, 4))) == "reference"
        assert what_ran(simple(leaf(2, 3, 4))) == name
    assert what_ran(simple(leaf(2, 3, 4))) == chosen


def test_nothing_stays_forced_behind_an_exception():
    with pytest.raises(ZeroDivisionError), force_implementation("reference"):
        1 / 0  # noqa: B018
    assert what_ran(simple(leaf(2, 3, 4))) != "reference"


def test_a_forced_implementation_holds_for_one_thread_and_follows_its_context():
    with ThreadPoolExecutor(1) as other, force_implementation("reference"):
        unaware = other.submit(lambda: what_ran(simple(leaf(2, 3, 4)))).result()
        context = contextvars.copy_context()
        captured = other.submit(context.run, lambda: what_ran(simple(leaf(2, 3, 4)))).result()
    assert unaware != "reference"
    assert captured == "reference"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_backward_belongs_to_the_implementation_that_ran_forward(dtype):
    currents = leaf(4, 16, 33, dtype=dtype)

    def gradient(inside, outside):
        with force_implementation(inside):
            out = simple(currents)
        with force_implementation(outside):
            return torch.autograd.grad(out.bursts.square().sum() + out.carry.sum(), currents)[0]

    for name in ("reference", "plain"):
        assert torch.equal(gradient(name, "plain"), gradient(name, "reference"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_forced_reference_answers_in_the_dtypes_of_the_others(dtype):
    currents = leaf(4, 16, 33, dtype=dtype)
    with force_implementation("reference"):
        expected = simple(currents)
    with force_implementation("plain"):
        out = simple(currents)
    for got, want in zip(out, expected, strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


def test_a_function_compiled_inside_keeps_what_was_forced():
    torch.compiler.reset()
    currents = leaf(2, 3, 4)
    with force_implementation("reference"):
        compiled = torch.compile(lambda x: simple(x).bursts, fullgraph=True, backend="eager")
        assert compiled(currents).grad_fn.name() == "StackBackward0"
    assert compiled(currents).grad_fn.name() == "StackBackward0"


@needs_native
@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_calls_the_native_kernels_only_if_told_to(strict):
    class Neuron(torch.nn.Module):
        def forward(self, currents):
            return simple(currents).bursts

    currents, frames = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    shapes = ({1: torch.export.Dim("batch", min=2)},)
    for name in ("native", "plain", None):
        with force_implementation(name) if name else nullcontext():
            program = torch.export.export(
                Neuron(), (currents,), dynamic_shapes=shapes, strict=strict
            )
        assert ("lbq.burst_forward" in str(program.graph)) == (name == "native")
        assert torch.equal(program.module()(frames), simple(frames).bursts)


def forced(name, *arguments, **keywords):
    with force_implementation(name):
        return simple(*arguments, **keywords)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (LevelError, "currents.*got torch.uint8.*send bursts",
         lambda: simple(torch.ones(2, 3, 4, dtype=torch.uint8))),
        (ShapeError, r"time and a batch axis.*\(4,\).*unsqueeze", lambda: simple(torch.ones(4))),
        (TimeError, r"at least one timestep.*\(0, 3, 4\).*first axis",
         lambda: simple(torch.ones(0, 3, 4))),
        (ParameterError, r"1\.\.255, got 256.*one byte",
         lambda: simple(torch.ones(2, 3, 4), max_level=256)),
        (ShapeError, r"tail has shape \(3, 1, 1\).*\(4, 6\).*one number",
         lambda: simple(torch.ones(2, 3, 4, 6), tail=torch.ones(3, 1, 1))),
        (ShapeError, r"step has shape \(5, 1\).*\(4, 6\).*one per channel",
         lambda: simple(torch.ones(2, 3, 4, 6), torch.ones(5, 1))),
        (ShapeError, r"carry has shape \(3, 5\).*\(3, 4\).*previous call",
         lambda: simple(torch.ones(2, 3, 4), carry=torch.ones(3, 5))),
        (ImplementationError, r"float32 or bfloat16.*got torch.float64 on cpu.*force .plain.",
         lambda: forced("native", torch.ones(2, 3, 4, dtype=torch.float64))),
        (ImplementationError, r"one step or one per channel.*step of shape \(3, 4\)",
         lambda: forced("native", torch.ones(2, 5, 3, 4), torch.ones(3, 4))),
        (ImplementationError, r"float32, bfloat16 or float16 currents on a GPU.*got torch.float64",
         lambda: forced("triton", torch.ones(2, 3, 4, dtype=torch.float64))),
        (ParameterError, r"'reference', 'plain', 'native', 'triton', got 'fast'",
         lambda: force_implementation("fast").__enter__()),
    ],
)  # fmt: skip
def test_errors_name_the_expected_value_the_given_value_and_the_remedy(error, message, call):
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, LBQError)
