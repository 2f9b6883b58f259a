"""A report as one web page: hit rates, their upper bounds, and reasons for misses.

::

    gather(trace, config) ──► Report ──► as_html, save_report ──► a file that needs no other

Needs the extra ``plot``: matplotlib draws the charts, and a Jinja2 template adds text and tables.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from blockmgr import __version__
from blockmgr.errors import MissingExtraError
from blockmgr.files import check_output, replacing
from blockmgr.lab.page.chapters import chapters
from blockmgr.lab.page.facts import Extent, Outcome, Report, gather, num_steps

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
except ImportError as error:
    raise MissingExtraError("plot", "drawing a page") from error

__all__ = [
    "PAGES",
    "Extent",
    "Outcome",
    "Report",
    "as_html",
    "data_of",
    "gather",
    "num_steps",
    "save_report",
    "script_data",
]

PAGES: Final = (".html", ".htm")

MINUTE_MS: Final = 60_000
TEMPLATES: Final = Path(__file__).parent.parent / "templates"

# A file name may contain these characters, but they would make a document invalid.
UNWRITABLE: Final = dict.fromkeys(
    (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF),
    "\N{REPLACEMENT CHARACTER}",
)
# The last two end a line of a script, but not of JSON.
IN_SCRIPT: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def save_report(report: Report, path: str | Path) -> Path:
    """Write a report into an HTML file.

    Raises:
        ValueError: Its name ends in neither ``.html`` nor ``.htm``, there is no such folder, or it
            is a folder or a symbolic link.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    target = check_output(path, suffixes=PAGES)
    with replacing(target) as file:
        file.write(as_html(report).encode())
    return target


def as_html(report: Report) -> str:
    """A report as one page. The same report gives the same text."""
    config = report.config
    made = (
        f"Replayed through blockmgr {__version__}. A request holds its blocks for "
        f"{config.service_ms_per_token} ms for each output token, {config.min_service_ms} ms at "
        "least. Token hit rate is hit tokens over prompt tokens."
    )
    text: str = _template().render(
        title=f"Hit rate of {report.trace}",
        parts=list(chapters(report)),
        data=script_data(data_of(report)),
        facts=_tiles(report),
        under=(_under(report), report.summary),
        made=made,
        command=report.command,
    )
    return text.translate(UNWRITABLE) + "\n"


def _under(report: Report) -> str:
    """The trace of the replay in one line."""
    facts = [
        f"{report.requests:,} requests in {report.span_ms / MINUTE_MS:,.1f} minutes",
        f"{report.attainable.query_tokens:,} prompt tokens",
        f"blocks of {report.config.block_size} tokens",
    ]
    if report.extent.model is not None:
        facts.append(f"model {report.extent.model.name}")
    if report.extent.warmup:
        facts.append(
            f"the first {report.extent.warmup:,} requests fill the pool and are not counted"
        )
    return ", ".join(facts)


def _tiles(report: Report) -> list[tuple[str, str]]:
    """The numbers at the top of the page, by name."""
    row = report.row("lru", report.capacity)
    tiles = [(f"LRU, {row.result.num_blocks:,} blocks", f"{row.result.hit_rate:.1%}")]
    if row.optimum is not None:
        tiles.append(("best order of eviction", f"{row.optimum.hit_rate:.1%}"))
    tiles.append(("unbounded pool", f"{report.attainable.hit_rate:.1%}"))
    if report.full_attention is not None:
        tiles.append(("full attention alone", f"{report.full_attention.hit_rate:.1%}"))
    return [*tiles, ("working set", f"{report.attainable.working_set_blocks:,} blocks")]


def data_of(report: Report) -> dict[str, Any]:
    """The numbers of the page as JSON, without parts that the report does not have."""
    data: dict[str, Any] = {
        "trace": report.trace,
        "command": report.command,
        "version": __version__,
        "block_size": report.config.block_size,
        "attainable_hit_rate": report.attainable.hit_rate,
        "results": [
            {
                "policy": row.policy,
                "capacity": row.capacity.text,
                "num_blocks": row.result.num_blocks,
                "hit_tokens": row.result.hit_tokens,
                "query_tokens": row.result.query_tokens,
                "optimum_hit_tokens": None if row.optimum is None else row.optimum.hit_tokens,
            }
            for row in report.sweep.rows
        ],
        "outcomes": {outcome.name: outcome.tokens for outcome in report.outcomes},
    }
    if report.extent.warmup:
        data["warmup_requests"] = report.extent.warmup
    if report.config.groups:
        data["groups"] = _groups_data(report)
    if report.fleet:
        data["fleet"] = [row.as_plain for row in report.fleet]
    if report.hinted:
        data["sessions"] = [
            {
                "hints": name,
                "capacity": row.capacity.text,
                "num_blocks": row.result.num_blocks,
                "hit_rate": row.result.hit_rate,
                "gap_closed": row.gap_closed,
            }
            for name, rows in report.hinted.items()
            for row in rows
        ]
    if report.tiered:
        data["tiers"] = [
            {"capacity": row.capacity.text, **row.result.as_plain} for row in report.tiered
        ]
    return data


def _groups_data(report: Report) -> dict[str, Any]:
    model, size = report.extent.model, report.config.block_size
    rows = []
    for capacity in report.capacities:
        counted = report.row("lru", capacity).result.by_group
        assert counted is not None
        groups = (
            [asdict(group) for group in counted.groups]
            if model is None
            else counted.sized(model.bytes_per_block(size))
        )
        rows.append({"capacity": capacity.text, "groups": groups})
    alone = report.full_attention
    return {
        "by_capacity": rows,
        "full_attention_hit_rate": None if alone is None else alone.hit_rate,
        "model": None if model is None else model.as_plain(size),
    }


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
