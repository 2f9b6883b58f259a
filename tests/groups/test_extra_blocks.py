"""Slots of a sequence beside the one that its recurrent states are in (``extra_blocks``)."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    Admission,
    BlockManager,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    RecurrentState,
    Ring,
    SequenceStateError,
    SlidingWindow,
    StepError,
)

FULL, STATE = FullAttention(), RecurrentState(extra_blocks=2)
PROMPT = list(range(1, 17))


def manager_of(*groups: Any, **options: Any) -> BlockManager:
    named = {"num_blocks": 64, "block_size": 4, "max_seqs": 8, "null_block": True, "debug": 2}
    return BlockManager(groups=[FULL, *groups], **{**named, **options})


def launch(manager: BlockManager) -> list[tuple[int, int]]:
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    return [(copy.source, copy.destination) for copy in plan]


def slots_of(manager: BlockManager, handle: int, group: int = 1) -> list[int]:
    found: list[int] = manager.group_table(group)[manager.row(handle)].tolist()
    return found


def test_a_sequence_has_distinct_slots_that_stay_in_their_columns() -> None:
    manager = manager_of(STATE, STATE)
    handle = manager.admit(PROMPT)
    before = [slots_of(manager, handle, group) for group in (1, 2)]
    assert len({*before[0], *before[1]} - {0}) == 6
    for slot in (2, 0, 1, 1, 2, 1, 0):
        manager.place_state(handle, slot)
        assert [slots_of(manager, handle, group) for group in (1, 2)] == before
    manager.free(handle)
    assert manager.num_available == manager.config.capacity
    assert not manager.group_table(1).any()


def test_a_ring_beside_slots_has_one_block_wherever_the_state_is() -> None:
    manager = manager_of(STATE, Ring(4, restart=2), STATE, Ring(3))
    handle = manager.admit(PROMPT)
    launch(manager)
    before = [slots_of(manager, handle, group) for group in (1, 2, 3, 4)]
    assert [len(each) for each in before] == [3, 1, 3, 1]
    assert len({block for each in before for block in each} - {0}) == 8
    manager.place_state(handle, 2)
    manager.commit(handle, 16)
    manager.append(handle, [7] * 4)  # shows all tables again
    assert [slots_of(manager, handle, group) for group in (1, 2, 3, 4)] == before
    [child] = manager.fork(handle)
    after = [slots_of(manager, child, group) for group in (1, 2, 3, 4)]
    assert all(block for each in after for block in each)
    manager.free(child)
    manager.preempt(handle)
    manager.resume(handle)
    assert len({block for group in (1, 2, 3, 4) for block in slots_of(manager, handle, group)}) == 8
    manager.free(handle)
    assert manager.num_available == manager.config.capacity
    assert not any(manager.group_table(group).any() for group in (1, 2, 3, 4))


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_state_is_kept_from_the_slot_that_it_is_in(slot: int) -> None:
    manager = manager_of(STATE, dedup="append_only")
    handle = manager.admit(PROMPT)
    launch(manager)
    manager.place_state(handle, slot)
    manager.commit(handle, 12)  # a stop
    [(source, _)] = launch(manager)
    assert source == slots_of(manager, handle)[slot]
    manager.place_state(handle, (slot + 1) % 3)
    manager.commit(handle, 16)
    assert manager.cache_state(handle)
    [(source, kept)] = launch(manager)
    assert source == slots_of(manager, handle)[(slot + 1) % 3]
    reader = manager.admit([*PROMPT, 90])
    [(source, copy)] = launch(manager)
    assert (source, copy) == (kept, slots_of(manager, reader)[0])


def test_the_end_of_a_sequence_keeps_the_slot_that_its_state_is_in() -> None:
    manager = manager_of(STATE)
    handle = manager.admit(PROMPT[:8])
    last = slots_of(manager, handle)[2]
    manager.place_state(handle, 2)
    manager.commit(handle, 8)
    launch(manager)
    manager.free(handle)
    assert manager.match([*PROMPT[:8], 90]).num_cached_tokens == 8
    reader, second = manager.admit([*PROMPT[:8], 90]), manager.admit([*PROMPT[:8], 91])
    copies = launch(manager)
    sources = {source for source, _ in copies} or {slots_of(manager, reader)[0]}
    assert last in sources
    assert slots_of(manager, reader)[0] != slots_of(manager, second)[0]


def test_forks_copy_the_state_to_the_first_of_their_own_slots() -> None:
    manager = manager_of(STATE)
    parent = manager.admit(PROMPT[:6])
    manager.place_state(parent, 1)
    manager.commit(parent, 6)
    launch(manager)
    [child] = manager.fork(parent)
    assert launch(manager) == [(slots_of(manager, parent)[1], slots_of(manager, child)[0])]
    assert not {*slots_of(manager, parent)} & {*slots_of(manager, child)}
    manager.place_state(child, 2)
    manager.commit(child, 6)
    manager.reparent([parent, child], [1, 1])
    assert launch(manager) == [(slots_of(manager, child)[2], slots_of(manager, parent)[0])]
    manager.free(parent)
    manager.free(child)
    assert manager.num_available == manager.config.capacity


def test_slots_count_when_a_prompt_is_admitted() -> None:
    # A prompt of one block takes it, and three slots.
    manager = manager_of(STATE, num_blocks=8)
    first = manager.admit([1, 2, 3])
    assert manager.num_available == 3
    assert manager.can_admit([5, 6, 7]) is Admission.LATER
    with pytest.raises(OutOfBlocksError):
        manager.admit([5, 6, 7])
    with pytest.raises(OutOfBlocksError):
        manager.fork(first, 2)
    manager.preempt(first)
    manager.admit([5, 6, 7])
    with pytest.raises(OutOfBlocksError):
        manager.resume(first)
    assert manager.can_admit(list(range(30, 46))) is Admission.LATER  # 4 + 3 of 7
    assert manager.can_admit(list(range(30, 47))) is Admission.NEVER
    with pytest.raises(NeverFitsError):
        manager.admit(list(range(30, 47)))


def test_slots_count_in_the_share_of_a_tenant() -> None:
    quotas = {b"tenant": 5}
    manager = manager_of(STATE, num_blocks=40, quotas=quotas)
    manager.admit([1, 2, 3], namespace=b"tenant")
    assert manager.quota_usage(b"tenant").available == 1
    assert manager.can_admit([5, 6], namespace=b"tenant") is Admission.LATER
    assert manager.can_admit(list(range(9)), namespace=b"tenant") is Admission.NEVER


def test_only_a_slot_of_a_running_sequence_is_one() -> None:
    manager = manager_of(STATE)
    handle = manager.admit(PROMPT)
    for slot in (-1, 3):
        with pytest.raises(ValueError, match="slot must be"):
            manager.place_state(handle, slot)
    manager.preempt(handle)
    with pytest.raises(SequenceStateError, match="preempted"):
        manager.place_state(handle, 0)
    plain = BlockManager(8, 4)
    handle = plain.admit([1])
    plain.place_state(handle, 0)  # no group has states
    with pytest.raises(ValueError, match="slot must be"):
        plain.place_state(handle, 1)


def test_groups_of_states_have_as_many_slots_and_columns_for_them() -> None:
    with pytest.raises(ValueError, match="extra_blocks must be the same"):
        manager_of(STATE, RecurrentState())
    with pytest.raises(ValueError, match="max_blocks_per_seq must be at least 3"):
        manager_of(STATE, max_blocks_per_seq=2)
    with pytest.raises(ValueError, match="extra_blocks must be"):
        RecurrentState(extra_blocks=-1)
    assert repr(STATE) == "RecurrentState(extra_blocks=2)"
    assert repr(RecurrentState()) == "RecurrentState()"
    assert manager_of(STATE).group_table(1).shape[1] == 3


def call_one(
    manager: BlockManager, rng: random.Random, running: list[int], waiting: list[int]
) -> None:
    """A random call of a random sequence."""
    call = rng.choice(["admit", "append", "append", "commit", "fork", "free", "preempt", "resume"])
    if call == "admit":
        running.append(manager.admit([rng.randrange(2) for _ in range(rng.randint(1, 12))]))
    elif call == "resume" and waiting:
        manager.resume(waiting[-1])
        running.append(waiting.pop())
    elif running and call != "resume":
        handle = rng.choice(running)
        if call == "append":
            manager.append(handle, [rng.randrange(2)])
        elif call == "commit":
            view = manager.sequence(handle)
            manager.place_state(handle, rng.randrange(manager.group_table(1).shape[1]))
            manager.commit(handle, rng.randint(view.num_computed_tokens, view.num_tokens))
        elif call == "fork":
            running += manager.fork(handle)
        else:
            running.remove(handle)
            getattr(manager, call)(handle)
            waiting += [handle] * (call == "preempt")


@pytest.mark.parametrize("seed", range(20))
def test_random_calls_keep_all_counts(seed: int) -> None:
    rng = random.Random(seed)
    groups = [RecurrentState(extra_blocks=rng.randint(1, 3))] * rng.randint(1, 2)
    more = [SlidingWindow(5)] if rng.random() < 0.3 else []
    manager = manager_of(
        *groups,
        *more,
        num_blocks=rng.randint(14, 40),
        max_seqs=64,
        dedup=rng.choice(["remap", "append_only"]),
        min_partial_tokens=rng.choice([0, 1]),
    )
    running: list[int] = []
    waiting: list[int] = []
    for _ in range(200):
        with contextlib.suppress(OutOfBlocksError, StepError):
            call_one(manager, rng, running, waiting)
        if rng.random() < 0.5:
            launch(manager)
        manager.check_invariants()
        for group in range(1, 1 + len(groups)):
            table = manager.group_table(group)
            held = table[[manager.row(handle) for handle in running]]
            assert len(np.unique(held)) == held.size
            assert np.count_nonzero(table) == held.size
    for handle in (*running, *waiting):
        manager.free(handle)
    launch(manager)
    manager.check_invariants()
    assert manager.num_available == manager.config.capacity
