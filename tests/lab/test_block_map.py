"""The block map: it draws what the manager holds, for every reader, at every size."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockmgr import BlockManager
from blockmgr.blocks import BlockState
from blockmgr.lab.block_map import as_html, as_svg, block_map, save_block_map
from blockmgr.lab.block_map.facts import BlockMap, spans
from blockmgr.lab.block_map.style import PALETTES

VOID = {"meta", "br", "link", "input"}
SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """Builds the tree of a page, and refuses tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.builder = ET.TreeBuilder()
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        self.root = self.builder.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in VOID:
            self.builder.end(tag)
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.builder.data(data)


@functools.cache
def page_of(shown: BlockMap) -> ET.Element:
    return Page(as_html(shown)).root


def classes(element: ET.Element) -> list[str]:
    return element.get("class", "").split()


def panel(root: ET.Element, name: str) -> ET.Element:
    [found] = [svg for svg in root.iter("svg") if svg.get("aria-labelledby") == f"{name}-heading"]
    return found


def shapes(root: ET.Element) -> list[ET.Element]:
    return [e for e in root.iter() if "b" in classes(e)]


def block_ids(shape: ET.Element) -> list[int]:
    ids: list[int] = []
    for run in shape.get("data-b", "").split(", "):
        first, _, last = run.partition("-")
        step = 1 if int(last or first) >= int(first) else -1
        ids += range(int(first), int(last or first) + step, step)
    return ids


def table(root: ET.Element, caption: str) -> list[list[str]]:
    [found] = [t for t in root.iter("table") if t.findtext("caption") == caption]
    return [["".join(cell.itertext()) for cell in row] for row in found.iterfind("tbody/*")]


def busy_manager() -> BlockManager:
    """Every state at once, a fork with copies, a tail, and a preempted sequence."""
    manager = BlockManager(40, 4, min_partial_tokens=1, null_block=True, steps_in_flight=2)

    def step() -> int:
        plan = manager.take_copies()
        manager.copies_applied(plan.ticket)
        return plan.ticket

    parent = manager.admit([*range(20), 100, 101, 102], num_slots=36)
    manager.commit(parent, 23)
    ended = manager.admit(list(range(500, 514)))
    manager.commit(ended, 14)
    manager.free(ended)
    ticket = step()
    late = manager.admit(list(range(800, 807)))
    manager.commit(late, 7)
    manager.free(late)
    manager.complete(ticket)
    late = manager.admit(list(range(900, 907)))
    manager.commit(late, 7)
    step()
    manager.free(late)
    for number, child in enumerate(manager.fork(parent, 2)):
        manager.append(child, [200 + number])
    waiting = manager.admit(list(range(600, 620)))
    manager.preempt(waiting)
    return manager


@pytest.fixture(scope="module")
def busy() -> BlockMap:
    shown = block_map(busy_manager(), title="busy", facts=[("step", "12")])
    present = {state for state, _ in shown.states}
    assert present == set(BlockState), "the example has every state"
    return shown


@pytest.fixture(scope="module")
def large() -> BlockMap:
    manager = BlockManager(100_000, 16, max_seqs=300)
    system = list(range(2000))
    handles = []
    for number in range(220):
        own = range(10_000 * (number + 1), 10_000 * (number + 1) + 100 + 20 * number)
        tokens = [*system, *own]
        handles.append(manager.admit(tokens, num_slots=len(tokens) + 64))
        manager.commit(handles[-1], len(tokens))
    for handle in handles[:40]:
        manager.free(handle)
    return block_map(manager, title="large")


# ---- what is drawn -------------------------------------------------------------------------------


def test_the_pool_shows_every_block_once_in_its_state(busy: BlockMap) -> None:
    drawn = shapes(panel(page_of(busy), "pool"))
    assert [block_ids(shape) for shape in drawn] == [[b] for b in range(40)]
    states = [BlockState[classes(shape)[1].removesuffix("-block").upper()] for shape in drawn]
    assert states == busy.blocks.state.tolist()


def test_the_totals_are_those_of_the_manager(busy: BlockMap) -> None:
    manager = busy_manager()
    stats = manager.stats()
    root = page_of(busy)
    counts = {line[0]: int(line[1]) for line in table(root, "Blocks by state")}
    assert counts["free"] == stats.free_blocks
    assert counts["idle"] == stats.idle_blocks
    assert counts["fenced"] == stats.fenced_blocks
    assert counts["owned"] + counts["cached"] == stats.used_blocks
    assert counts["null"] == 1
    bar = [shape.findtext("title") or "" for shape in shapes(panel(root, "totals"))]
    told: Counter[str] = Counter()
    for title in bar:
        if match := re.match(r"(\d+) blocks? (\w+)", title):
            told[match[2]] += int(match[1])
    assert told == counts


