"""``lower``: fold batch norms and absorb steps, so that layers exchange integer levels."""

import warnings

import torch
from torch import Tensor, nn

from lbq.deploy.capture import capture
from lbq.deploy.check_lowering import check_agreement
from lbq.deploy.graph import LoweredNetwork
from lbq.deploy.lowering import Lowering
from lbq.errors import LoweringError
from lbq.models import time
from lbq.neurons.neuron import Neuron


def lower(model: nn.Module, example: Tensor, *, check_time: bool = False) -> LoweredNetwork:
    """Convert a trained network to an equivalent one with integer levels between its layers.

    Batch norms are folded and steps absorbed in float64; the result has the model's dtype. The same
    lowering in float64 is compared with the model: currents and levels of every neuron, and the
    outputs, for one sample of the example and a random one, with the same noise on the currents of
    both so that every neuron emits. A difference beyond rounding raises an error with the path of
    the first neuron it reaches.

    The network is lowered as in eval mode; one in train mode gives a warning.

    Args:
        model: a network of synapses, batch norms, pools, sums and neurons that torch.export can
            export. It is not changed.
        example: an input that determines the shapes: static inputs ``[B, C, H, W]`` or
            ``[B, features]``, or frames with time first.
        check_time: first check, with :func:`lbq.check_time`, that the model does not take the batch
            as time.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> net(torch.randn(4, 3, 16, 16)).shape
        torch.Size([4, 10])
    """
    if check_time:
        time.check_time(model, example)
    _check_mode(model)
    has_time = _has_time(example)
    example = example[:, :1] if has_time else example[:1]
    captured = capture(model, example, batch_axis=int(has_time))
    lowering = Lowering(captured, example, has_time, _dtype_of(model))

    def lower_in_float64() -> tuple[LoweredNetwork, dict[str, Neuron]]:
        exact = Lowering(captured, example, has_time, torch.float64)
        return exact.network, exact.neurons

    check_agreement(model, example, lower_in_float64, has_time=has_time)
    return lowering.network


def _check_mode(model: nn.Module) -> None:
    training = [path for path, module in model.named_modules() if module.training]
    if training:
        where = training[0] or "the network"
        warnings.warn(
            f"{where} is in train mode, and is lowered as in eval mode: batch norms use their "
            f"running statistics and nothing is dropped; call model.eval() first",
            stacklevel=3,
        )


def _has_time(example: Tensor) -> bool:
    if not 2 <= example.dim() <= 5:
        raise LoweringError(
            f"the example has shape {list(example.shape)}; pass a batch of static inputs, "
            f"[B, features] or [B, C, H, W], or of frames, [T, B, features] or [T, B, C, H, W]"
        )
    return example.dim() in (3, 5)


def _dtype_of(model: nn.Module) -> torch.dtype:
    floats = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return torch.promote_types(floats[0] if floats else torch.float32, torch.float32)
