"""Model and loss as one module."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from lbq.models.resnet import SpikingResNet

LossKind = Literal["mean", "tet"]


class ModelWithLoss(nn.Module):
    """A network and its loss: takes inputs and targets, returns loss and correct predictions.

    One module, so that DistributedDataParallel wraps a single call.

    Args:
        model: the network.
        kind: "mean", cross-entropy of the logits averaged over time (the paper), or "tet", the
            average over time of the cross-entropies (Deng et al., ICLR 2022).
        label_smoothing: as in torch's ``cross_entropy``.
    """

    def __init__(
        self, model: SpikingResNet, *, kind: LossKind = "mean", label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.model = model
        self.kind: LossKind = kind
        self.label_smoothing = label_smoothing

    def forward(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss of a batch and the number of correct predictions, as tensors.

        Args:
            inputs: images ``[B, C, H, W]`` or frames ``[T, B, C, H, W]``.
            target: classes ``[B]``, or class probabilities ``[B, classes]``, of which the largest
                counts as the correct class.
        """
        if self.kind == "mean":
            logits = self.model(inputs)
            loss = self._cross_entropy(logits, target)
        else:
            over_time = self.model.logits_over_time(inputs)  # [T, B, classes]
            losses = [self._cross_entropy(logits, target) for logits in over_time.unbind(0)]
            loss, logits = sum(losses[1:], start=losses[0]) / len(losses), over_time.mean(0)
        classes = target if target.dim() == 1 else target.argmax(1)
        return loss, (logits.detach().argmax(1) == classes).sum()

    def _cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), target, label_smoothing=self.label_smoothing)
