"""The page as a browser shows it: Chromium, headless."""

import json
import re
from dataclasses import replace

import browser
import pytest

from lbq.analysis.html_page import POLICY
from lbq.analysis.report import render

PROBE = """<script>
const seen = [...document.querySelectorAll("figure svg")].map(svg => {
  const box = svg.getBoundingClientRect(), style = getComputedStyle(svg);
  const paths = svg.querySelectorAll("path").length;
  return [svg.closest("figure").id, box.width, box.height, style.visibility, paths];
});
const pre = document.createElement("pre");
pre.id = "probe";
pre.textContent = JSON.stringify({figures: seen, width: document.documentElement.scrollWidth});
document.body.append(pre);
</script>"""


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """Open a page of HTML; return what the browser wrote, and what its console says."""
    folder = tmp_path_factory.mktemp("browser")

    def browse(html, *options):
        path = folder / "page.html"
        path.write_text(html)
        done = browser.open_page(path, folder / "profile", *options)
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        return done.stdout, console

    return browse


@pytest.fixture(params=["one run", "two runs"])
def html(request, invented):
    runs = [invented.run("one")] + [invented.run("two")] * (request.param == "two runs")
    return render(runs)


def test_the_console_stays_silent_and_nothing_is_requested(browse, html, tmp_path):
    """The policy forbids every request, and a forbidden one is written to the console."""
    picture = tmp_path / "page.png"
    _, console = browse(html, f"--screenshot={picture}")
    assert console == []
    assert picture.stat().st_size > 10_000
    assert POLICY.startswith("default-src 'none'")
    assert f'content="{POLICY}"' in html


def test_a_request_would_be_seen(browse, html):
    spied = html.replace("</main>", '<img src="http://127.0.0.1:9/spy.png" alt=""></main>')
    _, console = browse(spied, "--dump-dom")
    assert any("spy.png" in line for line in console)


@pytest.mark.parametrize("width", [1280, 500])
def test_figures_are_visible_and_the_page_fits_the_window(browse, html, width):
    probed = html.replace(POLICY, POLICY + "; script-src 'unsafe-inline'")
    probed = probed.replace("</body>", PROBE + "</body>")
    dom, console = browse(probed, "--dump-dom", f"--window-size={width},900")
    assert console == []
    found = json.loads(re.search(r'<pre id="probe">(.*?)</pre>', dom)[1])
    assert found["width"] <= width
    assert len(found["figures"]) == html.count("<figure")
    for key, drawn, height, visibility, num_paths in found["figures"]:
        assert drawn > 0.45 * width, key
        assert height > 0.11 * width, key
        assert visibility == "visible"
        assert num_paths > 20, key


def test_a_phone_shows_figures_and_tables_in_their_size(html, tmp_path):
    """What is wider than the window scrolls in a box of its own."""
    page = tmp_path / "report.html"
    page.write_text(html)
    (layout,) = browser.layouts([page], tmp_path, width=400).values()
    assert layout.width <= 400
    assert (layout.cut, layout.shrunk, layout.broken) == ([], [], [])


def test_the_page_opens_with_a_summary(invented):
    html = render([invented.run()])
    opening = '<h1>Run invented</h1><p class="outcome">77.50 % of the test samples are answered'
    assert opening in html


def test_the_only_addresses_are_names_of_xml(html):
    addresses = {a for a in re.findall(r"https?://[^\"'<> )]+", html) if "www.w3.org" not in a}
    assert addresses == set()
    assert "<script" not in html


def test_names_are_unique(html):
    names = re.findall(r'\bid="([^"]+)"', html)
    assert len(names) == len(set(names))
    targets = re.findall(r'href="#([^"]+)"', html) + re.findall(r"url\(#([^)]+)\)", html)
    assert targets
    assert set(targets) <= set(names)


def test_every_section_is_linked(invented):
    html = render([invented.run()])
    links = re.search(r"<nav>(.*?)</nav>", html)[1]
    assert re.findall(r'href="#(\w+)"', links) == re.findall(r'<section id="(\w+)">', html)
    assert len(re.findall("<section", html)) == 8


def test_energy_comes_before_the_layers_whose_tables_are_folded(invented):
    html = render([invented.run()])
    assert html.index('id="energy"') < html.index("<details>", html.index('id="energy"'))
    folded = re.findall(r"<details><summary>Table of (\w+)", html)
    assert folded == ["evaluations", "accumulations", "levels", "steps", "membranes"]


def test_one_timestep_is_one(invented):
    run = invented.run()
    assert "lbq neurons, 2 timesteps, on" in render([run])
    run.recipe["model"]["timesteps"] = 1
    html = render([replace(run, counts=invented.counts(timesteps=1))])
    assert "lbq neurons, 1 timestep, on" in html
    assert "test samples, 1 timestep; exact fan-out" in html
    assert "1 timesteps" not in re.sub(r"<[^>]*>|\s+", " ", html).lower()
    assert ">Timestep<" in html


def test_a_run_without_data_says_why_and_shows_the_rest(invented):
    notes = ("Not measured: no data.",)
    run = invented.run(levels=None, membranes=(), counts=None, energy=None, notes=notes)
    html = render([run])
    assert "Not measured: no data." in html
    assert 'id="levels"' not in html
    assert 'id="plot-curves"' in html


def test_the_first_sentence_is_true_of_a_run_that_goes_on(invented):
    run = invented.run()
    assert "resnet20 x 0.5 with lbq neurons" in render([run])
    assert "Finished; checkpoint of step 20." in render([run])
    longer = (*run.metrics_log, {"event": "resume", "step": 20, "time": 2e9})
    run.recipe["model"]["blocks"] = [1, 1, 2]
    html = render([replace(run, metrics_log=longer)])
    assert "Not finished; checkpoint of step 20." in html
    assert "resnet20 (1, 1, 2 blocks) x 0.5" in html
