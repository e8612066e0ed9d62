"""The numbers in a bundle's tensors: finite, within their bits, thresholds that rise."""

from torch import Tensor, nn

from lbq.deploy.nodes import IntegerNeuron, LevelNeuron, Shortcut, Synapse
from lbq.export.rules import require

_SHORTCUT_BITS = 16
_DECAYS = (0.0, 2.0)
"""What a real decay may be: some neurons learn one above 1."""


def check_values(path: str, node: nn.Module) -> None:
    """Complain about numbers that no lowered network has."""
    for name, tensor in node.named_buffers():
        # the extremes of a tensor with a NaN are NaN, which no comparison likes
        if tensor.is_floating_point():
            low, high = (float(value) for value in tensor.aminmax())
            require(
                -float("inf") < low <= high < float("inf"),
                "finite",
                f"{name} of {path} holds a NaN or an infinity",
            )
    if isinstance(node, Synapse) and node.is_integer:
        assert node.bits is not None
        _check_bits(path, node.weight, node.bits)
    elif isinstance(node, Shortcut) and node.is_integer:
        _check_bits(path, node.weight, _SHORTCUT_BITS)
    elif isinstance(node, LevelNeuron):
        _check_neuron(path, node)


def _check_bits(path: str, weight: Tensor, bits: int) -> None:
    low, high = (int(value) for value in weight.aminmax())
    largest = 2 ** (bits - 1) - 1
    require(
        -largest <= low and high <= largest,
        "bits",
        f"weights of {path} lie in {low}..{high}, {bits} bits hold {-largest}..{largest}",
    )


def _check_neuron(path: str, node: LevelNeuron) -> None:
    thresholds = node.thresholds
    require(
        bool((thresholds[0] > 0).all()), "thresholds", f"{path} has a threshold at or below zero"
    )
    rises = (
        thresholds[1:] >= thresholds[:-1]
        if isinstance(node, IntegerNeuron)
        else thresholds[1:] > thresholds[:-1]
    )
    require(bool(rises.all()), "thresholds", f"the thresholds of {path} do not rise")
    require(bool((node.reset_amount >= 0).all()), "reset", f"{path} adds where it should remove")
    low, high = _DECAYS
    require(low <= float(node.decay) <= high, "decay", f"{path} has decay {float(node.decay):g}")
