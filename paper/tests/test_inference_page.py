import math

import pytest

from lbq_paper import inference_page


def test_the_committed_page_is_what_the_records_generate():
    [sweep], [growth] = (
        inference_page.records(kind) for kind in ("inference-sweep", "inference-growth")
    )
    second = inference_page.second_machine()
    written = inference_page.page(inference_page.records("inference"), sweep, growth, second)
    assert inference_page.PAGE.read_text() == written, (
        "write it again: python -m lbq_paper.inference_page"
    )


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        ([1.0, 2.0, 5.0], 2.5),
        ([4.0, 5.0, 6.0], 0.0),
        ([1.0, 1.5, 2.0], math.inf),
    ],
    ids=["crosses between two", "never faster", "always faster"],
)
def test_where_two_curves_cross(one, expected):
    assert inference_page.crossing([1, 2, 3], one, [3.0, 3.0, 4.0]) == expected
