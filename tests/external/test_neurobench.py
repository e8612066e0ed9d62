"""A lowered network through NeuroBench's harness; our metric says what our counter says."""

import os

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import lbq

if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing library is an error, here a skip
    pytest.importorskip("neurobench", reason="installed by .ci/external")

from neurobench.benchmarks import Benchmark
from neurobench.metrics.static import Footprint
from neurobench.metrics.workload import ActivationSparsity, ClassificationAccuracy

from lbq.adapters.neurobench import BurstModel, BurstOperations

COUNT, BATCH = 10, 4  # the last batch is smaller


@pytest.fixture(params=["cifar", "events"])
def form(request):
    return request.param


@pytest.fixture
def network(form):
    torch.manual_seed(0)
    channels = {"cifar": 3, "events": 2}[form]
    model = lbq.resnet20(10, timesteps=2, width=1 / 16, blocks=(1, 1, 1), form=form).eval()
    shape = (2, 1, channels, 16, 16) if form == "events" else (1, channels, 16, 16)
    return lbq.lower(model, torch.zeros(shape))


@pytest.fixture
def samples(form):
    generator = torch.Generator().manual_seed(1)
    shape = (COUNT, 2, 2, 16, 16) if form == "events" else (COUNT, 3, 16, 16)
    return torch.randn(shape, generator=generator)  # batch first, then time


def run_ourselves(network, samples):
    inputs = samples.transpose(0, 1) if network.takes_frames else samples
    counter = lbq.OpCounter(network)
    return lbq.run_network(network, inputs, watch=counter), counter.table()


def benchmark(network, samples, target):
    loader = DataLoader(TensorDataset(samples, target), batch_size=BATCH)
    workload = [ClassificationAccuracy, ActivationSparsity, BurstOperations]
    return Benchmark(
        BurstModel(network), loader, [], [lambda logits: logits.argmax(1)], [[Footprint], workload]
    )


def test_the_harness_reports_our_counts_our_accuracy_and_our_sparsity(network, samples):
    logits, table = run_ourselves(network, samples)
    target = logits.argmax(1)
    target[:3] = (target[:3] + 1) % 10  # three of ten are wrong
    found = benchmark(network, samples, target).run(quiet=True)
    total = table.total()
    assert total.unary_acs > total.bit_sparse_acs > 0
    assert found["BurstOperations"] == {
        "unary_acs": total.unary_acs / COUNT,
        "bit_sparse_acs": total.bit_sparse_acs / COUNT,
        "unit_event_acs": total.unit_event_acs / COUNT,
        "explicit_shifts": total.explicit_shifts / COUNT,
        "plane_formations": table.plane_formations() / COUNT,
        "fp_macs": table.fp_macs() / COUNT,
    }
    assert found["ClassificationAccuracy"] == pytest.approx(0.7)
    active = sum(layer.active for layer in table.layers)
    neurons = sum(layer.neurons * COUNT for layer in table.layers)
    assert found["ActivationSparsity"] == pytest.approx(1 - active / neurons)
    assert found["Footprint"] == sum(b.numel() * b.element_size() for b in network.tensors.values())


def test_a_second_run_counts_from_zero_again(network, samples):
    bench = benchmark(network, samples, torch.zeros(COUNT, dtype=torch.long))
    first = bench.run(quiet=True)
    assert bench.run(quiet=True)["BurstOperations"] == first["BurstOperations"]


def test_an_integer_network_is_run_and_counted_alike(network, samples, form):
    if form == "events":
        pytest.skip("one form of integers is enough")
    pixels = lbq.Pixels(mean=[0.4] * 3, std=[0.25] * 3)
    integers = lbq.to_fixed_point(network, bits=8, pixels=pixels)
    raw = (samples * 60 + 100).clamp(0, 255).to(torch.uint8)
    logits, table = run_ourselves(integers, raw)
    found = benchmark(integers, raw, logits.argmax(1)).run(quiet=True)
    assert found["ClassificationAccuracy"] == 1.0
    assert found["BurstOperations"]["bit_sparse_acs"] == table.total().bit_sparse_acs / COUNT
