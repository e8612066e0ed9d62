"""What every backend must give is in tests/deploy/test_run.py; here is how this one gets it."""

import torch

from lbq.deploy.backends import dense
from lbq.deploy.nodes import Synapse


def test_a_synapse_is_asked_once():
    asked = []

    class Counted(Synapse):
        def multiply(self, inputs):
            asked.append(inputs)
            return super().multiply(inputs)

    levels = torch.tensor([[0], [5]], dtype=torch.uint8)
    dense.multiply(Counted(torch.ones(1, 1), max_input=5), levels)
    assert len(asked) == 1
    assert asked[0] is levels
