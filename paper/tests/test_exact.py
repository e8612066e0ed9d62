import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_recipe

import lbq
from lbq.data import open_data
from lbq.errors import ParameterError
from lbq.pretrained import pretrained_names, pretrained_recipe, pretrained_record
from lbq.train import build_network
from lbq_paper.measure import count_exactly

every_network = pytest.mark.parametrize("name", pretrained_names())


@every_network
@pytest.mark.skipif("LBQ_DATA" not in os.environ, reason="real images: set LBQ_DATA")
def test_a_stored_network_counts_what_its_record_says_to_the_last_digit(name):
    # The first few of 10,000: all of them take minutes (lbq_paper.record_exact).
    recorded = pretrained_record(name)["exact"]
    few = recorded["after"][0]
    source = str(Path(os.environ["LBQ_DATA"]) / "cifar10")
    config = replace(pretrained_recipe(name).data, source=source)
    data = open_data(config, Path("~/.cache/lbq").expanduser())
    found = count_exactly(lbq.load_pretrained(name), data, milestones=(few["num_images"],))
    assert found["data_sha256"] == recorded["data_sha256"] == pretrained_record(name)["data_sha256"]
    assert found["after"] == [few]


@every_network
def test_a_record_covers_the_whole_test_set(name):
    few, whole = pretrained_record(name)["exact"]["after"]
    assert 500 <= few["num_images"] < whole["num_images"] == 10_000
    assert few["correct"] < whole["correct"]
    assert abs(whole["correct"] - pretrained_record(name)["correct"]) < 50  # bf16
    assert whole["untracked"] == whole["uncounted"] == []


@pytest.fixture
def counted(tmp_path):
    recipe = tiny_recipe()
    recipe = replace(recipe, data=replace(recipe.data, limit_test=150))
    data = open_data(recipe.data, tmp_path)
    torch.manual_seed(0)
    model = build_network(recipe.model, num_classes=data.num_classes).eval()
    return lambda *milestones: count_exactly(model, data, milestones=milestones)


def test_a_milestone_counts_what_came_before_it(counted):
    first, last = counted(50, 150)["after"]
    assert counted(50)["after"] == [first]
    assert (first["num_images"], last["num_images"]) == (50, 150)
    assert 0 < first["unary_acs"] < last["unary_acs"]


@pytest.mark.parametrize("milestone", [30, 200])
def test_a_milestone_that_no_batch_reaches_is_refused(counted, milestone):
    with pytest.raises(ParameterError, match="multiples of 50 up to 150"):
        counted(milestone)
