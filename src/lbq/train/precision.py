"""Reduced precision: what autocast computes in, and the loss scale that float16 needs."""

from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

PrecisionKind = Literal["fp32", "bf16", "fp16"]

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Convolutions and products in this precision; weights, neurons and the loss in float32.

    float16 underflows in the backward, so its loss is multiplied by a scale that shrinks whenever a
    gradient overflows (torch's GradScaler); such a step is skipped and is no fault.

    Args:
        kind: "fp32", "bf16" or "fp16".
        device: where the network is.
    """

    def __init__(self, kind: PrecisionKind, device: torch.device) -> None:
        self.kind: PrecisionKind = kind
        self._device = device.type
        self._scaler = torch.amp.GradScaler(device.type, enabled=kind == "fp16")

    @property
    def skips_overflows(self) -> bool:
        """Whether a gradient that is not finite only means that the scale was too large."""
        return self._scaler.is_enabled()

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in reduced precision inside the ``with`` block."""
        return torch.autocast(self._device, dtype=_DTYPES[self.kind], enabled=self.kind != "fp32")

    def scaled(self, loss: Tensor) -> Tensor:
        """Multiply the loss for the backward."""
        return self._scaler.scale(loss)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients again."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: Optimizer) -> None:
        """Let the optimizer step, unless a gradient overflowed."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def skip(self) -> None:
        """Take note that the gradients overflowed."""
        self._scaler.update()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must remember: numbers by name, nothing without a scale."""
        return self._scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a remembered state."""
        self._scaler.load_state_dict(state)
