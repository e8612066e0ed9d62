"""Pools between a neuron and a synapse: reading torch's calls, and pooling levels as integers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import functional as F

_MAX = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVG = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_MAX_POOLS = (F.max_pool1d, F.max_pool2d, F.max_pool3d)


class Pool(NamedTuple):
    """A pool; ``size`` is the spatial size of its input, ``kernel`` None means all of it."""

    is_max: bool
    size: tuple[int, ...]
    kernel: tuple[int, ...] | None
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()

    def output_size(self) -> tuple[int, ...]:
        """Return the spatial size behind the pool."""
        if self.kernel is None:
            return (1,) * len(self.size)
        axes = zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in axes)

    def apply(self, level: Tensor) -> Tensor:
        """Take the largest level of each window; the result keeps its dtype."""
        assert self.kernel is not None  # only means have none
        pool = _MAX_POOLS[len(self.size) - 1]
        pooled = pool(level.float(), self.kernel, self.stride, self.padding)  # 0..255 are exact
        return pooled.to(level.dtype)


def read_pool(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Pool | None:
    """Read a call of one of torch's pooling functions; None if it is none that can be followed."""
    kind, axes = name.rstrip("123d"), name[-2:-1]
    if kind == "max_pool":
        call = bind(_MAX, args, kwargs)
        size = call["input"].shape[-int(axes) :]
        plain = not call.get("ceil_mode") and per_axis(call.get("dilation", 1), size) == (1,) * len(
            size
        )
        return _windowed(call, size, is_max=True) if plain else None
    if kind == "avg_pool":
        call = bind(_AVG, args, kwargs)
        size = call["input"].shape[-int(axes) :]
        return None if call.get("ceil_mode") else _windowed(call, size, is_max=False)
    if kind == "adaptive_avg_pool":
        call = bind(("input", "output_size"), args, kwargs)
        size = call["input"].shape[-int(axes) :]
        cells = per_axis(call["output_size"], size)
        return Pool(is_max=False, size=tuple(size), kernel=None) if set(cells) == {1} else None
    if name == "mean":
        call = bind(("input", "dim"), args, kwargs)
        return _mean(call["input"], call.get("dim"))
    return None


def bind(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Give positional arguments the names they have in torch's documentation."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def per_axis(value: int | Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """Repeat a number for every axis; a sequence is taken as it is."""
    if isinstance(value, int):
        return (value,) * len(size)
    return tuple(value) * (len(size) if len(value) == 1 else 1)


def _windowed(call: dict[str, Any], size: Sequence[int], *, is_max: bool) -> Pool:
    kernel = per_axis(call["kernel_size"], size)
    return Pool(
        is_max=is_max,
        size=tuple(size),
        kernel=kernel,
        stride=per_axis(call.get("stride") or kernel, size),
        padding=per_axis(call.get("padding", 0), size),
    )


def _mean(values: Tensor, dim: int | Sequence[int] | None) -> Pool | None:
    """Read a mean over trailing axes, all of them behind time, batch or channels, as a pool."""
    if dim is None:
        return None
    axes = sorted(d % values.dim() for d in ([dim] if isinstance(dim, int) else dim))
    is_trailing = axes == list(range(axes[0], values.dim())) and axes[0] >= 2
    return Pool(is_max=False, size=values.shape[axes[0] :], kernel=None) if is_trailing else None
