from contextlib import contextmanager
from functools import partial

import pytest
import torch
from bundles import tiny_network
from integer_oracle import run_oracle
from random_networks import RandomNetwork
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import lbq
from lbq.errors import LoweringError, ParameterError, ShapeError
from lbq.graph.operators import Shortcut, Synapse
from lbq.kernels.native_scan import isa
from lbq.lowering.fixed_point import Pixels, to_fixed_point
from lbq.lowering.lower import lower
from lbq.runtime.run import (
    BACKENDS,
    by_sign,
    choose_backend,
    dense_product,
    planes_product,
    run_network,
    unary_product,
)


@pytest.fixture(scope="module")
def networks():
    model = RandomNetwork(4, for_integers=False).double()
    pixels = model.inputs()
    return lower(model, pixels.double()), pixels


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", range(6))
def test_every_backend_gives_the_same_logits(seed, backend):
    model = RandomNetwork(seed, for_integers=False).double()
    inputs = model.inputs().double() / 64
    net = lower(model, inputs)
    torch.testing.assert_close(
        run_network(net, inputs, backend=backend),
        run_network(net, inputs, backend="dense"),
        rtol=1e-9,
        atol=1e-9,
    )


def test_a_watch_sees_what_it_sees_on_the_trained_network():
    model = lbq.resnet20(10, width=1 / 16).double().eval()
    images, seen, expected = torch.randn(2, 3, 16, 16).double(), [], []
    with torch.no_grad(), lbq.watch_levels(model, lambda *what: expected.append(what)):
        model(images)
    run_network(lower(model, images), images, watch=lambda *what: seen.append(what))
    assert [what[:2] for what in seen] == [what[:2] for what in expected]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(seen, expected, strict=True))


@pytest.mark.parametrize("block", ["basic", "sew"])
def test_a_tally_counts_on_a_lowered_network_as_on_the_trained_one(block):
    model = lbq.resnet20(10, width=1 / 16, block=block).double().eval()
    images = torch.randn(3, 3, 16, 16).double()
    trained, net = lbq.OpCounter(model, images[:1]), lower(model, images)
    with torch.no_grad(), lbq.watch_levels(model, trained):
        model(images)
    lowered = lbq.OpCounter(net)
    run_network(net, images, watch=lowered, backend="planes")
    assert lowered.table().total() == trained.table().total()
    assert lowered.table().layers == trained.table().layers


def test_a_tally_counts_integers_too():
    model = lbq.resnet19(10, width=1 / 16).eval()
    frames = torch.randint(0, 4, (2, 3, 2, 16, 16), dtype=torch.uint8)
    net = to_fixed_point(lower(model, frames.float()))
    counter = lbq.OpCounter(net)
    run_network(net, frames, watch=counter)
    assert counter.table().num_images == 3
    assert not counter.table().untracked


def test_an_unknown_backend_is_refused(networks):
    net, pixels = networks
    with pytest.raises(ParameterError, match="abacus"):
        run_network(net, pixels.double(), backend="abacus")


def test_inputs_are_checked(networks):
    net, pixels = networks
    with pytest.raises(ShapeError):
        run_network(net, pixels.double()[..., 1:])


LEVELS = torch.arange(256, dtype=torch.uint8)


