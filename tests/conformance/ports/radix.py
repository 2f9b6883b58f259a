"""The radix cache, driven by a scheduler that shares computed tokens after every forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from blockmgr import OutOfBlocksError, SequenceStateError
from blockmgr.ports.radix import CacheManager, RadixCacheHandle, Request


@dataclass(eq=False)
class Live:
    """A request and the slots of its pages."""

    tokens: list[int]
    slots: list[int]
    handle: RadixCacheHandle
    num_cached: int


class Radix:
    features: ClassVar[frozenset[str]] = frozenset(
        {"append", "shares", "caches", "evicts", "tail_first"}
    )
    shortage: ClassVar[type[Exception]] = OutOfBlocksError
    misuse: ClassVar[type[Exception]] = SequenceStateError

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.cache = CacheManager(None, num_blocks, block_size)
        self.capacity = num_blocks

    def start(self, tokens: list[int]) -> Live:
        handle, found = self.cache.match_req(Request(0, tokens, 0, 0, 0))
        self.cache.lock(handle)
        try:
            fresh = self.cache.allocate(len(tokens) - handle.cached_len)
        except OutOfBlocksError:
            self.cache.unlock(handle)
            raise
        return Live(tokens, [*found.tolist(), *fresh.tolist()], handle, handle.cached_len)

    def computed(self, live: Live) -> None:
        used = live.slots[: len(live.tokens)]
        live.handle, shared = self.cache.cache_unfinished_req(live.handle, live.tokens, used)
        live.slots[: len(shared)] = shared.tolist()

    def append(self, live: Live, token: int) -> None:
        if len(live.slots) == len(live.tokens):
            live.slots += self.cache.allocate(1).tolist()
        live.tokens.append(token)

    def finish(self, live: Live) -> None:
        used = live.slots[: len(live.tokens)]
        self.cache.free_and_cache_finished_req(live.handle, live.tokens, used)

    def slots(self, live: Live) -> list[int]:
        return live.slots[: len(live.tokens)]

    def num_cached(self, live: Live) -> int:
        return live.num_cached

    def take_copies(self) -> list[tuple[int, int]]:
        return []

    def num_available(self) -> int:
        return self.cache.available_size // self.cache.page_size

    def check(self) -> None:
        self.cache.check_integrity()
