"""The rules of nodes: for each, a small world in which the obvious implementation fails.

docs/design/nodes-and-blocks.md has the rules, their tests, and the planted bugs.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from blockmgr import BlockManager
from tests.mutants.planted import CORE

SIZE = 2
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "nodes-and-blocks.md"


def idle_order(manager: BlockManager) -> list[int]:
    """The idle blocks, first to be evicted first."""
    rank = manager.blocks().eviction_rank
    idle = np.flatnonzero(rank >= 0)
    return idle[np.argsort(rank[idle])].tolist()


# ---- used is closed under parent ---------------------------------------------------------


def test_a_block_held_by_its_id_keeps_what_comes_before_it() -> None:
    """Holds one block in the middle of four idle ones: the two before it must not be evicted."""
    manager = BlockManager(8, SIZE)
    manager.commit(handle := manager.admit([1, 1, 2, 2, 3, 3, 4, 4]), 8)
    one, two, three, four = manager.block_ids(handle)
    manager.free(handle)
    manager.acquire([three])
    assert idle_order(manager) == [four]
    manager.release([three])
    assert idle_order(manager) == [four, three, two, one]
    manager.check_invariants()


def test_the_source_of_a_copy_keeps_its_prefix_when_its_reader_goes() -> None:
    manager = BlockManager(5, SIZE)
    manager.commit(parent := manager.admit([1, 1, 2, 2, 3]), 5)
    [child] = manager.fork(parent)
    manager.append(child, [7])
    manager.free(parent)
    first, second = manager.block_ids(child)[:2]
    plan = manager.take_copies()
    assert plan.sources.tolist() not in ([first], [second])
    manager.free(child)
    assert manager.num_available == 5 - 2  # the two ends of the copy
    manager.copies_applied(plan.ticket)
    assert manager.num_available == 5
    assert manager.match([1, 1, 2, 2, 9]).num_cached_tokens == 4
    manager.check_invariants()


def test_a_chain_goes_as_children_before_parents_after_a_pin_is_withdrawn() -> None:
    manager = BlockManager(8, SIZE, retention=True, max_pinned_blocks=4)
    manager.commit(handle := manager.admit([1, 1, 2, 2, 3, 3, 4, 4]), 8)
    blocks = manager.block_ids(handle)
    pin = manager.pin([1, 1, 2, 2, 9])
    manager.free(handle)
    assert idle_order(manager)[:2] == [blocks[3], blocks[2]]
    manager.unpin(pin)
    assert idle_order(manager) == blocks[::-1]
    manager.check_invariants()


def test_a_fork_in_the_middle_of_a_run_ends_no_use_of_it() -> None:
    manager = BlockManager(12, SIZE)
    manager.commit(handle := manager.admit([1, 1, 2, 2, 3, 3, 4, 4]), 8)
    [child] = manager.fork(handle)
    manager.truncate(child, 4)
    manager.append(child, [8, 8])
    manager.commit(child, 6)
    shared = manager.block_ids(handle)
    manager.free(handle)
    assert idle_order(manager) == [shared[3], shared[2]]
    last = manager.block_ids(child)[2]
    manager.free(child)
    assert idle_order(manager) == [shared[3], shared[2], last, shared[1], shared[0]]
    manager.check_invariants()


# ---- a path names the findable node; blocks decide twins ---------------------------------


def test_a_twin_stands_in_where_the_findable_block_is_wanted() -> None:
    """Append-only: each keeps its table, and the content can be found while one of them stays."""
    manager = BlockManager(8, SIZE, dedup="append_only")
    handles = [manager.admit([1, 1, 2, 2, 9]) for _ in range(2)]
    tables = [manager.block_ids(handle) for handle in handles]
    for handle in handles:
        manager.commit(handle, 5)
    assert [manager.block_ids(handle) for handle in handles] == tables
    assert not set(tables[0]) & set(tables[1])
    manager.free(handles[0])
    assert manager.match([1, 1, 2, 2, 8]).block_ids.tolist() == tables[1][:2]
    assert manager.num_available == 8 - 3  # no block is kept for a twin alone
    manager.free(handles[1])
    assert manager.match([1, 1, 2, 2, 8]).num_cached_tokens == 4
    manager.check_invariants()


# ---- the same tokens into slots that hold nothing valid ----------------------------------


def test_forks_before_the_forward_fill_the_same_blocks_and_copy_nothing() -> None:
    manager = BlockManager(8, SIZE)
    parent = manager.admit([1, 1, 2, 2, 3])
    [child] = manager.fork(parent)
    table = manager.block_ids(parent)
    manager.commit(parent, 5)
    manager.commit(child, 5)
    assert manager.block_ids(parent) == manager.block_ids(child) == table
    assert manager.stats().pending_copies == 0
    slots = manager.decode([parent, child], [7, 8]).tolist()  # one moves, because the tokens differ
    plan = manager.take_copies()
    assert plan.sources.tolist() == [table[2]]
    assert sorted(slots) == sorted([table[2] * SIZE + 1, int(plan.destinations[0]) * SIZE + 1])
    manager.copies_applied(plan.ticket)
    manager.check_invariants()


# ---- the page ----------------------------------------------------------------------------

RULES = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| \d", line)]


def test_the_page_has_each_rule() -> None:
    assert [int(line.split("|")[1]) for line in RULES] == list(range(1, 9))


@pytest.mark.parametrize("line", RULES)
def test_what_the_page_names_is_there(line: str) -> None:
    *_, tests, bugs, _ = line.split("|")
    names = {mutant.name for mutant in CORE}
    assert set(re.findall(r"`(\w+)`", bugs)) <= names
    for name in re.findall(r"`(tests/[\w/.]+)`", tests):
        assert (ROOT / name).exists()
    for file, name in re.findall(r"`(\w+\.py)::(\w+)`", tests):
        text = (ROOT / "tests" / "unit" / file).read_text(encoding="utf-8")
        assert f"def {name}(" in text
