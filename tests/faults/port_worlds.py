"""Small worlds of the ports, and their full visible state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from blockmgr import BlockManager, CopyError
from blockmgr.pool import BlockPool
from blockmgr.ports import nano_vllm
from blockmgr.ports.aphrodite import BlockSpaceManager, Device
from blockmgr.ports.radix import CacheManager, RadixCacheManager, Request
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
from blockmgr.ports.tgi import BlockAllocator
from tests.faults.worlds import World
from tests.fingerprints import fingerprint
from tests.ports.nano_driver import Seq
from tests.unit.snapshot import snapshot


@dataclass
class PortWorld(World):
    """A port, a function that reads its state, and a probe that must succeed at any time."""

    read: Callable[[PortWorld], Any] = lambda _: None
    probe: Callable[[PortWorld], Any] = lambda _: None

    def state(self) -> Any:
        """The full visible state, and the part of it that is held: references and books.

        The held part excludes what an undone call may change: counters, recency and generations.
        """
        return self.read(self)


def _refs(manager: BlockManager) -> list[int]:
    return manager.blocks().ref_count.tolist()


def _pool_refs(pool: BlockPool) -> list[int]:
    return pool.ref_count(range(pool.num_blocks - pool.capacity, pool.num_blocks)).tolist()


# nano-vllm.


def nano(kind: Any = nano_vllm.BlockManager) -> PortWorld:
    """A fully computed sequence, one with the same tokens, one that waits, one too long."""
    blocks = kind(16, 2)
    announces = kind is nano_vllm.BlockManager
    first, second = (Seq(name, [1, 2, 3, 4, 5], max_new_tokens=8) for name in ("first", "second"))
    for seq in (first, second):
        blocks.allocate(seq, *([0] if announces else []))
        seq.num_scheduled_tokens = 5
    if announces:
        blocks.hash_blocks(first)
    first.token_ids += [6, 7]
    third = Seq("third", [1, 2, 3, 9], max_new_tokens=8)
    long = Seq("long", list(range(28)), max_new_tokens=8)
    sequences = {"first": first, "second": second, "third": third, "long": long}
    return PortWorld(blocks, sequences, _nano_state)


def legacy() -> PortWorld:
    """The same with the first interface."""
    return nano(nano_vllm.LegacyBlockManager)


def _nano_state(world: PortWorld) -> Any:
    sequences = [world.first, world.second, world.third, world.long]
    return snapshot(world.subject.manager), (
        _refs(world.subject.manager),
        [(list(s.block_table), s.num_cached_tokens) for s in sequences],
        [id(s) in world.subject._holders for s in sequences],
        [(h.row, h.num_computed_tokens) for h in world.subject._holders.values()],
        world.subject.manager.seq_lens.tolist(),
    )


# Radix.


def radix(page_size: int = 1) -> PortWorld:
    """A prefix in the tree, a running request, and one that has ended."""
    cache = CacheManager(None, num_pages=16, page_size=page_size)
    root, _ = cache.match_req(_request([9]))
    cache.free_and_cache_finished_req(root, [1, 2, 3, 4], cache.allocate(4))
    ended, slots = cache.match_req(_request([1, 2, 0]))
    cache.lock(ended)
    cache.free_and_cache_finished_req(ended, [1, 2], slots)
    tokens = [1, 2, 3, 7, 8]
    handle, found = cache.match_req(_request(tokens))
    cache.lock(handle)
    fresh = cache.allocate(5 - len(found))
    named = {
        "port": cache,
        "handle": handle,
        "ended": ended,
        "tokens": tokens,
        "slots": np.concatenate([found, fresh])[:5],
        "fresh": fresh,
    }
    return PortWorld(cache.manager.pool, named, _radix_state)


def radix_pages() -> PortWorld:
    """The same with pages of two slots."""
    return radix(2)


def radix_unlocked() -> PortWorld:
    """The same, with nothing locked."""
    world = radix()
    world.port.unlock(world.handle)
    return world


def tree() -> PortWorld:
    """Only the cache, with a prefix."""
    cache = RadixCacheManager(None, num_pages=16)
    cache.insert_prefix([1, 2, 3], [5, 6, 7])
    return PortWorld(cache.pool, {"port": cache}, _tree_state)


def _radix_state(world: PortWorld) -> Any:
    tree = world.port.manager
    ended = [world.handle._has_ended, world.ended._has_ended]
    whole, held = _states_of_tree(tree)
    return whole, (held, ended)


def _tree_state(world: PortWorld) -> Any:
    return _states_of_tree(world.port)


def _states_of_tree(cache: RadixCacheManager) -> Any:
    held = (_pool_refs(cache.pool), sorted(cache._locks.values()), cache.size_info.protected_size)
    return fingerprint(cache.pool), held


def _request(tokens: list[int]) -> Request:
    return Request(uid=0, input_ids=tokens, table_idx=0, cached_len=0, output_len=8)


# Slots.


def slots() -> PortWorld:
    """Two slots in use with a common prefix, and one that was freed."""
    allocator = SlotAllocator(4)
    cache = PrefixCacheManager(12, slots=allocator)
    first, second, third = (allocator.alloc() for _ in range(3))
    cache.insert([1, 2, 3], first, allocator.version(first))
    cache.insert([1, 2, 9], second, allocator.version(second))
    cache.release([1, 2, 9])
    cache.insert([7, 8], third, allocator.version(third))
    cache.release([7, 8])
    allocator.free(third)
    named = {"allocator": allocator, "first": first, "second": second, "third": third}
    return PortWorld(cache, named, _slots_state)


def slots_full() -> PortWorld:
    """The same without a free slot."""
    world = slots()
    while world.allocator.alloc() >= 0:
        pass
    return world


class Memory:
    """A KV cache that copies, or refuses to."""

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses

    def copy(self, _: Any) -> None:
        if self.refuses:
            raise CopyError("no such slot")


def _slots_state(world: PortWorld) -> Any:
    cache = world.subject
    allocator = world.allocator
    return (fingerprint(cache._pool), fingerprint(allocator._pool)), (
        _pool_refs(cache._pool),
        _pool_refs(allocator._pool),
        cache._slot_of.tolist(),
        {slot: tokens.tolist() for slot, tokens in cache._contents.items()},
        dict(cache._versions),
        sorted(allocator._occupied),
        list(allocator._versions),
    )


# Text Generation Inference.


def tgi() -> PortWorld:
    """An open allocation, one whose prefix waits for a copy, and a closed one."""
    allocator = BlockAllocator(64, 4)
    _finish(allocator.allocate(8, [1, 2, 3, 4, 5, 6])).close()
    allocation = _finish(allocator.allocate(8, [1, 2, 3, 4, 5]))
    waiting = _finish(allocator.allocate(8, [1, 2, 3, 9, 9]))
    named = {"port": allocator, "allocation": allocation, "waiting": waiting}
    return PortWorld(allocator.manager, named, _tgi_state, _tgi_probe)


def drop_two(world: World) -> None:
    """Drops two allocations, whose blocks are freed by the next call."""
    for _ in range(2):
        _finish(world.port.allocate(4))


def _tgi_state(world: PortWorld) -> Any:
    manager = world.port.manager  # frees dropped allocations first
    return snapshot(manager), (
        _refs(manager),
        len(manager.handles()),
        _rows(world.port._links),
        _rows(world.port._waiting),
        _rows(world.port._in_flight),
        len(world.port._open),
    )


def _rows(handles: Iterable[int]) -> list[int]:
    return sorted(handle % 2**32 for handle in handles)


def _tgi_probe(world: PortWorld) -> None:
    _finish(with_copies(world))


async def with_copies(world: World) -> None:
    async with world.port.copies():
        pass


async def with_copies_that_fail(world: World) -> None:
    with suppress(ValueError):
        async with world.port.copies():
            raise ValueError


async def with_allocation(world: World) -> None:
    async with world.allocation:
        pass


def _finish(coroutine: Any) -> Any:
    """Runs a coroutine that never waits, without an event loop, which has its own lines."""
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
    """A group of sequences of that scheduler; a single sequence is also a group."""

    seq_id: int
    tokens: list[int]
    others: tuple[Group, ...] = ()

    def get_token_ids(self) -> list[int]:
        return self.tokens

    def get_seqs(self) -> list[Group]:
        return [self, *self.others]


def aphrodite(caching: bool = True) -> PortWorld:
    """A sequence on the device, its fork, one on the host, two that wait and one too long."""
    manager = BlockSpaceManager(2, 16, 8, enable_caching=caching, watermark=0)
    first, second = Group(1, [1, 2, 3]), Group(2, [1, 2, 3])
    third, fourth = Group(3, [7, 8, 9]), Group(4, [1, 2, 5, 6])
    manager.allocate(first)
    manager.mark_blocks_as_computed(first)
    manager.fork(first, second)
    manager.allocate(third)
    manager.swap_out(third)
    first.tokens.append(4)
    named = {
        "first": first,
        "second": second,
        "third": third,
        "fourth": fourth,
        "pair": Group(1, [1, 2, 3], (second,)),
        "new_pair": Group(4, [1, 2, 5, 6], (Group(5, [1, 2, 5, 6]),)),
        "long": Group(6, list(range(40))),
    }
    return _of_aphrodite(manager, named)


def aphrodite_naive() -> PortWorld:
    """The same without caching."""
    return aphrodite(caching=False)


def aphrodite_waiting() -> PortWorld:
    """A block that became full while it waits for its copy."""
    world = aphrodite()
    world.port.block_tables[1].append_token_ids([4], 1)
    world.port.block_tables[1].append_token_ids([5, 6])
    return world


def aphrodite_full() -> PortWorld:
    """A world without an available block on the device."""
    world = aphrodite()
    world.port.block_tables[9] = table = world.port._tables.new()
    table.allocate(list(range(100, 100 + 2 * world.port.get_num_free_gpu_blocks())))
    world.first.tokens += [5, 6, 7]
    return world


def aphrodite_window() -> PortWorld:
    """A sequence whose first blocks are about to leave the window."""
    manager = BlockSpaceManager(2, 16, 0, sliding_window=2, watermark=0)
    first, second = Group(1, [1, 2, 3, 4, 5, 6, 7]), Group(2, [1, 2, 3, 4, 5, 6, 7])
    manager.allocate(first)
    manager.fork(first, second)
    first.tokens += [8, 9, 10]
    return _of_aphrodite(manager, {"first": first, "second": second})


def _of_aphrodite(manager: BlockSpaceManager, named: dict[str, Any]) -> PortWorld:
    named = {"port": manager, "gpu": manager.block_allocator.pool_of(Device.GPU), **named}
    for name, table in manager.block_tables.items():
        named[f"table_{name}"] = table
        named[f"blocks_{name}"] = list(table.blocks)
    return PortWorld(_Checked(manager), named, _aphrodite_state, _aphrodite_probe)


class _Checked:
    def __init__(self, manager: BlockSpaceManager) -> None:
        self.manager = manager

    def check_invariants(self) -> None:
        for pool in _pools(self.manager):
            pool.pool.check_invariants()


def _pools(manager: BlockSpaceManager) -> list[Any]:
    every = (Device.GPU, Device.CPU)
    allocator = manager.block_allocator
    return [allocator.pool_of(d) for d in every if allocator.get_num_total_blocks(d)]


def _aphrodite_state(world: PortWorld) -> Any:
    tables = {
        name: t._run and (t._dropped, _columns(t._run), t.device)
        for name, t in world.port.block_tables.items()
    }
    known = [world.named[name] for name in world.named if name.startswith("table_")]
    pools = _pools(world.port)
    return [fingerprint(pool.pool) for pool in pools], (
        [_pool_refs(pool.pool) for pool in pools],
        [pool.pool.num_pending_copies for pool in pools],
        [[pool.is_computed(b) for b in range(pool.pool.num_blocks)] for pool in pools],
        [sorted((i, b) for (_, i), b in pool.prefix_cache._waiting.items()) for pool in pools],
        [(pool.hits.num_queries, pool.hits.num_hits) for pool in pools],
        tables,
        [t._run and _columns(t._run) for t in known],
        world.port.block_allocator._null is None,
    )


def _columns(run: Any) -> Any:
    columns = (run.blocks, run.tokens, run.promoted, run.extras.items())
    return list(map(list, columns))


def _aphrodite_probe(world: PortWorld) -> None:
    world.port.block_allocator.clear_copy_on_writes()
