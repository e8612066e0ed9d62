"""``audit``: check what a spiking network really does, with evidence."""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import multimode
from typing import Any

import torch
from torch import Tensor, nn

from lbq.auditing.behaviour import MOST_TOGETHER, Behaviour
from lbq.auditing.emitters import Emitter, is_neuron, watch_emitters
from lbq.auditing.finding import Finding
from lbq.auditing.products import Call, Products, watch_products
from lbq.auditing.recording import tensors_and_numbers
from lbq.config_io import dump_json
from lbq.cost.count_table import Counts, CountTable, EdgeCounts, LayerCounts, SynapseSize
from lbq.cost.energy import EnergyModel, EnergyReport
from lbq.errors import LBQError, ShapeError
from lbq.graph.graph import LoweredNetwork
from lbq.graph.operators import Synapse
from lbq.lowering.fixed_point import to_fixed_point
from lbq.lowering.lower import lower
from lbq.neurons.batch_axis import find_batch_axis
from lbq.neurons.module_state import copy_network

_MOST_DEAD = 0.5
"""A layer with more dead or saturated neurons than this is named."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The findings about a network, and the data behind them."""

    name: str
    num_samples: int
    timesteps: int
    findings: tuple[Finding, ...]
    products: Products
    emitters: tuple[Emitter, ...]
    energy: EnergyReport | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)

    def __getitem__(self, key: str) -> Finding:
        """Return a finding by its key."""
        return next(finding for finding in self.findings if finding.key == key)

    def failed(self, keys: Sequence[str]) -> list[Finding]:
        """Return the findings with these keys that fail or could not be checked."""
        return [f for f in self.findings if f.key in keys and f.verdict in ("fails", "unknown")]

    def to_json(self) -> str:
        """Return everything as JSON."""
        document: dict[str, Any] = {
            "format": "lbq-audit-1",
            "name": self.name,
            "samples": self.num_samples,
            "timesteps": self.timesteps,
            "findings": [asdict(finding) for finding in self.findings],
            "products": [asdict(row) for row in self.products.rows.values()],
            "functions": _named(self.products.functions),
            "not_checked": _named(self.products.unchecked),
            "layers": [_layer(emitter) for emitter in self.emitters],
            "notes": list(self.notes),
        }
        return dump_json(document)

    def __str__(self) -> str:
        marks = {"holds": "ok", "fails": "FAILS", "unknown": "?", "fact": ""}
        lines = [f"{marks[f.verdict]:6}{f.key:18}{f.sentence}" for f in self.findings]
        return "\n".join((f"{self.name}, {self.num_samples} samples", *lines, *self.notes))


def audit(
    model: nn.Module,
    samples: Tensor,
    *,
    batch_axis: int | None = None,
    spikes: Sequence[type[nn.Module] | str] = (),
    input_levels: bool = False,
    name: str = "",
) -> Audit:
    """Check whether a network does what is said of spiking networks.

    It may come from any library. Neurons are known by their class (lbq, SpikingJelly, snnTorch) or
    found by their values; ``spikes`` names them for certain.

    Args:
        model: any network with one input; it runs in eval mode and is not changed.
        samples: at least two, as the network takes them; counts are sums over all of them.
        batch_axis: the axis of the samples. By default the first axis of vectors and images (2 or 4
            axes), the second of sequences (3 or 5 axes, time first).
        spikes: classes or paths of the modules that are neurons.
        input_levels: whether the samples themselves are levels, such as event counts; integers
            always are. Pixels are not, though they lie on a grid.
        name: name of the network in reports; its class by default.

    Example:
        >>> found = lbq.audit(lbq.resnet20(10, width=1 / 16), torch.randn(4, 3, 16, 16))
        >>> found["leak"].verdict
        'holds'
    """
    axis = find_batch_axis(samples, batch_axis, model)
    if samples.shape[axis] < 2:
        raise ShapeError(
            f"an audit compares samples with each other: pass at least two along axis {axis}, got "
            f"{list(samples.shape)}"
        )
    behaviour = Behaviour(model, samples, batch_axis=axis, is_neuron=partial(_is_neuron, spikes))
    products, emitters, answers = _run(
        copy_network(model).eval(), samples, axis, spikes, input_levels
    )
    count = samples.shape[axis]
    every = [e.timesteps * _calls(e, count) for e in emitters.values()]
    timesteps = multimode(every)[-1] if every else 1  # a neuron may take the batch as time
    lowered, refusal = _lowered(copy_network(model).eval(), samples, axis)
    findings = [
        behaviour.check_batch(answers),
        behaviour.check_state(),
        behaviour.check_causality(),
        behaviour.check_determinism(),
        _multiplications(products, emitters, lowered, count, timesteps),
        _levels(emitters),
        _virtual_timesteps(products),
        _counts(products, count),
        _deployability(lowered, refusal),
    ]
    table = _table(products, emitters, count, timesteps)
    return Audit(
        name=name or type(model).__name__,
        num_samples=count,
        timesteps=timesteps,
        findings=tuple(findings),
        products=products,
        emitters=tuple(emitters.values()),
        energy=EnergyModel().estimate(table) if table.edges else None,
        notes=tuple(_notes(products, emitters, behaviour)),
    )


