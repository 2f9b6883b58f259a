"""Defects of the original radix cache, and silently accepted errors that are refused here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    BlockStateError,
    InvariantError,
    MissingExtraError,
    OutOfBlocksError,
    SequenceStateError,
)
from blockmgr.ports.radix import (
    CacheManager,
    RadixCacheHandle,
    RadixCacheManager,
    RadixNode,
    SizeInfo,
    create_page_table,
    format_tree,
    get_mha_cache_per_page,
    get_num_pages_for_kv_cache,
)
from tests.ports.test_radix import refused, request, root, serve, snapshot


def calls_made(function: Callable[[], Any]) -> int:
    """The number of Python and native calls: a measure of work without a clock."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def bushy(num_branches: int) -> RadixCacheManager:
    cache = RadixCacheManager(None, num_pages=2 * num_branches)
    for branch in range(num_branches):
        cache.insert_prefix([branch, 7], [2 * branch, 2 * branch + 1])
    return cache


# Work and side effects.


def test_evicting_does_not_walk_the_tree() -> None:
    small, large = bushy(3), bushy(3_000)
    assert calls_made(lambda: small.evict(2)) == calls_made(lambda: large.evict(2)) < 50


def test_matching_does_not_compare_token_by_token_in_python() -> None:
    cache = RadixCacheManager(None, num_pages=5_000)
    cache.insert_prefix(range(5_000), range(5_000))
    short, long = list(range(3)), list(range(5_000))
    short_calls = calls_made(lambda: cache.match_prefix(short))
    assert short_calls == calls_made(lambda: cache.match_prefix(long)) < 50


def test_matching_splits_nothing_and_touches_nothing() -> None:
    cache = RadixCacheManager(None, num_pages=8)
    cache.insert_prefix([1, 3, 6, 7, 9], [0, 1, 2, 3, 4])
    cache.insert_prefix([2], [5])
    before, drawn = snapshot(cache), format_tree(cache)
    cache.match_prefix([1, 3, 6, 8])
    assert (snapshot(cache), format_tree(cache)) == (before, drawn)
    assert cache.evict(1).tolist() == [4]  # the first one inserted is still the oldest


def test_only_as_much_is_evicted_as_asked_for() -> None:
    """The original evicts whole nodes: for one token, it drops the end of a long prompt."""
    cache = RadixCacheManager(None, num_pages=1_000)
    cache.insert_prefix(range(1_000), range(1_000))
    assert len(cache.evict(1)) == 1
    assert cache.match_prefix(range(1_000)).handle.cached_len == 999


def test_torch_is_not_imported_before_a_device_is_named() -> None:
    script = (
        "import sys\n"
        "from blockmgr.ports.radix import *\n"
        "cache = CacheManager(None, 4)\n"
        "cache.free(cache.allocate(2))\n"
        "create_page_table(1, 1)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_device_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[torch\]'"):
        CacheManager("cpu", 4)
    with pytest.raises(MissingExtraError, match=r"'\.\[torch\]'"):
        create_page_table(1, 1, device="cpu")


# Handles.


def test_a_handle_whose_page_was_evicted_cannot_be_locked() -> None:
    """The original increments the count of a removed node, and sizes stay wrong."""
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1, 2], [0, 1])
    handle = cache.match_prefix([1, 2]).handle
    cache.evict(1)
    with refused(cache, BlockStateError, "evicted since"):
        cache.lock_handle(handle)


def test_a_handle_does_not_follow_its_page_to_other_content() -> None:
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1], [0])
    handle = cache.match_prefix([1]).handle
    cache.evict(1)
    cache.insert_prefix([2], [0])
    with refused(cache, BlockStateError, "evicted since"):
        cache.lock_handle(handle)
    cache.evict(1)
    cache.insert_prefix([1], [0])  # the same content, but the handle is for the earlier copy
    with refused(cache, BlockStateError, "evicted since"):
        cache.lock_handle(handle)


def test_unlocking_more_often_than_locking_is_refused() -> None:
    """In the original the count becomes negative before an assertion fails."""
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1], [0])
    handle = cache.match_prefix([1]).handle
    with refused(cache, BlockStateError, "not locked by this handle"):
        cache.lock_handle(handle, unlock=True)
    cache.lock_handle(handle)
    cache.lock_handle(handle, unlock=True)
    with refused(cache, BlockStateError, "not locked by this handle"):
        cache.lock_handle(handle, unlock=True)


