"""Blocks of spiking transformers, ``[T, B, C, H, W]`` currents in and out.

Neurons stand before the synapses, and currents are added (membrane shortcuts), so every synapse
and every product of attention reads levels. The blocks are written from the equations of

- Yao et al., "Scaling Spike-driven Transformer with Efficient Spike Firing Approximation Training",
  TPAMI 2025 (E-SpikeFormer: :class:`SepConv`, :class:`ConvBlock`, :class:`SpikeDrivenAttention`);
- Yao et al., "Spike-driven Transformer V2", ICLR 2024 (:class:`RepConv`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lbq.errors import ParameterError
from lbq.models.blocks import NeuronBuilder
from lbq.time import OverTime


def synapse(
    inputs: int,
    outputs: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    bias: bool = False,
) -> OverTime:
    """Build a same-padded convolution and its batch norm, applied at every timestep."""
    padding = kernel // 2
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride=stride, padding=padding, groups=groups, bias=bias
    )
    return OverTime(conv, nn.BatchNorm2d(outputs))


class SepConv(nn.Module):
    """A separable convolution: pointwise, depthwise and pointwise, a neuron before each.

    Args:
        channels: channels in and out; twice as many inside.
        kernel: side of the depthwise window.
        neuron: builds a neuron for a number of channels.
    """

    def __init__(self, channels: int, *, kernel: int, neuron: NeuronBuilder) -> None:
        super().__init__()
        inside = 2 * channels
        self.layers = nn.Sequential(
            *(neuron(channels), synapse(channels, inside)),
            *(neuron(inside), synapse(inside, inside, kernel=kernel, groups=inside)),
            *(neuron(inside), synapse(inside, channels)),
        )

    def forward(self, currents: Tensor) -> Tensor:
        """Return the currents plus those of the branch."""
        return currents + self.layers(currents)


class Mixer(nn.Module):
    """Two convolutions with four times the channels between them, a neuron before each.

    Args:
        channels: channels in and out.
        neuron: builds a neuron for a number of channels.
        kernel: 1 mixes the channels of a token, 3 neighbours as well.
        bias: whether the convolutions have a bias.
    """

    def __init__(
        self, channels: int, *, neuron: NeuronBuilder, kernel: int = 1, bias: bool = False
    ) -> None:
        super().__init__()
        inside = 4 * channels
        self.layers = nn.Sequential(
            *(neuron(channels), synapse(channels, inside, kernel=kernel, bias=bias)),
            *(neuron(inside), synapse(inside, channels, kernel=kernel, bias=bias)),
        )

    def forward(self, currents: Tensor) -> Tensor:
        """Return the currents plus those of the branch."""
        return currents + self.layers(currents)


class ConvBlock(nn.Sequential):
    """A separable 7x7 convolution, then two full 3x3 ones.

    Args:
        channels: channels in and out.
        neuron: builds a neuron for a number of channels.
    """

    def __init__(self, channels: int, *, neuron: NeuronBuilder) -> None:
        super().__init__(
            SepConv(channels, kernel=7, neuron=neuron),
            Mixer(channels, neuron=neuron, kernel=3),
        )


class SpikeDrivenAttention(nn.Module):
    """Attention of levels without a softmax: ``neuron(scale * q (k^T v))``, then a synapse.

    Queries, keys and values are levels, so their product is one of integers and may be computed in
    either order; the one with fewer products is used.

    Args:
        channels: channels in and out, and of queries and keys.
        neuron: builds a neuron for a number of channels.
        heads: number of heads; divides the channels.
        value_ratio: channels of the values are this many times those of the queries.
        scale: factor on the product; ``2 / sqrt(channels / heads)`` by default.
        output_neuron: builds the neuron after the product; ``neuron`` by default.
        bias: whether the last convolution has a bias.
    """

    def __init__(
        self,
        channels: int,
        *,
        neuron: NeuronBuilder,
        heads: int = 8,
        value_ratio: int = 4,
        scale: float | None = None,
        output_neuron: NeuronBuilder | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if channels % heads:
            raise ParameterError(
                f"{channels} channels cannot be divided among {heads} heads; choose heads that "
                f"divide the channels"
            )
        self.heads = heads
        self.scale = 2 * (channels // heads) ** -0.5 if scale is None else scale
        values = value_ratio * channels
        self.neuron = neuron(channels)
        self.query = nn.Sequential(synapse(channels, channels), neuron(channels))
        self.key = nn.Sequential(synapse(channels, channels), neuron(channels))
        self.value = nn.Sequential(synapse(channels, values), neuron(values))
        self.output_neuron = (output_neuron or neuron)(values)
        self.output = synapse(values, channels, bias=bias)

    def forward(self, currents: Tensor) -> Tensor:
        """Return the currents plus those of the branch."""
        bursts = self.neuron(currents)
        query, key, value = (
            self._split(part(bursts)) for part in (self.query, self.key, self.value)
        )
        mixed = multiply_three(query.transpose(-2, -1), key, value.transpose(-2, -1)) * self.scale
        space = currents.shape[3:]
        return currents + self.output(self.output_neuron(self._join(mixed, space)))

    def _split(self, bursts: Tensor) -> Tensor:
        """``[T, B, C, H, W]`` to ``[T, B, heads, C / heads, tokens]``."""
        return bursts.flatten(3).unflatten(2, (self.heads, -1))

    def _join(self, mixed: Tensor, space: torch.Size) -> Tensor:
        """``[T, B, heads, tokens, C / heads]`` to ``[T, B, C, H, W]``."""
        return mixed.transpose(-2, -1).flatten(2, 3).unflatten(-1, space)

    def extra_repr(self) -> str:
        """Show heads and scale."""
        return f"heads={self.heads}, scale={self.scale:.4g}"


def multiply_three(left: Tensor, middle: Tensor, right: Tensor) -> Tensor:
    """Multiply three matrices in the order that needs fewer products."""
    if is_left_first(left.shape, right.shape):
        return (left @ middle) @ right
    return left @ (middle @ right)


def is_left_first(left: Sequence[int], right: Sequence[int]) -> bool:
    """Return whether ``(left @ middle) @ right`` needs no more products than the other order.

    Args:
        left: shape of the first matrix.
        right: shape of the last matrix.
    """
    (rows, inner), (outer, columns) = left[-2:], right[-2:]
    return rows * outer * (inner + columns) <= inner * columns * (outer + rows)


class SpikeFormerBlock(nn.Sequential):
    """A separable 3x3 convolution, attention, and a mixer of channels.

    Args:
        channels: channels in and out.
        neuron: builds a neuron for a number of channels.
        heads: heads of the attention.
    """

    def __init__(self, channels: int, *, neuron: NeuronBuilder, heads: int = 8) -> None:
        super().__init__(
            SepConv(channels, kernel=3, neuron=neuron),
            SpikeDrivenAttention(channels, neuron=neuron, heads=heads),
            Mixer(channels, neuron=neuron, bias=True),
        )


class RepConv(nn.Module):
    """Pointwise, depthwise 3x3 and pointwise convolutions that are one dense 3x3 in eval mode.

    Only batch norms lie between them, and the depthwise convolution is padded with the first batch
    norm's output for zero. So the whole block folds, by :meth:`folded` or ``lower``.
    ``[B, C, H, W]`` in and out; put it into :class:`lbq.OverTime`.

    Args:
        inputs: input channels.
        outputs: output channels.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(inputs, inputs, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(inputs)
        self.depthwise = nn.Conv2d(inputs, inputs, 3, groups=inputs, bias=False)
        self.project = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(outputs)

    def forward(self, bursts: Tensor) -> Tensor:
        """Return currents."""
        if self.training:  # the statistics are those of the image without its border
            inside = self.expand_norm(self.expand(bursts))
            border = self._offset(self.expand_norm).reshape(-1, 1, 1)
            padded = F.pad(inside - border, (1, 1, 1, 1)) + border
        else:
            padded = self.expand_norm(F.conv2d(bursts, self.expand.weight, padding=1))
        return self.project_norm(self.project(self.depthwise(padded)))

    @torch.no_grad()
    def folded(self) -> nn.Conv2d:
        """Return the equivalent 3x3 convolution, in eval mode."""
        first, last = self._gain(self.expand_norm), self._gain(self.project_norm)
        expand = self.expand.weight.double()[:, :, 0, 0] * first.unsqueeze(1)  # [inside, in]
        project = self.project.weight.double()[:, :, 0, 0] * last.unsqueeze(1)  # [out, inside]
        window = self.depthwise.weight.double()[:, 0]  # [inside, 3, 3]
        weight = torch.einsum("om,mhw,mi->oihw", project, window, expand)
        border = self._offset(self.expand_norm).double() * window.sum((1, 2))
        bias = project @ border + self._offset(self.project_norm)
        like = self.project.weight
        conv = nn.Conv2d(weight.shape[1], len(weight), 3, padding=1).to(like)
        conv.weight.copy_(weight)
        assert conv.bias is not None
        conv.bias.copy_(bias)
        return conv

    @staticmethod
    def _gain(norm: nn.BatchNorm2d) -> Tensor:
        assert norm.running_var is not None
        return norm.weight.double() * (norm.running_var.double() + norm.eps).rsqrt()

    @classmethod
    def _offset(cls, norm: nn.BatchNorm2d) -> Tensor:
        """Return the batch norm's output for zero."""
        assert norm.running_mean is not None
        offset = norm.bias.double() - norm.running_mean.double() * cls._gain(norm)
        return offset.to(norm.bias.dtype)
