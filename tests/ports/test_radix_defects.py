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
    for build in (lambda: CacheManager("cpu", 4), lambda: create_page_table(1, 1, device="cpu")):
        with pytest.raises(MissingExtraError, match=r"'\.\[torch\]'"):
            build()


# Handles.


def test_a_handle_does_not_follow_its_page_to_other_content() -> None:
    """The original increments the count of a removed node, and sizes stay wrong."""
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1], [0])
    handle = cache.match_prefix([1]).handle
    for tokens in ([2], [1]):  # the same content at the end, but not the same copy
        cache.evict(1)
        with refused(cache, BlockStateError, "evicted since"):
            cache.lock_handle(handle)
        cache.insert_prefix(tokens, [0])
        with refused(cache, BlockStateError, "evicted since"):
            cache.lock_handle(handle)


def test_nobody_unlocks_more_often_than_they_locked() -> None:
    """In the original, the count becomes negative, or another request loses its lock."""
    cache = RadixCacheManager(None, num_pages=4)
    cache.insert_prefix([1], [0])
    mine, other = cache.match_prefix([1]).handle, cache.match_prefix([1]).handle
    for _ in range(2):
        with refused(cache, BlockStateError, "not locked by this handle"):
            cache.lock_handle(mine, unlock=True)
        cache.lock_handle(mine)
        with refused(cache, BlockStateError, "not locked by this handle"):
            cache.lock_handle(other, unlock=True)
        cache.lock_handle(mine, unlock=True)


# Requests that end twice.


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
    cache.free_and_cache_finished_req(shared, [], [])
    assert cache.manager.size_info == SizeInfo(2, 0)


# Wrong calls, in one world: 1 and 2 are in the tree, and a request with them has a page of its own.


