"""Fork and reparent: everything is shared, nothing is copied before a write."""

from __future__ import annotations

import pytest

from blockmgr import OutOfSequencesError, SequenceStateError
from tests.conftest import MakeManager
from tests.unit.engine import ids, serve, step
from tests.unit.snapshot import refused


def test_a_fork_shares_every_block_and_copies_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1, 2, 3, 4, 5, 6])
    available = manager.num_available
    children = parent.fork(3)
    assert all(ids(child) == ids(parent) for child in children)
    assert all(child.tokens.tolist() == [1, 2, 3, 4, 5, 6] for child in children)
    assert all(child.num_computed_tokens == 6 for child in children)
    assert manager.num_available == available
    assert manager.stats().forks == 3
    assert len(manager.take_copies()) == 0


def test_append_to_a_forked_tail_copies_it_first(make_manager: MakeManager) -> None:
    """A fork shares its parent's half-full tail until one of the two writes to it."""
    manager = make_manager(8, 4)
    parent = serve(manager, [1, 2, 3, 4, 5, 6])  # one full block, one half full
    [child] = parent.fork()
    tail = ids(parent)[1]
    child.append([7])
    assert ids(child)[0] == ids(parent)[0]
    assert ids(parent)[1] == tail
    assert step(manager) == [(tail, ids(child)[1], 2)]


def test_the_last_sharer_writes_in_place(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 6)
    [child] = parent.fork()
    tail = ids(parent)[1]
    child.append([7])
    parent.append([8])
    assert ids(parent)[1] == tail
    assert manager.stats().planned_copies == 1


def test_append_at_a_block_boundary_copies_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 8)
    [child] = parent.fork()
    child.append([7])
    assert ids(child)[:2] == ids(parent)
    assert manager.stats().planned_copies == 0


def test_look_ahead_is_not_shared(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    parent = serve(manager, [1] * 3)
    parent.reserve(8)
    [child] = parent.fork()
    assert ids(child) == ids(parent)[:2]


def test_a_fork_of_a_chunked_prompt_has_its_own_pending_tokens(make_manager: MakeManager) -> None:
    manager = make_manager(16, 2)
    parent = manager.sequence(manager.admit(list(range(7)), num_slots=3))
    [child] = parent.fork()
    assert child.num_blocks == 2
    child.reserve(7)
    assert child.tokens.tolist() == parent.tokens.tolist() == list(range(7))
    assert (child.num_slots, parent.num_slots) == (8, 4)


def test_a_fork_outlives_its_parent(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 6)
    [child] = parent.fork()
    blocks = ids(child)
    parent.free()
    assert ids(child) == blocks
    child.append([2])
    assert manager.stats().planned_copies == 0


def test_fork_of_two_thousand_blocks(make_manager: MakeManager) -> None:
    """Chains are walked in a loop: recursion fails at about a thousand blocks."""
    manager = make_manager(2_000, 1)
    parent = serve(manager, [i % 7 for i in range(1_900)])
    children = parent.fork(8)
    assert all(child.num_blocks == 1_900 for child in children)
    assert manager.num_available == 100
    for seq in [parent, *children]:
        seq.free()
    assert manager.num_available == 2_000


def test_fork_needs_a_row_for_each_child(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, max_seqs=3)
    handle = manager.admit([1])
    with refused(manager, OutOfSequencesError) as caught:
        manager.fork(handle, 3)
    assert (caught.value.needed, caught.value.available) == (3, 2)
    assert len(set(manager.fork(handle, 2))) == 2


@pytest.mark.parametrize("n", [0, -1])
def test_fork_into_nothing_is_refused(make_manager: MakeManager, n: int) -> None:
    manager = make_manager()
    handle = manager.admit([1])
    with refused(manager, ValueError, "n must be"):
        manager.fork(handle, n)


def test_a_preempted_sequence_cannot_be_forked(make_manager: MakeManager) -> None:
    manager = make_manager()
    handle = manager.admit([1])
    manager.preempt(handle)
    with refused(manager, SequenceStateError, "preempted"):
        manager.fork(handle)


def test_beams_can_change_places(make_manager: MakeManager) -> None:
    """All beams change at the same time: one after another, both would become the same beam."""
    manager = make_manager(8, 4)
    left, right = (serve(manager, [t] * 3) for t in (1, 2))
    blocks = ids(left), ids(right)
    manager.reparent([left.handle, right.handle], [1, 0])
    assert (ids(right), ids(left)) == blocks
    assert left.tokens.tolist() == [2] * 3
    assert right.tokens.tolist() == [1] * 3


def test_beams_can_go_round_in_a_circle(make_manager: MakeManager) -> None:
    """Each block moves from one table to another and is never free in between."""
    manager = make_manager(8, 4)
    beams = [serve(manager, [t] * 3) for t in (1, 2, 3, 4)]
    blocks = [ids(beam) for beam in beams]
    manager.reparent([b.handle for b in beams], [1, 2, 3, 0])
    assert [ids(beam) for beam in beams] == [*blocks[1:], blocks[0]]
    assert manager.stats().used_blocks == 4
    manager.check_invariants()


def test_a_dropped_beam_gives_its_blocks_back(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    beams = [serve(manager, [t] * 3) for t in (1, 2, 3)]
    manager.reparent([b.handle for b in beams], [1, 1, 1])
    assert [ids(b) for b in beams] == [ids(beams[1])] * 3
    assert manager.stats().used_blocks == 1


def test_a_beam_that_stays_itself_keeps_its_look_ahead(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    left, right = (serve(manager, [t] * 2) for t in (1, 2))
    left.reserve(6)
    right.reserve(6)
    manager.reparent([left.handle, right.handle], [0, 0])
    assert left.num_slots == 6
    assert ids(right) == ids(left)[:1]


def test_reparent_then_decode_is_a_beam_step(make_manager: MakeManager) -> None:
    manager = make_manager(16, 4)
    first = serve(manager, [1, 1])
    beams = [first, *first.fork(2)]
    handles = [beam.handle for beam in beams]
    manager.decode(handles, [5, 6, 7])
    step(manager)
    manager.reparent(handles, [1, 1, 0])
    manager.decode(handles, [8, 9, 8])
    step(manager)
    assert [b.tokens.tolist() for b in beams] == [
        [1, 1, 6, 8],
        [1, 1, 6, 9],
        [1, 1, 5, 8],
    ]


@pytest.mark.parametrize(
    ("handles", "parents", "match"),
    [
        ([0, 0], [0, 1], "distinct"),
        ([0, 1], [0, 2], "parents"),
        ([0, 1], [0, -1], "parents"),
        ([0, 1], [0], "parents"),
    ],
)
def test_reparent_refuses_what_makes_no_sense(
    make_manager: MakeManager, handles: list[int], parents: list[int], match: str
) -> None:
    manager = make_manager()
    live = [manager.admit([1]), manager.admit([2])]
    with refused(manager, ValueError, match):
        manager.reparent([live[i] for i in handles], parents)


def test_reparent_needs_all_of_them_running(make_manager: MakeManager) -> None:
    manager = make_manager()
    handles = [manager.admit([1]), manager.admit([2])]
    manager.preempt(handles[1])
    with refused(manager, SequenceStateError, "preempted"):
        manager.reparent(handles, [0, 0])
