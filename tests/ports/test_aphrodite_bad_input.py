"""The Aphrodite port: wrong calls of allocators and blocks are refused without changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from blockmgr import BlockStateError, OutOfBlocksError
from blockmgr.ports.aphrodite import (
    Block,
    NaiveBlock,
    NaiveBlockAllocator,
    NoFreeBlocksError,
    PrefixCachingBlock,
)
from tests.ports.aphrodite_support import Make, caching, chain, naive, refused

BAD: dict[str, tuple[Callable[[Any, Any], object], type[Exception], str]] = {
    "append nothing": (lambda a, b: b[2].append_token_ids([]), ValueError, "1 to 2 tokens, got 0"),
    "append too much": (lambda a, b: b[2].append_token_ids([1] * 3), ValueError, "got 3"),
    "append to a full block": (lambda a, b: b[0].append_token_ids([1]), ValueError, "got 1"),
    "append a negative token": (
        lambda a, b: b[2].append_token_ids([-1]),
        ValueError, r"token_ids must be in \[0, 2\*\*32\)",
    ),
    "append text": (lambda a, b: b[2].append_token_ids(["1"]), TypeError, "an int, got '1'"),
    "promote a block that is not full": (
        lambda a, b: a.promote_to_immutable_block(b[2]), BlockStateError, "2 empty slots",
    ),
    "allocate after a block that is not full": (
        lambda a, b: a.allocate_immutable(b[2], [1] * 4), BlockStateError, "2 empty slots",
    ),
    "allocate half a block in front": (
        lambda a, b: a.allocate_immutable_blocks(None, [[1], [1] * 4]),
        ValueError, "got 1 in block 0",
    ),
    "allocate a block too long": (
        lambda a, b: a.allocate_immutable(None, [1] * 5), ValueError, "got 5 in block 0",
    ),
    "allocate an empty block": (
        lambda a, b: a.allocate_immutable(None, []), ValueError, "got 0 in block 0",
    ),
    "allocate with an extra that is no int": (
        lambda a, b: a.allocate_immutable_block(None, [1] * 4, extra_hash="lora"),
        TypeError, "extra_hash must be an int or None, got str",
    ),
    "free no block": (lambda a, b: a.free("block"), TypeError, "block must be a .*, got str"),
    "follow a number": (lambda a, b: a.allocate_mutable(3), TypeError, "got int"),
    "free another's block": (
        lambda a, b: a.free(_elsewhere(type(b[0]))), ValueError, "another allocator",
    ),
    "count an unknown block": (
        lambda a, b: a.get_physical_block_id(99),
        ValueError, "block_id 99 is no block of this allocator",
    ),
    "mark an unknown block": (lambda a, b: a.mark_blocks_as_computed([0, 99]), ValueError, "99"),
    "ask for unknown blocks": (
        lambda a, b: a.get_common_computed_block_ids([[0], [99]]), ValueError, "99",
    ),
    "touch an unknown block": (lambda a, b: a.mark_blocks_as_accessed([99], 1.0), ValueError, "99"),
}  # fmt: skip


for _name, _block in (("a half", 0.5), ("a bool", True), ("text", "0"), ("None", None)):
    BAD[f"count {_name}"] = (
        lambda a, b, block=_block: a.get_physical_block_id(block),
        TypeError,
        "block_id must be an int",
    )
BAD["append a bool"] = (
    lambda a, b: b[2].append_token_ids([True]),
    TypeError,
    "token_ids must be an int, got True",
)
BAD["allocate with an extra that is a bool"] = (
    lambda a, b: a.allocate_mutable_block(None, extra_hash=True),
    TypeError,
    "extra_hash must be an int or None, got bool",
)


HASHES: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "half a token": ((True, None, [1.5]), TypeError, "token_ids must be an int, got 1.5"),
    "a token too large": ((True, None, [2**32]), ValueError, "token_ids must be in"),
    "a negative hash": ((False, -1, [1]), ValueError, "prev_block_hash must be in"),
    "a hash too large": ((False, 2**128, [1]), ValueError, "prev_block_hash must be in"),
    "half a hash": ((False, 0.5, [1]), TypeError, "prev_block_hash must be an int"),
    "a named extra": ((True, None, [1], "lora"), TypeError, "extra_hash must be an int"),
}


@pytest.mark.parametrize("name", HASHES)
def test_a_hash_of_what_makes_no_sense_is_refused(name: str) -> None:
    arguments, error, match = HASHES[name]
    with pytest.raises(error, match=match):
        PrefixCachingBlock.hash_block_tokens(*arguments)


def _elsewhere(kind: type[Block]) -> Any:
    other = naive() if issubclass(kind, NaiveBlock) else caching()
    return other.allocate_mutable(None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_call_is_refused_and_changes_nothing(make_allocator: Make, name: str) -> None:
    call, error, match = BAD[name]
    allocator = make_allocator()
    blocks = chain(allocator, list(range(10)))
    before = [block.token_ids for block in blocks]
    with refused(allocator, error, match):
        call(allocator, blocks)
    assert [block.token_ids for block in blocks] == before


AFTER_FREE: dict[str, Callable[[Any, Any], object]] = {
    "free": lambda a, b: a.free(b[1]),
    "append": lambda a, b: b[1].append_token_ids([1]),
    "promote": lambda a, b: a.promote_to_immutable_block(b[1]),
    "fork": lambda a, b: a.fork(b[1]),
    "fork what follows": lambda a, b: a.fork(b[2]),
    "allocate after it": lambda a, b: a.allocate_mutable(b[1]),
    "fill after it": lambda a, b: a.allocate_immutable(b[1], [1, 2, 3, 4]),
}


@pytest.mark.parametrize("name", AFTER_FREE)
def test_a_freed_block_is_refused(make_allocator: Make, name: str) -> None:
    allocator = make_allocator()
    first = chain(allocator, [1] * 4)
    blocks = [first[0], allocator.allocate_mutable(first[0])]
    blocks += [allocator.allocate_mutable(blocks[1])]
    allocator.free(blocks[1])
    with refused(allocator, BlockStateError, "freed"):
        AFTER_FREE[name](allocator, blocks)


def test_an_append_that_finds_no_block_to_copy_to_changes_nothing(make_allocator: Make) -> None:
    allocator = make_allocator(1)
    [block] = chain(allocator, [1, 2])
    fork = allocator.fork(block)[0]
    with refused(allocator, NoFreeBlocksError):
        fork.append_token_ids([3])
    assert (fork.token_ids, fork.block_id) == ([1, 2], block.block_id)
    with refused(allocator, NoFreeBlocksError):
        allocator.cow_block_if_not_appendable(fork)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"block_ids": [1, 2]}, ValueError, "block_ids must be 4 distinct ids"),
        ({"block_ids": [1, 1, 2, 3]}, ValueError, "3 are distinct"),
        ({"block_ids": [-1, 0, 1, 2]}, ValueError, "the smallest -1"),
        ({"num_blocks": 0}, ValueError, "num_blocks must be in"),
        ({"block_size": 0}, ValueError, "block_size must be in"),
    ],
)
def test_an_allocator_that_cannot_be_is_refused(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    for build in (naive, caching):
        with pytest.raises(error, match=match):
            build(**{"num_blocks": 4, "block_size": 4, **options})


def test_the_kind_of_naive_block_is_chosen_by_class() -> None:
    class Named(NaiveBlock):
        name = "mine"

    allocator = NaiveBlockAllocator(create_block=Named, num_blocks=4, block_size=4)
    assert isinstance(allocator.allocate_mutable(None), Named)
    with pytest.raises(TypeError, match="create_block must be NaiveBlock or a subclass"):
        NaiveBlockAllocator(create_block=PrefixCachingBlock, num_blocks=4, block_size=4)  # type: ignore[arg-type]


def test_the_shortage_is_the_cores_and_a_value_error() -> None:
    """Callers catch either of two exceptions; the error must be both."""
    assert issubclass(NoFreeBlocksError, OutOfBlocksError)
    assert issubclass(NoFreeBlocksError, ValueError)
