"""Dense multiply-accumulates of convolutions and linear layers; batch norms and adds have none."""

from torch import Tensor, nn

from lbq.cost.connectivity import trace_connectivity
from lbq.cost.count_table import Padding
from lbq.errors import CountError, ShapeError


def count_macs(
    model: nn.Module, example: Tensor, *, padding: Padding = "skipped"
) -> dict[str, int]:
    """Count the MACs of every convolution and linear layer for one sample, all timesteps.

    By default MACs that read the zeros of a padding are left out, as in the accumulations of
    :class:`lbq.OpCounter`, so that the two can be divided by each other.
    ``padding="counted"`` includes them: the convention of the paper's ANN row and of most tools.

    Args:
        model: any network.
        example: input of the model for a batch of one.
        padding: "skipped" or "counted".

    Example:
        >>> lbq.count_macs(torch.nn.Sequential(torch.nn.Linear(784, 10)), torch.ones(1, 784))
        {'0': 7840}
    """
    found: dict[str, int] = {}
    connectivity = trace_connectivity(model, example)
    if connectivity.uncounted:
        raise CountError(
            f"only convolutions and linear layers are counted, but the model also does "
            f"{', '.join(connectivity.uncounted)}"
        )
    if not connectivity.neurons and not _is_one_sample(example):
        raise ShapeError(
            f"the example must be one sample, but it has shape {list(example.shape)}; pass a batch "
            f"of one, time first if the model takes frames"
        )
    for synapse in connectivity.synapses:
        found[synapse.name] = found.get(synapse.name, 0) + synapse.dense_macs(padding)
    return found


def _is_one_sample(example: Tensor) -> bool:
    """Vectors and images begin with their batch; three or five axes may begin with time."""
    leading = 1 if example.dim() % 2 == 0 else 2
    return 1 in example.shape[:leading]
