"""The copy plan: any order is right, sources are kept, unneeded copies are cancelled."""

from __future__ import annotations

import pytest

from blockmgr import BlockCopy, BlockManager, TicketError
from tests.conftest import MakeManager
from tests.unit.engine import ids, serve
from tests.unit.snapshot import refused, snapshot


def test_a_copy_of_a_copy_comes_from_the_first_source(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    a = serve(manager, [1] * 3)
    [b] = a.fork()
    b.append([2])
    [c] = b.fork()
    c.truncate(3)
    c.append([3])
    plan = manager.take_copies()
    assert list(plan) == [(ids(a)[0], ids(b)[0], 3), (ids(a)[0], ids(c)[0], 3)]
    assert not set(plan.sources) & set(plan.destinations)


def test_a_collapsed_copy_brings_no_more_than_the_first_one(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    a = serve(manager, [1] * 3)
    [b] = a.fork()
    b.truncate(2)
    b.append([2])  # a copy of two tokens
    [c] = b.fork()
    c.append([3])
    assert [copy.num_tokens for copy in manager.take_copies()] == [2, 2]


def test_taken_destinations_are_kept_until_the_ticket_is_resolved(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(3, 4)
    parent = serve(manager, [1] * 3)
    [child] = parent.fork()
    child.append([2])
    ticket = manager.take_copies().ticket
    child.free()
    assert manager.num_available == 1
    manager.copies_applied(ticket)
    assert manager.num_available == 2


def test_tickets_rise_by_one_a_plan_empty_or_not(make_manager: MakeManager) -> None:
    manager = make_manager()
    tickets = []
    for _ in range(3):
        tickets.append(manager.take_copies().ticket)
        manager.copies_applied(tickets[-1])
    assert tickets == [tickets[0], tickets[0] + 1, tickets[0] + 2]


def test_a_plan_reads_as_rows_and_as_columns(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 3)
    for child in parent.fork(2):
        child.append([2])
    plan = manager.take_copies()
    assert len(plan) == 2
    rows = zip(plan.sources, plan.destinations, plan.num_tokens, strict=True)
    assert list(plan) == [BlockCopy(*map(int, row)) for row in rows]
    assert {str(c.dtype) for c in (plan.sources, plan.destinations, plan.num_tokens)} == {"int32"}


def test_a_ticket_is_resolved_once(make_manager: MakeManager) -> None:
    manager = make_manager()
    ticket = manager.take_copies().ticket
    for wrong in (ticket + 1, ticket - 1, -1):
        with refused(manager, TicketError, str(wrong)):
            manager.copies_applied(wrong)
    manager.copies_applied(ticket)
    for resolve in (manager.copies_applied, manager.copies_aborted):
        with refused(manager, TicketError, "resolved already"):
            resolve(ticket)


def test_an_aborted_plan_is_taken_again(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 3)
    [child] = parent.fork()
    child.append([2])
    plan = manager.take_copies()
    manager.copies_aborted(plan.ticket)
    again = manager.take_copies()
    assert list(again) == list(plan)
    assert again.ticket == plan.ticket + 1


def test_aborted_copies_come_before_later_ones(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 3)
    first, second = parent.fork(2)
    first.append([2])
    plan = manager.take_copies()
    second.append([3])
    manager.copies_aborted(plan.ticket)
    assert [c.destination for c in manager.take_copies()] == [ids(first)[0], ids(second)[0]]


def test_an_aborted_copy_nobody_reads_any_more_is_dropped(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 3)
    [child] = parent.fork()
    child.append([2])
    ticket = manager.take_copies().ticket
    child.free()
    manager.copies_aborted(ticket)
    assert list(manager.take_copies()) == []
    assert manager.stats().used_blocks == 1


def test_a_block_waiting_for_its_copy_is_promoted_later(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 3)
    [child] = parent.fork()
    child.append([2])
    child.commit(4)  # too early: the copy is not even taken
    assert manager.match([1, 1, 1, 2, 2]).num_cached_tokens == 0
    ticket = manager.take_copies().ticket
    child.commit(4)
    assert manager.match([1, 1, 1, 2, 2]).num_cached_tokens == 0
    manager.copies_applied(ticket)
    child.commit(4)
    assert manager.match([1, 1, 1, 2, 2]).num_cached_tokens == 4


def test_decode_promotes_what_a_commit_had_to_leave(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1] * 3)
    [child] = parent.fork()
    child.append([2])
    child.commit(4)
    manager.copies_applied(manager.take_copies().ticket)
    manager.decode([child.handle], [3])
    assert manager.match([1, 1, 1, 2, 3]).num_cached_tokens == 4


def test_copies_that_cannot_be_passed_on_are_not_taken() -> None:
    """The plan's arrays are created once it is complete; their creation can fail."""
    manager = BlockManager(8, 4)
    serve(manager, [1, 2]).fork()
    for handle in manager.handles():
        manager.append(handle, [3])
    before = snapshot(manager)

    def fails(*columns: object) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        manager._core.take_copies(fails)
    assert snapshot(manager) == before
    plan = manager.take_copies()
    assert (plan.ticket, len(plan)) == (2, 1)
