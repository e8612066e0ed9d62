"""Every block of Python on every page runs, and prints what the page says."""

import re
from pathlib import Path

import follow
import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BY_A_NEW_USER = {"tour.md", "from-data-to-integers.md"}
"""Followed from a wheel by .ci/wheel."""
BESIDE_OTHERS = {
    *("brevitas.md", "neurobench.md", "sinabs.md", "snntorch.md", "spikingjelly.md"),
    *("plain-loop.md", "accelerate.md", "hugging-face-trainer.md", "lightning.md"),
}
"""Pages about tools that have an environment of their own: tests/external runs them."""


RUNNING = [
    page
    for page in PAGES
    if page.name not in BESIDE_OTHERS | BY_A_NEW_USER
    and any(b.kind == "python" for b in follow.blocks(page))
]


def named(page):
    return str(page.relative_to(ROOT))


@pytest.mark.filterwarnings("default")  # a reader would see warnings, not errors
@pytest.mark.parametrize("page", RUNNING, ids=named)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    follow.follow(page, with_shell=False)


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")), ids=named)
def test_the_links_of_a_page_outside_of_the_site_lead_somewhere(page):
    """Sphinx holds those of the pages inside."""
    found = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in found if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_shows_code_that_is_not_run(page):
    """Fences with another word for the same languages would escape the runner."""
    words = set(re.findall(r"^```([\w+-]+)", page.read_text(), re.M))
    assert not words & {"py", "pycon", "python3", "bash", "shell", "console"}
    fences = re.findall(r"^```python$", page.read_text(), re.M)
    shown = [b for b in follow.blocks(page) if b.kind == "python"]
    assert len(fences) + page.read_text().count("<!-- runs first\n") == len(shown)


def test_two_pages_do_not_train_other_settings_in_one_folder():
    """A reader may follow several pages in one folder; a run is continued with its settings."""
    settings: dict[str, set[str]] = {}
    for page in PAGES:
        for block in follow.blocks(page):
            for line in re.findall(r"^lbq train ([^#\n]+)", block.body, re.M):
                words = line.split()
                at = words.index("--out") if "--out" in words else None
                folder = f"runs/{words[0]}" if at is None else words[at + 1]
                rest = words if at is None else words[:at] + words[at + 2 :]
                settings.setdefault(folder, set()).add(" ".join(rest))
    assert settings
    assert not {folder for folder, lines in settings.items() if len(lines) > 1}
