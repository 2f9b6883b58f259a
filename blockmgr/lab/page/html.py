"""A report as a web page that needs no other file.

Without its script the page is complete. With it, pointing at a place of a chart, or moving to it
with the arrow keys, says what it stands for. Every chart is a table as well.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from blockmgr import __version__
from blockmgr.lab.block_map.shapes import add, document, script_data
from blockmgr.lab.page.chapters import Chapter, chapters
from blockmgr.lab.page.look import PAGE_RULES, SCRIPT
from blockmgr.lab.page.paint import Drawing, as_drawing, style_rules
from blockmgr.lab.page.words import duration

if TYPE_CHECKING:
    from blockmgr.lab.page.facts import Report

__all__ = ["as_html", "data_of"]

WIDE: Final = 860
NARROW: Final = 358
# Places that speak: as large as a finger where there is room.
REACH: Final = 10
RING: Final = 7


def as_html(report: Report) -> str:
    """A report as one page. The same report gives the same text."""
    title = f"Hit rate of {report.trace}"
    root = ET.Element("html", {"lang": "en"})
    head = add(root, "head")
    add(head, "meta", charset="utf-8")
    add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    add(head, "title", title)
    add(head, "style", "\n" + style_rules() + PAGE_RULES)
    body = add(root, "body")
    add(body, "a", "Skip to the charts", class_="skip", href="#charts")
    parts = chapters(report)
    _add_header(body, report, title, parts)
    main = add(body, "main", id="charts")
    for chapter in parts:
        _add_chapter(main, report, chapter)
    _add_footer(body, report)
    # What a screen reader says of a point is its label; this is for the eye.
    add(body, "div", "", id="told", aria_hidden="true", hidden="hidden")
    add(body, "script", script_data(data_of(report)), type="application/json", id="data")
    add(body, "script", SCRIPT)
    return document(root, html=True)


def _add_header(body: ET.Element, report: Report, title: str, parts: tuple[Chapter, ...]) -> None:
    header = add(body, "header")
    add(header, "h1", title)
    facts = (
        f"{report.requests:,} requests in {duration(report.span_ms)}, "
        f"{report.attainable.query_tokens:,} prompt tokens, "
        f"blocks of {report.config.block_size} tokens"
    )
    add(header, "p", facts, class_="under")
    add(header, "p", report.summary, class_="summary")
    tiles = add(header, "dl", class_="tiles")
    row = report.row("lru", report.capacity)
    for name, rate, look in (
        (f"LRU, {row.result.num_blocks:,} blocks", row.result.hit_rate, "lru"),
        ("best order of eviction", row.best.hit_rate, "optimum"),
        ("unbounded pool", report.attainable.hit_rate, "ceiling"),
    ):
        tile = add(tiles, "div")
        add(tile, "dt", name)
        add(tile, "dd", f"{rate:.1%}", class_=look)
    tile = add(tiles, "div")
    add(tile, "dt", "working set")
    add(tile, "dd", f"{report.attainable.working_set_blocks:,}")
    links = add(add(header, "nav", aria_label="Charts"), "ul")
    for chapter in parts:
        add(add(links, "li"), "a", chapter.heading, href=f"#{chapter.name}")


def _add_chapter(main: ET.Element, report: Report, chapter: Chapter) -> None:
    section = add(main, "section", id=chapter.name, aria_labelledby=f"{chapter.name}-heading")
    add(section, "h2", chapter.heading, id=f"{chapter.name}-heading")
    add(section, "p", chapter.text)
    shown = add(section, "figure")
    for kind, width, height in (("wide", WIDE, chapter.height), ("narrow", NARROW, chapter.tall)):
        name = f"{chapter.name}-{kind}"
        draw = partial(chapter.draw, report, narrow=kind == "narrow")
        drawing = as_drawing(name, (width, height), draw)
        _add_drawing(shown, name, kind, drawing, chapter)
    for table in chapter.tables:
        details = add(section, "details")
        add(details, "summary", f"{table.caption}, as a table")
        region = f"{table.caption}, as a table"
        scroll = add(details, "div", class_="scroll", tabindex=0, role="region", aria_label=region)
        drawn = add(scroll, "table")
        add(drawn, "caption", table.caption)
        line = add(add(drawn, "thead"), "tr")
        for heading in table.headings:
            add(line, "th", heading, scope="col")
        rows = add(drawn, "tbody")
        for cells in table.rows:
            line = add(rows, "tr")
            add(line, "th", cells[0], scope="row")
            for cell in cells[1:]:
                add(line, "td", cell)


def _add_drawing(
    shown: ET.Element, name: str, kind: str, drawing: Drawing, chapter: Chapter
) -> None:
    svg = add(
        shown,
        "svg",
        viewBox=f"0 0 {drawing.width:g} {drawing.height:g}",
        class_=f"chart {kind}",
        role="group",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-desc",
    )
    # A desc rather than a title for the words, so that pointing at the chart shows no tooltip of
    # the browser's beside that of the page.
    add(svg, "title", chapter.heading, id=f"{name}-title")
    add(svg, "desc", chapter.description, id=f"{name}-desc")
    svg.append(drawing.shapes)
    for point in drawing.points:
        place = {"cx": f"{point.x:.1f}", "cy": f"{point.y:.1f}"}
        add(
            svg,
            "circle",
            class_="point",
            r=REACH,
            role="img",
            tabindex=-1,
            aria_label=point.text,
            **place,
        )
        add(svg, "circle", class_="ring", r=RING, aria_hidden="true", **place)


def _add_footer(body: ET.Element, report: Report) -> None:
    footer = add(body, "footer")
    config = report.config
    add(
        footer,
        "p",
        f"Replayed through blockmgr {__version__}. A request holds its blocks for "
        f"{config.service_ms_per_token} ms for each output token, {config.min_service_ms} ms at "
        "least. Token hit rate is hit tokens over prompt tokens.",
    )
    if report.command:
        line = add(footer, "p", "Made by ")
        add(line, "code", report.command)


def data_of(report: Report) -> dict[str, object]:
    """The numbers of the page, for other tools."""
    return {
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
                "optimum_hit_tokens": row.best.hit_tokens,
            }
            for row in report.sweep.rows
        ],
        "outcomes": {outcome.name: outcome.tokens for outcome in report.outcomes},
    }
