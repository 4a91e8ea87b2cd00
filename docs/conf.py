"""Configuration of Sphinx for `make docs`. Guides are Markdown, the reference comes from docstrings."""

import importlib
import os
import re
from pathlib import Path

from pydantic import BaseModel

import paceline

# At its first import, Airflow writes a configuration file: keep it out of the user's home.
os.environ["AIRFLOW_HOME"] = str(Path(__file__).parents[1] / "build" / "docs-airflow")
# autodoc sets TYPE_CHECKING when it imports modules, which breaks pydantic models: import the packages before.
MODULES = ["operators", "sensors", "train", "contract", "fleet", "drift", "registry", "allocate", "profiles", "elastic"]
for name in MODULES:
    importlib.import_module(f"paceline.{name}")

project = "Paceline"
author = "the Paceline authors"
copyright = author
release = version = paceline.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
    "sphinxcontrib.programoutput",
]
exclude_patterns = ["dashboards"]

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 100
autodoc_default_options = {"exclude-members": "__init__, __new__, model_config"}
napoleon_numpy_docstring, napoleon_google_docstring = True, False
napoleon_use_rtype = False

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

# The site works without a network: `make docs` has downloaded the diagram library.
mermaid_use_local = "mermaid.esm.min.mjs"
html_static_path = ["../build/mermaid/dist"]
mermaid_fullscreen = False
mermaid_height = "auto"


def add_dark_pictures(app, page, source):
    """Add the dark version of each picture that has one; the site shows the one of the reader's theme."""
    themed = r"![\1](\2-light.png){.only-light}\n![\1](\2-dark.png){.only-dark}"
    source[0] = re.sub(r"!\[(.*?)\]\((\S+)-light\.png\)", themed, source[0])


def hide_signature(app, what, name, documented, options, signature, returns):
    """Hide the signature of a pydantic model, whose fields follow, and of a protocol, which has no constructor."""
    hides = what == "class" and (issubclass(documented, BaseModel) or getattr(documented, "_is_protocol", False))
    return ("", None) if hides else None


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-signature", hide_signature)
    app.connect("source-read", add_dark_pictures)


html_theme = "furo"
html_title = f"Paceline {release}"
html_copy_source = html_show_sourcelink = False
html_theme_options = {
    "source_repository": "https://github.com/paceline/airflow-paceline/",
    "source_branch": "main",
    "source_directory": "docs/",
}
