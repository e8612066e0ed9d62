"""A teacher: a trained network whose answers enter the loss (Hinton et al., 2015)."""

import copy
import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lbq.config_io import digest
from lbq.errors import ParameterError, ShapeError
from lbq.train.loss import answer_of, logits_of_batch
from lbq.train.provenance import structure_digest
from lbq.train.train_config import TeacherConfig


class Teacher:
    """A frozen copy of a network, in eval mode, and how far a student follows it.

    It is not a module, so it adds no parameters to the student that holds it.

    Args:
        network: takes the inputs of the student and returns logits ``[B, classes]`` or
            ``[T, B, classes]``. It is not changed.
        config: weight and temperature.
        device: the student's device.
        channels_last: memory format of its weights.
    """

    def __init__(
        self,
        network: nn.Module,
        config: TeacherConfig,
        *,
        device: torch.device | str = "cpu",
        channels_last: bool = False,
    ) -> None:
        if not isinstance(network, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ParameterError(
                f"teacher must be a torch.nn.Module, got {type(network).__name__}; to use answers "
                f"that were computed before, make them part of the targets and pass loss=..."
            )
        self.config = config
        frozen = copy.deepcopy(network).eval().requires_grad_(False).to(device)
        if channels_last:
            frozen = frozen.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self._network = frozen

    def join(self, loss: Tensor, inputs: Tensor, output: Any, target: Tensor) -> Tensor:
        """Return (1 - weight) * loss + weight * divergence from the teacher's answers.

        Args:
            loss: the loss of the targets.
            inputs: inputs of the student.
            output: logits of the student.
            target: targets of the batch.
        """
        with torch.no_grad():
            wanted = _logits(answer_of(self._network, inputs), target, "teacher")
        given = _logits(output, target, "model")
        if given.shape != wanted.shape:
            raise ShapeError(
                f"the teacher returns {wanted.shape[1]} logits per sample and the model "
                f"{given.shape[1]}; take a teacher of the same classes"
            )
        weight, temperature = self.config.weight, self.config.temperature
        return (1 - weight) * loss + weight * divergence(given, wanted, temperature)


def _logits(output: Any, target: Tensor, whose: str) -> Tensor:
    try:
        return logits_of_batch(output, target)
    except ShapeError as error:
        found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ShapeError(
            f"with a teacher, both networks must return logits [B, classes] or [T, B, classes] for "
            f"{len(target)} targets, but the {whose} returned {found}; for other outputs, compare "
            f"with the teacher in a loss of your own (loss=...)"
        ) from error


def divergence(logits: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """Return T^2 KL(softmax(wanted / T) || softmax(logits / T)), the mean over the batch.

    The factor T^2 keeps the size of the gradient whatever the temperature.
    """
    student = (logits.float() / temperature).log_softmax(1)
    teacher = (wanted.float() / temperature).log_softmax(1)
    return temperature**2 * F.kl_div(student, teacher, reduction="batchmean", log_target=True)


def teacher_digest(network: nn.Module) -> str:
    """Return the SHA-256 of a network's structure and of all its tensors."""
    tensors = {name: _tensor_digest(each) for name, each in network.state_dict().items()}
    return digest([structure_digest(network), tensors])


def _tensor_digest(tensor: Tensor) -> str:
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(values.numpy().tobytes()).hexdigest()
