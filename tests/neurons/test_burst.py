import math

import pytest
import torch

from lbq.errors import LBQError, ParameterError, ShapeError, StepError
from lbq.neurons import BoxET, BurstLIF, FixedStep, LearnedStep, MatchedBox, ReLSGET


def test_defaults_are_the_papers():
    neuron = BurstLIF()
    assert neuron.max_level == 5
    assert neuron.step().item() == pytest.approx(1.0)
    assert neuron.decay().item() == 0.5
    assert neuron.reset.item() == 1.0
    assert neuron.options.reset_mode == "event"
    assert (neuron.options.lo, neuron.options.hi) == (1.0, 5.0)
    assert neuron.surrogate.tail().item() == 0.5


def test_the_ablation_is_two_arguments():
    parameters = {
        name: sorted(n for n, _ in BurstLIF(step=step, surrogate=surrogate).named_parameters())
        for name, step, surrogate in [
            ("V1", FixedStep(), BoxET()),
            ("V2", FixedStep(), ReLSGET()),
            ("V3", LearnedStep(), BoxET()),
            ("LBQ", LearnedStep(), ReLSGET()),
        ]
    }
    assert parameters == {
        "V1": [],
        "V2": ["surrogate.raw_tail"],
        "V3": ["step.raw_step"],
        "LBQ": ["step.raw_step", "surrogate.raw_tail"],
    }


def test_one_timestep_depends_on_neither_decay_nor_reset():
    currents = 2 * torch.randn(1, 50, 20)
    expected = BurstLIF()(currents)
    for decay, reset, mode in [(0.0, 0.0, "event"), (1.0, 0.3, "level"), (0.9, 1.0, "none")]:
        assert torch.equal(BurstLIF(decay=decay, reset=reset, reset_mode=mode)(currents), expected)


def test_a_neuron_written_out_by_hand():
    neuron = BurstLIF(max_level=5, step=1.0, decay=0.5, reset=1.0)
    bursts = neuron(torch.tensor([3.5, 0.2, 0.2, 9.0]).reshape(4, 1, 1)).flatten()
    # U = 3.5, then 0.5 * (3.5 - 1) + 0.2 = 1.45, then 0.5 * (1.45 - 1) + 0.2 = 0.425, then 9.2125
    assert bursts.tolist() == [3.0, 1.0, 0.0, 5.0]


def test_bursts_are_whole_multiples_of_the_step(currents):
    neuron = BurstLIF(step=LearnedStep(0.37))
    ratio = neuron(currents) / neuron.step()
    assert (ratio - ratio.round()).abs().max() < 1e-5


def test_a_step_per_channel_is_a_layer_of_one_step_neurons(currents):
    steps = torch.tensor([0.2, 0.5, 1.0, 3.0])
    together = BurstLIF(step=LearnedStep(channels=4))
    together.step.set_(steps)
    for channel, value in enumerate(steps.tolist()):
        alone = BurstLIF(step=value)
        got, expected = together(currents)[:, :, channel], alone(currents[:, :, channel])
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_a_shared_surrogate_has_one_tail():
    tail = ReLSGET()
    pair = torch.nn.ModuleList([BurstLIF(surrogate=tail), BurstLIF(surrogate=tail)])
    assert sum(name.endswith("raw_tail") for name, _ in pair.named_parameters()) == 1


def test_detaching_changes_only_the_gradient(currents):
    outputs, for_step, for_currents = [], [], []
    for arguments in ({}, {"detach_reset": True}, {"detach_carry": True}):
        neuron, leaf = BurstLIF(**arguments), currents.clone().requires_grad_()
        bursts = neuron(leaf)
        grads = torch.autograd.grad(bursts.square().sum(), (neuron.step.raw_step, leaf))
        outputs.append(bursts)
        for_step.append(grads[0])
        for_currents.append(grads[1])
    assert all(torch.equal(bursts, outputs[0]) for bursts in outputs)
    assert for_step[0] != for_step[1]  # the step inside the reset
    assert for_step[1] == for_step[2]  # the reset is the step's only way through time
    assert torch.equal(for_currents[0], for_currents[1])
    assert not torch.equal(for_currents[1], for_currents[2])
    assert torch.equal(for_currents[1][-1], for_currents[2][-1])  # the last instant has no future


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ParameterError, '"event", "level" or "none", got .hard.', {"reset_mode": "hard"}),
        (ParameterError, r"reset must lie in 0\.\.1, got 2", {"reset": 2.0}),
        (ParameterError, "empty plateau.*use BoxET", {"max_level": 1, "surrogate": MatchedBox()}),
        (StepError, "finite number above 1e-06, got -0.5", {"step": -0.5}),
        (StepError, "spacing of the levels", {"step": math.inf}),
    ],
)
def test_wrong_arguments_are_refused(error, message, arguments):
    with pytest.raises(error, match=message) as caught:
        BurstLIF(**arguments)
    assert isinstance(caught.value, LBQError)


def test_channels_that_do_not_fit_are_refused(currents):
    neuron = BurstLIF(step=LearnedStep(channels=7))
    with pytest.raises(
        ShapeError, match=r"each of 7 channels.*\[T, B, 7, \.\.\.\].*\(3, 6, 4, 5, 3\)"
    ):
        neuron(currents)
