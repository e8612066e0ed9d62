import lbq
from lbq.neurons import named_neurons


def test_the_default_neuron_is_lbq_with_the_given_level():
    for _, neuron in named_neurons(lbq.resnet20(10, width=1 / 16, max_level=10)):
        assert isinstance(neuron, lbq.BurstLIF)
        assert neuron.max_level == 10
        assert isinstance(neuron.step, lbq.LearnedStep)


def test_each_name_has_the_form_it_has_in_the_paper():
    forms = {n: getattr(lbq, n).form for n in ("resnet18", "resnet19", "resnet20", "resnet34")}
    assert forms == {
        "resnet18": "imagenet",
        "resnet19": "events",
        "resnet20": "cifar",
        "resnet34": "imagenet",
    }
