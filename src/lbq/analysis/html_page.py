"""Elements of a self-contained HTML page: no script, no request, no template engine."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

CSS = """
:root { color-scheme: light dark; --page: #fff; --shade: #1b1f2440; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: #1b1f24;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 21px; margin: 44px 0 8px; padding-top: 12px; border-top: 1px solid #d0d7de; }
p { max-width: 46em; margin: 8px 0; }
.outcome { font-size: 18px; margin: 8px 0 12px; }
.lead, caption, figcaption, .headline dt, .headline .more { color: #50575e; }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 12px 0 20px; }
a { color: #005a8c; }
.headline { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr));
  gap: 12px; margin: 12px 0; }
.headline div { border: 1px solid #d0d7de; border-radius: 6px; padding: 10px 14px; }
.headline dt { font-size: 14px; }
.headline dd { margin: 0; font-size: 23px; font-variant-numeric: tabular-nums; }
.headline .loss { border-color: #b35900; background: #fff8f0; }
.headline .more { display: block; font-size: 13px; line-height: 1.35; }
.notes { border-left: 4px solid #b35900; background: #fff8f0; padding: 8px 16px; margin: 16px 0; }
figure { margin: 16px 0 8px; }
figure svg { display: block; width: 100%; max-width: 960px; height: auto; }
figcaption { font-size: 14px; max-width: 62em; }
.scroll { overflow-x: auto; background: /* shades at the edges beyond which there is more */
  linear-gradient(90deg, var(--page) 40%, transparent) left / 32px 100% no-repeat local,
  linear-gradient(270deg, var(--page) 40%, transparent) right / 32px 100% no-repeat local,
  linear-gradient(90deg, var(--shade), transparent) left / 14px 100% no-repeat scroll,
  linear-gradient(270deg, var(--shade), transparent) right / 14px 100% no-repeat scroll; }
details { margin: 16px 0; } summary { cursor: pointer; font-size: 14px; color: #50575e; }
table { border-collapse: collapse; margin: 16px 0; font-size: 14px; }
caption { text-align: left; padding-bottom: 6px; }
th, td { padding: 4px 14px 4px 0; text-align: left; vertical-align: top; }
thead th { border-bottom: 1.5px solid #1b1f24; vertical-align: bottom; }
tbody th { font-weight: 400; }
tbody tr { border-bottom: 1px solid #e4e8ec; }
tbody tr.total { font-weight: 600; border-top: 1.5px solid #1b1f24; }
tbody tr.total th { font-weight: 600; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.text, td.long { overflow-wrap: break-word; }
td.long { min-width: 24em; }
.columns { display: flex; flex-wrap: wrap; gap: 0 40px; align-items: flex-start; }
.columns > * { max-width: 100%; }
.verdicts { list-style: none; margin: 16px 0; padding: 0; display: grid; gap: 6px; }
.verdict { border-left: 4px solid #2f7d4f; padding: 6px 12px; display: grid; }
.verdict { grid-template-columns: 17em 1fr; }
.verdict.fails { border-color: #b3261e; background: #fdf0ef; }
.verdict.unknown { border-color: #8a8f94; background: #f5f6f7; }
.verdict.fact { border-color: transparent; }
footer { margin-top: 48px; font-size: 13px; color: #50575e; }
@media screen { tbody th { white-space: nowrap; } figure svg { min-width: 660px; } }
@media screen and (max-width: 800px) {
  .verdict { grid-template-columns: 1fr; } main { padding: 20px 14px 40px; }
  thead th:first-child, tbody th { position: sticky; left: 0; background: var(--page); }
  tbody th { white-space: normal; overflow-wrap: break-word; max-width: 11em; }
  tbody .short { white-space: nowrap; } .text { min-width: 9em; }
}
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14181d; --shade: #e6e9ec50; }
  body { color: #e6e9ec; } a { color: #7cc0ee; }
  .lead, caption, summary, figcaption, .headline dt, .headline .more, footer { color: #a3abb3; }
  h2, .headline div, tbody tr { border-color: #343c44; } thead th { border-color: #e6e9ec; }
  .notes, .headline .loss { background: #2b2114; border-color: #d98a3a; }
  figure svg { background: #fff; border-radius: 6px; }
  .verdict.fails { background: #3a1c1c; } .verdict.unknown { background: #2b2b20; }
}
@media print {
  @page { size: A4; margin: 16mm; }
  body { font-size: 10.5pt; } main { max-width: none; padding: 0; }
  nav { display: none; } a { color: inherit; text-decoration: none; }
  h2 { break-after: avoid; margin-top: 20px; } figure, .headline div, tr { break-inside: avoid; }
  thead { display: table-header-group; } caption { break-after: avoid; }
  table { font-size: 8.5pt; margin: 8px 0; } th, td { padding: 1.5pt 10pt 1.5pt 0; }
  p, figcaption { font-size: 9.5pt; max-width: none; }
  details::details-content { content-visibility: visible; }
  .scroll { overflow: visible; background: none; } .headline dd { font-size: 15pt; }
  .columns { display: block; columns: 2; column-gap: 10mm; } .columns table { width: 100%; }
  footer { margin-top: 16px; break-before: avoid; }
}
"""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy: the page loads nothing (data: is the empty icon)."""


@dataclass(frozen=True)
class Number:
    """A formatted number that keeps its exact value for programs."""

    text: str
    value: int | float
    is_loss: bool = False
    """Whether it is marked as worse than the number it is compared with."""

    def html(self) -> str:
        """Return it as a ``<data>`` element."""
        return f'<data value="{self.value!r}">{escape(self.text)}</data>'


Cell = str | Number
"""Text is escaped."""
_SHORT, _LONG = 20, 60
"""Longest cell that is not broken; shortest that gets room for a sentence, in characters."""


def number(value: int | float | None, form: str = ",.3f", unit: str = "") -> Cell:
    """Format a number; None becomes a dash."""
    return "-" if value is None else Number(f"{value:{form}}{unit}", value)


def ratio(value: float) -> Number:
    """Format a ratio ANN / this; below 1 it is a loss."""
    return Number(f"{value:.2f} x", value, is_loss=value < 1)


def page(
    title: str,
    lead: str,
    body: Iterable[str],
    *,
    opening: Iterable[str] = (),
    command: str = "lbq report",
) -> str:
    """Return a whole page.

    Args:
        title: the heading.
        lead: a sentence that says what the page is about.
        body: the sections.
        opening: summaries below the heading, a sentence per run.
        command: the command that writes the page.
    """
    outcome = "".join(f'<p class="outcome">{escape(words)}</p>' for words in opening)
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            '<link rel="icon" href="data:,">',
            f"<style>{CSS}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<header><h1>{escape(title)}</h1>{outcome}",
            f'<p class="lead">{escape(lead)}</p></header>',
            *body,
            f"<footer>Written by {command} on {now}. This page loads nothing.</footer>",
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def section(key: str, title: str, *content: str) -> str:
    """Return content under a heading that can be linked to."""
    return "\n".join([f'<section id="{key}">', f"<h2>{escape(title)}</h2>", *content, "</section>"])


def paragraph(words: str) -> str:
    """Return a paragraph."""
    return f"<p>{escape(words)}</p>"


def notes(words: Sequence[str]) -> str:
    """Return a box of warnings; an empty string without any."""
    if not words:
        return ""
    return f'<div class="notes" role="note">{"".join(map(paragraph, words))}</div>'


def headline(facts: Sequence[tuple[str, Cell, str]]) -> str:
    """Return cards of the most important numbers: name, value and remark."""
    boxes = (
        f"{_box(value)}<dt>{escape(name)}</dt><dd>{_cell(value)}"
        f'<span class="more">{escape(more)}</span></dd></div>'
        for name, value, more in facts
    )
    return f'<dl class="headline">{"".join(boxes)}</dl>'


def table(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    has_total: bool = False,
    is_folded: bool = False,
) -> str:
    """Return a table whose rows are named by their first cell; folded it shows its caption."""
    is_number = [
        any(isinstance(cell, Number) for cell in column) for column in zip(*rows, strict=True)
    ]

    def line(row: Sequence[Cell]) -> str:
        tag = '<tr class="total">' if has_total and row is rows[-1] else "<tr>"
        first, *rest = zip(row, is_number, strict=True)
        cells = [_tagged("th", *first, scope="row"), *(_tagged("td", *each) for each in rest)]
        return f"{tag}{''.join(cells)}</tr>"

    pairs = zip(headings, is_number or [False] * len(headings), strict=True)
    heads = "".join(_tagged("th", name, right, scope="col") for name, right in pairs)
    body = "\n".join(map(line, rows))
    inside = f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    if is_folded:
        summary = f"<summary>{escape(caption)}</summary>"
        return f'<details>{summary}<div class="scroll"><table>{inside}</details>'
    return f'<div class="scroll"><table><caption>{escape(caption)}</caption>{inside}'


def side_by_side(*parts: str) -> str:
    """Put parts next to one another where the window is wide enough."""
    return f'<div class="columns">{"".join(parts)}</div>'


def figure(key: str, svg: str, *, label: str, caption: str) -> str:
    """Return a figure with its caption; ``label`` is its text for screen readers.

    Ids inside the SVG are prefixed with the key, since several figures share one page.
    """
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{key}-', svg)
    svg = re.sub(r'href="#', f'href="#{key}-', svg)
    svg = svg.replace("url(#", f"url(#{key}-")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)
    drawing = f'<div class="scroll">{svg}</div>'
    return f'<figure id="{key}">{drawing}<figcaption>{escape(caption)}</figcaption></figure>'


def _box(value: Cell) -> str:
    return '<div class="loss">' if isinstance(value, Number) and value.is_loss else "<div>"


def _cell(value: Cell) -> str:
    return value.html() if isinstance(value, Number) else escape(value)


def _tagged(tag: str, value: Cell, is_number: bool, scope: str = "") -> str:
    length = len(value if isinstance(value, str) else value.text)
    by_length = "short" if length <= _SHORT else "long" if length > _LONG else "text"
    kind = "number" if is_number else by_length
    place = f' scope="{scope}"' if scope else ""
    return f'<{tag}{place} class="{kind}">{_cell(value)}</{tag}>'
