import pickle

import numpy as np
import torch

from lbq.data import augment, sampler
from lbq.data.augment import AugmentConfig, MixConfig
from lbq.data.loaders import EvalTask, TrainTask
from lbq.data.splits import InMemory

SAMPLES = np.random.default_rng(0).integers(0, 256, (101, 3, 8, 8), dtype=np.uint8)
CLIPS = np.random.default_rng(0).integers(0, 5, (101, 4, 2, 8, 8), dtype=np.uint16)
LABELS = np.arange(101) % 7
ORDER = sampler.epoch_order(101, seed=3, epoch=2)
MIXED = AugmentConfig(mix=MixConfig(mixup=1.0, cutmix=1.0))


PLAIN = AugmentConfig()


def task(config=PLAIN, *, samples=SAMPLES, global_batch=16, rank=0, world_size=1):
    return TrainTask(
        split=InMemory(samples, LABELS),
        order=ORDER,
        augment=config,
        num_classes=7,
        seed=3,
        epoch=2,
        global_batch=global_batch,
        rank=rank,
        world_size=world_size,
    )


def test_a_plain_batch_is_the_normalised_samples_in_the_order_of_the_epoch():
    batch = task()(2).batch
    index = ORDER[32:48]
    assert np.array_equal(batch.sample_ids.numpy(), index)
    assert np.array_equal(batch.target.numpy(), LABELS[index])
    expected = augment.normalize(SAMPLES[index], augment.CIFAR10)
    assert np.array_equal(batch.x.numpy(), expected)
    assert batch.x.dtype == torch.float32


def test_clips_have_time_first_and_keep_their_counts():
    batch = task(samples=CLIPS)(1).batch
    assert batch.x.shape == (4, 16, 2, 8, 8)
    assert np.array_equal(batch.x.numpy(), CLIPS[ORDER[16:32]].swapaxes(0, 1))


def test_ranks_see_parts_of_the_same_mixed_batch():
    for step in range(6):
        whole = task(MIXED)(step).batch
        for world_size in (2, 4, 8, 16):  # parts of one sample have their partner elsewhere
            parts = [
                task(MIXED, rank=rank, world_size=world_size)(step).batch
                for rank in range(world_size)
            ]
            for field in range(3):
                assert torch.equal(torch.cat([part[field] for part in parts]), whole[field])


def test_mixed_targets_say_what_is_in_the_pixels():
    ones = np.zeros_like(SAMPLES)
    ones[LABELS == 0] = 255
    config = AugmentConfig(mix=MixConfig(mixup=1.0, cutmix=1.0), normalization=augment.UNIT)
    for step in range(6):
        batch = task(config, samples=ones)(step).batch
        assert torch.allclose(batch.x.mean((1, 2, 3)), batch.target[:, 0], atol=1e-5)
        assert torch.allclose(batch.target.sum(1), torch.ones(16))


def test_partners_of_an_odd_batch_may_lie_in_the_next_one():
    whole = torch.cat([task(MIXED, global_batch=5)(step).batch.target for step in range(20)])
    assert torch.allclose(whole.sum(1), torch.ones(100))
    assert (whole > 0).sum() > 150  # most are mixed with another class


def test_test_batches_are_plain_and_complete():
    config = AugmentConfig(crop="pad", flip=True, policy="cifar10", cutout=4, mix=MIXED.mix)
    evaluate = EvalTask(
        split=InMemory(SAMPLES, LABELS), augment=config, positions=range(3, 20), batch=8
    )
    batches = [evaluate(step).batch for step in range(3)]
    assert [len(batch.sample_ids) for batch in batches] == [8, 8, 1]
    x = torch.cat([batch.x for batch in batches])
    assert np.array_equal(x.numpy(), augment.normalize(SAMPLES[3:20], augment.CIFAR10))
    assert np.array_equal(torch.cat([batch.target for batch in batches]).numpy(), LABELS[3:20])


def test_a_task_can_travel_to_another_process():
    sent = pickle.loads(pickle.dumps(task(MIXED)))
    for here, there in zip(task(MIXED)(1).batch, sent(1).batch, strict=True):
        assert torch.equal(here, there)
