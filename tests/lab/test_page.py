"""The report page: the numbers of the results, accessible, in one self-contained file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from blockmgr.explain import MissReason
from blockmgr.lab.misses import misses
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.trace import Trace
from blockmgr.lab.workloads import generate

page = pytest.importorskip("blockmgr.lab.page", reason="needs matplotlib", exc_type=ImportError)
# These import matplotlib as well.
from blockmgr.lab.page.bands import pool_bands  # noqa: E402
from blockmgr.lab.page.charts import draw_pool  # noqa: E402
from blockmgr.lab.page.facts import MEANINGS  # noqa: E402
from blockmgr.lab.page.paint import DARK, LIGHT, figure  # noqa: E402
from blockmgr.lab.page.words import BINS_MS, binned  # noqa: E402

[TENTH] = parse_capacities("10%")
SIZES = parse_capacities("5%,10%,40%")
CONFIG = ReplayConfig(block_size=16)
VOID = {"meta", "br", "img", "link", "input", "hr"}
DRAWN = {"path", "use", "circle", "rect", "g", "text", "tspan", "svg", "title", "desc"}


class Page(HTMLParser):
    """Tags in order with their attributes, and the text inside each tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        assert self.open == [], "every tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate("chat", 3, conversations=60)


@pytest.fixture(scope="module")
def report(trace: Trace) -> page.Report:
    found = page.gather(trace, CONFIG, capacity=TENTH, policies=("lru", "arc"), capacities=SIZES)
    return replace(found, command="blockmgr report chat <&></script>")


@pytest.fixture(scope="module")
def text(report: page.Report) -> str:
    return page.as_html(report)


@pytest.fixture(scope="module")
def parsed(text: str) -> Page:
    return Page(text)


def test_the_same_report_gives_the_same_page(report: page.Report, text: str) -> None:
    assert page.as_html(report) == text


