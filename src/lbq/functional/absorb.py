"""Moving a step out of the neuron and into the weights behind it (Eq. 13)."""

from lbq.errors import ShapeError
from lbq.types import Step, Weight


def absorb_step(weight: Weight, step: Step) -> Weight:
    """Scale a synapse's weights by the step of the neurons that feed it (Eq. 13).

    Afterwards the neurons send integer levels and the synapse returns the same current. A bias is
    not scaled. A step per channel scales the weight's second axis, so it fits ungrouped synapses.
    """
    if step.numel() == 1:
        return weight * step.reshape(())
    if step.numel() != weight.shape[1]:
        raise ShapeError(
            f"a step per channel needs one step for each of the weight's {weight.shape[1]} input "
            f"channels (weight shape {tuple(weight.shape)}), got {step.numel()}; "
            f"use the step of the layer that feeds this weight"
        )
    return weight * step.reshape(1, -1, *[1] * (weight.dim() - 2))
