"""Prefixes as tiers know them, and the keys by which a stored block is proved.

Tiers know namespaces and extra keys by their SHA-256 only, because a slab keeps them on disk.
"""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blockmgr.groups import MAX_PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.blocks import CachedPrefix
    from blockmgr.pool import BlockPool
    from blockmgr.prompt import Prompt

__all__ = [
    "Origin",
    "Path",
    "contents_of",
    "key_bytes",
    "key_of",
    "part_name",
    "part_of",
    "parts_of_key",
    "secret",
    "shared_key_bytes",
]

DIGEST_BYTES = 32
SERIAL_BYTES = 8
COUNT_BYTES = 4


def secret(name: bytes) -> bytes:
    """What stands for a namespace or an extra key in tiers: nothing for none, else its SHA-256."""
    return hashlib.sha256(name).digest() if name else b""


def part_name(part: int) -> bytes:
    """What stands for a further part of a node in place of extra keys, none of which is like it."""
    return f"part {part} of a node".encode().ljust(DIGEST_BYTES)


_PARTS = {part_name(part): part for part in range(1, MAX_PARTS + 1)}


def part_of(extras: bytes) -> int:
    """The part that these extra keys stand for; 0 for none, and the node itself."""
    return _PARTS.get(extras, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """The beginning of a prompt as tiers know it: whole blocks, and perhaps an *end*.

    An end is a last block that is not full: what a sequence has left behind where it ended.

    Attributes:
        tokens: ``uint32[n]``.
        namespace: The ``secret`` of the namespace.
        extras: The ``secret`` of each extra key, by logical block.
        block_size: Tokens a block.
    """

    tokens: npt.NDArray[np.uint32]
    namespace: bytes
    extras: dict[int, bytes]
    block_size: int

    @classmethod
    def of_prompt(cls, prompt: Prompt, block_size: int, limit: int) -> Path:
        """The first ``limit`` tokens of a prompt."""
        count = -(-limit // block_size)
        extras = {i: secret(key) for i, key in prompt.extras.items() if i < count}
        return cls(prompt.tokens[:limit], secret(prompt.namespace), extras, block_size)

    @classmethod
    def of_device(cls, prefix: CachedPrefix, block_size: int) -> Path:
        """A prefix that is cached on the device."""
        extras = {i: secret(key) for i, key in prefix.extras.items()}
        return cls(prefix.tokens, secret(prefix.namespace), extras, block_size)

    @classmethod
    def of_tier(cls, prefix: CachedPrefix, block_size: int) -> Path:
        """A prefix that is cached in a tier, whose names are secrets already."""
        return cls(prefix.tokens, prefix.namespace, prefix.extras, block_size)

    def __len__(self) -> int:
        return self.num_whole + self.has_end

    @property
    def num_whole(self) -> int:
        """Its blocks that are full."""
        return len(self.tokens) // self.block_size

    @property
    def has_end(self) -> bool:
        """Whether its last block is not full."""
        return len(self.tokens) % self.block_size > 0

    def __repr__(self) -> str:
        return f"<Path: {len(self)} blocks>"  # no tokens: they may be secrets

    def head(self, n: int) -> Path:
        """Its first ``n`` blocks."""
        return self.first(n * self.block_size)

    def whole(self) -> Path:
        """Its blocks that are full."""
        return self.head(self.num_whole) if self.has_end else self

    def first(self, num_tokens: int) -> Path:
        """Its first tokens."""
        count = -(-num_tokens // self.block_size)
        extras = {i: key for i, key in self.extras.items() if i < count}
        return Path(self.tokens[:num_tokens], self.namespace, extras, self.block_size)

    def begins_with(self, other: Path) -> bool:
        """Whether another path is its beginning."""
        own = self.first(len(other.tokens))
        return (
            own.namespace == other.namespace
            and own.extras == other.extras
            and np.array_equal(own.tokens, other.tokens)
        )

    def find_in(self, pool: BlockPool) -> npt.NDArray[np.int32]:
        """The whole blocks of a pool that hold its beginning."""
        return pool.find(self.tokens, namespace=self.namespace, extras=self.extras or None)

    def promote_in(self, pool: BlockPool, have: Sequence[int], blocks: Sequence[int]) -> None:
        """Makes its blocks after ``have`` findable in a pool; an end, known there."""
        first, stop = len(have), len(have) + len(blocks)
        whole = blocks[: max(0, self.num_whole - first)]
        if whole:
            pool.promote(
                whole,
                self.tokens[first * self.block_size : (first + len(whole)) * self.block_size],
                parent=have[-1] if have else -1,
                namespace=b"" if have else self.namespace,
                extras=self.extras_between(first, first + len(whole)),
            )
        if len(whole) < len(blocks):
            before = [*have, *whole]
            pool.promote_end(
                blocks[-1],
                self.tokens[(stop - 1) * self.block_size :],
                parent=before[-1] if before else -1,
                namespace=b"" if before else self.namespace,
                extras=self.extras.get(stop - 1, b""),
            )

    def block(self, i: int, num_tokens: int | None = None) -> bytes:
        """The tokens of a block, or the first of them, as they stand in keys."""
        count = self.block_size if num_tokens is None else num_tokens
        part = self.tokens[i * self.block_size : i * self.block_size + count]
        return np.ascontiguousarray(part, "<u4").tobytes()

    def extras_between(self, first: int, stop: int) -> dict[int, bytes] | None:
        """Extra keys of blocks ``[first, stop)``, counted from ``first``; None for none."""
        own = {i - first: key for i, key in self.extras.items() if first <= i < stop}
        return own or None


class Origin:
    """A path in the place from which it is stored.

    Args:
        source: As in ``Transfer``.
        path: The path.
        blocks: ``int32[n, num_parts]``: the blocks of its nodes; -1 for those that are not needed.
        prefix: What that place has of it.
    """

    __slots__ = ("_levels", "_until", "blocks", "contents", "path", "source")

    def __init__(
        self, source: int, path: Path, blocks: npt.NDArray[np.int32], prefix: CachedPrefix
    ) -> None:
        self.source = source
        self.path = path
        self.blocks = blocks
        self.contents = prefix.contents[: len(path)]
        self._levels, self._until = prefix.levels, np.array(prefix.until)

    def head(self, n: int) -> Origin:
        """Its first ``n`` blocks, with what they have of several groups of layers."""
        part = copy(self)
        part.path, part.blocks, part.contents = (
            self.path.head(n),
            self.blocks[:n],
            self.contents[:n],
        )
        return part

    def retention(self, units: npt.NDArray[np.int64]) -> tuple[list[int], list[float]]:
        """The level and its end of some nodes, as in ``CachedPrefix``."""
        if not len(self._levels):
            return [], []
        return self._levels[units].tolist(), self._until[units].tolist()


def key_bytes(block_size: int) -> int:
    """Bytes of a key: the ``key_bytes`` of a slab for blocks of so many tokens."""
    return SERIAL_BYTES + COUNT_BYTES + 2 * DIGEST_BYTES + 4 * block_size


def key_of(path: Path, i: int, parent: int, part: int = 0) -> bytes:
    """What block ``i`` of a path has to be, after the block that was written under ``parent``.

    Args:
        path: The path.
        i: Logical block.
        parent: Serial of the block before it in the same tier, 0 for none; of a further part of a
            node, that of the node.
        part: Which part of the node it is.
    """
    size = path.block_size
    count = min(size, len(path.tokens) - i * size)
    content = contents_of(path, i, i + 1, part_name(part) if part else None)[0]
    numbers = parent.to_bytes(SERIAL_BYTES, "little") + count.to_bytes(COUNT_BYTES, "little")
    return numbers + content.ljust(key_bytes(size) - len(numbers), b"\0")


def shared_key_bytes(block_size: int) -> int:
    """Bytes of a key in a store that others share, for blocks of so many tokens."""
    return 3 * DIGEST_BYTES + 4 * block_size


def contents_of(path: Path, first: int, stop: int, part: bytes | None = None) -> list[bytes]:
    """What blocks of a path are by themselves, each with its namespace.

    Args:
        path: The path.
        first: Logical block of the first of them.
        stop: One after the last.
        part: What stands in place of their extra keys; None for nothing.
    """
    namespace = path.namespace.ljust(DIGEST_BYTES, b"\0")
    size = path.block_size
    tokens = np.ascontiguousarray(path.tokens[first * size : stop * size], "<u4").tobytes()
    contents = []
    for i in range(first, stop):
        extras = part or path.extras.get(i, b"").ljust(DIGEST_BYTES, b"\0")
        at = 4 * size * (i - first)
        contents.append(namespace + extras + tokens[at : at + 4 * size])
    return contents


class KeyParts(NamedTuple):
    """What a key says."""

    parent: int
    namespace: bytes
    extras: bytes
    tokens: npt.NDArray[np.uint32]
    """As many as the block has: fewer than a block can for an end."""


def parts_of_key(key: bytes) -> KeyParts:
    """Takes a key apart."""
    parent = int.from_bytes(key[:SERIAL_BYTES], "little")
    start = SERIAL_BYTES + COUNT_BYTES
    count = int.from_bytes(key[SERIAL_BYTES:start], "little")
    middle = start + DIGEST_BYTES
    end = middle + DIGEST_BYTES
    none = bytes(DIGEST_BYTES)
    names = [b"" if name == none else name for name in (key[start:middle], key[middle:end])]
    tokens = np.frombuffer(key[end:], "<u4")[:count].astype(np.uint32)
    return KeyParts(parent, names[0], names[1], tokens)