def test_the_widths_of_the_totals_are_the_shares(busy: BlockMap) -> None:
    first_line = [
        shape.find("rect")
        for shape in shapes(panel(page_of(busy), "totals"))
        if "blocks are drawn" not in (shape.findtext("title") or "")
    ]
    widths = [float(rect.get("width", "")) for rect in first_line if rect is not None]
    assert sum(widths) == pytest.approx(1040, abs=0.1)
    assert widths[0] == pytest.approx(1040 * busy.blocks.count(BlockState.CACHED) / 40, abs=0.01)


def test_the_queue_shows_idle_blocks_in_the_order_of_eviction(busy: BlockMap) -> None:
    drawn = [block_ids(shape) for shape in shapes(panel(page_of(busy), "queue"))]
    assert drawn == [[block] for block in busy.blocks.eviction_order.tolist()]


def test_the_queue_of_a_large_pool_is_in_order_as_well(large: BlockMap) -> None:
    drawn = [block_ids(shape) for shape in shapes(panel(page_of(large), "queue"))]
    assert list(itertools.chain(*drawn)) == large.blocks.eviction_order.tolist()


def test_a_shared_block_is_drawn_once_across_the_rows_that_hold_it(busy: BlockMap) -> None:
    root = panel(page_of(busy), "sequences")
    drawn = [block_ids(shape) for shape in shapes(root)]
    held = set(itertools.chain.from_iterable(row.block_ids.tolist() for row in busy.rows))
    assert sorted(itertools.chain(*drawn)) == sorted(held)
    heights = {}
    for shape in shapes(root):
        rect = shape.find("rect")
        assert rect is not None
        heights[block_ids(shape)[0]] = float(rect.get("height", ""))
    pitch = min(heights.values()) + 2
    for block, height in heights.items():
        assert height == busy.blocks.ref_count[block] * pitch - 2


def test_names_of_all_sequences_are_in_their_rows(busy: BlockMap) -> None:
    texts = ["".join(t.itertext()) for t in panel(page_of(busy), "sequences").iter("text")]
    for row in busy.rows:
        assert row.name in texts
    assert "20 tokens, preempted" in texts
    assert "Who holds what: 4 sequences, 1 preempted" in as_html(busy)


def test_a_block_is_filled_as_far_as_it_has_tokens(busy: BlockMap) -> None:
    for shape in shapes(panel(page_of(busy), "pool")):
        [block] = block_ids(shape)
        whole, *parts = shape.findall("rect")
        full = float(whole.get("width", ""))
        levels = {classes(part)[-1]: float(part.get("width", "")) / full for part in parts}
        tokens, computed = busy.blocks.num_tokens[block], busy.blocks.num_computed_tokens[block]
        if busy.blocks.state[block] != BlockState.OWNED:
            continue
        assert levels.get("awaited", 0) == pytest.approx(tokens / 4, abs=1e-3)
        assert levels.get("owned", 0) == pytest.approx(computed / 4, abs=1e-3)


def test_each_copy_is_an_arrow(busy: BlockMap) -> None:
    root = panel(page_of(busy), "pool")
    drawn = [e for e in root.iter("path") if "copy" in classes(e)]
    blocks = busy.blocks
    destinations = np.flatnonzero(blocks.copy_source >= 0).tolist()
    assert len(destinations) == 2
    assert [arrow.findtext("title") for arrow in drawn] == [
        f"copy of 3 tokens from block {blocks.copy_source[d]} to block {d}" for d in destinations
    ]
    places = {block_ids(shape)[0]: shape.find("rect") for shape in shapes(root)}
    for arrow, destination in zip(drawn, destinations, strict=True):
        ends = re.fullmatch(r"M(\S+),(\S+) Q\S+ (\S+),(\S+)", arrow.get("d") or "")
        assert ends
        for block, x, y in (
            (int(blocks.copy_source[destination]), *map(float, ends.groups()[:2])),
            (destination, *map(float, ends.groups()[2:])),
        ):
            rect = places[block]
            assert rect is not None
            left, top, width, height = (
                float(rect.get(k, "")) for k in ("x", "y", "width", "height")
            )
            assert left <= x <= left + width
            assert top <= y <= top + height
    assert [line[:2] for line in table(page_of(busy), "Copies that have not run")] == [
        [str(d), str(blocks.copy_source[d])] for d in destinations
    ]


