"""The ports' public calls that change state or are refused, each on a small world."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from blockmgr.ports import nano_vllm
from blockmgr.ports.aphrodite import BlockSpaceManager
from blockmgr.ports.radix import CacheManager
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
from blockmgr.ports.tgi import BlockAllocator
from tests.faults import port_worlds as worlds
from tests.faults.calls import Call
from tests.faults.port_worlds import Memory, _finish
from tests.faults.worlds import World

Make = Callable[[World], Any]


def _named(port: str, world: Callable[[], World], **makes: Make) -> Iterator[Call]:
    for name, make in makes.items():
        yield Call(f"{port}.{name}", world, lambda w, make=make: partial(make, w))


def _refused(port: str, world: Callable[[], World], **makes: Make) -> Iterator[Call]:
    for name, make in makes.items():
        yield Call(
            f"{port}.{name}, refused", world, lambda w, make=make: partial(_quietly, make, w)
        )


def _quietly(make: Make, world: World) -> None:
    try:
        make(world)
    except Exception:
        return
    raise AssertionError("it is not refused")


def _copy(world: World, memory: Memory) -> None:
    world.subject.copy_kv([1, 2, 3], world.second, memory)


NANO = [
    *_named(
        "nano",
        worlds.nano,
        init=lambda _: nano_vllm.BlockManager(4, 2),
        can_allocate=lambda w: w.subject.can_allocate(w.third),
        allocate=lambda w: w.subject.allocate(w.third, 1),
        can_append=lambda w: w.subject.can_append(w.first),
        may_append=lambda w: w.subject.may_append(w.first),
        hash_blocks=lambda w: w.subject.hash_blocks(w.second),
        deallocate=lambda w: w.subject.deallocate(w.first),
        used_block_ids=lambda w: w.subject.used_block_ids,
        free_block_ids=lambda w: w.subject.free_block_ids,
    ),
    *_refused(
        "nano",
        worlds.nano,
        allocate=lambda w: w.subject.allocate(w.long, 0),
        allocate_twice=lambda w: w.subject.allocate(w.first, 0),
        may_append=lambda w: w.subject.may_append(w.third),
        hash_blocks=lambda w: w.subject.hash_blocks(w.third),
        deallocate=lambda w: w.subject.deallocate(w.third),
    ),
    *_named(
        "nano, first",
        worlds.legacy,
        can_allocate=lambda w: w.subject.can_allocate(w.third),
        allocate=lambda w: w.subject.allocate(w.third),
        may_append=lambda w: w.subject.may_append(w.first),
        deallocate=lambda w: w.subject.deallocate(w.first),
    ),
    *_refused("nano, first", worlds.legacy, allocate=lambda w: w.subject.allocate(w.long)),
]
ENDING = {
    "finish": lambda w: w.port.free_and_cache_finished_req(w.handle, w.tokens, w.slots),
    "cache_unfinished": lambda w: w.port.cache_unfinished_req(w.handle, w.tokens, w.slots),
}
RADIX = [
    *_named(
        "radix",
        worlds.radix,
        init=lambda _: CacheManager(None, 4),
        match_req=lambda w: w.port.match_req(worlds._request(w.tokens)),
        allocate=lambda w: w.port.allocate(3),
        allocate_evicting=lambda w: w.port.allocate(w.port.available_size),
        lock=lambda w: w.port.lock(w.handle),
        unlock=lambda w: w.port.unlock(w.handle),
        free=lambda w: w.port.free(w.fresh),
        **ENDING,
    ),
    *_named("radix, pages", worlds.radix_pages, allocate=lambda w: w.port.allocate(3), **ENDING),
    *_named("radix", worlds.radix_unlocked, reset=lambda w: w.port.reset()),
    *_refused(
        "radix",
        worlds.radix,
        allocate=lambda w: w.port.allocate(17),
        unlock=lambda w: w.port.unlock(w.ended),
        free=lambda w: w.port.free(w.slots),
        finish=lambda w: w.port.free_and_cache_finished_req(w.ended, w.tokens, w.slots),
        finish_others=lambda w: w.port.free_and_cache_finished_req(w.handle, [8] * 5, w.slots),
        cache_unfinished=lambda w: w.port.cache_unfinished_req(w.handle, w.tokens, w.slots[::-1]),
        reset=lambda w: w.port.reset(),
    ),
    *_named(
        "tree",
        worlds.tree,
        match_prefix=lambda w: w.port.match_prefix([1, 2, 4]),
        insert_prefix=lambda w: w.port.insert_prefix([1, 2, 3, 4], [5, 6, 7, 8]),
        evict=lambda w: w.port.evict(2),
        reset=lambda w: w.port.reset(),
    ),
    *_refused(
        "tree",
        worlds.tree,
        insert_prefix=lambda w: w.port.insert_prefix([1, 2, 4], [5, 6, 7]),
        evict=lambda w: w.port.evict(4),
    ),
]
SLOTS = [
    *_named(
        "slots",
        worlds.slots,
        init=lambda _: PrefixCacheManager(8, slots=SlotAllocator(2)),
        insert=lambda w: w.subject.insert([1, 2, 9, 9], w.second, 1),
        insert_other=lambda w: w.subject.insert([5, 1, 2], w.second, 1),
        insert_again=lambda w: w.subject.insert([1, 2, 3], w.first, 1),
        insert_evicting=lambda w: w.subject.insert([4] * 9, w.second, 1),
        find=lambda w: w.subject.find([1, 2, 9]),
        pin=lambda w: w.subject.pin([1, 2]),
        release=lambda w: w.subject.release([1, 2, 3]),
        copy_kv=lambda w: _copy(w, Memory()),
        alloc=lambda w: w.allocator.alloc(),
        free=lambda w: w.allocator.free(w.second),
        occupy=lambda w: w.allocator.occupy(w.third, 1),
    ),
    *_named("slots, full", worlds.slots_full, alloc=lambda w: w.allocator.alloc()),
    Call(
        "slots.copy_kv, refused",
        worlds.slots,
        lambda w: partial(_quietly, lambda w: _copy(w, Memory(refuses=True)), w),
        # Interrupted during a refusal, it leaves the target forgotten, as it does without a
        # refusal.
        first_part=lambda w: partial(_copy, w, Memory()),
    ),
    *_refused(
        "slots",
        worlds.slots,
        insert=lambda w: w.subject.insert([1, 2, 4], w.first, 1),
        insert_too_much=lambda w: w.subject.insert([4] * 10, w.second, 1),
        pin=lambda w: w.subject.pin([1, 3]),
        release=lambda w: w.subject.release([1, 2]),
        copy_kv_onto_pinned=lambda w: w.subject.copy_kv([1, 2, 9], w.first, Memory()),
        free=lambda w: w.allocator.free(w.third),
        occupy=lambda w: w.allocator.occupy(w.first),
    ),
]
TGI = [
    *_named(
        "tgi",
        worlds.tgi,
        init=lambda _: BlockAllocator(16, 4),
        allocate=lambda w: _finish(w.port.allocate(8, [1, 2, 3, 4, 9])),
        allocate_waiting=lambda w: _finish(w.port.allocate(8, [1, 2, 9, 9])),
        allocate_in_vain=lambda w: _finish(w.port.allocate(56)),
        commit=lambda w: w.allocation.commit(4),
        close=lambda w: w.allocation.close(),
        close_waiting=lambda w: w.waiting.close(),
        discard=lambda w: w.allocation.discard(),
        free=lambda w: w.port.free(w.allocation.blocks, w.allocation.allocation_id),
        copies=lambda w: _finish(worlds.with_copies(w)),
        copies_that_fail=lambda w: _finish(worlds.with_copies_that_fail(w)),
        with_allocation=lambda w: _finish(worlds.with_allocation(w)),
    ),
    Call("tgi.dropped", worlds.tgi, lambda w: worlds.drop_two(w) or (lambda: w.port.num_available)),
    *_refused(
        "tgi",
        worlds.tgi,
        allocate=lambda w: _finish(w.port.allocate(64)),
        commit=lambda w: w.waiting.commit(),
        free=lambda w: w.port.free([0], w.allocation.allocation_id),
        free_unknown=lambda w: w.port.free([0], 0),
    ),
]
_FOUR = [[1, 2], [3, 4], [5, 6], [7, 8]]
_BLOCKS: dict[str, Make] = {
    "allocate_mutable": lambda w: w.gpu.allocate_mutable_block(w.blocks_1[-1]),
    "allocate_mutable, alone": lambda w: w.gpu.allocate_mutable_block(),
    "allocate_immutable": lambda w: w.gpu.allocate_immutable_block(None, [1, 2]),
    "allocate_immutable_blocks": lambda w: w.gpu.allocate_immutable_blocks(None, _FOUR, 7),
    "extend": lambda w: w.gpu.allocate_immutable_blocks(w.blocks_1[0], _FOUR),
    "Block.append": lambda w: w.blocks_1[1].append_token_ids([4]),
    "cow": lambda w: w.gpu.cow_block_if_not_appendable(w.blocks_1[1]),
    "promote": lambda w: w.gpu.promote_to_immutable_block(w.blocks_1[0]),
    "fork_blocks": lambda w: w.gpu.fork(w.blocks_1[1]),
    "free_block": lambda w: w.gpu.free(w.blocks_1[1]),
    "clear_copy_on_writes": lambda w: w.gpu.clear_copy_on_writes(),
    "reset_prefix_cache": lambda w: w.port.reset_prefix_cache(),
    "incr": lambda w: w.gpu.refcounter.incr(w.blocks_1[0].block_id),
    "decr": lambda w: w.gpu.refcounter.decr(w.blocks_1[0].block_id),
    "null_block": lambda w: w.port.block_allocator.allocate_or_get_null_block(),
    "Table.append": lambda w: w.table_1.append_token_ids([4, 5, 6, 7], 3),
    "Table.ensure": lambda w: w.table_1.ensure_num_empty_slots(4),
    "Table.fork": lambda w: w.table_1.fork(),
    "Table.free": lambda w: w.table_1.free(),
    "Table.allocate": lambda w: w.port._tables.new().allocate([1, 2, 3]),
}
_SEQUENCES: dict[str, Make] = {
    "allocate": lambda w: w.port.allocate(w.fourth),
    "allocate_pair": lambda w: w.port.allocate(w.new_pair),
    "fork": lambda w: w.port.fork(w.second, w.fourth),
    "free": lambda w: w.port.free(w.second),
    "swap_out": lambda w: w.port.swap_out(w.second),
    "swap_out_pair": lambda w: w.port.swap_out(w.pair),
    "swap_in": lambda w: w.port.swap_in(w.third),
    "mark_computed": lambda w: w.port.mark_blocks_as_computed(w.pair),
}
APPEND = Call(
    "aphrodite.append_slots",
    worlds.aphrodite,
    lambda w: partial(w.port.append_slots, w.first),
    # Interrupted between its parts, it leaves the copies for the next call that takes copies.
    first_part=lambda w: partial(w.table_1.append_token_ids, [4]),
)
APHRODITE = [
    *_named("aphrodite", worlds.aphrodite, **_BLOCKS, **_SEQUENCES),
    *_named("aphrodite, naive", worlds.aphrodite_naive, **_BLOCKS, **_SEQUENCES),
    APPEND,
    *_named(
        "aphrodite, waiting",
        worlds.aphrodite_waiting,
        clear_copy_on_writes=lambda w: w.gpu.clear_copy_on_writes(),
        promote=lambda w: w.gpu.promote_to_immutable_block(w.table_1.blocks[1]),
        fork=lambda w: w.port.fork(w.first, w.fourth),
    ),
    *_named(
        "aphrodite, window",
        worlds.aphrodite_window,
        init=lambda _: BlockSpaceManager(2, 4, 0, sliding_window=2),
        append=lambda w: w.table_1.append_token_ids([8, 9, 10], 1, 7),
        fork=lambda w: w.table_1.fork(),
        free=lambda w: w.port.free(w.first),
    ),
    *_refused(
        "aphrodite",
        worlds.aphrodite,
        allocate=lambda w: w.port.allocate(w.long),
        allocate_again=lambda w: w.port.allocate(w.first),
        fork=lambda w: w.port.fork(w.first, w.second),
        swap_in=lambda w: w.port.swap_in(w.first),
        Block_append=lambda w: w.blocks_1[0].append_token_ids([1]),
    ),
    *_refused(
        "aphrodite, full",
        worlds.aphrodite_full,
        append_slots=lambda w: w.port.append_slots(w.first),
        Block_append=lambda w: w.blocks_1[1].append_token_ids([4]),
        allocate=lambda w: w.port.allocate(w.fourth),
        allocate_mutable=lambda w: w.gpu.allocate_mutable_block(),
        swap_in=lambda w: w.port.swap_in(w.third),
    ),
]
PORT_CALLS = {call.name: call for call in [*NANO, *RADIX, *SLOTS, *TGI, *APHRODITE]}
