"""What every backend must give is in tests/deploy/test_run.py; here is how this one gets it."""

import torch

from lbq.deploy.backends import planes
from lbq.deploy.nodes import Synapse


def test_a_synapse_is_asked_once_for_every_plane_that_is_not_empty():
    asked = []

    class Counted(Synapse):
        def multiply(self, inputs):
            asked.append(inputs.flatten().tolist())
            return super().multiply(inputs)

    levels = torch.tensor([[1], [5]], dtype=torch.uint8)  # 001 and 101: no level has the middle bit
    planes.multiply(Counted(torch.ones(1, 1), max_input=7), levels)
    assert asked == [[1, 1], [0, 1]]
