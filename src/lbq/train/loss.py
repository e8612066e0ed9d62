"""Losses and metrics, and model and loss as one module."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lbq.errors import LBQError, ParameterError, ShapeError

LossKind = Literal["mean", "tet"]

Loss = Callable[[Any, Tensor], Tensor]
"""Takes the model's output and the targets, returns the mean loss of the batch."""

Metric = Callable[[Any, Tensor], Tensor]
"""Takes the model's output and the targets, returns one number per sample, ``[B]``."""


def correct_predictions(output: Tensor, target: Tensor) -> Tensor:
    """Return which samples get the largest logit at their class: the metric "accuracy".

    Args:
        output: logits ``[B, classes]``, or ``[T, B, classes]``, averaged over time.
        target: classes ``[B]``, or class probabilities ``[B, classes]``, of which the largest
            counts as the correct class.
    """
    classes = target if target.dim() == 1 else target.argmax(1)
    return logits_of_batch(output, target).argmax(1) == classes


def logits_of_batch(output: Any, target: Tensor) -> Tensor:
    """Return logits ``[B, classes]``, averaged over time if the output is ``[T, B, classes]``."""
    if isinstance(output, Tensor) and output.shape[-2:-1] == target.shape[:1]:
        if output.dim() == 2:
            return output
        if output.dim() == 3:
            return output.mean(0)
    found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
    raise ShapeError(
        f"the model must return logits [B, classes] or [T, B, classes] for {len(target)} targets, "
        f"got {found}; pass loss=... and metrics=... for other outputs"
    )


def cross_entropy(logits: Tensor, target: Tensor, **options: Any) -> Tensor:
    """Compute torch's cross-entropy in float32; integer targets are classes."""
    if target.dim() == 1 and target.is_floating_point():
        raise ShapeError(
            f"targets must be integer classes [B] or class probabilities [B, classes], got "
            f"{target.dtype} {list(target.shape)}; pass loss=... for other targets"
        )
    if target.is_floating_point():
        return F.cross_entropy(logits.float(), target, **options)
    try:
        return F.cross_entropy(logits.float(), target.long(), **options)
    except IndexError as error:  # on a CPU
        raise ShapeError(
            f"classes must lie in 0..{logits.shape[1] - 1}, as the model returns "
            f"{logits.shape[1]} logits, got {int(target.min())}..{int(target.max())}"
        ) from error


class ModelWithLoss(nn.Module):
    """A network and its loss: takes inputs and targets, returns loss and correct predictions.

    One module, so that DistributedDataParallel wraps a single call.

    Args:
        model: the network.
        kind: "mean", cross-entropy of the logits averaged over time (the paper), or "tet", the
            average over time of the cross-entropies (Deng et al., ICLR 2022).
        label_smoothing: as in torch's ``cross_entropy``.
        loss: used instead of the cross-entropy.
        accuracy: which predictions are correct; None if that is not known.
        teach: ``teach(loss, inputs, output, target)`` returns the loss with a teacher's term.
        penalty: added to the loss after each forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        kind: LossKind = "mean",
        label_smoothing: float = 0.0,
        loss: Loss | None = None,
        accuracy: Metric | None = correct_predictions,
        teach: Callable[[Tensor, Tensor, Any, Tensor], Tensor] | None = None,
        penalty: Callable[[], Tensor] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
            raise ParameterError(
                f"the loss ({type(loss).__name__}) has parameters, which would not be trained or "
                f"saved; make them part of the model"
            )
        self.model = model
        self.kind: LossKind = kind
        self.label_smoothing = label_smoothing
        self.loss = loss
        self.accuracy = accuracy
        self.teach = teach
        self.penalty = penalty
        self._has_run = False

    def forward(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss of a batch and the number of correct predictions, as tensors.

        Args:
            inputs: as the model takes them.
            target: as the loss takes them; for cross-entropy classes ``[B]``, or class
                probabilities ``[B, classes]``.
        """
        if self.loss is not None:
            output = self._answer(self.model, inputs)
            loss = _check_scalar(self.loss(output, target))
        elif self.kind == "mean":
            output = logits_of_batch(self._answer(self.model, inputs), target)
            loss = self._cross_entropy(output, target)
        else:
            over_time = self._logits_over_time(inputs)  # [T, B, classes]
            losses = [self._cross_entropy(logits, target) for logits in over_time.unbind(0)]
            loss, output = sum(losses[1:], start=losses[0]) / len(losses), over_time.mean(0)
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ParameterError(
                "the loss has no gradient, so nothing would be trained: compute it from the "
                "output of the model by torch operations, without detach(), item() or "
                "torch.no_grad(), in the loss and in the model"
            )
        if self.teach is not None:
            loss = self.teach(loss, inputs, output, target)
        if self.penalty is not None:
            loss = loss + self.penalty()
        if self.accuracy is None:
            return loss, loss.new_zeros(())
        if isinstance(output, Tensor):
            output = output.detach()
        return loss, self.accuracy(output, target).sum()

    def _answer(self, model: Callable[[Tensor], Any], inputs: Tensor) -> Any:
        """Run the model; its first batch shows whether it takes such inputs at all."""
        if self._has_run:
            return model(inputs)
        output = answer_of(model, inputs)
        self._has_run = True
        return output

    def _cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(logits, target, label_smoothing=self.label_smoothing)

    def _logits_over_time(self, inputs: Tensor) -> Tensor:
        over_time = self._answer(getattr(self.model, "logits_over_time", self.model), inputs)
        if not isinstance(over_time, Tensor) or over_time.dim() != 3:
            raise ShapeError(
                f'loss="tet" needs logits at every timestep, [T, B, classes], got '
                f"{list(over_time.shape)}; leave out the mean over time, or give the model a "
                f"method logits_over_time"
            )
        return over_time


def answer_of(model: Callable[[Tensor], Any], inputs: Tensor) -> Any:
    """Run a model on a batch; raise ShapeError if it does not take such inputs."""
    try:
        return model(inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, LBQError | torch.OutOfMemoryError):
            raise
        what = str(error).strip().partition("\n")[0]
        raise ShapeError(
            f"the model cannot take a batch of {inputs.dtype} {list(inputs.shape)}: {what}; pass "
            f"samples of the shape and dtype that it takes, such as float32"
        ) from error


def batch_loss(output: Any, target: Tensor, loss: Loss | None) -> Tensor:
    """Return the loss of a batch, summed over its samples, without label smoothing."""
    if loss is None:
        return cross_entropy(logits_of_batch(output, target), target, reduction="sum")
    return _check_scalar(loss(output, target)) * len(target)


def check_metrics(metrics: Mapping[str, Metric] | None, loss: Loss | None) -> dict[str, Metric]:
    """Return the metrics of an evaluation: accuracy by default, nothing with a custom loss."""
    if metrics is None:
        return {"accuracy": correct_predictions} if loss is None else {}
    reserved = {"loss", "correct", "count", "step", "epoch"} & set(metrics)
    if reserved:
        raise ParameterError(f"metrics need other names than {', '.join(sorted(reserved))}")
    return dict(metrics)


def _check_scalar(loss: Tensor) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim() != 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        found = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShapeError(f"a loss must return one number, the mean over the batch, got {found}")
    return loss
