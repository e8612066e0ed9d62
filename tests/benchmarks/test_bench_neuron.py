"""The yardstick of ``bench_neuron`` moves the bytes that it says."""

import torch
from bench_neuron import copy_24_bytes


def test_the_copy_writes_the_input_twice_and_a_sum_once():
    values, grad, other = (torch.randn(2, 3, 4096) for _ in range(3))
    twice, total = copy_24_bytes(values, grad, other)
    assert torch.equal(twice[:, 0].flatten(), values.flatten())
    assert torch.equal(twice[:, 1].flatten(), values.flatten())
    assert torch.equal(total, grad + other)
    reads, writes = (values, grad, other), (twice, total)
    assert sum(tensor.nbytes for tensor in reads + writes) == 24 * values.numel()