class World:
    def __init__(self, page_size: int = 1) -> None:
        self.cache = CacheManager(None, num_pages=8, page_size=page_size)
        self.tree = self.cache.manager
        self.foreign = RadixCacheManager(None, num_pages=4)
        self.foreign.insert_prefix([1], [0])
        self.kept = serve(self.cache, *range(1, 2 * page_size + 1))
        self.loose = self.tree.match_prefix(range(1, 2 * page_size + 1)).handle
        self.handle, found = self.tree.match_prefix(range(1, 2 * page_size + 1))
        self.cache.lock(self.handle)
        self.slots = [*found.tolist(), *self.cache.allocate(2 * page_size).tolist()]
        taken = {slot // page_size for slot in self.slots}
        self.untaken = next(page for page in range(8) if page not in taken)

    def end(self, tokens: list[int], slots: Any, handle: Any = None) -> None:
        self.cache.free_and_cache_finished_req(handle or self.handle, tokens, slots)


HANDLE, OWN = "handle must be a RadixCacheHandle", "must be of this cache"
WRONG: dict[str, tuple[Callable[[World], object], type[Exception], str]] = {
    "lock nothing": (lambda w: w.cache.lock(None), TypeError, HANDLE),  # the original ignores it
    "lock a number": (lambda w: w.cache.lock(0), TypeError, HANDLE),
    "lock no node": (lambda w: w.cache.lock(RadixCacheHandle(0, None)), ValueError, OWN),
    "lock another's": (
        lambda w: w.cache.lock(w.foreign.match_prefix([1]).handle), ValueError, OWN,
    ),
    "unlock another's": (
        lambda w: w.cache.unlock(w.foreign.match_prefix([1]).handle), ValueError, OWN,
    ),
    "lock another's root": (
        lambda w: w.cache.lock(RadixCacheHandle(0, w.foreign.root_node)), ValueError, OWN,
    ),
    "lock the root of two tokens": (
        lambda w: w.cache.lock(RadixCacheHandle(2, w.tree.root_node)), ValueError, "its cached_len",
    ),
    **{
        f"unlock, {value!r}": (
            lambda w, value=value: w.tree.lock_handle(w.handle, value),
            TypeError, "unlock must be a bool, got ",
        )
        for value in (1, None, "no")
    },
    "evict more than there is": (
        lambda w: w.tree.evict(3), OutOfBlocksError, "need 3 blocks, 0 available",
    ),
    "insert a page of the tree": (
        lambda w: w.tree.insert_prefix([1, 9], w.kept), BlockStateError, "block ",
    ),
    "insert a page of the tree at the start": (
        lambda w: w.tree.insert_prefix([5], w.kept[:1]), BlockStateError, "block ",
    ),
    "insert a page twice": (
        lambda w: w.tree.insert_prefix([5, 6], [w.slots[2]] * 2), ValueError, "distinct",
    ),
    "too few slots": (
        lambda w: w.tree.insert_prefix([1, 2], [0]), ValueError, "as many as input_ids",
    ),
    "too many slots": (
        lambda w: w.end([1, 2], w.slots[:3]), ValueError, "as many as input_ids",
    ),
    **{
        f"slots of {wrong}": (
            lambda w, wrong=wrong: w.cache.free(wrong), TypeError, "indices must be integers",
        )
        for wrong in ([0.0, 1.0], ["a", "b"], [None, None])
    },
    "slots of two dimensions": (
        lambda w: w.cache.free(np.zeros((1, 2), np.int32)), ValueError, "one dimension, got 2",
    ),
    **{
        f"tokens {tokens}, {name}": (
            lambda w, tokens=tokens, call=call: call(w, tokens), error, "tokens",
        )
        for tokens, error in (([-1], ValueError), ([2**32], ValueError), (["a"], TypeError))
        for name, call in {
            "match": lambda w, t: w.tree.match_prefix(t),
            "insert": lambda w, t: w.tree.insert_prefix(t, w.slots[2:3]),
            "finish": lambda w, t: w.end(t, w.slots[2:3], root(w.cache)),
            "request": lambda w, t: w.cache.match_req(request(*t, 1)),
        }.items()
    },
    "finish without a lock": (
        lambda w: w.end([1, 2, 3], w.slots[:3], w.loose), BlockStateError, "not locked by this",
    ),
    "continue without a lock": (
        lambda w: w.cache.cache_unfinished_req(w.loose, [1, 2, 3], w.slots[:3]),
        BlockStateError, "not locked by this handle",
    ),
    **{
        f"finish {tokens}": (
            lambda w, tokens=tokens: w.end(tokens, w.slots[: len(tokens)]),
            ValueError, "must be of a prefix of input_ids",
        )
        for tokens in ([9, 9, 9], [1], [1, 9, 3])
    },
    # In the original, a request with a match but the root as handle frees the tree's slots.
    "finish with slots of the tree": (
        lambda w: w.end([1, 2, 3], w.slots[:3], root(w.cache)),
        BlockStateError, "not the caller's: in the tree",
    ),
    **{
        f"free {part} of the tree": (
            lambda w, part=part: w.cache.free(w.kept[part]), BlockStateError, "in the tree",
        )
        for part in (slice(2), slice(1), slice(1, 2))
    },
    "free a slot twice": (
        lambda w: w.cache.free(w.slots[2:] * 2), BlockStateError, "more often than it is held",
    ),
    "free what is free": (
        lambda w: w.cache.free([w.slots[2], w.untaken]), BlockStateError, "more often",
    ),
    "finish with what is free": (
        lambda w: w.end([1, 2, 3, 4], [*w.slots[:3], w.untaken]), BlockStateError, "block ",
    ),
    "reset while in use": (lambda w: w.cache.reset(), BlockStateError, "unlock every handle"),
    "no tokens": (lambda w: w.cache.match_req(request()), ValueError, "at least 1 token"),
    **{
        f"{wrong!r} as a request": (
            lambda w, wrong=wrong: w.cache.match_req(wrong), TypeError, "req must have input_ids",
        )
        for wrong in (None, 3, [1, 2], "x")
    },
    # In the original, ``allocate(-1)`` allocates every free slot except one.
    **{
        f"{name} {size!r}": (
            lambda w, size=size, call=call: call(w, size),
            ValueError if size == -1 else TypeError, f"{name} must be",
        )
        for size in (-1, 1.0, None, True)
        for name, call in {
            "needed_len": lambda w, n: w.cache.allocate(n),
            "size": lambda w, n: w.tree.evict(n),
        }.items()
    },
    "draw a dictionary": (lambda w: format_tree({}), TypeError, "must be a radix cache"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_and_changes_nothing(name: str) -> None:
    call, error, match = WRONG[name]
    world = World()
    with refused(world.cache, error, match):
        call(world)


@pytest.mark.parametrize("cached_len", [0, 1, 3, -2])
def test_a_handle_ends_at_a_page(cached_len: int) -> None:
    world = World(page_size=2)
    with refused(world.cache, ValueError, "where its cached_len says"):
        world.cache.lock(RadixCacheHandle(cached_len, world.loose.node))


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
    calls: list[Callable[[], object]] = [
        lambda: cache.manager.insert_prefix([1, 2, 3, 4], indices),
        lambda: cache.free(indices),
        lambda: cache.free_and_cache_finished_req(root(cache), [1, 2, 3, 4], indices),
    ]
    for call in calls:
        with refused(cache, ValueError, rf"indices\[{at}\] is {indices[at]}"):
            call()


def test_a_slot_given_twice_is_refused() -> None:
    cache = CacheManager(None, num_pages=8, page_size=2)
    twice = cache.allocate(2).tolist() * 2
    for tokens in ([1, 2, 3, 4], [1, 2, 3]):  # twice to the tree; to the tree and to be freed
        with refused(cache, ValueError, "distinct|name a page once"):
            cache.free_and_cache_finished_req(root(cache), tokens, twice[: len(tokens)])
    serve(cache, 1, 2, 3, 4)
    with refused(cache, ValueError, "name a page once"):  # computed twice, and so freed twice
        cache.free_and_cache_finished_req(root(cache), [1, 2, 3, 4], twice)


SIZES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    **{
        f"{kind.__name__} of {sizes}": (
            lambda kind=kind, sizes=sizes: kind(None, *sizes), error, "must be",
        )
        for kind in (CacheManager, RadixCacheManager)
        for sizes, error in {
            (0, 1): ValueError, (-1, 1): ValueError, (4, 0): ValueError, (4, 1.5): TypeError,
        }.items()
    },
    "slots that no int32 holds": (
        lambda: CacheManager(None, 32_769, 65_535),
        ValueError, "num_pages must be at most 32768 with pages of 65535",
    ),
    **{
        f"a page with {name} {value!r}": (
            lambda name=name, value=value: get_mha_cache_per_page(
                **{"head_dim": 64, "num_kv_heads": 8, "num_layers": 2, name: value}
            ),
            error, f"{name} must be",
        )
        for name in ("head_dim", "num_kv_heads", "num_layers", "page_size", "tp_size", "dtype_size")
        for value, error in ((0, ValueError), (-2, ValueError), (2.0, TypeError), (True, TypeError))
    },
    # In the original, a page then has a fraction of a byte.
    "heads that do not divide evenly": (
        lambda: get_mha_cache_per_page(64, 8, 2, tp_size=3),
        ValueError, "must be a multiple of tp_size, got 8 over 3",
    ),
    **{
        f"pages of {page} in {memory}": (
            lambda memory=memory, page=page: get_num_pages_for_kv_cache(memory, page),
            ValueError, "must be at least",
        )
        for memory, page in ((-1, 8), (8, 0), (8, -1))
    },
    **{
        f"a table of {shape}": (
            lambda shape=shape: create_page_table(*shape), ValueError, "must be at least 1",
        )
        for shape in ((0, 4), (4, 0), (-1, 4))
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_cannot_be_are_refused(name: str) -> None:
    build, error, match = SIZES[name]
    with pytest.raises(error, match=match):
        build()


@pytest.mark.parametrize("device", ["nowhere", "", -1])
def test_a_device_that_is_not_there_is_refused_before_anything_is_handed_out(device: Any) -> None:
    pytest.importorskip("torch", reason="devices are torch's")
    for build in (
        lambda: CacheManager(device, num_pages=8),
        lambda: create_page_table(2, 2, device),
    ):
        with pytest.raises(ValueError, match="device must be one that torch has here"):
            build()


def test_integrity_is_checked_and_not_just_promised() -> None:
    """The original's check does nothing."""
    world = World()
    world.cache.check_integrity()
    world.tree.pool.acquire([world.handle.node.page])
    with pytest.raises(InvariantError, match="2 references and 1 lock"):
        world.cache.check_integrity()