def test_titles_say_state_tokens_holders_and_place_in_the_queue(busy: BlockMap) -> None:
    titles = {
        block_ids(shape)[0]: shape.findtext("title") or ""
        for shape in shapes(panel(page_of(busy), "pool"))
    }
    victim, second = busy.blocks.eviction_order.tolist()[:2]
    assert titles[victim].endswith("evicted next")
    assert titles[second].endswith("evicted after 1 other")
    shared = int(np.argmax(busy.blocks.ref_count))
    assert "all 4 tokens, held by row 0" in titles[shared]
    assert "begins a prompt" in titles[shared]
    assert titles[0] == "block 0: null"
    free = int(busy.blocks.ids(BlockState.FREE)[0])
    assert titles[free] == f"block {free}: free"


@settings(max_examples=60)
@given(st.data())
def test_spans_cover_every_table_entry_once(data: st.DataObject) -> None:
    manager = BlockManager(60, 2, max_seqs=12)
    prompts = st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=9)
    for prompt in data.draw(st.lists(prompts, min_size=1, max_size=6)):
        handle = manager.admit(prompt)
        manager.commit(
            handle,
            data.draw(
                st.integers(0, len(prompt)).filter(
                    lambda n, h=handle: n >= manager.sequence(h).num_computed_tokens
                )
            ),
        )
        if data.draw(st.booleans()):
            [child] = manager.fork(handle)
            manager.append(child, [7])
    shown = block_map(manager)
    found = Counter(
        (span.row + down, span.column + right, int(block))
        for span in spans(shown, 100)
        for down in range(span.height)
        for right, block in enumerate(span.block_ids)
    )
    expected = Counter(
        (number, column, int(block))
        for number, row in enumerate(shown.rows)
        for column, block in enumerate(row.block_ids)
    )
    assert found == expected
    blocks = shown.blocks
    for span in spans(shown, 100):
        columns = (
            blocks.state,
            blocks.num_tokens,
            blocks.num_computed_tokens,
            blocks.copy_source >= 0,
        )
        looks = {tuple(column[block] for column in columns) for block in span.block_ids.tolist()}
        assert len(looks) == 1, "blocks of one bar are alike"
    cut = spans(shown, 2)
    assert all(span.row + span.height <= 2 for span in cut)


@pytest.mark.parametrize("name", ["pool", "sequences", "queue"])
def test_shapes_do_not_overlap(busy: BlockMap, name: str) -> None:
    boxes = []
    for shape in shapes(panel(page_of(busy), name)):
        rect = shape.find("rect")
        assert rect is not None
        x, y, width, height = (float(rect.get(k, "")) for k in ("x", "y", "width", "height"))
        boxes.append((x, y, x + width, y + height))
    for (a, b, c, d), (e, f, g, h) in itertools.combinations(boxes, 2):
        assert c <= e or g <= a or d <= f or h <= b


def test_holders_of_several_blocks_are_named_only_if_all_have_the_same(large: BlockMap) -> None:
    for name in ("pool", "sequences"):
        for shape in shapes(panel(page_of(large), name)):
            title = shape.findtext("title") or ""
            holders = {tuple(large.holders(block)) for block in block_ids(shape)}
            assert ("held by" in title) == (len(holders) == 1 and holders != {()})


# ---- for every reader ----------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["busy", "large"])
def test_every_shape_has_a_role_and_a_title(which: str, request: pytest.FixtureRequest) -> None:
    root = page_of(request.getfixturevalue(which))
    found = shapes(root)
    assert found
    for shape in found:
        assert shape.get("role") == "img"
        assert (shape.findtext("title") or "").strip()
    titled = {rect for shape in found for rect in shape.iter("rect")}
    patterns = {rect for pattern in root.iter("pattern") for rect in pattern.iter("rect")}
    assert set(root.iter("rect")) == titled | patterns, "every rectangle has a title"


def test_the_page_is_well_formed_for_assistive_technology(busy: BlockMap) -> None:
    root = page_of(busy)
    assert root.get("lang") == "en"
    assert root.findtext("head/title") == root.findtext("body/main/h1") == "busy"
    assert [fact.text for fact in root.findall("body/main/ul/li")] == ["step: 12"]
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(ids) == len(set(ids))
    for element in root.iter():
        for name in ("aria-labelledby", "aria-describedby"):
            if element.get(name):
                assert element.get(name) in ids
    [skip] = list(root.iter("a"))
    assert (skip.get("href") or "").removeprefix("#") in ids
    for found in root.iter("table"):
        assert found.findtext("caption")
        assert all(cell.get("scope") == "col" for cell in found.iterfind("thead/tr/*"))
        assert all(row[0].get("scope") == "row" for row in found.iterfind("tbody/*"))
    levels = [e.tag for e in root.iter() if re.fullmatch("h[1-6]", e.tag)]
    assert levels == ["h1"] + ["h2"] * 4


