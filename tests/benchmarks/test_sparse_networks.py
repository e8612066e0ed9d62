import pytest
import torch
from sparse_networks import activity_of, build, make_sparse

pytestmark = pytest.mark.as_shipped  # the annotation checks stop tracers


def test_levels_are_as_sparse_as_one_asks():
    net, asked = build(width=1 / 16), (0.3, 0.2, 0.1)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    make_sparse(net, images, asked)
    for layer, share in activity_of(net, images).items():
        stage = int(layer.split(".")[1]) if layer.startswith("stages") else 0
        assert share == pytest.approx(asked[stage], rel=0.35), layer
