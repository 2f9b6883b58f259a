"""The whole cache: forgetting it, not reading it, digests, and hit rates."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    BlockManager,
    KeyedDigest,
    MissReason,
    Pin,
    Priority,
    RecentHits,
    SequenceStateError,
    StepError,
)
from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve
from tests.unit.snapshot import refused

PROMPT = [1, 2, 3, 4, 5, 6, 7]


# Forgetting.


def test_a_reset_waits_for_what_was_committed_ahead(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, early_commit=True)
    handle = manager.admit(PROMPT)
    manager.commit(handle, 7)
    with refused(manager, StepError, "reset the prefix cache around sequence"):
        manager.reset_prefix_cache()
    manager.copies_applied(manager.take_copies().ticket)
    assert manager.reset_prefix_cache() == 3


def test_pins_stay_held_and_cover_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, retention=True, max_pinned_blocks=3)
    cache(manager, PROMPT)
    pin = manager.pin(PROMPT)
    manager.retain_prefix(PROMPT, priority=Priority.HIGH)
    manager.reset_prefix_cache()
    assert manager.pinned(pin) == Pin(3, 0)
    stats = manager.stats()
    assert (stats.pins, stats.pinned_blocks, stats.high_priority_blocks) == (1, 0, 0)
    assert stats.evicted_pinned_blocks == 0
    cache(manager, PROMPT)
    assert manager.pinned(pin) == Pin(3, 0)
    manager.pin(PROMPT)


def test_evicted_blocks_are_forgotten_as_well() -> None:
    manager = BlockManager(4, 2, ghost_blocks=8)  # ghosts are known by digest
    cache(manager, PROMPT)
    cache(manager, [9] * 8)
    assert manager.explain(PROMPT).reason is MissReason.EVICTED
    curve = manager.hit_rate_curve()
    manager.reset_prefix_cache()
    assert manager.explain(PROMPT).reason is MissReason.NOT_REMEMBERED
    cache(manager, PROMPT)
    since = manager.hit_rate_curve() - curve
    assert not since.hit_tokens.any()


def test_without_ghosts_what_was_forgotten_is_not_called_never_seen(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 2)
    cache(manager, PROMPT)
    manager.reset_prefix_cache()
    assert manager.explain(PROMPT).reason is MissReason.NOT_REMEMBERED


# Admissions that do not read the cache.


@pytest.mark.parametrize("dedup", ["remap", "append_only"])
def test_an_admission_that_does_not_read_computes_all_and_shares_afterwards(
    make_manager: MakeManager, dedup: str
) -> None:
    manager = make_manager(16, 2, dedup=dedup, min_partial_tokens=1)
    first = cache(manager, PROMPT)
    before = manager.stats()
    seq = manager.sequence(manager.admit(PROMPT, read_cache=False))
    own = ids(seq)
    assert seq.num_cached_tokens == seq.num_computed_tokens == 0
    assert not set(own) & set(first)
    assert manager.stats().query_tokens == before.query_tokens
    seq.commit(7)
    assert (ids(seq)[:3] == first[:3]) is (dedup == "remap")
    assert manager.stats().deduplicated_blocks == 3


def test_the_curve_counts_no_look_up_that_was_not_made(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, ghost_blocks=4)
    cache(manager, PROMPT)
    before = manager.hit_rate_curve().query_tokens
    manager.free(manager.admit(PROMPT, read_cache=False))
    assert manager.hit_rate_curve().query_tokens == before


# Common prefixes.


def test_the_common_prefix_is_what_all_tables_begin_with(make_manager: MakeManager) -> None:
    manager = make_manager(32, 2)
    assert manager.num_common_prefix_blocks() == 0
    first = serve(manager, PROMPT)
    assert manager.num_common_prefix_blocks() == 3
    second = serve(manager, [1, 2, 3, 4, 9, 9, 9])
    assert manager.num_common_prefix_blocks() == 2
    third = serve(manager, [9, 9, 9])
    assert manager.num_common_prefix_blocks() == 0
    assert manager.num_common_prefix_blocks([first.handle, second.handle]) == 2
    assert manager.num_common_prefix_blocks(np.array([first.handle])) == 3
    assert manager.num_common_prefix_blocks([]) == 0
    third.preempt()
    assert manager.num_common_prefix_blocks() == 2
    with refused(manager, SequenceStateError):
        manager.num_common_prefix_blocks([third.handle])


# Digests.


def test_digests_are_those_of_the_chain() -> None:
    manager = BlockManager(8, 2, digest="sha256")
    first = hashlib.sha256(bytes(32) + bytes([1, 0, 0, 0, 2, 0, 0, 0])).digest()
    second = hashlib.sha256(first + b"image" + bytes([3, 0, 0, 0, 4, 0, 0, 0])).digest()
    assert manager.block_digests([1, 2, 3, 4, 5], extras={1: b"image"}) == [first, second]
    assert manager.block_digests([1]) == []


def test_a_whole_last_block_has_a_digest_although_admit_computes_it() -> None:
    assert len(BlockManager(8, 2).block_digests([1, 2])) == 1


def test_prompts_of_any_length_have_digests(make_manager: MakeManager) -> None:
    assert len(make_manager(1, 2).block_digests(range(1001))) == 500


def test_managers_with_one_digest_agree_and_namespaces_differ() -> None:
    managers = [BlockManager(n, 4, digest="xxh3_128") for n in (8, 16)]
    digests = [manager.block_digests(PROMPT) for manager in managers]
    assert digests[0] == digests[1]
    assert managers[0].block_digests(PROMPT, namespace=b"a") != digests[0]


def test_a_failing_digest_changes_nothing() -> None:
    class Broken(Exception):
        pass

    def digest(message: bytes) -> bytes:
        if fails:
            raise Broken
        return bytes(16)

    fails = False
    manager = BlockManager(8, 2, digest=digest)
    fails = True
    with refused(manager, Broken):
        manager.block_digests(PROMPT, namespace=b"new", extras={0: b"x"})


def test_a_keyed_digest_needs_its_key() -> None:
    keys = (b"k" * 32, b"l" * 32)
    one, other = (BlockManager(8, 2, digest=KeyedDigest(key)) for key in keys)
    assert one.block_digests(PROMPT) != other.block_digests(PROMPT)


# The last requests.


def test_the_hit_rate_looks_back_on_the_last_requests(make_manager: MakeManager) -> None:
    manager = make_manager(16, 2, hit_rate_window=2)
    assert manager.recent_hits() == RecentHits(requests=0, query_tokens=0, hit_tokens=0)
    assert manager.recent_hits().hit_rate == 0
    for prompt in ([1, 2, 3], [1, 2, 3, 4], [5, 6]):
        cache(manager, prompt)
    assert manager.recent_hits() == RecentHits(requests=2, query_tokens=6, hit_tokens=2)
    assert manager.recent_hits().hit_rate == pytest.approx(1 / 3)


@pytest.mark.parametrize("keep", [True, False])
def test_a_reset_begins_the_hit_rate_anew_unless_told_otherwise(
    make_manager: MakeManager, keep: bool
) -> None:
    manager = make_manager(16, 2)
    cache(manager, PROMPT)
    manager.reset_prefix_cache(reset_hit_rate=not keep)
    assert manager.recent_hits().requests == keep
    manager.reset_hit_rate()
    assert manager.recent_hits().requests == 0
    assert manager.stats().query_tokens == 7


# Prompts too long to be admitted.


@pytest.mark.parametrize("options", [{}, {"max_blocks_per_seq": 3}])
def test_match_of_a_prompt_longer_than_the_pool_is_the_hit(
    make_manager: MakeManager, options: dict[str, Any]
) -> None:
    manager = make_manager(6, 2, min_partial_tokens=1, **options)
    cache(manager, [1, 2, 3, 4, 5])
    found = manager.match([1, 2, 3, 4, 5] + [9] * 10_000)
    assert (found.num_cached_tokens, found.num_partial_tokens) == (5, 1)


def test_match_of_a_long_prompt_reads_no_further_than_a_row(make_manager: MakeManager) -> None:
    manager = make_manager(4, 2)
    cache(manager, [1] * 8)
    assert manager.match([1] * 1000).num_cached_tokens == 8