def test_nobody_unlocks_with_another_handle() -> None:
    """Otherwise, ending one of two requests twice leaves the other's prefix unprotected."""
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1], [0])
    mine, other = cache.match_prefix([1]).handle, cache.match_prefix([1]).handle
    cache.lock_handle(mine)
    with refused(cache, BlockStateError, "not locked by this handle"):
        cache.lock_handle(other, unlock=True)


@pytest.mark.parametrize("unlock", [False, True])
def test_a_handle_of_another_cache_is_refused(unlock: bool) -> None:
    caches = [RadixCacheManager(None, num_pages=4) for _ in range(2)]
    for cache in caches:
        cache.insert_prefix([1], [0])
    foreign = caches[1].match_prefix([1]).handle
    with refused(caches[0], ValueError, "must be of this cache"):
        caches[0].lock_handle(foreign, unlock)
    with refused(caches[0], ValueError, "must be of this cache"):
        caches[0].lock_handle(RadixCacheHandle(0, caches[1].root_node), unlock)


@pytest.mark.parametrize("handle", [None, 0, "handle"])
def test_what_is_no_handle_is_refused(handle: Any) -> None:
    """The original silently ignores None."""
    cache = RadixCacheManager(None, num_pages=4)
    with refused(cache, TypeError, "handle must be a RadixCacheHandle"):
        cache.lock_handle(handle)
    with refused(cache, ValueError, "must be of this cache"):
        cache.lock_handle(RadixCacheHandle(0, handle))


@pytest.mark.parametrize("cached_len", [0, 1, 3, -2])
def test_a_handle_that_contradicts_itself_is_refused(cached_len: int) -> None:
    cache = RadixCacheManager(None, num_pages=4, page_size=2)
    cache.insert_prefix([1, 2], [0, 1])
    node = cache.match_prefix([1, 2]).handle.node
    with refused(cache, ValueError, "where its cached_len says"):
        cache.lock_handle(RadixCacheHandle(cached_len, node))
    with refused(cache, ValueError, "where its cached_len says"):
        cache.lock_handle(RadixCacheHandle(2, cache.root_node))


# Pages.


def test_evicting_more_than_evictable_changes_nothing() -> None:
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1, 2, 3], [0, 1, 2])
    cache.lock_handle(cache.match_prefix([1, 2]).handle)
    with refused(cache, OutOfBlocksError, "need 2 blocks, 1 available"):
        cache.evict(2)


@pytest.mark.parametrize("tokens", [[1, 2], [5, 6], [1, 2, 3]])
def test_a_page_of_the_tree_cannot_be_inserted_again(tokens: list[int]) -> None:
    """In the original, one slot then stands for two prefixes."""
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1, 9], [0, 1])
    with refused(cache, BlockStateError, "block 1"):
        cache.insert_prefix(tokens, [3, 1, 2][: len(tokens)])
    cache.lock_handle(cache.match_prefix([1, 9]).handle)
    with refused(cache, BlockStateError, "block 1"):
        cache.insert_prefix(tokens, [3, 1, 2][: len(tokens)])


def test_a_page_cannot_be_inserted_twice_at_once() -> None:
    cache = RadixCacheManager(None, num_pages=4)
    with refused(cache, ValueError, "distinct"):
        cache.insert_prefix([1, 2], [3, 3])


@pytest.mark.parametrize("indices", [[0], [0, 1, 2]])
def test_slots_must_be_as_many_as_tokens(indices: list[int]) -> None:
    """The original truncates the longer of the two."""
    cache = CacheManager(None, num_pages=4)
    taken = cache.allocate(3).tolist()
    with refused(cache, ValueError, "indices must be as many as input_ids"):
        cache.manager.insert_prefix([1, 2], taken[: len(indices)])
    with refused(cache, ValueError, "indices must be as many as input_ids"):
        cache.free_and_cache_finished_req(root(cache), [1, 2], taken[: len(indices)])


@pytest.mark.parametrize(
    ("indices", "at"),
    [
        ([0, 2, 4, 5], 1),  # not in order
        ([1, 2, 4, 5], 0),  # not a whole page
        ([0, 1, 5, 6], 2),
        ([0, 1, 2, 2], 3),
        ([0, 1, 8, 9], 2),  # out of bounds
        ([-2, -1, 4, 5], 0),
    ],
)
def test_slots_that_are_no_whole_pages_are_refused(indices: list[int], at: int) -> None:
    cache = CacheManager(None, num_pages=4, page_size=2)
    cache.allocate(8)
    with refused(cache, ValueError, rf"indices\[{at}\] is {indices[at]}"):
        cache.manager.insert_prefix([1, 2, 3, 4], indices)
    with refused(cache, ValueError, rf"indices\[{at}\] is {indices[at]}"):
        cache.free(indices)
    with refused(cache, ValueError, rf"indices\[{at}\] is {indices[at]}"):
        cache.free_and_cache_finished_req(root(cache), [1, 2, 3, 4], indices)


