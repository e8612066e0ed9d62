"""The running statistics of all batch norms as one vector, so that processes can agree on them."""

import torch
from torch import Tensor, nn

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

# one kernel for all tensors on a GPU; torch's own optimizers stand on these
_copy_all_ = torch._foreach_copy_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
_subtract_ = torch._foreach_sub_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


class BatchNormStats:
    """Reads and writes every running mean and variance of a model at once.

    Each process normalises with the statistics of its own part of the batch and so ends a step with
    its own running statistics. Their mean over the processes is what all of them keep: it is what
    one process would have, up to the share of the variance between the parts.

    Args:
        model: the network; its batch norms are found once.
    """

    def __init__(self, model: nn.Module) -> None:
        norms = [m for m in model.modules() if isinstance(m, _NORMS) and m.track_running_stats]
        pairs = [(norm.running_mean, norm.running_var) for norm in norms]
        self._tensors = [tensor for pair in pairs for tensor in pair if tensor is not None]
        self._counts = [n.num_batches_tracked for n in norms if n.num_batches_tracked is not None]
        self._device = next(model.parameters()).device
        self._sizes = [tensor.numel() for tensor in self._tensors]

    def read(self) -> Tensor:
        """Return a copy of all of them, ``[n]`` in float32; empty without batch norms."""
        if not self._tensors:
            return torch.empty(0, device=self._device)
        return torch.cat([tensor.reshape(-1) for tensor in self._tensors])

    def write(self, values: Tensor) -> None:
        """Put values back that :meth:`read` returned, or a mean of such."""
        if self._tensors:
            _copy_all_(self._tensors, list(values.split(self._sizes)))

    def subtract_batches(self, count: int) -> None:
        """Count that many batches less, where several forwards belonged to one step."""
        if self._counts and count:
            _subtract_(self._counts, count)
