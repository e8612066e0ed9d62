"""Read the arguments of torch's pooling functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


@dataclass(frozen=True, kw_only=True)
class PoolArgs:
    """A pool over the last axes of a tensor."""

    is_max: bool
    size: tuple[int, ...]
    """Spatial size of the input."""
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    is_global: bool = False
    """Whether it is a mean over all positions."""
    divisor_issue: str = ""
    """The reason why a mean does not divide by its window size; empty if it does."""

    def output_size(self) -> tuple[int, ...]:
        """Return the spatial size of the output."""
        axes = zip(self.size, self.kernel, self.stride, self.padding, strict=True)
        return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in axes)


def read_pool(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], *, size: Sequence[int]
) -> PoolArgs | str:
    """Read a call of a pooling function; return the reason if it is not supported.

    Args:
        name: name of the function, such as "max_pool2d".
        args: positional arguments behind the tensor.
        kwargs: keyword arguments.
        size: spatial size of the input.
    """
    if name.startswith("adaptive_avg_pool"):
        return _adaptive_pool(args[0] if args else kwargs.get("output_size"), size)
    is_max = name.startswith("max_pool")
    if not is_max and not name.startswith("avg_pool"):
        return f"{name} is not supported"
    call = bind(_MAX if is_max else _AVG, args, kwargs)
    if call.get("ceil_mode"):
        return "it rounds its size up"
    if is_max and set(per_axis(call.get("dilation") or 1, size)) != {1}:
        return "its window is dilated"
    if is_max and call.get("return_indices"):
        return "it returns indices"
    kernel = per_axis(call["kernel_size"], size)
    padding = per_axis(call.get("padding") or 0, size)
    issue = ""
    if not is_max and any(padding) and call.get("count_include_pad") is False:
        issue = "its divisor differs at the border (count_include_pad=False)"
    elif not is_max and call.get("divisor_override") is not None:
        issue = "it has a divisor_override"
    return PoolArgs(
        is_max=is_max,
        size=tuple(size),
        kernel=kernel,
        stride=per_axis(call.get("stride") or kernel, size),
        padding=padding,
        divisor_issue=issue,
    )


def global_pool(size: Sequence[int]) -> PoolArgs:
    """Return the mean over all positions."""
    whole = tuple(size)
    ones, zeros = (1,) * len(whole), (0,) * len(whole)
    return PoolArgs(
        is_max=False, size=whole, kernel=whole, stride=ones, padding=zeros, is_global=True
    )


def bind(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def per_axis(value: int | Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """Repeat a number for every axis; return a sequence unchanged."""
    if isinstance(value, int):
        return (value,) * len(size)
    return tuple(value) * (len(size) if len(value) == 1 else 1)


def _adaptive_pool(cells: Any, size: Sequence[int]) -> PoolArgs | str:
    """Read an adaptive pool: equal cells are an average pool of fixed size."""
    given: tuple[int | None, ...] = (cells,) * len(size) if isinstance(cells, int) else tuple(cells)
    counts = [whole if n is None else n for n, whole in zip(given, size, strict=True)]
    if any(whole % n for n, whole in zip(counts, size, strict=True)):
        return (
            f"{'x'.join(map(str, size))} is cut into {'x'.join(map(str, counts))} cells of unequal "
            f"size; choose a number of cells that divides the size"
        )
    kernel = tuple(whole // n for n, whole in zip(counts, size, strict=True))
    return PoolArgs(
        is_max=False,
        size=tuple(size),
        kernel=kernel,
        stride=kernel,
        padding=(0,) * len(kernel),
        is_global=set(counts) == {1},
    )
