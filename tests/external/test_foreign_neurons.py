"""Neurons of other libraries cannot be lowered; the message names them and what to use instead."""

import pytest
import torch
from torch import nn

import lbq
from lbq.errors import LoweringError

LIBRARIES = {  # class: the library, and how the neuron is built
    "LIFNode": ("SpikingJelly", "spikingjelly.activation_based.neuron", {"step_mode": "m"}),
    "ParametricLIFNode": ("SpikingJelly", "spikingjelly.activation_based.neuron", {}),
    "Leaky": ("snnTorch", "snntorch", {"beta": 0.9, "init_hidden": True}),
    "Synaptic": ("snnTorch", "snntorch", {"alpha": 0.9, "beta": 0.8, "init_hidden": True}),
    "LIFCell": ("Norse", "norse.torch", {}),
    "LIF": ("sinabs", "sinabs.layers", {"tau_mem": 10.0}),
    "IAFSqueeze": ("sinabs", "sinabs.layers", {"batch_size": 4}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LIBRARIES)
def test_lowering_names_the_neuron_and_what_to_use_instead(name):
    library, module, settings = LIBRARIES[name]
    neuron = getattr(pytest.importorskip(module), name)(**settings)
    model = nn.Sequential(lbq.RepeatOverTime(2), nn.Linear(6, 5), neuron, nn.Linear(5, 3)).eval()
    said = rf"{name} in 2 cannot be lowered: it is a neuron of {library}, .* lbq\.BurstLIF"
    with pytest.raises(LoweringError, match=said):
        lbq.lower(model, torch.randn(4, 6))
