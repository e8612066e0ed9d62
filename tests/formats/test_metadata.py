import json

import pytest

from lbq.errors import FormatError
from lbq.formats.metadata import empty_graph, network_metadata, read_metadata, write_metadata
from lbq.graph.graph import GraphBuilder

NETWORK = GraphBuilder(
    timesteps=2, input_shape=(3, 8, 8), takes_frames=False, logit_scale=0.5, origin={"a": [1, None]}
).finish()


def test_facts_survive_the_way_through_json():
    metadata = read_metadata(write_metadata(NETWORK), source="x")
    assert metadata == network_metadata(NETWORK)
    assert network_metadata(empty_graph(metadata).finish()) == metadata


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps(network_metadata(NETWORK) | {"timesteps": "two"}),
        json.dumps(network_metadata(NETWORK) | {"input_shape": [3, "x"]}),
        json.dumps(network_metadata(NETWORK) | {"more": 1}),
    ],
)
def test_other_facts_are_refused_with_the_name_of_the_file(text):
    with pytest.raises(FormatError, match=r"^net\.pt2"):
        read_metadata(text, source="net.pt2")
