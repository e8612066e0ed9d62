"""What a network is told about its answers."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from lbq.models.resnet import SpikingResNet

LossKind = Literal["mean", "tet"]


class ModelWithLoss(nn.Module):
    """A network with its loss, as one module: inputs and targets in, loss and correct answers out.

    The loss lives inside, so that whatever wraps the module (torch's DistributedDataParallel) sees
    one call, whichever outputs of the network the loss needs.

    Args:
        model: the network.
        kind: "mean", cross-entropy of the logits averaged over time (the paper), or "tet", the
            average over time of the cross-entropies (Deng et al., ICLR 2022).
        label_smoothing: share of every target that is spread evenly over the classes.
    """

    def __init__(
        self, model: SpikingResNet, *, kind: LossKind = "mean", label_smoothing: float = 0.0
    ) -> None:
        super().__init__()
        self.model = model
        self.kind: LossKind = kind
        self.label_smoothing = label_smoothing

    def forward(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss of a batch and how many answers were right, both as tensors.

        Args:
            inputs: images ``[B, C, H, W]`` or frames ``[T, B, C, H, W]``.
            target: classes ``[B]``, or shares of classes ``[B, classes]``; an answer to the latter
                is right if it is the class with the largest share.
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
