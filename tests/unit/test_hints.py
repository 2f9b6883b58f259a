"""KV hints carried out on blocks: outcomes, bounds, tenants, and hostile messages."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra 'hints'")

from blockmgr import BlockManager, HintError, Priority, UnknownSequenceError
from blockmgr.events.codec import short
from blockmgr.hints import Hints, Outcome, Result
from blockmgr.hints.payloads import MOST_HASHES
from tests.unit.engine import cache, serve
from tests.unit.snapshot import snapshot
from tests.unit.test_blocks_by_digest import cached, make_manager
from tests.unit.test_retention import A, B, need

LONG = [*A, *B]
numbers = itertools.count()


@pytest.fixture
def manager() -> BlockManager:
    manager = make_manager(6, retention=True, max_pinned_blocks=3)
    manager.set_time(100.0)
    return manager


@pytest.fixture
def hints(manager: BlockManager) -> Hints:
    return Hints(manager)


def hashes(manager: BlockManager, tokens: list[int], **key: Any) -> list[str]:
    return [digest.hex() for digest in manager.block_digests(tokens, **key)]


def action(kind: str, number: int = 0, version: str = "1.0", **payload: Any) -> dict[str, Any]:
    return {
        "action_id": f"a{number}",
        "action_type": kind,
        "action_version": version,
        "payload": payload,
    }


def message(*actions: dict[str, Any]) -> dict[str, Any]:
    return {"protocol_version": "0.1", "message_id": f"m{next(numbers)}", "actions": list(actions)}


def ask(hints: Hints, kind: str, *, where: dict[str, Any] | None = None, **payload: Any) -> Outcome:
    [outcome] = hints.hint(message(action(kind, **payload)), **(where or {}))
    return outcome


def facts(outcome: Outcome) -> tuple[str, int, int]:
    return outcome.result.value, outcome.num_blocks, outcome.num_missing


def levels(manager: BlockManager) -> tuple[int, int, int]:
    """Blocks with a low and a high priority, and pinned ones."""
    stats = manager.stats()
    return stats.low_priority_blocks, stats.high_priority_blocks, stats.pinned_blocks


# What each action does.


def test_retained_blocks_stay_when_others_go(manager: BlockManager, hints: Hints) -> None:
    cache(manager, A)
    cache(manager, B)
    outcome = ask(hints, "kv.retain", block_hashes=hashes(manager, A), ttl=60)
    assert facts(outcome) == ("accepted", 2, 0)
    need(manager, 4)
    assert (cached(manager, A), cached(manager, B)) == (2, 0)


def test_a_demoted_suffix_goes_first(manager: BlockManager, hints: Hints) -> None:
    cache(manager, B[:4])
    cache(manager, [*A, 5, 5, 5, 5])
    outcome = ask(hints, "kv.demote", block_hashes=hashes(manager, [*A, 5, 5, 5, 5])[1:])
    assert facts(outcome) == ("accepted", 2, 0)
    need(manager, 4)
    assert (cached(manager, B[:4]), cached(manager, A)) == (1, 1)


def test_a_pin_ends_with_its_time_to_live(manager: BlockManager, hints: Hints) -> None:
    cache(manager, A)
    assert facts(ask(hints, "kv.pin", block_hashes=hashes(manager, A), ttl=5)) == ("accepted", 2, 0)
    manager.set_time(104.9)
    hints.expire()
    assert levels(manager) == (0, 0, 2)
    manager.set_time(105.0)
    hints.expire()
    assert levels(manager) == (0, 0, 0)
    assert hints.counts.pins == 0


def test_a_pin_that_comes_again_lives_longer(manager: BlockManager, hints: Hints) -> None:
    cache(manager, A)
    for ttl in (5, 50):
        ask(hints, "kv.pin", block_hashes=hashes(manager, A), ttl=ttl)
    assert hints.counts.pins == manager.stats().pins == 1
    manager.set_time(120.0)
    hints.expire()
    assert levels(manager) == (0, 0, 2)


def test_release_ends_pins_and_retention(manager: BlockManager, hints: Hints) -> None:
    cache(manager, A)
    names = hashes(manager, A)
    ask(hints, "kv.pin", block_hashes=names)
    ask(hints, "kv.retain", block_hashes=names)
    assert facts(ask(hints, "kv.release", block_hashes=names)) == ("accepted", 2, 0)
    assert levels(manager) == (0, 0, 0)
    assert manager.stats().pins == 0


@pytest.mark.parametrize("kind", ["kv.prefetch", "kv.share"])
def test_what_needs_a_tier_is_rejected_with_the_reason(
    manager: BlockManager, hints: Hints, kind: str
) -> None:
    outcome = ask(hints, kind, block_hashes=hashes(manager, A), destination="CPU")
    assert outcome.result is Result.REJECTED
    assert outcome.reason == "hints move no blocks to or from memory outside the device"


def test_blocks_that_are_not_cached_are_missing(manager: BlockManager, hints: Hints) -> None:
    cache(manager, A)
    names = hashes(manager, LONG)
    assert facts(ask(hints, "kv.retain", block_hashes=names)) == ("accepted", 2, 2)
    for kind in ("kv.retain", "kv.pin", "kv.demote", "kv.release"):
        assert facts(ask(hints, kind, block_hashes=names[2:])) == ("missing", 0, 2)


def test_unknown_actions_are_ignored_and_counted(manager: BlockManager, hints: Hints) -> None:
    cache(manager, A)
    known = action("kv.retain", 3, block_hashes=hashes(manager, A))
    others = [
        action("kv.fetch", 0, mode="copy"),
        action("kv.retain", 1, version="2.0", anything=[[[]]]),
        action("", 2),
    ]
    [outcome] = hints.hint(message(*others, known))
    assert (outcome.action_id, outcome.result) == ("a3", Result.ACCEPTED)
    assert hints.counts.ignored == 3


@pytest.mark.parametrize(
    ("priority", "level"),
    [
        ("low", Priority.LOW), (0, Priority.LOW), (34, Priority.LOW),
        ("normal", Priority.NORMAL), (35, Priority.NORMAL),
        ("expected", Priority.EXPECTED), (36, Priority.EXPECTED), (69, Priority.EXPECTED),
        ("high", Priority.HIGH), (70, Priority.HIGH), (100, Priority.HIGH),
    ],
)  # fmt: skip
def test_a_priority_is_a_name_or_a_number_as_in_tensorrt_llm(
    manager: BlockManager, hints: Hints, priority: object, level: Priority
) -> None:
    cache(manager, A)
    ask(hints, "kv.retain", block_hashes=hashes(manager, A), priority=priority)
    stats = manager.stats()
    expected = {
        Priority.LOW: stats.low_priority_blocks,
        Priority.EXPECTED: stats.expected_blocks,
        Priority.HIGH: stats.high_priority_blocks,
    }
    assert {p: n for p, n in expected.items() if n} == (
        {} if level is Priority.NORMAL else {level: 2}
    )


# Names of blocks.


def test_block_hashes_come_in_every_form_in_which_they_leave(manager: BlockManager) -> None:
    cache(manager, A)
    digests = manager.block_digests(A)
    low, high = Hints(manager), Hints(manager, leading=True)
    signed = [int.from_bytes(digest[:8], "big", signed=True) for digest in digests]  # as SGLang
    for hints, names in (
        (low, digests),
        (low, [d.hex() for d in digests]),
        (low, [short(d) for d in digests]),
        (low, [digests[0], short(digests[1])]),
        (high, signed),
    ):
        assert facts(ask(hints, "kv.retain", block_hashes=names)) == ("accepted", 2, 0)
        assert facts(ask(hints, "kv.pin", block_hashes=names)) == ("accepted", 2, 0)
        assert facts(ask(hints, "kv.release", block_hashes=names)) == ("accepted", 2, 0)
        assert levels(manager) == (0, 0, 0)


def test_the_first_part_of_a_digest_names_a_block_of_its_own_namespace(
    manager: BlockManager,
) -> None:
    cache(manager, A)
    cache(manager, A, namespace=b"t")
    hints = Hints(manager, leading=True)
    [first, second] = [int.from_bytes(digest[:8], "big") for digest in manager.block_digests(A)]
    assert facts(ask(hints, "kv.retain", block_hashes=[first, second])) == ("accepted", 2, 0)
    for name in (first ^ 1, first ^ 1 << 63):
        assert facts(ask(hints, "kv.retain", block_hashes=[name, second])) == ("accepted", 1, 1)
    asked = action("kv.retain", block_hashes=[first])
    [foreign] = hints.hint(message(asked), namespace=b"t")
    assert foreign.result is Result.MISSING


# Bounds.


def test_an_envelope_may_search_all_blocks_a_few_times(manager: BlockManager) -> None:
    cache(manager, A)
    [first, _] = manager.block_digests(A)
    low = int.from_bytes(first[-8:], "big")
    parts = [action("kv.retain", block_hashes=[low]) for _ in range(5)]
    whole = [action("kv.retain", block_hashes=[first]) for _ in range(3)]
    named = [{**one, "action_id": str(number)} for number, one in enumerate([*parts, *whole])]
    outcomes = Hints(manager).hint(message(*named))
    assert [outcome.result.value for outcome in outcomes] == [
        *["accepted"] * 4, "rejected", *["accepted"] * 3,
    ]  # fmt: skip
    assert outcomes[4].reason == "more than 4 actions name blocks by numbers; send whole digests"
    high = int.from_bytes(first[:8], "big")
    named = [{**one, "payload": {"block_hashes": [high]}} for one in named]
    outcomes = Hints(manager, leading=True).hint(message(*named))
    assert {outcome.result.value for outcome in outcomes} == {"accepted"}


def test_the_operators_bounds_clip(manager: BlockManager) -> None:
    cache(manager, LONG)
    hints = Hints(manager, max_ttl=10, max_blocks=1)
    names = hashes(manager, LONG)
    for kind in ("kv.retain", "kv.pin"):
        assert facts(ask(hints, kind, block_hashes=names)) == ("clipped", 1, 0)
    one = ask(hints, "kv.retain", block_hashes=names[:1], ttl=1e300)
    assert (facts(one), one.reason) == (("clipped", 1, 0), "ttl must be at most 10 s")
    manager.set_time(110.0)
    hints.expire()
    assert levels(manager) == (0, 0, 0)


def test_a_pin_is_clipped_to_the_budget_and_rejected_without_one(
    manager: BlockManager, hints: Hints
) -> None:
    cache(manager, LONG)
    assert facts(ask(hints, "kv.pin", block_hashes=hashes(manager, LONG))) == ("clipped", 3, 0)
    cache(manager, [7] * 4)
    outcome = ask(hints, "kv.pin", block_hashes=hashes(manager, [7] * 4))
    assert outcome.result is Result.REJECTED
    assert "need 1 more of the pin budget, 0 of 3 left" in str(outcome.reason)


def test_pins_without_blocks_make_room_for_others(manager: BlockManager, hints: Hints) -> None:
    """Each pin counts against the budget, and a reset leaves it without blocks."""
    for token in (1, 2, 3):
        cache(manager, [token] * 4)
        ask(hints, "kv.pin", block_hashes=hashes(manager, [token] * 4))
    manager.reset_prefix_cache()
    cache(manager, A)
    assert facts(ask(hints, "kv.pin", block_hashes=hashes(manager, A))) == ("accepted", 2, 0)
    assert hints.counts.pins == manager.stats().pins == 1


def test_pins_that_come_again_and_again_take_no_more_memory(
    manager: BlockManager, hints: Hints
) -> None:
    cache(manager, A)
    for _ in range(1000):
        ask(hints, "kv.pin", block_hashes=hashes(manager, A), ttl=1e300)
    assert len(hints._pins._deadlines) < 100
    assert len(hints._remembered) <= 1000


# Tenants.


@pytest.mark.parametrize("quotas", [{}, {b"theirs": 3}])
@pytest.mark.parametrize("kind", ["kv.retain", "kv.pin", "kv.demote", "kv.release"])
@pytest.mark.parametrize("form", ["whole", "number"])
def test_a_hint_acts_on_blocks_of_its_tenant_only(
    quotas: dict[bytes, int], kind: str, form: str
) -> None:
    """A hostile tenant knows the digests, the messages and the actions of another one."""
    manager = make_manager(6, retention=True, max_pinned_blocks=4, quotas=quotas)
    hints = Hints(manager)
    cache(manager, A, namespace=b"theirs")
    cache(manager, A, namespace=b"ours")
    names: list[Any] = manager.block_digests(A, namespace=b"theirs")
    if form == "number":
        names = [short(name) for name in names]
    theirs = {"namespace": b"theirs"}
    ask(hints, "kv.retain", where=theirs, block_hashes=names)
    ask(hints, "kv.pin", where=theirs, block_hashes=names[:1])
    before = snapshot(manager)
    outcome = ask(hints, kind, where={"namespace": b"ours"}, block_hashes=names)
    assert facts(outcome) == ("missing", 0, 2)
    assert snapshot(manager) == before


def test_a_message_of_another_tenant_is_no_replay(manager: BlockManager, hints: Hints) -> None:
    cache(manager, A, namespace=b"theirs")
    same = message(action("kv.retain", block_hashes=hashes(manager, A, namespace=b"theirs")))
    assert facts(*hints.hint(same, namespace=b"ours")) == ("missing", 0, 2)
    assert facts(*hints.hint(same, namespace=b"theirs")) == ("accepted", 2, 0)


# The request that carries an envelope.


def test_a_range_of_the_request_is_retained_before_it_is_computed(
    manager: BlockManager, hints: Hints
) -> None:
    handle = manager.admit([*LONG, 9])
    [kept, dropped] = hints.hint(
        message(action("kv.retain", token_range=[0, 5]), action("kv.demote", token_range=[8, 900])),
        handle=handle,
    )
    assert (facts(kept), facts(dropped)) == (("accepted", 2, 0), ("accepted", 3, 0))
    manager.commit(handle, 17)
    manager.free(handle)
    assert levels(manager) == (2, 2, 0)  # one token is too few to keep


def test_a_request_pins_what_is_cached_at_its_end(manager: BlockManager, hints: Hints) -> None:
    handle = manager.admit([*A, 9])
    [outcome] = hints.hint(message(action("kv.pin", token_range=[0, 8], ttl=5)), handle=handle)
    assert facts(outcome) == ("deferred", 0, 0)
    manager.commit(handle, 9)
    assert levels(manager) == (0, 0, 0)
    manager.set_time(200.0)
    [outcome] = hints.finish(handle)
    assert facts(outcome) == ("accepted", 2, 0)
    assert hints.finish(handle) == []
    manager.free(handle)
    assert levels(manager) == (0, 0, 2)
    manager.set_time(205.0)
    hints.expire()
    assert levels(manager) == (0, 0, 0)


def test_the_release_of_a_request_takes_back_its_pin(manager: BlockManager, hints: Hints) -> None:
    sequence = serve(manager, A)
    asked = [action("kv.pin"), action("kv.retain"), action("kv.release")]
    results = [o.result.value for o in hints.hint(message(*asked), handle=sequence.handle)]
    assert results == ["deferred", "accepted", "accepted"]
    assert hints.finish(sequence.handle) == []
    sequence.free()
    assert levels(manager) == (0, 0, 0)


def test_deferred_actions_of_lost_requests_do_not_add_up(manager: BlockManager) -> None:
    manager = make_manager(6, retention=True, max_seqs=2)
    hints = Hints(manager)
    for _ in range(10):
        handle = manager.admit(A)
        hints.hint(message(action("kv.pin")), handle=handle)
        manager.free(handle)
    assert len(hints._deferred) <= 3


def test_a_preempted_request_is_no_target(manager: BlockManager, hints: Hints) -> None:
    sequence = serve(manager, A)
    sequence.preempt()
    [outcome] = hints.hint(message(action("kv.retain")), handle=sequence.handle)
    assert outcome.result is Result.REJECTED
    sequence.resume()


def test_a_target_is_needed(manager: BlockManager, hints: Hints) -> None:
    outcome = ask(hints, "kv.retain", ttl=3.0)
    assert outcome.reason == "the action names no target, and no request carries it"
    with pytest.raises(UnknownSequenceError):
        hints.hint(message(), handle=12345)


# Hostile messages.


WRONG_PAYLOADS: dict[str, dict[str, Any]] = {
    "no hashes": {"block_hashes": []},
    "hashes that are none": {"block_hashes": [None]},
    "a short hash": {"block_hashes": ["ff"]},
    "no hexadecimal": {"block_hashes": ["xyz " * 8]},
    "a large number": {"block_hashes": [2**64]},
    "a bool as a number": {"block_hashes": [True]},
    "a nested list": {"block_hashes": [[[[1]]]]},
    "sizes that differ": {"block_hashes": [b"x" * 16, b"x" * 17]},
    "a size of no digest": {"block_hashes": [b"x" * 17]},
    "too many hashes": {"block_hashes": [1] * (MOST_HASHES + 1)},
    "an unknown field": {"block_hash": [1]},
    "an unknown field of a long name": {"x" * 10_000: 1},
    "a hash as text": {"block_hashes": "ff"},
    "a range of hashes": {"block_hashes": [1], "token_range": [0, 4]},
    "a range without end": {"token_range": [0]},
    "an empty range": {"token_range": [4, 4]},
    "a range from below 0": {"token_range": [-1, 4]},
    "a range far out": {"token_range": [0, 2**40]},
    "a ttl of 0": {"block_hashes": [1], "ttl": 0},
    "a ttl below 0": {"block_hashes": [1], "ttl": -1.0},
    "a ttl that is no number": {"block_hashes": [1], "ttl": math.nan},
    "a ttl without end": {"block_hashes": [1], "ttl": math.inf},
    "a huge ttl": {"block_hashes": [1], "ttl": 10**400},
    "a ttl as text": {"block_hashes": [1], "ttl": "3"},
    "a priority that is none": {"block_hashes": [1], "priority": "pinned"},
    "a priority out of bounds": {"block_hashes": [1], "priority": 101},
    "a bool as a priority": {"block_hashes": [1], "priority": True},
    "a priority that is a list": {"block_hashes": [1], "priority": []},
    "no blocks": {"block_hashes": [1], "max_blocks": 0},
    "a session and hashes": {"block_hashes": [1], "session": "s"},
    "an empty session": {"session": ""},
}


@pytest.mark.parametrize("name", WRONG_PAYLOADS)
@pytest.mark.parametrize("kind", ["kv.retain", "kv.pin"])
def test_a_wrong_payload_is_rejected_and_changes_nothing(
    manager: BlockManager, hints: Hints, kind: str, name: str
) -> None:
    handle = serve(manager, A).handle
    before = snapshot(manager)
    outcome = ask(hints, kind, where={"handle": handle}, **WRONG_PAYLOADS[name])
    assert outcome.result is Result.REJECTED
    assert len(str(outcome.reason)) < 400
    assert snapshot(manager) == before


@pytest.mark.parametrize("kind", ["kv.pin", "kv.demote"])
def test_only_retain_takes_a_priority(manager: BlockManager, hints: Hints, kind: str) -> None:
    cache(manager, A)
    outcome = ask(hints, kind, block_hashes=hashes(manager, A), priority="high")
    assert outcome.reason == f"{kind} takes no priority"


def test_the_hashes_of_an_envelope_are_bounded_together(
    manager: BlockManager, hints: Hints
) -> None:
    many = list(range(MOST_HASHES))
    [first, second] = hints.hint(
        message(action("kv.demote", block_hashes=many), action("kv.demote", block_hashes=[1]))
    )
    assert first.result is Result.MISSING
    assert second.reason == f"the envelope names more than {MOST_HASHES} block hashes"


def test_a_message_that_comes_again_is_not_carried_out_again(
    manager: BlockManager, hints: Hints
) -> None:
    cache(manager, A)
    same = message(action("kv.retain", block_hashes=hashes(manager, A)))
    first = hints.hint(same)
    ask(hints, "kv.release", block_hashes=hashes(manager, A))
    assert hints.hint(same) == first
    assert levels(manager) == (0, 0, 0)
    assert hints.counts.repeated == 1


def test_remembered_messages_are_bounded(manager: BlockManager, hints: Hints) -> None:
    actions = [action("kv.share", number) for number in range(64)]
    for _ in range(200):
        hints.hint(message(*actions))
    assert sum(1 + len(outcomes) for outcomes in hints._remembered.values()) <= 2**13
    assert hints._num_remembered == sum(1 + len(o) for o in hints._remembered.values())


def test_a_malformed_envelope_is_counted_and_changes_nothing(
    manager: BlockManager, hints: Hints
) -> None:
    cache(manager, A)
    before = snapshot(manager)
    good = action("kv.retain", block_hashes=hashes(manager, A))
    with pytest.raises(HintError):
        hints.hint(message(good, {"action_id": 3}))
    assert snapshot(manager) == before
    assert hints.counts.malformed == 1
    assert hints.counts.messages == 0


def test_wrong_arguments_are_refused(manager: BlockManager) -> None:
    hints = Hints(manager)
    with pytest.raises(TypeError, match="namespace must be bytes, got str"):
        hints.hint(message(), namespace="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="namespace must be"):
        hints.hint(message(), namespace=bytes(2000))
    with pytest.raises(ValueError, match="manager must have retention=True"):
        Hints(make_manager(6))
    with pytest.raises(ValueError, match="max_ttl must be above 0"):
        Hints(manager, max_ttl=0)
    with pytest.raises(ValueError, match="max_blocks must be at least 1"):
        Hints(manager, max_blocks=0)
    with pytest.raises(TypeError, match="leading must be a bool"):
        Hints(manager, leading=1)  # type: ignore[arg-type]


# Sessions.


def talk(manager: BlockManager, tokens: list[int], session: bytes, **key: Any) -> None:
    handle = manager.admit(tokens, session=session, **key)
    manager.commit(handle, len(tokens))
    manager.free(handle)


def test_the_path_of_a_session_is_a_target(manager: BlockManager, hints: Hints) -> None:
    talk(manager, LONG, b"chat")
    assert facts(ask(hints, "kv.retain", session="chat", ttl=9)) == ("accepted", 4, 0)
    assert levels(manager) == (0, 4, 0)
    assert facts(ask(hints, "kv.retain", session="chat", priority="low")) == ("accepted", 4, 0)
    ranged = ask(hints, "kv.retain", session="chat", token_range=[4, 9])
    assert facts(ranged) == ("accepted", 2, 0)
    assert levels(manager) == (1, 3, 0)  # the first block stands as high as what continues it
    assert facts(ask(hints, "kv.pin", session="chat", token_range=[0, 8])) == ("accepted", 2, 0)
    assert manager.stats().pinned_blocks == 2


def test_a_demoted_session_leaves_what_others_use(manager: BlockManager, hints: Hints) -> None:
    talk(manager, LONG, b"chat")
    talk(manager, [*A, 5, 5, 5, 5], b"other")
    assert facts(ask(hints, "kv.demote", session="chat")) == ("accepted", 2, 0)
    assert levels(manager) == (2, 0, 0)
    assert manager.session_digests(b"chat") is not None


def test_a_released_session_has_ended(manager: BlockManager, hints: Hints) -> None:
    talk(manager, A, b"chat")
    ask(hints, "kv.pin", session="chat")
    ask(hints, "kv.retain", session="chat")
    assert facts(ask(hints, "kv.release", session="chat")) == ("accepted", 2, 0)
    assert manager.session_digests(b"chat") is None
    assert (levels(manager), hints.counts.pins) == ((2, 0, 0), 0)
    assert facts(ask(hints, "kv.release", session="chat")) == ("missing", 0, 0)


def test_a_running_session_is_what_it_has_cached(manager: BlockManager, hints: Hints) -> None:
    handle = manager.admit([*A, 9], session=b"chat")
    assert ask(hints, "kv.retain", session="chat").result is Result.MISSING
    manager.commit(handle, 9)
    assert facts(ask(hints, "kv.retain", session="chat")) == ("accepted", 2, 0)
    manager.preempt(handle)
    assert facts(ask(hints, "kv.retain", session="chat")) == ("accepted", 2, 0)


@pytest.mark.parametrize("kind", ["kv.retain", "kv.pin", "kv.demote", "kv.release"])
def test_the_session_of_another_tenant_has_no_name(
    manager: BlockManager, hints: Hints, kind: str
) -> None:
    talk(manager, A, b"chat", namespace=b"theirs")
    cache(manager, A, namespace=b"ours")
    before = snapshot(manager)
    for where in ({"namespace": b"ours"}, {"namespace": b"unseen"}):
        assert ask(hints, kind, where=where, session="chat").result is Result.MISSING
    assert snapshot(manager) == before


def test_retired_paths_have_no_digests(manager: BlockManager) -> None:
    talk(manager, A, b"chat")
    manager.retire()
    assert manager.session_digests(b"chat") == []
