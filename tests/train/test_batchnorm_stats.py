import torch
from torch import nn

from lbq.train.batchnorm_stats import BatchNormStats


def test_what_is_read_can_be_written_back():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.BatchNorm2d(4))
    statistics = BatchNormStats(model)
    fresh = statistics.read()
    assert fresh.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0] * 4 + [1.0] * 4
    model(torch.randn(8, 3, 2, 2))
    assert not torch.equal(statistics.read(), fresh)
    statistics.write(fresh)
    assert torch.equal(statistics.read(), fresh)
    assert model[1].num_batches_tracked == 1
    statistics.subtract_batches(1)
    assert model[1].num_batches_tracked == 0


def test_the_mean_over_halves_is_the_statistic_of_the_whole_up_to_the_spread_between_them():
    whole, halves = nn.BatchNorm2d(2), [nn.BatchNorm2d(2), nn.BatchNorm2d(2)]
    images = torch.randn(64, 2, 4, 4)
    whole(images)
    for half, part in zip(halves, images.chunk(2), strict=True):
        half(part)
    mean = torch.stack([BatchNormStats(half).read() for half in halves]).mean(0)
    torch.testing.assert_close(mean, BatchNormStats(whole).read(), rtol=0.02, atol=0.01)


def test_a_network_without_batch_norms_has_no_statistics():
    statistics = BatchNormStats(nn.Linear(2, 2))
    assert statistics.read().numel() == 0
    statistics.write(statistics.read())
    statistics.subtract_batches(3)
