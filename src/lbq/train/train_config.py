"""Settings of a run other than network and data."""

from dataclasses import dataclass, field
from typing import Literal

from lbq.errors import RecipeError
from lbq.ranges import Range, check_ranges
from lbq.train.loss import LossKind
from lbq.train.optim import OptimConfig, PrecisionKind, ScheduleConfig


@dataclass(frozen=True, kw_only=True)
class CostConfig:
    """How training comes below a budget (:class:`lbq.CostBudget`)."""

    table: Literal["popcount", "unary", "events"] = "popcount"
    """What a level costs: its non-zero bits, itself, or one."""
    weight: float = 1.0
    """Weight of the term in the loss."""
    floor: float = 0.02
    """A layer with a smaller share of active levels is not pushed any further."""
    start_epoch: float = 0.0
    """Epochs before the weight starts to rise."""
    ramp_epochs: float = 2.0
    """Epochs over which it rises."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges(
            self,
            RecipeError,
            weight=Range(0),
            floor=Range(0, 1, is_open_above=True),
            start_epoch=Range(0),
            ramp_epochs=Range(0),
        )

    def weight_at(self, epoch: float) -> float:
        """Return the weight at this time, in epochs."""
        late = epoch - self.start_epoch
        share = late / self.ramp_epochs if self.ramp_epochs else float(late >= 0)
        return self.weight * min(1.0, max(0.0, share))


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """How far a network follows its teacher (``lbq.fit(..., teacher=network)``).

    The loss is ``(1 - weight) * loss + weight * T**2 * KL(teacher || network)``, both softened by
    the temperature T.
    """

    weight: float = 0.5
    """Share of the teacher in the loss; with 1 the targets do not matter."""
    temperature: float = 2.0
    """Temperature of both softmaxes."""

    def __post_init__(self) -> None:
        """Check ranges."""
        check_ranges(
            self,
            RecipeError,
            weight=Range(0, 1, is_open_below=True),
            temperature=Range(0, is_open_below=True),
        )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Training settings, as data.

    Example:
        >>> config = lbq.TrainConfig(epochs=10, batch=64)
        >>> config.optim.kind, config.precision
        ('sgd', 'fp32')
    """

    epochs: int
    """Passes over the training set."""
    batch: int
    """Global batch size, over all devices."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The learning rate schedule."""
    loss: LossKind = "mean"
    """Cross-entropy of the "mean" over time (the paper), or mean of the cross-entropies, "tet"."""
    label_smoothing: float = 0.0
    """Label smoothing."""
    precision: PrecisionKind = "fp32"
    """Precision of convolutions; neurons always compute in float32. "auto": bf16 where the device
    has units for it, fp32 elsewhere. A run stores what it used, and continues with that."""
    channels_last: bool = False
    """Memory format of images; faster with bf16 and fp16."""
    compile: bool = False
    """Whether to use torch.compile, which takes minutes at the start."""
    accumulate: int = 1
    """Gradient accumulation: micro-batches per device and step."""
    ema_decay: float | None = None
    """Decay of a moving average of the weights, which is then evaluated; None for no average."""
    calibrate: float | None = None
    """Set the steps from the first batch so that this percentile of the membranes reaches the
    largest level; None keeps the initial steps."""
    budget: float | None = None
    """Largest number of accumulations per MAC of the same network as an ANN: 0.5 is one
    accumulation for two MACs. None for no limit."""
    cost: CostConfig = field(default_factory=CostConfig)
    """What counts as an accumulation, and how training comes below the budget."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """How far the network follows its teacher, if it has one."""
    deterministic: Literal["samples", "canonical"] = "samples"
    """ "samples": the same samples and augmentations for any number of devices. "canonical": the
    same weights too, bit for bit on the same kind of device; slower (docs/training.md)."""
    shards: int = 8
    """Parts of a batch in canonical mode; the number of devices must divide it."""
    on_nonfinite: Literal["abort", "skip"] = "abort"
    """On a non-finite loss or gradient: stop, or skip up to three consecutive steps. The weights
    stay finite either way."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last one is always evaluated."""
    test_batch: int = 500
    """Batch size of evaluations, per device."""
    seed: int = 42
    """Seed of sample order and augmentation, of what the model draws, and of a recipe's weights."""

    def __post_init__(self) -> None:
        """Check ranges and combinations."""
        check_ranges(
            self,
            RecipeError,
            epochs=Range(1),
            batch=Range(1),
            accumulate=Range(1),
            shards=Range(1),
            evaluate_every=Range(1),
            test_batch=Range(1),
            seed=Range(0, 2**64 - 1),
            label_smoothing=Range(0, 1, is_open_above=True),
            ema_decay=Range(0, 1, is_open_below=True, is_open_above=True),
            calibrate=Range(0, 100, is_open_below=True),
            budget=Range(0, is_open_below=True),
        )
        if self.deterministic == "canonical" and self.accumulate > 1:
            raise RecipeError("canonical mode splits the batch into shards; leave accumulate at 1")
        if self.deterministic == "canonical" and self.batch % self.shards:
            raise RecipeError(
                f"a batch of {self.batch} cannot be split into {self.shards} equal shards"
            )

    def check_world_size(self, size: int) -> None:
        """Raise RecipeError if that many devices cannot split a batch evenly."""
        parts = self.shards if self.deterministic == "canonical" else self.batch
        if parts % size or (self.batch // size) % self.accumulate:
            raise RecipeError(
                f"{size} devices cannot split a batch of {self.batch} evenly "
                f"(accumulate={self.accumulate}, deterministic={self.deterministic!r}, "
                f"shards={self.shards}); choose another number of devices or batch"
            )
