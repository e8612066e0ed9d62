"""How the pages become a site: Sphinx, MyST and furo, without fetching anything.

sphinx-build -W --keep-going -n docs build/docs
"""

import re
from typing import Any

import lbq

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
    "formats.container",
    "formats.manifest",
    "kernels.scan_interface",
    "train.checkpoint",
    "train.distributed",
    "train.train_step",
)
nitpick_ignore_regex += [(r"py:class", re.escape(f"lbq.{name}") + ".*") for name in _HIDDEN]

_SHAPED = re.compile(r"""~?(?:jaxtyping|typing)\.\w+\[[~.\w]*Tensor, (['"])[^'"]*\1\]""")


def shorten_tensors(
    _app: Any, _what: str, _name: str, _object: Any, _options: Any, signature: str, returned: str
) -> tuple[str, str]:
    """Write Tensor in signatures: axis names read badly outside of the code."""
    return signature and _SHAPED.sub("Tensor", signature), returned and _SHAPED.sub(
        "Tensor", returned
    )


def setup(app: Any) -> None:
    """Register the above."""
    app.connect("autodoc-process-signature", shorten_tensors)
