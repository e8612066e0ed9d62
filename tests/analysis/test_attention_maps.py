"""Maps of what attention passes on, and their figure in a report."""

import pytest
import torch

import lbq
from lbq.analysis.attention_maps import MOST_BLOCKS, MOST_SAMPLES, read_attention
from lbq.analysis.report import render_run
from lbq.models import spikeformer_5m


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = spikeformer_5m(10, width=0.25, blocks=(1, 1, 1, 5, 3), form="cifar")
    model.preprocessing = lbq.Pixels(mean=[0.5, 0.5, 0.5], std=[0.25, 0.25, 0.25])
    return model.eval()


def test_maps_are_mean_levels_of_tokens(model):
    images = torch.randn(9, 3, 32, 32)
    maps = read_attention(model, images)
    assert maps is not None
    assert len(maps.blocks) == MOST_BLOCKS  # of eight
    assert next(iter(maps.blocks)) == "stages.3.0.1"
    assert list(maps.blocks)[-1] == "stages.4.2.1"
    with lbq.record_levels(model) as levels, torch.no_grad():
        model(images[:MOST_SAMPLES])
    for path, tokens in maps.blocks.items():
        assert tokens.shape == (MOST_SAMPLES, 8, 8)
        expected = levels[f"{path}.output_neuron"][0].double().mean((0, 2))
        assert torch.allclose(tokens.double(), expected)
    seen = (0.25 * images[:MOST_SAMPLES] + 0.5).clamp(0, 1).permute(0, 2, 3, 1)
    assert torch.allclose(maps.images, seen)


def test_other_networks_have_no_maps():
    assert read_attention(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 8, 8)) is None


def test_a_report_shows_the_maps_of_transformers_only(model, invented):
    maps = read_attention(model, torch.randn(2, 3, 32, 32))
    assert "plot-attention" in render_run(invented.run(attention=maps))
    assert "plot-attention" not in render_run(invented.run())
