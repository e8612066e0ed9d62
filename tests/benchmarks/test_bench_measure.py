"""The benchmarks' own measures: what they count, and in which order they run."""

import torch
from measure import bytes_kept, interleaved

N = 1000


def leaf():
    return torch.randn(N, requires_grad=True)


def test_what_two_backwards_share_is_counted_once():
    x = leaf()
    assert bytes_kept(lambda: x.sin() + x.cos()) == 4 * N
    y = x.exp()  # a view is its storage, whole
    assert bytes_kept(lambda: y[: N // 2].sin().sum() + y[N // 2 :].cos().sum()) == 4 * N


def test_everything_that_waits_is_counted():
    x, y = leaf(), leaf()
    assert bytes_kept(lambda: x * y) == 8 * N
    assert bytes_kept(lambda: x.exp().exp().exp()) == 12 * N
    assert bytes_kept(lambda: x.double().exp()) == 8 * N


class Stores(torch.autograd.Function):
    """Keeps a tensor as an attribute of its context."""

    @staticmethod
    def forward(ctx, x):
        ctx.own = torch.zeros(3 * N)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_attributes_of_a_context_are_counted():
    x = leaf()
    assert bytes_kept(lambda: Stores.apply(x)) == 12 * N


def test_what_hooks_put_in_place_of_a_tensor_is_counted():
    x = leaf()

    def halved():
        half = (lambda y: (y.shape, y.detach().half()), lambda kept: kept[1].float())
        with torch.autograd.graph.saved_tensors_hooks(*half):
            return x.exp() * x

    assert bytes_kept(halved) == 6 * N  # exp(x) for itself, and both factors


def test_nothing_waits_without_a_gradient():
    x = leaf()
    assert bytes_kept(lambda: x + 1) == 0
    assert bytes_kept(lambda: x.detach().exp()) == 0


def test_rounds_are_interleaved_and_warm_ups_left_out():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    times = interleaved(runs, rounds=3, warmups=2, device="cpu")
    assert calls == list("abc") * 5
    assert {name: len(found) for name, found in times.items()} == {"a": 3, "b": 3, "c": 3}
    assert all(seconds >= 0 for found in times.values() for seconds in found)
