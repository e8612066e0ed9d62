import pytest
import torch

from lbq.kernels.scan_interface import layout_for, match_layout


def last(sequence):
    folded = sequence.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return folded.unflatten(0, sequence.shape[:2])


SEQUENCES = {
    "channels first": torch.randn(2, 3, 4, 5, 6),
    "channels last": last(torch.randn(2, 3, 4, 5, 6)),
    "1x1 images": torch.randn(2, 3, 4, 1, 1),
    "1x1 images, channels last": last(torch.randn(2, 3, 4, 1, 1)),
    "features": torch.randn(2, 3, 4),
    "a repeated image": torch.randn(3, 4, 5, 6).expand(2, 3, 4, 5, 6),
    "one timestep of a longer sequence": torch.randn(2, 3, 4, 5)[1:],
}


@pytest.mark.parametrize("currents", SEQUENCES.values(), ids=SEQUENCES)
@pytest.mark.parametrize("channels", [1, 4])
def test_a_value_counted_in_memory_order_finds_its_step(currents, channels):
    step = torch.arange(1.0, channels + 1).reshape(channels, *[1] * (currents.dim() - 3))
    layout = layout_for(currents, step)
    by_shape = torch.empty_strided(currents.shape, layout.strides).copy_(step.expand_as(currents))
    in_memory = by_shape.as_strided((currents.numel(),), (1,))
    by_count = torch.arange(currents[0].numel()) // layout.run % channels
    assert torch.equal(in_memory, step.flatten()[by_count].repeat(len(currents)))


def test_what_is_not_dense_or_has_another_step_has_no_layout():
    currents, one = torch.randn(2, 3, 4, 5, 6), torch.ones(1)
    assert layout_for(currents[..., ::2], one) is None
    assert layout_for(torch.randn(3, 2, 4, 5, 6).transpose(0, 1), one) is None
    assert layout_for(currents, torch.ones(4, 5, 1)) is None
    assert layout_for(currents, torch.ones(6)) is None


def test_ordered_copies_only_what_lies_differently():
    like = torch.empty(2, 4, 5, 3).to(memory_format=torch.channels_last)
    values = torch.randn(2, 4, 5, 3)
    moved = match_layout(values, like)
    assert moved.stride() == like.stride()
    assert torch.equal(moved, values)
    assert match_layout(moved, like) is moved
    assert match_layout(moved.bfloat16(), like).dtype == like.dtype
    assert match_layout(None, like) is None
