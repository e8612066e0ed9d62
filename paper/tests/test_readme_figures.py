import json

import pytest

from lbq_paper import readme_figures


def test_readme_and_front_page_say_what_the_records_say():
    assert list(readme_figures.differences()) == [], (
        "write them again: python -m lbq_paper.readme_figures"
    )


@pytest.mark.parametrize("change", [-0.01, 0.01])
def test_a_newer_record_is_noticed(tmp_path, monkeypatch, change):
    record = json.loads(readme_figures.BUDGETED_RECORD.read_text())
    record["accuracy"][readme_figures.BUDGETED] += change
    newer = tmp_path / "budgeted.json"
    newer.write_text(json.dumps(record))
    monkeypatch.setattr(readme_figures, "BUDGETED_RECORD", newer)
    found = list(readme_figures.differences())
    assert [words.split(":")[0].split(" is not")[0] for words in found] == [
        "README.md",
        "docs/index.md",
        "docs/figures/front.svg",
    ]
