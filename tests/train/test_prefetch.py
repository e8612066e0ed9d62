import threading
import time

import pytest
import torch

from lbq.data import Batch
from lbq.train.prefetch import prefetch, prefetch_to_device, to_device

CPU = torch.device("cpu")


def batches(count, inputs=(4, 3, 2, 2)):
    for index in range(count):
        x = torch.full(inputs, float(index))
        yield Batch(x, torch.arange(4), torch.arange(4) + index)


def test_batches_arrive_in_order_and_in_the_memory_order_asked_for():
    for channels_last in (True, False):
        found = list(prefetch_to_device(batches(5), CPU, channels_last=channels_last))
        assert [batch.x[0, 0, 0, 0].item() for batch in found] == [0, 1, 2, 3, 4]
        is_last = found[0].x.is_contiguous(memory_format=torch.channels_last)
        assert is_last == channels_last
        assert torch.equal(found[3].sample_ids, torch.arange(4) + 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_batches_on_a_gpu_hold_what_they_held():
    device = torch.device("cuda", 0)
    for index, batch in enumerate(prefetch_to_device(batches(20), device, channels_last=True)):
        assert batch.x.device == device
        assert (batch.x == index).all()


def test_images_get_their_memory_order_and_clips_keep_theirs():
    images, clips = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 2, 4, 4)
    moved = to_device(images, CPU, channels_last=True)
    assert moved.is_contiguous(memory_format=torch.channels_last)
    assert to_device(clips, CPU, channels_last=True) is clips
    assert to_device(images, CPU, channels_last=False) is images


def test_a_thread_prepares_in_order_and_not_too_far_ahead():
    prepared = []

    def prepare(item):
        prepared.append(item)
        return -item

    items = prefetch(iter(range(50)), prepare)
    assert next(items) == 0
    time.sleep(0.3)
    assert len(prepared) <= 5
    assert list(items) == [-n for n in range(1, 50)]


def test_what_the_thread_raises_is_raised_where_the_items_are_used():
    def fail(item):
        if item == 3:
            raise ValueError("a bad item")
        return item

    items = prefetch(range(10), fail)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="a bad item"):
        next(items)


def test_the_thread_ends_when_nobody_asks_for_more():
    before = threading.active_count()
    items = prefetch(iter(range(10**9)), lambda item: item)
    next(items)
    items.close()
    assert threading.active_count() == before
