"""A learned mixture of timesteps, in front of a neuron."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lbq.functional.membrane import mix_timesteps
from lbq.kernels.scan_interface import cache_signature
from lbq.types import Currents


@cache_signature
class TimeMixture(torch.autograd.Function):
    """``apply(currents, mixture)``: ``mix_timesteps``; only the inputs are saved."""

    @staticmethod
    def forward(currents: Currents, mixture: Tensor) -> Currents:
        """Mix, in the order of the timesteps."""
        if torch.compiler.is_compiling():
            return mix_timesteps(currents, mixture)
        mixed = torch.empty_like(currents, memory_format=torch.preserve_format)
        part = torch.empty_like(mixed[0])
        for row, out in zip(mixture.unbind(0), mixed.unbind(0), strict=True):
            torch.mul(row[0], currents[0], out=out)
            for share, current in zip(row[1:], currents[1:], strict=True):
                out.add_(torch.mul(share, current, out=part))
        return mixed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Save the inputs."""
        del output
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Mix the gradients backward; that of a share is the product of two timesteps."""
        currents, mixture = ctx.saved_tensors
        (grad,) = grads
        grad_mixture = grad.flatten(1) @ currents.flatten(1).T
        return TimeMixture.apply(grad, mixture.T), grad_mixture
