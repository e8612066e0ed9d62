"""Optimizers with their groups, and the learning rate as a function of the step."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from lbq.errors import RecipeError
from lbq.neurons.watch import neuron_parameters
from lbq.ranges import Range, check_ranges


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer, and what it does to which parameters."""

    kind: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW."""
    lr: float = 0.025
    """Learning rate before the schedule's factor, for the whole batch whatever the devices."""
    weight_decay: float = 5e-4
    """Decay of convolutions and linear layers; neuron parameters never decay."""
    decay_norms: bool = True
    """Whether batch norms and biases decay too, as in the LM-HT code (timm leaves them out)."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Whether SGD looks ahead."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Averaging of AdamW."""
    neuron_lr_scale: float = 1.0
    """Factor on the learning rate of steps, tails and decays."""
    clip_norm: float | None = None
    """Largest norm of the whole gradient; None leaves it as it is."""

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
    """How the learning rate moves: a linear warm-up, then a cosine."""

    warmup_epochs: float = 0.0
    """Length of the warm-up."""
    warmup_factor: float = 0.0
    """Where the warm-up starts, as a share of the learning rate. 0 with moves="epoch" stands for
    1 / (warmup_epochs + 1): no epoch is trained at rate zero."""
    final_factor: float = 0.0
    """Where the cosine ends, as a share of the learning rate."""
    moves: Literal["epoch", "step"] = "step"
    """When it moves: once per epoch (the public codes), or at every step."""

    def __post_init__(self) -> None:
        share = Range(0, 1)
        check_ranges(
            self, RecipeError, warmup_epochs=Range(0), warmup_factor=share, final_factor=share
        )


def learning_rate_factor(
    schedule: ScheduleConfig, *, step: int, steps_per_epoch: int, epochs: int
) -> float:
    """Return the share of the base learning rate that a step (counted from 0) uses.

    The cosine runs from the very first epoch, underneath the warm-up, as in timm. A warm-up of W
    epochs from the factor f rises linearly, f + (1 - f) e / W at epoch e counted from 0. Where the
    rate moves once per epoch, f = 0 would waste the first epoch: f is 1 / (W + 1) then, so that
    epoch e trains at (e + 1) / (W + 1).
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


def build_optimizer(model: nn.Module, config: OptimConfig) -> Optimizer:
    """Build the optimizer with three groups: weights, norms and biases, neuron parameters.

    Its state is made at once, filled with zeros, not at the first step: so it always has the same
    tensors, and the first step of momentum is the same number either way. Not ``fused``: those
    kernels compute nonsense where a gradient lies in another memory order than its parameter.
    """
    neurons = {id(p) for p in neuron_parameters(model)}
    weights: list[nn.Parameter] = []
    norms: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        is_weight = parameter.dim() > 1
        (others if id(parameter) in neurons else weights if is_weight else norms).append(parameter)
    decay = config.weight_decay
    groups = [
        {"params": weights, "weight_decay": decay, "scale": 1.0},
        {"params": norms, "weight_decay": decay if config.decay_norms else 0.0, "scale": 1.0},
        {"params": others, "weight_decay": 0.0, "scale": config.neuron_lr_scale},
    ]
    groups = [group for group in groups if group["params"]]
    if config.kind == "sgd":
        sgd = SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
        for parameter in model.parameters():
            if config.momentum:
                sgd.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        return sgd
    adamw = AdamW(groups, lr=config.lr, betas=config.betas)
    for parameter in model.parameters():
        adamw.state[parameter] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adamw


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Give every group its share of a learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Name every tensor of the optimizer's state after its parameter: ``<parameter>:<what>``."""
    return {
        f"{name}:{key}": tensor
        for name, parameter in model.named_parameters()
        for key, tensor in optimizer.state[parameter].items()
    }
