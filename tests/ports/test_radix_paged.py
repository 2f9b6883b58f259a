"""The radix port: the later interface, with a page table, and namespaces in both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blockmgr import BlockStateError, OutOfBlocksError, SequenceStateError
from blockmgr.ports.radix import (
    CacheManager,
    PagedCacheManager,
    RadixCacheHandle,
    RadixCacheManager,
    Request,
    format_tree,
)


def paged(num_pages: int = 8, page_size: int = 1) -> PagedCacheManager:
    return PagedCacheManager(num_pages, page_size, np.zeros((4, 16), np.int32))


def request(cache: PagedCacheManager, row: int, *tokens: int, extra_key: Any = None) -> Any:
    """A request that is matched and locked and has its slots."""
    req = SimpleNamespace(
        input_ids=list(tokens), table_idx=row, device_len=len(tokens), extra_key=extra_key
    )
    req.cache_handle = cache.match_req(req).cuda_handle
    cache.lock(req.cache_handle)
    req.cached_len = req.cache_handle.cached_len
    cache.page_table[row, : req.cached_len] = req.cache_handle.get_matched_indices()
    cache.allocate_paged([req])
    req.cached_len = len(tokens)
    return req


@pytest.mark.parametrize("size", [1, 2])
def test_a_request_lives_by_the_page_table(size: int) -> None:
    cache = paged(page_size=size)
    first = request(cache, 0, 1, 2, 3, 4, 5)
    row = cache.page_table[0, :5].tolist()
    assert len(set(row)) == 5
    cache.cache_req(first, finished=False)
    second = request(cache, 1, 1, 2, 3, 4, 6)
    assert cache.page_table[1, :4].tolist() == row[:4]
    cache.cache_req(first, finished=True)
    cache.cache_req(second, finished=True)
    cache.check_integrity()
    assert cache.available_size == 8 * size


def test_where_others_computed_the_same_the_row_names_their_slots() -> None:
    """The original does not update the row, and the slots it names go to other requests."""
    cache = paged()
    first, second = request(cache, 0, 1, 2, 3), request(cache, 1, 1, 2, 3)
    cache.cache_req(first, finished=False)
    cache.cache_req(second, finished=False)
    assert cache.page_table[1, :3].tolist() == cache.page_table[0, :3].tolist()
    assert cache.available_size == 5
    for req in (first, second):
        cache.cache_req(req, finished=True)
    assert cache.available_size == 8


def test_what_is_freed_in_a_region_is_handed_out_after_it() -> None:
    cache = paged(num_pages=6, page_size=2)
    first, second = request(cache, 0, 1, 2, 3), request(cache, 1, 1, 2, 3)
    with cache.lazy_free_region():
        cache.cache_req(first, finished=True)  # its unfinished page
        cache.cache_req(second, finished=True)  # its unfinished page, and the page computed twice
        assert cache._pool.num_free == 2
    assert cache._pool.num_free == 5
    cache.check_integrity()
    third = request(cache, 2, 7, 8, 9)
    cache.cache_req(third, finished=True)
    with pytest.raises(SequenceStateError), cache.lazy_free_region():
        cache.cache_req(third, finished=True)
    assert cache.available_size == 12


def test_what_was_freed_in_a_region_belongs_to_nobody() -> None:
    cache = paged(num_pages=6, page_size=2)
    req = request(cache, 0, 1, 2, 3)
    with cache.lazy_free_region():
        cache.cache_req(req, finished=True)
        req.input_ids, req.cache_handle = (
            [7, 7, 7],
            RadixCacheHandle(0, cache.prefix_cache.root_node),
        )
        cache.page_table[0, :2] = cache.page_table[0, 2] + np.arange(2)
        req.cached_len = 1  # the unfinished page again
        with pytest.raises(BlockStateError, match="freed in this region"):
            cache.cache_req(req, finished=True)
    assert cache.available_size == 12


def test_a_batch_gets_all_its_pages_or_none() -> None:
    cache = paged(num_pages=4)
    reqs = [
        SimpleNamespace(table_idx=row, cached_len=0, device_len=3, input_ids=[1]) for row in (0, 1)
    ]
    before = cache.page_table.copy()
    with pytest.raises(OutOfBlocksError):
        cache.allocate_paged(reqs)
    assert cache.available_size == 4
    assert np.array_equal(cache.page_table, before)


@pytest.mark.parametrize("keys", [("a", "b"), (None, "a"), (b"a", b"b")])
def test_requests_with_another_extra_key_share_nothing(keys: tuple[Any, Any]) -> None:
    cache = paged()
    cache.cache_req(request(cache, 0, 1, 2, 3, extra_key=keys[0]), finished=True)
    match = cache.match_req(SimpleNamespace(input_ids=[1, 2, 3, 4], extra_key=keys[1]))
    assert match.cuda_handle.cached_len == 0
    again = cache.match_req(SimpleNamespace(input_ids=[1, 2, 3, 4], extra_key=keys[0]))
    assert again.cuda_handle.cached_len == 3

    earlier = CacheManager(None, 8)
    first = Request(0, [1, 2, 3, 4], 0, 0, 1, extra_key=keys[0])
    handle, _ = earlier.match_req(first)
    earlier.free_and_cache_finished_req(handle, [1, 2, 3], earlier.allocate(3))
    other = Request(0, [1, 2, 3, 4], 0, 0, 1, extra_key=keys[1])
    assert earlier.match_req(other).handle.cached_len == 0
    assert earlier.match_req(first).handle.cached_len == 3
    earlier.check_integrity()


def test_namespaces_of_the_tree_itself() -> None:
    tree = RadixCacheManager(None, 8)
    assert tree.insert_prefix([1, 2], [0, 1], namespace=b"a") == 0
    assert tree.insert_prefix([1, 2], [2, 3]) == 0
    assert tree.match_prefix([1, 2], namespace=b"a").indices.tolist() == [0, 1]
    assert tree.match_prefix([1, 2]).indices.tolist() == [2, 3]
    assert tree.match_prefix([1, 2], namespace=b"c").handle.cached_len == 0
    assert "slots 0 1" in format_tree(tree, namespace=b"a")
    assert "slots 0 1" not in format_tree(tree)
    assert RadixCacheHandle(0, tree.root_node).get_matched_indices().tolist() == []


WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "no page table": (lambda c, r: PagedCacheManager(4, 1, [[0]]), ValueError, "page_table"),
    "a page table of floats": (
        lambda c, r: PagedCacheManager(4, 1, np.zeros((2, 2))), ValueError, "page_table",
    ),
    "another type": (
        lambda c, r: PagedCacheManager(4, 1, np.zeros((2, 2), np.int32), "hiradix"),
        ValueError, "type must be 'radix'",
    ),
    "a row too far": (
        lambda c, r: c.allocate_paged([SimpleNamespace(table_idx=4, cached_len=0, device_len=1)]),
        ValueError, "table_idx",
    ),
    "a length too far": (
        lambda c, r: c.allocate_paged([SimpleNamespace(table_idx=1, cached_len=0, device_len=17)]),
        ValueError, "device_len",
    ),
    "a row twice": (lambda c, r: c.allocate_paged([r, r]), ValueError, "rows of their own"),
    "finished, perhaps": (lambda c, r: c.cache_req(r, finished=1), TypeError, "finished"),
    "ended twice": (
        lambda c, r: (c.cache_req(r, finished=True), c.cache_req(r, finished=True)),
        SequenceStateError, "has ended",
    ),
    "an extra key that is a number": (
        lambda c, r: c.match_req(SimpleNamespace(input_ids=[1, 2], extra_key=3)),
        TypeError, "extra_key",
    ),
    "no request": (lambda c, r: c.match_req(3), TypeError, "input_ids"),
    "no tokens": (lambda c, r: c.match_req(SimpleNamespace(input_ids=[])), ValueError, "input_ids"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_refused_by_name(name: str) -> None:
    call, error, match = WRONG[name]
    cache = paged()
    req = request(cache, 0, 1, 2, 3)
    with pytest.raises(error, match=match):
        call(cache, req)
    cache.check_integrity()


def test_torch_page_tables_are_written_where_they_are() -> None:
    torch = pytest.importorskip("torch")
    cache = PagedCacheManager(8, 1, torch.zeros((4, 16), dtype=torch.int32))
    first, second = request(cache, 0, 1, 2, 3), request(cache, 1, 1, 2, 3)
    cache.cache_req(first, finished=False)
    cache.cache_req(second, finished=False)
    assert cache.page_table[1, :3].tolist() == cache.page_table[0, :3].tolist()
    assert isinstance(second.cache_handle.get_matched_indices(), torch.Tensor)
