"""Dense multiply-accumulates, the usual way: padded positions counted, batch norm and adds not."""

from torch import Tensor, nn

from lbq.cost.wiring import trace_wiring
from lbq.errors import CountError, ShapeError


def count_macs(model: nn.Module, example: Tensor) -> dict[str, int]:
    """Count the MACs of every convolution and linear layer for one sample, all timesteps.

    This is the convention of the paper's ANN row. Accumulations (:class:`lbq.Tally`) use exact
    fan-out instead.

    Args:
        model: any network.
        example: input of the model for a batch of one.

    Example:
        >>> lbq.count_macs(torch.nn.Sequential(torch.nn.Linear(784, 10)), torch.ones(1, 784))
        {'0': 7840}
    """
    found: dict[str, int] = {}
    wiring = trace_wiring(model, example)
    if wiring.uncounted:
        raise CountError(
            f"only convolutions and linear layers are counted, but the model also does "
            f"{', '.join(wiring.uncounted)}"
        )
    if not wiring.neurons and not _is_one_sample(example):
        raise ShapeError(
            f"the example must be one sample, but it has shape {list(example.shape)}; pass a batch "
            f"of one, time first if the model takes frames"
        )
    for synapse in wiring.synapses:
        found[synapse.name] = found.get(synapse.name, 0) + synapse.macs
    return found


def _is_one_sample(example: Tensor) -> bool:
    """Vectors and images begin with their batch; three or five axes may begin with time."""
    leading = 1 if example.dim() % 2 == 0 else 2
    return 1 in example.shape[:leading]
