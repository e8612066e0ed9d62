from lbq.analysis.report import settings
from lbq.config_io import to_document


def test_a_recipe_is_told_leaf_by_leaf(tiny):
    found = dict(settings(to_document(tiny.tiny_recipe())))
    assert found["model.neuron.kind"] == "lbq"
    assert found["model.neuron.max_level"] == "none"
    assert found["channels_last"] == "no"
    assert found["data.limit"] == "64"
    assert found["optim.betas"] == "0.9, 0.999"


def test_values_keep_their_order_and_zero_is_no_no():
    assert list(settings({"b": 0, "a": [1, True, None]})) == [("b", "0"), ("a", "1, yes, none")]
