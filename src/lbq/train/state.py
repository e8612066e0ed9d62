"""The state of training: all that a checkpoint must hold for a run to go on bit for bit."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from lbq.config_io import Document
from lbq.errors import FormatError
from lbq.models.resnet import SpikingResNet
from lbq.train.checkpoint import Checkpoint
from lbq.train.distributed import ProcessGroup
from lbq.train.evaluation import Evaluation
from lbq.train.optim import optimizer_tensors
from lbq.train.precision import Precision


@dataclass
class Progress:
    """How far a run is; the same on every process."""

    step: int = 0
    """Steps done."""
    skipped: int = 0
    """Steps in a row that were skipped because a loss or gradient was not finite."""
    evaluations: list[Evaluation] = field(default_factory=list[Evaluation])
    """Every evaluation so far, oldest first."""

    @property
    def best(self) -> Evaluation | None:
        """Return the evaluation with the highest accuracy: chosen on the test set."""
        return max(self.evaluations, key=lambda found: found.correct, default=None)


@dataclass
class TrainingState:
    """Everything that changes from step to step."""

    model: SpikingResNet
    optimizer: Optimizer
    precision: Precision
    average: AveragedModel | None
    """Moving average of the weights, if the recipe wants one."""
    progress: Progress = field(default_factory=Progress)

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return every tensor of the state, not copied, by part and name."""
        parts = {
            "model": dict(self.model.state_dict()),
            "training": optimizer_tensors(self.model, self.optimizer),
        }
        if self.average is not None:
            parts["average"] = dict(self.average.state_dict())
        return parts

    def checkpoint(self, metadata: Document) -> Checkpoint:
        """Describe the state, with further metadata about the run."""
        progress = asdict(self.progress)
        scale = self.precision.state()
        metadata = {**metadata, "progress": progress, "loss_scale": scale}
        return Checkpoint(step=self.progress.step, parts=self.tensors(), metadata=metadata)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the tensors of a checkpoint, and :meth:`restore_metadata`."""
        mine = self.tensors()
        if set(mine) != set(checkpoint.parts):
            raise FormatError(
                f"the checkpoint has the parts {sorted(checkpoint.parts)}, this run {sorted(mine)}"
            )
        for part, tensors in mine.items():
            copy_tensors(checkpoint.parts[part], tensors, what=f"part {part!r} of the checkpoint")
        self.restore_metadata(checkpoint.metadata)

    def restore_metadata(self, metadata: Document) -> None:
        """Take up the numbers of a checkpoint that are no tensors."""
        self.progress = read_progress(metadata)
        try:
            self.precision.restore(metadata["loss_scale"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise FormatError(f"the checkpoint has no loss scale that fits: {error}") from error

    def broadcast(self, group: ProcessGroup) -> None:
        """Give every process the tensors of the first one."""
        for tensors in self.tensors().values():
            for tensor in tensors.values():
                group.broadcast_(tensor)


def read_progress(metadata: Document) -> Progress:
    """Read how far a checkpoint was."""
    try:
        said: dict[str, Any] = dict(metadata["progress"])
        evaluations = [Evaluation(**found) for found in said.pop("evaluations")]
        return Progress(**said, evaluations=evaluations)
    except (KeyError, TypeError) as error:
        raise FormatError(f"the checkpoint does not say how far it was: {error}") from error


@torch.no_grad()
def copy_tensors(source: Mapping[str, Tensor], target: Mapping[str, Tensor], *, what: str) -> None:
    """Copy values into tensors of the same names, shapes and dtypes, or say what does not fit."""
    check_tensors(source, target, what=what)
    for name, tensor in target.items():
        tensor.copy_(source[name])


def check_tensors(source: Mapping[str, Tensor], target: Mapping[str, Tensor], *, what: str) -> None:
    """Raise :class:`FormatError` unless both have the same names, shapes and dtypes."""
    missing, strange = sorted(set(target) - set(source)), sorted(set(source) - set(target))
    if missing or strange:
        raise FormatError(
            f"{what} does not belong to this network: it lacks {missing[:3] or 'nothing'} and has "
            f"{strange[:3] or 'nothing'} too much ({len(missing)} and {len(strange)} in all)"
        )
    for name, tensor in target.items():
        found = source[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise FormatError(
                f"{what}: {name} should be {tensor.dtype} {tuple(tensor.shape)}, got {found.dtype} "
                f"{tuple(found.shape)}"
            )
