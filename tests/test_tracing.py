"""torch's tracers see through the neuron: compile, export, functional gradients."""

import pytest
import torch
from torch import nn

import lbq
from lbq import neurons


class SmallNetwork(nn.Module):
    """Two convolutions, every kind of neuron, a readout; time folded into the batch by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, stride=2)
        self.neuron1 = lbq.BurstLIF(step=lbq.LearnedStep(0.3, channels=4))
        self.neuron2 = lbq.BurstLIF(step=0.2, surrogate=lbq.BoxET(), reset_mode="level")
        self.relatives = nn.Sequential(
            neurons.IntegerLIF(),
            neurons.MultiLevelLIF(first_threshold=0.3),
            neurons.LMHT(3),
            neurons.TernaryLIF(step=neurons.LearnedStep(0.2)),
            neurons.OriginalTernaryLIF(),
            neurons.BinaryLIF(threshold=0.2),
        )
        self.readout = nn.Linear(4, 3)

    def forward(self, frames):
        timesteps, batch = frames.shape[:2]
        x = self.neuron1(self.conv1(frames.flatten(0, 1)).unflatten(0, (timesteps, batch)))
        x = self.neuron2(self.conv2(x.flatten(0, 1)).unflatten(0, (timesteps, batch)))
        x = x + sum(neuron(x) for neuron in self.relatives)
        return self.readout(x.mean(dim=(3, 4))).mean(0)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return SmallNetwork()


@pytest.fixture
def frames():
    return 2 * torch.randn(3, 4, 2, 9, 9, generator=torch.Generator().manual_seed(1))


def gradients(network, loss):
    return dict(
        zip(
            dict(network.named_parameters()),
            torch.autograd.grad(loss, list(network.parameters())),
            strict=True,
        )
    )


def test_compiles_as_one_graph_with_equal_results(network, frames):
    compiled = torch.compile(network, fullgraph=True)
    logits, expected = compiled(frames), network(frames)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    grads = gradients(network, logits.square().sum())
    for name, grad in gradients(network, expected.square().sum()).items():
        torch.testing.assert_close(grads[name], grad, rtol=1e-4, atol=1e-5, msg=name)


def test_the_compiled_neuron_emits_the_same_levels_bit_for_bit(frames):
    neuron = lbq.BurstLIF(step=lbq.LearnedStep(0.31))
    compiled = torch.compile(neuron.scan, fullgraph=True)
    for got, expected in zip(compiled(frames, None), neuron.scan(frames, None), strict=True):
        assert torch.equal(got, expected)


def test_a_model_compiled_before_it_is_watched_still_shows_its_levels():
    model = torch.nn.Sequential(lbq.BurstLIF(), nn.Linear(4, 2))
    frames, seen = torch.randn(2, 3, 4), []
    compiled = torch.compile(model)
    compiled(frames)
    counter = lbq.OpCounter(model, frames[:, :1])
    with (
        lbq.watch_levels(model, lambda *shown: seen.append(shown)),
        lbq.watch_levels(model, counter),
    ):
        compiled(frames)
    assert len(seen) == 2
    assert counter.table().num_images == 3
    frames[0, 0, 0] = float("nan")
    with pytest.raises(lbq.LBQError, match="non-finite"), lbq.check_currents_finite(model):
        compiled(frames)


def test_exports_and_runs_for_another_batch_size(network, frames, tmp_path):
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(network.eval(), (frames,), dynamic_shapes=({1: batch},))
    torch.export.save(program, tmp_path / "network.pt2")
    loaded = torch.export.load(tmp_path / "network.pt2").module()
    for inputs in (frames, torch.cat([frames, -frames], dim=1)):
        torch.testing.assert_close(loaded(inputs), network(inputs), rtol=1e-6, atol=1e-6)


def test_functional_gradients_equal_autograd(network, frames):
    def loss(parameters):
        return torch.func.functional_call(network, parameters, (frames,)).square().sum()

    parameters = {k: v.detach() for k, v in network.named_parameters()}
    by_func = torch.func.grad(loss)(parameters)
    by_autograd = gradients(network, network(frames).square().sum())
    for name, grad in by_autograd.items():
        torch.testing.assert_close(by_func[name], grad, msg=name)
