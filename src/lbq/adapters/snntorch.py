"""snnTorch 1: lbq neurons in its training loops, ``spk, mem = neuron(cur, mem)``.

snnTorch is not imported: its loops need this signature only.
"""

import torch
from torch import Tensor, nn

from lbq.errors import ShapeError
from lbq.neurons.neuron import Neuron


class Burst(nn.Module):
    """An lbq neuron with snnTorch's signature: one instant and a membrane in, both out.

    The membrane is passed by hand, as with ``init_hidden=False``; there is no hidden state, so
    there is nothing for ``snntorch.utils.reset`` to do. ``spk`` is the burst, ``step * level``.

    Args:
        neuron: the neuron to run, such as ``lbq.BurstLIF()``.
    """

    def __init__(self, neuron: Neuron) -> None:
        super().__init__()
        self.neuron = neuron

    def reset_mem(self) -> Tensor:
        """Return the membrane at rest, as snnTorch's neurons do: an empty tensor."""
        return torch.zeros(0)

    def forward(self, cur: Tensor, mem: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run one instant, ``[B, *n]``.

        Args:
            cur: the current.
            mem: the membrane from the previous call; None or an empty tensor at the start.
        """
        carry = None if mem is None or mem.numel() == 0 else mem
        if carry is not None and carry.shape != cur.shape:
            raise ShapeError(
                f"mem has shape {tuple(carry.shape)}, cur {tuple(cur.shape)}; start every sequence "
                f"with mem = neuron.reset_mem()"
            )
        bursts, carry = self.neuron.stream(cur.unsqueeze(0), carry)
        return bursts[0], carry
