"""Optional chapters of a report: groups, fleets, sessions, sampled curves, a warm-up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from blockmgr import FullAttention, RecurrentState, SlidingWindow
from blockmgr.explain import MissReason
from blockmgr.lab.fleets import fleets
from blockmgr.lab.hints import sessions_of
from blockmgr.lab.models import Model
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.study import full_attention, parse_capacities
from blockmgr.lab.trace import Trace
from blockmgr.lab.workloads import generate
from tests.lab.test_page import Page

page = pytest.importorskip("blockmgr.lab.page", reason="needs matplotlib", exc_type=ImportError)
[THIRD] = parse_capacities("30%")
GROUPS = (FullAttention(), SlidingWindow(64), RecurrentState())
GROUPED = ReplayConfig(block_size=32, groups=GROUPS)
MODEL = Model(name="small", groups=GROUPS, bytes_per_token=1024, block_size=32)
ROUTERS = ("round-robin", "session")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate("few-shot", 3, requests=120)


@pytest.fixture(scope="module")
def grouped(trace: Trace) -> page.Report:
    sizes = parse_capacities("30%,60%")
    extent = page.Extent(model=MODEL)
    return gathered(trace, GROUPED, extent, capacities=sizes, policies=("lru", "lfuda"))


@pytest.fixture(scope="module")
def fleet(trace: Trace) -> page.Report:
    return gathered(trace, ReplayConfig(), page.Extent(replicas=(1, 2, 64), routers=ROUTERS))


def gathered(trace: Trace, config: ReplayConfig, extent: Any = None, **more: Any) -> Any:
    """A report on LRU at one pool size."""
    options = {"capacity": THIRD, "capacities": (THIRD,), "policies": ("lru",), **more}
    return page.gather(trace, config, extent=extent, **options)


def data_of(text: str) -> dict[str, Any]:
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
    document: dict[str, Any] = json.loads(data)
    return document


def test_a_page_on_groups_says_what_each_holds_and_what_refused(
    trace: Trace, grouped: page.Report
) -> None:
    text = page.as_html(grouped)
    parsed = Page(text)
    ids = [section["id"] for section in parsed.all("section")]
    assert ids == ["curve", "policies", "misses", "groups"]
    result = replay(trace, grouped.result.num_blocks, GROUPED)
    assert result.by_group is not None
    assert grouped.result.by_group == result.by_group
    refused = result.by_group.refused_tokens
    assert refused > 0
    assert grouped.misses.missed_tokens[MissReason.GROUP] == refused
    [outcome] = [o for o in grouped.outcomes if o.reason is MissReason.GROUP]
    assert (outcome.name, outcome.tokens) == ("refused by RecurrentState()", refused)
    cells = set(parsed.texts["td"])
    for counts in result.by_group.groups:
        assert f"1 x {counts.group}" in cells
        assert f"{counts.used_blocks / result.num_blocks:.2%}" in cells
        assert f"{counts.refused_tokens:,}" in cells
        held = (counts.used_blocks + counts.cached_blocks) * MODEL.bytes_per_block(32)
        assert f"{held / 2**20:,.0f}" in cells
    assert data_of(text)["groups"]["by_capacity"][0]["groups"] == result.by_group.sized(
        MODEL.bytes_per_block(32)
    )


def test_a_page_on_states_has_full_attention_as_its_bound(
    trace: Trace, grouped: page.Report
) -> None:
    bound = full_attention(trace, GROUPED).hit_rate
    assert grouped.bound(THIRD) == bound >= grouped.attainable.hit_rate
    assert f"No pool of any size finds more than {bound:.1%}." in grouped.summary
    text = page.as_html(grouped)
    assert f"<li>full attention alone: {bound:.1%}</li>" in text
    assert "no curve and no optimum" in text


def test_a_page_on_a_fleet_says_what_the_fleets_count(trace: Trace, fleet: page.Report) -> None:
    text = page.as_html(fleet)
    parsed = Page(text)
    assert [section["id"] for section in parsed.all("section")][-1:] == ["fleet"]
    rows = fleets(trace, (1, 2, 64), THIRD, ReplayConfig(), routers=ROUTERS)
    cells = set(parsed.texts["td"])
    for row in rows:
        if row.result is not None:
            assert f"{row.result.hit_rate:.2%}" in cells
            assert f"{row.result.imbalance:.2f}" in cells
            assert f"{row.result.first_token_quantile(0.99):,.0f}" in cells
            assert f"{row.best_hit_rate:.2%}" in cells
    assert [row.result is None for row in rows].count(True) == len(ROUTERS)
    assert "\N{EN DASH}" in cells  # for replicas smaller than the largest request
    alone = rows[0].result
    assert alone is not None
    assert alone.hit_rate == fleet.result.hit_rate
    entries = data_of(text)["fleet"]
    assert [(entry["replicas"], entry["router"]) for entry in entries] == [
        (row.replicas, row.router) for row in rows
    ]


@pytest.fixture(scope="module")
def named() -> Trace:
    """Agents whose sessions the trace names."""
    made = generate("agent", 3)
    made = replace(made, requests=made.requests[:120])
    pairs = zip(made.requests, sessions_of(made, 32), strict=True)
    requests = tuple(replace(request, session=session) for request, session in pairs)
    return Trace("named", requests)


@pytest.mark.parametrize("groups", [(), GROUPS])
def test_a_page_on_sessions_says_what_each_model_of_hints_finds(
    named: Trace, groups: tuple[Any, ...]
) -> None:
    config = replace(GROUPED, groups=groups)
    calls: list[None] = []
    report = gathered(named, config, advance=lambda: calls.append(None))
    assert len(calls) <= page.num_steps(policies=1, capacities=1, sessions=True)
    expected = ["session", "tool", "ended_session", *([] if groups else ["truth"])]
    assert list(report.hinted) == expected
    text = page.as_html(report)
    parsed = Page(text)
    assert "sessions" in [section["id"] for section in parsed.all("section")]
    entries = data_of(text)["sessions"]
    assert [entry["hints"] for entry in entries] == expected
    plain = replay(named, report.result.num_blocks, config).hit_rate
    for entry in entries:
        hinted = replay(named, entry["num_blocks"], replace(config, hints=entry["hints"]))
        assert entry["hit_rate"] == hinted.hit_rate
        gap = entry["gap_closed"]
        assert (gap is None) == bool(groups)
        share = "" if gap is None else f" ({gap:.0%})"
        assert f"{hinted.hit_rate:.2%}{share}" in set(parsed.texts["td"])
    assert groups or entries[2]["hit_rate"] > plain


def test_without_names_of_sessions_a_page_has_no_chapter_on_them(trace: Trace) -> None:
    report = gathered(trace, GROUPED)
    assert report.hinted == {}
    text = page.as_html(report)
    assert 'id="sessions"' not in text
    assert "sessions" not in data_of(text)


@pytest.mark.parametrize("config", [ReplayConfig(), GROUPED])
def test_a_page_after_a_warm_up_counts_the_later_requests(
    trace: Trace, config: ReplayConfig
) -> None:
    report = gathered(trace, config, page.Extent(warmup=40))
    text = page.as_html(report)
    asked = sum(request.num_prompt_tokens for request in trace.requests[40:])
    assert "the first 40 requests fill the pool and are not counted" in text
    assert data_of(text)["warmup_requests"] == 40
    assert data_of(text)["results"][0]["query_tokens"] == asked
    assert sum(outcome.tokens for outcome in report.outcomes) == asked
    assert report.misses.hit_tokens == report.result.hit_tokens
    assert report.result.hit_rate <= report.bound(THIRD)


def test_a_fleet_with_groups_has_no_bound_and_does_not_speak_of_one(trace: Trace) -> None:
    extent = page.Extent(replicas=(1,), routers=("session",))
    for config, bounded in ((ReplayConfig(), True), (GROUPED, False)):
        report = gathered(trace, config, extent)
        [row] = report.fleet
        [only] = row.result.replicas
        assert only.hit_tokens == report.result.hit_tokens
        assert (row.best_hit_rate is not None) is bounded
        assert ("no routing finds more" in page.as_html(report)) is bounded


def test_a_page_on_windows_with_a_fleet_after_a_warm_up_says_what_each_part_counts(
    trace: Trace,
) -> None:
    extent = page.Extent(warmup=10, replicas=(1,), routers=("session",))
    config = replace(GROUPED, groups=GROUPS[:2])
    text = page.as_html(gathered(trace, config, extent))
    assert "The dashed line is what a pool without bounds would find." in text
    assert "All requests are counted here." in text
