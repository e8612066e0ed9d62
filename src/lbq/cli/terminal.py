"""Print text on terminals; control characters are shown, not executed.

Every command prints through :class:`Console`; logs and warnings go through :func:`write_messages`.
"""

import logging
import re
import warnings
from collections.abc import Iterable

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
"""Characters that move the cursor, change the terminal or reorder text; not tab and newline."""

_format_warning = warnings.formatwarning


def printable(text: str) -> str:
    r"""Replace control characters by Python's names for them: ``\x1b`` for escape."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def one_line(text: str) -> str:
    r"""Replace line breaks and tabs as well: ``\n`` for a new line."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


class Console(RichConsole):
    """rich's console, with control characters in texts made visible."""

    def print_text(self, text: str) -> None:
        """Print a text unchanged, without markup and colours."""
        self.print(text, markup=False, highlight=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render, and make control characters visible."""
        for segment in super().render(renderable, options):
            if segment.control is None and _CONTROL.search(segment.text):
                yield Segment(printable(segment.text), segment.style)
            else:
                yield segment


def write_messages() -> None:
    """Write this library's log and Python's warnings to the standard error.

    Other libraries write their own logs: a handler for all of them would repeat every line.
    """
    handler = logging.StreamHandler()  # on the standard error of this call
    handler.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    logging.getLogger("lbq").handlers = [handler]
    warnings.formatwarning = _format_printable


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _format_printable(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    return printable(_format_warning(message, category, filename, lineno, line))
