"""A network from its configuration: which of the paper's shapes, with which neuron."""

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from lbq.errors import RecipeError
from lbq.models.blocks import BlockKind
from lbq.models.build import NamedResNet, resnet18, resnet19, resnet20, resnet34
from lbq.models.resnet import Form, SpikingResNet
from lbq.neurons.binary import BinaryLIF
from lbq.neurons.burst import BurstLIF
from lbq.neurons.integer import IntegerLIF
from lbq.neurons.lmht import LMHT
from lbq.neurons.multilevel import MultiLevelLIF
from lbq.neurons.step import FixedStep, LearnedStep
from lbq.neurons.surrogates import BoxET, ReLSGET
from lbq.neurons.ternary import OriginalTernaryLIF, TernaryLIF

NeuronKind = Literal[
    "lbq", "v1", "v2", "v3", "binary", "ternary", "ternary-learned", "ternary-original", "ilif",
    "mlf", "lmht", "relu",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class NeuronConfig:
    """The neuron of every layer."""

    kind: NeuronKind = "lbq"
    """LBQ, the paper's ablations v1 to v3, a neuron it is compared with, or "relu" for an ANN."""
    max_level: int | None = None
    """Largest level (N_max); None for what the kind's authors use: 5 for bursts."""
    step: float = 1.0
    """Where steps start, or stay (gamma); for bursts and ternary neurons."""
    step_per_channel: bool = False
    """Whether every channel has a step of its own instead of every layer; for bursts."""
    decay: float | None = None
    """Share of the carry that survives a timestep (beta); None for the kind's own."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One of the paper's networks; the number of classes comes from the data."""

    name: Literal["resnet18", "resnet19", "resnet20", "resnet34"] = "resnet20"
    """Its shape."""
    neuron: NeuronConfig = field(default_factory=NeuronConfig)
    """What stands between its synapses."""
    timesteps: int = 2
    """Number of timesteps (T)."""
    width: float = 1.0
    """Factor on every number of channels."""
    form: Form | None = None
    """ "cifar", "imagenet" or "events"; None for what the paper uses the shape with."""
    block: BlockKind = "basic"
    """Where the neurons sit: "basic" (the paper), "sew" or "ms"."""
    first_stage_stride: int | None = None
    """None for 1 with images and 2 with events."""
    fused: bool = False
    """Run batch norm, shortcut and neuron as one operation where that is possible: faster on CPUs
    in channels last, and float32 between them where the modules round to bf16."""


NETWORKS: dict[str, NamedResNet] = {
    "resnet18": resnet18,
    "resnet19": resnet19,
    "resnet20": resnet20,
    "resnet34": resnet34,
}


def build_network(config: ModelConfig, *, num_classes: int) -> SpikingResNet:
    """Build the network that a configuration describes, freshly initialised."""
    if config.name not in NETWORKS:
        raise RecipeError(f"there is no network {config.name!r}; there are {', '.join(NETWORKS)}")

    def neuron(channels: int) -> nn.Module:
        return _build_neuron(config.neuron, config.timesteps, channels)

    return NETWORKS[config.name](
        num_classes,
        timesteps=config.timesteps,
        neuron=neuron,
        width=config.width,
        form=config.form,
        block=config.block,
        first_stage_stride=config.first_stage_stride,
        fused=config.fused,
    )


def _build_neuron(config: NeuronConfig, timesteps: int, channels: int) -> nn.Module:
    max_level, decay = config.max_level, config.decay
    match config.kind:
        case "lbq" | "v1" | "v2" | "v3":
            return _burst(config, channels)
        case "binary":
            return BinaryLIF(threshold=config.step, decay=decay)
        case "ternary":
            return TernaryLIF(step=config.step, decay=decay)
        case "ternary-learned":
            return TernaryLIF(step=LearnedStep(config.step), decay=decay)
        case "ternary-original":
            return OriginalTernaryLIF(decay=decay)
        case "ilif":
            return IntegerLIF(max_level or 4, decay=decay)
        case "mlf":
            return MultiLevelLIF(max_level or 3, decay=decay)
        case "lmht":
            return LMHT(timesteps, max_level or 2)
        case "relu":
            return nn.ReLU()


def _burst(config: NeuronConfig, channels: int) -> BurstLIF:
    count = channels if config.step_per_channel else None
    build_step = LearnedStep if config.kind in ("v3", "lbq") else FixedStep
    return BurstLIF(
        5 if config.max_level is None else config.max_level,
        step=build_step(config.step, channels=count),
        surrogate=ReLSGET() if config.kind in ("v2", "lbq") else BoxET(),
        decay=config.decay,
    )
