"""How the plain-torch implementation spends memory, and that its slices leave no trace."""

import torch
from kernels.cases import saved_bytes

from lbq.kernels import ScanOptions, ScanOutput, plain_scan

OPTIONS = ScanOptions(max_level=5, lo=1.0, hi=5.0)


def scan(currents, step, tail):
    """Call the plain implementation directly; ``burst_scan`` may choose another one."""
    decay, reset = torch.tensor([0.5]), torch.tensor([1.0])
    out = plain_scan.PlainBurstScan.apply(currents, step, tail, decay, reset, None, OPTIONS)
    return ScanOutput(*out[:3])


def test_at_most_five_and_a_half_bytes_per_neuron_step_wait_for_the_backward():
    currents = torch.randn(4, 2, 8, 16, 16, requires_grad=True)
    step, tail = torch.tensor([0.4], requires_grad=True), torch.tensor([0.5], requires_grad=True)
    _, size = saved_bytes(lambda: scan(currents, step, tail))
    assert size / currents.numel() <= 5.5


def test_slicing_the_batch_changes_no_bit_of_the_forward(monkeypatch):
    currents = torch.randn(3, 7, 4, 5)
    step, tail = torch.tensor([0.4], requires_grad=True), torch.tensor([0.5], requires_grad=True)
    outputs, grads = [], []
    for elements in (1, 50, 1 << 30):  # one sample at a time, a few, all at once
        monkeypatch.setattr(plain_scan, "_SLICE_ELEMENTS", elements)
        leaf = currents.clone().requires_grad_()
        out = scan(leaf, step, tail)
        outputs.append(out)
        grads.append(torch.autograd.grad(out.bursts.square().sum(), (leaf, step, tail)))
    for out in outputs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(out, outputs[0], strict=True))
    for grad in grads[1:]:
        assert torch.equal(grad[0], grads[0][0])
        torch.testing.assert_close(grad[1:], grads[0][1:], rtol=1e-5, atol=1e-4)
