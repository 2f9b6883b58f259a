"""Sessions: which blocks a new prompt supersedes, and what a client says of the next one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    BlockManager,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    Priority,
    Prompt,
    RecurrentState,
    SlidingWindow,
)
from tests.conftest import MakeManager
from tests.unit.snapshot import refused

SYSTEM = [1, 1, 1, 1, 2, 2, 2, 2]
FIRST = [*SYSTEM, 3, 3, 3, 3, 4, 4, 4, 4]
EDITED = [*SYSTEM, 5, 5, 5, 5, 6, 6, 6, 6]


@pytest.fixture
def manager(make_manager: MakeManager) -> BlockManager:
    return make_manager(12, retention=True, max_pinned_blocks=4, debug=2)


def serve(manager: BlockManager, tokens: list[int], session: bytes = b"", **options: Any) -> None:
    """Admit, compute and end one request."""
    handle = manager.admit(tokens, session=session, **options)
    manager.commit(handle, len(tokens))
    manager.free(handle)


def cached(manager: BlockManager, tokens: list[int], **options: Any) -> int:
    """Leading full blocks of the prompt that are cached."""
    return len(manager.match([*tokens, 0], **options).block_ids)


def low(manager: BlockManager) -> int:
    return manager.stats().low_priority_blocks


def test_a_prompt_edited_in_the_middle_supersedes_what_follows_the_edit(
    manager: BlockManager,
) -> None:
    serve(manager, FIRST, b"chat")
    serve(manager, [9] * 8)
    serve(manager, EDITED, b"chat")
    assert (low(manager), manager.stats().superseded_blocks) == (2, 2)
    manager.free(manager.admit([8], num_slots=6 * 4))
    # Four blocks were free. The two that are superseded went before the older ones of the other.
    assert cached(manager, FIRST) == 2
    assert cached(manager, [9] * 8) == 2
    assert cached(manager, EDITED) == 4


def test_a_prompt_that_continues_its_session_supersedes_nothing(manager: BlockManager) -> None:
    serve(manager, FIRST, b"chat")
    serve(manager, [*FIRST, 7, 7, 7, 7], b"chat")
    assert low(manager) == 0


def test_an_answer_that_the_next_turn_leaves_out_is_superseded(manager: BlockManager) -> None:
    serve(manager, [*FIRST, 7, 7, 7, 7], b"chat")
    serve(manager, [*FIRST, 8, 8, 8, 8], b"chat")
    assert manager.stats().superseded_blocks == 1


def test_a_prompt_that_shares_less_than_half_is_beside_the_conversation(
    manager: BlockManager,
) -> None:
    serve(manager, FIRST, b"chat")
    serve(manager, [*SYSTEM[:4], 7, 7, 7, 7], b"chat")
    assert low(manager) == 0


def test_the_same_prompt_again_keeps_its_blocks(manager: BlockManager) -> None:
    serve(manager, FIRST, b"chat")
    serve(manager, FIRST, b"chat")
    # The last block is computed again, and found to be cached already.
    assert low(manager) == 0


@pytest.mark.parametrize("user", ["session", "sequence", "hold", "retained", "pin", "branch"])
def test_what_something_else_uses_is_not_superseded(manager: BlockManager, user: str) -> None:
    serve(manager, FIRST, b"chat")
    if user == "session":
        serve(manager, FIRST, b"other")
    elif user == "sequence":
        manager.admit([*FIRST, 0])
    elif user == "hold":
        manager.acquire(manager.match([*FIRST, 0]).block_ids)
    elif user == "retained":
        manager.retain_prefix(FIRST, priority=Priority.HIGH)
    elif user == "pin":
        manager.pin(FIRST)
    else:
        serve(manager, [*FIRST, 7, 7, 7, 7])
    serve(manager, EDITED, b"chat")
    assert (low(manager), manager.stats().superseded_blocks) == (0, 0)


def test_two_sessions_with_one_prefix_keep_it_until_both_have_ended(manager: BlockManager) -> None:
    serve(manager, [*SYSTEM, 3, 3, 3, 3], b"a")
    serve(manager, [*SYSTEM, 4, 4, 4, 4], b"b")
    assert manager.end_session(b"a") == 1
    assert manager.end_session(b"b") == 3
    assert low(manager) == 4


def test_two_sessions_at_one_block_keep_it_until_both_have_ended(manager: BlockManager) -> None:
    serve(manager, FIRST, b"a")
    serve(manager, FIRST, b"b")
    assert manager.end_session(b"a") == 0
    assert manager.end_session(b"b") == 4


def test_an_ended_session_is_not_known_any_more(manager: BlockManager) -> None:
    serve(manager, FIRST, b"chat")
    assert manager.stats().sessions == 1
    assert manager.end_session(b"chat") == 4
    assert manager.stats().sessions == 0
    assert manager.end_session(b"chat") is None
    assert manager.signal(b"chat", "tool_wait") is None


def test_a_prompt_uses_the_blocks_of_an_ended_session_again(manager: BlockManager) -> None:
    serve(manager, FIRST, b"chat")
    manager.end_session(b"chat")
    serve(manager, [*FIRST, 7])
    assert low(manager) == 0


def test_a_sequence_that_ends_after_a_newer_prompt_does_not_get_the_session(
    manager: BlockManager,
) -> None:
    late = manager.admit(FIRST, session=b"chat")
    manager.commit(late, 16)
    serve(manager, EDITED, b"chat")
    manager.free(late)
    assert low(manager) == 0
    assert manager.end_session(b"chat") == 2  # of the newer prompt; the older one uses the rest
    assert cached(manager, FIRST) == 4


def test_the_last_sequence_of_an_ended_session_leaves_what_goes_first(
    manager: BlockManager,
) -> None:
    late = manager.admit(FIRST, session=b"chat")
    manager.commit(late, 16)
    assert manager.end_session(b"chat") == 0
    other = manager.admit(EDITED, session=b"chat")
    manager.commit(other, 16)
    manager.free(late)
    assert low(manager) == 2
    manager.free(other)
    assert low(manager) == 2
    assert manager.end_session(b"chat") == 4


def test_a_row_of_an_ended_sequence_does_not_stand_for_the_next_one(manager: BlockManager) -> None:
    first = manager.admit(FIRST, session=b"chat")
    row = manager.row(first)
    manager.free(first)
    second = manager.admit([9] * 8)
    assert manager.row(second) == row
    manager.commit(second, 8)
    assert manager.end_session(b"chat") == 0
    manager.free(second)
    assert low(manager) == 0


def test_forks_do_not_get_the_session(manager: BlockManager) -> None:
    parent = manager.admit(FIRST, session=b"chat")
    manager.commit(parent, 16)
    [child] = manager.fork(parent)
    manager.append(child, [7] * 4)
    manager.commit(child, 20)
    manager.free(child)
    manager.free(parent)
    assert manager.signal(b"chat", "tool_wait") == 4


def test_a_sequence_that_comes_to_another_namespace_leaves_its_session(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(12, retention=True, quotas={b"own": 6}, debug=2)
    handles = [manager.admit(FIRST[:8], session=b"chat", namespace=n) for n in (b"", b"own")]
    for handle in handles:
        manager.commit(handle, 8)
    manager.reparent(handles, [1, 1])
    for handle in handles:
        manager.free(handle)
    assert manager.signal(b"chat", "tool_wait") == 0
    assert manager.signal(b"chat", "tool_wait", namespace=b"own") == 2


def test_beams_of_a_session_keep_it(manager: BlockManager) -> None:
    parent = manager.admit(FIRST, session=b"chat")
    manager.commit(parent, 16)
    [child] = manager.fork(parent)
    manager.append(child, [7] * 4)
    manager.commit(child, 20)
    manager.reparent([parent, child], [1, 0])
    manager.free(child)
    manager.free(parent)
    assert manager.end_session(b"chat") == 5


def test_a_session_that_has_left_its_namespace_has_no_digests_of_another_one(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(12, retention=True, digest="sha256_cbor", debug=2)
    handles = [manager.admit([n] * 8, session=b"chat", namespace=b"%d" % n) for n in (1, 2)]
    for handle in handles:
        manager.commit(handle, 8)
    manager.reparent(handles, [1, 1])
    assert manager.session_digests(b"chat", namespace=b"1") == []
    manager.free(handles[0])
    manager.commit(manager.admit([3] * 8, namespace=b"3"), 8)
    assert manager.session_digests(b"chat", namespace=b"1") == []
    assert len(manager.session_digests(b"chat", namespace=b"2") or []) == 2


def test_a_session_has_what_its_preempted_sequence_left(manager: BlockManager) -> None:
    handle = manager.admit(FIRST, session=b"chat")
    manager.commit(handle, 16)
    manager.preempt(handle)
    assert manager.signal(b"chat", "tool_wait") == 4
    manager.resume(handle)
    assert (manager.stats().expected_blocks, manager.signal(b"chat", "tool_wait")) == (0, 0)
    manager.commit(handle, 16)
    manager.preempt(handle)
    manager.free(handle)
    assert manager.stats().expected_blocks == 4
    assert manager.end_session(b"chat") == 4
    assert low(manager) == 4


def test_a_session_that_ends_while_its_sequence_waits_lets_its_blocks_go(
    manager: BlockManager,
) -> None:
    handle = manager.admit(FIRST, session=b"chat")
    manager.commit(handle, 16)
    manager.preempt(handle)
    assert manager.end_session(b"chat") == 4
    manager.resume(handle)
    assert low(manager) == 1  # the last block is computed again
    manager.preempt(handle)
    assert low(manager) == 4


def test_a_prompt_supersedes_nothing_from_which_a_preempted_sequence_goes_on(
    manager: BlockManager,
) -> None:
    handle = manager.admit(FIRST, session=b"chat")
    manager.commit(handle, 16)
    manager.preempt(handle)
    serve(manager, EDITED, b"chat")
    assert (low(manager), manager.stats().superseded_blocks) == (0, 0)


def test_a_prompt_that_goes_on_within_the_last_block_supersedes_nothing(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(12, retention=True, min_partial_tokens=1, debug=2)
    serve(manager, FIRST[:14], b"chat")
    serve(manager, FIRST, b"chat")
    assert (low(manager), manager.stats().superseded_blocks) == (0, 0)
    serve(manager, [*FIRST[:14], 7, 7], b"chat")  # edited there
    assert (low(manager), manager.stats().superseded_blocks) == (1, 1)


def test_a_prompt_that_may_take_little_of_the_cache_supersedes_what_it_does_not_share(
    manager: BlockManager,
) -> None:
    serve(manager, FIRST, b"chat")
    serve(manager, EDITED, b"chat", max_cached_tokens=4)
    assert manager.stats().superseded_blocks == 2


def test_an_engine_that_expected_more_lets_an_ended_session_go(manager: BlockManager) -> None:
    handle = manager.admit(FIRST, session=b"chat")
    manager.commit(handle, 16)
    manager.free(handle, expect_reuse=True)
    assert manager.stats().expected_blocks == 4
    assert manager.end_session(b"chat") == 4
    assert (low(manager), manager.stats().expected_blocks) == (4, 0)


def test_a_signal_replaces_the_one_before(manager: BlockManager) -> None:
    serve(manager, FIRST, b"agent")
    manager.signal(b"agent", "done")
    manager.signal(b"agent", "tool_wait", expected_in=1.0)
    manager.set_time(1.0)
    assert (low(manager), manager.stats().expected_blocks) == (0, 0)


def test_what_is_expected_is_kept_over_what_is_not(manager: BlockManager) -> None:
    serve(manager, FIRST, b"agent")
    serve(manager, [9] * 16)
    assert manager.signal(b"agent", "tool_wait") == 4
    assert manager.stats().expected_blocks == 4
    manager.free(manager.admit([8], num_slots=8 * 4))
    assert (cached(manager, FIRST), cached(manager, [9] * 16)) == (4, 0)


def test_an_expectation_ends_with_its_time(manager: BlockManager) -> None:
    serve(manager, FIRST, b"agent")
    manager.signal(b"agent", "resumed", expected_in=2.0)
    manager.set_time(1.5)
    assert manager.stats().expected_blocks == 4
    manager.set_time(2.0)
    assert manager.stats().expected_blocks == 0


def test_an_expectation_ends_with_the_next_prompt(manager: BlockManager) -> None:
    serve(manager, FIRST, b"agent")
    manager.signal(b"agent", "tool_wait", expected_in=9.0)
    serve(manager, [*FIRST, 7, 7, 7, 7], b"agent")
    assert manager.stats().expected_blocks == 0
    manager.set_time(9.0)


def test_the_prompt_of_one_session_leaves_what_another_one_expects(manager: BlockManager) -> None:
    serve(manager, FIRST, b"a")
    serve(manager, FIRST, b"b")
    manager.signal(b"a", "tool_wait")
    manager.signal(b"b", "tool_wait")
    serve(manager, [*FIRST, 7, 7, 7, 7], b"a")
    assert manager.stats().expected_blocks == 4
    manager.end_session(b"b")
    assert manager.stats().expected_blocks == 0


def test_a_signal_before_the_sequence_ends_counts_when_it_does(manager: BlockManager) -> None:
    handle = manager.admit(FIRST, session=b"agent")
    manager.commit(handle, 16)
    assert manager.signal(b"agent", "tool_wait") == 0
    manager.free(handle)
    assert manager.stats().expected_blocks == 4
    handle = manager.admit([*FIRST, 7, 7, 7, 7], session=b"agent")
    manager.commit(handle, 20)
    assert manager.signal(b"agent", "done") == 0
    manager.free(handle)
    assert low(manager) == 5


def test_done_lets_the_path_go_and_keeps_the_session(manager: BlockManager) -> None:
    serve(manager, FIRST, b"agent")
    assert manager.signal(b"agent", "tool_wait") == 4
    assert manager.signal(b"agent", "done") == 4
    assert (low(manager), manager.stats().expected_blocks) == (4, 0)
    assert manager.signal(b"agent", "resumed") == 4
    assert (low(manager), manager.stats().expected_blocks) == (0, 4)
    serve(manager, [*FIRST, 7, 7, 7, 7], b"agent")
    assert low(manager) == 0


def test_an_evicted_end_makes_the_session_forget_its_path(manager: BlockManager) -> None:
    serve(manager, FIRST, b"agent")
    manager.signal(b"agent", "tool_wait")
    manager.free(manager.admit([9], num_slots=9 * 4))
    assert cached(manager, FIRST) == 3
    assert manager.stats().expected_blocks == 0
    assert manager.end_session(b"agent") == 0


def test_a_tenant_cannot_touch_the_sessions_of_another_one(make_manager: MakeManager) -> None:
    manager = make_manager(12, retention=True, quotas={b"own": 4}, debug=2)
    for namespace in (b"mine", b"own"):
        serve(manager, FIRST, b"chat", namespace=namespace)
    for namespace in (b"", b"hostile", b"own\0", b"chat"):
        serve(manager, EDITED[:8], b"chat", namespace=namespace)
        assert manager.signal(b"chat", "done", namespace=namespace) == 2
        assert manager.end_session(b"chat", namespace=namespace) == 2
    assert manager.signal(b"chat", "tool_wait", namespace=b"own") == 4
    assert manager.signal(b"chat", "tool_wait", namespace=b"mine") is not None


def test_a_quota_drops_its_own_sessions_only(make_manager: MakeManager) -> None:
    manager = make_manager(12, retention=True, quotas={b"own": 6}, max_sessions=4, debug=2)
    serve(manager, FIRST[:8], b"kept")
    for number in range(5):
        serve(manager, [number] * 8, b"%d" % number, namespace=b"own")
    assert manager.stats().sessions == 3
    assert manager.signal(b"kept", "tool_wait") == 2
    known = [manager.signal(b"%d" % n, "done", namespace=b"own") is not None for n in range(5)]
    assert known == [False, False, False, True, True]


def test_the_session_with_the_oldest_prompt_is_dropped_first(make_manager: MakeManager) -> None:
    manager = make_manager(12, retention=True, max_sessions=2, debug=2)
    serve(manager, [1] * 8, b"a")
    serve(manager, [2] * 8, b"b")
    manager.signal(b"b", "tool_wait")
    serve(manager, [1] * 12, b"a")
    serve(manager, [3] * 8, b"c")
    assert manager.signal(b"b", "done") is None
    assert manager.signal(b"a", "done") == 3
    assert (manager.stats().sessions, manager.stats().expected_blocks) == (2, 0)


def test_a_refused_admission_leaves_no_session(manager: BlockManager) -> None:
    serve(manager, FIRST, b"chat")
    running = manager.admit([9] * 40)
    for session in (b"new", b"chat"):
        with refused(manager, NeverFitsError):
            manager.admit([9] * 80, session=session)
        with refused(manager, OutOfBlocksError):
            manager.admit(EDITED, session=session)
    assert manager.stats().sessions == 1
    manager.free(running)


def test_the_memory_of_ended_sessions_is_used_again(make_manager: MakeManager) -> None:
    manager = make_manager(8, retention=True, max_sessions=1000)
    used = []
    for round_ in range(3):
        for number in range(20_000):
            session = b"session %d" % (round_ * 20_000 + number)
            manager.free(manager.admit([number % 7, 1, 2, 3, 4], session=session))
            if number % 2 and number < 18_000:
                manager.end_session(session)
        used.append(manager.memory_usage())
    assert manager.stats().sessions == 1000
    assert used[0] == used[1] == used[2]


def test_a_prompt_carries_its_session(manager: BlockManager) -> None:
    prompt = Prompt(FIRST, session=b"chat")
    assert prompt.session == b"chat"
    manager.free(manager.admit(prompt))
    assert manager.end_session(b"chat") == 0
    with pytest.raises(ValueError, match="session must be left out: the Prompt has its own"):
        manager.admit(prompt, session=b"chat")


WRONG: dict[str, tuple[type[Exception], str, Callable[[Any], object]]] = {
    "text": (TypeError, "session must be bytes, got str", lambda m: m.admit([1], session="a")),
    "long": (ValueError, "session must be 0 to 256", lambda m: m.admit([1], session=b"a" * 257)),
    "number": (TypeError, "session must be bytes, got int", lambda _: _prompt(1)),
    "long prompt": (ValueError, "session must be 0 to 256", lambda _: _prompt(b"a" * 257)),
    "end of none": (ValueError, "session must be 1 to 256", lambda m: m.end_session(b"")),
    "end of None": (TypeError, "session must be bytes", lambda m: m.end_session(None)),
    "signal of none": (ValueError, "session must be 1 to 256", lambda m: m.signal(b"", "done")),
    "signal": (ValueError, "signal must be one of", lambda m: m.signal(b"a", "asleep")),
    "signal 1": (TypeError, "signal must be a str", lambda m: m.signal(b"a", 1)),
    "done": (ValueError, "expected_in", lambda m: m.signal(b"a", "done", expected_in=1)),
    "zero": (ValueError, "expected_in", lambda m: m.signal(b"a", "resumed", expected_in=0)),
    "nan": (ValueError, "expected_in", lambda m: m.signal(b"a", "resumed", expected_in=np.nan)),
    "time": (TypeError, "expected_in", lambda m: m.signal(b"a", "resumed", expected_in="1")),
    "namespace": (
        ValueError,
        "namespace must be",
        lambda m: m.end_session(b"a", namespace=b"n" * 1025),
    ),
}


def _prompt(session: Any) -> Prompt:
    return Prompt([1], session=session)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(manager: BlockManager, name: str) -> None:
    error, message, call = WRONG[name]
    with refused(manager, error, message):
        call(manager)


def test_sessions_need_retention_and_a_table(make_manager: MakeManager) -> None:
    plain = make_manager(4)
    for call in (
        lambda: plain.admit([1], session=b"a"),
        lambda: plain.end_session(b"a"),
        lambda: plain.signal(b"a", "done"),
    ):
        with refused(plain, ValueError, "retention=True"):
            call()
    without = make_manager(4, retention=True, max_sessions=0)
    with refused(without, ValueError, "session needs max_sessions above 0"):
        without.admit([1], session=b"a")


GROUPS = {
    "windows": (FullAttention(), SlidingWindow(4)),
    "states": (FullAttention(), RecurrentState()),
}


def serve_grouped(manager: BlockManager, tokens: list[int], session: bytes = b"") -> int:
    """The same with groups, with a stop at each place where a state is worth keeping."""
    handle = manager.admit(tokens, session=session)
    found = manager.sequence(handle).num_cached_tokens
    for stop in (*manager.sequence(handle).stops, len(tokens)):
        if stop > manager.sequence(handle).num_computed_tokens:
            manager.copies_applied(manager.take_copies().ticket)
            manager.commit(handle, stop)
    manager.free(handle)
    return found


def found(manager: BlockManager, tokens: list[int]) -> int:
    return manager.match([*tokens, 7]).num_cached_tokens


def crowd(manager: BlockManager, num_prompts: int) -> None:
    for number in range(num_prompts):
        serve_grouped(manager, [100 + number] * 8)


def crowd_until_short(manager: BlockManager, tokens: list[int], wanted: int) -> None:
    """Serves other prompts until no more than this is found of a prompt."""
    for number in range(20):
        if found(manager, tokens) <= wanted:
            return
        serve_grouped(manager, [200 + number] * 4)
    raise AssertionError(f"{found(manager, tokens)} tokens are still found")


@pytest.mark.parametrize("kind", GROUPS)
def test_superseded_blocks_go_first_with_their_windows_and_states(
    make_manager: MakeManager, kind: str
) -> None:
    manager = make_manager(33, groups=GROUPS[kind], null_block=True, retention=True, debug=2)
    serve_grouped(manager, [9] * 17)
    serve_grouped(manager, FIRST[:9])
    serve_grouped(manager, [*FIRST, 0], b"chat")
    serve_grouped(manager, [*EDITED, 0], b"chat")
    assert manager.stats().superseded_blocks == 2
    crowd_until_short(manager, FIRST, 8)
    assert (found(manager, EDITED), found(manager, [9] * 16)) == (16, 16)


@pytest.mark.parametrize("kind", GROUPS)
def test_an_expected_boundary_stays_with_its_windows_and_states(
    make_manager: MakeManager, kind: str
) -> None:
    manager = make_manager(33, groups=GROUPS[kind], null_block=True, retention=True, debug=2)
    serve_grouped(manager, [*FIRST, 0], b"chat")
    assert manager.signal(b"chat", "tool_wait") == 4
    crowd(manager, 12)
    assert found(manager, FIRST) == 16


@pytest.mark.parametrize("kind", GROUPS)
def test_the_boundaries_of_an_ended_session_go_first(make_manager: MakeManager, kind: str) -> None:
    manager = make_manager(33, groups=GROUPS[kind], null_block=True, retention=True, debug=2)
    serve_grouped(manager, [9] * 17)
    serve_grouped(manager, [*FIRST, 0], b"chat")
    assert manager.end_session(b"chat") == 4
    crowd_until_short(manager, FIRST, 0)
    assert found(manager, [9] * 16) == 16


@pytest.mark.parametrize("kind", GROUPS)
def test_a_prompt_supersedes_what_it_does_not_share_wherever_it_continues_from(
    make_manager: MakeManager, kind: str
) -> None:
    manager = make_manager(65, groups=GROUPS[kind], null_block=True, retention=True, debug=2)
    path = list(range(32))
    serve_grouped(manager, [*path, 0], b"chat")
    serve_grouped(manager, [*path[:24], *[50] * 8, 0], b"chat")
    assert manager.stats().superseded_blocks == 2


@pytest.mark.parametrize("kind", GROUPS)
def test_what_was_superseded_keeps_nothing_of_an_ended_session(
    make_manager: MakeManager, kind: str
) -> None:
    manager = make_manager(65, groups=GROUPS[kind], null_block=True, retention=True, debug=2)
    path = list(range(32))
    serve_grouped(manager, [*path, 0], b"chat")
    serve_grouped(manager, [*path[:24], *[50] * 8, 0], b"chat")
    assert manager.end_session(b"chat") == 8
    serve_grouped(manager, [*path, 0], b"other")
    serve_grouped(manager, [*path[:24], *[60] * 8, 0], b"chat")
    assert manager.end_session(b"chat") == 2  # the other one uses the rest


def test_a_session_has_what_is_left_without_a_state_at_its_end(make_manager: MakeManager) -> None:
    groups = GROUPS["states"]
    manager = make_manager(65, groups=groups, null_block=True, retention=True, debug=2)
    serve_grouped(manager, [*range(32), 0])
    handle = manager.admit([*range(32), *[50] * 17], session=b"chat")
    manager.copies_applied(manager.take_copies().ticket)
    manager.commit(handle, 38)  # the client leaves while its prompt is computed
    manager.free(handle)
    assert found(manager, list(range(32))) == 32
    assert manager.end_session(b"chat") == 8


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
@pytest.mark.parametrize("kind", GROUPS)
def test_sessions_keep_every_invariant_of_groups(
    make_manager: MakeManager, kind: str, dedup: str
) -> None:
    """Checked after every call."""
    options: dict[str, Any] = {"dedup": dedup, "max_sessions": 3, "quotas": {b"own": 14}}
    manager = make_manager(
        41, groups=GROUPS[kind], null_block=True, retention=True, debug=2, **options
    )
    rng, now = random.Random(f"{kind}{dedup}"), 0.0
    stems = [rng.choices(range(3), k=30) for _ in range(3)]
    for _ in range(120):
        session, namespace = b"%d" % rng.randrange(4), rng.choice([b"", b"own"])
        if rng.random() < 0.2 and session != b"0":
            manager.end_session(session, namespace=namespace)
        if rng.random() < 0.3 and session != b"0":
            manager.signal(session, rng.choice(["tool_wait", "done"]), namespace=namespace)
        now += rng.random()
        manager.set_time(now)
        tokens = rng.choice(stems)[: rng.randint(1, 24)] + rng.choices(range(3), k=3)
        handle = manager.admit(
            tokens, session=session if session != b"0" else b"", namespace=namespace
        )
        for stop in (*manager.sequence(handle).stops, len(tokens)):
            manager.copies_applied(manager.take_copies().ticket)
            manager.commit(handle, max(stop, manager.sequence(handle).num_computed_tokens))
        if rng.random() < 0.2:
            manager.preempt(handle)
            manager.resume(handle)
        manager.free(handle)
    assert manager.stats().superseded_blocks > 0


def test_a_block_whose_key_passes_on_is_expected_by_no_session_any_more() -> None:
    """The path of the session ended at the first block, which is free then."""
    manager = BlockManager(12, 4, retention=True, dedup="append_only", debug=2)
    first = manager.admit([1, 2, 3, 4, 5], session=b"chat")
    manager.commit(first, 5)
    manager.free(first, expect_reuse=True)
    manager.signal(b"chat", "tool_wait")
    serve(manager, [1, 2, 3, 4, 5], read_cache=False)
    assert manager.stats().deduplicated_blocks == 1
    manager.check_invariants()
    manager.free(manager.admit([6], num_slots=1))
    assert manager.match([1, 2, 3, 4, 5]).num_cached_tokens == 4


def test_a_session_has_the_blocks_that_a_hold_keeps() -> None:
    """No prompt can continue from them, because no state was cached there."""
    groups = (FullAttention(), RecurrentState())
    manager = BlockManager(
        30, 4, groups=groups, null_block=True, retention=True, min_partial_tokens=0, debug=2
    )
    handle = manager.admit(FIRST[:10], session=b"chat")
    manager.commit(handle, 10)
    held = manager.sequence(handle).block_ids[:2]
    manager.acquire(held[1:])
    manager.free(handle)
    assert len(manager.session_digests(b"chat") or []) == 2
    manager.release(held[1:])
    assert manager.session_digests(b"chat") == []
    assert manager.end_session(b"chat") == 0
