"""The pages about other tools show code that runs, beside the real tools.

Those about trainers: ``test_trainers.py``.
"""

import os
from pathlib import Path

import follow
import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
TOOLS = {
    "brevitas": "brevitas",
    "hugging-face": "torch",
    "neurobench": "neurobench",
    "sinabs": "sinabs",
    "snntorch": "snntorch",
    "spikingjelly": "spikingjelly",
}


@pytest.mark.parametrize("page", TOOLS)
@pytest.mark.filterwarnings("ignore")  # of other people's libraries
def test_the_code_of_the_page_runs(page, tmp_path, monkeypatch):
    if os.environ.get("LBQ_EXTERNAL") != "1":  # there a missing tool is an error, here a skip
        pytest.importorskip(TOOLS[page], reason=f"{TOOLS[page]} is installed by .ci/external")
    monkeypatch.chdir(tmp_path)
    follow.follow(PAGES / f"{page}.md", with_shell=False)
