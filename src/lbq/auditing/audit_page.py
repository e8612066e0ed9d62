"""An audit as one HTML page that loads nothing."""

from html import escape

from lbq.analysis.html_page import Cell, notes, number, page, paragraph, section, table
from lbq.auditing.audit import Audit
from lbq.auditing.finding import Finding

_TITLES = {
    "leak": "Batch invariance",
    "state": "No state between calls",
    "causality": "Causality",
    "determinism": "Determinism",
    "multiplications": "Multiplications",
    "levels": "Levels",
    "virtual-timesteps": "Levels as spike trains",
    "counts": "Counts",
    "deployability": "Deployability",
}


def render_audit(found: Audit) -> str:
    """Return the page: verdicts first, details below."""
    failed = sum(finding.verdict == "fails" for finding in found.findings)
    outcome = "Everything that was checked holds." if not failed else f"{failed} checks fail."
    return page(
        f"Audit of {found.name}",
        f"{found.num_samples:,} samples, {found.timesteps} timestep(s).",
        [
            f'<ul class="verdicts">{"".join(map(_verdict, found.findings))}</ul>',
            notes(found.notes),
            *_products(found),
            *_levels(found),
            *_energy(found),
        ],
        opening=[outcome],
        command="lbq audit",
    )


def _verdict(finding: Finding) -> str:
    advice = ""
    if finding.advice and finding.verdict == "fails":
        advice = f" {finding.advice[0].upper()}{finding.advice[1:]}."
    return (
        f'<li class="verdict {finding.verdict}"><b>{_TITLES.get(finding.key, finding.key)}: '
        f"{finding.verdict}</b> <span>{escape(finding.sentence + advice)}</span></li>"
    )


def _products(found: Audit) -> list[str]:
    per = found.num_samples
    rows: list[list[Cell]] = [
        [
            row.path or "the network itself",
            row.operator,
            "levels" if not row.real_macs else "real numbers",
            number(row.macs / per, ",.0f"),
            number(row.counts.unary_acs / per, ",.0f"),
            number(row.counts.bit_sparse_acs / per, ",.0f"),
            number(row.rate_estimate() / per, ",.0f"),
            number(row.pairs / per, ",.0f"),
        ]
        for row in found.products.rows.values()
        if row.kind != "scale"
    ]
    headings = ["module", "operator", "operand", "MACs", "unary", "bit-sparse", "rate x FLOPs",
                "level products"]  # fmt: skip
    caption = "Per sample, all timesteps; exact counts beside the usual estimate"
    return [section("products", "Products", table(caption, headings, rows))] if rows else []


def _levels(found: Audit) -> list[str]:
    rows: list[list[Cell]] = [
        [
            emitter.path or "the network itself",
            emitter.kind,
            number(emitter.max_level, "d"),
            number(emitter.active, ".3f"),
            number(emitter.mean_level, ".3f"),
            number(emitter.dead, ".3f"),
            number(emitter.saturated, ".3f"),
        ]
        for emitter in found.emitters
    ]
    headings = ["module", "class", "largest level", "active", "mean", "dead", "always full"]
    caption = "Shares of levels and of neurons, over all samples and timesteps"
    return [section("levels", "Levels", table(caption, headings, rows))] if rows else []


def _energy(found: Audit) -> list[str]:
    if found.energy is None:
        return []
    rows: list[list[Cell]] = [
        [row.name, number(row.ann_mj, ".3g"), number(row.burst_mj, ".3g"), row.convention]
        for row in (*found.energy.arithmetic, *found.energy.memory)
    ]
    headings = ["convention", "ANN", "this", "what is priced"]
    return [
        section(
            "energy",
            "Energy",
            paragraph("Millijoules per sample, beside the same network as an ANN."),
            table(found.energy.technology.source, headings, rows),
        )
    ]
