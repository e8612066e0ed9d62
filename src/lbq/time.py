"""The time axis: merge T into B, repeat and average over time."""

from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from lbq.carries import active_carries
from lbq.errors import ShapeError, TimeError
from lbq.types import Frames, Images, Sequence, StaticCurrent


class OverTime(nn.Sequential):
    """Applies modules without time to every timestep: ``[T, B, ...]`` in and out.

    T is merged into B for all of the modules, so batch statistics include time.

    Example:
        >>> layers = lbq.OverTime(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        >>> layers(torch.randn(2, 4, 3, 16, 16)).shape  # [T, B, C, H, W]
        torch.Size([2, 4, 8, 14, 14])
    """

    def forward(self, input: Sequence) -> Sequence:  # noqa: A002 -- torch's own name
        """Merge time, apply the modules, split time."""
        return split_time(super().forward(merge_time(input)), like=input)


def merge_time(sequence: Sequence) -> Tensor:
    """Merge T into B: ``[T, B, ...]`` to ``[T * B, ...]``."""
    return sequence.flatten(0, 1)


def split_time(instants: Tensor, *, like: Sequence) -> Sequence:
    """Split T from B: ``[T * B, ...]`` to ``[T, B, ...]`` with the sizes of ``like``."""
    return instants.unflatten(0, like.shape[:2])


class RepeatOverTime(nn.Module):
    """Repeats a static current at every timestep: ``[B, ...]`` to ``[T, B, ...]``.

    Put it before the first neuron of a network that takes static images or features. The result is
    a view. In a stream (:func:`lbq.stream`) it gives one timestep per call.

    Args:
        timesteps: number of timesteps (T).

    Example:
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(8, 4), lbq.RepeatOverTime(3), lbq.BurstLIF(), lbq.MeanOverTime()
        ... )
        >>> model[:2](torch.randn(5, 8)).shape, model(torch.randn(5, 8)).shape
        (torch.Size([3, 5, 4]), torch.Size([5, 4]))
    """

    def __init__(self, timesteps: int) -> None:
        super().__init__()
        self.timesteps = check_timesteps(timesteps)

    def forward(self, current: StaticCurrent) -> Tensor:
        """Repeat; in a stream, along the batch (:class:`~lbq.carries.Carries`)."""
        carries = active_carries()
        if carries is not None:
            return carries.repeat(current)
        if isinstance(current, Tensor) and not torch.compiler.is_compiling():  # pyright: ignore[reportUnnecessaryIsInstance] -- fx
            return _Repeat.apply(current, self.timesteps)
        return _repeat(current, self.timesteps)

    def extra_repr(self) -> str:
        """Show the number of timesteps."""
        return f"timesteps={self.timesteps}"


def _repeat(current: Tensor, timesteps: int) -> Tensor:
    # torch.fx cannot trace unpacking of a shape
    return current.expand((timesteps,) + current.shape)  # noqa: RUF005


class _Repeat(torch.autograd.Function):
    """``_repeat`` with a gradient that keeps the memory order, as torch's sum does not."""

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
    """Raises unless its input is a batch of static images."""

    def forward(self, images: Images) -> Images:
        """Return the images after the check."""
        if images.dim() != 4:
            raise ShapeError(
                f"this network takes static images, [B, C, H, W], got shape {tuple(images.shape)}; "
                f'build it with form="events" for sequences of frames'
            )
        return images


class FramesIn(nn.Module):
    """Raises unless its input is a sequence of ``T`` frames; a stream passes one at a time.

    Args:
        timesteps: length of the sequences (T).
    """

    def __init__(self, timesteps: int) -> None:
        super().__init__()
        self.timesteps = check_timesteps(timesteps)

    def forward(self, frames: Frames) -> Frames:
        """Return the frames after the check."""
        if frames.dim() != 5:
            raise ShapeError(
                f"this network takes frames, [T, B, C, H, W], got shape {tuple(frames.shape)}; "
                f'build it with form="cifar" or form="imagenet" for static images'
            )
        if len(frames) != self.timesteps and active_carries() is None:
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
    """Averages over the timesteps: ``[T, B, ...]`` to ``[B, ...]``.

    Example:
        >>> lbq.MeanOverTime()(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        tensor([2., 3.])
    """

    def forward(self, sequence: Sequence) -> Tensor:
        """Average."""
        return sequence.mean(0)


def check_timesteps(timesteps: int) -> int:
    """Return the number of timesteps; raise unless it is positive."""
    if timesteps < 1:
        raise TimeError(f"a network needs at least one timestep, got timesteps={timesteps}")
    return timesteps
