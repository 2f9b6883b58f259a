"""Debug levels: what each finds when the books are made wrong behind the manager's back."""

from __future__ import annotations

import numpy as np
import pytest

from blockmgr import BlockManager, InvariantError, OutOfBlocksError, UnknownSequenceError
from tests.conftest import MakeManager
from tests.unit.snapshot import snapshot


def corrupt(manager: BlockManager, handle: int, index: int, block: int) -> None:
    """Write to the live block table, as a stray write of an engine would."""
    table = manager.block_tables.base
    assert isinstance(table, np.ndarray)
    table[manager.row(handle), index] = block


def busy(manager: BlockManager) -> int:
    """Some of everything; what is returned holds blocks 0 and 1 of 8."""
    first = manager.admit([1, 2, 3, 4, 5])
    manager.commit(first, 5)
    [child] = manager.fork(first)
    manager.append(child, [6])
    manager.take_copies()
    manager.copies_applied(1)
    manager.free(child)
    return first


@pytest.mark.parametrize("level", [0, 1, 2])
def test_right_books_raise_nothing_at_any_level(make_manager: MakeManager, level: int) -> None:
    plain, debugged = make_manager(), make_manager(debug=level)
    assert busy(plain) & 0xFFFFFFFF == busy(debugged) & 0xFFFFFFFF
    assert debugged.debug == level
    assert plain.stats() == debugged.stats()
    with pytest.raises(OutOfBlocksError):
        debugged.admit(range(30))
    with pytest.raises(UnknownSequenceError):
        debugged.free(99)


def test_level_1_finds_a_block_that_is_released_without_being_held() -> None:
    manager = BlockManager(8, 4, debug=1)
    handle = busy(manager)
    corrupt(manager, handle, 0, 7)
    with pytest.raises(InvariantError, match="released more often than it is held: block 7"):
        manager.free(handle)
    assert manager.debug == 1


def test_level_1_finds_a_write_to_a_block_that_is_free() -> None:
    manager = BlockManager(8, 4, debug=1)
    handle = busy(manager)
    other = manager.admit([9])
    [free] = manager.sequence(other).block_ids.tolist()
    manager.free(other)
    corrupt(manager, handle, 1, free)
    manager.append(handle, [1, 2, 3])  # to the end of the block
    with pytest.raises(InvariantError, match=f"written while it was free: block {free}"):
        manager.append(handle, [4])


def test_level_2_finds_what_no_step_touches() -> None:
    manager = BlockManager(8, 4, debug=1)
    handle = busy(manager)
    other = manager.admit([9] * 5)
    corrupt(manager, handle, 1, int(manager.sequence(other).block_ids[1]))
    manager.reserve(other, 1)
    manager.debug = 2
    with pytest.raises(InvariantError) as caught:
        manager.reserve(other, 1)
    assert len(caught.value.violations) > 1


def test_check_invariants_raises_what_it_finds_at_any_level() -> None:
    manager = BlockManager(8, 4)
    handle = busy(manager)
    manager.check_invariants()
    corrupt(manager, handle, 1, 7)
    with pytest.raises(InvariantError, match="block 7"):
        manager.check_invariants()


def test_a_finding_is_raised_in_place_of_another_error() -> None:
    manager = BlockManager(8, 4, debug=2)
    handle = busy(manager)
    corrupt(manager, handle, 1, 7)
    with pytest.raises(InvariantError):
        manager.admit(range(30))


def test_the_level_can_be_changed_at_any_time(make_manager: MakeManager) -> None:
    manager = make_manager()
    busy(manager)
    for level in (1, 0, 2, 1, 0, 1):
        manager.debug = level
        assert manager.debug == level
        other = manager.admit([7] * 9)
        manager.free(other)


@pytest.mark.parametrize(
    ("level", "error"), [(-1, ValueError), (3, ValueError), (True, TypeError), ("1", TypeError)]
)
def test_a_level_there_is_not_is_refused(
    make_manager: MakeManager, level: int, error: type[Exception]
) -> None:
    manager = make_manager(debug=1)
    busy(manager)
    before = snapshot(manager)
    with pytest.raises(error, match="debug"):
        manager.debug = level
    assert snapshot(manager) == before
    assert manager.debug == 1
    with pytest.raises(error, match="debug"):
        BlockManager(8, 4, debug=level)
