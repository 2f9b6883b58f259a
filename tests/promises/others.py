"""The promises of the ports of nano-vllm, TGI, mini-sglang and of slots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from blockmgr import BlockMgrError, NeverFitsError, OutOfBlocksError, OutOfSequencesError
from blockmgr.ports import nano_vllm, radix, slots, tgi
from tests.ports.nano_driver import Seq

TOKENS = (1, 2)


def _tokens(rng: random.Random, most: int) -> list[int]:
    return rng.choices(TOKENS, k=rng.randrange(1, most))


# nano-vllm.


def _nano(seed: int) -> tuple[nano_vllm.BlockManager, list[Seq], Seq]:
    rng = random.Random(seed)
    size = rng.randrange(1, 4)
    blocks = nano_vllm.BlockManager(rng.randrange(4, 10), size, max_seqs=rng.choice([2, 512]))
    running: list[Seq] = []
    for name in range(rng.randrange(1, 12)):
        seq = Seq(str(name), _tokens(rng, 3 * size + 1), 100)
        try:
            blocks.allocate(seq, len(blocks.manager.match(seq.token_ids).block_ids))
            seq.num_scheduled_tokens = len(seq) - seq.num_cached_tokens
            blocks.hash_blocks(seq)
            running.append(seq)
        except BlockMgrError:
            if running:
                blocks.deallocate(running.pop(rng.randrange(len(running))))
    for seq in running:
        seq.token_ids.append(rng.choice(TOKENS))
    return blocks, running, Seq("next", _tokens(rng, 4 * size), 100)


def nano_can_allocate(seed: int) -> Iterator[str]:
    blocks, _, seq = _nano(seed)
    try:
        answer = blocks.can_allocate(seq)
        blocks.allocate(seq, len(blocks.manager.match(seq.token_ids).block_ids))
        done = True
    except NeverFitsError:
        return
    except (OutOfBlocksError, OutOfSequencesError):
        done = False
    if (answer >= 0) is not done:
        yield f"world {seed}: {answer}, but done={done}"
    if done and seq.num_cached_tokens != answer * blocks.block_size:
        yield f"world {seed}: {answer} blocks, but {seq.num_cached_tokens} tokens found"


def nano_can_append(seed: int) -> Iterator[str]:
    for at in range(len(_nano(seed)[1])):
        blocks, running, _ = _nano(seed)
        try:
            answer = blocks.can_append(running[at])
            blocks.may_append(running[at])
            done = True
        except NeverFitsError:
            continue
        except OutOfBlocksError:
            done = False
        if answer is not done:
            yield f"sequence {at} of world {seed}: {answer}, but done={done}"


# Text Generation Inference.


def tgi_num_available(seed: int) -> Iterator[str]:
    for more in (0, 1):
        rng = random.Random(seed)
        size = rng.randrange(1, 4)
        allocator = tgi.BlockAllocator(size * rng.randrange(4, 12), size)
        held = []
        for _ in range(rng.randrange(6)):
            prompt = _tokens(rng, 3 * size + 1)
            try:
                allocation = asyncio.run(allocator.allocate(len(prompt) + 1, prompt))
            except NeverFitsError:
                continue
            if allocation is not None:
                held.append(allocation)
                if rng.random() < 0.5:
                    held.pop(0).close()
        wanted = allocator.num_available + more
        if not wanted:
            continue
        try:
            done = asyncio.run(allocator.allocate(wanted * size)) is not None
        except NeverFitsError:
            done = False
        if done is not (more == 0):
            yield f"world {seed}: {wanted - more} blocks available, done={done} for {wanted}"
        held.clear()


# mini-sglang's radix cache.


def _radix(seed: int) -> tuple[Any, list[int]]:
    """A cache that has served some requests, and a prompt."""
    rng = random.Random(seed)
    size = rng.choice([1, 1, 2, 3])
    cache = radix.CacheManager(None, rng.randrange(4, 12), size)
    for uid in range(rng.randrange(1, 10)):
        tokens = _tokens(rng, 4 * size + 1)
        handle, found = cache.match_req(radix.Request(uid, tokens, 0, 0, 1))
        cache.lock(handle)
        try:
            fresh = cache.allocate(len(tokens) - len(found))
        except OutOfBlocksError:
            cache.unlock(handle)
            continue
        if rng.random() < 0.8:
            given = np.concatenate([found, fresh])[: len(tokens)]
            cache.free_and_cache_finished_req(handle, tokens, given)
    return cache, _tokens(rng, 5 * size)


def radix_available_size(seed: int) -> Iterator[str]:
    for more in (0, 1):
        cache, _ = _radix(seed)
        wanted = cache.available_size + more
        try:
            done = len(cache.allocate(wanted)) >= wanted
        except OutOfBlocksError:
            done = False
        if done is not (more == 0):
            yield f"world {seed}: {wanted - more} slots available, done={done} for {wanted}"


def radix_evictable_size(seed: int) -> Iterator[str]:
    for more in (0, 1):
        cache, _ = _radix(seed)
        info = cache.manager.size_info
        if info.total_size != info.evictable_size + info.protected_size:
            yield f"world {seed}: {info} does not add up"
        wanted = info.evictable_size + more
        try:
            done = len(cache.manager.evict(wanted)) >= wanted
        except OutOfBlocksError:
            done = False
        if done is not (more == 0):
            yield f"world {seed}: {wanted - more} slots evictable, done={done} for {wanted}"


def radix_match(seed: int) -> Iterator[str]:
    """A matched prefix can be locked, and stays when everything else is evicted."""
    for leave in (0, 1):  # all tokens, or all but the last, which is left to compute
        cache, tokens = _radix(seed)
        if leave:
            handle, found = cache.match_req(radix.Request(0, tokens, 0, 0, 1))
        else:
            handle, found = cache.manager.match_prefix(tokens)
        if len(found) != handle.cached_len or len(found) > len(tokens) - leave:
            yield f"world {seed}: {len(found)} slots for {handle.cached_len} tokens"
        cache.lock(handle)
        cache.allocate(cache.available_size)
        again, slots_again = cache.manager.match_prefix(tokens[: len(tokens) - leave])
        if again.cached_len != handle.cached_len or slots_again.tolist() != found.tolist():
            yield f"world {seed}: {handle.cached_len} tokens locked, {again.cached_len} left"


def _paged(seed: int) -> tuple[Any, Any]:
    """A cache with the later interface that has served some requests, and a new request."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 3])
    cache = radix.PagedCacheManager(rng.randrange(4, 12), size, np.zeros((12, 60), np.int32))
    for row in range(rng.randrange(1, 10)):
        req = SimpleNamespace(input_ids=_tokens(rng, 4 * size + 1), table_idx=row)
        handle = req.cache_handle = cache.match_req(req).cuda_handle
        cache.lock(handle)
        req.cached_len, req.device_len = handle.cached_len, len(req.input_ids)
        cache.page_table[row, : req.cached_len] = handle.get_matched_indices()
        try:
            cache.allocate_paged([req])
        except OutOfBlocksError:
            cache.unlock(handle)
            continue
        req.cached_len = len(req.input_ids)
        if rng.random() < 0.8:
            cache.cache_req(req, finished=rng.random() < 0.7)
    tokens = _tokens(rng, 5 * size)
    return cache, SimpleNamespace(input_ids=tokens, table_idx=11, cached_len=0, device_len=0)


