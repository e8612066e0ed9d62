"""The built site, as a reader sees it; .ci/docs builds it and says where (LBQ_SITE)."""

import os
import re
from html import unescape
from importlib import import_module
from pathlib import Path

import browser
import pytest

MOST_GROUPS, MOST_ENTRIES = 5, 8


@pytest.fixture(scope="module")
def site():
    if "LBQ_SITE" not in os.environ:
        pytest.skip("needs the built site: sphinx-build docs build/docs, then LBQ_SITE=build/docs")
    return Path(os.environ["LBQ_SITE"]).resolve()


def text(html):
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


@pytest.fixture(scope="module")
def signatures(site):
    """Signatures of all names, by page, in their order."""
    pages = sorted((site / "api").glob("*.html"))
    shown = r'<dt class="sig[^>]*?(?: id="([^"]+)")?>(.*?)</dt>'
    return {
        page.name: [(name, text(html)) for name, html in re.findall(shown, page.read_text(), re.S)]
        for page in pages
    }


def test_no_page_is_cut_squeezed_or_shrunk_on_a_phone(site, tmp_path):
    pages = [page for page in site.rglob("*.html") if "_static" not in page.parts]
    found = browser.layouts(pages, tmp_path, width=400)
    assert len(found) == len(pages) > 80
    for page, layout in found.items():
        assert layout.width <= 400, page
        assert layout.cut == [], page
        assert layout.shrunk == [], page
        assert layout.broken == [], page


def test_the_sidebar_has_few_groups_of_few_entries(site):
    (tree,) = re.findall(
        r'<div class="sidebar-tree">(.*?)</div>', (site / "index.html").read_text(), re.S
    )
    groups = re.split(r'<p class="caption"', tree)[1:]
    assert len(groups) <= MOST_GROUPS
    for group in groups:
        assert 1 <= group.count('class="toctree-l1') <= MOST_ENTRIES
    assert "A tour in fifteen minutes" in text(groups[0])
    assert "Use LBQ neurons in your own network" in text(groups[0])


def test_every_page_is_in_the_sidebar(site):
    tree = re.search(r'<div class="sidebar-tree">(.*?)<div', (site / "tour.html").read_text(), re.S)
    assert tree
    linked = set(re.findall(r'href="([^"#]+)', tree[1]))
    pages = {
        str(page.relative_to(site)) for page in site.rglob("*.html") if "_static" not in page.parts
    }
    made = {"index.html", "genindex.html", "py-modindex.html", "search.html", "tour.html"}
    assert pages - made - linked == set()


def test_signatures_show_what_can_be_passed(signatures):
    every = [shown for page in signatures.values() for _, shown in page]
    assert len(every) > 1000
    unreadable = re.compile(
        r"\*args(: Any)?, \*\*kwargs|Annotated|jaxtyping|typing\.|<\w+|Ellipsis\b|~\w|object at 0x"
    )
    assert [shown for shown in every if unreadable.search(shown)] == []


def test_signatures_use_the_nouns_of_types(signatures):
    neurons = dict(signatures["neurons.html"])
    assert neurons["lbq.neurons.neuron.Neuron.forward"].startswith(
        "forward(currents: Currents) → Bursts"
    )
    assert "carry: Carry | None" in neurons["lbq.neurons.neuron.Neuron.stream"]
    functional = dict(signatures["functional.html"])
    assert functional["lbq.functional.planes.to_planes"].startswith(
        "to_planes(level: Level, num: int) → Planes"
    )
    types = dict(signatures["types.html"])
    assert types["lbq.types.Currents"].startswith("Currents = Tensor [T, B, *n]")


def test_a_base_class_stands_before_the_classes_that_derive_from_it(signatures):
    for page, shown in signatures.items():
        classes = [
            found for name, words in shown if words.startswith("class ") and (found := named(name))
        ]
        for place, derived in enumerate(classes):
            later = classes[place + 1 :]
            assert [base for base in later if base in derived.__mro__] == [], (page, derived)


def named(path):
    """Import a class by its path; None for what is nested in another class or has no path."""
    module, _, name = path.rpartition(".")
    if not module:
        return None
    try:
        return getattr(import_module(module), name, None)
    except ImportError:
        return None
