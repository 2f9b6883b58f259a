"""``BlockPool``: wrong calls, misbehaving digests, and memory use."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    BlockStateError,
    InvariantError,
    ReentrancyError,
    TicketError,
)
from blockmgr.pool import BlockPool
from tests.ports.pool_support import MakePool, cache, refused


def busy_pool(digest: Any) -> BlockPool:
    """Block 0 and its child 1 cached and held, 2 held, 3 cached and idle, 4 to 7 free."""
    pool = BlockPool(8, 2, digest=digest)
    pool.take(4)
    pool.promote([0, 1], [1, 2, 3, 4])
    pool.promote(3, [7, 7])
    pool.release([3])
    return pool


BAD: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "take a negative number": (lambda p: p.take(-1), ValueError, "n must be at least 0, got -1"),
    "take half a block": (lambda p: p.take(0.5), TypeError, "n must be an int, got float"),
    "take True": (lambda p: p.take(True), TypeError, "n must be an int, got bool"),
    "take beyond int64": (lambda p: p.take(2**70), ValueError, "n must fit in int64"),
    "acquire a free block": (lambda p: p.acquire([0, 5]), BlockStateError, "block 5: cannot acq"),
    "acquire past the end": (
        lambda p: p.acquire([0, 8]), ValueError, r"blocks must be in \[0, 8\), got 8 at index 1",
    ),
    "acquire one block": (lambda p: p.acquire(3), TypeError, "blocks must be a list"),
    "acquire text": (lambda p: p.acquire(["0"]), TypeError, "blocks must be ints, got str"),
    "release a negative id": (lambda p: p.release([2, -1]), ValueError, "got -1 at index 1"),
    "release twice": (lambda p: p.release([2, 2]), BlockStateError, "block 2: it is released more"),
    "release what is free": (lambda p: p.release([6]), BlockStateError, "block 6"),
    "release what is idle": (lambda p: p.release([3]), BlockStateError, "block 3"),
    "touch a free block": (lambda p: p.touch([3, 4]), BlockStateError, "block 4: cannot touch"),
    "take a block that is in use": (lambda p: p.take_blocks([4, 2]), BlockStateError, "block 2: c"),
    "take a block that is idle": (
        lambda p: p.take_blocks([3]), BlockStateError, "block 3: cannot take it: it is cached",
    ),
    "take a block twice": (
        lambda p: p.take_blocks([5, 4, 5]), ValueError, "blocks must be distinct, got 5 twice",
    ),
    "take a block too far": (lambda p: p.take_blocks([4, 8]), ValueError, "got 8 at index 1"),
    "take a block by its number": (lambda p: p.take_blocks(4), TypeError, "blocks must be a list"),
    "forget a block that is free": (lambda p: p.forget_blocks([3, 4]), BlockStateError, "block 4"),
    "forget a block that is only held": (
        lambda p: p.forget_blocks([2]),
        BlockStateError, "block 2: cannot forget it: it is not cached",
    ),
    "forget a block too far": (lambda p: p.forget_blocks([8]), ValueError, "got 8 at index 0"),
    "find below a free block": (lambda p: p.find([1, 2], parent=4), BlockStateError, "not cached"),
    "find below a held one": (lambda p: p.find([1, 2], parent=2), BlockStateError, "not cached"),
    "find below no block": (lambda p: p.find([1, 2], parent=-2), ValueError, "parent must be -1"),
    "find below one too far": (lambda p: p.find([1, 2], parent=8), ValueError, "parent must be"),
    "find with two roots": (
        lambda p: p.find([1, 2], parent=0, namespace=b"x"),
        ValueError, "namespace must be empty for a block with a parent",
    ),
    "find a negative token": (lambda p: p.find([1, -2]), ValueError, r"in \[0, 2\*\*32\), got -2"),
    "find by str extras": (
        lambda p: p.find([1, 2], extras={0: "x"}), TypeError, r"extras\[0\] must be bytes",
    ),
    "find by a list of extras": (
        lambda p: p.find([1, 2], extras=[b"x"]),
        TypeError, "extras must map block indices to bytes, got list",
    ),
    "promote what is free": (lambda p: p.promote(4, [5, 5]), BlockStateError, "it is not held"),
    "promote what is idle": (lambda p: p.promote(3, [7, 7]), BlockStateError, "it is not held"),
    "promote under other tokens": (
        lambda p: p.promote(0, [9, 9]),
        BlockStateError, "block 0: cannot promote it: it is cached already, with another content",
    ),
    "promote below another parent": (
        lambda p: p.promote(1, [3, 4]), BlockStateError, "with another content",
    ),
    "promote half a block": (
        lambda p: p.promote(2, [5]), ValueError, "tokens must fill the blocks, 2 of them, got 1",
    ),
    "promote below nothing": (
        lambda p: p.promote(2, [5, 5], parent=4), BlockStateError, "block 4: it is not cached",
    ),
    "promote with two roots": (
        lambda p: p.promote(2, [5, 5], parent=0, namespace=b"x"),
        ValueError, "namespace must be empty",
    ),
    "promote with long extras": (
        lambda p: p.promote(2, [5, 5], extras=b"x" * 1025),
        ValueError, "extras must be 0 to 1024 bytes long, got 1025",
    ),
    "promote a block twice": (
        lambda p: p.promote([2, 2], [5, 5, 6, 6]),
        ValueError, "blocks must be distinct, got 2 twice",
    ),
    "promote a chain with a free block": (
        lambda p: p.promote([2, 5], [5, 5, 6, 6]), BlockStateError, "block 5",
    ),
    "promote a chain with a block of another": (
        lambda p: p.promote([2, 0], [5, 5, 1, 2]), BlockStateError, "block 0",
    ),
    "extras past the chain": (
        lambda p: p.promote([2], [5, 5], extras={1: b"x"}),
        ValueError, r"extras index must be in \[0, 1\), got 1",
    ),
    "write to a free block": (lambda p: p.make_writable(4, 1), BlockStateError, "it is not held"),
    "write past the end": (
        lambda p: p.make_writable(0, 3), ValueError, r"num_tokens must be in \[0, 2\], got 3",
    ),
    "write before the start": (lambda p: p.make_writable(0, -1), ValueError, "got -1"),
    "evict a negative number": (lambda p: p.evict(-1), ValueError, "n must be at least 0"),
    "forget a negative number": (lambda p: p.forget(-1), ValueError, "n must be at least 0"),
    "parent of a free block": (lambda p: p.parent(4), BlockStateError, "block 4: it is not cached"),
    "tokens of a held block": (lambda p: p.tokens(2), BlockStateError, "block 2: it is not cached"),
    "children of a held block": (lambda p: p.children(2), BlockStateError, "not cached"),
    "references of no block": (lambda p: p.ref_count(8), ValueError, r"block must be in \[0, 8\)"),
    "state of no block": (lambda p: p.is_cached(-1), ValueError, "got -1"),
    "generation of no block": (lambda p: p.generation(8), ValueError, "got 8"),
    "references of some": (lambda p: p.ref_count([0, 9]), ValueError, "got 9 at index 1"),
    "states of some": (lambda p: p.is_cached([0, 9]), ValueError, "got 9 at index 1"),
    "idleness of some": (lambda p: p.is_idle([0, 9]), ValueError, "got 9 at index 1"),
    "copies into no block": (lambda p: p.waits_for_copy(8), ValueError, "got 8"),
    "a ticket never taken": (lambda p: p.copies_applied(1), TicketError, "was never taken"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_call_is_refused_and_changes_nothing(digest: Any, name: str) -> None:
    call, error, match = BAD[name]
    pool = busy_pool(digest)
    with refused(pool, error, match):
        call(pool)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"num_blocks": 0}, ValueError, "num_blocks must be in"),
        ({"num_blocks": 1, "null_block": True}, ValueError, "num_blocks must be in"),
        ({"block_size": 0}, ValueError, "block_size must be in"),
        ({"block_size": 1.0}, TypeError, "block_size must be an int"),
        ({"digest": "md5"}, ValueError, "digest must be one of"),
        ({"prefix_caching": 1}, TypeError, "prefix_caching must be a bool"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        BlockPool(**{"num_blocks": 4, "block_size": 2, **options})


def test_a_digest_that_fails_leaves_no_trace() -> None:
    fail = False

    def digest(message: bytes) -> bytes:
        if fail:
            raise RuntimeError("out of order")
        return bytes(16)

    pool = BlockPool(8, 2, digest=digest)
    blocks = pool.take(3).tolist()
    cache_size = pool.memory_usage()
    fail = True
    with refused(pool, RuntimeError, "out of order"):
        pool.promote(blocks, [1] * 6, namespace=b"x", extras={0: b"y"})
    fail = False
    assert pool.promote(blocks, [1] * 6).tolist() == blocks
    assert pool.memory_usage() >= cache_size


def test_a_digest_that_calls_back_is_refused() -> None:
    pool: BlockPool
    call: Callable[[], object] = lambda: None  # noqa: E731

    def digest(message: bytes) -> bytes:
        call()
        return bytes(16)

    pool = BlockPool(8, 2, digest=digest)
    pool.promote(pool.take(1)[0], [1, 2])
    [own] = pool.take(1).tolist()
    calls: list[Callable[[], object]] = [
        lambda: pool.take(1),
        lambda: pool.release([own]),
        lambda: pool.num_free,
        pool.check_invariants,
        pool.take_copies,
    ]
    for call in calls:  # noqa: B007  (the digest calls it)
        with refused(pool, ReentrancyError, "the pool is inside another call"):
            pool.promote(own, [3, 4])
        with refused(pool, ReentrancyError):
            pool.find([3, 4])


def test_what_was_compared_is_what_is_cached_whatever_a_digest_does_to_the_array() -> None:
    tokens = np.array([3, 4], np.uint32)

    def digest(message: bytes) -> bytes:
        if len(message) > 8:
            tokens[:] = [1, 2]
        return bytes(16)

    pool = BlockPool(8, 2, digest=digest)
    one, two = pool.take(2).tolist()
    pool.promote(one, [1, 2])
    tokens[:] = [3, 4]
    assert pool.promote(two, tokens) == two
    assert tokens.tolist() == [1, 2]  # the digest was called
    assert pool.tokens(two).tolist() == [3, 4]
    pool.check_invariants()


def test_a_pool_that_its_digest_refers_to_is_collected() -> None:
    class Holder:
        pool: BlockPool

        def __call__(self, message: bytes) -> bytes:
            return bytes(16)

    holder = Holder()
    holder.pool = BlockPool(8, 2, digest=holder)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_broken_books_are_named(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()

    class Broken:
        def violations(self) -> list[str]:
            return ["block 1 has 2 pins, 1 accounted for"]

    good = pool._core
    monkeypatch.setattr(pool, "_core", Broken())
    with pytest.raises(InvariantError, match="block 1 has 2 pins"):
        pool.check_invariants()
    monkeypatch.setattr(pool, "_core", good)


def test_memory_is_taken_when_the_pool_is_built() -> None:
    pool = BlockPool(4_096, 16)
    built = pool.memory_usage()
    cache(pool, [i % 1_000 for i in range(16 * 64)])
    assert built / 4_096 < 220
    assert pool.memory_usage() - built < 64 * (4 * 16 + 16 + 8) * 2  # scratch that calls reuse
