from typing import get_args

import pytest
import torch
from torch import nn

from lbq import neurons
from lbq.config_io import from_document, to_document
from lbq.errors import ParameterError, RecipeError
from lbq.train.model_config import (
    SURROGATES,
    ModelConfig,
    NeuronConfig,
    NeuronKind,
    SurrogateKind,
    build_network,
)


def small(**options):
    return ModelConfig(width=1 / 32, timesteps=2, **options)


def first_neuron(**options):
    return build_network(small(neuron=NeuronConfig(**options)), num_classes=4).stem_neuron


@pytest.mark.parametrize("kind", get_args(NeuronKind))
def test_every_trainable_tensor_of_every_kind_gets_a_gradient(kind):  # so no flag is needed in DDP
    torch.manual_seed(0)
    model = build_network(small(neuron=NeuronConfig(kind=kind)), num_classes=4)
    model(torch.randn(4, 3, 8, 8)).square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


def test_a_fixed_step_is_a_buffer_and_a_learned_one_a_parameter():
    for kind, is_learned in (("v1", False), ("v2", False), ("v3", True), ("lbq", True)):
        neuron = first_neuron(kind=kind, step=0.25)
        assert isinstance(neuron, neurons.BurstLIF)
        steps = [name for name, _ in neuron.named_parameters() if name.endswith("raw_step")]
        assert bool(steps) == is_learned
        assert neuron.step().item() == pytest.approx(0.25)
        assert neuron.max_level == 5


def test_what_is_asked_for_is_built():
    config = small(
        name="resnet19",
        neuron=NeuronConfig(max_level=3, decay=0.25, step_per_channel=True),
        form="cifar",
        block="sew",
    )
    model = build_network(config, num_classes=7)
    neuron = model.stem_neuron
    assert isinstance(neuron, neurons.BurstLIF)
    assert neuron.max_level == 3
    assert neuron.decay().item() == 0.25
    assert neuron.step().numel() == 2  # channels of the stem at this width
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 7)


def test_an_ann_has_relus():
    model = build_network(small(neuron=NeuronConfig(kind="relu")), num_classes=4)
    assert sum(isinstance(m, nn.ReLU) for m in model.modules()) == 19


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(RecipeError, match=r"no network 'vgg'.*resnet20"):
        build_network(small(name="vgg"), num_classes=4)


def test_blocks_make_a_network_shallower():
    model = build_network(small(blocks=(1, 2, 1)), num_classes=4)
    assert [len(stage) for stage in model.stages] == [1, 2, 1]
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 4)
    assert [len(s) for s in build_network(small(), num_classes=4).stages] == [3, 3, 3]


@pytest.mark.parametrize("blocks", [(1, 1), (1, 1, 0), (), (1, 1, 1, 1)])
def test_blocks_that_do_not_fit_the_stages_are_refused(blocks):
    with pytest.raises(ParameterError, match="each of 3 stages"):
        build_network(small(blocks=blocks), num_classes=4)


def test_every_surrogate_has_a_name():
    assert tuple(SURROGATES) == get_args(SurrogateKind)
    assert set(SURROGATES.values()) == set(neurons.Surrogate.__subclasses__())


@pytest.mark.parametrize("kind", ["lbq", "v1", "v2", "v3", "ternary", "ternary-learned"])
@pytest.mark.parametrize("name", SURROGATES)
def test_a_named_surrogate_replaces_the_kinds_own(kind, name):
    config = NeuronConfig(kind=kind, surrogate=name)
    if "ternary" in kind and name == "matched-box":
        return  # an empty plateau at one level
    neuron = build_network(small(neuron=config), num_classes=4).stem_neuron
    assert type(neuron.surrogate) is SURROGATES[name]


def test_kinds_keep_their_own_surrogate_and_reset_unless_said():
    own = {"lbq": "relsg-et", "v1": "box-et", "v2": "relsg-et", "v3": "box-et", "ternary": "box-et"}
    for kind, name in own.items():
        assert type(first_neuron(kind=kind).surrogate) is SURROGATES[name]
    burst = first_neuron()
    assert burst.options.reset_mode == "event"
    assert burst.step.gradient_scale == "none"


@pytest.mark.parametrize("mode", ["event", "level", "none"])
def test_the_reset_is_the_one_asked_for(mode):
    assert first_neuron(reset_mode=mode).options.reset_mode == mode
    assert first_neuron(kind="ternary", reset_mode=mode).options.reset_mode == mode


def test_the_gradient_of_the_steps_can_be_scaled():
    for kind in ("lbq", "v3", "ternary-learned"):
        assert first_neuron(kind=kind, gradient_scale="lsq").step.gradient_scale == "lsq"


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "relu", "surrogate": "box-et"},
        {"kind": "binary", "reset_mode": "level"},
        {"kind": "v2", "gradient_scale": "lsq"},
        {"kind": "ilif", "gradient_scale": "lsq"},
    ],
)
def test_an_option_that_would_do_nothing_is_refused(options):
    with pytest.raises(RecipeError, match=rf"not {options['kind']}; leave it out"):
        NeuronConfig(**options)


def test_the_choices_survive_a_document():
    neuron = NeuronConfig(surrogate="tailed-box", reset_mode="level", gradient_scale="lsq")
    config = small(neuron=neuron, blocks=(1, 1, 1))
    assert from_document(ModelConfig, to_document(config)) == config
