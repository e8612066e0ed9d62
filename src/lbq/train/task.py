"""Describe one attempt of a run: what it computes, where and how fast, and how it ended."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from lbq.config_io import Document, to_document
from lbq.data import Data
from lbq.data.user_data import UserData, as_dataset
from lbq.errors import ParameterError
from lbq.ranges import Range, check_ranges
from lbq.train.callable_digest import callable_digest
from lbq.train.evaluation import Evaluation
from lbq.train.loss import Loss, Metric
from lbq.train.provenance import structure_digest
from lbq.train.recipe import Recipe
from lbq.train.teacher import teacher_digest
from lbq.train.train_config import TrainConfig

Ending = Literal["finished", "stopped", "already finished"]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where and how fast a run computes; nothing here changes its results.

    Example:
        >>> lbq.RunOptions(workers=4, save_every_s=60).keep
        2
    """

    cache: str | Path = Path("~/.cache/lbq")
    """Folder of decoded data sets."""
    device: str = "auto"
    """ "auto" (a GPU if there is one), cpu, cuda or cuda:1."""
    workers: int = 0
    """Data loader processes per device; 0 loads in the main process."""
    threads: int | None = None
    """CPU threads per device; None for torch's default, in canonical mode 1."""
    pack_bursts: bool = False
    """Keep bursts for the backward pass as packed levels (:func:`lbq.pack_bursts`): less memory."""
    log_every: int = 50
    """Steps between two lines of the metrics log."""
    save_every_s: float = 300.0
    """Seconds between two checkpoints."""
    save_every_steps: int | None = None
    """Steps between two checkpoints, in addition to ``save_every_s``."""
    keep: int = 2
    """Number of checkpoints to keep, at least 2."""
    timeout_s: float = 300.0
    """Timeout of collectives."""
    allow_changed: tuple[str, ...] = ()
    """Keys that may differ from the run that is resumed: recipe.epochs, code, data, ..."""
    stop_at: int | None = None
    """Stop, with a checkpoint, at this step."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_ranges(
            self,
            ParameterError,
            workers=Range(0),
            threads=Range(1),
            log_every=Range(1),
            save_every_s=Range(0),
            save_every_steps=Range(1),
            timeout_s=Range(0, 10**8, is_open_below=True),
            stop_at=Range(1),
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one attempt of a run ended."""

    ending: Ending
    """ "already finished" if there was nothing left to do."""
    step: int
    """Steps done in all attempts."""
    evaluations: tuple[Evaluation, ...]
    """Evaluations of all attempts, oldest first."""
    exit_code: int
    """0, or 128 + the signal that stopped this attempt."""


@dataclass(frozen=True)
class Task:
    """The computation of one attempt of a run."""

    model: nn.Module
    data: Data | UserData
    config: TrainConfig
    loss: Loss | None
    metrics: dict[str, Metric]
    recipe: Recipe | None = None
    """The recipe that built the other fields, if one did."""
    teacher: nn.Module | None = None
    """The network whose answers enter the loss."""

    def metadata(self) -> Document:
        """Describe everything that must not change when a run is resumed."""
        if self.recipe is not None:
            assert isinstance(self.data, Data)
            return {"recipe": to_document(self.recipe), "num_classes": self.data.num_classes}
        return {
            "config": to_document(self.config),
            "structure": structure_digest(self.model),
            "loss": None if self.loss is None else _name_of(self.loss),
            "loss_code": None if self.loss is None else callable_digest(self.loss),
            "metrics": sorted(self.metrics),
            "metrics_code": {
                name: callable_digest(metric) for name, metric in sorted(self.metrics.items())
            },
            "teacher": None if self.teacher is None else teacher_digest(self.teacher),
        }


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def join_data(train_data: Any, eval_data: Any, *, time_first: bool) -> Data | UserData:
    """Return both parts of the data as one object; raise if they are not data sets."""
    if isinstance(train_data, Data) or isinstance(eval_data, Data):
        if train_data is not eval_data or time_first:
            raise ParameterError(
                "an lbq.data.Data holds both training and test samples, time first if they have a "
                "time axis: pass the same object as train_data and eval_data, without time_first"
            )
        return train_data
    test = None if eval_data is None else as_dataset(eval_data, "eval_data")
    return UserData(as_dataset(train_data, "train_data"), test, time_first)
