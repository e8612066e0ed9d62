"""The figures by which the paper's networks are recognised."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import lbq
from lbq.time import OverTime, RepeatOverTime


def relu(channels):
    return nn.ReLU()


IMAGE_32, IMAGE_224 = torch.zeros(1, 3, 32, 32), torch.zeros(1, 3, 224, 224)
FRAME_128 = torch.zeros(1, 1, 2, 128, 128)


def ann(build, classes, **arguments):
    return build(classes, timesteps=1, neuron=relu, **arguments)


@pytest.mark.parametrize(
    ("name", "model", "example", "macs", "stem"),
    [
        ("resnet20", ann(lbq.resnet20, 10), IMAGE_32, 2_587_235_328, 3_538_944),
        ("resnet18", ann(lbq.resnet18, 1000), IMAGE_224, 1_814_073_344, 118_013_952),
        ("resnet34", ann(lbq.resnet34, 1000), IMAGE_224, 3_663_761_408, 118_013_952),
        ("resnet18 cifar", ann(lbq.resnet18, 10, form="cifar"), IMAGE_32, 555_422_720, 1_769_472),
        ("resnet19 cifar", ann(lbq.resnet19, 10, form="cifar"), IMAGE_32, 2_216_495_616, 1_769_472),
        ("resnet19 events", ann(lbq.resnet19, 11), FRAME_128, 8_877_378_304, 18_874_368),
        ("resnet20 events", ann(lbq.resnet20, 10, form="events"),
         FRAME_128, 10_439_627_776, 37_748_736),
        ("resnet20 events, stride 1", ann(lbq.resnet20, 10, form="events", first_stage_stride=1),
         FRAME_128, 41_376_814_080, 37_748_736),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_networks_have_the_published_macs(name, model, example, macs, stem):
    found = lbq.count_macs(model, example, padding="counted")
    assert sum(found.values()) == macs
    assert next(iter(found.values())) == stem


def test_torchs_own_counter_agrees():
    model = ann(lbq.resnet20, 10, width=1 / 8).eval()
    with FlopCounterMode(display=False) as counter:
        model(IMAGE_32)
    macs = lbq.count_macs(model, IMAGE_32, padding="counted")
    assert 2 * sum(macs.values()) == counter.get_total_flops()


def products_with_values(conv, size):
    """Count the products of a convolution that read the input: that of ones with weights of one."""
    ones = torch.ones(1, conv.in_channels, *size, dtype=torch.float64)
    alone = copy.deepcopy(conv).double()
    nn.init.ones_(alone.weight)
    alone.bias = None
    with torch.no_grad():
        return int(alone(ones).sum())


@pytest.mark.parametrize(
    ("conv", "size"),
    [
        (nn.Conv2d(3, 5, 3, padding=1), (6, 7)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (9, 8)),
        (nn.Conv2d(4, 4, (3, 1), padding=(1, 0), groups=4), (5, 5)),
        (nn.Conv2d(2, 3, 4, padding="same"), (6, 6)),
        (nn.Conv2d(2, 3, 2, padding="valid"), (6, 6)),
        (nn.Conv1d(2, 3, 5, padding=2), (6,)),
        (nn.Conv3d(2, 3, 3, padding=1), (4, 5, 6)),
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # torch's own
def test_macs_that_read_padding_are_left_out(conv, size):
    example = torch.zeros(1, conv.in_channels, *size)
    assert lbq.count_macs(nn.Sequential(conv), example) == {"0": products_with_values(conv, size)}


def test_macs_of_an_ann_and_accumulations_follow_one_rule():
    """All levels one: every synapse that is there is one accumulation, and one MAC of the ANN."""
    model = nn.Sequential(
        RepeatOverTime(2), lbq.BurstLIF(1, step=0.5, reset=0.0),
        OverTime(nn.Conv2d(3, 5, 3, padding=1)), lbq.BurstLIF(),
    ).eval()  # fmt: skip
    image = torch.ones(1, 3, 4, 4)
    counter = lbq.OpCounter(model, image)
    with torch.no_grad(), lbq.watch_levels(model, counter):
        model(image)
    table = counter.table()
    assert table.total().unary_acs == 2 * table.ann_macs()
    assert table.ann_macs(padding="counted") == 5 * 27 * 4 * 4 > table.ann_macs()


def test_the_stem_of_a_still_image_is_counted_once_whatever_the_timesteps():
    once, often = (
        lbq.count_macs(lbq.resnet20(10, width=1 / 8, timesteps=t), IMAGE_32) for t in (1, 4)
    )
    assert often["stem.1"] == once["stem.1"]
    assert all(often[name] == 4 * macs for name, macs in once.items() if name != "stem.1")


def test_exact_synapses_of_the_papers_network():  # docs/decisions/0006 and 0010
    connectivity = lbq.cost.read_connectivity(lbq.resnet20(10), IMAGE_32)
    exact = {
        e.target: int(e.fan_out.sum()) * connectivity.neurons[e.source] // e.fan_out.numel()
        for e in connectivity.edges
        if not e.is_identity
    }
    assert sum(exact.values()) == 2_355_200_000
    assert exact["classifier.0.2"] == 512 * 8 * 8 * 10  # one linear map with the pool before it


@pytest.mark.parametrize("shape", [(4, 3, 8, 8), (3, 4, 3, 8, 8), (2, 5)])
def test_a_batch_is_no_example_of_an_ann_either(shape):
    class Fold(nn.Module):
        def forward(self, x):
            return x.flatten(0, 1) if x.dim() == 5 else x

    synapse = nn.Linear(5, 2) if len(shape) == 2 else nn.Conv2d(shape[-3], 4, 3)
    with pytest.raises(lbq.errors.ShapeError, match="must be one sample"):
        lbq.count_macs(nn.Sequential(Fold(), synapse), torch.zeros(shape))


def test_a_batch_of_grey_images_is_refused_with_the_axis_that_was_taken_for_the_batch():
    model = nn.Sequential(nn.Conv2d(1, 4, 3))
    with pytest.raises(lbq.errors.CountError, match=r"assumed to be axis 1 .*pass batch_axis"):
        lbq.count_macs(model, torch.zeros(4, 1, 8, 8))


def test_an_ann_may_read_frames():
    model = nn.Sequential(nn.Flatten(0, 1), nn.Conv2d(2, 4, 3))
    assert lbq.count_macs(model, torch.zeros(3, 1, 2, 8, 8)) == {"1": 3 * 4 * 36 * 18}
