"""Caller code that runs inside a call: conversions, finalizers, digest functions."""

from __future__ import annotations

import gc
from typing import Any, cast

import numpy as np
import pytest

from blockmgr import BlockManager, OutOfBlocksError
from blockmgr.blocks import CopyPlan
from blockmgr.groups import FullAttention, Ring
from tests.conftest import MakeManager
from tests.fingerprints import fingerprint
from tests.unit.engine import ids, serve, step


class Meddler:
    """An int that calls a function when it is read."""

    def __init__(self, value: int, call: Any) -> None:
        self.value, self.call = value, call

    def __index__(self) -> int:
        self.call()
        return self.value


def test_a_call_made_while_tokens_are_read_does_not_mix_with_them(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(64)
    inner: list[int] = []

    def meddle() -> None:
        inner.append(manager.admit(list(range(100, 140))))

    outer = manager.admit([7, Meddler(1, meddle), 2, 3])  # type: ignore[list-item]
    assert manager.sequence(outer).tokens.tolist() == [7, 1, 2, 3]
    assert manager.sequence(inner[0]).tokens.tolist() == list(range(100, 140))


def test_a_list_that_shrinks_while_it_is_read_is_refused(make_manager: MakeManager) -> None:
    manager = make_manager()
    tokens: list[Any] = [1, 2, 3, 4, 5]
    tokens[1] = Meddler(2, tokens.clear)
    with pytest.raises(ValueError, match="tokens changed while it was read"):
        manager.admit(tokens)
    assert manager.handles() == []


def test_handles_are_those_of_the_call_whatever_a_digest_does_to_the_array() -> None:
    handles = np.zeros(1, np.int64)
    manager: BlockManager

    def digest(message: bytes) -> bytes:
        handles[:] = other
        return bytes(16)

    other = 0
    manager = BlockManager(8, 2, digest=digest)
    handle, other = manager.admit([1, 2]), manager.admit([3])
    handles[0] = handle
    manager.decode(handles, [9])
    assert handles[0] == other  # the digest was called
    assert manager.sequence(handle).tokens.tolist() == [1, 2, 9]
    assert manager.sequence(other).tokens.tolist() == [3]


def test_a_digest_may_keep_what_it_was_given() -> None:
    kept: list[bytes] = []

    def digest(message: bytes) -> bytes:
        kept.append(message)
        return bytes(16)

    manager = BlockManager(8, 1, digest=digest)
    serve(manager, [1, 2, 3])
    tokens = [message[-4:] for message in kept if message]
    assert tokens == [bytes([t, 0, 0, 0]) for t in (1, 2, 3)]


@pytest.mark.parametrize("threshold", range(1, 40, 3))
def test_a_plan_is_whole_though_a_finalizer_frees_sequences(threshold: int) -> None:
    """Garbage collection may run whenever an object is created, here during the plan's arrays."""
    manager = BlockManager(64, 4)
    parent = manager.admit([1, 2, 3])
    manager.commit(parent, 3)
    children = manager.fork(parent, 4)
    for child in children:
        manager.append(child, [9])

    class Request:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            manager.free(children[0])

    thresholds = gc.get_threshold()
    gc.collect()
    Request()
    try:
        gc.set_threshold(threshold)
        plan = manager.take_copies()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()  # if it has not run inside
    copies = list(plan)
    assert {copy.source for copy in copies} == {manager.sequence(parent).block_ids[0]}
    destinations = [manager.sequence(child).block_ids[0] for child in children[1:]]
    assert {copy.destination for copy in copies} >= set(destinations)
    assert len(copies) in (3, 4)
    assert {copy.num_tokens for copy in copies} == {3}
    manager.copies_applied(plan.ticket)
    manager.check_invariants()


def test_a_truncation_during_a_plan_that_is_taken_back_counts() -> None:
    """Tokens 15 to 22 are in the ring: the forward of the 24th token never ran."""
    groups = [FullAttention(), Ring(8, restart=4)]
    manager = BlockManager(40, 4, groups=groups, null_block=True)
    handle = manager.admit(range(23))
    manager.commit(handle, 23)
    manager.append(handle, [23])

    def lose(*plan: object) -> CopyPlan:
        assert manager.truncate(handle, 17) == 17
        raise MemoryError

    with pytest.raises(MemoryError):
        manager._core.take_copies(cast("type[CopyPlan]", lose))
    assert manager.truncate(handle, 13) == 12  # with an empty ring: it lacks token 12
    ring = manager.group_table(1)[handle & 0xFFFFFFFF, 0]
    zeros = manager.take_copies().zeros
    assert zeros is not None
    assert zeros.tolist() == [ring]


def test_a_resumption_during_a_plan_that_is_taken_back_counts() -> None:
    """Its new ring was given tokens 28 to 36: nothing of what its old ring was given remains."""
    groups = [FullAttention(), Ring(8, restart=4)]
    manager = BlockManager(20, 4, groups=groups, null_block=True)
    handle = manager.admit(range(48))
    manager.copies_applied(manager.take_copies().ticket)
    manager.commit(handle, 48)
    manager.append(handle, [48])

    def lose(*plan: object) -> CopyPlan:
        manager.preempt(handle)
        other = manager.admit(range(100, 144))
        manager.commit(other, 44)
        manager.free(other)  # the pool has room for 7 of the 12 blocks that were cached
        manager.resume(handle)
        assert manager.truncate(handle, 29) == 28
        raise MemoryError

    with pytest.raises(MemoryError):
        manager._core.take_copies(cast("type[CopyPlan]", lose))
    step(manager)
    manager.append(handle, range(8))
    step(manager)
    assert manager.truncate(handle, 33) == 33


def test_a_refused_decode_keeps_the_remaps(make_manager: MakeManager) -> None:
    manager = make_manager(300, 1, max_seqs=8)
    for token in range(270):
        pair = [manager.admit([token, 0]) for _ in range(2)]
        for handle in pair:
            manager.commit(handle, 1)
        for handle in pair:
            manager.free(handle)
    full = manager.admit([999] * (manager.num_available - 1))
    manager.admit([998])
    before = fingerprint(manager)
    with pytest.raises(OutOfBlocksError):
        manager.decode([full], [1])
    assert fingerprint(manager) == before
    assert len(manager.take_remaps()) >= 256


def test_one_remap_left_untaken_survives_a_long_prompt(make_manager: MakeManager) -> None:
    manager = make_manager(2_000, 1)
    a, b = manager.admit([1, 0]), manager.admit([1, 0])
    manager.commit(a, 1)
    manager.commit(b, 1)
    manager.commit(manager.admit(list(range(5, 1_005))), 1_000)
    [remap] = manager.take_remaps()
    assert (remap.handle, remap.index) == (b, 0)
    assert remap.new == ids(manager.sequence(a))[0]


def test_after_a_loss_every_table_can_be_made_right(make_manager: MakeManager) -> None:
    """Also an entry that was remapped and whose block then lost its key by a truncation."""
    manager = make_manager(400, 2)
    a, b = manager.admit([7, 7, 1, 1, 1]), manager.admit([7, 7, 1, 1, 2])
    mine = ids(manager.sequence(b))
    for handle in (a, b):
        manager.commit(handle, 4)
    manager.truncate(b, 3)
    for token in range(10, 310):
        pair = [manager.admit([token, 0, 0]) for _ in range(2)]
        for handle in pair:
            manager.commit(handle, 2)
        for handle in pair:
            manager.free(handle)
    for remap in manager.take_remaps():
        if remap.handle == b:
            mine[remap.index] = remap.new
    assert mine[:2] == ids(manager.sequence(b))
