import pytest
import torch
from torch import nn

import lbq
from lbq.errors import LoweringError, ShapeError, TimeError
from lbq.neurons.batch_axis import find_batch_axis
from lbq.time import RepeatOverTime


def without_time():
    """Every ReLU of a network replaced by a neuron, and nothing that makes time."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), lbq.BurstLIF(step=0.1),
        nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), lbq.BurstLIF(step=0.1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip


@pytest.mark.parametrize("batch", [1, 5])
def test_a_network_that_takes_the_batch_as_time_is_refused(batch):
    images = torch.randn(batch, 3, 8, 8)
    model = without_time().eval()
    with pytest.raises(TimeError, match=r"the neuron 2 takes the batch as time.*RepeatOverTime"):
        lbq.check_time(model, images)


def test_the_order_of_a_batch_really_mattered():
    images, model = torch.randn(5, 3, 8, 8), without_time().eval()
    with torch.no_grad():
        assert not torch.allclose(model(images), model(images.flip(0)).flip(0), rtol=0.1)


class BatchFirst(nn.Module):
    """Frames ``[B, T, F]``, given to a neuron as they are, or with time first."""

    def __init__(self, *, moves):
        super().__init__()
        self.neuron, self.moves = lbq.BurstLIF(step=0.1), moves

    def forward(self, x):
        return self.neuron(x.transpose(0, 1)).mean(0) if self.moves else self.neuron(x).mean(1)


@pytest.mark.parametrize(
    ("model", "inputs", "batch_axis"),
    [
        (lbq.resnet20(10, width=1 / 16), torch.randn(4, 3, 8, 8), None),
        (lbq.resnet20(10, width=1 / 16), torch.randn(1, 3, 8, 8), None),
        (lbq.resnet19(10, width=1 / 32), torch.randn(2, 3, 2, 32, 32), None),
        (nn.Sequential(nn.Linear(5, 6), lbq.BurstLIF()), torch.randn(3, 4, 5), None),
        (nn.Sequential(nn.Linear(5, 6), lbq.BurstLIF()), torch.randn(8, 3, 7, 5), 1),  # tokens
        (nn.Sequential(RepeatOverTime(2), lbq.BurstLIF()), torch.randn(3, 5), None),
        (BatchFirst(moves=True), torch.randn(3, 7, 5), 0),
    ],
)  # fmt: skip
def test_a_network_with_time_first_passes(model, inputs, batch_axis):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    lbq.check_time(model, inputs, batch_axis=batch_axis)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_time_behind_the_batch_is_refused():
    with pytest.raises(TimeError, match="takes the batch as time"):
        lbq.check_time(BatchFirst(moves=False), torch.randn(3, 7, 5), batch_axis=0)


def test_samples_that_meet_elsewhere_are_refused_with_another_reason():
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    model = nn.Sequential(nn.Linear(5, 6), Centred(), RepeatOverTime(2), lbq.BurstLIF(step=0.1))
    with pytest.raises(TimeError, match=r"changes by up to .* no neuron's first axis is the batch"):
        lbq.check_time(model, torch.randn(4, 5))


def test_an_answer_without_a_batch_axis_is_refused():
    model = nn.Sequential(nn.Linear(5, 6), RepeatOverTime(2), lbq.BurstLIF(), Total())
    with pytest.raises(TimeError, match="one axis of it should be the batch"):
        lbq.check_time(model, torch.randn(4, 5))
    with pytest.raises(ShapeError, match="samples along axis 0"):
        lbq.check_time(model, torch.randn(0, 5))


class Total(nn.Module):
    def forward(self, x):
        return x.sum((0, 1))


def test_lowering_refuses_a_batch_that_is_taken_as_time():
    model = nn.Sequential(nn.Linear(5, 6), lbq.BurstLIF(step=0.1), nn.Linear(6, 2)).eval()
    lbq.lower(model, torch.randn(3, 1, 5))
    with pytest.raises(LoweringError, match=r"BurstLIF in 1 .*have no time"):
        lbq.lower(model, torch.randn(3, 5))


def test_lowering_refuses_a_part_of_one_timestep():
    model = nn.Sequential(lbq.BurstLIF(), First(), nn.Linear(5, 2)).eval()
    with pytest.raises(LoweringError, match="it selects timesteps"):
        lbq.lower(model, torch.randn(1, 1, 5))


class First(nn.Module):
    def forward(self, x):
        return x[0]


class Transposed(nn.Module):
    """A network of ``[B, T, features]``."""

    def __init__(self):
        super().__init__()
        self.neuron, self.out = lbq.BurstLIF(), nn.Linear(7, 4)

    def forward(self, x):
        return self.out(self.neuron(x.transpose(0, 1))).mean(0)


THREE_AXES = {
    "channels": (
        nn.Sequential(
            nn.Conv1d(3, 6, 3),
            lbq.RepeatOverTime(2),
            lbq.BurstLIF(),
            lbq.OverTime(nn.Flatten(), nn.Linear(6 * 5, 4)),
            lbq.MeanOverTime(),
        ),
        torch.randn(8, 3, 7),
    ),
    "one channel": (
        nn.Sequential(nn.Flatten(), nn.Linear(7, 4), lbq.RepeatOverTime(2), lbq.BurstLIF()),
        torch.randn(8, 1, 7),
    ),
    "tokens": (nn.Sequential(lbq.RepeatOverTime(2), lbq.BurstLIF()), torch.randn(8, 5, 7)),
    "batch first": (Transposed(), torch.randn(8, 5, 7)),
    "no time yet": (nn.Sequential(nn.Conv1d(3, 6, 3), lbq.BurstLIF()), torch.randn(8, 3, 7)),
}


@pytest.mark.parametrize("name", THREE_AXES)
@pytest.mark.parametrize("function", [lbq.check_time, lbq.audit, lbq.quantize, lbq.count_ops])
def test_three_axes_that_are_no_sequence_ask_for_the_batch_axis(function, name):
    model, x = THREE_AXES[name]
    with pytest.raises(ShapeError, match=r"three axes, .* \[T, B, features\] .* batch_axis=0$"):
        function(model.eval(), x)


def test_three_axes_with_time_first_need_no_batch_axis():
    model = nn.Sequential(nn.Linear(7, 5), lbq.BurstLIF(), nn.Linear(5, 4)).eval()
    x = torch.randn(6, 8, 7)  # each timestep has an output: the first axis would fit it as well
    lbq.check_time(model, x)
    assert lbq.count_ops(model, x).num_images == 8
    assert lbq.audit(model, x).num_samples == 8


def test_looking_for_the_batch_leaves_model_and_random_numbers_alone():
    model = nn.Sequential(nn.Dropout(), nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)).train()
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ShapeError, match="batch_axis=0"):
        find_batch_axis(torch.randn(8, 3, 7, generator=torch.Generator()), None, model)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
