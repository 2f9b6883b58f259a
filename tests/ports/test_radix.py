"""The radix cache: every public call of mini-sglang's interface, one property each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from blockmgr.ports.radix import (
    CacheManager,
    RadixCacheHandle,
    RadixCacheManager,
    RadixNode,
    Request,
    SizeInfo,
    create_page_table,
    format_tree,
    get_mha_cache_per_page,
    get_num_pages_for_kv_cache,
    print_tree,
)
from tests.fingerprints import fingerprint, unchanged


def slots_of(pages: list[int], page_size: int) -> list[int]:
    return [page * page_size + offset for page in pages for offset in range(page_size)]


def request(*tokens: int) -> Request:
    return Request(uid=0, input_ids=list(tokens), table_idx=0, cached_len=0, output_len=8)


def root(cache: CacheManager) -> RadixCacheHandle:
    return RadixCacheHandle(0, cache.manager.root_node)


def serve(cache: CacheManager, *tokens: int) -> list[int]:
    """Serves a request from start to end; returns its slots."""
    handle, found = cache.match_req(request(*tokens))
    cache.lock(handle)
    fresh = cache.allocate(len(tokens) - handle.cached_len).tolist()
    slots = [*found.tolist(), *fresh][: len(tokens)]
    cache.free_and_cache_finished_req(handle, list(tokens), slots)
    return slots


def snapshot(cache: CacheManager | RadixCacheManager) -> Any:
    manager = cache.manager if isinstance(cache, CacheManager) else cache
    return fingerprint(manager.pool), dict(manager._locks), manager.size_info


@contextmanager
def refused(
    cache: CacheManager | RadixCacheManager, error: type[Exception], match: str
) -> Iterator[Any]:
    """The call inside raises exactly this error and changes nothing."""
    with unchanged(lambda: snapshot(cache), error, match) as caught:
        yield caught
    cache.check_integrity()


# The tree by itself.


def test_the_longest_prefix_is_found_with_its_slots() -> None:
    cache = RadixCacheManager(None, num_pages=16)
    assert cache.insert_prefix([1, 3, 6, 7, 9, 77], [0, 1, 2, 3, 4, 7]) == 0
    handle, indices = cache.match_prefix([1, 3, 6, 7, 87, 66])
    assert handle.cached_len == 4
    assert indices.tolist() == [0, 1, 2, 3]
    assert indices.dtype == np.int32
    cache.check_integrity()


@pytest.mark.parametrize("tokens", [[], [9], [2, 1]])
def test_nothing_found_ends_at_the_root(tokens: list[int]) -> None:
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1, 2], [0, 1])
    handle, indices = cache.match_prefix(tokens)
    assert (handle.cached_len, handle.node, len(indices)) == (0, cache.root_node, 0)
    assert handle.node.is_root()


def test_only_what_the_tree_has_not_is_inserted() -> None:
    """The result is the number of leading slots that the caller keeps."""
    cache = RadixCacheManager(None, num_pages=16)
    cache.insert_prefix([1, 3, 6, 7, 9, 77], [0, 1, 2, 3, 4, 7])
    assert cache.insert_prefix([1, 3, 6, 7, 87, 66], [8, 9, 10, 11, 5, 6]) == 4
    assert cache.match_prefix([1, 3, 6, 7, 87, 66]).indices.tolist() == [0, 1, 2, 3, 5, 6]
    assert cache.size_info == SizeInfo(8, 0)
    assert cache.insert_prefix([1, 3], [12, 13]) == 2
    assert cache.size_info == SizeInfo(8, 0)


def test_an_unfinished_page_stays_the_callers() -> None:
    cache = RadixCacheManager(None, num_pages=8, page_size=4)
    assert cache.insert_prefix([1, 2, 3, 4, 5], [4, 5, 6, 7, 0]) == 0
    assert cache.insert_prefix([1, 2, 3, 4, 5], [4, 5, 6, 7, 0]) == 4
    assert cache.size_info.total_size == 4
    cache.insert_prefix([9, 9, 9, 9], [0, 1, 2, 3])  # page 0 is still available
    assert cache.size_info.total_size == 8


def test_the_root_needs_no_lock() -> None:
    cache = RadixCacheManager(None, num_pages=4)
    handle = RadixCacheHandle(0, cache.root_node)
    cache.lock_handle(handle)
    cache.lock_handle(handle, unlock=True)
    cache.lock_handle(handle, unlock=True)
    assert cache.size_info == SizeInfo(0, 0)


def test_the_least_recently_used_goes_first_and_ends_before_beginnings() -> None:
    cache = RadixCacheManager(None, num_pages=8)
    cache.insert_prefix([1, 2, 3], [0, 1, 2])
    cache.insert_prefix([4, 5], [3, 4])
    handle = cache.match_prefix([1]).handle
    cache.lock_handle(handle)  # used again: now younger than 4 and 5, unlike its children
    cache.lock_handle(handle, unlock=True)
    assert cache.evict(5).tolist() == [2, 1, 4, 3, 0]


def test_inserting_what_is_there_counts_as_a_use() -> None:
    cache = RadixCacheManager(None, num_pages=8)
    cache.insert_prefix([1], [0])
    cache.insert_prefix([2], [1])
    assert cache.insert_prefix([1], [5]) == 1
    assert cache.evict(1).tolist() == [1]


def test_evicted_slots_are_the_callers_again() -> None:
    cache = RadixCacheManager(None, num_pages=4, page_size=2)
    cache.insert_prefix([1, 1, 2, 2], [4, 5, 0, 1])
    slots = cache.evict(3)
    assert slots.tolist() == [0, 1, 4, 5]  # whole pages, the end first
    assert cache.match_prefix([1, 1]).handle.cached_len == 0
    assert cache.insert_prefix([3, 3], slots[:2]) == 0


def test_reset_empties_the_tree() -> None:
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1, 2], [0, 1])
    cache.reset()
    assert cache.size_info == SizeInfo(0, 0)
    assert cache.match_prefix([1, 2]).handle.cached_len == 0
    assert cache.insert_prefix([1, 2], [0, 1]) == 0
    cache.check_integrity()


# Sizes, tables, printing.


def test_a_page_holds_k_and_v_of_all_layers() -> None:
    assert get_mha_cache_per_page(256, 8, 1) == 2 * 8 * 256 * 2
    assert get_mha_cache_per_page(128, 8, 32, page_size=16, tp_size=4, dtype_size=4) == (
        2 * 2 * 128 * 32 * 16 * 4
    )


def test_only_whole_pages_fit() -> None:
    assert get_num_pages_for_kv_cache(2_000 * 1024, 8192) == 250
    assert get_num_pages_for_kv_cache(8191, 8192) == 0


def test_a_page_table_is_a_writable_array_of_zeros() -> None:
    table = create_page_table(5, 50)
    assert (table.shape, table.dtype, int(table.sum())) == ((5, 50), np.int32, 0)
    table[1, :3] = [7, 8, 9]


def test_a_request_knows_its_length() -> None:
    req = Request(uid=1, input_ids=[1, 2, 3], table_idx=0, cached_len=0, output_len=4)
    assert (req.input_len, req.cache_handle, req.max_tokens) == (3, None, 1024)


def test_the_tree_is_printed_with_its_forks_locks_and_leaves(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cache = CacheManager(None, num_pages=16)
    cache.free_and_cache_finished_req(root(cache), [1, 3, 6, 7, 9, 77], cache.allocate(6))
    handle, indices = cache.match_req(request(1, 3, 6, 7, 87, 66))
    cache.lock(handle)
    fresh = cache.allocate(2)
    print_tree(cache)
    a, b = indices.tolist(), cache.manager.match_prefix([1, 3, 6, 7, 9, 77]).indices.tolist()[4:]
    assert capsys.readouterr().out == (
        "root: 2 evictable, 4 protected\n"
        f"└── tokens 1 3 6 7, slots {a[0]} {a[1]} {a[2]} {a[3]}, 1 lock\n"
        f"    └── tokens 9 77, slots {b[0]} {b[1]}, no locks, leaf\n"
    )
    cache.free_and_cache_finished_req(handle, [1, 3, 6, 7, 87, 66], [*indices, *fresh])
    assert format_tree(cache.manager).splitlines()[1:] == [
        f"└── tokens 1 3 6 7, slots {a[0]} {a[1]} {a[2]} {a[3]}, no locks",
        f"    ├── tokens 9 77, slots {b[0]} {b[1]}, no locks, leaf",
        f"    └── tokens 87 66, slots {fresh[0]} {fresh[1]}, no locks, leaf",
    ]


def test_long_nodes_are_cut_where_they_say_so() -> None:
    cache = RadixCacheManager(None, num_pages=3_010)
    cache.insert_prefix(range(3_000), range(3_000))
    for depth in range(3):
        cache.insert_prefix([*range(depth + 1), 9], [*range(depth + 1), 3_000 + depth])
    assert "tokens 3 4 5 6 7 8 9 10 … (2997)" in format_tree(cache)


# Torch.


def test_with_a_device_tensors_come_in_and_go_out() -> None:
    torch = pytest.importorskip("torch")
    cache = CacheManager(torch.device("cpu"), num_pages=16, page_size=2)
    assert cache.device == cache.manager.device == torch.device("cpu")
    slots = cache.allocate(5)
    assert isinstance(slots, torch.Tensor)
    assert slots.dtype == torch.int32
    table = create_page_table(2, 8, device="cpu")
    table[1, :5] = slots[:5]
    tokens = torch.tensor([1, 2, 3, 4, 5])
    cache.free_and_cache_finished_req(root(cache), tokens, table[1, :5])
    handle, indices = cache.match_req(
        Request(0, torch.tensor([1, 2, 3, 4, 9]), table_idx=0, cached_len=0, output_len=1)
    )
    assert handle.cached_len == 4
    assert torch.equal(indices, slots[:4])
    table[0, :4].copy_(indices)
    evicted = cache.manager.evict(4)
    assert sorted(evicted.tolist()) == sorted(slots[:4].tolist())
    cache.free(evicted)
    cache.check_integrity()


def test_slots_may_be_a_column() -> None:
    """In a page table by position, the slots of a request are not contiguous."""
    table = np.arange(12, dtype=np.int64).reshape(6, 2)
    cache = RadixCacheManager(None, num_pages=12, page_size=1)
    assert cache.insert_prefix(table[:, 0], table[:, 1]) == 0
    assert cache.match_prefix(table[:, 0]).indices.tolist() == table[:, 1].tolist()


# A node's public interface.


def test_nodes_are_equal_where_prefixes_end_alike() -> None:
    cache, other = RadixCacheManager(None, 4), RadixCacheManager(None, 4)
    for each in (cache, other):
        each.insert_prefix([1, 2], [0, 1])
    first, second = (cache.match_prefix([1, 2, n]).handle for n in (3, 4))
    assert first.node == second.node
    assert first != second
    assert first.node != other.match_prefix([1, 2]).handle.node
    assert repr(first.node) == f"RadixNode(page=1, generation={first.node.generation})"
    assert isinstance(first.node, RadixNode)


def test_slots_of_another_width_are_not_compared_byte_by_byte() -> None:
    cache = CacheManager(None, num_pages=4, page_size=4)
    slots = cache.allocate(16)
    with pytest.raises(ValueError, match="indices must be the slots of whole pages"):
        cache.free(slots[12:].view(np.int64))
    cache.free(slots.astype(np.int64))
    assert cache.available_size == 16
