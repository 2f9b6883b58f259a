"""Explain: how much of a prompt is cached, why not more, and without side effects."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from blockmgr import BlockManager, MissReason
from tests.conftest import MakeManager
from tests.unit.engine import cache, serve
from tests.unit.snapshot import refused, snapshot


def reasons(manager: BlockManager, tokens: list[int], **key: object) -> list[tuple[str, int, int]]:
    """The runs of ``explain``; checks that the call changed nothing."""
    before = snapshot(manager)
    found = manager.explain(tokens, **key)  # type: ignore[arg-type]
    assert snapshot(manager) == before
    match = manager.match(tokens, **key)  # type: ignore[arg-type]
    assert found.num_cached_tokens == match.num_cached_tokens
    assert found.num_partial_tokens == match.num_partial_tokens
    assert found.num_tokens == len(tokens)
    edges = [found.num_cached_tokens, *(miss.stop for miss in found.misses)]
    assert edges[-1] == len(tokens)
    assert [miss.start for miss in found.misses] == edges[:-1]
    assert all(miss.num_tokens > 0 for miss in found.misses)
    assert found.reason is found.misses[0].reason
    return [(miss.reason.name, miss.start, miss.stop) for miss in found.misses]


def test_reuse_of_parts_can_leave_the_last_token_alone(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    cache(manager, [1, 2, 3, 4, 5, 6, 7])
    assert reasons(manager, [1, 2, 3, 4, 5, 6, 7]) == [("LAST_TOKEN", 6, 7)]


def test_the_child_that_agrees_longest_says_where_it_diverges(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4)
    for middle in (5, 6, 7):
        cache(manager, [1, middle, middle, middle])
    assert manager.explain([1, 6, 6, 0, 0]).misses[0].diverges_at == 3


def test_reuse_of_parts_starts_the_miss_where_it_diverges(make_manager: MakeManager) -> None:
    manager = make_manager(8, 4, min_partial_tokens=1)
    cache(manager, [1, 2, 3, 4, 5, 6, 7, 8])
    assert reasons(manager, [1, 2, 3, 4, 5, 6, 0, 0, 9]) == [
        ("DIVERGED", 6, 8),
        ("LAST_TOKEN", 8, 9),
    ]


def test_tokens_that_are_held_and_not_committed_are_found_so(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    handle = manager.admit([1, 2, 3, 4, 5])
    assert reasons(manager, [1, 2, 3, 4, 6]) == [("NOT_COMMITTED", 0, 4), ("LAST_TOKEN", 4, 5)]
    manager.commit(handle, 2)
    assert reasons(manager, [1, 2, 3, 4, 6]) == [("NOT_COMMITTED", 2, 4), ("LAST_TOKEN", 4, 5)]
    manager.preempt(handle)
    assert reasons(manager, [1, 2, 3, 4, 6])[0] == ("NEVER_SEEN", 2, 4)


def test_tokens_without_slots_will_be_committed_too(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    manager.admit([1, 2, 3, 4, 5], num_slots=2)
    assert reasons(manager, [1, 2, 3, 4, 6]) == [
        ("NOT_COMMITTED", 0, 4),
        ("LAST_TOKEN", 4, 5),
    ]


def test_an_explanation_never_tells_whose_namespace_or_which_extras(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 2)
    cache(manager, [1, 2, 3, 4, 5], namespace=b"tenant-salt", extras={0: b"image-hash"})
    for key in ({}, {"namespace": b"tenant-salt"}):
        found = manager.explain([1, 2, 3, 4, 5], **key)  # type: ignore[arg-type]
        assert found.reason in {MissReason.OTHER_NAMESPACE, MissReason.OTHER_EXTRAS}
        for text in (str(found), repr(found)):
            assert "salt" not in text
            assert "image" not in text


def test_an_evicted_block_says_how_long_ago_and_how_many_blocks_were_missing() -> None:
    manager = BlockManager(4, 2, ghost_blocks=8)
    for first in (10, 20, 30, 40, 50, 60):  # one findable block each; three stay beside a tail
        cache(manager, [first, first, 0])
    found = manager.explain([10, 10, 0])
    assert found.reason is MissReason.EVICTED
    miss = found.misses[0]
    assert (miss.start, miss.stop) == (0, 2)
    # 20, ..., 60 were used since, with a tail block in use beside each: seven blocks.
    assert miss.more_blocks == (3,)
    # 50 and 60 took two blocks each since 40 evicted it, and 40 itself took one more.
    assert miss.evicted_ago == 4
    for size, kept in ((6, False), (7, True)):
        larger = BlockManager(size, 2)
        for first in (10, 20, 30, 40, 50, 60):
            cache(larger, [first, first, 0])
        assert bool(larger.match([10, 10, 0]).num_cached_tokens) is kept
    manager.check_invariants()


def test_without_ghosts_evicted_and_never_seen_look_alike(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2)
    cache(manager, [1, 1, 0])
    assert reasons(manager, [5, 5, 0])[0] == ("NEVER_SEEN", 0, 2)  # nothing was evicted yet
    for first in (2, 3, 4, 6):
        cache(manager, [first, first, 0])
    assert reasons(manager, [1, 1, 0])[0] == ("NOT_REMEMBERED", 0, 2)
    assert reasons(manager, [5, 5, 0])[0] == ("NOT_REMEMBERED", 0, 2)


def test_what_passes_the_last_ghost_is_not_remembered() -> None:
    manager = BlockManager(3, 1, ghost_blocks=2)
    for first in range(2):
        cache(manager, [first, 9])  # two findable blocks each: three stay, one is a ghost
    assert reasons(manager, [8, 9])[0] == ("NEVER_SEEN", 0, 1)
    for first in range(2, 8):
        cache(manager, [first, 9])
    assert reasons(manager, [8, 9])[0] == ("NOT_REMEMBERED", 0, 1)
    manager.check_invariants()


def test_an_evicted_block_of_a_namespace_that_is_gone_is_remembered() -> None:
    manager = BlockManager(3, 2, ghost_blocks=6)
    key = {"namespace": b"gone", "extras": {0: b"gone too"}}
    cache(manager, [1, 1, 0], **key)
    for first in (2, 3, 4):
        cache(manager, [first, first, 0])
    assert reasons(manager, [1, 1, 0], **key)[0] == ("EVICTED", 0, 2)
    assert reasons(manager, [1, 1, 0])[0] == ("NEVER_SEEN", 0, 2)


def test_content_lost_before_its_commit_is_still_known_to_have_been_evicted() -> None:
    manager = BlockManager(3, 2, ghost_blocks=6)
    for first in (1, 2, 3, 4):
        cache(manager, [first, first, 0])
    handle = manager.admit([1, 1, 0])
    assert reasons(manager, [1, 1, 5])[0] == ("NOT_COMMITTED", 0, 2)
    manager.free(handle)
    assert reasons(manager, [1, 1, 5])[0] == ("EVICTED", 0, 2)
    cache(manager, [1, 1, 0])
    assert reasons(manager, [1, 1, 5]) == [("LAST_TOKEN", 2, 3)]
    manager.check_invariants()


def test_without_a_prefix_cache_nothing_is_looked_for(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, prefix_caching=False, ghost_blocks=4)
    cache(manager, [1, 2, 3])
    assert reasons(manager, [1, 2, 3]) == [("CACHING_OFF", 0, 3)]


def test_a_sentence_says_it_to_people() -> None:
    manager = BlockManager(4, 2, ghost_blocks=8)
    for first in (10, 20, 30, 40):
        cache(manager, [first, first, 0])
    assert str(manager.explain([10, 10, 7, 7, 7])) == (
        "0 of 5 tokens are cached; tokens 0 to 1 were evicted, 0 blocks handed out since: "
        "1 block more would have kept it; tokens 2 to 3 were never cached; "
        "tokens 4 to 4 are left to compute: the last token is never served from the cache"
    )


@pytest.mark.parametrize("reason", list(MissReason))
def test_every_reason_has_words(reason: MissReason) -> None:
    from blockmgr.explain import Miss

    miss = Miss(reason=reason, start=0, stop=2, more_blocks=(0,), evicted_ago=1, diverges_at=1)
    assert len(miss.why) > 10
    assert miss.why in str(miss)


def test_an_explanation_cannot_be_changed(make_manager: MakeManager) -> None:
    found = make_manager().explain([1, 2])
    with pytest.raises(FrozenInstanceError):
        found.num_tokens = 3  # type: ignore[misc]


def test_missed_tokens_are_summed_by_reason(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    serve(manager, [1, 2, 3])
    found = manager.explain([1, 2, 5, 5, 6, 6, 7])
    assert found.missed_tokens(MissReason.NEVER_SEEN) == 4
    assert found.missed_tokens(MissReason.EVICTED) == 0


def test_a_digest_that_fails_leaves_nothing_changed() -> None:
    fails = []

    def digest(message: bytes) -> bytes:
        if fails:
            raise RuntimeError("no digest today")
        return message[-8:].rjust(8, b"\0")

    manager = BlockManager(4, 2, ghost_blocks=4, digest=digest)
    for first in (1, 2, 3, 4, 5):
        cache(manager, [first, first, 0])
    fails.append(True)
    with refused(manager, RuntimeError):
        manager.explain([1, 1, 0])
    with refused(manager, RuntimeError):
        manager.admit([1, 1, 0])


def test_what_is_asked_for_again_gives_way_to_what_is_evicted_later() -> None:
    """A looked-up ghost makes room for later evictions.

    Of two ghosts, one belongs to a prompt that was requested again and not computed. The next
    evicted block takes its place, also if that place is the first.
    """
    manager = BlockManager(2, 1, ghost_blocks=1)
    for token in (1, 2, 3):
        cache(manager, [token, 9])
    manager.free(manager.admit([2, 9]))
    for token in (1, 3):
        cache(manager, [token, 9])
    assert manager.explain([1, 9]).reason is MissReason.EVICTED
    assert manager.explain([2, 9]).reason is MissReason.NOT_REMEMBERED
