"""Names for tensors: their meaning and their axes.

``T`` is timesteps (always first), ``B`` batch, ``K`` bit planes, ``*n`` the axes of a layer's
neurons (features, or channels and space). Singular is one timestep, plural a sequence.

Where ``jaxtyping`` is installed (the test environment) shapes can be checked at run time; elsewhere
these are ``typing.Annotated``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from torch import Tensor

if TYPE_CHECKING:
    from typing import Annotated as Float
    from typing import Annotated as Integer
    from typing import Annotated as Num
else:
    try:
        from jaxtyping import Float, Integer, Num
    except ModuleNotFoundError:
        Float = Integer = Num = Annotated

Current = Float[Tensor, "*n"]
"""W S_fwd[t]: input of the neurons at one timestep."""
Currents = Float[Tensor, "T B *n"]
"""The currents of a whole sequence."""
StaticCurrent = Float[Tensor, "B *n"]
"""The current of a static input, the same at every timestep."""
Membrane = Num[Tensor, "*n"]
"""U[t]: the potential before emission and reset; an integer in an integer network."""
Carry = Float[Tensor, "..."]
"""V[t]: membrane after the reset, the state of a stream."""
Level = Num[Tensor, "*n"]
"""S[t]: integer-valued, 0 .. max_level (-1, 0, 1 for ternary neurons)."""
Levels = Integer[Tensor, "T B *n"]
"""The levels of a whole sequence, as small integers (uint8; int8 for ternary neurons)."""
Burst = Float[Tensor, "*n"]
"""S_fwd[t] = step * level: output of a neuron in training."""
Bursts = Float[Tensor, "T B *n"]
"""The bursts of a whole sequence."""
Ratio = Float[Tensor, "*n"]
"""r = U / step: the membrane in steps."""
SoftLevel = Float[Tensor, "*n"]
"""B(r): the continuous surrogate of the level, for the gradient only."""
Step = Float[Tensor, "..."]
"""gamma, Delta_b: spacing of the levels; broadcasts against one timestep of the neurons."""
Scalar = float | Float[Tensor, "..."]
"""A coefficient: a number, or a tensor that broadcasts against one timestep of the neurons."""
Coefficient = Float[Tensor, "1"]
"""A learned or stored scalar: shape (1,), since sharding does not accept 0-d parameters."""
Thresholds = Num[Tensor, "N ..."]
"""Rising thresholds; each broadcasts against one timestep of the neurons."""
Weight = Float[Tensor, "out in *kernel"]
"""The weights of a synapse."""
Images = Float[Tensor, "B C H W"]
"""Static images, or the current of one timestep behind a convolution."""
Frames = Float[Tensor, "T B C H W"]
"""A sequence of images or event frames, or of a convolution's outputs."""
Sequence = Num[Tensor, "T B ..."]
"""Any tensor with a time and a batch axis."""
Logits = Float[Tensor, "B classes"]
"""Output of a classifier."""
Planes = Integer[Tensor, "K *n"]
"""b_k: zeros and ones, least significant first."""
FanOut = Integer[Tensor, "..."]
"""F_j: number of synapses that leave neuron j; broadcasts against the levels."""

ResetMode = Literal["event", "level", "none"]
"""What a neuron subtracts after emission: one step, one step per level, or nothing."""

Watch = Callable[[str, int, Tensor], None]
"""Called with the layer's path, the timestep and its level, ``[B, *n]``."""
