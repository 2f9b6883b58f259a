"""TGI's block allocator, call by call: the promises of the two documents as properties.

One class here replaces their trie and their two allocators, so the promises apply to
``BlockAllocator``:

| there | here |
|---|---|
| ``BlockAllocator.new``, ``allocate``, ``free``; ``BlockAllocation`` | the same |
| ``SimpleAllocator.allocate``, ``free`` | ``prefix_caching=False`` |
| ``RadixAllocator.new``, ``allocate``, ``free`` | ``prefix_caching=True`` |
| ``RadixTrie.find``, ``insert`` | what ``allocate`` finds, and what an end or ``commit`` keeps |
| ``RadixTrie.evict``, ``incref``, ``decref`` | what ``allocate`` takes away, and what it leaves |
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import NeverFitsError, StepError, UnknownSequenceError
from blockmgr.ports.tgi import BlockAllocation, BlockAllocator
from tests.fingerprints import fingerprint
from tests.ports.tgi_engine import Engine, now, refused

SIZES = pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16])
EITHER = pytest.mark.parametrize("prefix_caching", [True, False])


# BlockAllocator.new


@SIZES
@EITHER
def test_block_0_is_never_handed_out(block_size: int, prefix_caching: bool) -> None:
    allocator = BlockAllocator(5 * block_size, block_size, prefix_caching)
    allocation = now(allocator.allocate(4 * block_size))
    assert allocation is not None
    assert sorted(allocation.blocks.tolist()) == [1, 2, 3, 4]
    assert allocation.slots.min() >= block_size
    assert allocator.num_available == 0


# allocate, with either kind


@EITHER
@given(data=st.data())
def test_an_allocation_has_a_slot_for_every_token(prefix_caching: bool, data: Any) -> None:
    block_size = data.draw(st.integers(1, 5))
    engine = Engine(12, block_size, prefix_caching=prefix_caching)
    tokens = data.draw(st.integers(1, 12 * block_size))
    prompt = data.draw(st.none() | st.lists(st.integers(0, 1), min_size=1, max_size=tokens))
    allocation = engine.reserve(tokens, prompt)
    assert len(allocation.blocks) == -(-tokens // block_size)
    assert len(set(allocation.blocks.tolist())) == len(allocation.blocks)
    expected = allocation.blocks.repeat(block_size)[:tokens] * block_size
    assert allocation.slots.tolist() == (expected + np.arange(tokens) % block_size).tolist()
    assert (allocation.blocks.dtype, allocation.slots.dtype) == (np.int32, np.int64)
    assert allocation.prefix_len == 0


@EITHER
def test_without_room_the_answer_is_none_and_nothing_changes(prefix_caching: bool) -> None:
    engine = Engine(4, 2, prefix_caching=prefix_caching)
    engine.cache([1, 2, 3, 4])
    held = engine.reserve(5)
    before = fingerprint(engine.allocator.manager)
    assert engine.allocate(5, [1, 2, 3, 4, 5]) is None
    assert fingerprint(engine.allocator.manager) == before
    held.close()
    assert engine.allocate(5, [1, 2, 3, 4, 5]) is not None


@EITHER
def test_what_could_never_fit_is_refused_instead_of_waiting_for_ever(prefix_caching: bool) -> None:
    engine = Engine(4, 2, prefix_caching=prefix_caching)
    with refused(engine.allocator, NeverFitsError, "slots for 9 tokens take 5 blocks"):
        engine.allocate(9)
    assert engine.allocate(8) is not None


# Prefixes: RadixAllocator.allocate and free, RadixTrie.find and insert


@SIZES
@pytest.mark.parametrize("shared", range(1, 12))
def test_prefixes_are_found_token_by_token_at_any_block_size(block_size: int, shared: int) -> None:
    engine = Engine(40, block_size)
    prompt = list(range(100, 112))
    engine.cache(prompt)
    branch = engine.compute(20, [*prompt[:shared], 7, 8])  # checks what it reads
    assert branch.prefix_len == shared


# Windows: SimpleAllocator


@given(tokens=st.integers(1, 40), window_size=st.integers(1, 20), block_size=st.integers(1, 5))
def test_slots_wrap_around_the_blocks_of_a_window(
    tokens: int, window_size: int, block_size: int
) -> None:
    engine = Engine(20, block_size, prefix_caching=False, window_size=window_size)
    allocation = engine.reserve(tokens)
    blocks = allocation.blocks.tolist()
    assert len(blocks) == -(-min(tokens, window_size) // block_size)
    ring = [block * block_size + offset for block in blocks for offset in range(block_size)]
    if tokens <= window_size:
        assert allocation.slots.tolist() == ring[:tokens]
    assert allocation.slots.tolist() == [ring[t % len(ring)] for t in range(tokens)]
    near = allocation.slots[-min(tokens, window_size) :]
    assert len(set(near.tolist())) == len(near)  # the last window is all there


def test_a_window_bounds_what_a_request_can_need() -> None:
    engine = Engine(2, 4, prefix_caching=False, window_size=8)
    allocation = engine.reserve(1000)
    assert (len(allocation.slots), engine.allocator.num_available) == (1000, 0)
    allocation.close()
    assert engine.allocator.num_available == 2


def test_a_prefix_is_not_wrapped_whatever_the_window() -> None:
    """Others could not use a prefix that is overwritten."""
    engine = Engine(8, 2, window_size=4)
    allocation = engine.compute(12, list(range(11)))
    assert len(set(allocation.slots.tolist())) == 12
    allocation.close()
    assert engine.found(list(range(12))) == 11


# commit


def test_blocks_and_slots_stay_as_they_are_when_a_twin_is_found() -> None:
    engine = Engine(12, 2)
    one, two = (engine.reserve(6, [1, 2, 3, 4, 5]) for _ in range(2))
    now(engine.forward((one, [1, 2, 3, 4, 5]), (two, [1, 2, 3, 4, 5])))
    blocks, slots = two.blocks.tolist(), two.slots.tolist()
    one.commit()
    two.commit()
    view = engine.allocator.manager.sequence(two.allocation_id)
    assert view.block_ids.tolist() == blocks == two.blocks.tolist()
    assert slots == two.slots.tolist()


@EITHER
def test_committing_never_goes_back_or_beyond_the_prompt(prefix_caching: bool) -> None:
    engine = Engine(12, 2, prefix_caching=prefix_caching)
    allocation = engine.compute(9, [1, 2, 3, 4, 5])
    allocation.commit(4)
    with refused(engine.allocator, ValueError, r"num_computed_tokens must be in \[\d, 5\], got 6"):
        allocation.commit(6)
    with refused(engine.allocator, ValueError, "num_computed_tokens must be in .*got -1"):
        allocation.commit(-1)
    with refused(engine.allocator, TypeError, "num_computed_tokens must be an int, got 2.5"):
        allocation.commit(2.5)  # type: ignore[arg-type]
    if prefix_caching:
        with refused(engine.allocator, ValueError, r"must be in \[4, 5\], got 3"):
            allocation.commit(3)
    without = engine.reserve(4)
    without.commit()
    with refused(engine.allocator, ValueError, r"must be in \[0, 0\], got 1"):
        without.commit(1)


# Copies


def test_a_prefix_that_ends_within_a_block_is_copied_before_the_forward() -> None:
    engine = Engine(12, 4)
    source = engine.compute(8, [1, 2, 3, 4, 5])
    source.commit()
    branch = engine.reserve(8, [1, 2, 9])
    assert (branch.prefix_len, branch.is_ready, source.is_ready) == (2, False, True)
    copies = now(engine.forward((branch, [1, 2, 9])))
    assert copies == [(source.blocks[0], branch.blocks[0], 2)]
    assert branch.is_ready


def test_a_commit_before_the_copies_is_refused() -> None:
    engine = Engine(12, 4)
    engine.cache(list(range(8)))
    branch = engine.reserve(8, [0, 1, 9])
    with refused(engine.allocator, StepError, "waits for a copy"):
        branch.commit()

    async def inside() -> None:
        async with engine.allocator.copies():
            with refused(engine.allocator, StepError, "waits for a copy"):
                branch.commit()

    now(inside())
    branch.commit()


def test_an_allocation_made_while_a_plan_is_open_waits_for_the_next() -> None:
    engine = Engine(12, 4)
    engine.cache(list(range(8)))

    async def main() -> BlockAllocation:
        async with engine.allocator.copies() as plan:
            assert len(plan) == 0
            late = await engine.allocator.allocate(8, [0, 1, 9])
            assert late is not None
        assert not late.is_ready
        return late

    late = now(main())
    now(engine.forward((late, [0, 1, 9])))


def test_copies_that_fail_are_pending_again() -> None:
    engine = Engine(12, 4)
    engine.cache(list(range(8)))
    branch = engine.reserve(8, [0, 1, 9])

    async def fail() -> None:
        async with engine.allocator.copies():
            raise OSError("no device")

    with pytest.raises(OSError, match="no device"):
        now(fail())
    assert not branch.is_ready
    assert len(now(engine.forward((branch, [0, 1, 9])))) == 1
    assert branch.is_ready


def test_a_plan_is_open_in_one_task_at_a_time() -> None:
    engine = Engine(12, 4)
    engine.cache(list(range(8)))
    order: list[str] = []

    async def step(name: str) -> None:
        async with engine.allocator.copies():
            order.append(f"{name} takes")
            for _ in range(5):
                await asyncio.sleep(0)
            order.append(f"{name} applies")

    async def main() -> None:
        await asyncio.gather(step("a"), step("b"))

    asyncio.run(main())
    assert order == ["a takes", "a applies", "b takes", "b applies"]


# BlockAllocation: its ends


def test_async_with_closes_at_a_regular_end_and_discards_at_any_other() -> None:
    engine = Engine(12, 2)

    async def serve(prompt: list[int], error: BaseException | None = None) -> None:
        async with engine.reserve(8, prompt) as allocation:
            await engine.forward((allocation, prompt))
            if error:
                raise error
        assert allocation.is_closed

    now(serve([1, 2, 3]))
    with pytest.raises(OSError, match="broken"):
        now(serve([4, 5, 6], OSError("broken")))
    with pytest.raises(asyncio.CancelledError):
        now(serve([7, 8, 9], asyncio.CancelledError()))
    assert engine.found([1, 2, 3, 0]) == 3
    assert engine.found([4, 5, 6, 0]) == engine.found([7, 8, 9, 0]) == 0
    assert engine.is_empty()


def test_free_closes_by_the_parts_of_an_allocation() -> None:
    engine = Engine(12, 2)
    allocation = engine.compute(8, [1, 2, 3])
    engine.allocator.free(allocation.blocks.tolist(), allocation.allocation_id)
    assert allocation.is_closed
    assert engine.found([1, 2, 3, 4]) == 3
    del allocation  # not freed again
    assert engine.is_empty()


@pytest.mark.parametrize("call", ["close", "discard", "commit"])
def test_a_closed_allocation_refuses_everything(call: str) -> None:
    engine = Engine(12, 2)
    allocation = engine.compute(8, [1, 2, 3])
    other = engine.reserve(2)
    allocation.close()
    with refused(engine.allocator, UnknownSequenceError):
        getattr(allocation, call)()
    with refused(engine.allocator, UnknownSequenceError):
        engine.allocator.free(allocation.blocks, allocation.allocation_id)
    assert not other.is_closed


def test_an_allocation_says_what_it_is() -> None:
    engine = Engine(12, 4)
    engine.cache([1, 2, 3, 4])
    allocation = engine.reserve(8, [1, 2, 3, 4, 5])
    name = allocation.allocation_id
    assert repr(allocation) == f"<BlockAllocation {name}: 2 blocks for 8 tokens, 4 cached>"
    assert repr(engine.allocator) == (
        "<BlockAllocator: 1 allocations, 10 blocks of 4 tokens available>"
    )
    allocation.close()
    assert repr(allocation).endswith("4 cached, closed>")


# Bad input


ALLOCATORS: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    ((7, 4), ValueError, r"max_batch_total_tokens must be in \[8, .*\], got 7"),
    ((64.0, 4), TypeError, "max_batch_total_tokens must be an int, got 64.0"),
    ((True, 1), TypeError, "max_batch_total_tokens must be an int, got True"),
    ((2**60, 4), ValueError, "max_batch_total_tokens must be in "),
    ((64, 0), ValueError, r"block_size must be in \[1, 65535\], got 0"),
    ((64, "4"), TypeError, "block_size must be an int, got '4'"),
    ((64, 4, 1), TypeError, "prefix_caching must be a bool, got 1"),
    ((64, 4, False, 0), ValueError, r"window_size must be in \[1, .*\], got 0"),
    ((64, 4, True, 0), ValueError, "window_size must be .*got 0"),
    ((64, 4, False, 1.5), TypeError, "window_size must be an int, got 1.5"),
]
REQUESTS: list[tuple[Any, Any, type[Exception], str]] = [
    (0, None, ValueError, r"tokens must be in \[1, 2147483647\], got 0"),
    (2**31, None, ValueError, "tokens must be .*got 2147483648"),
    (True, None, TypeError, "tokens must be an int, got True"),
    (4, [], ValueError, r"prefill_tokens must hold 1 to 4 \(tokens\) tokens, got 0"),
    (4, [1] * 5, ValueError, r"prefill_tokens must hold 1 to 4 \(tokens\) tokens, got 5"),
    (4, 7, TypeError, "prefill_tokens must be a list or array of ints, got int"),
]
PROMPTS: list[tuple[Any, Any, type[Exception], str]] = [
    (8, [1, -1], ValueError, "prefill_tokens: tokens must be in .*got -1 at index 1"),
    (8, [1, 2**32], ValueError, "prefill_tokens: tokens must be in .*got 4294967296 at index 1"),
    (8, [1, "2"], TypeError, "prefill_tokens: tokens must be ints, got str at index 1"),
    (8, np.zeros((2, 2), int), ValueError, "prefill_tokens: tokens must have 1 dimension"),
]


def test_what_makes_no_sense_is_refused_by_name() -> None:
    for arguments, error, message in ALLOCATORS:
        with pytest.raises(error, match=message):
            BlockAllocator(*arguments)
    for prefix_caching, requests in ((False, REQUESTS), (True, [*REQUESTS, *PROMPTS])):
        engine = Engine(8, 2, prefix_caching=prefix_caching)
        held = engine.reserve(4)
        for tokens, prompt, error, message in requests:
            with refused(engine.allocator, error, message):
                engine.allocate(tokens, prompt)
        assert not held.is_closed


def test_free_refuses_blocks_that_are_not_those_of_the_allocation() -> None:
    engine = Engine(8, 2)
    one, two = engine.reserve(4), engine.reserve(4)
    with refused(engine.allocator, ValueError, "blocks must be .*those of allocation"):
        engine.allocator.free(two.blocks, one.allocation_id)
    with refused(engine.allocator, UnknownSequenceError):
        engine.allocator.free(one.blocks, -3)
    assert not one.is_closed
