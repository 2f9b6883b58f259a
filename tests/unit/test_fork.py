"""Fork and reparent: everything is shared, nothing is copied before a write."""

from __future__ import annotations

from tests.conftest import MakeManager
from tests.unit.engine import ids, serve, step


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


def test_beams_can_go_round_in_a_circle(make_manager: MakeManager) -> None:
    """Each block moves from one table to another and is never free in between."""
    manager = make_manager(8, 4)
    beams = [serve(manager, [t] * 3) for t in (1, 2, 3, 4)]
    blocks = [ids(beam) for beam in beams]
    manager.reparent([b.handle for b in beams], [1, 2, 3, 0])
    assert [ids(beam) for beam in beams] == [*blocks[1:], blocks[0]]
    assert manager.stats().used_blocks == 4
    manager.check_invariants()
