"""The public calls of the ports, each on a small world in which it has something to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockmgr import BlockManager
from blockmgr.pool import BlockPool
from blockmgr.ports import nano_vllm
from blockmgr.ports.aphrodite import BlockSpaceManager
from blockmgr.ports.radix import CacheManager
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
from blockmgr.ports.tgi import BlockAllocator
from tests.faults.calls import Call, World, _by
from tests.ports.nano_driver import Seq
from tests.unit.snapshot import snapshot


@dataclass
class PortWorld(World):
    """A port, and how its state is read."""

    read: Callable[[PortWorld], Any] = lambda _: None

    def state(self) -> Any:
        """Everything that can be seen of it, and of that, what is held: references and books.

        What is held leaves out what a call that is undone may leave behind: counters, recency,
        generations.
        """
        return self.read(self)


def _refs(manager: BlockManager) -> list[int]:
    return manager.blocks().ref_count.tolist()


def _pool_refs(pool: BlockPool) -> list[int]:
    return pool.ref_counts(range(pool.num_blocks - pool.capacity, pool.num_blocks)).tolist()


# nano-vllm.


def nano() -> PortWorld:
    """A sequence computed in full, one that has grown, one that waits."""
    blocks = nano_vllm.BlockManager(16, 2)
    first = Seq("first", [1, 2, 3, 4, 5], max_new_tokens=8)
    blocks.allocate(first, blocks.can_allocate(first))
    first.num_scheduled_tokens = 5
    second = Seq("second", [1, 2, 3, 4, 5], max_new_tokens=8)
    blocks.allocate(second, blocks.can_allocate(second))
    second.num_scheduled_tokens = 5
    blocks.hash_blocks(first)
    first.token_ids += [6, 7]
    third = Seq("third", [1, 2, 3, 9], max_new_tokens=8)
    return PortWorld(blocks, {"first": first, "second": second, "third": third}, _nano_state)


def _nano_state(world: PortWorld) -> Any:
    sequences = [world.first, world.second, world.third]
    return snapshot(world.subject.manager), (
        _refs(world.subject.manager),
        [(list(s.block_table), s.num_cached_tokens) for s in sequences],
        [id(s) in world.subject._holders for s in sequences],
        [(h.num_tokens, h.num_computed_tokens) for h in world.subject._holders.values()],
    )


# Radix.


def radix() -> PortWorld:
    """A prefix in the tree, and a request on its way."""
    cache = CacheManager(None, num_pages=16)
    slots = cache.allocate(4)
    root, _ = cache.match_req(_request([9]))
    cache.free_and_cache_finished_req(root, [1, 2, 3, 4], slots)
    handle, found = cache.match_req(_request([1, 2, 3, 7, 8]))
    cache.lock(handle)
    fresh = cache.allocate(2)
    tokens = [1, 2, 3, 7, 8]
    return PortWorld(
        cache.manager.pool,
        {
            "port": cache,
            "handle": handle,
            "tokens": tokens,
            "slots": np.concatenate([found, fresh]),
        },
        lambda w: (
            w.subject._core.fingerprint(),
            (_pool_refs(w.subject), dict(w.port.manager._locks), w.port.manager.size_info),
        ),
    )


def _request(tokens: list[int]) -> Any:
    from blockmgr.ports.radix import Request

    return Request(uid=0, input_ids=tokens, table_idx=0, cached_len=0, output_len=8)


# Slots.


def slots() -> PortWorld:
    """Two slots, of which one begins like the other."""
    allocator = SlotAllocator(4)
    cache = PrefixCacheManager(20, slots=allocator)
    first, second = allocator.alloc(), allocator.alloc()
    cache.insert([1, 2, 3], first, allocator.version(first))
    cache.insert([1, 2, 9], second, allocator.version(second))
    cache.release([1, 2, 9])
    return PortWorld(
        cache, {"allocator": allocator, "first": first, "second": second}, _slots_state
    )


def _slots_state(world: PortWorld) -> Any:
    cache = world.subject
    allocator = world.allocator
    return (cache._pool._core.fingerprint(), allocator._pool._core.fingerprint()), (
        _pool_refs(cache._pool),
        _pool_refs(allocator._pool),
        cache._slot_of.tolist(),
        {slot: tokens.tolist() for slot, tokens in cache._contents.items()},
        dict(cache._versions),
        sorted(allocator._occupied),
    )


# Text Generation Inference.


def tgi() -> PortWorld:
    """An allocation that is open, and one that was closed."""
    allocator = BlockAllocator(64, 4)
    asyncio.run(_end(allocator, [1, 2, 3, 4, 5, 6]))
    allocation = asyncio.run(allocator.allocate(8, [1, 2, 3, 4, 5]))
    return PortWorld(allocator.manager, {"port": allocator, "allocation": allocation}, _tgi_state)


async def _end(allocator: BlockAllocator, prompt: list[int]) -> None:
    allocation = await allocator.allocate(8, prompt)
    assert allocation is not None
    allocation.close()


def _tgi_state(world: PortWorld) -> Any:
    manager = world.port.manager  # what was dropped goes first
    return snapshot(manager), (
        _refs(manager),
        len(manager.handles()),
        sorted(world.port._links),
        sorted(world.port._waiting),
        sorted(world.port._in_flight),
    )


async def _with_copies(world: World) -> None:
    async with world.port.copies():
        pass


def _finish(coroutine: Any) -> Any:
    """A coroutine that waits for nobody, without a loop: a loop has lines of its own."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    finally:
        coroutine.close()
    raise AssertionError("it waits")