@pytest.mark.parametrize("multiply", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("max_level", [1, 2, 3, 5, 7, 15, 31, 255])
@pytest.mark.parametrize("bits", [8, 16])
def test_every_level_times_every_extreme_weight_is_exact(max_level, bits, multiply):  # S6
    largest = 2 ** (bits - 1) - 1
    weights = torch.tensor([[-largest], [-1], [0], [1], [2], [largest]])
    synapse = Synapse(weights.to(torch.int8 if bits == 8 else torch.int16), max_input=max_level)
    levels = LEVELS[: max_level + 1].reshape(-1, 1)
    got = multiply(synapse, levels)
    assert got.dtype == torch.int32
    assert torch.equal(got.long(), levels.long() @ weights.T)


@pytest.mark.parametrize("multiply", BACKENDS.values(), ids=BACKENDS)
def test_shortcuts_are_multiplied_alike(multiply):
    shortcut = Shortcut(torch.tensor([-30000, 7], dtype=torch.int16), max_input=255)
    levels = torch.stack([LEVELS, LEVELS.flip(0)], dim=1)
    expected = levels.long() * torch.tensor([-30000, 7])
    assert torch.equal(multiply(shortcut, levels).long(), expected)


@pytest.mark.parametrize("multiply", BACKENDS.values(), ids=BACKENDS)
def test_negative_levels_subtract(multiply):
    synapse = Synapse(torch.tensor([[3.0, -2.0]]).double(), max_input=1)
    levels = torch.tensor([[-1, 1], [1, 0], [0, -1], [-1, -1]], dtype=torch.int8)
    assert multiply(synapse, levels).flatten().tolist() == [-5.0, 3.0, 2.0, -1.0]


@pytest.mark.parametrize("multiply", BACKENDS.values(), ids=BACKENDS)
def test_real_inputs_are_multiplied_as_they_are(multiply):
    synapse = Synapse(torch.tensor([[2.0]]), max_input=None)
    assert multiply(synapse, torch.tensor([[0.25]])).item() == 0.5


@contextmanager
def changed(read, write, value):
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


MATMULS = (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
CONVOLUTIONS = tuple(
    partial(access, torch.backends.mkldnn.conv, "fp32_precision") for access in (getattr, setattr)
)
SETTINGS = {
    "autocast to bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to float16": lambda: torch.autocast("cpu", torch.float16),
    "medium matmuls": lambda: changed(*MATMULS, "medium"),
    "high matmuls": lambda: changed(*MATMULS, "high"),
    "reduced convolutions": lambda: changed(*CONVOLUTIONS, "bf16"),
    "bfloat16 by default": lambda: changed(
        torch.get_default_dtype, torch.set_default_dtype, torch.bfloat16
    ),
    "inference mode": torch.inference_mode,
}


class Products(TorchDispatchMode):
    """Records the dtypes in which convolutions and matrix products run."""

    def __init__(self):
        super().__init__()
        self.dtypes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("convolution", "mm", "addmm", "bmm", "matmul"):
            self.dtypes |= {a.dtype for a in args if isinstance(a, torch.Tensor)}
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def wide_sums():
    """An integer network whose classifier reads sums far above 256, and what it must answer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), lbq.RepeatOverTime(2), lbq.BurstLIF(7, step=0.2),
        lbq.OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
        lbq.MeanOverTime(),
    ).eval()  # fmt: skip
    pixels = Pixels(mean=(0.5,) * 3, std=(0.25,) * 3)
    net = to_fixed_point(lower(model, torch.zeros(1, 3, 12, 12)), bits=8, pixels=pixels)
    raw = torch.randint(0, 256, (6, 3, 12, 12), dtype=torch.uint8)
    values = run_oracle(net, raw)
    [classifier] = [node for node in net.nodes if getattr(node.operator, "is_linear", False)]
    assert values[classifier.inputs[0]].max() > 256
    answers = torch.from_numpy(values[net.nodes[-1].path])
    return net, raw, answers


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("backend", [*BACKENDS, "native"])
def test_no_setting_of_torch_changes_an_integer(wide_sums, backend, setting):
    net, raw, answers = wide_sums
    with SETTINGS[setting](), Products() as products:
        got = run_network(net, raw, backend=backend)
    assert torch.equal(got.long(), answers.long())
    # Reduced precision shows on some processors only; every one computes float64 in full.
    assert products.dtypes <= {torch.float64}


@pytest.mark.skipif(isa() is None, reason="the native library is not built here")
def test_integers_run_on_the_native_engine_by_default(wide_sums):
    net, raw, answers = wide_sums
    assert choose_backend(net) == "native"
    with Products() as products:  # the engine calls no convolution of torch
        got = run_network(net, raw)
    assert not products.dtypes
    assert torch.equal(got.long(), answers.long())


def test_real_numbers_run_densely_by_default(networks):
    net, pixels = networks
    assert choose_backend(net) == "dense"
    assert torch.equal(
        run_network(net, pixels.double()), run_network(net, pixels.double(), backend="dense")
    )


def test_networks_that_the_engine_does_not_take_run_densely(wide_sums, monkeypatch, caplog):
    net, raw, answers = wide_sums

    def refuse(network):
        raise LoweringError("the engine does not take this network")

    monkeypatch.setattr("lbq.runtime.native_engine.engine_of", refuse)
    with caplog.at_level("INFO", logger="lbq.runtime.run"):
        assert choose_backend(net) == "dense"
    assert "does not take this network" in caplog.text
    assert torch.equal(run_network(net, raw).long(), answers.long())


@pytest.mark.parametrize(
    ("product", "levels", "planes"),
    [
        (dense_product, [[0], [5]], [[0, 5]]),
        (unary_product, [[1], [3]], [[1, 1], [0, 1]]),  # levels 2 and 3 share a product
        (planes_product, [[1], [5]], [[1, 1], [0, 1]]),  # 001 and 101: the middle plane is empty
    ],
)
def test_a_backend_multiplies_once_per_nonempty_plane(product, levels, planes):
    received = []

    class Counted(Synapse):
        def multiply(self, inputs):
            received.append(inputs.flatten().tolist())
            return super().multiply(inputs)

    product(Counted(torch.ones(1, 1), max_input=7), torch.tensor(levels, dtype=torch.uint8))
    assert received == planes


def test_negative_levels_are_multiplied_as_absolute_values():
    received = []
    signed = torch.tensor([-2, 0, 3], dtype=torch.int8)
    by_sign(signed, lambda x: received.append(x.tolist()) or x)
    assert received == [[0, 0, 3], [2, 0, 0]]
    unsigned = torch.tensor([0, 3], dtype=torch.uint8)
    assert by_sign(unsigned, lambda x: x) is unsigned


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_batch_has_empty_answers(backend, networks):
    for network in (networks[0], tiny_network()):
        assert run_network(network, network.example(0), backend=backend).shape[0] == 0
