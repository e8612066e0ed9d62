"""Reading torch's pooling modules and calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


@dataclass(frozen=True, kw_only=True)
class Window:
    """What a pool looks at; ``kernel`` None means everything."""

    is_max: bool
    kernel: tuple[int, int] | None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


def read_pool(
    module: nn.Module | None, name: str, args: Sequence[Any], kwargs: dict[str, Any]
) -> Window | str:
    """Read a pool; a string says why it is none that a lowered network has."""
    if isinstance(module, nn.AdaptiveAvgPool2d) or name == "adaptive_avg_pool2d":
        cells = module.output_size if isinstance(module, nn.AdaptiveAvgPool2d) else args[0]
        is_global = _pair(cells) == (1, 1)
        return Window(is_max=False, kernel=None) if is_global else f"{cells} cells of unequal size"
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
    return Window(is_max=is_max, kernel=kernel, stride=stride, padding=padding)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else cast(tuple[int, int], tuple(value))
