"""``from_ann``: convert a trained ReLU network to burst neurons, close to its accuracy.

Three things make the start close. The levels count whole steps, so half a step is lost on average:
it is folded into the bias before the neuron. The step minimises the squared error of the layer's
outputs; a percentile would only bound them. And the same bias corrects the change that the
quantised layers before it cause in the mean of a channel.
"""

import copy
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from lbq.adapters.relu_to_neuron import (
    ReplacementSpec,
    add_to_bias,
    find_biases,
    with_neurons,
)
from lbq.errors import LoweringError, ParameterError
from lbq.neurons.burst import BurstLIF
from lbq.neurons.neuron import Neuron
from lbq.neurons.step import LearnedStep
from lbq.neurons.watch import named_neurons, removing_hooks
from lbq.time import RepeatOverTime, check_timesteps
from lbq.types import ResetMode

_SHARES = tuple(10 ** (-k / 20) for k in range(27))
"""Steps to try, as shares of the one that reaches the largest activation: 1 to 1/20."""
_SMALLEST_STEP = 2e-3
"""Step of a silent layer or channel; even a twentieth of it can be lowered."""
_VALUES = 1 << 21
"""Number of activations of a layer from which its step is chosen."""


@torch.no_grad()
def from_ann(
    network: nn.Module,
    batches: Iterable[Tensor],
    *,
    max_level: int = 5,
    timesteps: int = 1,
    per_channel: bool = False,
    decay: float = 1.0,
    reset_mode: ResetMode = "level",
) -> nn.Module:
    """Replace every ReLU of a trained network by a calibrated burst neuron.

    Burst neurons of one timestep are replaced too, so a network that was tuned with many levels can
    be the start of one with fewer.

    The result is in eval mode, returns the mean over time, and can be fine-tuned, lowered and
    exported like any other network. At one timestep neither decay nor reset matters. Over several,
    a neuron without decay that removes the whole level (the default) comes closer to the ReLU with
    every timestep; the paper's neuron is ``decay=0.5, reset_mode="event"``.

    Args:
        network: any network that torch.fx can trace, with ReLUs as modules or functions, or a
            result of this function; takes one tensor, batch first. It is not changed.
        batches: inputs of the network, for the calibration; a few hundred samples are enough.
        max_level: largest level of the neurons (N_max).
        timesteps: number of timesteps (T).
        per_channel: whether every channel gets a step of its own instead of every layer.
        decay: share of the carry that survives a timestep (beta).
        reset_mode: what emission removes, as in :class:`lbq.BurstLIF`.

    Example:
        >>> ann = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU())
        >>> spiking = lbq.from_ann(ann, [torch.randn(64, 8)], max_level=5, timesteps=2)
        >>> spiking(torch.randn(4, 8)).shape
        torch.Size([4, 32])
    """
    samples = _samples(batches)
    check_timesteps(timesteps)

    def neuron(module: nn.Module | None, channels: int) -> BurstLIF:
        del module
        step = LearnedStep(channels=channels if per_channel else None)
        return BurstLIF(max_level, step=step, decay=decay, reset_mode=reset_mode)

    def as_before(module: nn.Module | None, channels: int) -> nn.Module:
        del channels
        return copy.deepcopy(module) if isinstance(module, BurstLIF) else nn.ReLU()

    example, places = samples[:2], ReplacementSpec(modules=(nn.ReLU, BurstLIF))
    _check_one_timestep(network)
    plain = with_neurons(network, example, timesteps=1, build=as_before, replaced=places)
    answer = copy.deepcopy(network).eval()(example)
    if not isinstance(answer, Tensor):
        raise LoweringError(
            f"the network must return one tensor, got {type(answer).__name__}; wrap it in a "
            f"module that returns the logits"
        )
    if not torch.allclose(plain(example), answer, atol=1e-4):
        raise LoweringError(
            "this network gives different outputs once its ReLUs are separate modules: one changes "
            "a tensor in place that is read again; write inplace=False, or y = relu(x) and read y"
        )
    spiking = with_neurons(network, example, timesteps=timesteps, build=neuron, replaced=places)
    _calibrate(spiking, plain, samples)
    if hasattr(network, "preprocessing"):
        spiking.preprocessing = network.preprocessing
    return spiking


def _samples(batches: Iterable[Tensor]) -> Tensor:
    if isinstance(batches, Tensor):
        raise ParameterError("batches must be a list of tensors, got one tensor; write [images]")
    found = list(batches)
    if not found:
        raise ParameterError("from_ann needs at least one batch to choose the steps by, got none")
    if not all(isinstance(batch, Tensor) for batch in found):  # pyright: ignore[reportUnnecessaryIsInstance]
        kinds = ", ".join(sorted({type(batch).__name__ for batch in found}))
        raise ParameterError(
            f"batches must be tensors of inputs, got {kinds}; drop the labels: "
            f"(images for images, labels in loader)"
        )
    samples = torch.cat(found)
    if not len(samples):
        raise ParameterError("from_ann needs at least one sample, but all batches are empty")
    if not samples.isfinite().all():
        raise ParameterError("calibration samples must be finite, but some are NaN or infinite")
    return samples


