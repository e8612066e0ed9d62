"""A synapse and its neuron, fused where no hook is registered in between.

``fire`` runs convolution, batch norm, shortcut and neuron. With ``fused=True`` all but the
convolution runs as one native operation (:mod:`lbq.kernels.norm_scan`); parameters, buffers and
state dicts do not change. Tracers, compilers and hooks see the separate modules.
"""

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lbq.carries import active_carries
from lbq.kernels.norm_scan import NormedBurstScan, can_run
from lbq.neurons.burst import BurstLIF
from lbq.time import OverTime, merge_time, split_time
from lbq.types import Sequence


def fire(
    synapse: OverTime,
    neuron: nn.Module,
    bursts: Sequence,
    shortcut: Sequence | None = None,
    *,
    fused: bool,
) -> Sequence:
    """Run a synapse, add the shortcut's currents, and run the neuron.

    Args:
        synapse: a convolution and its batch norm.
        neuron: the neuron after them.
        bursts: input of the synapse.
        shortcut: currents added after the batch norm.
        fused: run norm, addition and neuron as one operation where possible.
    """
    if fused and _can_fuse(bursts, synapse, neuron):
        conv, norm = synapse
        assert isinstance(norm, nn.BatchNorm2d)
        assert isinstance(neuron, BurstLIF)
        before = split_time(conv(merge_time(bursts)), like=bursts)
        step = neuron.step.for_currents(before, max_level=neuron.max_level)
        is_single = before[:, :, 0].numel() == 1  # no batch statistics: the module raises
        if not is_single and can_run(before, shortcut, step):
            return _fire_fused(norm, neuron, before, shortcut, step)
        currents = split_time(norm(merge_time(before)), like=bursts)
    else:
        currents = synapse(bursts)
    return neuron(currents if shortcut is None else currents + shortcut)


def _can_fuse(bursts: object, synapse: OverTime, neuron: nn.Module) -> bool:
    """Return whether the kernels support these modules and no hook is registered in between."""
    is_traced = torch.compiler.is_compiling() or not isinstance(bursts, Tensor)
    if is_traced or len(synapse) != 2 or active_carries() is not None:  # fused: from rest only
        return False
    norm = synapse[1]
    if type(norm) is not nn.BatchNorm2d or type(neuron) is not BurstLIF:
        return False
    if neuron.level_set != "all":
        return False
    # forward hooks of emit receive levels; other intermediate values do not exist
    inside = (synapse, norm, neuron, neuron.receive)
    has_global = any(getattr(torch_module, f"_global{kind}") for kind in _HOOKS)
    return not has_global and not any(map(_has_hooks, inside))


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, kind) for kind in _HOOKS)


def _fire_fused(
    norm: nn.BatchNorm2d,
    neuron: BurstLIF,
    before: Tensor,
    shortcut: Tensor | None,
    step: Tensor,
) -> Tensor:
    uses_batch = norm.training or norm.running_mean is None
    bursts, levels, mean, variance = NormedBurstScan.apply(
        before,
        shortcut,
        _exact(norm.weight),
        _exact(norm.bias),
        None if uses_batch else _exact(norm.running_mean),
        None if uses_batch else _exact(norm.running_var),
        _exact(step),
        _exact(neuron.surrogate.tail()),
        _exact(neuron.decay()),
        _exact(neuron.reset),
        neuron.options,
        norm.eps,
        _has_hooks(neuron.emit),
    )
    if norm.training and norm.track_running_stats:
        _track(norm, mean, variance, before[:, :, 0].numel())
    if levels is not None:
        neuron.emit(levels)
    return neuron.output(bursts)


@torch.no_grad()
def _track(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics as ``nn.BatchNorm2d`` does."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    share = norm.momentum
    if share is None:  # a plain average over all batches
        share = 1 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), share)
    unbiased = variance * (count / (count - 1))
    norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), share)


def _exact(value: Tensor | None) -> Tensor | None:
    """Bring a coefficient to float32, in which the kernels compute; absent ones stay absent."""
    return None if value is None else value.float()