@pytest.mark.parametrize("wrong", [[0.0, 1.0], ["a", "b"], [None, None]])
def test_slots_that_are_no_integers_are_refused(wrong: Any) -> None:
    cache = CacheManager(None, num_pages=4)
    cache.allocate(2)
    with refused(cache, TypeError, "indices must be integers"):
        cache.manager.insert_prefix([1, 2], wrong)
    with refused(cache, TypeError, "indices must be integers"):
        cache.free(wrong)


def test_slots_have_one_dimension() -> None:
    cache = CacheManager(None, num_pages=4)
    cache.allocate(2)
    with refused(cache, ValueError, "indices must have one dimension, got 2"):
        cache.free(np.zeros((1, 2), np.int32))


@pytest.mark.parametrize(
    ("tokens", "error"), [([-1], ValueError), ([2**32], ValueError), (["a"], TypeError)]
)
def test_bad_tokens_are_refused(tokens: Any, error: type[Exception]) -> None:
    cache = CacheManager(None, num_pages=4)
    slots = cache.allocate(1)
    calls: list[Callable[[], Any]] = [
        lambda: cache.manager.match_prefix(tokens),
        lambda: cache.manager.insert_prefix(tokens, slots),
        lambda: cache.free_and_cache_finished_req(root(cache), tokens, slots),
        lambda: cache.match_req(request(*tokens, 1)),
    ]
    for call in calls:
        with refused(cache, error, "tokens"):
            call()


# Requests.


def test_ending_a_request_twice_is_refused() -> None:
    """In the original its slots are free twice, and two requests write to the same slots."""
    cache = CacheManager(None, num_pages=8)
    slots = cache.allocate(3)
    cache.free_and_cache_finished_req(root(cache), [1, 2, 3], slots)
    with refused(cache, BlockStateError, "not the caller's: in the tree"):
        cache.free_and_cache_finished_req(root(cache), [1, 2, 3], slots)
    cache.reset()
    with refused(cache, BlockStateError, "it is not held"):
        cache.free_and_cache_finished_req(root(cache), [1, 2, 3], slots)


def test_ending_a_request_twice_does_not_unlock_its_prefix_twice() -> None:
    cache = CacheManager(None, num_pages=8)
    serve(cache, 1, 2)
    handle, found = cache.match_req(request(1, 2, 3))
    cache.lock(handle)
    other = cache.match_req(request(1, 2, 4)).handle
    cache.lock(other)
    slots = [*found, *cache.allocate(1)]
    cache.free_and_cache_finished_req(handle, [1, 2, 3], slots)
    with refused(cache, SequenceStateError, "has ended"):
        cache.free_and_cache_finished_req(handle, [1, 2, 3], slots)
    assert cache.manager.size_info == SizeInfo(1, 2)


def test_ending_a_request_twice_frees_nobody_elses_slots() -> None:
    """It found nothing, so no lock shows the error; its pages belong to another request."""
    cache = CacheManager(None, num_pages=1, page_size=4)
    handle, _ = cache.match_req(request(1, 2))
    cache.lock(handle)
    slots = cache.allocate(2)
    cache.free_and_cache_finished_req(handle, [1, 2], slots[:2])
    assert cache.allocate(2).tolist() == slots.tolist()
    for end in (cache.free_and_cache_finished_req, cache.cache_unfinished_req):
        with refused(cache, SequenceStateError, "has ended"):
            end(handle, [1, 2], slots[:2])


def test_a_handle_ends_when_a_later_one_takes_its_place() -> None:
    cache = CacheManager(None, num_pages=4)
    handle = cache.match_req(request(1, 2)).handle
    slots = cache.allocate(2)
    later = cache.cache_unfinished_req(handle, [1, 2], slots).handle
    with refused(cache, SequenceStateError, "has a later handle"):
        cache.free_and_cache_finished_req(handle, [1, 2], slots)
    cache.free_and_cache_finished_req(later, [1, 2], slots)
    cache.reset()
    with refused(cache, SequenceStateError, "has ended"):
        cache.free_and_cache_finished_req(later, [1, 2], slots)


def test_the_root_may_stand_for_any_number_of_requests() -> None:
    cache = CacheManager(None, num_pages=4)
    shared = root(cache)
    for token in (1, 2):
        cache.free_and_cache_finished_req(shared, [token], cache.allocate(1))
    assert cache.manager.size_info == SizeInfo(2, 0)