# Aphrodite.


@dataclass
class Group:
    """One sequence of that scheduler, and its group."""

    seq_id: int
    tokens: list[int]

    def get_token_ids(self) -> list[int]:
        return self.tokens

    def get_seqs(self) -> list[Group]:
        return [self]


def aphrodite(caching: bool = True) -> PortWorld:
    """A sequence on the device, its fork, one on the host, one that waits."""
    manager = BlockSpaceManager(2, 16, 8, enable_caching=caching, watermark=0)
    first, second = Group(1, [1, 2, 3]), Group(2, [1, 2, 3])
    third, fourth = Group(3, [7, 8, 9]), Group(4, [1, 2, 5, 6])
    manager.allocate(first)
    manager.mark_blocks_as_computed(first)
    manager.fork(first, second)
    manager.allocate(third)
    manager.swap_out(third)
    first.tokens.append(4)
    return PortWorld(
        _Checked(manager),
        {"port": manager, "first": first, "second": second, "third": third, "fourth": fourth},
        _aphrodite_state,
    )


class _Checked:
    def __init__(self, manager: BlockSpaceManager) -> None:
        self.manager = manager

    def check_invariants(self) -> None:
        for pool in _pools(self.manager):
            pool.pool.check_invariants()


def _pools(manager: BlockSpaceManager) -> list[Any]:
    from blockmgr.ports.aphrodite import Device

    return [manager.block_allocator.pool_of(device) for device in (Device.GPU, Device.CPU)]


def _aphrodite_state(world: PortWorld) -> Any:
    tables = {
        name: t._run and (list(t._run.blocks), list(t._run.tokens), bytes(t._run.promoted))
        for name, t in world.port.block_tables.items()
    }
    pools = [pool.pool for pool in _pools(world.port)]
    return [pool._core.fingerprint() for pool in pools], (
        [_pool_refs(pool) for pool in pools],
        tables,
    )


def _calls() -> list[Call]:
    return [
        Call("nano.allocate", nano, _by(lambda w: w.subject.allocate(w.third, 1))),
        Call("nano.may_append", nano, _by(lambda w: w.subject.may_append(w.first))),
        Call("nano.hash_blocks", nano, _by(lambda w: w.subject.hash_blocks(w.second))),
        Call("nano.deallocate", nano, _by(lambda w: w.subject.deallocate(w.first))),
        Call("radix.allocate", radix, _by(lambda w: w.port.allocate(3))),
        Call("radix.lock", radix, _by(lambda w: w.port.lock(w.handle))),
        Call("radix.unlock", radix, _by(lambda w: w.port.unlock(w.handle))),
        Call(
            "radix.free_and_cache",
            radix,
            _by(lambda w: w.port.free_and_cache_finished_req(w.handle, w.tokens, w.slots)),
        ),
        Call("slots.insert", slots, _by(lambda w: w.subject.insert([1, 2, 9, 9], w.second, 1))),
        Call("slots.pin", slots, _by(lambda w: w.subject.pin([1, 2]))),
        Call("slots.release", slots, _by(lambda w: w.subject.release([1, 2, 3]))),
        Call("slots.alloc", slots, _by(lambda w: w.allocator.alloc())),
        Call("slots.free", slots, _by(lambda w: w.allocator.free(w.second))),
        Call("tgi.allocate", tgi, _by(lambda w: _finish(w.port.allocate(8, [1, 2, 3, 4, 9])))),
        Call("tgi.commit", tgi, _by(lambda w: w.allocation.commit(4))),
        Call("tgi.close", tgi, _by(lambda w: w.allocation.close())),
        Call("tgi.copies", tgi, _by(lambda w: _finish(_with_copies(w)))),
        Call("aphrodite.allocate", aphrodite, _by(lambda w: w.port.allocate(w.fourth))),
        Call("aphrodite.append_slots", aphrodite, _by(lambda w: w.port.append_slots(w.first))),
        Call("aphrodite.fork", aphrodite, _by(lambda w: w.port.fork(w.second, w.fourth))),
        Call("aphrodite.free", aphrodite, _by(lambda w: w.port.free(w.second))),
        Call("aphrodite.swap_out", aphrodite, _by(lambda w: w.port.swap_out(w.second))),
        Call("aphrodite.swap_in", aphrodite, _by(lambda w: w.port.swap_in(w.third))),
        Call(
            "aphrodite.mark_computed",
            aphrodite,
            _by(lambda w: w.port.mark_blocks_as_computed(w.second)),
        ),
    ]


PORT_CALLS = {call.name: call for call in _calls()}
