"""How the pages become a site: Sphinx, MyST and furo, without fetching anything.

sphinx-build -W --keep-going -n docs build/docs
"""

import re
import sys
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from docutils import nodes
from sphinx import addnodes
from torch import nn


class _Noun(type):
    """A noun of lbq.types. At run time many nouns are the same annotation; here each is a type."""

    axes: str

    def __repr__(cls) -> str:
        return f"Tensor [{', '.join(cls.axes.split())}]"


class _Named:
    """Stands for jaxtyping's types, so that signatures show the nouns they are written with."""

    def __class_getitem__(cls, of: tuple[type, str]) -> _Noun:
        return _Noun("Tensor", (), {"axes": of[1], "__module__": "torch"})


sys.modules["jaxtyping"] = SimpleNamespace(Float=_Named, Integer=_Named, Num=_Named)  # type: ignore[assignment]

import lbq  # noqa: E402 -- after the nouns
import lbq.types  # noqa: E402

for _name, _noun in vars(lbq.types).items():
    if isinstance(_noun, _Noun):
        _noun.__name__ = _noun.__qualname__ = _name
        _noun.__module__ = "lbq.types"

project = "lbq"
author = "The lbq maintainers"
copyright = "the lbq maintainers, Apache-2.0"  # noqa: A001 -- Sphinx's name
release = version = lbq.__version__
html_title = f"lbq {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["figures/*.py"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sphinx = False
html_copy_source = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "dollarmath"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 90
napoleon_google_docstring = True
napoleon_numpy_docstring = False
add_module_names = False

# Names of other libraries have no page here, and their inventories would have to be fetched.
nitpick_ignore_regex = [(r"py:.*", r"(?!lbq).*")]

# Types in signatures that have no page: helpers behind the API.
_HIDDEN = (
    "analysis.html_page",
    "data.batch",
    "data.loaders.Item",
    "data.sampler",
    "data.user_data",
    "formats.bundle.container",
    "formats.bundle.manifest",
    "graph.operators.rounding",
    "kernels.scan_interface",
    "ranges",
    "train.checkpoint",
    "train.distributed",
    "train.train_step",
)
nitpick_ignore_regex += [(r"py:class", re.escape(f"lbq.{name}") + ".*") for name in _HIDDEN]

_SHORT, _LONG = 20, 50
"""Characters of a cell that is not broken, and of one that gets room for a sentence."""
_ANYTHING = re.compile(r"\(\*args(: .*)?, \*\*kwargs(: .*)?\)")
_ANNOTATED = re.compile(
    r"~?[\w.]*Annotated\[((?:[^\[\]]|\[[^\[\]]*\])*?), "
    r"[^\[\]]*?(?:Range|Role)\(.*?\)\]"
)
"""A type with its range or role, which the text names."""
_UNREADABLE = re.compile(r"= (?:<[^<>]*(?:<\w+>)?[^<>]*>|Ellipsis\b)")


def show_what_can_be_passed(
    _app: Any,
    what: str,
    _name: str,
    shown: Any,
    _options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str, str | None] | None:
    """Leave out of a signature what tells a reader nothing.

    The ``(*args, **kwargs)`` of a class without a constructor is that of ``nn.Module``, which takes
    nothing, or of a protocol. Defaults such as ``<factory>`` cannot even be parsed.
    """
    if signature is None:
        return None
    signature = _UNREADABLE.sub("= ...", signature)
    while _ANNOTATED.search(signature):  # they are nested
        signature = _ANNOTATED.sub(r"\1", signature)
    if what == "class" and _ANYTHING.fullmatch(signature):
        signature = "()" if issubclass(shown, nn.Module) else ""
    if what == "class" and is_dataclass(shown):
        for each in fields(shown):
            if is_dataclass(each.default):
                signature = signature.replace(
                    repr(each.default), f"{type(each.default).__name__}(...)"
                )
    return signature, returned


def drop_unreadable_values(_app: Any, page: nodes.document) -> None:
    """Leave out values of constants that hold functions, classes or annotations."""
    for value in list(page.findall(addnodes.desc_annotation)):
        if re.match(r" = .*(<(function|class) |typing\.)", value.astext()):
            value.parent.remove(value)


def mark_cells(_app: Any, page: nodes.document) -> None:
    """Say which cells fit on a line and which hold a sentence: pages.css sizes them by it."""
    for cell in page.findall(nodes.entry):
        length = len(cell.astext())
        if length <= _SHORT or length > _LONG:
            cell["classes"].append("short" if length <= _SHORT else "long")


def setup(app: Any) -> None:
    """Register the above."""
    app.connect("autodoc-process-signature", show_what_can_be_passed)
    app.connect("doctree-read", drop_unreadable_values)
    app.connect("doctree-read", mark_cells)
