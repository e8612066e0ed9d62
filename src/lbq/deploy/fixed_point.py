"""``to_fixed_point``: a lowered network in integers only, proven not to overflow."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lbq.deploy.bounds import PIXEL_MAX, prove
from lbq.deploy.network import INPUT, LoweredNetwork, Place
from lbq.deploy.nodes import (
    IntegerNeuron,
    LevelNeuron,
    Merge,
    Pool,
    Readout,
    Repeat,
    Shortcut,
    Synapse,
)
from lbq.deploy.rounding import MAX_SHIFT, as_fraction, best_unit, mean_inputs, rounded
from lbq.deploy.units import Group, choose_units, group_currents
from lbq.errors import LoweringError, ParameterError

Bits = Literal[4, 8, 16]


@dataclass(frozen=True, kw_only=True)
class Pixels:
    """How the trained network's inputs came from bytes: ``(byte / 255 - mean) / std``.

    Example:
        >>> cifar10 = lbq.Pixels(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010))
        >>> cifar10.mean
        (0.4914, 0.4822, 0.4465)
    """

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        """Complain about numbers that no normalisation has."""
        if not all(map(math.isfinite, self.mean)):
            raise ParameterError(f"means must be finite, got {tuple(self.mean)}")
        if not all(math.isfinite(std) and std > 0 for std in self.std):
            raise ParameterError(f"deviations must be finite and positive, got {tuple(self.std)}")


@torch.no_grad()
def to_fixed_point(
    network: LoweredNetwork,
    *,
    bits: Bits = 8,
    pixels: Pixels | None = None,
    calibration: Tensor | None = None,
) -> LoweredNetwork:
    """Turn a lowered network into one of integers: weights, currents, membranes, thresholds.

    It takes uint8 and answers with integers, in units of ``logit_scale``. Weights get a scale per
    output channel (one for all classes of the answer, so that integers can be compared); identity
    shortcuts get 16 bits. Every accumulator and membrane is proven to fit int32.

    Args:
        network: what :func:`lbq.lower` returned.
        bits: of the weights.
        pixels: how images were normalised, so that the first synapse takes raw bytes; None if the
            network's inputs are counts already (events).
        calibration: some inputs of the lowered network. With them the mean error that rounding
            makes in each channel is taken out of its bias.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> pixels = lbq.Pixels(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        >>> integers = lbq.to_fixed_point(net, bits=8, pixels=pixels)
        >>> lbq.run(integers, torch.zeros(1, 3, 16, 16, dtype=torch.uint8)).dtype
        torch.int32
    """
    if bits not in (4, 8, 16):
        raise ParameterError(f"weights have 4, 8 or 16 bits, got {bits}")
    if network.is_integer:
        raise ParameterError("this network is one of integers already")
    _check(network)
    means = {} if calibration is None else _calibrated(network, calibration, pixels)
    prepared = _prepare_inputs(network, pixels)
    groups = group_currents(prepared)
    best = {
        place.path: best_unit(node.weight.double(), bits=bits)
        for place, node in prepared.nodes()
        if isinstance(node, Synapse)
    }
    choose_units(prepared, groups, best)
    return _rounded(prepared, groups, bits, means)


def _calibrated(
    network: LoweredNetwork, inputs: Tensor, pixels: Pixels | None
) -> dict[str, Tensor]:
    """Return the mean inputs of every synapse over inputs of the network of real numbers."""
    if pixels is not None and not inputs.is_floating_point():
        raise ParameterError(
            f"calibration takes inputs of the lowered network, normalised floats; got "
            f"{inputs.dtype}, which only its integers will take"
        )
    network.check_input(inputs)
    if not inputs.numel():
        raise ParameterError("calibration needs at least one input, got an empty batch")
    return mean_inputs(network, inputs)


def _rounded(
    network: LoweredNetwork, groups: dict[str, Group], bits: int, means: dict[str, Tensor]
) -> LoweredNetwork:
    answer = next(group for group in groups.values() if group.is_answer)
    last = network.get_submodule(network.plan[-1].path)
    assert isinstance(last, Readout)
    share = network.timesteps if last.over_time == "mean" else 1
    integers = LoweredNetwork(
        timesteps=network.timesteps,
        input_shape=network.input_shape,
        takes_frames=network.takes_frames,
        logit_scale=float(answer.unit) / share,
        origin=network.origin,
    )
    for place, node in network.nodes():
        if isinstance(node, Synapse):
            made = _synapse(node, groups[place.path].unit, bits, means.get(place.path))
        elif isinstance(node, Shortcut):
            made = _shortcut(node, groups[place.path].unit)
        elif isinstance(node, LevelNeuron):
            made = _neuron(node, groups[f"{place.path}:currents"].unit)
        elif isinstance(node, Readout):
            made = Readout("none" if node.over_time == "none" else "sum")
        else:
            assert isinstance(node, Merge | Pool | Repeat)
            made = node
        integers.add(place.path, made, *place.inputs)
    prove(integers)
    return integers


def _synapse(node: Synapse, unit: Tensor, bits: int, mean: Tensor | None) -> Synapse:
    weight = node.weight.double()
    integers = rounded(weight, unit, bits=bits)
    bias = node.bias
    if mean is not None and bits < 16:
        error = weight - integers.double() * unit.reshape(-1, *[1] * (weight.dim() - 1))
        shift = _response(error, mean, node.groups)
        bias = shift if bias is None else bias.double() + shift.reshape(-1, *[1] * (bias.dim() - 1))
    stored = None
    if bias is not None:
        shaped = unit.reshape(-1, *[1] * (bias.dim() - 1))
        stored = (bias.double() / shaped).round().to(torch.int32)
    return node.with_numbers(integers, stored, max_input=node.max_input, bits=bits)


def _response(weight: Tensor, mean: Tensor, groups: int) -> Tensor:
    """Return what a synapse of these weights gives for its mean input, far from borders."""
    taps = weight.flatten(2).sum(2) if weight.dim() > 2 else weight  # [out, in / groups]
    parts = zip(taps.chunk(groups), mean.chunk(groups), strict=True)
    return torch.cat([part @ inputs for part, inputs in parts])


def _shortcut(node: Shortcut, unit: Tensor) -> Shortcut:
    weight = (node.weight.double() / unit).round().to(torch.int16)
    bias = None if node.bias is None else (node.bias.double() / unit).round().to(torch.int32)
    return Shortcut(weight, bias, max_input=node.max_input, is_still=node.is_still)


def _neuron(node: LevelNeuron, unit: Tensor) -> IntegerNeuron:
    multiplier, shift = as_fraction(float(node.decay), max_shift=MAX_SHIFT)
    return IntegerNeuron(
        (node.ladder.double() / unit).ceil().clamp(max=2**30).to(torch.int32),
        multiplier=multiplier,
        shift=shift,
        removed=(node.removed.double() / unit).round().clamp(max=2**30).to(torch.int32),
        reset=node.reset,
        resets_after_decay=node.resets_after_decay,
    )


def _prepare_inputs(network: LoweredNetwork, pixels: Pixels | None) -> LoweredNetwork:
    """Return the network with first synapses that take bytes instead of normalised numbers."""
    made = LoweredNetwork(
        timesteps=network.timesteps,
        input_shape=network.input_shape,
        takes_frames=network.takes_frames,
        origin=network.origin,
    )
    for place, node in network.nodes():
        is_first = isinstance(node, Synapse) and place.inputs == (INPUT,)
        new = _first_synapse(node, network, pixels) if is_first else node  # pyright: ignore[reportArgumentType]
        made.add(place.path, new, *place.inputs)
    return made


def _first_synapse(node: Synapse, network: LoweredNetwork, pixels: Pixels | None) -> Synapse:
    """Move the normalisation into the weights; padded zeros were means, so borders differ."""
    weight, bias = node.weight.double(), node.bias
    if pixels is not None:
        mean = torch.tensor(pixels.mean, dtype=torch.float64)
        std = torch.tensor(pixels.std, dtype=torch.float64)
        if len(mean) != network.input_shape[0] or len(std) != len(mean):
            raise ParameterError(
                f"{len(mean)} means and {len(std)} deviations for {network.input_shape[0]} channels"
            )
        black = -(mean / std).reshape(1, -1, *[1] * (len(network.input_shape) - 1))
        shown = black.expand(1, *network.input_shape)
        if node.is_linear:
            offset = F.linear(shown.flatten(1), weight)[0]
            per_input = (1 / (PIXEL_MAX * std)).repeat_interleave(weight.shape[1] // len(std))
        else:
            offset = F.conv2d(
                shown, weight, None, node.stride, node.padding, node.dilation, node.groups
            )[0]
            if bool(torch.isclose(offset, offset[:, :1, :1], rtol=0, atol=1e-12).all()):
                offset = offset[:, 0, 0]
            per_input = 1 / (PIXEL_MAX * std)
        weight = _scale_inputs(weight, per_input, node.groups)
        old = torch.zeros(len(weight)).double() if bias is None else bias.double()
        bias = offset + old.reshape(-1, *[1] * (offset.dim() - 1))
    return node.with_numbers(weight, bias, max_input=PIXEL_MAX)


def _scale_inputs(weight: Tensor, factor: Tensor, groups: int) -> Tensor:
    shape = (1, -1, *[1] * (weight.dim() - 2))
    parts = zip(weight.chunk(groups), factor.chunk(groups), strict=True)
    return torch.cat([part * some.reshape(shape) for part, some in parts])


def _check(network: LoweredNetwork) -> None:
    for place, node in network.nodes():
        _check_node(place, node)
        if isinstance(node, Readout) and place != network.plan[-1]:
            raise LoweringError(
                f"{place.path} averages {place.inputs[0]} over time, and more is computed with the "
                f"mean, which is no integer; average last"
            )


def _check_node(place: Place, node: torch.nn.Module) -> None:
    why = None
    if not all(bool(torch.isfinite(buffer).all()) for buffer in node.buffers()):
        why = "it holds a NaN or an infinity"
    elif INPUT in place.inputs and not isinstance(node, Synapse):
        why = "it reads the input without a synapse"
    elif isinstance(node, LevelNeuron):
        if node.is_signed:
            why = "it emits negative levels"
        elif node.is_split:
            why = "every level has a membrane of its own"
        elif node.mixture is not None:
            why = "it mixes timesteps"
    elif isinstance(node, Synapse | Shortcut) and node.max_input is None:
        is_first = isinstance(node, Synapse) and place.inputs == (INPUT,)
        why = None if is_first else "it reads real-valued currents, not levels"
        if isinstance(node, Shortcut) and node.bias is None:
            why = (
                f"it scales the real-valued currents of {place.inputs[0]}, and integers are scaled "
                f"behind a neuron only; put the factor into the weights, or behind a neuron"
            )
    if why is not None:
        raise LoweringError(f"{place.path} cannot be computed in integers: {why}")
