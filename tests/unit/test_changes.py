"""Changes that an adapter makes together with the core's: ``blockmgr.changes``."""

from __future__ import annotations

import _thread
import inspect
import signal
from typing import Any

import pytest

from blockmgr import BlockManager, BlockStateError, OutOfBlocksError
from blockmgr.changes import Change, CompiledManagerCalls, CompiledPoolCalls, Loan, at_once
from blockmgr.pool import BlockPool
from tests.fingerprints import fingerprint

PROMPT = [1, 2, 3, 4, 5, 6]


def a_pool() -> BlockPool:
    pool = BlockPool(num_blocks=8, block_size=2)
    pool.promote(pool.take(3), PROMPT)
    pool.release([2])
    return pool


# The method with its keywords, and the same by position.
POOL_CALLS: dict[str, tuple[Any, Any]] = {
    "acquire": (lambda p: p.acquire([0, 2], found=False), ([0, 2], False)),
    "copies_aborted": (lambda p: p.copies_aborted(1), (1,)),
    "copies_applied": (lambda p: p.copies_applied(1), (1,)),
    "evict": (lambda p: p.evict(1), (1, b"")),
    "forget": (lambda p: p.forget(1), (1, b"")),
    "make_writable": (lambda p: p.make_writable(0, 1), (0, 1)),
    "promote": (lambda p: p.promote(7, [9, 9], parent=1, extras=b"x"), (7, [9, 9], 1, b"", b"x")),
    "promote_chain": (
        lambda p: p.promote([7], [9, 9], namespace=b"n", extras={0: b"x"}),
        ([7], [9, 9], -1, b"n", ((0, b"x"),)),
    ),
    "release": (lambda p: p.release([1, 0]), ([1, 0],)),
    "reset": (lambda p: p.reset(), ()),
    "take": (lambda p: p.take(2), (2, b"")),
    "take_copies": (lambda p: p.take_copies(), ()),
    "touch": (lambda p: p.touch([2]), ([2],)),
}


def prepared(name: str) -> BlockPool:
    """A pool in which the call has work to do."""
    pool = a_pool()
    if name in ("promote", "promote_chain"):
        pool.take(5)
    if name.startswith("copies"):
        pool.make_writable(1, 1)
        assert pool.take_copies().ticket == 1
    if name == "take_copies":
        pool.make_writable(1, 1)
    if name == "reset":
        pool.release([1, 0])
    if name == "touch":
        block = pool.take(1)
        pool.promote(block, [9, 9])
        pool.release(block)
    return pool


@pytest.mark.parametrize("name", CompiledPoolCalls.__slots__)
def test_a_compiled_call_of_a_pool_does_what_its_method_does(name: str) -> None:
    one, other = prepared(name), prepared(name)
    before = fingerprint(one)
    by_keyword, arguments = POOL_CALLS[name]
    expected = by_keyword(one)
    got = getattr(other.compiled, name)(*arguments)
    assert list(got) == list(expected) if hasattr(expected, "__len__") else got == expected
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) != before


MANAGER_CALLS: dict[str, tuple[Any, Any]] = {
    "admit": (
        lambda m, h: m.admit([8, 9], namespace=b"n", extras={0: b"x"}, num_slots=3),
        lambda h: ([8, 9], b"n", ((0, b"x"),), 3, True),
    ),
    "append": (lambda m, h: m.append(h, [7]), lambda h: (h, [7])),
    "commit": (lambda m, h: m.commit(h, 5), lambda h: (h, 5)),
    "copies_aborted": (lambda m, h: m.copies_aborted(1), lambda h: (1,)),
    "copies_applied": (lambda m, h: m.copies_applied(1), lambda h: (1,)),
    "free": (lambda m, h: m.free(h), lambda h: (h,)),
    "take_copies": (lambda m, h: m.take_copies(), lambda h: ()),
}


