"""The nouns that cross between rooms: what a tensor means and which axes it has.

Axes are named once and mean the same everywhere: ``T`` timesteps (always first), ``B`` batch,
``K`` bit planes, ``*n`` whatever a layer's neurons are arranged in (features, or channels and
space). Singular is one instant, plural a sequence.

Where ``jaxtyping`` is installed (the test environment) the names are checked while the code runs;
elsewhere they are ``typing.Annotated``, that is documentation that costs nothing.
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
"""W S_fwd[t]: what arrives at the neurons at one instant."""
Currents = Float[Tensor, "T B *n"]
"""The currents of a whole sequence."""
StaticCurrent = Float[Tensor, "B *n"]
"""The current of a still input, the same at every instant."""
Membrane = Num[Tensor, "*n"]
"""U[t]: the potential before emission and reset; an integer in an integer network."""
Carry = Float[Tensor, "..."]
"""V[t]: what a neuron remembers after its reset, the state of a stream."""
Level = Num[Tensor, "*n"]
"""S[t]: integer-valued, 0 .. max_level (-1, 0, 1 for ternary neurons)."""
Levels = Integer[Tensor, "T B *n"]
"""The levels of a whole sequence, as small integers (uint8; int8 for ternary neurons)."""
Burst = Float[Tensor, "*n"]
"""S_fwd[t] = step * level: what a neuron sends on during training."""
Bursts = Float[Tensor, "T B *n"]
"""The bursts of a whole sequence."""
Ratio = Float[Tensor, "*n"]
"""r = U / step: the membrane counted in steps."""
SoftLevel = Float[Tensor, "*n"]
"""B(r): the continuous stand-in for the level, used backward only."""
Step = Float[Tensor, "..."]
"""gamma, Delta_b: spacing of the levels; broadcasts against one instant of the neurons."""
Scalar = float | Float[Tensor, "..."]
"""A coefficient: a number, or a tensor that broadcasts against one instant of the neurons."""
Coefficient = Float[Tensor, "1"]
"""A learned or stored scalar: shape (1,), since sharding refuses 0-d parameters."""
Thresholds = Num[Tensor, "N ..."]
"""The rising thresholds of a burst neuron; each broadcasts against one instant of the neurons."""
Weight = Float[Tensor, "out in *kernel"]
"""The weights of a synapse."""
Images = Float[Tensor, "B C H W"]
"""Still images, or the current of one instant behind a convolution."""
Frames = Float[Tensor, "T B C H W"]
"""A sequence of images, of frames of events, or of what a convolution makes of them."""
Sequence = Num[Tensor, "T B ..."]
"""Anything that has a time and a batch axis."""
Logits = Float[Tensor, "B classes"]
"""What a classifier answers."""
Planes = Integer[Tensor, "K *n"]
"""b_k: zeros and ones, least significant first."""
FanOut = Integer[Tensor, "..."]
"""F_j: how many synapses leave neuron j; broadcasts against the levels."""

ResetMode = Literal["event", "level", "none"]
"""What a neuron subtracts after emission: one step, one step per level, or nothing."""

Watch = Callable[[str, int, Tensor], None]
"""Called with the layer's name, the timestep and the level of one instant, ``[B, *n]``."""
