from pathlib import Path

import pytest
from device.tables import tables

PAGES = Path(__file__).parents[2] / "docs" / "how-to"


@pytest.mark.parametrize("page", ["microcontroller.md", "fpga.md"])
def test_the_figures_of_a_page_are_those_of_the_record(page):
    assert tables()[page] in (PAGES / page).read_text()
