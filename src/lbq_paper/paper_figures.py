"""The paper's figures: 3 from the equations, 4 from committed records."""

from pathlib import Path

from lbq.analysis import figures
from lbq.errors import ParameterError
from lbq_paper.experiments import Size
from lbq_paper.layers import VARIANTS, first_behaviours
from lbq_paper.results import Results

KINDS = (".svg", ".pdf", ".png")
"""Every figure is written as vectors twice, for pages and for papers, and once as pixels."""


def save_figure_3(out: Path) -> list[Path]:
    """Draw the surrogates."""
    return _save(figures.draw_surrogates(), out, "figure3")


def save_figure_4(out: Path, results: Results, size: Size) -> list[Path]:
    """Draw what layers do with their levels, for those of V1, V2, V3 and LBQ that were run."""
    found = first_behaviours(results, size)
    if not found:
        raise ParameterError(
            f"figure 4 shows {', '.join(VARIANTS)}, and none was run at {size} size; "
            f"python -m lbq_paper run --size {size} --table 5 --data DATA"
        )
    drawn = figures.draw_behaviour([(name, b.steps, b.levels) for name, b in found.items()])
    return _save(drawn, out, f"figure4-{size}")


def _save(figure: figures.Figure, out: Path, name: str) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}{kind}" for kind in KINDS]
    for path in paths:
        figures.save_figure(figure, path)
    return paths
