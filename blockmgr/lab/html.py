"""A page of charts and tables that needs no other file; each chart is also a table.

Needs the extra ``plot``.
"""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blockmgr.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Sequence

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
except ImportError as error:
    raise MissingExtraError("plot", "drawing a page") from error

__all__ = ["Part", "Table", "page"]

TEMPLATES: Final = Path(__file__).parent / "templates"

# A file name may contain these characters, but they would make a document invalid.
UNWRITABLE: Final = dict.fromkeys(
    (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF),
    "\N{REPLACEMENT CHARACTER}",
)
# The last two end a line of a script, but not of JSON.
IN_SCRIPT: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class Table:
    """The numbers of a chart.

    Attributes:
        caption: Caption of the table.
        headings: One per column.
        rows: Rows as text; the first cell of each is its heading.
    """

    caption: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Part:
    """A chart with its text and its tables.

    Attributes:
        name: Its id on the page.
        heading: Title.
        text: Explanation.
        description: Description for those who do not see the chart.
        picture: The chart as an SVG document.
        tables: The numbers of the chart.
    """

    name: str
    heading: str
    text: str
    description: str
    picture: str
    tables: tuple[Table, ...]

    @property
    def image(self) -> str:
        """The picture as base64."""
        return b64encode(self.picture.encode()).decode()


def page(title: str, *, parts: Sequence[Part], data: object, **more: Any) -> str:
    """A page as text. The same arguments give the same text.

    Args:
        title: Its title, such as a file name with any characters.
        parts: Its charts.
        data: The numbers of the page, for a script element with JSON.
        more: Other parts of the template: ``facts``, ``under``, ``made`` and ``command``.
    """
    text: str = _template().render(title=title, parts=parts, data=script_data(data), **more)
    return text.translate(UNWRITABLE) + "\n"


def script_data(data: object) -> str:
    r"""``data`` as JSON that is safe inside a ``<script>`` of a page.

    Browsers do not decode escapes there, so a tag or the start of a comment in a name would end the
    script too early or too late. Escapes of JSON replace those characters.

    >>> script_data("<!--<script>")
    '"\\u003c!--\\u003cscript\\u003e"'
    """
    return json.dumps(data, sort_keys=True).translate(IN_SCRIPT)


@cache
def _template() -> Any:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html")
