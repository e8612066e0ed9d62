"""The native kernels of declared neurons against their loop in plain torch."""

import pytest
import torch
from kernels.cases import check_threads, saved_bytes
from kernels.isas import require_native
from kernels.neuron_cases import check_against_plain, draw_case, run
from torch.library import opcheck

from lbq.errors import ImplementationError, ShapeError
from lbq.kernels import NeuronSpec, Plateau, Window, force_implementation, neuron_scan

require_native()

SPECS = {
    "uniform": lambda: NeuronSpec(step=0.5, max_level=5, surrogate=Plateau(1, 5)),
    "table": lambda: NeuronSpec(step=0.5, max_level=4, values=(1, 2, 2, 4)),
    "mirrored": lambda: NeuronSpec(step=1.0, max_level=1, negative="mirrored", reset="level"),
    "thresholds": lambda: NeuronSpec(
        thresholds=(0.5, 1.5), is_strict=True, surrogate=Plateau(0, 2)
    ),
    "sides": lambda: NeuronSpec(thresholds=(0.5,), negative=(0.6, 1.0), reset="zero"),
    "after": lambda: NeuronSpec(thresholds=(1.0,), after_decay=True, surrogate=Window("sigmoid")),
}
specs = pytest.mark.parametrize("spec", [build() for build in SPECS.values()], ids=SPECS)


@pytest.mark.parametrize("seeds", [range(i, i + 25) for i in range(0, 100, 25)])
def test_levels_are_the_loops_bit_for_bit_and_gradients_close(isa, seeds):
    for seed in seeds:  # of any number: python tests/kernels/test_neuron_scan.py 1000
        check_against_plain(seed, "native")


def test_bf16_has_the_same_levels_and_gradients_up_to_one_rounding(isa):
    for seed in range(60):
        case = draw_case(seed, torch.bfloat16)
        found, grads = run(*case, "native")
        expected, others = run(*case, "plain")
        assert found.bursts.dtype == torch.bfloat16
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), seed
        limit = 2**-7 * others["currents"].float().abs() + 1e-5 * others["currents"].abs().max()
        assert ((grads["currents"] - others["currents"]).float().abs() <= limit).all(), seed


def sequence(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@specs
def test_what_is_not_finite_comes_out_as_in_the_loop(isa, spec):
    bad, found = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.7] * 5), []
    currents = bad.expand(2, 2, 20).contiguous()
    for implementation in ("native", "plain"):
        with force_implementation(implementation):
            found.append(neuron_scan(currents, spec))
    (bursts, levels, carry), expected = found
    assert bursts[0].isnan().equal(currents[0].isnan())
    torch.testing.assert_close(bursts, expected[0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(carry, expected[2], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(levels[~bursts.isnan()], expected[1][~bursts.isnan()])


@specs
def test_the_number_of_threads_changes_no_bit(isa, spec):
    leaf = sequence(3, 8, 6, 41, 43).requires_grad_()

    def run():
        bursts, levels, carry = neuron_scan(leaf, spec)
        return bursts, levels, carry, *torch.autograd.grad(bursts.square().sum(), [leaf])

    check_threads(run)


@specs
def test_channels_last_runs_without_a_copy(spec):
    merged = sequence(6, 4, 5, 3).contiguous(memory_format=torch.channels_last)
    currents = merged.unflatten(0, (2, 3)).requires_grad_()
    bursts, levels, carry = neuron_scan(currents, spec)
    assert bursts.stride() == levels.stride() == currents.stride()
    assert carry.stride() == currents.stride()[1:]
    (grad,) = torch.autograd.grad(bursts.square().sum(), currents)
    assert grad.stride() == currents.stride()


@specs
def test_only_the_currents_are_saved_for_the_backward(spec):
    currents = sequence(4, 2, 8, 16, 16).requires_grad_()
    out, size = saved_bytes(lambda: neuron_scan(currents, spec))
    assert type(out.bursts.grad_fn).__name__ == "NativeNeuronScanBackward"
    assert size / currents.numel() < 4.02


@specs
def test_what_the_kernels_do_not_take_runs_as_a_loop(spec):
    currents = sequence(2, 3, 4, 5, 5)
    for refused in (currents.double(), currents.half(), currents[..., ::2], currents[:, :0]):
        assert neuron_scan(refused, spec).bursts.shape == refused.shape
        with force_implementation("native"), pytest.raises(ImplementationError, match="declared"):
            neuron_scan(refused, spec)
    with force_implementation("triton"), pytest.raises(ImplementationError, match="a GPU"):
        neuron_scan(currents.double(), spec)


@specs
def test_a_carry_of_another_shape_is_refused(spec):
    with pytest.raises(ShapeError, match=r"the carry has shape \(3, 5\)"):
        neuron_scan(torch.zeros(1, 3, 4), spec, torch.zeros(3, 5))


def test_torchs_own_checks_of_registered_operators_pass():
    currents, coefficients = torch.randn(2, 3, 4), torch.ones(5, 1)
    table, settings = (torch.ones(1, 1), torch.ones(1), None, 0), (1, 1, False, False, 0, False)
    outputs = torch.empty(2, 3, 4), torch.empty(2, 3, 4, dtype=torch.uint8), torch.empty(3, 4)
    opcheck(
        torch.ops.lbq.neuron_forward.default, (currents, coefficients, *table, *settings, *outputs)
    )
    more = False, False, 1, 0.0, 0.0, 1.0, False, True
    gradients = torch.empty(2, 3, 4), None, torch.empty(5, 1)
    opcheck(
        torch.ops.lbq.neuron_backward.default,
        (currents, None, currents, coefficients, *table, *settings, *more, *gradients),
    )


if __name__ == "__main__":
    import sys

    for seed in range(int(sys.argv[1])):
        check_against_plain(seed, "native")
    print(f"{sys.argv[1]} random declarations: native = plain ({torch.ops.lbq.isa()})")  # noqa: T201