def paged_available_size(seed: int) -> Iterator[str]:
    for more in (0, 1):
        cache, req = _paged(seed)
        req.device_len = cache.available_size + more
        try:
            cache.allocate_paged([req])
            done = True
        except OutOfBlocksError:
            done = False
        if done is not (more == 0):
            yield f"world {seed}: {req.device_len - more} slots available, wrong by one"


def paged_match(seed: int) -> Iterator[str]:
    cache, req = _paged(seed)
    handle = cache.match_req(req).cuda_handle
    found = handle.get_matched_indices().tolist()
    cache.lock(handle)
    cache.prefix_cache.evict(cache.prefix_cache.size_info.evictable_size)
    again = cache.prefix_cache.match_prefix(req.input_ids[:-1]).cuda_handle
    if len(found) != handle.cached_len or again.get_matched_indices().tolist() != found:
        yield f"world {seed}: {handle.cached_len} tokens locked, {again.cached_len} left"


# Slots.


def _slots(seed: int) -> tuple[Any, Any, list[int]]:
    rng = random.Random(seed)
    allocator = slots.SlotAllocator(rng.randrange(1, 5))
    cache = slots.PrefixCacheManager(rng.randrange(4, 20), slots=allocator)
    for _ in range(rng.randrange(8)):
        slot = allocator.alloc()
        tokens = tuple(_tokens(rng, 6))
        if slot < 0:
            continue
        try:
            cache.insert(tokens, slot, allocator.version(slot))
            if rng.random() < 0.7:
                cache.release(tokens)
        except BlockMgrError:
            pass
        if rng.random() < 0.7:
            allocator.free(slot)
    return allocator, cache, _tokens(rng, 7)


def slots_free_count(seed: int) -> Iterator[str]:
    allocator, _, _ = _slots(seed)
    answer = allocator.free_count
    got = [allocator.alloc() for _ in range(answer + 1)]
    if -1 in got[:answer] or got[answer] != -1 or len(set(got)) != len(got):
        yield f"world {seed}: {answer} slots free, got {got}"


def slots_is_free(seed: int) -> Iterator[str]:
    for slot in range(len(_slots(seed)[0]._versions)):
        allocator, _, _ = _slots(seed)
        answer = allocator.is_free(slot)
        try:
            allocator.occupy(slot)
            done = True
        except BlockMgrError:
            done = False
        if answer is not done:
            yield f"slot {slot} of world {seed}: {answer}, but done={done}"


def slots_find(seed: int) -> Iterator[str]:
    """The found prefix can be pinned; a prefix of one more token cannot."""
    _, cache, tokens = _slots(seed)
    length, slot, _ = cache.find(tokens)
    for count in range(1, len(tokens) + 1):
        try:
            cache.pin(tokens[:count])
            done = True
        except ValueError:
            done = False
        if done is not (count <= length):
            yield f"world {seed}: {length} tokens found in slot {slot}, done={done} for {count}"


PROMISES: dict[tuple[str, str], Callable[[int], Iterator[str]]] = {
    ("BlockManager", "can_allocate"): nano_can_allocate,
    ("BlockManager", "can_append"): nano_can_append,
    ("BlockAllocator", "num_available"): tgi_num_available,
    ("CacheManager", "available_size"): radix_available_size,
    ("CacheManager", "match_req"): radix_match,
    ("RadixCacheManager", "match_prefix"): radix_match,
    ("RadixCacheManager", "size_info"): radix_evictable_size,
    ("PagedCacheManager", "available_size"): paged_available_size,
    ("PagedCacheManager", "match_req"): paged_match,
    ("RadixPrefixCache", "match_prefix"): paged_match,
    ("RadixPrefixCache", "size_info"): paged_match,
    ("SlotAllocator", "free_count"): slots_free_count,
    ("SlotAllocator", "is_free"): slots_is_free,
    ("PrefixCacheManager", "find"): slots_find,
}
