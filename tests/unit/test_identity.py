"""What makes two blocks the same: tokens, everything before, namespace, extras."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import MakeManager
from tests.unit.engine import cache, ids, serve


def test_the_same_namespace_hits_and_another_misses(make_manager: MakeManager) -> None:
    """Tests hit and miss in pairs, because a miss alone also occurs with the cache off."""
    manager = make_manager(16, 2)
    cache(manager, [1] * 5, namespace=b"a")
    assert manager.match([1] * 5, namespace=b"a").num_cached_tokens == 4
    assert manager.match([1] * 5, namespace=b"b").num_cached_tokens == 0
    assert manager.match([1] * 5).num_cached_tokens == 0


def test_each_namespace_has_its_own_copy(make_manager: MakeManager) -> None:
    manager = make_manager(16, 2)
    blocks = {name: cache(manager, [1] * 4, namespace=name) for name in (b"", b"a", b"b")}
    assert manager.stats().deduplicated_blocks == 0
    for name, expected in blocks.items():
        assert manager.match([1] * 5, namespace=name).block_ids.tolist() == expected


def test_extras_separate_the_block_they_belong_to_and_all_after_it(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(16, 2)
    cache(manager, [1] * 7, extras={1: b"image"})
    assert manager.match([1] * 7, extras={1: b"image"}).num_cached_tokens == 6
    assert manager.match([1] * 7, extras={1: b"other"}).num_cached_tokens == 2
    assert manager.match([1] * 7, extras={2: b"image"}).num_cached_tokens == 2
    assert manager.match([1] * 7, extras={0: b"image"}).num_cached_tokens == 0
    assert manager.match([1] * 7).num_cached_tokens == 2


def test_extras_are_not_mistaken_for_tokens(make_manager: MakeManager) -> None:
    """The digest hashes extras and tokens in a row; the comparison of keys separates them."""
    manager = make_manager(16, 1)
    cache(manager, [0x61616161, 7])
    assert manager.match([7, 7], extras={0: b"aaaa"}).num_cached_tokens == 0


def test_an_evicted_parent_does_not_lend_its_place_to_another_prefix(
    make_manager: MakeManager,
) -> None:
    """A block that is reused under the same id is not the parent of its earlier children."""
    manager = make_manager(3, 2)
    first = serve(manager, [1, 1, 2, 2, 3])
    first.free()
    other = serve(manager, [5, 5, 2, 2, 3])  # takes all blocks; old children must be gone
    assert other.num_cached_tokens == 0
    assert manager.match([1, 1, 2, 2, 3]).num_cached_tokens == 0
    assert manager.match([5, 5, 2, 2, 3]).block_ids.tolist() == ids(other)[:2]


@pytest.mark.parametrize("block_size", [4, 8, 16, 32])
@pytest.mark.parametrize("offset", range(5))
def test_tokens_may_lie_at_any_multiple_of_four_bytes(
    make_manager: MakeManager, block_size: int, offset: int
) -> None:
    """A slice of an array is read in place and compared many tokens at a time."""
    manager = make_manager(8, block_size)
    length = 2 * block_size + 1
    tokens = np.arange(offset + length, dtype=np.uint32)[offset:]
    cache(manager, tokens.tolist())
    assert manager.match(tokens).num_cached_tokens == 2 * block_size
    for position in range(2 * block_size):
        other = np.arange(offset + length, dtype=np.uint32)[offset:]
        other[position] += 1
        cached = position // block_size * block_size
        assert manager.match(other).num_cached_tokens == cached
