"""Pages as a browser lays them out: chromium, in a window of any width."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium")
_MEASURE = """<!DOCTYPE html><meta charset="utf-8"><body><script>
function scrolls(element) {
  for (; element; element = element.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(element).overflowX)) return true;
  return false;
}
function measured(page, width) {
  const found = {width: page.documentElement.scrollWidth, cut: [], shrunk: [], broken: []};
  const shown = [...page.querySelectorAll("main, main *, [role=main] *")].filter(each =>
    each.getClientRects().length && !each.parentElement.closest("svg"));
  for (const each of shown) {
    const {overflowX} = getComputedStyle(each);
    const box = each.getBoundingClientRect();
    const hides = ["hidden", "clip"].includes(overflowX) && each.scrollWidth > each.clientWidth + 1;
    if (box.right > width + 1 ? !scrolls(each) : hides)
      found.cut.push(`${each.tagName} ${each.className} ${each.textContent.slice(0, 60)}`);
    const natural = each.naturalWidth || (each.viewBox && each.viewBox.baseVal.width * 4 / 3) || 0;
    if (box.width < 0.9 * Math.min(natural, 700))
      found.shrunk.push(`${each.src || each.tagName}: ${box.width} of ${natural} px`);
    if (["TD", "TH"].includes(each.tagName) && each.textContent.trim().length <= 20) {
      const text = page.createRange();
      text.selectNodeContents(each);
      const size = parseFloat(getComputedStyle(each).fontSize);
      if (text.getBoundingClientRect().height > 2 * size + 12)
        found.broken.push(each.textContent.trim());
    }
  }
  return found;
}
async function measure(pages, width) {
  const found = {}, frame = document.createElement("iframe");
  frame.style = `border: 0; height: 900px; width: ${width}px`;
  document.body.append(frame);
  for (const page of pages) {
    await new Promise(loaded => { frame.onload = loaded; frame.src = page; });
    for (const folded of frame.contentDocument.querySelectorAll("details")) folded.open = true;
    found[page] = measured(frame.contentDocument, width);
  }
  const result = document.createElement("pre");
  result.id = "measured";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
}
measure(PAGES, WIDTH);
</script>"""


@dataclass(frozen=True)
class Layout:
    """How a window shows a page."""

    width: int
    """Pixels up to which the page reaches."""
    cut: list[str]
    """Elements that reach further than the window, and do not scroll."""
    shrunk: list[str]
    """Figures drawn at less than 0.9 of their own width, or of 700 px."""
    broken: list[str]
    """Short cells of tables on more than one line."""


def open_page(path: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open a page in chromium; skip the test where that is missing."""
    if CHROMIUM is None:
        assert "LBQ_REQUIRE_BROWSER" not in os.environ, "chromium is missing"
        pytest.skip("needs chromium")
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={profile}", "--window-size=1280,900", *options, path.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def layouts(pages: Sequence[Path], folder: Path, *, width: int) -> dict[str, Layout]:
    """Lay out pages in a frame: chromium's own window cannot be narrower than 500 px."""
    script = _MEASURE.replace("PAGES", json.dumps([page.as_uri() for page in pages]))
    opener = folder / "measure.html"
    opener.write_text(script.replace("WIDTH", str(width)))
    options = ("--allow-file-access-from-files", "--virtual-time-budget=600000", "--dump-dom")
    dom = open_page(opener, folder / "profile", *options).stdout
    found = re.search(r'<pre id="measured">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    known = json.loads(unescape(found[1]))
    return {page: Layout(**layout) for page, layout in known.items()}
