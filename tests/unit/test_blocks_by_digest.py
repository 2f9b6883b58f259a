"""Blocks named by their digests: retention and pins for callers who know no tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from blockmgr import BlockManager, FullAttention, PinBudgetError, Priority, RecurrentState
from tests.unit.engine import cache, serve
from tests.unit.snapshot import refused, snapshot
from tests.unit.test_retention import A, B, need

LONG = [*A, *B]  # four blocks


def make_manager(num_blocks: int, **options: Any) -> BlockManager:
    """With digests that differ, unlike some of the fixture's."""
    return BlockManager(num_blocks, 4, debug=2, **options)


@pytest.fixture
def manager() -> BlockManager:
    return make_manager(6, retention=True, max_pinned_blocks=3)


def last(digests: Sequence[bytes]) -> list[bytes]:
    return [digest[-8:] for digest in digests]


def first(digests: Sequence[bytes]) -> list[bytes]:
    return [digest[:8] for digest in digests]


def cached(manager: BlockManager, tokens: list[int], namespace: bytes = b"") -> int:
    return len(manager.match([*tokens, 0], namespace=namespace).block_ids)


def test_retained_digests_are_kept_before_what_was_used_later(manager: BlockManager) -> None:
    cache(manager, A)
    cache(manager, B)
    assert manager.retain_digests(manager.block_digests(A), priority=Priority.HIGH) == 2
    need(manager, 4)
    assert (cached(manager, A), cached(manager, B)) == (2, 0)


@pytest.mark.parametrize("part", ["whole", "last", "first"])
def test_a_part_of_a_digest_names_the_block(manager: BlockManager, part: str) -> None:
    cache(manager, LONG)
    digests = manager.block_digests(LONG)
    names = {"whole": digests, "last": last(digests), "first": first(digests)}[part]
    found = manager.retain_digests(names, priority=Priority.HIGH, leading=part == "first")
    assert found == 4
    assert manager.stats().high_priority_blocks == 4


def test_only_the_named_blocks_are_demoted(manager: BlockManager) -> None:
    cache(manager, LONG)
    digests = manager.block_digests(LONG)
    assert manager.retain_digests(digests[2:], priority=Priority.LOW) == 2
    assert manager.stats().low_priority_blocks == 2


def test_a_bound_retains_the_first_blocks_found(manager: BlockManager) -> None:
    cache(manager, LONG)
    names = [bytes(16), *manager.block_digests(LONG), *manager.block_digests(LONG)]
    assert manager.retain_digests(names, priority=Priority.HIGH, max_blocks=1) == 4
    assert manager.stats().high_priority_blocks == 1
    digests = manager.block_digests(LONG)
    manager.retain_digests(digests, priority=None)
    assert manager.stats().high_priority_blocks == 0


@pytest.mark.parametrize("cut", [list, last])
@pytest.mark.parametrize("quotas", [{}, {b"theirs": 3}])
def test_the_digests_of_another_namespace_have_no_effect(
    quotas: dict[bytes, int], cut: type[list[bytes]]
) -> None:
    """Also in one share of the blocks, and for blocks deep in a prompt."""
    manager = make_manager(6, retention=True, max_pinned_blocks=4, quotas=quotas)
    cache(manager, [*A, *B[:4]], namespace=b"theirs")
    cache(manager, A, namespace=b"ours")
    names = cut(manager.block_digests([*A, *B[:4]], namespace=b"theirs"))
    before = snapshot(manager)
    for order in (names, names[::-1]):
        assert manager.retain_digests(order, priority=Priority.HIGH, namespace=b"ours") == 0
        assert manager.pin_digests(order, namespace=b"ours") is None
        assert manager.pin_digests(order, namespace=b"never seen") is None
    assert snapshot(manager) == before
    assert manager.retain_digests(names, priority=Priority.HIGH, namespace=b"theirs") == 3


