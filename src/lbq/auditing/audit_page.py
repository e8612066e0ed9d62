"""An audit as one HTML page that loads nothing."""

from html import escape

from lbq.analysis.html_page import Cell, notes, number, page, paragraph, ratio, section, table
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

_WORDS = {"holds": ": holds", "fails": ": fails", "unknown": ": not checked", "fact": ""}


def render_audit(found: Audit) -> str:
    """Return the page: verdicts first, details below."""
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
        opening=[_outcome(found)],
        command="lbq audit",
    )


def _outcome(found: Audit) -> str:
    verdicts = [finding.verdict for finding in found.findings]
    failed, unknown = verdicts.count("fails"), verdicts.count("unknown")
    words = (
        f"{failed} of {len(verdicts) - verdicts.count('fact')} checks fail"
        if failed
        else ("Everything that was checked holds")
    )
    return f"{words}; {unknown} could not be checked." if unknown else f"{words}."


def _verdict(finding: Finding) -> str:
    advice, sentence = "", finding.sentence[0].upper() + finding.sentence[1:]
    if finding.advice and finding.verdict == "fails":
        advice = f" {finding.advice[0].upper()}{finding.advice[1:]}."
    return (
        f'<li class="verdict {finding.verdict}"><b>{_TITLES.get(finding.key, finding.key)}'
        f"{_WORDS[finding.verdict]}</b> <span>{escape(sentence + advice)}</span></li>"
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
            f"{emitter.min_level}..{emitter.max_level}",
            number(emitter.active, ".3f"),
            number(emitter.mean_level, ".3f"),
            number(emitter.dead, ".3f"),
            number(emitter.saturated, ".3f"),
        ]
        for emitter in found.emitters
    ]
    headings = ["module", "class", "levels", "active", "mean", "dead", "always full"]
    caption = "Shares of levels and of neurons, over all samples and timesteps"
    return [section("levels", "Levels", table(caption, headings, rows))] if rows else []


def _energy(found: Audit) -> list[str]:
    if found.energy is None:
        return []
    rows: list[list[Cell]] = [
        [
            row.name,
            number(1000 * row.ann_mj, ".3g"),
            number(1000 * row.burst_mj, ".3g"),
            ratio(row.ann_mj / row.burst_mj) if row.burst_mj else "-",
            row.convention,
        ]
        for row in (*found.energy.arithmetic, *found.energy.memory)
    ]
    headings = ["convention", "ANN", "this", "ANN / this", "what is priced"]
    return [
        section(
            "energy",
            "Energy",
            paragraph("Microjoules per sample, beside the same network as an ANN."),
            table(found.energy.technology.source, headings, rows),
        )
    ]