@torch.no_grad()
def _run(
    model: nn.Module,
    samples: Tensor,
    axis: int,
    spikes: Sequence[type[nn.Module] | str],
    input_levels: bool,
) -> tuple[Products, dict[str, Emitter], list[list[Tensor]]]:
    """Run all samples; every batch starts with the state that the network had before.

    Returns the records, and the outputs of every batch.
    """
    at_rest, size = [_state(module) for module in model.modules()], [0]
    answers: list[list[Tensor]] = []
    trial = copy_network(model)
    with watch_products(trial, partial(_is_neuron, spikes)) as seen_twice:
        for _ in range(2):  # values made outside torch show in the second call
            trial(samples.narrow(axis, 0, 2))
    with (
        watch_products(model, partial(_is_neuron, spikes), input_levels=input_levels) as products,
        watch_emitters(model, lambda: size[0], spikes=spikes) as emitters,
    ):
        for some in samples.split(MOST_TOGETHER, axis):
            size[0] = some.shape[axis]
            answers.append([v.clone() for v in tensors_and_numbers(model(some))])
            for module, (attributes, buffers) in zip(model.modules(), at_rest, strict=True):
                vars(module).update(attributes)
                for name, value in buffers.items():
                    now = getattr(module, name)
                    if now.shape == value.shape:
                        now.copy_(value)
                    else:
                        setattr(module, name, value.clone())
    products.unchecked |= {
        k: v for k, v in seen_twice.unchecked.items() if k not in products.unchecked
    }
    return products, emitters, answers