def test_the_page_names_no_other_file_and_no_host(parsed: Page, text: str) -> None:
    assert not re.findall(r"https?:|//[a-z]|@import|src=", text)
    for tag, attributes in parsed.tags:
        for name in ("href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith("#"), tag
    assert set(re.findall(r"url\(([^)]*)\)", text)) == set(re.findall(r"url\((#[^)]*)\)", text))


def test_every_reference_inside_the_page_has_one_target(parsed: Page, text: str) -> None:
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = set(re.findall(r"url\(#([^)]*)\)", text))
    for _, attributes in parsed.tags:
        for name in ("aria-labelledby", "aria-describedby"):
            wanted |= set((attributes.get(name) or "").split())
        if (attributes.get("href") or "").startswith("#"):
            wanted.add(str(attributes["href"])[1:])
    assert wanted <= set(ids)


def test_headings_go_down_one_level_at_a_time_and_there_is_one_h1(parsed: Page) -> None:
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert len(levels) == 1 + 6


def test_every_chart_has_a_name_a_description_and_a_table(parsed: Page, text: str) -> None:
    charts = parsed.all("svg")
    assert len(charts) == 2 * 6
    for chart in charts:
        assert chart["aria-labelledby"]
        assert chart["aria-describedby"]
        assert chart["role"] == "group"
    assert all(words.strip() for words in parsed.texts["title"] + parsed.texts["desc"])
    sections = re.findall(r"<section.*?</section>", text, flags=re.DOTALL)
    assert len(sections) == 6
    assert all("<table>" in section for section in sections)
    assert all(words.strip() for words in parsed.texts["caption"])
    assert {cell.get("scope") for cell in parsed.all("th")} == {"row", "col"}


def test_every_place_that_speaks_can_be_reached_and_says_a_number(parsed: Page) -> None:
    points = [a for a in parsed.all("circle") if a["class"] == "point"]
    assert len(points) > 40
    for point in points:
        assert point["role"] == "img"
        assert point["tabindex"] == "-1"
        assert re.search(r"\d", str(point["aria-label"]))


def test_places_that_speak_lie_on_the_drawing(parsed: Page) -> None:
    width = height = 0.0
    for tag, attributes in parsed.tags:
        if tag == "svg":
            width, height = (float(v) for v in str(attributes["viewbox"]).split()[2:])
        elif tag == "circle":
            assert 0 <= float(str(attributes["cx"])) <= width
            assert 0 <= float(str(attributes["cy"])) <= height


def test_drawings_take_every_colour_from_the_page(text: str) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert set(re.findall(r"(?:fill|stroke): ?([^;\"]+)", drawings)) <= {
        "none",
        *(f"var(--{role})" for role in LIGHT),
    }
    assert LIGHT.keys() == DARK.keys()
    assert "prefers-color-scheme: dark" in text
    assert "prefers-reduced-motion" in text
    assert "@media print" in text


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("palette", [LIGHT, DARK])
@pytest.mark.parametrize("role", ["ink", "quiet", "lru", "optimum", "unused"])
def test_text_can_be_read_on_the_paper(palette: dict[str, str], role: str) -> None:
    low, high = sorted(_luminance(palette[name]) for name in (role, "paper"))
    assert (high + 0.05) / (low + 0.05) >= 4.5


def test_the_data_of_the_page_is_what_replays_count(
    trace: Trace, report: page.Report, text: str
) -> None:
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    document = json.loads(data)
    assert document["command"] == "blockmgr report chat <&></script>"
    assert len(document["results"]) == 2 * len(SIZES)
    for entry in document["results"]:
        config = ReplayConfig(block_size=16, eviction=entry["policy"])
        result = replay(trace, entry["num_blocks"], config)
        assert (entry["hit_tokens"], entry["query_tokens"]) == (
            result.hit_tokens,
            result.query_tokens,
        )


def test_tables_say_the_rates_of_the_results(report: page.Report, parsed: Page) -> None:
    cells = set(parsed.texts["td"])
    for row in report.sweep.rows:
        assert f"{row.result.hit_rate:.2%}" in cells
        assert f"{row.optimum.hit_rate:.2%}" in cells
    for outcome in report.outcomes:
        assert f"{outcome.tokens:,}" in cells


def test_outcomes_add_up_to_all_prompt_tokens(report: page.Report) -> None:
    assert sum(outcome.tokens for outcome in report.outcomes) == report.attainable.query_tokens
    found, *missed = report.outcomes
    assert found.tokens == report.watched.result.hit_tokens
    assert found.reason is None
    assert all(outcome.tokens > 0 for outcome in missed)
    assert len(missed) > 2
    assert missed[0].reason is MissReason.EVICTED


def test_reasons_are_those_that_explain_gives(trace: Trace, report: page.Report) -> None:
    table = misses(trace, report.watched.result.num_blocks, CONFIG)
    found, *missed = report.outcomes
    assert {outcome.reason: outcome.tokens for outcome in missed} == table.missed_tokens
    assert found.tokens == table.hit_tokens


def test_what_was_evicted_stands_before_the_other_reasons_however_little_it_is(
    report: page.Report,
) -> None:
    tokens = {MissReason.LAST_TOKEN: 2, MissReason.EVICTED: 1, MissReason.NEVER_SEEN: 900}
    table = replace(report.misses, hit_tokens=9_000, missed_tokens=tokens)
    changed = replace(report, misses=table)
    names = [outcome.name for outcome in changed.outcomes]
    assert names == ["found", "evicted", "never seen", "last token"]
    text = page.as_html(changed)
    assert "under 0.1%  (1)" in text
    assert "under 0.1%  (2)" in text
    assert "9.1%  (900)" in text


def test_every_reason_has_its_meaning() -> None:
    assert set(MEANINGS) == set(MissReason)


def test_so_many_more_blocks_save_what_the_page_says(trace: Trace) -> None:
    config = ReplayConfig(block_size=16, min_service_ms=0, service_ms_per_token=0)
    report = page.gather(trace, config, capacity=TENTH, policies=("lru",), capacities=[TENTH])
    text = page.as_html(report)
    [said] = re.findall(r"([\d,]+) more blocks would have saved half of it \(\S+ tokens\), ", text)
    [every] = re.findall(r"tokens\), ([\d,]+) all of it", text)
    before = report.watched.result
    for sizes in (said, every):
        more = int(sizes.replace(",", ""))
        larger = replay(trace, before.num_blocks + more, config)
        saved = larger.hit_tokens - before.hit_tokens
        assert saved * 2 >= report.misses.missed_tokens[MissReason.EVICTED]
        cells = (f"{larger.num_blocks:,}", f"{saved:,}", f"{larger.hit_rate:.2%}")
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        assert f'<th scope="row">{more:,}</th>{row}' in text
    # The largest pool finds everything that can be found.
    assert larger.hit_tokens == report.attainable.hit_tokens


def test_the_summary_says_what_the_tiles_say(report: page.Report, parsed: Page) -> None:
    rate = f"{report.row('lru', TENTH).result.hit_rate:.1%}"
    assert rate in report.summary
    assert rate in parsed.texts["dd"]
    assert report.summary in parsed.texts["p"]
    assert f"{report.attainable.hit_rate:.1%}" in report.summary


def test_the_command_is_on_the_page_as_it_was(parsed: Page) -> None:
    assert parsed.texts["code"] == ["blockmgr report chat <&></script>"]


def test_bands_are_the_whole_pool_in_every_frame(report: page.Report) -> None:
    bands = pool_bands(report)
    total = sum(band.blocks for band in bands)
    assert set(total.tolist()) == {report.watched.result.num_blocks}
    assert len({band.role for band in bands}) == len(bands)


def test_every_band_of_the_pool_has_its_name_beside_it(report: page.Report) -> None:
    """Also bands that are thin or empty at the end; labels neither overlap nor stick out."""
    for frames in (report.watched.frames, report.watched.frames[:9]):
        seen = replace(report, watched=replace(report.watched, frames=frames))
        names = [band.name for band in pool_bands(seen) if band.blocks.any()]
        canvas = figure(860, 360)
        draw_pool(seen, canvas, LIGHT.__getitem__, narrow=False)
        [axes] = canvas.axes
        labels = {text.get_text(): text.xy[1] for text in axes.texts if text.get_text() in names}
        assert list(labels) == names
        places = list(labels.values())
        assert all(high - low > 5 for low, high in pairwise(places))
        assert min(places) >= 0
        assert max(places) <= 100


def test_bins_lose_no_time() -> None:
    times = np.array([0, 499, 500, 10**12, 60_000, 59_999])
    counts = binned(times)
    assert counts.sum() == len(times)
    assert counts[0] == 2
    assert counts[-1] == 1
    assert counts[BINS_MS.index(60_000)] == 1


def test_lru_alone_makes_a_page_without_a_comparison(trace: Trace) -> None:
    report = page.gather(trace, CONFIG, capacity=TENTH, policies=("lru",), capacities=SIZES)
    assert len(Page(page.as_html(report)).all("section")) == 5


def test_a_pool_that_evicts_nothing_makes_a_page(trace: Trace) -> None:
    [ample] = parse_capacities("100%")
    report = page.gather(trace, CONFIG, capacity=ample, policies=("arc",), capacities=(ample,))
    text = page.as_html(report)
    assert "nothing was evicted" in text
    assert "would have saved" not in text
    assert not len(report.watched.lifetimes_ms)


def test_default_capacities_leave_out_what_no_request_fits() -> None:
    trace = generate("agent", 1, agents=4)
    report = page.gather(trace, CONFIG, capacity=parse_capacities("60%")[0], policies=("lru",))
    assert [size.text for size in report.capacities][-2:] == ["50%", "60%"]
    assert not any(row.result.rejected for row in report.sweep.rows)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_all_charts_go_into_one_picture(report: page.Report, tmp_path: Path, suffix: str) -> None:
    path = page.save_picture(report, tmp_path / f"all{suffix}")
    start = path.read_bytes()[:2000]
    assert start.startswith(b"\x89PNG\r\n") or b"<svg" in start


def test_a_page_elsewhere_than_in_an_html_is_refused(report: page.Report, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.html or \.htm, got 'page\.pdf'"):
        page.save_report(report, tmp_path / "page.pdf")
    with pytest.raises(ValueError, match="folder that exists"):
        page.save_report(report, tmp_path / "no" / "page.html")
    assert not list(tmp_path.iterdir())
