"""A slow model of ``BlockPool`` that scans lists.

The used blocks are recomputed after every change. A block that is no longer used goes to the end of
the eviction order, after its children, or becomes the first free block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from blockmgr import BlockStateError, OutOfBlocksError, StepError, TicketError


class Key(NamedTuple):
    """The key of a cached block."""

    parent: int | bytes  # a block, or the name of a namespace
    tokens: tuple[int, ...]
    extras: bytes


@dataclass
class Pending:
    source: int
    destination: int
    num_tokens: int


class PoolModel:
    """The interface of ``BlockPool``, on valid types."""

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool, null_block: bool
    ) -> None:
        self.first, self.num_blocks, self.block_size = int(null_block), num_blocks, block_size
        self.prefix_caching = prefix_caching
        self.refs = dict.fromkeys(range(self.first, num_blocks), 0)
        self.free = list(self.refs)
        self.idle: list[int] = []
        self.keys: dict[int, Key] = {}
        self.pending: list[Pending] = []
        self.flight: list[Pending] | None = None
        self.ticket = 0

    # ---- what is in use ------------------------------------------------------------------

    def used(self) -> set[int]:
        pins = {c.source for c in self.pending}
        for copy in self.flight or ():
            pins |= {copy.source, copy.destination}
        used = {b for b, n in self.refs.items() if n} | pins
        for b in list(used):
            while b in self.keys and isinstance(parent := self.keys[b].parent, int):
                used.add(parent)
                b = parent  # noqa: PLW2901
        return used

    def depth(self, b: int) -> int:
        parent = self.keys[b].parent if b in self.keys else b""
        return 1 + self.depth(parent) if isinstance(parent, int) else 0

    def settle(self) -> None:
        used = self.used()
        self.idle = [b for b in self.idle if b not in used]
        self.free = [b for b in self.free if b not in used]
        left = [b for b in self.refs if b not in used and b not in {*self.idle, *self.free}]
        for b in sorted(left, key=self.depth, reverse=True):
            if b in self.keys:
                self.idle.append(b)
            else:
                self.free.insert(0, b)

    def drop(self, b: int) -> None:
        if self.refs[b] == 1:
            for copy in [c for c in self.pending if c.destination == b]:
                self.pending.remove(copy)
                self.settle()
        self.refs[b] -= 1
        self.settle()

    # ---- checks --------------------------------------------------------------------------

    def in_range(self, *blocks: int) -> None:
        for b in blocks:
            if b not in self.refs:
                raise ValueError(b)

    def known(self, blocks: list[int]) -> None:
        for b in blocks:
            self.in_range(b)
            if not self.refs[b] and b not in self.keys:
                raise BlockStateError(b, "")

    def node(self, parent: int, namespace: bytes) -> int | bytes:
        if parent == -1:
            return namespace
        self.in_range(parent)
        if namespace:
            raise ValueError(namespace)
        if parent not in self.keys:
            raise BlockStateError(parent, "")
        return parent

    def twin(self, key: Key) -> int | None:
        return next((b for b, k in self.keys.items() if k == key), None)

    # ---- the interface -------------------------------------------------------------------

    def take(self, n: int) -> list[int]:
        if n < 0:
            raise ValueError(n)
        if n > len(self.free) + len(self.idle):
            raise OutOfBlocksError(n, len(self.free) + len(self.idle))
        taken = []
        for _ in range(n):
            if self.free:
                b = self.free.pop(0)
                self.refs[b] = 1
                taken.append(b)
            else:
                taken += self.evict(1)
        return taken

    def take_blocks(self, blocks: list[int]) -> None:
        for i, b in enumerate(blocks):
            self.in_range(b)
            if b not in self.free:
                raise BlockStateError(b, "")
            if b in blocks[:i]:
                raise ValueError(b)
        for b in blocks:
            self.free.remove(b)
            self.refs[b] = 1

    def evict(self, n: int) -> list[int]:
        if n < 0:
            raise ValueError(n)
        if n > len(self.idle):
            raise OutOfBlocksError(n, len(self.idle))
        taken, self.idle = self.idle[:n], self.idle[n:]
        for b in taken:
            del self.keys[b]
            self.refs[b] = 1
        return taken

    def forget(self, n: int) -> list[int]:
        taken = self.evict(n)
        for b in taken:
            self.drop(b)
        return taken

    def forget_blocks(self, blocks: list[int]) -> int:
        for b in blocks:
            self.in_range(b)
            if b not in self.keys:
                raise BlockStateError(b, "")
        before = len(self.keys)
        for b in blocks:
            self.forget_tree(b)
        return before - len(self.keys)

    def forget_tree(self, b: int) -> None:
        """The children first, and of those what was promoted last."""
        for child in reversed([c for c, key in self.keys.items() if key.parent == b]):
            self.forget_tree(child)
        if b in self.keys:
            del self.keys[b]
            self.idle = [i for i in self.idle if i != b]
            self.settle()

    def reset(self) -> None:
        if used := self.used():
            raise BlockStateError(min(used), "")
        self.forget(len(self.idle))

    def acquire(self, blocks: list[int]) -> None:
        self.known(blocks)
        for b in blocks:
            self.refs[b] += 1
        self.settle()

    def release(self, blocks: list[int]) -> None:
        for i, b in enumerate(blocks):
            self.in_range(b)
            if blocks[: i + 1].count(b) > self.refs[b]:
                raise BlockStateError(b, "")
        for b in blocks:
            self.drop(b)

    def touch(self, blocks: list[int]) -> None:
        self.acquire(blocks)
        self.release(blocks)

    def find(
        self, tokens: list[int], parent: int, namespace: bytes, extras: dict[int, bytes]
    ) -> list[int]:
        node: Any = self.node(parent, namespace)
        found: list[int] = []
        for i in range(len(tokens) // self.block_size):
            b = self.twin(Key(node, self.block(tokens, i), extras.get(i, b"")))
            if b is None:
                break
            found.append(b)
            node = b
        return found

    def block(self, tokens: list[int], i: int) -> tuple[int, ...]:
        return tuple(tokens[i * self.block_size : (i + 1) * self.block_size])

    def promote(
        self,
        blocks: list[int],
        tokens: list[int],
        parent: int,
        namespace: bytes,
        extras: dict[int, bytes],
    ) -> list[int]:
        if len(blocks) > self.num_blocks or len(tokens) != len(blocks) * self.block_size:
            raise ValueError(blocks, tokens)
        if any(i >= len(blocks) for i in extras):
            raise ValueError(extras)
        node: Any = self.node(parent, namespace)
        for i, b in enumerate(blocks):
            self.in_range(b)
            if not self.refs[b]:
                raise BlockStateError(b, "")
            if b in blocks[:i]:
                raise ValueError(b)
        if not self.prefix_caching:
            return list(blocks)
        waiting = {c.destination for c in [*self.pending, *(self.flight or ())]}
        keys: list[Key] = []
        result: list[int] = []
        for i, b in enumerate(blocks):
            keys.append(Key(node, self.block(tokens, i), extras.get(i, b"")))
            known = self.twin(keys[i])
            if b in self.keys and known != b:
                raise BlockStateError(b, "")
            if known is None and b in waiting:
                raise BlockStateError(b, "")
            node = b if known is None else known
            result.append(node)
        for b, key, kept in zip(blocks, keys, result, strict=True):
            if kept == b:
                self.keys.setdefault(b, key)
                self.settle()
            else:
                self.refs[kept] += 1
                self.settle()
                self.drop(b)
        return result

    def make_writable(self, block: int, num_tokens: int) -> int:
        self.in_range(block)
        if not self.refs[block]:
            raise BlockStateError(block, "")
        if not 0 <= num_tokens <= self.block_size:
            raise ValueError(num_tokens)
        if self.refs[block] == 1 and block not in self.keys:
            return block
        [fresh] = self.take(1)
        source = block
        for copy in self.pending:
            if copy.destination == block:
                source, num_tokens = copy.source, min(num_tokens, copy.num_tokens)
        if num_tokens:
            self.pending.append(Pending(source, fresh, num_tokens))
            self.settle()
        self.drop(block)
        return fresh

    def take_copies(self) -> list[tuple[int, int, int]]:
        if self.flight is not None:
            raise StepError
        self.flight, self.pending = self.pending, []
        self.ticket += 1
        return [(c.source, c.destination, c.num_tokens) for c in self.flight]

    def resolved(self, ticket: int) -> list[Pending]:
        if self.flight is None or ticket != self.ticket:
            raise TicketError
        return self.flight

    # The internal pins of copies are released in order: the first released block is evicted first.

    def copies_applied(self, ticket: int) -> None:
        for copy in self.resolved(ticket):
            self.unpin(copy)
        self.flight = None

    def copies_aborted(self, ticket: int) -> None:
        flight = self.resolved(ticket)
        into = {c.destination: c for c in flight}
        for copy in self.pending:
            # The source of this copy was not filled, so read from the aborted copy's source
            # instead.
            if copy.source in into:
                before = into[copy.source]
                copy.num_tokens = min(copy.num_tokens, before.num_tokens)
                copy.source = before.source
                self.settle()
        for copy in reversed(flight):
            if self.refs[copy.destination]:
                self.pending.insert(0, replace(copy))
            self.unpin(copy)
        self.flight = None

    def unpin(self, copy: Pending) -> None:
        copy.source = -1
        self.settle()
        copy.destination = -1
        self.settle()