def _state(module: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a module's own attributes, and copies of its buffers."""
    attributes = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    return attributes, {k: v.clone() for k, v in module.named_buffers(recurse=False)}


def _is_neuron(spikes: Sequence[Any], path: str, module: nn.Module) -> bool:
    return is_neuron(path, module, spikes)


def _calls(emitter: Emitter, samples: int) -> int:
    return max(1, round(emitter.calls / -(-samples // MOST_TOGETHER)))


def _lowered(
    model: nn.Module, samples: Tensor, axis: int
) -> tuple[LoweredNetwork | None, LBQError | None]:
    """Convert the network as far as possible: real numbers without multiplications, integers."""
    lowered = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lowered = lower(model, samples.narrow(axis, 0, 1), batch_axis=axis)
            to_fixed_point(lowered, pixels=getattr(model, "preprocessing", None))
    except LBQError as error:
        return lowered, error
    return lowered, None


def _multiplications(
    products: Products,
    emitters: dict[str, Emitter],
    lowered: LoweredNetwork | None,
    count: int,
    timesteps: int,
) -> Finding:
    """Find products with a real-valued operand, in the network as it is and in the folded one."""
    guessed = [e.path for e in emitters.values() if not e.is_certain]
    rows = [row for row in products.rows.values() if row.kind != "scale"]
    real = sorted((r for r in rows if r.real_macs), key=lambda r: -r.real_macs)
    faults = [Call(r.operator, r.path) for r in real if r.multiplies_currents]
    faults += products.functions
    inside = [f for f in faults if _is_inside(f.path, guessed)]
    faults = [f for f in faults if f not in inside]
    unchecked = [*products.unchecked, *inside]
    share = products.real_macs / max(1, products.macs)
    evidence: dict[str, Any] = {
        "share": share,
        "real_products": [
            {"module": r.path, "operator": r.operator, "macs": r.real_macs // count} for r in real
        ],
        "scaled": [
            {"module": r.path, "operator": r.operator}
            for r in products.rows.values()
            if r.kind == "scale"
        ],
        "functions": _named(products.functions),
        "not_checked": [str(call) for call in unchecked],
    }
    words = f"{share:.1%} of all products have a real-valued operand."
    if lowered is not None:
        macs = sum(
            node.weight[0].numel()
            * lowered.values()[path].size
            * (timesteps if node.has_time else 1)
            for path, node in lowered.operators.items()
            if isinstance(node, Synapse)
        )
        evidence["folded_macs"] = macs
        weighted = sum(row.macs for row in rows if row.kind == "weights")
        cost = macs / max(1, weighted // count)
        words += f" Folded, only the first synapse multiplies; it has {cost:.2f} x the products."
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        return Finding(
            key="multiplications",
            verdict="fails",
            sentence=f"Real numbers are multiplied behind the input: {faults[0]}{more}. {words}",
            module=faults[0].path,
            advice="put a neuron before it, or average behind the next synapse",
            evidence=evidence,
        )
    if unchecked:
        some = ", ".join(map(str, unchecked[:3])) + (", ..." if len(unchecked) > 3 else "")
        hint = " (taken for a neuron by its values; confirm with spikes=)" if inside else ""
        return Finding(
            key="multiplications",
            verdict="unknown",
            sentence=f"not checked: {some}{hint}. {words}",
            module=unchecked[0].path,
            evidence=evidence,
        )
    return Finding(
        key="multiplications",
        verdict="holds",
        sentence=f"Only the input is multiplied as real numbers. {words}",
        evidence=evidence,
    )


def _is_inside(path: str, modules: list[str]) -> bool:
    return any(path == module or path.startswith(f"{module}.") for module in modules)


def _named(calls: dict[Call, int]) -> dict[str, int]:
    return {str(call): size for call, size in calls.items()}


def _levels(emitters: dict[str, Emitter]) -> Finding:
    """Check whether neurons emit integers, and find those that use them badly."""
    if not emitters:
        return Finding(
            key="levels",
            verdict="unknown",
            sentence="No module emits levels; name the neurons with spikes=.",
        )
    evidence = {"layers": [_layer(emitter) for emitter in emitters.values()]}
    real = [e for e in emitters.values() if e.real_calls]
    if real:
        return Finding(
            key="levels",
            verdict="fails",
            sentence=f"{real[0].path} ({real[0].kind}) emits values that are not integers times "
            f"a step.",
            module=real[0].path,
            advice="an average of spikes is a real number; average behind the next synapse",
            evidence=evidence,
        )
    bad = [e for e in emitters.values() if max(e.dead, e.saturated) > _MOST_DEAD]
    most = max(e.max_level for e in emitters.values())
    least = min(e.min_level for e in emitters.values())
    mean = sum(e.active for e in emitters.values()) / len(emitters)
    words = f"{len(emitters)} layers emit levels {least}..{most}; {mean:.1%} are active"
    if bad:
        words += f"; more than half of {len(bad)} layer(s), first {bad[0].path}, are dead or full"
    return Finding(key="levels", verdict="holds", sentence=f"{words}.", evidence=evidence)


def _virtual_timesteps(products: Products) -> Finding:
    """Check whether levels may be sent as spike trains: not where they meet other levels."""
    key = "virtual-timesteps"
    pairs = [r for r in products.rows.values() if r.kind == "levels" and not r.real_macs]
    many = [row for row in pairs if row.max_level > 1]
    if not many:
        return Finding(
            key=key,
            verdict="holds",
            sentence="No product of levels above 1: spike trains are exact.",
        )
    return Finding(
        key=key,
        verdict="fails",
        sentence=f"{many[0].path or 'The network itself'} multiplies levels up to "
        f"{many[0].max_level} with levels: sent as binary timesteps, all cross terms are needed.",
        module=many[0].path,
        advice="execute the product of the levels (docs/virtual-timesteps.md)",
        evidence={"products": [row.path for row in many]},
    )


def _counts(products: Products, count: int) -> Finding:
    """Count the operations of the levels, beside the usual estimate."""
    total = products.total()
    weighted = [row for row in products.rows.values() if row.kind == "weights"]
    estimate, once = (sum(r.rate_estimate(x) for r in weighted) for x in ("levels", "active"))
    pairs = sum(row.pairs for row in products.rows.values())
    ratio = total.unary_acs / estimate if estimate else None
    words = (
        f"{total.unary_acs / count:,.0f} unary, {total.bit_sparse_acs / count:,.0f} bit-sparse "
        f"accumulations per sample; rate times FLOPs says {estimate / count:,.0f}"
    )
    return Finding(
        key="counts",
        verdict="fact" if total.unary_acs else "unknown",
        sentence=f"{words}.",
        evidence={
            **{k: v / count for k, v in asdict(total).items()},
            "rate_times_flops": estimate / count,
            "active_times_flops": once / count,
            "exact_over_estimate": ratio,
            "level_products_unary": pairs / count,
            "level_products_bit_pairs": sum(r.bit_pairs for r in products.rows.values()) / count,
        },
    )


def _deployability(lowered: LoweredNetwork | None, refusal: LBQError | None) -> Finding:
    key = "deployability"
    if lowered is not None and refusal is None:
        return Finding(
            key=key,
            verdict="holds",
            sentence=f"It becomes an integer network of {len(lowered.nodes)} nodes (lbq.quantize).",
        )
    what = "has no integer form" if lowered is not None else "becomes no integer network"
    return Finding(key=key, verdict="fails", sentence=f"It {what}: {refusal}.")


def _table(
    products: Products, emitters: dict[str, Emitter], count: int, timesteps: int
) -> CountTable:
    """Return the counts in the form that energy estimates take."""
    rows = [row for row in products.rows.values() if row.kind == "weights"]
    return CountTable(
        num_images=count,
        timesteps=timesteps,
        synapses=tuple(
            SynapseSize(
                name=row.path,
                macs=row.macs // count,
                padded_macs=row.macs // count,
                timesteps=1 if row.real_macs else timesteps,
                num_weights=row.num_weights,
                inputs=row.entering.size // (count * timesteps),
                has_real_input=bool(row.real_macs),
            )
            for row in rows
        ),
        edges=tuple(
            EdgeCounts(
                source="levels",
                target=row.path,
                t=0,
                is_identity=False,
                counts=row.counts,
                entering=row.entering,
                dense=row.macs - row.real_macs,
            )
            for row in rows
            if row.counts != Counts()
        ),
        layers=tuple(
            LayerCounts(
                layer=emitter.path,
                t=0,
                neurons=0 if emitter.was_active is None else emitter.was_active.numel(),
                active=emitter.num_active,
                max_level=max(emitter.max_level, emitter.known_max),
                plane_formations=emitter.num_bits,
            )
            for emitter in emitters.values()
        ),
    )


def _notes(products: Products, emitters: dict[str, Emitter], behaviour: Behaviour) -> Iterator[str]:
    guessed = [e.path for e in emitters.values() if not e.is_certain]
    if guessed:
        yield f"Taken for neurons by their values (confirm with spikes=): {', '.join(guessed)}."
    if behaviour.gains:
        yield (
            f"These neurons emit nothing on these samples; leaks, state and causality were checked "
            f"with larger currents: {', '.join(behaviour.gains)}."
        )
    for call, size in products.functions.items():
        yield f"Real-valued and not counted: {call} ({size:,} values)."


def _layer(emitter: Emitter) -> dict[str, Any]:
    return {
        "module": emitter.path,
        "class": emitter.kind,
        "min_level": emitter.min_level,
        "max_level": emitter.max_level,
        "step": emitter.step if math.isfinite(emitter.step) else None,
        "active": emitter.active,
        "mean_level": emitter.mean_level,
        "dead": emitter.dead,
        "saturated": emitter.saturated,
        "real_calls": emitter.real_calls,
    }
