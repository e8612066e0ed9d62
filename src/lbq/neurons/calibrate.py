"""Set the steps from data."""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn

from lbq.errors import ParameterError
from lbq.functional.membrane import integrate
from lbq.neurons.neuron import Decay, Neuron
from lbq.neurons.step import NeuronStep
from lbq.neurons.watch import named_neurons, removing_hooks

_SMALLEST_STEP = 1e-4
"""Step of a layer without positive membranes."""


@torch.no_grad()
def calibrate_steps(
    model: nn.Module, batches: Iterable[Tensor], *, percentile: float = 99.0
) -> dict[str, Tensor]:
    """Set each step so that a percentile of its membrane just reaches ``max_level``.

    For neurons with negative levels it is the percentile of the absolute membrane. The step of a
    neuron that only scales what it emits is not changed.

    The model runs in its current mode (train or eval). Layers are set in running order, so a layer
    receives the output of calibrated layers. Estimates are averaged over the batches. Membranes are
    computed without reset, which would depend on the step.

    Args:
        model: a network with neurons that have a step per layer or per channel.
        batches: inputs of the model; a few are enough.
        percentile: share of the membrane values that should not saturate, in percent.

    Returns:
        The step that each layer was given.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Identity(), lbq.BurstLIF(max_level=5))
        >>> lbq.calibrate_steps(model, [torch.linspace(0, 2, 1001).reshape(1, 1, -1)])
        {'1': tensor([0.3960])}
    """
    if not 0 < percentile <= 100:
        raise ParameterError(f"percentile must lie in (0, 100], got {percentile}")
    estimates: dict[str, list[Tensor]] = {}

    def calibrate(layer: str, neuron: Neuron, receive: nn.Module, args: tuple[Tensor, ...]) -> None:
        step = _step_of(neuron)
        assert step is not None  # only neurons with a step are hooked
        reach = _membrane_percentile(neuron, args[0], step().numel(), percentile)
        smallest = torch.full_like(reach, _SMALLEST_STEP)
        estimates.setdefault(layer, []).append((reach / neuron.max_level).maximum(smallest))
        step.set_(torch.stack(estimates[layer]).mean(0))

    neurons = {layer: n for layer, n in named_neurons(model) if _step_of(n) is not None}
    if any(hasattr(p, "placements") for n in neurons.values() for p in n.parameters()):
        raise ParameterError("the model is sharded, so its steps cannot be set; calibrate first")
    hooks = [
        neuron.receive.register_forward_pre_hook(partial(calibrate, layer, neuron))
        for layer, neuron in neurons.items()
    ]
    with removing_hooks(hooks):
        for batch in batches:
            model(batch)
    if neurons and not estimates:
        raise ParameterError("calibrate_steps needs at least one batch, got none")
    return {layer: torch.stack(found).mean(0) for layer, found in estimates.items()}


def _step_of(neuron: Neuron) -> NeuronStep | None:
    step = getattr(neuron, "step", None)
    return step if isinstance(step, NeuronStep) and neuron.step_sets_levels else None


def _membrane_percentile(
    neuron: Neuron, currents: Tensor, num_steps: int, percentile: float
) -> Tensor:
    """Find the percentile of the membrane (or its size), for the layer or for each channel."""
    decay = neuron.decay() if isinstance(neuron.decay, Decay) else 0.0
    membranes: list[Tensor] = []
    for current in currents.float().unbind(0):
        before = membranes[-1] if membranes else torch.zeros_like(current)
        membranes.append(integrate(before, current, decay=decay))
    values = torch.stack(membranes)  # [T, B, *n]
    values = values.abs() if neuron.is_signed else values
    groups = values.flatten().unsqueeze(0) if num_steps == 1 else values.movedim(2, 0).flatten(1)
    k = max(1, round(percentile / 100 * groups.shape[1]))
    return groups.kthvalue(k, dim=1).values
