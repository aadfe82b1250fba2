"""Sphinx configuration of the documentation; `make docs` builds it with warnings as errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import generated_pages  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from linumpy import __version__  # noqa: E402

# The tutorial runs commands by their names.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

project = "linumpy"
author = "The linumpy developers"
project_copyright = author
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "images", "_static"]
templates_path: list[str] = []
highlight_language = "none"
smartquotes = False
html_copy_source = False
html_theme = "furo"
html_title = "linumpy"
html_static_path = ["_static"]
html_css_files = ["linumpy.css"]
html_show_sourcelink = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist", "attrs_block"]

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
# Widgets would be fetched from a server.
nb_ipywidgets_js: dict[str, dict[str, str]] = {}

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Result"]
default_role = "literal"


def setup(app: Sphinx) -> None:
    """Fill the pages that are made from the code."""
    app.connect("source-read", generated_pages.fill)
    # Before napoleon (500), which takes the first line of a section of returns for a type.
    app.connect("autodoc-process-docstring", generated_pages.returns_as_text, priority=400)
    app.connect("build-finished", generated_pages.refuse_fetched_parts)
