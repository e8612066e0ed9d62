import pytest
import torch
from sparse_networks import activity_of, build, by_stage, levels_reached, make_sparse


def test_levels_are_as_sparse_as_one_asks():
    net, asked = build(width=1 / 16), (0.3, 0.2, 0.1)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    net = make_sparse(net, images, by_stage(net, asked))
    for layer, share in activity_of(net, images).items():
        stage = int(layer.split(".")[1]) if layer.startswith("stages") else 0
        assert share == pytest.approx(asked[stage], rel=0.35), layer


def test_every_layer_can_be_asked_for_levels_of_its_own():
    net = build(width=1 / 16)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    shares = (0.4, 0.2, 0.1, 0.1, 0.05)
    asked = {
        path: [share / (1 + index % 3) for share in shares]
        for index, (path, _) in enumerate(net.neurons())
    }
    net = make_sparse(net, images, asked)
    for layer, found in levels_reached(net, images).items():
        assert found == pytest.approx(asked[layer], rel=0.4, abs=0.01), layer
