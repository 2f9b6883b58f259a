"""Debug levels. ``tests/core/books.cc`` tests which wrong books each level finds."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from blockmgr import (
    BlockManager,
    InvariantError,
    OutOfBlocksError,
    ReentrancyError,
    UnknownSequenceError,
)
from tests.conftest import MakeManager
from tests.unit.snapshot import snapshot


def busy(manager: BlockManager) -> int:
    """Makes several calls; the returned sequence holds blocks 0 and 1 of 8."""
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


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_call_from_inside_another_is_refused_at_every_level(level: int) -> None:
    """The checks after a call notice its refusal and do not wait for the lock."""
    managers: list[BlockManager] = []
    refused = 0

    def digest(message: bytes) -> bytes:
        nonlocal refused
        for manager in managers:
            for call in manager.take_remaps, partial(manager.admit, [1]), manager.stats:
                with pytest.raises(ReentrancyError):
                    call()
                refused += 1
        return bytes(16)

    manager = BlockManager(8, 2, digest=digest, debug=level)
    managers.append(manager)
    handle = manager.admit([1, 2, 3, 4])
    manager.commit(handle, 4)
    assert refused >= 6
    managers.clear()
    manager.check_invariants()


def test_check_invariants_raises_all_that_the_core_finds() -> None:
    manager = BlockManager(8, 4)
    manager.check_invariants()
    broken = ["block 7 is lost", "block 3 is free and in use"]
    manager._core = SimpleNamespace(violations=lambda: broken)  # type: ignore[assignment]
    with pytest.raises(InvariantError, match="block 7 is lost") as caught:
        manager.check_invariants()
    assert caught.value.violations == tuple(broken)