@pytest.mark.parametrize("name", CompiledManagerCalls.__slots__)
def test_a_compiled_call_of_a_manager_does_what_its_method_does(name: str) -> None:
    def prepared() -> tuple[BlockManager, int]:
        manager = BlockManager(num_blocks=16, block_size=2, max_seqs=4)
        parent = manager.admit([1, 2, 3, 4, 5])
        manager.commit(parent, 5 if "copies" in name else 2)
        if "copies" in name:
            [child] = manager.fork(parent)
            manager.append(child, [6])
        if name.startswith("copies"):
            manager.take_copies()
        return manager, parent

    (one, handle), (other, same) = prepared(), prepared()
    before = fingerprint(one)
    by_keyword, arguments = MANAGER_CALLS[name]
    expected = by_keyword(one, handle)
    got = getattr(other.compiled, name)(*arguments(same))
    if name == "admit":  # handles of managers differ except for the row
        expected, got = one.sequence(expected).row, other.sequence(got).row
    assert list(got) == list(expected) if hasattr(expected, "__len__") else got == expected
    assert fingerprint(one) == fingerprint(other) != before


def test_every_method_of_a_pool_has_a_compiled_call_or_needs_none() -> None:
    """Every method of ``BlockPool`` must be in one of these sets."""
    reading = {
        name
        for name, member in inspect.getmembers(BlockPool)
        if isinstance(member, property)
        or name.startswith(("is_", "ref_count", "num_", "_", "check_", "hit_rate"))
    }
    methods = {name for name, _ in inspect.getmembers(BlockPool, inspect.isfunction)} - reading
    look_ups = {"children", "find", "generation", "idle_blocks", "memory_usage", "parent", "tokens"}
    look_ups |= {"waits_for_copy", "priority", "pinned", "quota_usage", "resident_events"}
    # These are never combined with an adapter's change, or they may call Python.
    alone = {"acquire_prefix", "pin", "unpin", "retain", "set_time"}
    alone |= {"take_events", "take_snapshot"}
    # The compiled code has separate functions for one block and for several.
    assert methods - look_ups - alone == set(CompiledPoolCalls.__slots__) - {"promote_chain"}


def test_an_exception_from_outside_comes_after_all_changes() -> None:
    """``interrupt_main`` requests a KeyboardInterrupt, which Python raises at its next check."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupt_amid_changes()
    finally:
        signal.signal(signal.SIGINT, before)


def interrupt_amid_changes() -> None:
    pool = a_pool()
    table = [0, 1]
    changes: list[Change] = [(_thread.interrupt_main,), (pool.compiled.release, [1]), (table.pop,)]
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        at_once(changes, None)
        for _ in range(1000):  # Python checks at a backward jump
            pass
    assert table == [0]
    assert pool.ref_count(1) == 0


def test_a_first_change_that_refuses_leaves_all_as_it_was() -> None:
    pool = a_pool()
    table = [5]
    with pytest.raises(BlockStateError):
        at_once([(pool.compiled.release, [5]), (table.pop,)], None)
    assert table == [5]


def test_changes_read_their_arguments_when_they_are_made() -> None:
    pool = a_pool()
    blocks = [0]
    change = (pool.compiled.release, blocks)
    blocks[0] = 1
    assert at_once([change], "made") == "made"
    assert (pool.ref_count(0), pool.ref_count(1)) == (1, 0)


def test_a_loan_is_given_back_whole_or_kept_whole() -> None:
    pool = a_pool()
    before = fingerprint(pool)
    loan = Loan(pool)
    loan.acquire([2, 0])
    loan.take(2)
    with pytest.raises(OutOfBlocksError):
        loan.take(9)
    loan.give_back()
    assert pool.num_used == 2
    assert pool.ref_count([0, 1, 2]).tolist() == [1, 1, 0]
    assert loan.kept("nothing") == "nothing"
    loan.give_back()
    pool.check_invariants()
    loan.take(1)
    at_once([loan.keep], None)
    loan.give_back()
    assert pool.num_used == 3
    assert fingerprint(pool) != before