def test_the_tables_say_what_the_pictures_say(busy: BlockMap) -> None:
    root = page_of(busy)
    idle = [int(line[1]) for line in table(root, "Idle blocks in the order of eviction")]
    assert idle == busy.blocks.eviction_order.tolist()
    listed: list[tuple[str, int]] = []
    for line in table(root, "Every block"):
        first, _, last = line[0].partition("-")
        listed += [(line[1], int(line[2]))] * (int(last or first) - int(first) + 1)
    expected = zip(busy.blocks.state, busy.blocks.ref_count, strict=True)
    assert listed == [(BlockState(state).name.lower(), int(ref)) for state, ref in expected]
    sequences = table(root, "Sequences")
    assert [line[0] for line in sequences] == [row.name for row in busy.rows]
    assert [int(line[3]) for line in sequences] == [len(row.block_ids) for row in busy.rows]


def test_the_page_needs_no_other_file(busy: BlockMap) -> None:
    text = as_html(busy)
    root = page_of(busy)
    assert not list(root.iter("link")) + list(root.iter("img")) + list(root.iter("iframe"))
    for element in root.iter():
        for name in ("src", "href", "xlink:href", "srcset"):
            assert element.get(name, "#").startswith("#")
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {
        "#idle-fill",
        "#fenced-fill",
        "#null-fill",
        "#arrow",
    }
    assert "@import" not in text
    assert "http" not in text


@pytest.mark.parametrize("write", [as_html, as_svg])
def test_markup_in_names_is_text(write: object) -> None:
    manager = BlockManager(8, 2)
    handle = manager.admit([1, 2, 3])
    evil = '</svg><script>alert("x")</script>&'
    shown = block_map(manager, title=evil, names={handle: evil}, facts=[(evil, evil)])
    text = write(shown)  # type: ignore[operator]
    assert text.count("<script>") == (1 if write is as_html else 0)
    assert "&lt;script&gt;alert" in text


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_have_the_contrast_that_wcag_asks_for(scheme: str) -> None:
    palette = PALETTES[scheme]
    for text in (palette.ink, palette.quiet):
        assert contrast(text, palette.paper) >= 4.5
    edges = ("owned_edge", "cached_edge", "idle_edge", "fenced_edge", "null_edge")
    for edge in edges:
        assert contrast(getattr(palette, edge), palette.paper) >= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_states_differ_without_colour(scheme: str) -> None:
    """Plain backgrounds differ in lightness, the others in their patterns."""
    palette = PALETTES[scheme]
    plain = [palette.paper, palette.owned_rest, palette.owned, palette.cached]
    assert contrast(palette.owned, palette.cached) >= 1.5
    for ground in (palette.paper, palette.owned_rest):
        assert contrast(ground, palette.owned) >= 1.5
        assert contrast(ground, palette.cached) >= 1.5
    assert len(set(plain)) == 4
    for name in ("idle", "fenced", "null"):
        assert contrast(getattr(palette, name), getattr(palette, f"{name}_edge")) >= 3


@pytest.mark.parametrize("write", [as_html, as_svg])
def test_dark_and_light_pages_are_both_served(busy: BlockMap, write: object) -> None:
    text = write(busy)  # type: ignore[operator]
    assert "@media (prefers-color-scheme: dark)" in text
    for palette in PALETTES.values():
        assert f".owned-rest {{ fill: {palette.owned_rest};" in text
    for state in BlockState:
        assert f".{state.name.lower()} {{" in text or f".{state.name.lower()}, " in text


# ---- the SVG file --------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["busy", "large"])
def test_the_svg_is_xml_with_everything_inside_its_box(
    which: str, request: pytest.FixtureRequest
) -> None:
    shown = request.getfixturevalue(which)
    root = ET.fromstring(as_svg(shown))
    assert root.tag == f"{SVG}svg"
    assert root.findtext(f"{SVG}title") == which
    left, top, width, height = map(float, (root.get("viewBox") or "").split())
    assert (left, top) == (0, 0)
    for group in root.findall(f"{SVG}g"):
        match = re.fullmatch(r"translate\((\S+),(\S+)\)", group.get("transform") or "")
        assert match
        dx, dy = float(match[1]), float(match[2])
        for rect in group.iter(f"{SVG}rect"):
            x, y, w, h = (float(rect.get(k, "")) for k in ("x", "y", "width", "height"))
            assert w > 0
            assert h > 0
            assert dx + x >= 0
            assert dx + x + w <= width + 0.01
            assert dy + y + h <= height + 0.01


