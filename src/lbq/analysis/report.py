"""One or several runs as one HTML page without scripts or external resources."""

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import PurePath

from lbq.analysis import figures
from lbq.analysis.html_page import (
    Cell,
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
from lbq.analysis.layer_stats import LayerLevels, LevelProfile, StepProfile
from lbq.analysis.run_summary import RunSummary
from lbq.config_io import Document, differences
from lbq.cost.count_table import Counts, CountTable
from lbq.cost.energy import EnergyReport, EnergyRow
from lbq.train.metrics import Record

MILLION = 1e6
_RUN_EVENTS = ("start", "resume", "stop", "finish")
_KNOWN = ("accuracy", "loss", "seconds", "time", "elapsed_s")
"""Numbers of an evaluation in the metrics log that are not the user's metrics."""


def render(runs: Sequence[RunSummary]) -> str:
    """Return the page of one run, or of several side by side."""
    return render_run(runs[0]) if len(runs) == 1 else render_comparison(runs)


def render_run(run: RunSummary) -> str:
    """Return the page of one run; a note replaces a section that could not be measured."""
    parts = {
        "curves": ("Training", curves_section(run)),
        "energy": ("Energy", energy_section(run)),
        "costs": ("Costs", costs_section(run)),
        "levels": ("Levels", levels_section(run)),
        "steps": ("Steps", steps_section(run)),
        "membranes": ("Membranes", membranes_section(run)),
        "attention": ("Attention", attention_section(run)),
        "recipe": ("Recipe" if "model" in run.recipe else "Settings", recipe_section(run)),
        "provenance": ("Provenance", provenance_section(run)),
    }
    there = {key: (title, content) for key, (title, content) in parts.items() if content}
    links = "".join(f'<a href="#{key}">{title}</a>' for key, (title, _) in there.items())
    return page(
        f"Run {run.name}",
        _lead(run),
        [
            notes(run.notes),
            headline(list(compared_numbers(run))),
            headline(list(headline_numbers(run))),
            f"<nav>{links}</nav>",
            *(section(key, title, *content) for key, (title, content) in there.items()),
        ],
        opening=[outcome(run)],
    )


def _lead(run: RunSummary) -> str:
    events = [r["event"] for r in run.metrics_log if r.get("event") in _RUN_EVENTS]
    state = "finished" if events and events[-1] == "finish" else "not finished"
    checkpoint = "" if run.step is None else f"; checkpoint of step {run.step:,}"
    return f"{_subject(run)}. {state.capitalize()}{checkpoint}."


def _subject(run: RunSummary) -> str:
    """Name network and data of a recipe, or the class of another network."""
    if "model" not in run.recipe:
        start = next((r for r in run.metrics_log if "model" in r), {})
        return (
            f"Model {start.get('model', 'unknown')}, trained by lbq.fit on data of the user's own"
        )
    model, data = run.recipe["model"], run.recipe.get("data", {})
    blocks = f" ({format_value(model['blocks'])} blocks)" if model.get("blocks") else ""
    return (
        f"Recipe {run.recipe.get('name')}: {model.get('name')}{blocks} x {model.get('width')} with "
        f"{model.get('neuron', {}).get('kind')} neurons, {_timesteps(model['timesteps'])}, on "
        f"{PurePath(str(data.get('source'))).name}"
    )


def _timesteps(number: int) -> str:
    return "1 timestep" if number == 1 else f"{number} timesteps"


def compared_numbers(run: RunSummary) -> Iterator[tuple[str, Cell, str]]:
    """Yield the numbers to compare first: accuracy, accumulations, arithmetic and memory."""
    if last := run.last_evaluation:
        count = f"{_right_answers(last)}, epoch {last['epoch']}"
        yield f"Test {_score_name(last)}", _score(last), count
    if run.counts:
        total = run.counts.total()
        macs = f"an ANN takes {run.counts.ann_macs() / MILLION:,.2f} M MACs"
        words = f"per image, {100 * total.saved:.1f} % fewer than unary; {macs}"
        acs = _millions(run.counts, total.bit_sparse_acs)
        yield "Bit-sparse ACs", number(acs, ",.2f", " M"), words
    if run.energy:
        row, paper = _integer_energy(run.energy), run.energy["paper"]
        words = f"energy in {row.name}{_loss(row)}; {paper.ratio:.2f} x by the paper's float32"
        yield "Arithmetic, ANN / this", ratio(row.ratio), words
    if memory := _memory(run):
        yield "Memory, ANN / this", ratio(memory.ratio), f"bytes moved{_loss(memory)}"


def headline_numbers(run: RunSummary) -> Iterator[tuple[str, Cell, str]]:
    """Yield name, value and remark of the other important numbers."""
    last = run.last_evaluation
    best = last and last.get("best_on_test_set")
    if last and best and best["epoch"] != last["epoch"]:
        words = f"epoch {best['epoch']}, chosen on the test set"
        yield "Best epoch", _score(best), words
    start = next((r for r in run.metrics_log if "parameters" in r), None)
    if start:
        yield "Parameters", number(start["parameters"], ",d"), f"on {start.get('device', '?')}"
    if run.steps.layers:
        spread = f"{min(run.steps.means):.3f} to {max(run.steps.means):.3f} over layers"
        yield "Variation of steps", number(run.steps.variation, ".2f"), spread
    if run.levels:
        least = -run.levels.max_level if run.levels.is_signed else 0
        name = "Timestep" if run.timesteps == 1 else "Timesteps"
        yield name, number(run.timesteps, "d"), f"levels {least} to {run.levels.max_level}"
        over = f"mean over {len(run.levels.layers)} layers"
        yield "Active ratio", number(run.levels.active_ratio, ".3f"), over


def _score_name(record: Record) -> str:
    return "accuracy" if "accuracy" in record else "loss"


def _score(record: Record | None) -> Cell:
    """Return the accuracy of an evaluation, or its loss if a run has no accuracy."""
    if record is not None and "accuracy" not in record:
        return number(float(record["loss"]), ".4f")
    return number(100 * record["accuracy"] if record else None, ".2f", " %")


def _right_answers(record: Record) -> str:
    if "correct" not in record:
        return f"{record['count']:,} samples"
    return f"{record['correct']:,} of {record['count']:,}"


def outcome(run: RunSummary) -> str:
    """Return the conclusion in one sentence, losses included."""
    last, counts, memory = run.last_evaluation, run.counts, _memory(run)
    found = "It was not evaluated on the test set"
    if last and "accuracy" in last:
        found = f"{100 * last['accuracy']:.2f} % of the test samples are answered correctly"
    elif last:
        found = f"The loss on the test set is {last['loss']:.4f}"
    if counts is None:
        return f"{found}; levels, costs and energy were not measured."
    parts = [
        f"{_millions(counts, counts.total().bit_sparse_acs):,.2f} M additions",
        f"{_millions(counts, counts.fp_macs()):,.2f} M multiplications",
    ]
    if counts.products:
        products = _millions(counts, counts.total_products().bit_serial)
        parts.append(f"{products:,.2f} M products of levels")
    found += (
        f", with {', '.join(parts[:-1])} and {parts[-1]} per image"
        f"{' (not all operations are counted)' * bool(counts.notes)} instead of the "
        f"{counts.ann_macs() / MILLION:,.2f} M multiplications of an ANN of the same shape"
    )
    if run.energy:
        row = _integer_energy(run.energy)
        found += f": {_times(row, 'less energy', 'as much energy')} for arithmetic in integers"
    if memory:
        joint = "but" if round(memory.ratio, 2) < 1 else "and"
        found += f", {joint} {_times(memory, 'fewer bytes moved', 'as many bytes moved')}"
    return f"{found}."


def _millions(counts: CountTable, value: int) -> float:
    """Convert a count over all images to millions per image."""
    return value / counts.num_images / MILLION


def _integer_energy(energy: EnergyReport) -> EnergyRow:
    """Return the estimate of arithmetic in which both networks compute in int8."""
    return energy["int8, 32-bit sums"]


def _memory(run: RunSummary) -> EnergyRow | None:
    """Return the first row of memory traffic: the ratio of bytes is the same for all."""
    return next(iter(run.energy.memory), None) if run.energy else None


def _times(row: EnergyRow, gain: str, loss: str) -> str:
    if round(row.ratio, 2) == 1:
        return loss
    if row.ratio < 1:
        return f"{1 / row.ratio:.2f} times {loss}"
    return f"{row.ratio:.2f} times {gain}"


def _loss(row: EnergyRow) -> str:
    return f"; a loss, {1 / row.ratio:.1f} times the ANN's" if row.ratio < 1 else ""


def curves_section(run: RunSummary) -> list[str]:
    """Show accuracy and loss over epochs."""
    if not run.training and not run.evaluations:
        return []
    records = run.evaluations
    has_accuracy = any("accuracy" in record for record in records)
    others = list(dict.fromkeys(name for record in records for name in _own_metrics(record)))
    rows = [
        [
            str(record["epoch"]),
            number(record.get("step"), ",d"),
            *([_score(record), _right_answers(record)] if has_accuracy else []),
            number(float(record["loss"]), ".4f"),
            *(number(record.get(name), ".4g") for name in others),
        ]
        for record in records
    ]
    found = [curves_figure([run])]
    if rows:
        answers = ["accuracy", "right answers"] if has_accuracy else []
        headings = ["epoch", "step", *answers, "loss", *others]
        caption = "Table of evaluations on the test set, from the metrics log"
        found.append(table(caption, headings, rows, is_folded=True))
    return found


def _own_metrics(record: Record) -> list[str]:
    """Return the names of the metrics that a user defined."""
    return [key for key, v in record.items() if isinstance(v, float) and key not in _KNOWN]


def curves_figure(runs: Sequence[RunSummary]) -> str:
    """Draw the curves of one or several runs."""
    last = "; ".join(
        f"{run.name} ends at {100 * record['accuracy']:.2f} % on the test set"
        if "accuracy" in record
        else f"{run.name} ends at a loss of {record['loss']:.4f} on the test set"
        for run in runs
        if (record := run.last_evaluation)
    )
    what = "Accuracy and loss" if figures.have_accuracy(runs) else "Loss"
    what += ", and accumulations per MAC" if figures.have_cost(runs) else ""
    return figure(
        "plot-curves",
        figures.to_svg(figures.draw_curves(runs)),
        label=f"{what} over epochs. {last}",
        caption=f"{what}. Thin lines: training samples as they were augmented, in "
        "training mode; markers: the whole test set.",
    )


def steps_section(run: RunSummary) -> list[str]:
    """Show the step of every layer."""
    layers = run.steps.layers
    if not layers:
        return []
    is_spread = any(step.smallest < step.largest for step in layers)
    rows = [
        [
            str(index),
            step.layer,
            number(step.mean, ".5f"),
            *(number(end, ".5f") for end in (step.smallest, step.largest) if is_spread),
        ]
        for index, step in enumerate(layers, start=1)
    ]
    headings = [
        "layer",
        "neuron",
        *(("mean step", "smallest", "largest") if is_spread else ("step",)),
    ]
    bars = " Bars reach from the smallest to the largest channel." if is_spread else ""
    kind = "learned" if run.steps.is_learned else "fixed"
    return [
        figure(
            "plot-steps",
            figures.to_svg(figures.draw_steps(run.steps)),
            label=f"The {kind} step of each of {len(layers)} layers",
            caption=f"The {kind} step of every layer. Coefficient of variation over layers: "
            f"{run.steps.variation:.3f}.{bars}",
        ),
        table("Table of steps", headings, rows, is_folded=True),
    ]


def _share(layer: LayerLevels, level: int) -> float | None:
    """Return P(level | k > 0); None for a silent layer, and for a level it does not have."""
    if layer.shares is None or level > layer.max_level:
        return None
    return layer.shares[level - 1]


def levels_section(run: RunSummary) -> list[str]:
    """Show which levels every layer emits."""
    if run.levels is None:
        return []
    most = run.levels.max_level
    shown = range(1, most + 1) if most <= 8 else (1, 2, 3, most)
    rows: list[list[Cell]] = [
        [
            str(index),
            layer.layer,
            number(layer.active_ratio, ".4f"),
            number(layer.entropy, ".4f"),
            *(number(_share(layer, k), ".4f") for k in shown),
        ]
        for index, layer in enumerate(run.levels.layers, start=1)
    ]
    rows.append(
        [
            "mean",
            "each layer counts once",
            number(run.levels.active_ratio, ".4f"),
            number(run.levels.entropy, ".4f"),
            *(number(run.levels.share(k), ".4f") for k in shown),
        ]
    )
    share = "P(|k| = {} | k≠0)" if run.levels.is_signed else "P({} | k>0)"
    headings = ["layer", "neuron", "active", "entropy", *(share.format(k) for k in shown)]
    return [
        figure(
            "plot-levels",
            figures.to_svg(figures.draw_levels(run.levels)),
            label="Active ratio and distribution of the levels that are not zero, per layer",
            caption=f"Top: share of levels that are not zero. Bottom: which levels those are. "
            f"{run.levels.num_images:,} test samples, all timesteps.",
        ),
        table(
            "Table of levels; entropy is that of P(k | k>0) over log N",
            headings,
            rows,
            has_total=True,
            is_folded=True,
        ),
    ]


def membranes_section(run: RunSummary) -> list[str]:
    """Show where membranes lie between the thresholds."""
    if not run.membranes:
        return []
    rows = [
        [
            str(index),
            layer.layer,
            number(layer.lower_tail, ".4f"),
            number(layer.on_plateau, ".4f"),
            number(layer.upper_tail, ".4f"),
            number(layer.outside_box, ".4f"),
            number(layer.tail, ".4f"),
        ]
        for index, layer in enumerate(run.membranes, start=1)
    ]
    headings = ["layer", "neuron", "below", "plateau", "above", "outside Box-ET", "tail λ"]
    has_tails = any(layer.tail is not None for layer in run.membranes)
    arrives = "gradients arrive through the tails only" if has_tails else "there is no gradient"
    return [
        figure(
            "plot-membranes",
            figures.to_svg(figures.draw_membranes(run.membranes)),
            label="Histograms of membranes counted in steps, one per layer, with thresholds",
            caption="Membranes before emission, counted in steps; each layer scaled to its own "
            f"peak. Dotted: thresholds. Beside the plateau {arrives}.",
        ),
        table(
            "Table of membranes: where the surrogate sees them, as shares; a box would give those "
            "outside it no gradient",
            headings,
            rows,
            is_folded=True,
        ),
    ]


def attention_section(run: RunSummary) -> list[str]:
    """Show which tokens the attention of a spiking transformer passes on."""
    if run.attention is None:
        return []
    return [
        figure(
            "plot-attention",
            figures.to_svg(figures.draw_attention(run.attention)),
            label="Test images, and below each the mean level behind every attention, per token",
            caption="Top: test images. Below: the mean level that the neurons behind each "
            "attention emit, token by token, over channels and timesteps; dark is none, each map "
            "has its own scale.",
        )
    ]


def costs_section(run: RunSummary) -> list[str]:
    """Show the operations of the network for one image."""
    counts = run.counts
    if counts is None:
        return []
    edges = counts.by_edge()
    rows: list[list[Cell]] = [
        [str(index), source, target, *_accumulations(counts, of_edge)]
        for index, ((source, target), of_edge) in enumerate(edges.items(), start=1)
    ]
    rows.append(["total", "", "", *_accumulations(counts, counts.total())])
    others = {
        "explicit shifts, where shifting is not fused": counts.total().explicit_shifts,
        "plane formations": counts.plane_formations(),
        "additions of identity shortcuts (unary)": counts.identities().unary_acs,
        "MACs of synapses with a real-valued input": counts.fp_macs(),
        "MACs of an ANN of the same shape": counts.ann_macs() * counts.num_images,
    }
    if counts.products:
        products = counts.total_products()
        others |= {
            "products of levels, unary": products.unary,
            "products of levels, bit pairs": products.bit_pairs,
            "products of levels, bit-serial": products.bit_serial,
            "products of levels, dense": products.dense,
        }
    headings = ["edge", "neuron", "into synapse", "unary, M", "bit-sparse, M", "saved"]
    return [
        notes(counts.notes),
        figure(
            "plot-costs",
            figures.to_svg(figures.draw_costs(counts)),
            label="Accumulations of every edge, unary and bit-sparse",
            caption=f"Accumulations per image, mean of {counts.num_images:,} test samples, "
            f"{_timesteps(counts.timesteps)}{' summed' * (counts.timesteps > 1)}; exact fan-out.",
        ),
        table(
            "Table of accumulations per image, in millions",
            headings,
            rows,
            has_total=True,
            is_folded=True,
        ),
        table(
            "Other operations per image, in millions",
            ["operation", "millions"],
            [[name, number(_millions(counts, value))] for name, value in others.items()],
        ),
    ]


def _accumulations(counts: CountTable, some: Counts) -> list[Cell]:
    acs: list[Cell] = [number(_millions(counts, x)) for x in (some.unary_acs, some.bit_sparse_acs)]
    return [*acs, number(100 * some.saved, ".1f", " %") if some.unary_acs else "-"]


def energy_section(run: RunSummary) -> list[str]:
    """Show energy estimates: the paper's convention, and both networks in the same precision."""
    if run.energy is None:
        return []
    groups = {"arithmetic": run.energy.arithmetic, "memory traffic": run.energy.memory}
    rows = [
        [
            row.name,
            number(row.ratio, ".2f"),
            number(1e3 * row.ann_mj),
            number(1e3 * row.burst_mj),
            group,
            row.convention,
        ]
        for group, members in groups.items()
        for row in members
    ]
    headings = ["convention", "ANN / this", "ANN, µJ", "this, µJ", "of", "what it means"]
    return [
        paragraph(
            "The first row is the paper's convention; in the rows below it both networks compute "
            "in the same narrower numbers. Memory traffic is estimated separately: moving a byte "
            "costs more than adding it."
        )
        + notes(run.energy.notes),
        table(f"Energy per image. Source: {run.energy.technology.source}", headings, rows),
    ]


def recipe_section(run: RunSummary) -> list[str]:
    """Show the settings of data, network and training."""
    groups = {"data": "Data", "model": "Network", "": "Training"}
    rows = {group: list[tuple[str, str]]() for group in groups}
    for key, value in settings(run.recipe):
        group, _, inside = key.partition(".")
        rows[group if group in rows else ""].append((inside if group in rows else key, value))
    tables = (
        table(name, ["setting", "value"], rows[group])
        for group, name in groups.items()
        if rows[group]
    )
    return [side_by_side(*tables)]


def provenance_section(run: RunSummary) -> list[str]:
    """Show code, data, versions and machine."""
    rows = [[key, value] for key, value in settings(run.provenance)]
    start = next((r for r in run.metrics_log if r.get("event") == "start"), None)
    if start:
        keys = ("recipe_sha256", "device", "processes", "threads")
        rows += [[key, format_value(start[key])] for key in keys if key in start]
        began = datetime.fromtimestamp(start["time"], UTC)
        hours = (run.metrics_log[-1]["time"] - start["time"]) / 3600
        rows.append(["began", began.strftime("%Y-%m-%d %H:%M UTC")])
        rows.append(["hours from first to last line of the metrics log", f"{hours:.2f}"])
    return [table("What it was made with", ["", "value"], rows)]


def render_comparison(runs: Sequence[RunSummary]) -> str:
    """Return one page that compares several runs."""
    rows = [[name, *cells] for name, cells in _compared(runs)]
    behaviour = [(run.name, run.steps, run.levels) for run in runs if run.levels]
    remarks = [
        f"{run.name}: {note}"
        for run in runs
        for note in (*run.notes, *(run.counts.notes if run.counts else ()))
    ]
    if len({run.provenance.get("data") for run in runs}) > 1:
        remarks.insert(0, OTHER_DATA)
    parts = [
        section(
            "numbers",
            "Side by side",
            table("Every run in a column", ["", *(run.name for run in runs)], rows),
            paragraph(CONVENTIONS),
        ),
        section("curves", "Training", curves_figure(runs)),
    ]
    if behaviour:
        parts.append(section("behaviour", "Layers", _behaviour_figure(behaviour)))
    parts.append(section("recipe", "What differs in the recipes", *_recipe_differences(runs)))
    return page(
        f"{len(runs)} runs compared",
        ", ".join(run.name for run in runs),
        [notes(remarks), *parts],
        opening=[f"{run.name}: {outcome(run)}" for run in runs],
    )


OTHER_DATA = (
    "These runs were not trained and tested on the same data (see the row data): their accuracies "
    "and costs cannot be compared."
)


CONVENTIONS = (
    "Active ratio and entropy are means over layers, each counting once. Accumulations use exact "
    "fan-out and are summed over timesteps, per image. An energy ratio says as much about the two "
    "energy tables as about the two networks: compare the paper's with those in equal precision."
)


def _recipe_differences(runs: Sequence[RunSummary]) -> list[str]:
    first = runs[0].recipe
    keys = sorted({key for run in runs for key, _, _ in differences(first, run.recipe)})
    if not keys:
        return [paragraph("Nothing: all runs have the same recipe.")]
    found = [dict(settings(run.recipe)) for run in runs]
    rows = [[key, *(each.get(key, "-") for each in found)] for key in keys]
    return [table("Settings that are not the same", ["setting", *(r.name for r in runs)], rows)]


def _behaviour_figure(behaviour: Sequence[tuple[str, StepProfile, LevelProfile]]) -> str:
    return figure(
        "plot-behaviour",
        figures.to_svg(figures.draw_behaviour(behaviour)),
        label="Learned steps, entropy against activity, and level distributions of every run",
        caption="(a) Learned step of every layer. (b) Normalised conditional burst entropy and "
        "active ratio: small markers are layers, large ones their mean. Then, for every run, which "
        "levels above zero its layers emit.",
    )


def _compared(runs: Sequence[RunSummary]) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the rows of the comparison: a name, and its value for every run."""
    yield "data", [_data(run) for run in runs]
    lasts = [run.last_evaluation for run in runs]
    for name in ("accuracy", "loss"):
        if any(x and _score_name(x) == name for x in lasts) or name == "accuracy":
            shown = [x if x and _score_name(x) == name else None for x in lasts]
            yield f"test {name}", [_score(x) for x in shown]
    yield "right answers", [_right_answers(x) if x else "-" for x in lasts]
    yield "epoch", [str(x["epoch"]) if x else "-" for x in lasts]
    starts = [next((r for r in run.metrics_log if "parameters" in r), None) for run in runs]
    yield "parameters", [number(x["parameters"] if x else None, ",d") for x in starts]
    yield "timesteps", ["-" if run.timesteps is None else str(run.timesteps) for run in runs]
    yield "largest level", [str(run.levels.max_level) if run.levels else "-" for run in runs]
    steps = [run.steps for run in runs]
    yield "smallest step", [number(min(s.means, default=None), ".4f") for s in steps]
    yield "largest step", [number(max(s.means, default=None), ".4f") for s in steps]
    yield "variation of steps", [number(_real(s.variation), ".3f") for s in steps]
    levels = [run.levels for run in runs]
    yield "active ratio", [number(x and x.active_ratio, ".4f") for x in levels]
    yield "entropy", [number(x and x.entropy, ".4f") for x in levels]
    is_signed = any(x and x.is_signed for x in levels)
    share = "P(|k| = 1 | k≠0)" if is_signed else "P(1 | k>0)"
    yield share, [number(x and x.share(1), ".4f") for x in levels]
    counts = [run.counts for run in runs]
    totals = [x and x.total() for x in counts]
    pairs = list(zip(counts, totals, strict=True))
    yield "unary ACs, M", [number(x and y and _millions(x, y.unary_acs)) for x, y in pairs]
    yield (
        "bit-sparse ACs, M",
        [number(x and y and _millions(x, y.bit_sparse_acs)) for x, y in pairs],
    )
    yield "saved by bits", [number(y and 100 * y.saved, ".1f", " %") for y in totals]
    yield "MACs of the ANN, M", [number(x and x.ann_macs() / MILLION) for x in counts]
    energies = [
        {row.name: row.ratio for row in run.energy.rows} if run.energy else {} for run in runs
    ]
    for name in dict.fromkeys(name for each in energies for name in each):
        yield f"energy, ANN / this: {name}", [number(each.get(name), ".2f") for each in energies]


def _real(value: float) -> float | None:
    return None if math.isnan(value) else value


def _data(run: RunSummary) -> str:
    """Name the data of a run by their source and the first digits of their SHA-256."""
    digest = run.provenance.get("data")
    source = "own data"
    if "data" in run.recipe:
        source = PurePath(str(run.recipe["data"]["source"])).name
    return f"{source}, {digest[:8]}" if digest else source


def settings(document: Document, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield every setting of a document as text, its keys joined by dots."""
    if not isinstance(document, dict):
        yield place, format_value(document)
        return
    for key, value in document.items():
        yield from settings(value, f"{place}.{key}" if place else str(key))


def format_value(value: Document) -> str:
    """Format one value: yes, no and none instead of JSON's literals."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(format_value, value))
    return str(value)