def _check_one_timestep(network: nn.Module) -> None:
    """Raise LoweringError if neurons keep a carry: a ReLU has none."""
    repeats = [m.timesteps for m in network.modules() if isinstance(m, RepeatOverTime)]
    if any(isinstance(m, Neuron) for m in network.modules()) and max(repeats, default=2) > 1:
        raise LoweringError(
            f"this network has neurons of {max(repeats, default=2)} timesteps; from_ann replaces "
            f"ReLUs, and burst neurons of one timestep (RepeatOverTime(1))"
        )


def _calibrate(spiking: nn.Module, plain: nn.Module, samples: Tensor) -> None:
    """Choose steps and biases layer by layer, each with the earlier ones in place."""
    neurons = dict(named_neurons(spiking))
    currents = _currents_of(plain, list(neurons), samples)
    biases = find_biases(spiking, samples[:2])
    without = [path for path in neurons if biases.get(path) is None]
    if without:
        warnings.warn(
            f"no bias of its own lies before {', '.join(without)}, so half a step is lost there; "
            f"put a batch norm before it, or fine-tune",
            stacklevel=3,
        )

    def choose(path: str, neuron: BurstLIF, args: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (_fit(neuron, args[0], currents.pop(path), biases.get(path)),)

    hooks = [
        neuron.register_forward_pre_hook(partial(choose, path)) for path, neuron in neurons.items()
    ]
    with removing_hooks(hooks):
        spiking(samples)


def _currents_of(plain: nn.Module, paths: list[str], samples: Tensor) -> dict[str, Tensor]:
    """Return the currents of every ReLU, ``[B, *n]``.

    A burst neuron receives half a step more than a ReLU in its place would.
    """
    found: dict[str, Tensor] = {}

    def keep(path: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        current = args[0][0]  # of one timestep
        if isinstance(module, BurstLIF):
            current = current - _shaped(0.5 * module.step(), current, 1)
        found[path] = current

    hooks = [plain.get_submodule(p).register_forward_pre_hook(partial(keep, p)) for p in paths]
    with removing_hooks(hooks):
        plain(samples)
    return found


def _fit(neuron: BurstLIF, currents: Tensor, expected: Tensor, biased: nn.Module | None) -> Tensor:
    """Set the neuron's step and the bias before it; return the currents with that bias."""
    offset, half, axis = currents.new_zeros(1), 0.0, 1
    channels = 1 if neuron.step().numel() > 1 else None
    if biased is not None:
        axis = expected.dim() - 1 if isinstance(biased, nn.Linear) else 1  # of the bias
        has_own = expected.shape[axis] == len(cast(Tensor, biased.weight))
        if channels and (axis != channels or not has_own):
            raise LoweringError(
                f"steps per channel need a bias per channel, but currents {list(expected.shape)} "
                f"after {biased} have none; leave per_channel out"
            )
        missing = expected - currents.mean(0)
        offset = _over(missing, torch.mean, axis=axis if has_own else None)
        remembered = sum(neuron.decay().item() ** t for t in range(len(currents)))
        half = 0.5 / remembered  # a bias is added at every timestep
    few = slice(0, max(1, _VALUES // currents[:, 0].numel()))
    corrected = currents[:, few] + _shaped(offset, expected, axis)
    target = expected[few].relu()
    largest = _over(target, torch.amax, axis=channels) / neuron.max_level
    largest = largest.clamp(min=_SMALLEST_STEP)
    best, chosen = torch.full_like(largest, torch.inf), largest
    for share in _SHARES:
        step = largest * share
        neuron.step.set_(step)
        bursts, _, _ = neuron.scan(corrected + _shaped(half * step, expected, 1), None)
        error = _over((bursts.mean(0) - target).square(), torch.mean, axis=channels)
        chosen = torch.where(error < best, step, chosen)
        best = torch.minimum(error, best)
    neuron.step.set_(chosen)
    offset = offset + half * chosen
    if biased is not None:
        add_to_bias(biased, offset)
    return currents + _shaped(offset, expected, axis)


def _over(values: Tensor, reduce: Callable[..., Tensor], *, axis: int | None) -> Tensor:
    """Reduce ``[B, *n]`` to one value for every place of an axis, or to one."""
    if axis is None:
        return reduce(values.flatten(), dim=0, keepdim=True)
    return reduce(values, dim=[other for other in range(values.dim()) if other != axis])


def _shaped(values: Tensor, expected: Tensor, axis: int) -> Tensor:
    """Let values along an axis of ``[B, *n]`` broadcast."""
    return values.reshape(-1, *[1] * (expected.dim() - 1 - axis))