def test_equal_digests_of_two_namespaces_are_told_apart() -> None:
    """With a digest that is the same for all blocks."""
    manager = make_manager(8, retention=True, digest=lambda *_: bytes(16))
    cache(manager, A, namespace=b"theirs")
    cache(manager, B, namespace=b"ours")
    assert manager.retain_digests([bytes(16)], priority=Priority.HIGH, namespace=b"ours") == 1
    need(manager, 7)
    assert (cached(manager, A, b"theirs"), cached(manager, B, b"ours")) == (0, 1)


def test_a_pin_covers_what_its_deepest_block_continues(manager: BlockManager) -> None:
    cache(manager, [*A, 5, 5, 5, 5])
    digests = manager.block_digests([*A, 5, 5, 5, 5])
    pin = manager.pin_digests([digests[2], digests[0]])
    assert pin is not None
    assert pin[1:] == (3, 3, 2, digests[2])
    assert manager.stats().pinned_blocks == 3
    manager.unpin(pin.pin)
    assert manager.stats().pinned_blocks == 0


def test_a_pin_is_cut_to_the_budget_and_to_its_bound(manager: BlockManager) -> None:
    cache(manager, LONG)
    digests = manager.block_digests(LONG)
    pin = manager.pin_digests(digests)
    assert pin is not None
    assert pin[1:] == (3, 4, 4, digests[2])
    shorter = manager.pin_digests(digests, max_blocks=2)  # covered already, so it costs nothing
    assert shorter is not None
    assert shorter[1:] == (2, 4, 4, digests[1])
    manager.unpin(shorter.pin)
    cache(manager, [7] * 4)
    with refused(manager, PinBudgetError):
        manager.pin_digests(manager.block_digests([7] * 4))


def test_with_several_groups_a_pin_ends_where_a_prompt_can_continue() -> None:
    """A state is kept at the end of the prompt only."""
    manager = make_manager(
        24,
        retention=True,
        max_pinned_blocks=12,
        null_block=True,
        groups=(FullAttention(), RecurrentState()),
    )
    cache(manager, LONG)
    digests = manager.block_digests(LONG)
    assert manager.pin_digests(digests[:3]) is None
    assert manager.pin_digests(digests, max_blocks=3) is None
    pin = manager.pin_digests(digests)
    assert pin is not None
    assert pin.num_blocks == cached(manager, LONG) == 4
    assert manager.retain_digests(digests, priority=Priority.HIGH) == 4


def test_the_digests_of_a_sequence_are_those_of_its_cached_blocks(manager: BlockManager) -> None:
    sequence = serve(manager, [*A, 3])
    digests = manager.block_digests(A)
    assert manager.cached_digests(sequence.handle) == digests
    manager.reset_prefix_cache()
    assert manager.cached_digests(sequence.handle) == []


@pytest.mark.parametrize(
    ("digests", "error", "message"),
    [
        (b"x" * 16, TypeError, "digests must be a list or tuple of bytes, got bytes"),
        ([b"x" * 16, "x"], TypeError, "digests must be bytes, got str at index 1"),
        ([b"x" * 16, b"x" * 8], ValueError, "equally many bytes, got 8 at index 1"),
        ([b""], ValueError, "equally many bytes, got 0 at index 0"),
        ([b"x" * 9], ValueError, "digests must have 16 or 8 bytes, got 9"),
    ],
)
def test_wrong_digests_are_refused(
    manager: BlockManager, digests: list[bytes], error: type[Exception], message: str
) -> None:
    with refused(manager, error, match=message):
        manager.retain_digests(digests, priority=Priority.HIGH)
    with refused(manager, error, match=message):
        manager.pin_digests(digests)


def test_digests_need_a_cache_and_retention() -> None:
    for options in ({"retention": False}, {"retention": True, "prefix_caching": False}):
        manager = make_manager(6, **options)
        with refused(manager, ValueError, match="retain_digests needs a manager with"):
            manager.retain_digests([bytes(16)], priority=Priority.HIGH)
        with refused(manager, ValueError, match="pin_digests needs a manager with"):
            manager.pin_digests([bytes(16)])
