import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from lbq.analysis.html_page import (
    POLICY,
    Number,
    figure,
    headline,
    notes,
    number,
    page,
    paragraph,
    ratio,
    section,
    side_by_side,
    table,
)

EVIL = '<script>alert("1")</script> & more'


class Balance(HTMLParser):
    """Fails on tags that do not close in order."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_well_formed():
    body = [section("a", "A", paragraph("b"), table("t", ["x", "y"], [["r", number(1.5)]]))]
    balance = Balance()
    balance.feed(page("title", "lead", body))
    assert balance.open == []


def test_words_are_escaped_wherever_they_stand():
    written = page(
        EVIL,
        EVIL,
        [
            section("s", EVIL, paragraph(EVIL), notes([EVIL])),
            headline([(EVIL, EVIL, EVIL)]),
            table(EVIL, [EVIL, "x"], [[EVIL, EVIL]]),
            figure("f", "<svg ></svg>", label=EVIL, caption=EVIL),
        ],
    )
    assert "<script" not in written
    assert written.count("&lt;script&gt;") == 15


def test_a_number_is_read_by_people_and_by_programs():
    found = number(0.123456789, ".2f", " M")
    assert isinstance(found, Number)
    assert found.html() == '<data value="0.123456789">0.12 M</data>'
    assert number(None) == "-"


def test_a_card_marks_a_ratio_below_one_as_a_loss():
    assert '<div class="loss"><dt>memory</dt>' in headline([("memory", ratio(0.24), "")])
    assert 'class="loss"' not in headline([("energy", ratio(6.31), ""), ("other", "-", "")])


def test_tables_name_their_rows_and_columns_and_align_numbers():
    written = table("c", ["a", "b"], [["x", number(1)], ["all", "-"]], has_total=True)
    root = ElementTree.fromstring(written)
    assert [th.get("scope") for th in root.iter("th")] == ["col", "col", "row", "row"]
    assert [td.get("class") for td in root.iter("td")] == ["number", "number"]
    assert [tr.get("class") for tr in root.iter("tr")] == [None, None, "total"]
    assert root.find(".//caption").text == "c"


def test_a_table_without_rows_still_has_headings():
    assert 'scope="col"' in table("c", ["a", "b"], [])


def test_figures_do_not_share_names():
    svg = '<svg ><metadata>http://x</metadata><g id="a"/><use href="#a" clip-path="url(#c)"/></svg>'
    written = side_by_side(*(figure(key, svg, label="l", caption="c") for key in ("one", "two")))
    assert 'id="one-a"' in written
    assert 'href="#two-a"' in written
    assert "url(#one-c)" in written
    assert "http" not in written
    assert written.count('role="img" aria-label="l"') == 2


def test_no_notes_leave_no_box():
    assert notes([]) == ""


HOSTILE = [
    '<script>document.title="ran"</script>',
    '"><img src=x onerror=document.title="ran">',
    "'><svg onload=document.title='ran'>",
    "</style><script>document.title='ran'</script>",
    "</title><script>document.title='ran'</script>",
    "--><script>document.title='ran'</script>",
    "<iframe srcdoc=\"<script>parent.document.title='ran'</script>\">",
    "<a href=\"javascript:document.title='ran'\">x</a>",
    "javascript:document.title='ran'",
    "\"autofocus onfocus=document.title='ran' x=\"",
    "<meta http-equiv=refresh content=\"0;url=javascript:document.title='ran'\">",
    "&lt;script&gt;document.title='ran'&lt;/script&gt;",
    "line\nbreak <b>bold</b>",
]


class Words(HTMLParser):
    """Collects text, and fails on anything that could run."""

    def __init__(self):
        super().__init__()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        assert tag not in {"script", "iframe", "img", "b"}, tag
        assert not [name for name, value in attrs if name.startswith("on")], attrs
        links = [value for name, value in attrs if name in {"href", "src", "action"}]
        assert not [link for link in links if link.startswith("javascript:")]

    def handle_data(self, data):
        self.text += data


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_a_browser_shows_hostile_words_as_text_and_runs_none(tmp_path):
    parts = [
        (section("s", words, paragraph(words), notes([words])), headline([(words, words, words)]))
        for words in HOSTILE
    ]
    body = [text for pair in parts for text in pair]
    body += [table(words, [words, "x"], [[words, words]]) for words in HOSTILE]
    body += [figure("f", "<svg ></svg>", label=words, caption=words) for words in HOSTILE]
    written = page(" ".join(HOSTILE), " ".join(HOSTILE), body, opening=HOSTILE)
    assert POLICY in written
    (tmp_path / "page.html").write_text(written.replace(POLICY, ""))  # escaping alone must do
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", tmp_path / "page.html"],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    seen = Words()
    seen.feed(done.stdout)
    assert "<title>ran</title>" not in done.stdout
    for words in HOSTILE:
        assert seen.text.count(words) >= 10, words
