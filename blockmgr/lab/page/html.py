"""A report as a self-contained web page.

The page is complete without its script. With it, pointing at a place of a chart, or moving to it
with the arrow keys, shows a note. Every chart is also a table. Templates next to this module define
the page, and matplotlib draws its charts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from blockmgr import __version__
from blockmgr.lab.block_map.shapes import script_data, writable
from blockmgr.lab.block_map.style import FONT
from blockmgr.lab.page.chapters import chapters
from blockmgr.lab.page.group_chapters import groups_data
from blockmgr.lab.page.paint import Drawing, as_drawing, style_rules
from blockmgr.lab.page.session_chapter import sessions_data
from blockmgr.lab.page.tier_chapter import tiers_data
from blockmgr.lab.page.words import duration

if TYPE_CHECKING:
    from blockmgr.lab.page.chapter import Chapter
    from blockmgr.lab.page.facts import Report
    from blockmgr.lab.replay import ReplayConfig

__all__ = ["as_html", "data_of"]

TEMPLATES: Final = Path(__file__).parent / "templates"
WIDE: Final = 860
NARROW: Final = 358
# Places with a note: as large as a fingertip if there is room.
REACH: Final = 10
RING: Final = 7


@dataclass(frozen=True, slots=True)
class _Tile:
    """A number at the top of a page."""

    name: str
    value: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class _Part:
    """A chapter, and its chart for wide and for narrow windows."""

    chapter: Chapter
    drawings: tuple[tuple[str, Drawing], ...]


def as_html(report: Report) -> str:
    """A report as one page. The same report gives the same text."""
    text = (
        _templates()
        .get_template("report.html")
        .render(
            colours=style_rules(),
            command=report.command,
            data=script_data(data_of(report)),
            font=FONT,
            made=_made(report.config),
            parts=[_part(report, chapter) for chapter in chapters(report)],
            reach=REACH,
            ring=RING,
            summary=report.summary,
            tiles=_tiles(report),
            title=f"Hit rate of {report.trace}",
            under=_under(report),
        )
    )
    # A file name may contain characters that are invalid in documents.
    return writable(text) + "\n"


@cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _made(config: ReplayConfig) -> str:
    """The config of the replay in one line."""
    return (
        f"Replayed through blockmgr {__version__}. A request holds its blocks for "
        f"{config.service_ms_per_token} ms for each output token, {config.min_service_ms} ms at "
        "least. Token hit rate is hit tokens over prompt tokens."
    )


def _under(report: Report) -> str:
    """The trace of the replay in one line."""
    facts = [
        f"{report.requests:,} requests in {duration(report.span_ms)}",
        f"{report.attainable.query_tokens:,} prompt tokens",
        f"blocks of {report.config.block_size} tokens",
    ]
    if report.model is not None:
        facts.append(f"model {report.model.name}")
    if report.warmup:
        facts.append(f"the first {report.warmup:,} requests fill the pool and are not counted")
    return ", ".join(facts)


def _tiles(report: Report) -> list[_Tile]:
    row = report.row("lru", report.capacity)
    tiles = [_Tile(f"LRU, {row.result.num_blocks:,} blocks", f"{row.result.hit_rate:.1%}", "lru")]
    if row.optimum is not None:
        tiles.append(_Tile("best order of eviction", f"{row.optimum.hit_rate:.1%}", "optimum"))
    tiles.append(_Tile("unbounded pool", f"{report.attainable.hit_rate:.1%}", "ceiling"))
    if report.full_attention is not None:
        tiles.append(_Tile("full attention alone", f"{report.full_attention.hit_rate:.1%}"))
    return [*tiles, _Tile("working set", f"{report.attainable.working_set_blocks:,}")]


def _part(report: Report, chapter: Chapter) -> _Part:
    drawings = []
    for kind, width, height in (("wide", WIDE, chapter.height), ("narrow", NARROW, chapter.tall)):
        draw = partial(chapter.draw, report, narrow=kind == "narrow")
        drawings.append((kind, as_drawing(f"{chapter.name}-{kind}", (width, height), draw)))
    return _Part(chapter, tuple(drawings))


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
    if report.warmup:
        data["warmup_requests"] = report.warmup
    if report.curve is not None and report.curve.hit_rate_errors is not None:
        data["curve_sampling_rate"] = report.curve.sampling_rate
    if report.config.groups:
        data["groups"] = groups_data(report)
    if report.fleet:
        data["fleet"] = [row.as_plain for row in report.fleet]
    if report.hinted:
        data["sessions"] = sessions_data(report)
    if report.tiered:
        data["tiers"] = tiers_data(report)
    return data
