"""Counting a trained network's answers and accumulations in numbers that no machine changes.

A level changes where a membrane meets a threshold. In float32 that happens: the same network gives
other counts on a CPU with other vector instructions, though only in the fifth digit. In float64 the
roundings are a billion times smaller and no level was seen to move, so the counts are comparable to
the last digit.
"""

from copy import deepcopy

import torch

from lbq.config_io import Document
from lbq.cost import OpCounter
from lbq.data import Data, eval_batches
from lbq.errors import ParameterError
from lbq.models.resnet import SpikingResNet
from lbq.neurons import watch_levels
from lbq_paper.measure import counts_of

BATCH = 50
"""Images at once; it divides the milestones and changes no count."""


@torch.inference_mode()
def count_exactly(model: SpikingResNet, data: Data, *, milestones: tuple[int, ...]) -> Document:
    """Count, in float64, after each of so many test images, in the order of the test set."""
    last = max(milestones, default=0)
    if not 0 < last <= data.num_test or any(milestone % BATCH for milestone in milestones):
        raise ParameterError(
            f"milestones are multiples of {BATCH} up to {data.num_test}, got {milestones}"
        )
    model = deepcopy(model).double()
    batches = eval_batches(data, batch=BATCH)
    counter: OpCounter | None = None
    correct, found = 0, list[Document]()
    for index, batch in enumerate(batches, 1):
        images = batch.x.double()
        counter = counter or OpCounter(model, images[:1])
        with watch_levels(model, counter):
            correct += int((model(images).argmax(1) == batch.target).sum())
        if index * BATCH in milestones:
            found.append({"correct": correct, **counts_of(counter)})
        if index * BATCH == last:
            break
    return {"precision": "float64", "data_sha256": data.digest, "after": found}
