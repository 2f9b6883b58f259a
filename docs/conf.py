"""Sphinx configuration: MyST pages, docstrings as reference, warnings treated as errors."""

from importlib.metadata import version as _version

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

project = "blockmgr"
author = "The blockmgr authors"
project_copyright = "2026, The blockmgr authors"
release = version = _version("blockmgr")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
    "sphinx_copybutton",
]

# A copied example has neither prompts nor output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

# Typographic quotes and ellipses; command-line options keep their two dashes.
smartquotes_action = "qe"

html_theme = "furo"
html_title = f"blockmgr {version}"
html_copy_source = False
html_show_sourcelink = False
# Furo's own dark style underlines module names like links.
pygments_dark_style = "github-dark"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Tokens": "Tokens"}
python_use_unqualified_type_names = True
# A signature that is too long for a line gets one line for each parameter.
python_maximum_signature_line_length = 88

napoleon_numpy_docstring = False
# Attributes stay a list of the class; autodoc would otherwise describe dataclass fields twice.
napoleon_use_ivar = True
napoleon_custom_sections = [("Leaves", "returns_style"), ("Source", "returns_style")]


def _keep_whole(  # noqa: PLR0917  (the signature is autodoc's)
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    # Napoleon treats the words before a colon as the type of an attribute. Ours are sentences, and
    # an empty comment in front of them leaves no words to treat so.
    if what in {"attribute", "data", "property"}:
        lines[0:0] = ["..", ""]


def _one_dash(app: Sphinx, document: nodes.document) -> None:
    # Sphinx writes two dashes between a parameter and its description.
    for text in list(document.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" \u2013 "))


def _no_empty_line(app: Sphinx, document: nodes.document) -> None:
    # A doctest in Markdown needs an empty line after its output; a reader does not.
    for block in document.findall(nodes.literal_block):
        code = block.astext().rstrip("\n")
        block.rawsource = code  # otherwise it would not be highlighted
        block[:] = [nodes.Text(code)]


def _no_link_to_the_other_sequence(app: Sphinx, document: nodes.document) -> None:
    # ``Sequence[...]`` is the class of the standard library, not ``blockmgr.Sequence``.
    for link in list(document.findall(addnodes.pending_xref)):
        if link["reftarget"] == "Sequence" and _text_after(link).startswith("["):
            link.replace_self(nodes.inline("", "Sequence"))


def _text_after(node: nodes.Node) -> str:
    after = node.next_node(descend=False, siblings=True)
    return after.astext() if after is not None else ""


def setup(app: Sphinx) -> None:
    """Hook into autodoc, before napoleon's own hook, and into source pages."""
    app.connect("autodoc-process-docstring", _keep_whole, priority=400)
    app.connect("doctree-read", _one_dash)
    app.connect("doctree-read", _no_empty_line)
    app.connect("doctree-read", _no_link_to_the_other_sequence)
