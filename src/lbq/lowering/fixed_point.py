"""``to_fixed_point``: convert a lowered network to integers, proven not to overflow.

The unit of a current is the value of one integer, per channel (:mod:`lbq.lowering.units`). It is
chosen from the weights of synapses; identity shortcuts have wider weights and use the same unit.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from types import EllipsisType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lbq.errors import LoweringError, ParameterError
from lbq.graph.graph import (
    INPUT,
    Agreement,
    LoweredNetwork,
    Node,
    prove,
)
from lbq.graph.operators import (
    PIXEL_MAX,
    IntegerNeuron,
    Move,
    Operator,
    Readout,
    Synapse,
)
from lbq.graph.operators.level_neuron import LEAST_SHIFT
from lbq.graph.operators.rounding import Rounding, best_unit, decay_as_fraction
from lbq.lowering.lower import lower
from lbq.lowering.units import Units
from lbq.preprocessing import Pixels
from lbq.runtime.run import run_network

Bits = Literal[4, 8, 16]
_WIDTHS = (4, 8, 16)

_LEAST_AGREEMENT, _LEAST_SAMPLES = 0.5, 16
"""Warn below this share of equal outputs, given at least this many samples.

A trained network keeps 9 of 10 outputs at 4 bits, a barely trained one 6 of 10."""
_MAX_SHARE_NOT_BYTES = 0.05
"""Warn if a larger share of the calibration values are not whole bytes."""
_BATCH = 64
"""Samples that are compared at once."""
_SHIFTS = range(LEAST_SHIFT + 1, 17)
"""Decays are multiples of 1 / 2**8, or of up to 1 / 2**16 where that is too coarse."""
_MAX_DEVIATION = 0.01
"""Share by which a rounded decay may change the membrane that a constant current leaves."""


@torch.no_grad()
def to_fixed_point(
    network: LoweredNetwork,
    *,
    bits: Bits = 8,
    pixels: Pixels | EllipsisType | None = ...,
    calibration: Tensor | None = None,
) -> LoweredNetwork:
    """Convert a lowered network to integer weights, currents, membranes and thresholds.

    The result takes uint8 and returns integers, in units of ``logit_scale``. Weights get a scale
    per output channel (one for all classes, so that logits can be compared); identity shortcuts get
    16 bits, and so do synapses whose currents are added to much smaller ones. Every accumulator and
    membrane is proven to fit int32.

    Args:
        network: what :func:`lbq.lower` returned.
        bits: of the weights; the fewest where synapses differ.
        pixels: the normalisation of training, so that the first synapse takes raw bytes; None if
            the network was trained on integers 0..255 (event counts, raw bytes). Required for
            static images; None by default otherwise.
        calibration: some inputs of the lowered network. The mean rounding error of each channel is
            then subtracted from its bias, and ``agreement`` of the result compares both networks.
            Warns if fewer than half of the outputs (of 16 or more) are equal, or if the inputs are
            not bytes under ``pixels``.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> pixels = lbq.Pixels(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        >>> integers = lbq.to_fixed_point(net, bits=8, pixels=pixels)
        >>> lbq.run_network(integers, torch.zeros(1, 3, 16, 16, dtype=torch.uint8)).dtype
        torch.int32
    """
    if bits not in (4, 8, 16):
        raise ParameterError(f"weights have 4, 8 or 16 bits, got {bits}")
    if network.is_integer:
        raise ParameterError("this network is an integer network already")
    _check(network)
    given = _explicit(pixels, network)
    device = next((tensor.device for tensor in network.tensors.values()), torch.device("cpu"))
    here = network if device.type == "cpu" else network.to("cpu")
    with torch.device("cpu"), torch.autocast("cpu", enabled=False):
        means: dict[str, Tensor] = {}
        if calibration is not None:
            calibration = calibration.cpu()
            _check_calibration(here, calibration, given)
            means = mean_inputs(here, calibration)
        integers = _converted(here, bits, given, means)
        if calibration is not None:
            integers = replace(integers, agreement=_compare(here, integers, calibration, given))
    return integers if device.type == "cpu" else integers.to(device)


def quantize(
    model: nn.Module,
    x: Tensor,
    *,
    preprocessing: Pixels | EllipsisType | None = ...,
    bits: Bits = 8,
    batch_axis: int | None = None,
) -> LoweredNetwork:
    """Convert a trained network to integers, proven not to overflow.

    This is :func:`lbq.lower`, then :func:`lbq.to_fixed_point` with ``x`` as calibration inputs. The
    result takes uint8 and returns integers, in units of ``logit_scale``; its ``agreement`` says how
    often it agrees with the trained network on ``x``. A network in train mode is converted as in
    eval mode, with a warning.

    Args:
        model: a trained network. It is not changed.
        x: sample inputs, as the trained network takes them; some hundred are a good calibration.
        preprocessing: how inputs were normalised in training, or None if the network was trained on
            integers 0..255 (event counts, raw bytes). By default ``model.preprocessing``, which
            pretrained networks have; give your own network the same attribute. Required for static
            images.
        bits: of the weights.
        batch_axis: the axis of ``x`` that is the batch, as in :func:`lbq.lower`.

    Example:
        >>> model = lbq.load_pretrained("pocket-cifar10")
        >>> net = lbq.quantize(model, torch.randn(8, 3, 32, 32).clamp(-1.8, 1.8))
        >>> net.is_integer, net.agreement.samples
        (True, 8)
        >>> lbq.run_network(net, torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).dtype
        torch.int32
    """
    if preprocessing is ...:
        preprocessing = getattr(model, "preprocessing", ...)
    if not isinstance(preprocessing, Pixels | EllipsisType | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ParameterError(
            f"preprocessing must be lbq.Pixels(mean=..., std=...), the normalisation of training, "
            f"or None for a network that was trained on values 0..255, got "
            f"{type(preprocessing).__name__} as argument or as model.preprocessing"
        )
    lowered = lower(model, x, batch_axis=batch_axis)
    return to_fixed_point(lowered, bits=bits, pixels=preprocessing, calibration=x)


def _converted(
    network: LoweredNetwork, bits: int, pixels: Pixels | None, means: dict[str, Tensor]
) -> LoweredNetwork:
    nodes = _take_bytes(network, pixels)
    best = {
        path: best_unit(node.weight.double(), bits=bits)
        for path, node in nodes.items()
        if isinstance(node, Synapse)
    }
    units = Units(network, nodes, best, max_extra_bits=_WIDTHS[-1] - bits)
    return _rounded(network, nodes, units, bits, means)


def _explicit(pixels: Pixels | EllipsisType | None, network: LoweredNetwork) -> Pixels | None:
    """Return the normalisation; it is required for static images."""
    if isinstance(pixels, Pixels):
        channels = network.input_shape[0]
        if not len(pixels.mean) == len(pixels.std) == channels:
            raise ParameterError(
                f"{len(pixels.mean)} means and {len(pixels.std)} deviations for {channels} channels"
            )
    if not isinstance(pixels, EllipsisType):
        return pixels
    if network.takes_frames or len(network.input_shape) != 3:
        return None
    raise ParameterError(
        f"this network takes images of {network.input_shape}, and its integer form takes bytes: "
        f"pass pixels=lbq.Pixels(mean=..., std=...), the normalisation of training, or pixels=None "
        f"if it was trained on values 0..255; lbq.quantize takes either as preprocessing=... or as "
        f"the attribute model.preprocessing"
    )


def _check_calibration(network: LoweredNetwork, inputs: Tensor, pixels: Pixels | None) -> None:
    """Raise if the lowered network cannot take the inputs; warn if they are not bytes."""
    if pixels is not None and not inputs.is_floating_point():
        raise ParameterError(
            f"calibration takes inputs of the lowered network, normalised floats; got "
            f"{inputs.dtype}, which only the integer network takes"
        )
    network.check_input(inputs)
    if not inputs.numel():
        raise ParameterError("calibration needs at least one input, got an empty batch")
    exact = _as_bytes(network, inputs, pixels)
    is_no_byte = (exact < -0.5) | (exact > PIXEL_MAX + 0.5)
    if pixels is None:  # large counts saturate
        is_no_byte = (exact < 0) | ((exact - exact.round()).abs() > 1e-3)
    share = float(is_no_byte.double().mean())
    if share > _MAX_SHARE_NOT_BYTES:
        warnings.warn(
            f"{share:.0%} of the calibration values are not bytes 0..255 with pixels={pixels}, "
            f"but {exact.min():.4g}..{exact.max():.4g}; the integer network takes bytes: pass the "
            f"mean and std that normalised the inputs in training",
            stacklevel=4,
        )


def _as_bytes(network: LoweredNetwork, inputs: Tensor, pixels: Pixels | None) -> Tensor:
    """Undo the normalisation; not yet rounded."""
    if pixels is None:
        return inputs.double()
    shape = (-1, *[1] * (len(network.input_shape) - 1))
    mean, std = (torch.tensor(v).double().reshape(shape) for v in (pixels.mean, pixels.std))
    return (inputs.double() * std + mean) * PIXEL_MAX


def _compare(
    network: LoweredNetwork, integers: LoweredNetwork, inputs: Tensor, pixels: Pixels | None
) -> Agreement:
    """Run both networks on the calibration inputs; warn if too many outputs differ."""
    exact = _as_bytes(network, inputs, pixels)
    raw = exact.round().clamp(0, PIXEL_MAX).to(torch.uint8)
    batch_axis = 1 if network.takes_frames else 0
    class_axis = 2 if _readout(network, network.outputs[0]).over_time == "none" else 1
    same = answers = equal = levels = 0
    batches = zip(inputs.split(_BATCH, batch_axis), raw.split(_BATCH, batch_axis), strict=True)
    for real, bytes_ in batches:
        expected, theirs = _watched(network, real)
        found, ours = _watched(integers, bytes_)
        for one, other in zip(expected, found, strict=True):
            is_same = one.argmax(class_axis) == other.argmax(class_axis)
            same, answers = same + int(is_same.sum()), answers + is_same.numel()
        equal += sum(int((ours[at] == level).sum()) for at, level in theirs.items())
        levels += sum(level.numel() for level in theirs.values())
    agreement = Agreement(
        samples=inputs.shape[batch_axis], answers=same / answers, levels=equal / max(levels, 1)
    )
    if agreement.answers < _LEAST_AGREEMENT and agreement.samples >= _LEAST_SAMPLES:
        warnings.warn(
            f"the integer network predicts the same class as the real-valued one for only "
            f"{agreement.answers:.0%} of {agreement.samples} calibration samples; check pixels, "
            f"and try more bits",
            stacklevel=4,
        )
    return agreement


def _watched(
    network: LoweredNetwork, inputs: Tensor
) -> tuple[tuple[Tensor, ...], dict[Any, Tensor]]:
    levels: dict[Any, Tensor] = {}

    def watch(path: str, t: int, level: Tensor) -> None:
        levels[path, t] = level

    outputs = run_network(network, inputs, watch=watch)
    return (outputs if isinstance(outputs, tuple) else (outputs,)), levels


def _rounded(
    network: LoweredNetwork,
    nodes: dict[str, Operator],
    units: Units,
    bits: int,
    means: dict[str, Tensor],
) -> LoweredNetwork:
    over_time = _readout(network, network.outputs[0]).over_time
    share = network.timesteps if over_time == "mean" else 1
    made: dict[str, Operator] = {}
    for path, node in nodes.items():
        wide = next(width for width in _WIDTHS if width >= bits + units.extra_bits.get(path, 0))
        rounding = Rounding(unit=units.of(path), bits=wide, mean=means.get(path))
        made[path] = node.to_integer(rounding)
    scale = float(units.of(network.outputs[0])) / share
    integers = replace(_with_operators(network, made), logit_scale=scale)
    prove(integers)
    return _refine_decays(integers, {path: node.carry_share for path, node in network.neurons()})


def _with_operators(network: LoweredNetwork, operators: Mapping[str, Operator]) -> LoweredNetwork:
    nodes = (
        node._replace(operator=operators.get(node.path, node.operator)) for node in network.nodes
    )
    return replace(network, nodes=tuple(nodes))


def _refine_decays(integers: LoweredNetwork, decays: dict[str, float]) -> LoweredNetwork:
    """Give decays more bits where 8 are too coarse, as far as the proof allows; else warn."""
    timesteps, refined = integers.timesteps, dict[str, Operator]()
    for path, first, inputs in integers.nodes:
        if not isinstance(first, IntegerNeuron) or _is_near(
            decays[path], first.carry_share, timesteps
        ):
            continue
        decay, (_, entering) = decays[path], integers.proof[inputs[0]]
        fractions = (decay_as_fraction(decay, max_shift=n) for n in _SHIFTS)
        finer = (replace(first, multiplier=m, shift=shift) for m, shift in fractions)
        fitting = [first, *(each for each in finer if each.fits(entering, timesteps))]
        near = (each for each in fitting if _is_near(decay, each.carry_share, timesteps))
        best = min(fitting, key=lambda each: _deviation(decay, each.carry_share, timesteps))
        node = next(near, best)
        refined[path] = node
        deviation = _deviation(decay, node.carry_share, timesteps)
        if deviation > _MAX_DEVIATION:
            warnings.warn(
                f"{path} has a decay of {decay:.7g}, in integers {node.multiplier} / "
                f"2**{node.shift} = {node.carry_share:.7g}: after {timesteps} timesteps its "
                f"membrane can differ by {deviation:.1%}. Decays have up to 16 bits, and their "
                f"product with a membrane must fit 32 bits: use fewer bits for the weights or "
                f"fewer timesteps, or train with a decay that is a multiple of 1 / 256",
                stacklevel=6,
            )
    if not refined:
        return integers
    integers = _with_operators(integers, refined)
    prove(integers)
    return integers


def _is_near(decay: float, rounded_decay: float, timesteps: int) -> bool:
    """Return whether a rounded decay will do for so many timesteps; a leak must stay a leak."""
    is_leak_lost = timesteps > 1 and decay < 1 <= rounded_decay
    return not is_leak_lost and _deviation(decay, rounded_decay, timesteps) <= _MAX_DEVIATION


def _deviation(decay: float, rounded_decay: float, timesteps: int) -> float:
    """Return by what share the membrane differs that a constant current leaves in the end."""
    exact, found = (
        timesteps if share == 1 else (1 - share**timesteps) / (1 - share)
        for share in (decay, rounded_decay)
    )
    return abs(found / exact - 1)


def _readout(network: LoweredNetwork, path: str) -> Readout:
    node = network.operators[path]
    assert isinstance(node, Readout)
    return node


def _take_bytes(network: LoweredNetwork, pixels: Pixels | None) -> dict[str, Operator]:
    """Return the nodes by path; synapses that read normalised inputs take bytes instead.

    Operators between the input and such a synapse only move values: what they make of a black
    image, and of the value of one unit of a byte, says how each input of the synapse is normalised.
    """
    moved, nodes = {INPUT: _normalisation(network, pixels)}, dict[str, Operator]()
    for path, node, inputs in network.nodes:
        nodes[path] = node
        entering = [moved[name] for name in inputs if name in moved]
        if len(entering) != len(inputs):
            continue
        if isinstance(node, Synapse):
            nodes[path] = _first_synapse(node, *entering[0], path=path)
        else:
            assert isinstance(node, Move)  # checked
            move = replace(node, has_time=False)
            black, unit = (move(*parts) for parts in zip(*entering, strict=True))
            moved[path] = black, unit
    return nodes


def _normalisation(network: LoweredNetwork, pixels: Pixels | None) -> tuple[Tensor, Tensor]:
    """Return the value of a black image, and of one unit of a byte: ``[1, *input_shape]``."""
    shape = (1, *network.input_shape)
    if pixels is None:
        return torch.zeros(shape, dtype=torch.float64), torch.ones(shape, dtype=torch.float64)
    per_channel = (1, -1, *[1] * (len(shape) - 2))
    mean, std = (
        torch.tensor(v, dtype=torch.float64).reshape(per_channel) for v in (pixels.mean, pixels.std)
    )
    return (-(mean / std)).expand(shape), (1 / (PIXEL_MAX * std)).expand(shape)


def _first_synapse(node: Synapse, black: Tensor, unit: Tensor, *, path: str) -> Synapse:
    """Move the normalisation into the weights; padding was the mean, so borders differ."""
    weight, bias = node.weight.double(), node.bias
    if bool(black.any()):
        offset = replace(node, weight=weight).multiply(black)[0]
        flat = offset.reshape(len(offset), -1)
        if bool(torch.isclose(flat, flat[:, :1], rtol=0, atol=1e-12).all()):
            offset = flat[:, 0]
        old = torch.zeros(len(weight)).double() if bias is None else bias.double()
        axes = max(offset.dim(), old.dim())  # either is a number per channel, or a map
        bias = _with_axes(offset, axes) + _with_axes(old, axes)
    per_input = unit.flatten()
    if not node.is_linear:
        per_channel = unit[0].flatten(1)
        per_input = per_channel[:, 0]
        if not bool((per_channel == per_input[:, None]).all()):
            raise LoweringError(
                f"{path} reads inputs whose channels were normalised by several deviations and "
                f"then mixed; use the same std for all channels"
            )
    weight = _scale_inputs(weight, per_input, node.groups)
    return replace(node, weight=weight, bias=bias, max_input=PIXEL_MAX)


def _with_axes(per_channel: Tensor, axes: int) -> Tensor:
    """Return ``[C]`` as ``[C, 1, ...]`` with so many axes; maps have them already."""
    return per_channel.reshape(*per_channel.shape, *[1] * (axes - per_channel.dim()))


def _scale_inputs(weight: Tensor, factor: Tensor, groups: int) -> Tensor:
    shape = (1, -1, *[1] * (weight.dim() - 2))
    parts = zip(weight.chunk(groups), factor.chunk(groups), strict=True)
    return torch.cat([part * some.reshape(shape) for part, some in parts])


def _check(network: LoweredNetwork) -> None:
    inputs = {INPUT}
    """The input, and what only moves its values."""
    for path, operator, names in network.nodes:
        if isinstance(operator, Move) and inputs.issuperset(names):
            inputs.add(path)
        why = operator.why_real(reads_input=not inputs.isdisjoint(names))
        if why:
            raise LoweringError(f"{path} cannot be computed in integers: {why}")
        if isinstance(operator, Readout) and path not in network.outputs:
            raise LoweringError(
                f"{path} averages {names[0]} over time before the end of the network, "
                f"and the mean is not an integer; average last"
            )
    ends = {path: _readout(network, path).over_time for path in network.outputs}
    if len(set(ends.values())) != 1:
        raise LoweringError(
            f"the outputs of an integer network have one scale, and these differ over time: "
            f"{ends}; average all of them over time, or none"
        )


def mean_inputs(network: LoweredNetwork, inputs: Tensor) -> dict[str, Tensor]:
    """Run a lowered network and return the mean of each input channel of every synapse."""
    means: dict[str, Tensor] = {}

    def compute(node: Node, *values: Tensor) -> Tensor:
        synapse = node.operator
        if isinstance(synapse, Synapse) and node.inputs != (INPUT,):
            seen = values[0].double().flatten(0, int(synapse.has_time))  # [instants, C, *space]
            features = seen.flatten(1) if synapse.is_linear else seen
            means[node.path] = features.mean((0, *range(2, features.dim())))
        return node.compute(*values)

    network(inputs, compute)
    return means
