import pytest
import torch
from torch.nn import functional as F

import lbq
from lbq.train.loss import ModelWithLoss


@pytest.fixture
def model():
    torch.manual_seed(0)
    return lbq.resnet20(4, width=1 / 32, timesteps=3)


@pytest.fixture
def images():
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(1))


TARGET = torch.tensor([0, 1, 2, 3, 0, 1])


def test_the_loss_of_the_paper_is_the_cross_entropy_of_the_mean_over_time(model, images):
    loss, correct = ModelWithLoss(model.eval())(images, TARGET)
    logits = model(images)
    assert torch.equal(loss, F.cross_entropy(logits, TARGET))
    assert correct == (logits.argmax(1) == TARGET).sum()


def test_tet_is_the_mean_over_time_of_the_cross_entropies(model, images):
    loss, correct = ModelWithLoss(model.eval(), kind="tet")(images, TARGET)
    losses = [F.cross_entropy(logits, TARGET) for logits in model.logits_over_time(images)]
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    assert correct == (model(images).argmax(1) == TARGET).sum()


def test_smoothing_a_mixture_is_mixing_what_was_smoothed(model, images):
    shares = 0.7 * F.one_hot(TARGET, 4) + 0.3 * F.one_hot(TARGET.flip(0), 4)
    loss, correct = ModelWithLoss(model.eval(), label_smoothing=0.1)(images, shares)
    logits = model(images)
    one, other = (
        F.cross_entropy(logits, target, label_smoothing=0.1) for target in (TARGET, TARGET.flip(0))
    )
    torch.testing.assert_close(loss, 0.7 * one + 0.3 * other)
    assert correct == (logits.argmax(1) == TARGET).sum()
