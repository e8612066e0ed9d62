"""Configurations of networks and neurons, and building a network from them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lbq.errors import RecipeError
from lbq.models.blocks import BlockKind
from lbq.models.resnet import (
    Form,
    NamedResNet,
    SpikingResNet,
    resnet18,
    resnet19,
    resnet20,
    resnet34,
)
from lbq.models.spikeformer import (
    NamedSpikeFormer,
    SpikeFormer,
    spikeformer_5m,
    spikeformer_10m,
    spikeformer_19m,
)
from lbq.neurons.baselines import (
    LMHT,
    BinaryLIF,
    IntegerLIF,
    MultiLevelLIF,
    OriginalTernaryLIF,
    TernaryLIF,
)
from lbq.neurons.burst import BurstLIF
from lbq.neurons.step import FixedStep, GradientScale, LearnedStep, NeuronStep
from lbq.neurons.surrogates import (
    BoxET,
    ClipBox,
    MatchedBox,
    ReLSGET,
    Surrogate,
    TailedBox,
)
from lbq.ranges import Range, check_ranges
from lbq.types import ResetMode

NeuronKind = Literal[
    "lbq", "v1", "v2", "v3", "binary", "ternary", "ternary-learned", "ternary-original", "ilif",
    "sfa", "mlf", "lmht", "relu",
]  # fmt: skip

SurrogateKind = Literal["relsg-et", "box-et", "matched-box", "clip-box", "tailed-box"]

SURROGATES: dict[SurrogateKind, Callable[[], Surrogate]] = {
    "relsg-et": ReLSGET,
    "box-et": BoxET,
    "matched-box": MatchedBox,
    "clip-box": ClipBox,
    "tailed-box": TailedBox,
}

_BURSTS = ("lbq", "v1", "v2", "v3")
_TERNARY = ("ternary", "ternary-learned")
_LEARNED = ("lbq", "v3", "ternary-learned")


@dataclass(frozen=True, kw_only=True)
class NeuronConfig:
    """The neuron of every layer."""

    kind: NeuronKind = "lbq"
    """LBQ, the paper's ablations v1 to v3, another published neuron ("sfa" is E-SpikeFormer's), or
    "relu" for an ANN."""
    max_level: int | None = None
    """Largest level (N_max); None for the default of the kind: 5 for bursts."""
    step: float = 1.0
    """Initial or fixed step (gamma); for bursts and ternary neurons."""
    step_per_channel: bool = False
    """One step per channel instead of one per layer; for bursts."""
    decay: float | None = None
    """Share of the carry that survives a timestep (beta); None for the default of the kind."""
    surrogate: SurrogateKind | None = None
    """Surrogate gradient; None for the default of the kind. For bursts and ternary neurons."""
    reset_mode: ResetMode | None = None
    """What emission subtracts: one step per "event", one per "level", or "none"; None for "event".
    For bursts and ternary neurons."""
    gradient_scale: GradientScale = "none"
    """Factor on the gradient of learned steps: "none" (the paper), or that of "lsq"."""

    def __post_init__(self) -> None:
        """Reject options that have no effect on this kind."""
        check_ranges(
            self,
            RecipeError,
            max_level=Range(1, 255),
            step=Range(0, is_open_below=True),
            decay=Range(0, 1),
        )
        takes = {
            "surrogate": (self.surrogate is None, _BURSTS + _TERNARY),
            "reset_mode": (self.reset_mode is None, _BURSTS + _TERNARY),
            "gradient_scale": (self.gradient_scale == "none", _LEARNED),
        }
        for name, (is_default, kinds) in takes.items():
            if not is_default and self.kind not in kinds:
                raise RecipeError(
                    f"{name}={getattr(self, name)!r} is for neurons of kind {', '.join(kinds)}, "
                    f"not {self.kind}; leave it out"
                )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One of the paper's networks, or an E-SpikeFormer; the data says the number of classes."""

    name: Literal[
        "resnet18", "resnet19", "resnet20", "resnet34",
        "spikeformer-5m", "spikeformer-10m", "spikeformer-19m",
    ] = "resnet20"  # fmt: skip
    """Architecture."""
    neuron: NeuronConfig = field(default_factory=NeuronConfig)
    """The neuron of every layer."""
    timesteps: int = 2
    """Number of timesteps (T)."""
    width: float = 1.0
    """Factor on the number of channels."""
    blocks: tuple[int, ...] | None = None
    """Number of blocks in each stage, such as 1 1 1; None for those of the architecture."""
    form: Form | None = None
    """ "cifar", "imagenet" or "events"; None for the paper's choice."""
    block: BlockKind = "basic"
    """Where the neurons sit: "basic" (the paper), "sew" or "ms"."""
    first_stage_stride: int | None = None
    """None for 1 with images and 2 with events."""
    fused: bool = False
    """Run batch norm, shortcut and neuron as one operation where possible: faster on CPUs in
    channels last, and without rounding to bf16 in between."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_ranges(
            self,
            RecipeError,
            timesteps=Range(1, 2**16),
            width=Range(0, 1024, is_open_below=True),
            blocks=Range(0, 200),
            first_stage_stride=Range(1, 64),
        )
        if self.name in SPIKEFORMERS:
            plain = ModelConfig(name="resnet20")
            for name in ("block", "first_stage_stride", "fused"):
                if getattr(self, name) != getattr(plain, name):
                    raise RecipeError(
                        f"{name}={getattr(self, name)!r} is for ResNets, not for {self.name}; "
                        f"leave it out"
                    )
            if self.form == "events" or (self.blocks is not None and len(self.blocks) != 5):
                raise RecipeError(
                    f'{self.name} has five stages and takes images: form "cifar" or "imagenet", '
                    f"and blocks such as 1 1 2 6 2; got form={self.form}, blocks={self.blocks}"
                )


Network = SpikingResNet | SpikeFormer
"""What recipes train."""
SPIKEFORMERS: dict[str, NamedSpikeFormer] = {
    "spikeformer-5m": spikeformer_5m,
    "spikeformer-10m": spikeformer_10m,
    "spikeformer-19m": spikeformer_19m,
}
NETWORKS: dict[str, NamedResNet] = {
    "resnet18": resnet18,
    "resnet19": resnet19,
    "resnet20": resnet20,
    "resnet34": resnet34,
}


def build_network(config: ModelConfig, *, num_classes: int) -> Network:
    """Build and initialise a network."""
    if config.name not in {**NETWORKS, **SPIKEFORMERS}:
        known = ", ".join((*NETWORKS, *SPIKEFORMERS))
        raise RecipeError(f"there is no network {config.name!r}; there are {known}")

    def neuron(channels: int) -> nn.Module:
        return _build_neuron(config.neuron, config.timesteps, channels)

    if config.name in SPIKEFORMERS:
        return SPIKEFORMERS[config.name](
            num_classes,
            timesteps=config.timesteps,
            neuron=neuron,
            width=config.width,
            blocks=None if config.blocks is None else _five(config.blocks),
            form="cifar" if config.form == "cifar" else "imagenet",
        )
    return NETWORKS[config.name](
        num_classes,
        timesteps=config.timesteps,
        neuron=neuron,
        width=config.width,
        blocks=config.blocks,
        form=config.form,
        block=config.block,
        first_stage_stride=config.first_stage_stride,
        fused=config.fused,
    )


def _five(blocks: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    one, two, three, four, five = blocks
    return one, two, three, four, five


def _build_neuron(config: NeuronConfig, timesteps: int, channels: int) -> nn.Module:
    max_level, decay = config.max_level, config.decay
    match config.kind:
        case "lbq" | "v1" | "v2" | "v3":
            return BurstLIF(
                max_level or 5,
                step=_step(config, channels=channels if config.step_per_channel else None),
                surrogate=_surrogate(config),
                decay=decay,
                reset_mode=config.reset_mode or "event",
            )
        case "binary":
            return BinaryLIF(threshold=config.step, decay=decay)
        case "ternary" | "ternary-learned":
            return TernaryLIF(
                step=_step(config, channels=None),
                surrogate=_surrogate(config),
                decay=decay,
                reset_mode=config.reset_mode or "event",
            )
        case "ternary-original":
            return OriginalTernaryLIF(decay=decay)
        case "ilif":
            return IntegerLIF(max_level or 4, decay=decay)
        case "sfa":
            return IntegerLIF(max_level or 4, decay=decay or 0.0, is_normalised=True)
        case "mlf":
            return MultiLevelLIF(max_level or 3, decay=decay)
        case "lmht":
            return LMHT(timesteps, max_level or 2)
        case "relu":
            return nn.ReLU()


def _step(config: NeuronConfig, *, channels: int | None) -> NeuronStep:
    if config.kind in _LEARNED:
        return LearnedStep(config.step, channels=channels, gradient_scale=config.gradient_scale)
    return FixedStep(config.step, channels=channels)


def _surrogate(config: NeuronConfig) -> Surrogate:
    if config.surrogate is not None:
        return SURROGATES[config.surrogate]()
    return ReLSGET() if config.kind in ("v2", "lbq") else BoxET()
