"""The report page: the numbers of the results, accessible, in one self-contained file."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from blockmgr.explain import MissReason
from blockmgr.lab.misses import misses
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.trace import Trace
from blockmgr.lab.workloads import generate

page = pytest.importorskip("blockmgr.lab.page", reason="needs matplotlib", exc_type=ImportError)
from blockmgr.lab.page.facts import MEANINGS  # noqa: E402  (imports matplotlib as well)

[TENTH] = parse_capacities("10%")
SIZES = parse_capacities("5%,10%,40%")
CONFIG = ReplayConfig(block_size=16)
VOID = {"meta", "br", "img", "link", "input", "hr"}


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
    assert not re.findall(r"https?:|@import|url\(", text)
    for tag, attributes in parsed.tags:
        assert (attributes.get("href") or "#").startswith("#"), tag
        inside = "data:image/svg+xml;base64,"
        assert str(attributes.get("src", inside)).startswith(inside)


def test_every_reference_inside_the_page_has_one_target(parsed: Page) -> None:
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [str(attributes["href"]) for attributes in parsed.all("a")]
    assert len(links) == 3
    assert {link.removeprefix("#") for link in links} <= set(ids)


def test_headings_go_down_one_level_at_a_time_and_there_is_one_h1(parsed: Page) -> None:
    levels = [int(tag[1]) for tag, _ in parsed.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert len(levels) == 1 + 3


def test_every_chart_has_a_description_and_a_table(parsed: Page, text: str) -> None:
    charts = parsed.all("img")
    assert len(charts) == 3
    assert all(str(chart["alt"]).strip() for chart in charts)
    sections = re.findall(r"<section.*?</section>", text, flags=re.DOTALL)
    assert len(sections) == 3
    assert all("<table>" in section for section in sections)
    assert all(words.strip() for words in parsed.texts["caption"])
    assert {cell.get("scope") for cell in parsed.all("th")} == {"row", "col"}


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
    assert found.tokens == report.result.hit_tokens
    assert found.reason is None
    assert all(outcome.tokens > 0 for outcome in missed)
    assert len(missed) > 2
    assert missed[0].reason is MissReason.EVICTED


def test_reasons_are_those_that_explain_gives(trace: Trace, report: page.Report) -> None:
    table = misses(trace, report.result.num_blocks, CONFIG)
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
    cells = Page(page.as_html(changed)).texts["td"]
    assert "9.09%" in cells


def test_every_reason_has_its_meaning() -> None:
    assert set(MEANINGS) == set(MissReason)


def test_so_many_more_blocks_save_what_the_page_says(trace: Trace) -> None:
    config = ReplayConfig(block_size=16, min_service_ms=0, service_ms_per_token=0)
    report = page.gather(trace, config, capacity=TENTH, policies=("lru",), capacities=[TENTH])
    text = page.as_html(report)
    [said] = re.findall(
        r"([\d,]+) more blocks would have saved half of it \([\d,]+ tokens\), ", text
    )
    [every] = re.findall(r"tokens\), ([\d,]+) all of it", text)
    before = report.result
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
    assert any(fact.endswith(f": {rate}") for fact in parsed.texts["li"])
    assert report.summary in parsed.texts["p"]
    assert f"{report.attainable.hit_rate:.1%}" in report.summary


def test_the_command_is_on_the_page_as_it_was(parsed: Page) -> None:
    assert parsed.texts["code"] == ["blockmgr report chat <&></script>"]


def test_lru_alone_makes_a_page_without_a_comparison(trace: Trace) -> None:
    report = page.gather(trace, CONFIG, capacity=TENTH, policies=("lru",), capacities=SIZES)
    assert len(Page(page.as_html(report)).all("section")) == 2


def test_a_pool_that_evicts_nothing_makes_a_page(trace: Trace) -> None:
    [ample] = parse_capacities("100%")
    report = page.gather(trace, CONFIG, capacity=ample, policies=("arc",), capacities=(ample,))
    assert "would have saved" not in page.as_html(report)
    assert not report.result.evictions


def test_default_capacities_leave_out_what_no_request_fits() -> None:
    trace = generate("agent", 1, agents=4)
    report = page.gather(trace, CONFIG, capacity=parse_capacities("60%")[0], policies=("lru",))
    assert [size.text for size in report.capacities][-2:] == ["50%", "60%"]
    assert not any(row.result.rejected for row in report.sweep.rows)


def test_a_page_elsewhere_than_in_an_html_is_refused(report: page.Report, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.html or \.htm, got 'page\.pdf'"):
        page.save_report(report, tmp_path / "page.pdf")
    with pytest.raises(ValueError, match="folder that exists"):
        page.save_report(report, tmp_path / "no" / "page.html")
    assert not list(tmp_path.iterdir())
