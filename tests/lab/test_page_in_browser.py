"""The report page in a browser, from a file and without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.workloads import generate
from tests.browser import CHROMIUM, Browser, SilentError

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
page = pytest.importorskip("blockmgr.lab.page", reason="needs matplotlib", exc_type=ImportError)

FOCUSED = "document.activeElement.getAttribute('aria-label')"
TOLD = "document.getElementById('told')"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = parse_capacities("10%,30%")
    report = page.gather(
        generate("chat", 3, conversations=60),
        ReplayConfig(),
        capacity=sizes[0],
        policies=("lru", "arc"),
        capacities=sizes,
    )
    return page.save_report(report, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        begun = Browser()
    except (SilentError, BrokenPipeError) as error:
        pytest.skip(f"Chromium does not start here: {error}")
    with begun as browser:
        yield browser


def pixels(browser: Browser, tmp_path: Path) -> np.ndarray:
    from matplotlib.image import imread

    (tmp_path / "page.png").write_bytes(browser.picture())
    return imread(tmp_path / "page.png")[..., :3]


def test_it_loads_from_a_file_without_a_complaint_or_another_request(
    browser: Browser, saved: Path
) -> None:
    browser.asked.clear()
    browser.open(saved)
    assert browser.run("document.title").startswith("Hit rate of chat")
    assert browser.complaints == []
    assert browser.asked == [saved.as_uri()]


def test_tab_reaches_the_skip_link_first_and_each_chart_once(browser: Browser, saved: Path) -> None:
    browser.open(saved)
    browser.press("Tab")
    assert browser.run("document.activeElement.className") == "skip"

    charts = []
    while browser.run("document.activeElement.className") != "skip" or not charts:
        browser.press("Tab")
        chart = browser.run(
            "document.activeElement.closest('svg')?.getAttribute('aria-labelledby')"
        )
        charts += [chart] if chart else []
        assert len(charts) < 50
    # Only wide drawings: the narrow ones are hidden.
    wide = "[...document.querySelectorAll('svg.wide')].map(c => c.getAttribute('aria-labelledby'))"
    assert charts == browser.run(wide)


def test_arrow_keys_move_over_the_points_of_a_chart_and_each_is_told(
    browser: Browser, saved: Path
) -> None:
    browser.open(saved)
    browser.run("document.querySelector('.point').focus()")
    first = browser.run(FOCUSED)
    assert browser.run(f"{TOLD}.textContent") == first
    assert browser.run(f"{TOLD}.hidden") is False

    browser.press("ArrowRight")
    second = browser.run(FOCUSED)
    assert second != first
    assert browser.run(f"{TOLD}.textContent") == second

    browser.press("End")
    last = browser.run(FOCUSED)
    browser.press("ArrowRight")
    assert browser.run(FOCUSED) == last != second
    browser.press("Home")
    assert browser.run(FOCUSED) == first
    browser.press("Escape")
    assert browser.run(f"{TOLD}.hidden") is True
    assert browser.complaints == []


def test_pointing_at_a_point_tells_it_and_leaving_stops(browser: Browser, saved: Path) -> None:
    browser.open(saved)
    at = browser.run(
        "(() => { const point = document.querySelector('.point');"
        " point.scrollIntoView({block: 'center'}); const box = point.getBoundingClientRect();"
        " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=at[0], y=at[1])
    label = browser.run("document.querySelector('.point').getAttribute('aria-label')")
    assert browser.run(f"{TOLD}.textContent") == label
    assert browser.run(f"{TOLD}.hidden") is False

    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.run(f"{TOLD}.hidden") is True


@pytest.mark.parametrize("width", [320, 390, 1000])
def test_nothing_sticks_out_at_any_width(browser: Browser, saved: Path, width: int) -> None:
    browser.open(saved, width)
    assert browser.run("document.documentElement.scrollWidth") <= width
    shown = "[...document.querySelectorAll('svg.chart')].filter(c => c.getClientRects().length)"
    classes = browser.run(f"{shown}.map(c => c.classList[1])")
    assert set(classes) == {"wide" if width > 640 else "narrow"}
    ends = browser.run(
        f"{shown}.flatMap(c => [...c.querySelectorAll('text')])"
        ".map(t => t.getBoundingClientRect()).flatMap(box => [box.left, box.right])"
    )
    assert min(ends) >= 0
    assert max(ends) <= width


def test_letters_are_large_enough_to_read_on_a_telephone(browser: Browser, saved: Path) -> None:
    browser.open(saved, 390)
    smallest = browser.run(
        "Math.min(...[...document.querySelectorAll('svg.narrow text')]"
        ".map(t => t.getBoundingClientRect().height))"
    )
    assert smallest >= 11


@pytest.mark.parametrize("dark", [False, True])
def test_both_schemes_show_something_on_their_own_paper(
    browser: Browser, saved: Path, tmp_path: Path, dark: bool
) -> None:
    browser.open(saved, dark=dark)
    seen = pixels(browser, tmp_path)
    paper = seen[2, 2]
    assert bool(paper.mean() < 0.2) is dark
    different = np.abs(seen - paper).max(axis=-1) > 0.3
    assert 0.02 < different.mean() < 0.5
    # Each tenth of the page, from top to bottom, has content.
    assert all(part.any() for part in np.array_split(different, 10))
