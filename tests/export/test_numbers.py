"""Numbers that no lowered network has."""

import pytest
import torch
from bundles import tiny_network

from lbq.deploy.nodes import LevelNeuron
from lbq.export import BundleError
from lbq.export.numbers import check_values


@pytest.mark.parametrize("is_integer", [True, False])
def test_a_sound_network_passes(is_integer):
    for place, node in tiny_network(is_integer=is_integer).nodes():
        check_values(place.path, node)


@pytest.mark.parametrize("role", ["weight", "bias"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_float_is_found_anywhere(role, value):
    synapse = tiny_network(is_integer=False).get_submodule("fc")
    getattr(synapse, role).view(-1)[1] = value
    with pytest.raises(BundleError) as caught:
        check_values("fc", synapse)
    assert caught.value.rule == "finite"


def test_integer_thresholds_may_be_equal_real_ones_not():
    integer, real = (tiny_network(is_integer=kind) for kind in (True, False))
    neuron = integer.get_submodule("stem.neuron")
    neuron.thresholds[1] = neuron.thresholds[0]
    check_values("stem.neuron", neuron)
    neuron = real.get_submodule("stem.neuron")
    neuron.thresholds[1] = neuron.thresholds[0]
    with pytest.raises(BundleError) as caught:
        check_values("stem.neuron", neuron)
    assert caught.value.rule == "thresholds"


@pytest.mark.parametrize(("decay", "is_sound"), [(0, True), (1.4, True), (2.5, False)])
def test_a_real_decay_may_grow_a_little(decay, is_sound):  # LM-HT learns 0.5 .. 1.5
    one = torch.ones(1)
    neuron = LevelNeuron(one[None], decay=one * decay, reset_amount=one, reset="level")
    if is_sound:
        check_values("neuron", neuron)
    else:
        with pytest.raises(BundleError):
            check_values("neuron", neuron)