def test_a_request_that_did_not_lock_is_refused() -> None:
    cache = CacheManager(None, num_pages=8)
    serve(cache, 1, 2)
    handle, found = cache.match_req(request(1, 2, 3))
    slots = [*found, *cache.allocate(1)]
    for end in (cache.free_and_cache_finished_req, cache.cache_unfinished_req):
        with refused(cache, BlockStateError, "not locked by this handle"):
            end(handle, [1, 2, 3], slots)


@pytest.mark.parametrize("tokens", [[9, 9, 9], [1], [1, 9, 3]])
def test_a_handle_of_another_prompt_is_refused(tokens: list[int]) -> None:
    cache = CacheManager(None, num_pages=8)
    serve(cache, 1, 2)
    handle, found = cache.match_req(request(1, 2, 3))
    cache.lock(handle)
    slots = [*found, *cache.allocate(1)]
    with refused(cache, ValueError, "must be of a prefix of input_ids"):
        cache.free_and_cache_finished_req(handle, tokens, slots[: len(tokens)])


def test_slots_of_the_tree_are_not_a_requests_to_free() -> None:
    """In the original, a request with a match but the root as handle frees the tree's slots."""
    cache = CacheManager(None, num_pages=8)
    serve(cache, 1, 2)
    found = cache.match_req(request(1, 2, 3)).indices
    slots = [*found, *cache.allocate(1)]
    with refused(cache, BlockStateError, "not the caller's: in the tree"):
        cache.free_and_cache_finished_req(root(cache), [1, 2, 3], slots)


def test_freeing_twice_is_refused() -> None:
    cache = CacheManager(None, num_pages=8)
    slots = cache.allocate(2)
    cache.free(slots)
    with refused(cache, BlockStateError, "more often than it is held"):
        cache.free(slots)


def test_freeing_what_is_in_the_tree_is_refused_locked_or_not() -> None:
    cache = CacheManager(None, num_pages=8)
    slots = serve(cache, 1, 2)
    with refused(cache, BlockStateError, "in the tree"):
        cache.free(slots)
    cache.lock(cache.manager.match_prefix([1, 2]).handle)
    for some in (slots, slots[:1], slots[1:]):
        with refused(cache, BlockStateError, "in the tree"):
            cache.free(some)


def test_a_slot_given_twice_is_refused() -> None:
    cache = CacheManager(None, num_pages=8, page_size=2)
    slots = cache.allocate(2).tolist()
    with refused(cache, BlockStateError, "more often than it is held"):
        cache.free([*slots, *slots])
    twice = [*slots, *slots]
    for tokens in ([1, 2, 3, 4], [1, 2, 3]):  # twice to the tree; to the tree and to be freed
        with refused(cache, ValueError, "distinct|name a page once"):
            cache.free_and_cache_finished_req(root(cache), tokens, twice[: len(tokens)])
    serve(cache, 1, 2, 3, 4)
    with refused(cache, ValueError, "name a page once"):  # computed twice, and so freed twice
        cache.free_and_cache_finished_req(root(cache), [1, 2, 3, 4], twice)


def test_one_bad_page_frees_none_of_them() -> None:
    cache = CacheManager(None, num_pages=8)
    slots = cache.allocate(2).tolist()
    untaken = next(slot for slot in range(8) if slot not in slots)
    with refused(cache, BlockStateError, f"block {untaken}"):
        cache.free([*slots, untaken])
    with refused(cache, BlockStateError, f"block {untaken}"):
        cache.free_and_cache_finished_req(root(cache), [1, 2, 3], [*slots, untaken])


def test_resetting_a_tree_in_use_is_refused() -> None:
    cache = CacheManager(None, num_pages=8)
    serve(cache, 1, 2)
    handle = cache.match_req(request(1, 2)).handle
    cache.lock(handle)
    with refused(cache, BlockStateError, "unlock every handle"):
        cache.reset()
    cache.unlock(handle)
    cache.reset()


# Zero, negative, and none at all.


def test_no_tokens_are_refused() -> None:
    cache = CacheManager(None, num_pages=4)
    with refused(cache, ValueError, "at least 1 token"):
        cache.match_req(request())


def test_ending_a_request_of_no_tokens_changes_nothing() -> None:
    cache = CacheManager(None, num_pages=4)
    before = snapshot(cache)
    cache.free_and_cache_finished_req(root(cache), [], [])
    assert snapshot(cache) == before


