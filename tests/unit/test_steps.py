"""The step contract: fences while steps are in flight, and commits ahead of the forward."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockmgr import OutOfBlocksError, StepError
from tests.conftest import MakeManager
from tests.unit.engine import ids, serve
from tests.unit.snapshot import refused


def launch(manager: object) -> int:
    ticket: int = manager.take_copies().ticket  # type: ignore[attr-defined]
    manager.copies_applied(ticket)  # type: ignore[attr-defined]
    return ticket


def test_a_block_freed_during_a_step_waits_for_its_end(make_manager: MakeManager) -> None:
    manager = make_manager(2, 2, steps_in_flight=1)
    handle = manager.admit([1] * 4)
    ticket = launch(manager)
    manager.free(handle)
    assert (manager.num_available, manager.stats().fenced_blocks) == (0, 2)
    with refused(manager, OutOfBlocksError):
        manager.admit([2])
    manager.complete(ticket)
    assert manager.num_available == 2
    manager.admit([2])


def test_a_fenced_block_can_still_be_found(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2, steps_in_flight=2)
    seq = serve(manager, [1] * 4)
    blocks = ids(seq)
    seq.free()
    assert manager.stats().fenced_blocks == 2
    again = manager.sequence(manager.admit([1] * 4 + [2]))
    assert ids(again)[:2] == blocks
    assert manager.stats().fenced_blocks == 0


def test_completing_a_step_completes_those_before(make_manager: MakeManager) -> None:
    manager = make_manager(2, 2, steps_in_flight=2)
    handle = manager.admit([1] * 2)
    launch(manager)
    manager.free(handle)
    manager.complete(launch(manager))
    assert manager.num_available == 2


def test_no_more_steps_than_configured_are_in_flight(make_manager: MakeManager) -> None:
    manager = make_manager(2, 2, steps_in_flight=2)
    first = launch(manager)
    launch(manager)
    with refused(manager, StepError, "in flight"):
        manager.take_copies()
    manager.complete(first)
    launch(manager)


@pytest.mark.parametrize("wrong", [-1, 0, 1, 3])
def test_steps_complete_in_order_and_once(make_manager: MakeManager, wrong: int) -> None:
    manager = make_manager(2, 2, steps_in_flight=2)
    manager.complete(launch(manager))
    launch(manager)
    with refused(manager, StepError, str(wrong)):
        manager.complete(wrong)


def test_complete_needs_steps_in_flight(make_manager: MakeManager) -> None:
    manager = make_manager()
    ticket = launch(manager)
    with refused(manager, StepError, "steps_in_flight"):
        manager.complete(ticket)


def test_what_an_aborted_step_released_waits_for_the_step_before(
    make_manager: MakeManager,
) -> None:
    """The aborted step will never run, but the previous one may still read the blocks."""
    manager = make_manager(2, 2, steps_in_flight=2)
    handle = manager.admit([1, 2, 3])
    first = launch(manager)
    second = manager.take_copies()
    manager.free(handle)
    manager.copies_aborted(second.ticket)
    assert manager.stats().fenced_blocks == 2
    with refused(manager, OutOfBlocksError):
        manager.admit([4])
    manager.complete(first)
    manager.admit([4])


# Early commit: commit, take_copies, copies_applied, forward.


@pytest.mark.parametrize("call", ["append", "reserve", "decode"])
def test_a_hit_of_the_same_step_is_not_copied_from(make_manager: MakeManager, call: str) -> None:
    manager = make_manager(8, 4, early_commit=True)
    manager.commit(manager.admit([1] * 5), 5)
    second = manager.sequence(manager.admit([1] * 5))
    second.truncate(2)
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: second.append([2]),
        "reserve": lambda: second.reserve(4),
        "decode": lambda: manager.decode([second.handle], [2]),
    }
    with refused(manager, StepError, f"cannot {call}.*positions 0 to 1"):
        calls[call]()
    launch(manager)
    calls[call]()
    assert second.num_computed_tokens == 2
    assert [copy.num_tokens for copy in manager.take_copies()] == [2]


@pytest.mark.parametrize("call", ["append", "reserve"])
def test_a_promise_is_not_taken_back_once_the_step_is_taken(
    make_manager: MakeManager, call: str
) -> None:
    """Committed tokens are not taken back, because their forward may be running.

    An engine that continues after them would never write them again.
    """
    manager = make_manager(8, 4, early_commit=True)
    seq = manager.sequence(manager.admit([1] * 3))
    seq.commit(1)
    launch(manager)
    [child] = seq.fork()
    child.commit(3)
    ticket = manager.take_copies().ticket
    calls: dict[str, Callable[[], object]] = {
        "append": lambda: child.append([2]),
        "reserve": lambda: child.reserve(4),
    }
    with refused(manager, StepError, f"cannot {call}.*positions 1 to 2"):
        calls[call]()
    manager.copies_applied(ticket)
    calls[call]()
    assert child.num_computed_tokens == 3
    assert [copy.num_tokens for copy in manager.take_copies()] == [3]


def test_a_hit_of_the_same_step_can_be_read_and_continued(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, early_commit=True)
    manager.commit(manager.admit([1] * 5), 5)
    second = manager.sequence(manager.admit([1] * 5))
    [third] = second.fork()
    second.append([2])
    assert second.num_computed_tokens == third.num_computed_tokens == 4
    third.truncate(4)
    third.append([3])  # to the next block: nothing has to be copied
    assert third.num_computed_tokens == 4


def test_decode_copies_what_a_decode_of_the_same_step_has_promoted(
    make_manager: MakeManager,
) -> None:
    """The previous forward has written it, so the copy must include it.

    If it counted as a promise of this step, it would not be copied and would count as not computed.
    An engine that writes only the slot it is given would then never write the rest.
    """
    manager = make_manager(16, 4, early_commit=True)
    handle = manager.admit([1, 2, 3, 4, 5, 6, 7, 8])
    launch(manager)
    [child] = manager.fork(handle)
    manager.decode([handle], [9])
    manager.truncate(child, 6)
    manager.decode([child], [10])
    assert manager.sequence(child).num_computed_tokens == 6
    assert [copy.num_tokens for copy in manager.take_copies()] == [2]


@pytest.mark.parametrize("steps", [1, 2**16 - 1, 2**16, 2**16 + 1])
def test_a_block_promoted_long_ago_can_be_copied(make_manager: MakeManager, steps: int) -> None:
    """Step numbers need more than 16 bits: otherwise, after 65,536 steps, a block looks new."""
    manager = make_manager(16, 4, early_commit=True)
    handle = manager.admit(list(range(9)))
    manager.commit(handle, 9)
    for _ in range(steps):
        launch(manager)
    [child] = manager.fork(handle)
    manager.truncate(child, 6)
    manager.decode([child], [10])
    assert manager.sequence(child).num_computed_tokens == 6
    assert [copy.num_tokens for copy in manager.take_copies()] == [2]


@pytest.mark.parametrize("early_commit", [False, True])
def test_decode_leaves_exactly_its_token_to_compute(
    make_manager: MakeManager, early_commit: bool
) -> None:
    manager = make_manager(32, 4, early_commit=early_commit)
    handles = [manager.admit([1, 2, 3, 4, 5, 6]), manager.admit([1, 2, 3])]
    launch(manager)
    handles += manager.fork(handles[0], 2)
    for token in range(12):
        manager.decode(handles, [token % 3, 1, token % 2, 0])
        views = [manager.sequence(handle) for handle in handles]
        assert all(view.num_computed_tokens == view.num_tokens - 1 for view in views)
        launch(manager)


def test_what_a_fork_has_written_is_copied_though_its_parent_promises_it(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 4, early_commit=True)
    parent = manager.sequence(manager.admit([1, 2, 3, 4]))
    parent.commit(3)
    launch(manager)
    [child] = parent.fork()
    parent.commit(4)  # the fourth token is written by this step's forward
    child.truncate(2)
    child.append([9])
    assert child.num_computed_tokens == 2
    assert [copy.num_tokens for copy in manager.take_copies()] == [2]


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_what_is_written_is_not_merged_into_what_is_promised(
    make_manager: MakeManager, dedup: str
) -> None:
    """Written K/V would be replaced by K/V that only the forward brings."""
    manager = make_manager(8, 4, early_commit=True, dedup=dedup)
    written = manager.sequence(manager.admit([1, 2, 3, 4]))
    launch(manager)
    promised = manager.sequence(manager.admit([1, 2, 3, 4]))
    promised.commit(4)
    before = ids(written)
    manager.decode([written.handle], [5])
    assert ids(written)[:1] == before
    written.truncate(2)
    written.append([9])  # in place: it is not shared
    assert written.num_computed_tokens == 2
    launch(manager)
    assert manager.match([1, 2, 3, 4, 5]).block_ids.tolist() == ids(promised)[:1]


def test_a_writer_computes_again_what_could_not_be_copied(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, early_commit=True)
    seq = manager.sequence(manager.admit([1] * 3))
    seq.commit(1)
    launch(manager)
    [child] = seq.fork()
    child.commit(3)
    child.append([2])
    assert child.num_computed_tokens == 1
    assert [copy.num_tokens for copy in manager.take_copies()] == [1]


def test_what_was_truncated_to_within_a_promise_is_not_copied(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, early_commit=True)
    manager.commit(manager.admit([1] * 9), 8)
    seq = manager.sequence(manager.admit([1] * 9))
    seq.truncate(7)
    with refused(manager, StepError, "positions 4 to 6"):
        seq.append([2])
    launch(manager)
    seq.append([2])
    assert seq.num_computed_tokens == 7
    assert [copy.num_tokens for copy in manager.take_copies()] == [3]


def test_partial_reuse_takes_what_is_written_of_a_block(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, early_commit=True, min_partial_tokens=1)
    seq = manager.sequence(manager.admit([1] * 4))
    seq.commit(1)
    launch(manager)
    seq.commit(4)
    assert manager.match([1] * 4).num_cached_tokens == 1
    launch(manager)
    assert manager.match([1] * 4).num_cached_tokens == 3


@pytest.mark.parametrize("call", ["free", "preempt", "truncate", "reparent", "decode", "fork"])
def test_a_promise_cannot_be_taken_back(make_manager: MakeManager, call: str) -> None:
    manager = make_manager(8, 4, early_commit=True)
    handle, other = manager.admit([1] * 5), manager.admit([2])
    manager.commit(handle, 5)
    calls: dict[str, Callable[[], object]] = {
        "free": lambda: manager.free(handle),
        "preempt": lambda: manager.preempt(handle),
        "truncate": lambda: manager.truncate(handle, 4),
        "reparent": lambda: manager.reparent([handle, other], [1, 1]),
        "decode": lambda: manager.decode([handle], [1]),
        "fork": lambda: manager.fork(handle),
    }
    with refused(manager, StepError, f"cannot {call}"):
        calls[call]()
    launch(manager)
    calls[call]()


def test_nobody_becomes_a_fork_of_a_promise(make_manager: MakeManager) -> None:
    """The parent may move to a fresh block; then no forward writes the previous one."""
    manager = make_manager(8, 4, early_commit=True)
    handle, other = manager.admit([1] * 7), manager.admit([2])
    manager.commit(handle, 7)
    with refused(manager, StepError):
        manager.reparent([handle, other], [0, 0])
    launch(manager)
    manager.reparent([handle, other], [0, 0])


def test_nothing_is_committed_early_once_the_step_is_taken(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, early_commit=True)
    handle = manager.admit([1] * 5)
    ticket = manager.take_copies().ticket
    with refused(manager, StepError, "ticket"):
        manager.commit(handle, 5)
    with refused(manager, StepError, "ticket"):
        manager.decode([handle], [1])
    manager.copies_applied(ticket)
    manager.commit(handle, 5)


def test_decode_after_a_commit_that_promised_nothing_new(make_manager: MakeManager) -> None:
    manager = make_manager(8, 8, early_commit=True)
    handle = manager.admit([1, 2, 3])
    manager.commit(handle, 3)
    launch(manager)
    manager.append(handle, [4])
    manager.commit(handle, 3)
    manager.decode([handle], [5])
    manager.free(handle)


def test_decode_commits_the_forward_before_not_the_one_to_come(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, early_commit=True)
    handle = manager.admit([1] * 3)
    launch(manager)
    manager.decode([handle], [2])
    manager.free(handle)


def test_a_key_that_passes_to_a_twin_within_the_step_is_not_taken_for_written(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(16, 2, dedup="append_only", early_commit=True, min_partial_tokens=1)
    written = manager.admit([1, 2, 3])
    manager.commit(written, 3)
    launch(manager)
    twin = manager.admit([1, 2, 4], read_cache=False)
    manager.commit(twin, 3)  # this step's forward writes it
    manager.free(written)
    assert manager.is_cached(ids(manager.sequence(twin))[0])
    assert manager.match([1, 9, 9]).num_cached_tokens == 0  # a copy would come before the forward
    launch(manager)
    assert manager.match([1, 9, 9]).num_cached_tokens == 1