def test_the_svg_has_the_shapes_of_the_page(busy: BlockMap) -> None:
    drawn = [s.get("data-b") for s in shapes(ET.fromstring(as_svg(busy)))]
    assert drawn == [s.get("data-b") for s in shapes(page_of(busy))]


def test_the_same_pool_gives_the_same_bytes() -> None:
    # Handles differ from manager to manager; rows and blocks do not.
    assert as_html(block_map(busy_manager())) == as_html(block_map(busy_manager()))
    assert as_svg(block_map(busy_manager())) == as_svg(block_map(busy_manager()))


# ---- at every size -------------------------------------------------------------------------------


def test_a_large_pool_is_drawn_with_some_thousand_shapes(large: BlockMap) -> None:
    root = page_of(large)
    for name in ("pool", "queue", "sequences"):
        assert 100 < len(shapes(panel(root, name))) <= 3072
    covered = [block_ids(shape) for shape in shapes(panel(root, "pool"))]
    assert list(itertools.chain(*covered)) == list(range(100_000))
    assert len(as_html(large)) < 4_000_000


def test_a_shape_for_several_blocks_is_divided_by_state(large: BlockMap) -> None:
    for shape in shapes(panel(page_of(large), "pool")):
        found = large.blocks.state[block_ids(shape)]
        whole = 0.0
        for rect in shape.findall("rect"):
            state = BlockState[classes(rect)[0].removesuffix("-rest").upper()]
            assert state in found
            whole += float(rect.get("height", ""))
        assert whole == pytest.approx(13.75, abs=0.05)
        title = shape.findtext("title") or ""
        counts = title.split(": ")[1].partition(", held by")[0]
        told = {name: int(n) for n, name in re.findall(r"(\d+) (\w+)(?=,|$)", counts)}
        assert told == {
            BlockState(state).name.lower(): int(np.count_nonzero(found == state))
            for state in set(found.tolist())
        }


def test_rows_beyond_those_drawn_are_said(large: BlockMap) -> None:
    root = page_of(large)
    texts = ["".join(t.itertext()) for t in panel(root, "sequences").iter("text")]
    assert "and 20 more sequences, not drawn" in texts
    assert "125 blocks shared by 180" in texts, "rows that are not drawn count as sharers"
    assert len(table(root, "Sequences")) == 180


def test_rows_that_would_take_too_many_shapes_are_left_out() -> None:
    """Blocks that alternate with cached twins form no runs that could be drawn as one bar."""
    manager = BlockManager(8000, 1, max_seqs=4, dedup="append_only")
    handles = [manager.admit(list(range(1600))) for _ in range(2)]
    for end in range(1, 1600):  # every other block is the twin of one of the other sequence
        manager.commit(handles[end % 2], end)
    manager.commit(handles[0], 1600)
    shown = block_map(manager)
    assert len(spans(shown, 2)) > 3072
    drawn = shapes(panel(page_of(shown), "sequences"))
    assert 1000 < len(drawn) <= 3072


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (8, 4), (64, 2), (65, 2), (600, 1)])
def test_small_pools_are_drawn_block_by_block(num_blocks: int, block_size: int) -> None:
    manager = BlockManager(num_blocks, block_size)
    empty = page_of(block_map(manager))
    assert len(shapes(panel(empty, "pool"))) == num_blocks
    assert [s.get("aria-labelledby") for s in empty.iter("svg") if s.get("class")] == [
        "totals-heading",
        "pool-heading",
    ]
    manager.admit(list(range(min(num_blocks * block_size, 50))))
    assert len(shapes(panel(page_of(block_map(manager)), "pool"))) == num_blocks


def test_a_map_stays_as_it_was_when_the_manager_goes_on() -> None:
    manager = busy_manager()
    shown = block_map(manager)
    before = as_html(shown)
    for handle in manager.handles():
        manager.free(handle)
    assert as_html(shown) == before


# ---- files ---------------------------------------------------------------------------------------


def test_a_map_is_saved_by_its_suffix(busy: BlockMap, tmp_path: Path) -> None:
    page = save_block_map(busy, tmp_path / "map.html")
    picture = save_block_map(busy, str(tmp_path / "map.SVG"))
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.parametrize("name", ["map.png", "map", "html"])
def test_another_suffix_is_refused(busy: BlockMap, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"output must end in .html or .svg, got '{name}'"):
        save_block_map(busy, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_refused(busy: BlockMap, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="output must go into a folder that exists"):
        save_block_map(busy, tmp_path / "no" / "map.html")
