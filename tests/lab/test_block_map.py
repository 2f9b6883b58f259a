"""The block map: it shows what the manager holds, at every size."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from blockmgr import BlockManager
from blockmgr.blocks import BlockState

maps = pytest.importorskip(
    "blockmgr.lab.block_map", reason="needs matplotlib", exc_type=ImportError
)
# These import matplotlib as well.
from blockmgr.lab.block_map import LOOKS, BlockMap, as_svg, block_map, separators  # noqa: E402


def images(shown: BlockMap) -> list[np.ndarray[Any, Any]]:
    """The pixels of the picture: of sequences, of idle blocks, of the pool."""
    from matplotlib.image import imread

    root = ET.fromstring(as_svg(shown))
    links = (
        image.get("{http://www.w3.org/1999/xlink}href", "") for image in root.findall(".//{*}image")
    )
    files = (BytesIO(b64decode(link.partition("base64,")[2])) for link in links)
    return [np.round(255 * imread(file)[..., :3]).astype(int) for file in files]


def colours(looks: Any) -> np.ndarray[Any, Any]:
    values = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for _, colour in LOOKS]
    return np.array(values)[looks]


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
    manager.shrink(manager.config.num_blocks - 1)
    return manager


@pytest.fixture(scope="module")
def busy() -> BlockMap:
    shown = block_map(busy_manager(), title="busy", facts=[("step", "12")])
    present = {BlockState(state) for state in shown.blocks.state.tolist()}
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


def test_looks_are_the_states_and_what_owned_blocks_hold(busy: BlockMap) -> None:
    blocks = busy.blocks
    for block, look in enumerate(busy.looks.tolist()):
        state = BlockState(blocks.state[block]).name.lower()
        if state == "owned" and not blocks.num_tokens[block]:
            state = "owned, no tokens"
        elif state == "owned" and blocks.num_computed_tokens[block] < blocks.num_tokens[block]:
            state = "owned, not computed"
        assert LOOKS[look][0] == state
    assert len(set(busy.looks.tolist())) == len(LOOKS), "the example has every look"


@pytest.mark.parametrize("which", ["busy", "large"])
def test_the_picture_has_a_place_for_each_block_in_the_colour_of_its_look(
    which: str, request: pytest.FixtureRequest
) -> None:
    shown = request.getfixturevalue(which)
    sequences, idle, pool = images(shown)
    total = len(shown.blocks)
    assert np.array_equal(pool.reshape(-1, 3)[:total], colours(shown.looks))
    assert len(sequences) == min(160, len(shown.rows))
    for row, line in zip(shown.rows, sequences, strict=False):
        held = len(row.block_ids)
        assert np.array_equal(line[:held], colours(shown.looks[row.block_ids]))
        assert np.all(line[held:] == 255)
    # Two neighbours have the same shade if one continues the other.
    order = shown.blocks.eviction_order
    shades = idle.reshape(-1, 3)[: len(order)]
    same = np.all(shades[1:] == shades[:-1], axis=1)
    assert np.array_equal(same, shown.blocks.parent[order[:-1]] == order[1:])


def test_a_line_separates_blocks_from_others_above(busy: BlockMap, large: BlockMap) -> None:
    for shown in (busy, large):
        above: list[int] = []
        for row in shown.rows:
            ids = row.block_ids.tolist()
            cut = {column for begin, end in separators(row) for column in range(begin, end)}
            assert cut == {n for n, block in enumerate(ids) if above[n : n + 1] != [block]}
            above = ids
    lines = re.findall(r"stroke: #ffffff; stroke-width: 1.5", as_svg(busy))
    assert len(lines) == sum(len(separators(row)) for row in busy.rows)


def test_the_words_of_the_picture_say_names_counts_and_sharing(busy: BlockMap) -> None:
    texts = [text.text or "" for text in ET.fromstring(as_svg(busy)).findall(".//{*}text")]
    for name, number in Counter(LOOKS[look][0] for look in busy.looks.tolist()).items():
        assert f"{name} {number}" in texts
    for row in busy.rows:
        assert any(text.startswith(f"{row.name}, ") for text in texts)
    assert any(text.endswith("20 tokens, preempted") for text in texts)
    assert "Who holds what: 4 sequences" in texts
    order = [str(block) for block in busy.blocks.eviction_order.tolist()]
    first = texts.index(f"Evicted in this order: {len(order)} idle blocks")
    assert [text for text in texts[:first] if text in order][-len(order) :] == order
    for block, sharing in enumerate(busy.blocks.ref_count.tolist()):
        assert (f"{block} x{sharing}" if sharing > 1 else str(block)) in texts


def test_the_same_pool_gives_the_same_bytes() -> None:
    # Handles differ from manager to manager; rows and blocks do not.
    assert as_svg(block_map(busy_manager())) == as_svg(block_map(busy_manager()))


def test_a_large_pool_is_a_picture_of_less_than_a_megabyte(large: BlockMap) -> None:
    picture = as_svg(large)
    assert len(picture) < 1_000_000
    assert "Who holds what: 180 sequences, 20 not drawn" in picture


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (8, 4), (65, 2), (600, 1)])
def test_an_empty_pool_is_drawn_without_sequences(num_blocks: int, block_size: int) -> None:
    [pool] = images(block_map(BlockManager(num_blocks, block_size)))
    assert np.array_equal(pool.reshape(-1, 3)[:num_blocks], colours(np.full(num_blocks, 6)))


def test_a_map_stays_as_it_was_when_the_manager_goes_on() -> None:
    manager = busy_manager()
    shown = block_map(manager)
    before = as_svg(shown)
    for handle in manager.handles():
        manager.free(handle)
    assert as_svg(shown) == before


def test_a_map_is_saved_as_it_is_drawn(busy: BlockMap, tmp_path: Path) -> None:
    picture = maps.save_block_map(busy, tmp_path / "map.SVG")
    assert picture.read_text(encoding="utf-8") == as_svg(busy)


@pytest.mark.parametrize("name", ["map.png", "map.html", "map", "svg"])
def test_another_suffix_is_refused(busy: BlockMap, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"output must end in .svg, got '{name}'"):
        maps.save_block_map(busy, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_refused(busy: BlockMap, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="output must go into a folder that exists"):
        maps.save_block_map(busy, tmp_path / "no" / "map.svg")
