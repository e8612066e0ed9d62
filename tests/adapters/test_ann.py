import pytest
import torch
from torch import nn

import lbq
from lbq.errors import LoweringError, ParameterError


def draw(count, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 8, 8, generator=generator)


BATCHES = [draw(32, 1), draw(32, 2)]
IMAGES = draw(64, 3)


@pytest.fixture(scope="module")
def ann():
    """A network that has learned something, so that its channels differ."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for seed in range(30):
        images = draw(64, 100 + seed)
        loss = nn.functional.cross_entropy(model(images), target(images))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def target(images):
    return (images[:, 0, :4].mean((1, 2)) > 0) * 2 + (
        images[:, 1, 4:].abs().mean((1, 2)) > 0.8
    ).long()


def distance(model, ann):
    """Return the squared error of the answers against their variance."""
    with torch.no_grad():
        expected = ann(IMAGES)
        return ((model(IMAGES) - expected).square().mean() / expected.var()).item()


def test_many_levels_give_the_networks_own_answers(ann):
    spiking = lbq.from_ann(ann, BATCHES, max_level=255)
    assert distance(spiking, ann) < 1e-4


def test_few_levels_start_close_and_more_timesteps_closer(ann):
    by_timesteps = {
        T: distance(lbq.from_ann(ann, BATCHES, max_level=5, timesteps=T), ann) for T in (1, 2, 8)
    }
    assert by_timesteps[1] < 0.1
    assert by_timesteps[8] < by_timesteps[2] < by_timesteps[1]


def test_a_network_of_many_levels_is_the_start_of_one_with_few(ann):
    many = lbq.from_ann(ann, BATCHES, max_level=15)
    before = {name: value.clone() for name, value in many.state_dict().items()}
    few = lbq.from_ann(many, BATCHES, max_level=5)
    assert [(n.max_level, n.step().numel()) for _, n in lbq.neurons.named_neurons(few)] == [
        (5, 1)
    ] * 3
    direct = distance(lbq.from_ann(ann, BATCHES, max_level=5), ann)
    assert distance(few, ann) < 1.1 * direct  # if its half steps were forgotten, 1.19 times
    assert all(torch.equal(before[name], value) for name, value in many.state_dict().items())


def test_neurons_of_several_timesteps_are_not_replaced(ann):
    with pytest.raises(LoweringError, match="neurons of 2 timesteps; from_ann replaces ReLUs"):
        lbq.from_ann(lbq.from_ann(ann, BATCHES, timesteps=2), BATCHES)


def test_a_step_per_channel_comes_closer_than_one_per_layer(ann):
    layer = lbq.from_ann(ann, BATCHES, max_level=3)
    channel = lbq.from_ann(ann, BATCHES, max_level=3, per_channel=True)
    assert distance(channel, ann) < distance(layer, ann)
    assert [n.step().numel() for _, n in lbq.neurons.named_neurons(channel)] == [12, 12, 16]


def test_it_starts_closer_than_a_percentile_without_half_steps(ann):
    careful = lbq.from_ann(ann, BATCHES, max_level=5)
    plain = lbq.from_ann(ann, BATCHES, max_level=5)
    own = dict(ann.named_parameters())
    with torch.no_grad():  # the biases as they were
        for name, parameter in plain.named_parameters():
            if name in own:
                parameter.copy_(own[name])
    lbq.calibrate_steps(plain, BATCHES, percentile=99.9)
    assert distance(careful, ann) < 0.5 * distance(plain, ann)


def test_the_step_of_a_single_layer_is_the_best_of_a_fine_search():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 64), nn.ReLU()).eval(), torch.randn(512, 4)
    spiking = lbq.from_ann(model, [x], max_level=4)
    expected = model(x)

    def error(step):
        levels = ((model[0](x) + step / 2) / step).floor().clamp(0, 4)
        return (levels * step - expected).square().mean().item()

    best = min(error(step) for step in torch.linspace(0.05, 2, 400))
    ((_, neuron),) = lbq.neurons.named_neurons(spiking)
    assert error(neuron.step()) < 1.03 * best
    torch.testing.assert_close(
        (spiking(x) - expected).square().mean().item(), error(neuron.step()), rtol=0.02, atol=0
    )


def test_the_network_is_not_changed_and_the_result_is_in_eval_mode(ann):
    before = {name: value.clone() for name, value in ann.state_dict().items()}
    spiking = lbq.from_ann(ann, BATCHES)
    assert not spiking.training
    assert all(torch.equal(value, before[name]) for name, value in ann.state_dict().items())


@pytest.mark.parametrize("timesteps", [1, 2])
def test_it_is_lowered_and_fine_tuned_like_any_network(ann, timesteps):
    spiking = lbq.from_ann(ann, BATCHES, timesteps=timesteps).double()
    lowered = lbq.lower(spiking, IMAGES[:1].double())
    torch.testing.assert_close(lowered(IMAGES.double()), spiking(IMAGES.double()))
    spiking.train()
    nn.functional.cross_entropy(spiking(IMAGES.double()), target(IMAGES)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in spiking.parameters())


def test_our_own_networks_of_relus_become_our_networks_of_neurons():
    torch.manual_seed(0)
    ann = lbq.resnet20(10, timesteps=1, width=1 / 16, neuron=lambda channels: nn.ReLU()).eval()
    spiking = lbq.from_ann(ann, BATCHES, max_level=255, timesteps=2)
    assert isinstance(spiking, lbq.SpikingResNet)
    assert distance(spiking, ann) < 1e-2


def test_a_relu_without_a_bias_before_it_is_named():
    model = nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(3 * 64, 4)).eval()
    with pytest.warns(UserWarning, match="no bias of its own lies before 0"):
        spiking = lbq.from_ann(model, BATCHES, max_level=20)
    assert distance(spiking, model) < 0.1


def test_a_silent_layer_can_still_be_lowered():
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)).eval()
    nn.init.constant_(model[0].bias, -100.0)
    spiking = lbq.from_ann(model, BATCHES, per_channel=True)
    torch.testing.assert_close(lbq.lower(spiking, IMAGES[:1])(IMAGES), model(IMAGES))


def test_a_tensor_that_changes_in_place_and_is_read_again_is_refused():
    class Sly(nn.Module):
        def forward(self, x):
            current = 2 * x
            return torch.relu_(current) + current

    with pytest.raises(lbq.LBQError, match="in place"):
        lbq.from_ann(Sly(), BATCHES)


class Tokens(nn.Module):
    """Linear layers over the last axis of ``[B, N, C]``."""

    def __init__(self, width=16):
        super().__init__()
        self.one, self.relu, self.two = nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 3)

    def forward(self, x):
        return self.two(self.relu(self.one(x)))


@pytest.mark.parametrize("num_tokens", [7, 16])
def test_the_bias_of_a_linear_layer_lies_on_the_last_axis(num_tokens):
    torch.manual_seed(0)
    model, samples = Tokens().eval(), torch.randn(256, num_tokens, 12)
    samples += torch.arange(num_tokens).view(-1, 1) / 4  # tokens differ: no two axes look alike
    model.one.bias.data.normal_(0, 1)
    spiking = lbq.from_ann(model, [samples], max_level=255)
    with torch.no_grad():
        error = (spiking(samples) - model(samples)).square().mean() / model(samples).var()
    assert error < 1e-4
    with pytest.raises(lbq.LBQError, match="leave per_channel out"):
        lbq.from_ann(model, [samples], per_channel=True)


def test_a_bias_that_was_spread_over_positions_is_corrected_as_one():
    class Spread(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.relu, self.two = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(4 * 36, 4)

        def forward(self, x):
            return self.two(self.relu(self.one(x).flatten(1)))

    torch.manual_seed(0)
    model = Spread().eval()
    assert distance(lbq.from_ann(model, BATCHES, max_level=255), model) < 1e-4


def test_a_network_must_answer_with_one_tensor():
    class Two(nn.Module):
        def forward(self, x):
            return torch.relu(x), x

    with pytest.raises(lbq.LBQError, match="one tensor, got tuple"):
        lbq.from_ann(Two(), BATCHES)


def test_wrong_batches_are_refused_in_words(ann):
    with pytest.raises(ParameterError, match=r"write \[images\]"):
        lbq.from_ann(ann, IMAGES)
    with pytest.raises(ParameterError, match="at least one sample"):
        lbq.from_ann(ann, [IMAGES[:0]])
    with pytest.raises(ParameterError, match="must be finite"):
        lbq.from_ann(ann, [IMAGES / 0])
    with pytest.raises(ParameterError, match="at least one batch"):
        lbq.from_ann(ann, [])
    with pytest.raises(ParameterError, match="drop the labels"):
        lbq.from_ann(ann, [(IMAGES, target(IMAGES))])
    with pytest.raises(lbq.LBQError, match="timestep"):
        lbq.from_ann(ann, BATCHES, timesteps=0)
