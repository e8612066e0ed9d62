"""The page of lowered networks, docs/deploy/coverage.md, is what a run of them gives.

``LBQ_WRITE_PAGES=1 pytest tests/lowering/test_coverage.py`` writes it anew.
"""

import os
from pathlib import Path

import pytest
import torch
from equivalence import engines
from lowering.test_user_networks import batch_of, build
from random_networks import to_proven_integers
from user_networks import NETWORKS

import lbq
from lbq.errors import LoweringError

PAGE = Path(__file__).parents[2] / "docs" / "deploy" / "coverage.md"
HEAD = """# Which networks are lowered

Written by `tests/lowering/test_coverage.py` from the networks in `tests/user_networks.py`, which
are written as users write them. "Exact": in float64 no level differs from the trained network, and
the integers of all backends, the native engine, the bundle, the C reader, ONNX Runtime and OpenVINO
are the same. "Real only": lowered exactly, without an integer form. Counts are those of one random
sample in 8 bits: bit-sparse accumulations, and products of levels with levels (pairs of non-zero
bits).

| network | what it has | result | nodes | accumulations | products | ONNX | native |
|---|---|---|---|---|---|---|---|
"""
ENGINES = ("onnxruntime, exact", "native")


def row(name, folder):
    """Lower a network, compare everything that runs it, and return its row of the page."""
    model, axis = build(name)
    what = (NETWORKS[name].__doc__ or "").strip().rstrip(".").partition(": refused")[0]
    torch.manual_seed(1)
    raw = torch.randint(0, 256, batch_of(name, axis, 1), dtype=torch.uint8)
    try:
        lowered = lbq.lower(model, raw.float(), batch_axis=axis)
    except LoweringError as error:
        return f"| {name} | {what} | refused: {_message(error)} | | | | | |"
    try:
        network = to_proven_integers(lowered, bits=8)
    except LoweringError as error:
        return f"| {name} | {what} | real only: {_message(error)} | {len(lowered.nodes)} | | | | |"
    found = engines.answers(network, raw, folder)
    differ = engines.disagreements(found)
    assert not any(differ.values()), differ
    counts = lbq.count_ops(network, raw, batch_axis=axis)
    numbers = len(network.nodes), counts.total().bit_sparse_acs, counts.total_products().bit_pairs
    cells = [f"{number:,}" for number in numbers]
    cells += ["same integers" if engine in found else "refused" for engine in ENGINES]
    return f"| {name} | {what} | exact | {' | '.join(cells)} |"


def _message(error):
    """Return a message without the line of the test's own code."""
    return str(error).partition(" (user_networks.py")[0].replace("|", "\\|")


@pytest.fixture(scope="module")
def rows(lbq_run, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LBQ_RUN", str(lbq_run.program))
        return [row(name, tmp_path_factory.mktemp(name)) for name in NETWORKS]


def test_the_page_says_what_is_lowered(rows):
    text = HEAD + "\n".join(rows) + "\n"
    if "LBQ_WRITE_PAGES" in os.environ:
        PAGE.write_text(text)
    assert PAGE.read_text().splitlines() == text.splitlines()


def test_at_least_forty_networks_are_lowered_exactly(rows):
    assert sum("| exact |" in line for line in rows) >= 40
