"""Reading torch's pooling modules and calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


@dataclass(frozen=True, kw_only=True)
class PoolArgs:
    """What a pool looks at."""

    is_max: bool
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


def read_pool(
    module: nn.Module | None,
    name: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    space: tuple[int, ...],
) -> PoolArgs | str:
    """Read a pool; a string says why it is none that a lowered network has.

    Args:
        module: the pool, if it is one; None if a function is called.
        name: of the class or the function.
        args: of the function, behind the tensor.
        kwargs: of the function.
        space: height and width of what it reads.
    """
    if isinstance(module, nn.AdaptiveAvgPool2d) or name == "adaptive_avg_pool2d":
        given = args[0] if args else kwargs.get("output_size")
        return _cells(module.output_size if module is not None else given, space)
    names = _AVG if "vg" in (type(module).__name__ if module else name) else _MAX
    if module is not None:
        call: dict[str, Any] = {key: getattr(module, key, None) for key in names}
    else:
        call = {**dict(zip(names, args, strict=False)), **kwargs}
    is_max = names is _MAX
    kernel = _pair(call["kernel_size"])
    stride, padding = _pair(call.get("stride") or kernel), _pair(call.get("padding") or 0)
    if call.get("ceil_mode"):
        return "it rounds its size up"
    if is_max and _pair(call.get("dilation") or 1) != (1, 1):
        return "its window has holes"
    if is_max and call.get("return_indices"):
        return "it returns indices"
    counts_padding = call.get("count_include_pad")
    if not is_max and padding != (0, 0) and counts_padding is False:
        return "its divisor differs at the border (count_include_pad=False)"
    if not is_max and call.get("divisor_override") is not None:
        return "it divides by a number of its own"
    return PoolArgs(is_max=is_max, kernel=kernel, stride=stride, padding=padding)


def global_pool(space: tuple[int, ...]) -> PoolArgs:
    """Return the window of a mean over all of the space."""
    return PoolArgs(is_max=False, kernel=_pair(space))


def _cells(cells: Any, space: tuple[int, ...]) -> PoolArgs | str:
    """Read an adaptive pool: equal cells are an average pool of fixed size."""
    asked: tuple[int | None, ...] = (cells, cells) if isinstance(cells, int) else tuple(cells)
    wanted = [size if n is None else n for n, size in zip(asked, space, strict=True)]
    if any(size % n for n, size in zip(wanted, space, strict=True)):
        shape = "x".join(map(str, space))
        return (
            f"{shape} is cut into {'x'.join(map(str, wanted))} cells of unequal size; choose a "
            f"number of cells that divides the size"
        )
    size = _pair([whole // n for n, whole in zip(wanted, space, strict=True)])
    return PoolArgs(is_max=False, kernel=size, stride=size)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else cast(tuple[int, int], tuple(value))
