"""Optimizer, learning rate schedule and mixed precision."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from lbq.errors import ParameterError, RecipeError
from lbq.neurons.watch import neuron_parameters
from lbq.ranges import Range, check_ranges


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and its parameter groups."""

    kind: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW."""
    lr: float = 0.025
    """Base learning rate, for the global batch."""
    weight_decay: float = 5e-4
    """Weight decay of convolutions and linear layers; neuron parameters never decay."""
    decay_norms: bool = True
    """Whether batch norms and biases decay too, as in the LM-HT code (timm leaves them out)."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Nesterov momentum of SGD."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Betas of AdamW."""
    neuron_lr_scale: float = 1.0
    """Factor on the learning rate of steps, tails and decays."""
    clip_norm: float | None = None
    """Gradient norm to clip at; None for no clipping."""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            RecipeError,
            lr=Range(0, is_open_below=True),
            weight_decay=Range(0),
            momentum=Range(0, 1, is_open_above=True),
            betas=Range(0, 1, is_open_above=True),
            neuron_lr_scale=Range(0),
            clip_norm=Range(0, is_open_below=True),
        )
        if self.kind == "sgd" and self.nesterov and self.momentum == 0:
            raise RecipeError("nesterov needs a momentum above 0, got 0; switch nesterov off")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Learning rate schedule: a linear warm-up, then a cosine."""

    warmup_epochs: float = 0.0
    """Length of the warm-up in epochs."""
    warmup_factor: float = 0.0
    """Factor at the start of the warm-up. With moves="epoch", 0 stands for 1 / (warmup_epochs + 1),
    so that no epoch is trained at rate zero."""
    final_factor: float = 0.0
    """Factor at the end of the cosine."""
    moves: Literal["epoch", "step"] = "step"
    """When the learning rate changes: once per epoch (the public codes), or at every step."""

    def __post_init__(self) -> None:
        share = Range(0, 1)
        check_ranges(
            self, RecipeError, warmup_epochs=Range(0), warmup_factor=share, final_factor=share
        )


def learning_rate_factor(
    schedule: ScheduleConfig, *, step: int, steps_per_epoch: int, epochs: int
) -> float:
    """Return the factor on the base learning rate at a step, counted from 0.

    The cosine starts at the first epoch, not after the warm-up, as in timm. A warm-up of W
    epochs from the factor f rises linearly, f + (1 - f) e / W at epoch e counted from 0. With
    moves="epoch", f = 0 stands for 1 / (W + 1), so that epoch e trains at (e + 1) / (W + 1).
    """
    epoch = step / steps_per_epoch
    if schedule.moves == "epoch":
        epoch = float(step // steps_per_epoch)
    if epoch < schedule.warmup_epochs:
        start = schedule.warmup_factor
        if start == 0 and schedule.moves == "epoch":
            start = 1 / (schedule.warmup_epochs + 1)
        return start + (1 - start) * epoch / schedule.warmup_epochs
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / epochs)))
    return schedule.final_factor + (1 - schedule.final_factor) * cosine


def param_groups(
    model: nn.Module,
    weight_decay: float,
    *,
    decay_norms: bool = True,
    neuron_lr_scale: float = 1.0,
) -> list[dict[str, Any]]:
    """Group the parameters for any torch optimizer; neuron parameters never decay.

    The groups are, in this order and without empty ones: weights (two axes or more), norms and
    biases, neuron parameters (steps, surrogate tails, learned decays). Frozen parameters are left
    out.

    Args:
        model: any network.
        weight_decay: of the weights.
        decay_norms: whether norms and biases decay too.
        neuron_lr_scale: factor on the learning rate of the neuron parameters. It is stored in the
            groups as ``"scale"``. torch's optimizers keep it but do not read it: multiply
            ``group["lr"]`` by it once, before a scheduler is created. ``lbq.fit`` does.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), lbq.BurstLIF())
        >>> optimizer = torch.optim.AdamW(lbq.param_groups(model, 0.05), lr=1e-3)
        >>> [(len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups]
        [(1, 0.05), (1, 0.05), (2, 0.0)]
    """
    if not weight_decay >= 0 or not neuron_lr_scale >= 0:
        raise ParameterError(
            f"weight_decay and neuron_lr_scale must not be negative, got {weight_decay} and "
            f"{neuron_lr_scale}"
        )
    neurons = {id(p) for p in neuron_parameters(model)}
    weights: list[nn.Parameter] = []
    norms: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        is_weight = parameter.dim() > 1
        (others if id(parameter) in neurons else weights if is_weight else norms).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": weight_decay, "scale": 1.0},
        {"params": norms, "weight_decay": weight_decay if decay_norms else 0.0, "scale": 1.0},
        {"params": others, "weight_decay": 0.0, "scale": neuron_lr_scale},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """Build the optimizer with the groups of :func:`param_groups`.

    Its state is created here, filled with zeros, so that a checkpoint always has the same tensors;
    the first step is the same either way. Not ``fused``: those kernels are wrong if gradient and
    parameter have different memory formats.
    """
    groups = param_groups(
        model,
        config.weight_decay,
        decay_norms=config.decay_norms,
        neuron_lr_scale=config.neuron_lr_scale,
    )
    trained = [parameter for group in groups for parameter in group["params"]]
    if config.kind == "sgd":
        sgd = SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
        for parameter in trained:
            if config.momentum:
                sgd.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        return sgd
    adamw = AdamW(groups, lr=config.lr, betas=config.betas)
    for parameter in trained:
        adamw.state[parameter] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adamw


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors of the optimizer's state as ``<parameter>:<key>``."""
    return {
        f"{name}:{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state[parameter].items()
    }


PrecisionKind = Literal["auto", "fp32", "bf16", "fp16"]

_BF16_UNITS = ("amx_bf16", "avx512_bf16")
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast and loss scale; weights, neurons and the loss stay in float32.

    The scaler is enabled for float16 only: a step whose gradients overflow is skipped, and the
    scale shrinks.
    """

    def __init__(self, kind: PrecisionKind, device: torch.device) -> None:
        self.kind = fastest_precision(device) if kind == "auto" else kind
        self.scaler = torch.amp.GradScaler(device.type, enabled=kind == "fp16")
        self._device = device.type

    def autocast(self) -> AbstractContextManager[Any]:
        """Use autocast inside the ``with`` block."""
        return torch.autocast(self._device, dtype=_DTYPES[self.kind], enabled=self.kind != "fp32")


def fastest_precision(device: torch.device) -> Literal["fp32", "bf16"]:
    """Return the precision of "auto": bf16 where the device has units for it."""
    if device.type == "cpu":
        return "bf16" if bf16_units() else "fp32"
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "fp32"


def bf16_units(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """List the processor's units for bf16; without one, bf16 is slower than fp32."""
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    return [unit for unit in _BF16_UNITS if unit in flags]
