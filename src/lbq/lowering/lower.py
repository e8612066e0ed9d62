"""``lower``: fold batch norms and absorb steps, so that layers exchange integer levels."""

import warnings

import torch
from torch import Tensor, nn

from lbq.errors import LoweringError
from lbq.graph.capture import capture
from lbq.graph.graph import LoweredNetwork
from lbq.lowering.check_lowering import check_agreement
from lbq.lowering.lowering import Lowering
from lbq.neurons.batch_axis import find_batch_axis


def lower(
    model: nn.Module,
    example: Tensor,
    *,
    batch_axis: int | None = None,
) -> LoweredNetwork:
    """Convert a trained network to an equivalent one with integer levels between its layers.

    Batch norms are folded and steps absorbed in float64. The result has the dtype of the model's
    parameters, or float32 for a float16 or bfloat16 model.

    The same lowering in float64 is compared with the model, on one sample of the example and a
    random one: the currents and levels of every neuron, and the outputs. Both networks add the same
    noise to the currents, so that every neuron emits. A difference beyond rounding raises an error
    with the path of the first neuron that differs.

    The network is lowered as in eval mode. A network in train mode gives a warning.

    Args:
        model: a network that torch.export can export, of operators that are exact in integers
            (docs/deploy/coverage.md). It is not changed.
        example: an input that determines the shapes: static inputs, batch first, such as
            ``[B, C, H, W]``, or sequences, time first, such as ``[T, B, features]``.
        batch_axis: batch axis of ``example``: 0 for static inputs, 1 for sequences. By default the
            number of axes decides, as in :func:`lbq.check_time`.

    Example:
        >>> net = lbq.lower(lbq.resnet20(10, width=1 / 16).eval(), torch.randn(1, 3, 16, 16))
        >>> net(torch.randn(4, 3, 16, 16)).shape
        torch.Size([4, 10])
    """
    axis = _batch_axis(example, batch_axis, model)
    _check_mode(model)
    example = example.narrow(axis, 0, 1)
    captured = capture(model, example, batch_axis=axis)
    lowering = Lowering(captured, example, axis == 1, _dtype_of(model))

    def lower_in_float64() -> Lowering:
        return Lowering(captured, example, axis == 1, torch.float64)

    check_agreement(model, example, lower_in_float64, batch_axis=axis)
    return lowering.network


def _check_mode(model: nn.Module) -> None:
    training = [path for path, module in model.named_modules() if module.training]
    if training:
        where = training[0] or "the network"
        warnings.warn(
            f"{where} is in train mode, but is lowered as in eval mode: batch norms use their "
            f"running statistics and dropout does nothing; call model.eval() first",
            stacklevel=3,
        )


def _batch_axis(example: Tensor, batch_axis: int | None, model: nn.Module) -> int:
    if not 2 <= example.dim() <= 5 or batch_axis not in (None, 0, 1):
        raise LoweringError(
            f"the example has shape {list(example.shape)} and batch_axis={batch_axis}; pass a "
            f"batch of static inputs, [B, ...], or of sequences, [T, B, ...]"
        )
    return find_batch_axis(example, batch_axis, model)


def _dtype_of(model: nn.Module) -> torch.dtype:
    floats = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return torch.promote_types(floats[0] if floats else torch.float32, torch.float32)
