"""Sphinx configuration: MyST pages, docstrings as reference, warnings treated as errors."""

import inspect
import re
from importlib import import_module
from importlib.metadata import version as _version
from importlib.util import find_spec

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

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

# Packages of extras that are described and may not be installed here: autodoc puts stand-ins in
# their place, and signatures are the same.
autodoc_mock_imports = [
    name for name in ("torch", "triton", "transformers", "safetensors") if find_spec(name) is None
]
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


class Contract(SphinxDirective):
    """``.. contract:: module.Class``: its methods on one page, from docstrings.

    For each: its result, its first paragraph with what it leaves behind, and its errors. Headings
    are the comments between the methods, such as ``# Growth.``.
    """

    required_arguments = 1
    _heading = re.compile(r"^    (?:# ([A-Z][\w ,]*)\.|def ([a-z]\w*)\()", re.MULTILINE)
    _section = re.compile(r"^(\w+):\n((?: {4}.*\n|\n)+)", re.MULTILINE)

    def run(self) -> list[nodes.Node]:
        """The tables, and a heading before each."""
        module, _, name = self.arguments[0].rpartition(".")
        described = getattr(import_module(module), name)
        lines: list[str] = []
        for owner in described.__mro__:
            if not owner.__module__.startswith("blockmgr"):
                continue
            for heading, method in self._heading.findall(inspect.getsource(owner)):
                lines += self._head(heading) if heading else self._row(described, method)
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)

    @staticmethod
    def _head(heading: str) -> list[str]:
        options = [":header-rows: 1", ":widths: 22 42 36", ":class: contract"]
        table = [".. list-table::", *(f"   {option}" for option in options), ""]
        columns = ["   * - call", "     - what it does", "     - when it raises"]
        return ["", heading, "-" * len(heading), "", *table, *columns]

    def _row(self, owner: type, method: str) -> list[str]:
        member = inspect.getattr_static(owner, method)
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        text = inspect.getdoc(function) or ""
        found = {
            title: inspect.cleandoc(body) for title, body in self._section.findall(text + "\n")
        }
        result = str(inspect.signature(function).return_annotation)
        does = text.split("\n\n", maxsplit=1)[0].splitlines()
        if "Leaves" in found:
            does += ["", *f"Leaves: {found['Leaves']}".splitlines()]
        path = f"{owner.__module__.partition('.')[0]}.{owner.__name__}.{method}"
        call = f":py:obj:`{method} <{path}>`" + (f" → ``{result}``" if result != "None" else "")
        raises = []
        for line in found.get("Raises", "").splitlines():
            error, colon, when = line.partition(": ")
            starts = bool(colon) and not line.startswith(" ")
            raises.append(f"* ``{error}``: {when}" if starts else f"  {line.strip()}")
        cells = [[call], does, raises or ["\N{EN DASH}"]]
        rows = [
            [f"     {'- ' if not i else '  '}{line}" for i, line in enumerate(c)] for c in cells
        ]
        rows[0][0] = rows[0][0].replace("     - ", "   * - ", 1)
        return [line for cell in rows for line in cell]


def setup(app: Sphinx) -> None:
    """Hook into autodoc, before napoleon's own hook, and into source pages."""
    app.add_directive("contract", Contract)
    app.connect("autodoc-process-docstring", _keep_whole, priority=400)
    app.connect("doctree-read", _one_dash)
    app.connect("doctree-read", _no_empty_line)
    app.connect("doctree-read", _no_link_to_the_other_sequence)
