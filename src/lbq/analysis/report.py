"""One or several runs as one HTML page: opens offline, prints well."""

from collections.abc import Sequence
from pathlib import PurePath

from lbq.analysis import sections
from lbq.analysis.comparison import render_comparison
from lbq.analysis.html_page import headline, notes, page, section
from lbq.analysis.run_summary import RunSummary
from lbq.analysis.settings import word

_TURNS = ("start", "resume", "stop", "finish")
"""What begins or ends a stretch of training in a journal."""


def render(runs: Sequence[RunSummary]) -> str:
    """Write the page of a run, or of several beside one another."""
    return render_run(runs[0]) if len(runs) == 1 else render_comparison(runs)


def render_run(run: RunSummary) -> str:
    """Write the page of one run; what could not be measured has no section, and a note says why."""
    parts = {
        "curves": ("Training", sections.curves(run)),
        "steps": ("Steps", sections.steps(run)),
        "levels": ("Levels", sections.levels(run)),
        "membranes": ("Membranes", sections.membranes(run)),
        "costs": ("Costs", sections.costs(run)),
        "energy": ("Energy", sections.energy(run)),
        "recipe": ("Recipe", sections.recipe(run)),
        "provenance": ("Provenance", sections.provenance(run)),
    }
    there = {key: (title, content) for key, (title, content) in parts.items() if content}
    links = "".join(f'<a href="#{key}">{title}</a>' for key, (title, _) in there.items())
    return page(
        f"Run {run.name}",
        _lead(run),
        [
            notes(run.notes),
            headline(list(sections.headline_of(run))),
            f"<nav>{links}</nav>",
            *(section(key, title, *content) for key, (title, content) in there.items()),
        ],
        opening=[sections.outcome(run)],
    )


def _lead(run: RunSummary) -> str:
    model, data = run.recipe.get("model", {}), run.recipe.get("data", {})
    neuron = model.get("neuron", {})
    turns = [r["event"] for r in run.journal if r.get("event") in _TURNS]
    state = "finished" if turns and turns[-1] == "finish" else "not finished"
    looked_at = "" if run.step is None else f"; looked at after step {run.step:,}"
    blocks = f" ({word(model['blocks'])} blocks)" if model.get("blocks") else ""
    return (
        f"Recipe {run.recipe.get('name')}: {model.get('name')}{blocks} x {model.get('width')} with "
        f"{neuron.get('kind')} neurons, {model.get('timesteps')} timesteps, on "
        f"{PurePath(str(data.get('source'))).name}. {state.capitalize()}{looked_at}."
    )
