"""Convert a trained Brevitas network to burst neurons with equal levels."""

import copy
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from lbq.adapters.relu_to_neuron import ReplacementSpec, add_to_bias, find_biases, with_neurons
from lbq.errors import LoweringError, MissingExtraError
from lbq.neurons.burst import BurstLIF
from lbq.neurons.step import FixedStep, LearnedStep, NeuronStep
from lbq.neurons.watch import named_neurons

try:
    import brevitas.nn as quant  # pyright: ignore[reportMissingImports]
    from brevitas.nn.mixin.base import (  # pyright: ignore[reportMissingImports]
        QuantLayerMixin,
    )
except ImportError as error:
    raise MissingExtraError("the import from Brevitas needs it: pip install brevitas") from error

_SYNAPSES: dict[type[nn.Module], type[nn.Module]] = {
    quant.QuantConv2d: nn.Conv2d,
    quant.QuantConv1d: nn.Conv1d,
    quant.QuantLinear: nn.Linear,
}
_CONV = (
    "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups",
    "padding_mode",
)  # fmt: skip
MAX_BITS = 8
"""Levels are bytes."""


@torch.no_grad()
def from_brevitas(network: nn.Module, example: Tensor, *, learn_steps: bool = False) -> nn.Module:
    """Replace every ``QuantReLU`` by a burst neuron with the same levels at T = 1.

    A scale becomes a step, 2**bits - 1 the largest level. Brevitas rounds and a level counts whole
    steps, so half a step goes into the bias before the neuron. Quantised weights become plain
    weights of the same values. (If a current lies exactly between two levels, Brevitas rounds to
    the even one and lbq rounds up; this happens only if the scale is a power of two.)

    Args:
        network: layers of Brevitas and torch, traceable by torch.fx; it is not changed.
        example: an input of the network.
        learn_steps: whether the steps can be trained further; they are then softplus of a
            parameter, which may change the last bit of a step.

    Example:
        >>> spiking = from_brevitas(quantised.eval(), images[:2])
        >>> net = lbq.lower(spiking, images[:1])
    """
    plain = copy.deepcopy(network).eval()
    for path, module in list(plain.named_modules()):
        if type(module) in _SYNAPSES:
            plain.set_submodule(path, _synapse(path, module))
        elif isinstance(module, QuantLayerMixin) and not isinstance(module, quant.QuantReLU):
            raise LoweringError(
                f"{path} is a {type(module).__name__}, which cannot be converted; "
                f"QuantReLU, QuantConv1d, QuantConv2d and QuantLinear are supported"
            )
    paths = {id(module): path for path, module in plain.named_modules()}
    modules = [m for m in plain.modules() if isinstance(m, quant.QuantReLU)]
    rounds = {_check(paths[id(module)], module) for module in modules}
    if len(rounds) > 1:
        raise LoweringError("some QuantReLUs of this network round and others floor; use one kind")

    def neuron(module: nn.Module | None, channels: int) -> BurstLIF:
        return _neuron(module, channels, learn_steps)

    spiking = with_neurons(
        plain,
        example,
        timesteps=1,
        build=neuron,
        replaced=ReplacementSpec(
            modules=(quant.QuantReLU,), functions=frozenset(), leaves=(quant.QuantReLU,)
        ),
    )
    if rounds == {"ROUND"}:
        _add_half_steps(spiking, example)
    return spiking


def _synapse(path: str, layer: Any) -> nn.Module:
    """Copy a layer with its quantised weights as plain ones."""
    for name in ("input_quant", "output_quant", "bias_quant"):
        if getattr(layer, name).is_quant_enabled:
            raise LoweringError(
                f"{path} has its own {name}; import networks whose activations are quantised by "
                f"QuantReLU only, with {name}=None"
            )
    weight, has_bias = layer.quant_weight().value.detach(), layer.bias is not None
    if type(layer) is quant.QuantLinear:
        made: nn.Module = nn.Linear(layer.in_features, layer.out_features, bias=has_bias)
    else:
        made = _SYNAPSES[type(layer)](
            **{name: getattr(layer, name) for name in _CONV}, bias=has_bias
        )
    made.weight = nn.Parameter(weight.clone())
    if has_bias:
        made.bias = nn.Parameter(layer.bias.detach().clone())
    return made


def _check(path: str, relu: Any) -> str:
    """Return how the activation rounds; raise LoweringError if it has no levels 0..N."""
    proxy = relu.act_quant
    if not proxy.is_quant_enabled or relu.input_quant.is_quant_enabled:
        raise LoweringError(f"{path} quantises its input or nothing at all, not its output")
    bits, zero = proxy.bit_width(), proxy.zero_point()
    if proxy.is_signed or bool((zero != 0).any()) or proxy.is_narrow_range:
        raise LoweringError(f"{path} is signed, narrow or has a zero point: not levels 0..N")
    if float(bits) > MAX_BITS:
        raise LoweringError(f"{path} has {float(bits):g} bits; a level has at most {MAX_BITS}")
    rounding = proxy.rounding_mode.upper()
    if rounding not in ("ROUND", "FLOOR"):
        raise LoweringError(f"{path} rounds by {rounding}; ROUND and FLOOR are known")
    is_dyadic = any(math.frexp(scale)[0] == 0.5 for scale in proxy.scale().flatten())
    if rounding == "ROUND" and is_dyadic:
        warnings.warn(
            f"{path} has a power of two as its scale, so currents may lie exactly between two "
            f"levels: lbq rounds them up, Brevitas to the even level",
            stacklevel=3,
        )
    return rounding


def _neuron(relu: Any, channels: int, learn_steps: bool) -> BurstLIF:
    scale = relu.act_quant.scale().detach().flatten()
    per_channel = channels if scale.numel() > 1 else None
    step: NeuronStep = FixedStep(channels=per_channel)
    if learn_steps:
        step = LearnedStep(channels=per_channel)
    step = step.to(scale.dtype)
    step.set_(scale)
    return BurstLIF(2 ** round(float(relu.act_quant.bit_width())) - 1, step=step)


def _add_half_steps(spiking: nn.Module, example: Tensor) -> None:
    biases = find_biases(spiking, example)
    for path, neuron in named_neurons(spiking):
        biased = biases[path]
        if biased is None:
            raise LoweringError(
                f"no bias of its own lies before {path}, so the half step between rounding and "
                f"flooring has no place; put a batch norm before it"
            )
        assert isinstance(neuron, BurstLIF)
        add_to_bias(biased, neuron.step() / 2)
