"""Random calls on the radix cache beside a tiny model: a dictionary of prefixes.

The model has no nodes, no counts and no order. It knows the prefix of each page, the locked handles
and the holders of other pages, and recomputes everything else. A fake memory has the prefix written
to each slot, so a read notices a page that was allocated twice, or matched after its eviction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from blockmgr import BlockStateError, OutOfBlocksError, SequenceStateError
from blockmgr.ports.radix import CacheManager, RadixCacheHandle, Request, SizeInfo, format_tree
from tests.fingerprints import fingerprint
from tests.strategies import DIGESTS, token

Prefix = tuple[int, ...]

# Mostly prefixes of one text, so that most prompts find something.
TEXT = [0, 0, 1, 0, 1, 1, 0, 0]
TOKENS = st.one_of(
    st.integers(1, 8).map(lambda length: TEXT[:length]),
    st.integers(1, 6).map(lambda length: [*TEXT[:length], 1]),
    st.lists(token, max_size=7),
)


@dataclass(eq=False)
class Live:
    """A running request: its tokens, the slots of its pages, and its locked prefix."""

    tokens: list[int]
    slots: list[int]
    handle: RadixCacheHandle

    @property
    def used(self) -> list[int]:
        return self.slots[: len(self.tokens)]


class RadixMachine(RuleBasedStateMachine):
    """A cache, its model, and requests that run, share, end or are aborted."""

    @initialize(
        num_pages=st.integers(1, 7),
        page_size=st.integers(1, 3),
        digest=st.sampled_from(["xxh3_128", "constant"]),
    )
    def build(self, num_pages: int, page_size: int, digest: str) -> None:
        self.cache = CacheManager(None, num_pages, page_size, digest=DIGESTS[digest])
        self.num_pages, self.size = num_pages, page_size
        self.tree: dict[Prefix, int] = {}
        self.locked: list[tuple[RadixCacheHandle, Prefix]] = []
        self.live: list[Live] = []
        self.memory: dict[int, Prefix] = {}

    # The model.

    def known(self, tokens: list[int]) -> Prefix:
        """The longest prefix in the tree."""
        length = len(tokens) // self.size * self.size
        while length and tuple(tokens[:length]) not in self.tree:
            length -= self.size
        return tuple(tokens[:length])

    def chain(self, prefix: Prefix) -> list[int]:
        """The slots of a prefix in the tree."""
        stops = range(self.size, len(prefix) + 1, self.size)
        return [slot for stop in stops for slot in self.slots_of(self.tree[prefix[:stop]])]

    def slots_of(self, page: int) -> list[int]:
        return [page * self.size + offset for offset in range(self.size)]

    def is_protected(self, prefix: Prefix) -> bool:
        return any(locked[: len(prefix)] == prefix for _, locked in self.locked)

    def evictable(self) -> set[int]:
        return {page for prefix, page in self.tree.items() if not self.is_protected(prefix)}

    def held(self) -> set[int]:
        """The pages of requests that are not in the tree."""
        pages = {slot // self.size for live in self.live for slot in live.slots}
        return pages - set(self.tree.values())

    def was_taken(self, slots: list[int]) -> None:
        """Allocated pages have left the tree, the ends of prefixes first."""
        pages = [slot // self.size for slot in slots[:: self.size]]
        assert slots == [slot for page in pages for slot in self.slots_of(page)]
        assert len(set(pages)) == len(pages)
        assert not set(pages) & self.held()
        gone = {prefix for prefix, page in self.tree.items() if page in pages}
        assert not any(map(self.is_protected, gone))
        self.tree = {prefix: page for prefix, page in self.tree.items() if prefix not in gone}
        assert all(prefix[: -self.size] in {(), *self.tree} for prefix in self.tree)

    def insert(self, tokens: list[int], slots: list[int]) -> None:
        for stop in range(self.size, len(tokens) + 1, self.size):
            self.tree.setdefault(tuple(tokens[:stop]), slots[stop - 1] // self.size)

    def lock(self, handle: RadixCacheHandle, prefix: Prefix) -> None:
        self.cache.lock(handle)
        if prefix:
            self.locked.append((handle, prefix))

    def unlocked(self, handle: RadixCacheHandle) -> None:
        at = next((n for n, (locked, _) in enumerate(self.locked) if locked is handle), None)
        if at is not None:
            del self.locked[at]

    def fingerprint(self) -> Any:
        manager = self.cache.manager
        return fingerprint(manager.pool), dict(manager._locks)

    # Rules.

    @rule(tokens=TOKENS)
    def match(self, tokens: list[int]) -> None:
        before = self.fingerprint()
        handle, indices = self.cache.manager.match_prefix(tokens)
        prefix = self.known(tokens)
        assert handle.cached_len == len(prefix)
        assert indices.tolist() == self.chain(prefix)
        assert self.fingerprint() == before

    @rule(tokens=TOKENS.filter(bool), ends=st.booleans())
    def start(self, tokens: list[int], ends: bool) -> None:
        req = Request(0, tokens, table_idx=0, cached_len=0, output_len=0)
        handle, found = self.cache.match_req(req)
        prefix = self.known(tokens[:-1])
        assert found.tolist() == self.chain(prefix)
        self.lock(handle, prefix)
        before, wanted = self.fingerprint(), len(tokens) - len(prefix)
        room = len(self.evictable()) + self.num_pages - len(self.tree) - len(self.held())
        if -(-wanted // self.size) > room:
            with pytest.raises(OutOfBlocksError):
                self.cache.allocate(wanted)
            assert self.fingerprint() == before
            self.cache.unlock(handle)
            self.unlocked(handle)
            return
        fresh = self.cache.allocate(wanted).tolist()
        self.was_taken(fresh)
        live = Live(tokens, [*found.tolist(), *fresh], handle)
        self.live.append(live)
        self.compute(live, len(prefix))
        if ends:
            self.end(live)

    def compute(self, live: Live, start: int) -> None:
        """Writes the tokens from ``start`` on and reads them all."""
        for position, slot in enumerate(live.used):
            prefix = tuple(live.tokens[: position + 1])
            if position >= start:
                self.memory[slot] = prefix
            assert self.memory[slot] == prefix

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        live = data.draw(st.sampled_from(self.live))
        if len(live.slots) == len(live.tokens):
            if not self.cache.available_size:
                return
            fresh = self.cache.allocate(1).tolist()
            self.was_taken(fresh)
            live.slots += fresh
        live.tokens.append(token)
        self.compute(live, len(live.tokens) - 1)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        old = live.handle
        handle, indices = self.cache.cache_unfinished_req(old, live.tokens, live.used)
        self.insert(live.tokens, live.slots)
        prefix = self.known(live.tokens)
        assert len(prefix) == handle.cached_len == len(live.tokens) // self.size * self.size
        assert indices.tolist() == self.chain(prefix)
        live.slots[: len(indices)] = indices.tolist()
        live.handle = handle
        self.unlocked(old)
        if prefix:
            self.locked.append((handle, prefix))
        self.compute(live, len(live.tokens))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), again=st.booleans())
    def finish(self, data: st.DataObject, again: bool) -> None:
        live = data.draw(st.sampled_from(self.live))
        self.end(live)
        if again:
            before = self.fingerprint()
            with pytest.raises(SequenceStateError):
                self.cache.free_and_cache_finished_req(live.handle, live.tokens, live.used)
            assert self.fingerprint() == before

    def end(self, live: Live) -> None:
        self.cache.free_and_cache_finished_req(live.handle, live.tokens, live.used)
        self.insert(live.tokens, live.slots)
        self.unlocked(live.handle)
        self.live.remove(live)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = data.draw(st.sampled_from(self.live))
        self.cache.free(live.slots[live.handle.cached_len :])
        self.cache.unlock(live.handle)
        self.unlocked(live.handle)
        self.live.remove(live)

    @rule(tokens=TOKENS)
    def lock_what_is_there(self, tokens: list[int]) -> None:
        handle = self.cache.manager.match_prefix(tokens).handle
        self.lock(handle, self.known(tokens))

    @precondition(lambda self: self.free_locks())
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(self.free_locks()))
        self.cache.unlock(handle)
        self.unlocked(handle)

    def free_locks(self) -> list[RadixCacheHandle]:
        taken = [live.handle for live in self.live]
        return [handle for handle, _ in self.locked if handle not in taken]

    @rule(size=st.integers(0, 6))
    def evict(self, size: int) -> None:
        num_pages = -(-size // self.size)
        if num_pages > len(self.evictable()):
            before = self.fingerprint()
            with pytest.raises(OutOfBlocksError):
                self.cache.manager.evict(size)
            assert self.fingerprint() == before
            return
        expected = len(self.tree) - num_pages
        slots = self.cache.manager.evict(size).tolist()
        assert len(slots) == num_pages * self.size
        self.was_taken(slots)
        assert len(self.tree) == expected
        self.cache.free(slots)

    @rule()
    def reset(self) -> None:
        if self.locked:
            before = self.fingerprint()
            with pytest.raises(BlockStateError):
                self.cache.reset()
            assert self.fingerprint() == before
            return
        self.cache.reset()
        self.tree.clear()

    # Invariants.

    @invariant()
    def the_books_balance(self) -> None:
        self.cache.check_integrity()
        evictable = len(self.evictable())
        sizes = SizeInfo(evictable * self.size, (len(self.tree) - evictable) * self.size)
        assert self.cache.manager.size_info == sizes
        held = len(self.tree) - evictable + len(self.held())
        assert self.cache.available_size == (self.num_pages - held) * self.size

    @invariant()
    def every_prefix_reads_back(self) -> None:
        for prefix in self.tree:
            for position, slot in enumerate(self.chain(prefix)):
                assert self.memory[slot] == prefix[: position + 1]

    @invariant()
    def the_drawing_has_every_page_once(self) -> None:
        drawn = format_tree(self.cache, max_depth=99).splitlines()[1:]
        numbers = [line.partition("slots ")[2].partition(",")[0] for line in drawn]
        slots = [int(slot) for line in numbers for slot in line.split() if slot.isdigit()]
        if not any("…" in line for line in drawn):
            expected = [s for page in self.tree.values() for s in self.slots_of(page)]
            assert sorted(slots) == sorted(expected)


TestRadixModel = RadixMachine.TestCase