@pytest.mark.parametrize(
    ("size", "error"), [(-1, ValueError), (1.0, TypeError), (None, TypeError), (True, TypeError)]
)
def test_sizes_that_are_none_are_refused(size: Any, error: type[Exception]) -> None:
    """In the original, ``allocate(-1)`` allocates every free slot except one."""
    cache = CacheManager(None, num_pages=4)
    with refused(cache, error, "needed_len must be"):
        cache.allocate(size)
    with refused(cache, error, "size must be"):
        cache.manager.evict(size)
    with refused(cache, error, "max_depth must be"):
        format_tree(cache, max_depth=size)


def test_only_radix_caches_are_drawn() -> None:
    with pytest.raises(TypeError, match="must be a radix cache"):
        format_tree({})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [CacheManager, RadixCacheManager])
@pytest.mark.parametrize(
    ("num_pages", "page_size", "error"),
    [(0, 1, ValueError), (-1, 1, ValueError), (4, 0, ValueError), (4, 1.5, TypeError)],
)
def test_pools_of_no_or_negative_size_are_refused(
    kind: Any, num_pages: Any, page_size: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match="must be"):
        kind(None, num_pages, page_size)


def test_slots_that_no_int32_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="num_pages must be at most 32768 with pages of 65535"):
        CacheManager(None, 32_769, 65_535)


@pytest.mark.parametrize(
    "name", ["head_dim", "num_kv_heads", "num_layers", "page_size", "tp_size", "dtype_size"]
)
@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-2, ValueError), (2.0, TypeError), (True, TypeError)]
)
def test_sizes_of_a_page_are_positive(name: str, value: Any, error: type[Exception]) -> None:
    shape = {"head_dim": 64, "num_kv_heads": 8, "num_layers": 2}
    with pytest.raises(error, match=f"{name} must be"):
        get_mha_cache_per_page(**{**shape, name: value})


def test_heads_must_divide_evenly() -> None:
    """In the original, a page then has a fraction of a byte."""
    with pytest.raises(ValueError, match="must be a multiple of tp_size, got 8 over 3"):
        get_mha_cache_per_page(64, 8, 2, tp_size=3)


@pytest.mark.parametrize(("memory", "page"), [(-1, 8), (8, 0), (8, -1)])
def test_memory_and_pages_have_sizes(memory: int, page: int) -> None:
    with pytest.raises(ValueError, match="must be at least"):
        get_num_pages_for_kv_cache(memory, page)


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (4, 0), (-1, 4)])
def test_a_page_table_has_rows_and_columns(rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        create_page_table(rows, columns)


# Integrity.


def test_integrity_is_checked_and_not_just_promised() -> None:
    """The original's check does nothing."""
    cache = CacheManager(None, num_pages=8)
    serve(cache, 1, 2)
    handle = cache.match_req(request(1, 2, 3)).handle
    cache.lock(handle)
    cache.check_integrity()
    cache.manager.pool.acquire([handle.node.page])
    with pytest.raises(InvariantError, match="2 references and 1 lock"):
        cache.check_integrity()


def test_a_node_says_where_it_ends() -> None:
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1, 2], [3, 2])
    node = cache.match_prefix([1, 2]).handle.node
    assert isinstance(node, RadixNode)
    assert (node.page, node.is_root(), cache.root_node.is_root()) == (2, False, True)


@pytest.mark.parametrize("wrong", [None, 3, [1, 2], "x"])
def test_what_is_no_request_is_refused_by_name(wrong: Any) -> None:
    cache = CacheManager(None, num_pages=8)
    serve(cache, 1, 2)
    with refused(cache, TypeError, "req must have input_ids, got "):
        cache.match_req(wrong)


@pytest.mark.parametrize("unlock", [1, None, "no"])
def test_unlock_is_yes_or_no(unlock: Any) -> None:
    cache = CacheManager(None, num_pages=8)
    serve(cache, 1, 2)
    handle = cache.match_req(request(1, 2, 3)).handle
    with refused(cache, TypeError, "unlock must be a bool, got "):
        cache.manager.lock_handle(handle, unlock)


@pytest.mark.parametrize("device", ["nowhere", "", -1])
def test_a_device_that_is_not_there_is_refused_before_anything_is_handed_out(device: Any) -> None:
    pytest.importorskip("torch", reason="devices are torch's")
    for build in (
        lambda: CacheManager(device, num_pages=8),
        lambda: create_page_table(2, 2, device),
    ):
        with pytest.raises(ValueError, match="device must be one that torch has here"):
            build()
