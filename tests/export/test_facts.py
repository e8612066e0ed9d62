import json

import pytest

from lbq.deploy.lowered_network import LoweredNetwork
from lbq.errors import FormatError
from lbq.export.facts import empty_network, facts_of, read_facts, write_facts

NETWORK = LoweredNetwork(
    timesteps=2, input_shape=(3, 8, 8), takes_frames=False, logit_scale=0.5, origin={"a": [1, None]}
)


def test_facts_survive_the_way_through_json():
    facts = read_facts(write_facts(NETWORK), source="x")
    assert facts == facts_of(NETWORK)
    assert facts_of(empty_network(facts)) == facts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps(facts_of(NETWORK) | {"timesteps": "two"}),
        json.dumps(facts_of(NETWORK) | {"input_shape": [3, "x"]}),
        json.dumps(facts_of(NETWORK) | {"more": 1}),
    ],
)
def test_other_facts_are_refused_with_the_name_of_the_file(text):
    with pytest.raises(FormatError, match=r"^net\.pt2"):
        read_facts(text, source="net.pt2")
