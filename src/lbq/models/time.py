"""The one place where time meets the batch: folding T into B, repeating and averaging over T."""

from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from lbq.errors import ShapeError, TimeError
from lbq.types import Currents, Frames, Images, Sequence, StillCurrent


class OverTime(nn.Sequential):
    """Modules that know nothing of time, applied to every instant: ``[T, B, ...]`` in and out.

    T folds into B for the whole sequence of modules, so batch statistics are taken over time as
    well, and unfolds behind it.
    """

    def forward(self, input: Sequence) -> Sequence:  # noqa: A002 -- torch's own name
        """Fold, apply, unfold."""
        return unfold(super().forward(fold(input)), like=input)


def fold(sequence: Sequence) -> Tensor:
    """Fold T into B: ``[T, B, ...]`` to ``[T * B, ...]``."""
    return sequence.flatten(0, 1)


def unfold(instants: Tensor, *, like: Sequence) -> Sequence:
    """Unfold T from B again, as ``like`` has them."""
    return instants.unflatten(0, like.shape[:2])


class RepeatOverTime(nn.Module):
    """Shows a still current at every timestep: ``[B, ...]`` to ``[T, B, ...]``, for any rank.

    Put it before the first neuron of a network that takes still images or features. The repetition
    is a view: nothing is copied.

    Args:
        timesteps: how often (T).
    """

    def __init__(self, timesteps: int) -> None:
        super().__init__()
        self.timesteps = check_timesteps(timesteps)

    def forward(self, current: StillCurrent) -> Currents:
        """Repeat."""
        if isinstance(current, Tensor) and not torch.compiler.is_compiling():  # pyright: ignore[reportUnnecessaryIsInstance] -- fx
            return _Repeat.apply(current, self.timesteps)
        return _repeat(current, self.timesteps)

    def extra_repr(self) -> str:
        """Show the number of timesteps."""
        return f"timesteps={self.timesteps}"


def _repeat(current: Tensor, timesteps: int) -> Tensor:
    # a sum of tuples: unpacking would iterate over the shape, which torch.fx cannot trace
    return current.expand((timesteps,) + current.shape)  # noqa: RUF005


class _Repeat(torch.autograd.Function):
    """``_repeat`` whose gradient keeps its memory order: torch's own sum gives channels first."""

    @staticmethod
    def forward(current: Tensor, timesteps: int) -> Tensor:
        return _repeat(current, timesteps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return reduce(torch.add, grads[0].unbind(0)), None


class ImagesIn(nn.Module):
    """Lets still images pass and refuses anything else."""

    def forward(self, images: Images) -> Images:
        """Check."""
        if images.dim() != 4:
            raise ShapeError(
                f"this network takes still images, [B, C, H, W], got shape {tuple(images.shape)}; "
                f'build it with form="events" for sequences of frames'
            )
        return images


class FramesIn(nn.Module):
    """Lets sequences of ``T`` frames pass and refuses anything else.

    Args:
        timesteps: length of the sequences (T).
    """

    def __init__(self, timesteps: int) -> None:
        super().__init__()
        self.timesteps = check_timesteps(timesteps)

    def forward(self, frames: Frames) -> Frames:
        """Check."""
        if frames.dim() != 5:
            raise ShapeError(
                f"this network takes frames, [T, B, C, H, W], got shape {tuple(frames.shape)}; "
                f'build it with form="cifar" or form="imagenet" for still images'
            )
        if len(frames) != self.timesteps:
            raise TimeError(
                f"this network was built for {self.timesteps} timesteps, got {len(frames)} frames "
                f"(time is the first axis); cut the recording into {self.timesteps} frames, or "
                f"build it with timesteps={len(frames)}"
            )
        return frames

    def extra_repr(self) -> str:
        """Show the number of timesteps."""
        return f"timesteps={self.timesteps}"


class MeanOverTime(nn.Module):
    """Averages over the timesteps: ``[T, B, ...]`` to ``[B, ...]``."""

    def forward(self, sequence: Sequence) -> Tensor:
        """Average."""
        return sequence.mean(0)


def check_timesteps(timesteps: int) -> int:
    """Return the number of timesteps, or complain about one that is no number of timesteps."""
    if timesteps < 1:
        raise TimeError(f"a network needs at least one timestep, got timesteps={timesteps}")
    return timesteps
