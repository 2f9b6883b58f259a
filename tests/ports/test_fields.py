"""What clients write into the fields of a request never costs a block, in any port.

``test_vllm_wishes`` has the fields of vLLM's requests, ``test_engine_fields`` those of the engine,
and ``test_sglang_fields`` those of SGLang's requests on their way through its cache.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr.pool import BlockPool
from blockmgr.ports.aphrodite import AllocStatus, BlockSpaceManager
from blockmgr.ports.aphrodite.interfaces import Device
from blockmgr.ports.nano_vllm import BlockManager as NanoManager
from blockmgr.ports.radix import CacheManager, RadixCacheManager, RadixPrefixCache
from blockmgr.ports.sglang.keys import prompt_of
from blockmgr.ports.slots import PrefixCacheManager, SlotAllocator
from blockmgr.ports.tgi import BlockAllocator
from tests.ports.hostile import Life, all_values


def nothing(request: Any, result: Any) -> None:
    """The call leaves nothing to release."""


# nano-vllm.


def nano_sequence(**fields: Any) -> SimpleNamespace:
    made = {"token_ids": [1, 2, 3, 4, 5], "block_table": [], "num_cached_tokens": 0}
    return SimpleNamespace(**{**made, "num_scheduled_tokens": 5, **fields})


def nano(call: Callable[[Any, Any, Any], Any], *, is_admitted: bool = True) -> Callable[[], Life]:
    def make() -> Life:
        port = NanoManager(8, 2)

        def before() -> Any:
            seq = nano_sequence()
            if is_admitted:
                port.allocate(seq, port.can_allocate(seq))
            return seq

        def after(seq: Any, _: Any) -> None:
            if port._holders:
                port.deallocate(seq)

        return Life(port.manager, before, lambda seq, value: call(port, seq, value), after)

    return make


def nano_admission(field: str) -> Callable[[], Life]:
    def call(port: Any, seq: Any, value: Any) -> None:
        setattr(seq, field, value)
        found = port.can_allocate(seq)
        if found >= 0:
            port.allocate(seq, found)

    return nano(call, is_admitted=False)


def nano_step(field: str) -> Callable[[], Life]:
    def call(port: Any, seq: Any, value: Any) -> None:
        setattr(seq, field, value)
        port.hash_blocks(seq)

    return nano(call)


def nano_sampled(port: Any, seq: Any, value: Any) -> None:
    seq.token_ids.append(value)
    if port.can_append(seq):
        port.may_append(seq)


# Text Generation Inference.


def now(awaitable: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    return asyncio.run(awaitable)


def tgi(call: Callable[[Any, Any, Any], Any], *, is_open: bool = True) -> Callable[[], Life]:
    def make() -> Life:
        port = BlockAllocator(16, 2)

        def before() -> Any:
            return now(port.allocate(6, [1, 2, 3, 4])) if is_open else None

        def after(request: Any, result: Any) -> None:
            for each in (request, result):
                if each is not None and not each.is_closed:
                    each.close()

        return Life(port.manager, before, lambda held, value: call(port, held, value), after)

    return make


# Slots.


def slots(call: Callable[[Any, Any, Any], Any]) -> Callable[[], Life]:
    def make() -> Life:
        allocator = SlotAllocator(4)
        cache = PrefixCacheManager(16, slots=allocator)

        def before() -> int:
            slot = allocator.alloc()
            cache.insert([1, 2, 3], slot, allocator.version(slot))
            return slot

        def after(slot: int, result: Any) -> None:
            if result is not None:
                cache.release(result)
            cache.release([1, 2, 3])
            allocator.free(slot)
            allocator.check_invariants()
            assert allocator.free_count == 4

        return Life(
            cache._pool, before, lambda slot, value: call((allocator, cache), slot, value), after
        )

    return make


def slots_tokens(name: str) -> Callable[[], Life]:
    def call(port: Any, slot: int, value: Any) -> Any:
        allocator, cache = port
        kept = list.copy(value) if isinstance(value, list) else value
        if name == "insert":
            cache.insert(value, slot, allocator.version(slot))
        else:
            getattr(cache, name)(value)
        return None if name == "find" else kept

    return slots(call)


def slots_insert(field: str) -> Callable[[], Life]:
    def call(port: Any, slot: int, value: Any) -> Any:
        allocator, cache = port
        given = {"slot": slot, "slot_ver": allocator.version(slot)}
        cache.insert([1, 2, 3, 4], **{**given, field: value})
        return [1, 2, 3, 4]

    return slots(call)


def slots_index(name: str) -> Callable[[], Life]:
    def call(port: Any, slot: int, value: Any) -> None:
        allocator, _ = port
        getattr(allocator, name)(value)

    return slots(call)


# The radix cache.


def radix(kind: type, call: Callable[[Any, Any], Any]) -> Callable[[], Life]:
    def make() -> Life:
        cache = kind(None, num_pages=8, page_size=2)
        cache.insert_prefix([1, 2, 3, 4], [0, 1, 2, 3])
        locked: list[Any] = []

        def before() -> Any:
            match = cache.match_prefix([1, 2, 3, 4])
            handle = match.cuda_handle if kind is RadixPrefixCache else match.handle
            cache.lock_handle(handle)
            locked.append(handle)
            return handle

        def after(handle: Any, _: Any) -> None:
            cache.lock_handle(handle, unlock=True)
            cache.evict(cache.size_info.evictable_size)
            cache.check_integrity()
            assert cache.size_info.total_size == 0
            cache.insert_prefix([1, 2, 3, 4], [0, 1, 2, 3])

        return Life(cache.pool, before, lambda _, value: call(cache, value), after)

    return make


def requests(field: str) -> Callable[[], Life]:
    """``CacheManager`` with a request that has this field, from its match to its end."""

    def make() -> Life:
        port = CacheManager(None, 8, 2)

        def call(_: Any, value: Any) -> None:
            request = SimpleNamespace(
                **{
                    "input_ids": [1, 2, 3, 4, 5], "input_len": 5, "cached_len": 0,
                    "extra_key": None, field: value,
                }
            )  # fmt: skip
            port.match_req(request)

        return Life(port.manager.pool, lambda: None, call, nothing)

    return make


def pages(call: Callable[[Any, Any], Any]) -> Callable[[], Life]:
    def make() -> Life:
        port = CacheManager(None, 8, 2)

        def after(_: Any, taken: Any) -> None:
            if taken is not None:
                port.free(taken)

        return Life(port.manager.pool, lambda: None, lambda _, value: call(port, value), after)

    return make


# Aphrodite: a sequence with this field, from its prompt to a swap and back.


class AphroditeSequence:
    def __init__(self, **fields: Any) -> None:
        self.fields = {"token_ids": [1, 2, 3, 4, 5], "extra_hash": None, "seq_id": 0, **fields}
        self.seq_id = self.fields["seq_id"]

    def get_token_ids(self) -> Any:
        return self.fields["token_ids"]

    def extra_hash(self) -> Any:
        return self.fields["extra_hash"]

    def is_prefill(self) -> bool:
        return True


def group_of(*seqs: Any) -> Any:
    return SimpleNamespace(get_seqs=lambda: list(seqs))


def aphrodite(call: Callable[[Any, Any, Any], Any], *, is_held: bool = True) -> Callable[[], Life]:
    """A call about a sequence with blocks, or about one that waits for them."""

    def make() -> Life:
        port = BlockSpaceManager(2, 12, 12, watermark=0, enable_caching=True)

        def before() -> Any:
            seq = AphroditeSequence()
            if is_held:
                port.allocate(group_of(seq))
                port.mark_blocks_as_computed(group_of(seq))
            return seq

        def after(seq: Any, _: Any) -> None:
            for name in list(port.block_tables):
                port.free(SimpleNamespace(seq_id=name))
            port.free(seq)

        core = port.block_allocator.pool_of(Device.GPU).pool
        return Life(core, before, lambda seq, value: call(port, seq, value), after)

    return make


def aphrodite_prompt(field: str) -> Callable[[], Life]:
    def call(port: Any, _: Any, value: Any) -> None:
        seq = AphroditeSequence(**{field: value})
        if port.can_allocate(group_of(seq)) is AllocStatus.OK:
            port.allocate(group_of(seq))

    return aphrodite(call, is_held=False)


def aphrodite_cached(field: str) -> Callable[[], Life]:
    def call(port: Any, _: Any, value: Any) -> None:
        port.get_num_cached_tokens(AphroditeSequence(**{field: value}))

    return aphrodite(call, is_held=False)


def aphrodite_next(field: str) -> Callable[[], Life]:
    def call(port: Any, seq: Any, value: Any) -> None:
        seq.fields["token_ids"] = [1, 2, 3, 4, 5, 6]
        seq.fields[field] = value
        if port.can_append_slots(group_of(seq)):
            port.append_slots(seq)

    return aphrodite(call)


# SGLang's keys: the pool gets what they stand for.


def sglang(field: str) -> Callable[[], Life]:
    def make() -> Life:
        pool = BlockPool(8, 2)

        def call(_: Any, value: Any) -> Any:
            fields = {"extra_key": None, "cache_salt": None, "tokens": array("q", [1, 2, 3, 4])}
            fields[field] = value
            key = SimpleNamespace(
                extra_key=fields["extra_key"], cache_salt=fields["cache_salt"],
                raw_token_ids=lambda: fields["tokens"],
            )  # fmt: skip
            prompt = prompt_of(key, 2)
            blocks = pool.take(len(prompt.tokens) // 2)
            pool.promote(blocks, prompt.tokens, namespace=prompt.namespace, extras=prompt.extras)
            return blocks

        def after(_: Any, blocks: Any) -> None:
            if blocks is not None:
                pool.release(blocks)

        return Life(pool, lambda: None, call, after)

    return make


LIVES: dict[str, Callable[[], Life]] = {
    "nano_vllm-token_ids": nano_admission("token_ids"),
    "nano_vllm-block_table": nano_admission("block_table"),
    "nano_vllm-num_cached_blocks": nano(
        lambda port, seq, value: port.allocate(seq, value), is_admitted=False
    ),
    "nano_vllm-num_cached_tokens": nano_step("num_cached_tokens"),
    "nano_vllm-num_scheduled_tokens": nano_step("num_scheduled_tokens"),
    "nano_vllm-token": nano(nano_sampled),
    "tgi-tokens": tgi(lambda port, _, value: now(port.allocate(value, [1, 2, 3])), is_open=False),
    "tgi-prefill_tokens": tgi(lambda port, _, value: now(port.allocate(6, value)), is_open=False),
    "tgi-num_computed_tokens": tgi(lambda port, held, value: held.commit(value)),
    "tgi-blocks": tgi(lambda port, held, value: port.free(value, held.allocation_id)),
    "tgi-allocation_id": tgi(lambda port, held, value: port.free(held.blocks, value)),
    "slots-token_ids": slots_tokens("insert"),
    "slots_find-token_ids": slots_tokens("find"),
    "slots_pin-token_ids": slots_tokens("pin"),
    "slots-slot": slots_insert("slot"),
    "slots-slot_ver": slots_insert("slot_ver"),
    "slots_free-idx": slots_index("is_free"),
    "slots_version-idx": slots_index("version"),
    "radix-input_ids": requests("input_ids"),
    "radix-extra_key": requests("extra_key"),
    "radix-needed_len": pages(lambda port, value: port.allocate(value)),
    "radix-indices": pages(lambda port, value: port.free(value)),
    **{
        f"{kind.__name__}-{field}": radix(kind, call)
        for kind in (RadixCacheManager, RadixPrefixCache)
        for field, call in {
            "namespace": lambda cache, value: cache.match_prefix([1, 2], namespace=value),
            "input_ids": lambda cache, value: cache.insert_prefix(value, [4, 5]),
            "indices": lambda cache, value: cache.insert_prefix([7, 8], value),
            "size": lambda cache, value: cache.evict(value),
            "handle": lambda cache, value: cache.lock_handle(value),
        }.items()
    },
    **{f"aphrodite-{field}": aphrodite_prompt(field) for field in ("token_ids", "extra_hash")},
    "aphrodite-seq_id": aphrodite_prompt("seq_id"),
    **{
        f"aphrodite_cached-{field}": aphrodite_cached(field)
        for field in ("token_ids", "extra_hash", "seq_id")
    },
    **{f"aphrodite_next-{field}": aphrodite_next(field) for field in ("token_ids", "extra_hash")},
    "aphrodite-num_lookahead_slots": aphrodite(
        lambda port, seq, value: port.append_slots(seq, value)
    ),
    "aphrodite_can_append-num_lookahead_slots": aphrodite(
        lambda port, seq, value: port.can_append_slots(group_of(seq), value)
    ),
    "aphrodite-token_chunk_size": aphrodite(
        lambda port, seq, value: port.mark_blocks_as_computed(group_of(seq), value)
    ),
    "sglang-extra_key": sglang("extra_key"),
    "sglang-cache_salt": sglang("cache_salt"),
    "sglang-tokens": sglang("tokens"),
}


TOKENS = {"token_ids", "input_ids", "tokens", "prefill_tokens"}
"""Some errors name tokens, as those of the core do."""


@pytest.mark.parametrize("name", LIVES)
def test_a_port_takes_a_field_and_gives_all_blocks_back_or_refuses_it_by_name(name: str) -> None:
    field = name.partition("-")[2]
    all_values(LIVES[name], {field, "token"} if field in TOKENS else {field})
