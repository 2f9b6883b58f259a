"""Prefixes as tiers know them, and the keys by which a stored block is proved.

Tiers know namespaces and extra keys by their SHA-256 only, because a slab keeps them on disk.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from blockmgr.groups import MAX_PARTS

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.blocks import CachedPrefix
    from blockmgr.prompt import Prompt

__all__ = ["Path", "key_bytes", "key_of", "part_name", "part_of", "parts_of_key", "secret"]

DIGEST_BYTES = 32
SERIAL_BYTES = 8


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
    """Whole blocks of a prompt, from its beginning, as tiers know them.

    Attributes:
        tokens: ``uint32[n * block_size]``.
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
        """The first ``limit`` blocks of a prompt."""
        extras = {i: secret(key) for i, key in prompt.extras.items() if i < limit}
        tokens = prompt.tokens[: limit * block_size]
        return cls(tokens, secret(prompt.namespace), extras, block_size)

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
        return len(self.tokens) // self.block_size

    def __repr__(self) -> str:
        return f"<Path: {len(self)} blocks>"  # no tokens: they may be secrets

    def first(self, n: int) -> Path:
        """The first ``n`` blocks."""
        extras = {i: key for i, key in self.extras.items() if i < n}
        return Path(self.tokens[: n * self.block_size], self.namespace, extras, self.block_size)

    def block(self, i: int) -> bytes:
        """The tokens of a block, as they stand in keys."""
        part = self.tokens[i * self.block_size : (i + 1) * self.block_size]
        return np.ascontiguousarray(part, "<u4").tobytes()

    def extras_between(self, first: int, stop: int) -> dict[int, bytes] | None:
        """Extra keys of blocks ``[first, stop)``, counted from ``first``; None for none."""
        own = {i - first: key for i, key in self.extras.items() if first <= i < stop}
        return own or None


def key_bytes(block_size: int) -> int:
    """Bytes of a key: the ``key_bytes`` of a slab for blocks of so many tokens."""
    return SERIAL_BYTES + 2 * DIGEST_BYTES + 4 * block_size


def key_of(path: Path, i: int, parent: int, part: int = 0) -> bytes:
    """What block ``i`` of a path has to be, after the block that was written under ``parent``.

    Args:
        path: The path.
        i: Logical block.
        parent: Serial of the block before it in the same tier, 0 for none; of a further part of a
            node, that of the node.
        part: Which part of the node it is.
    """
    names = (path.namespace, part_name(part) if part else path.extras.get(i, b""))
    padded = (name.ljust(DIGEST_BYTES, b"\0") for name in names)
    return parent.to_bytes(SERIAL_BYTES, "little") + b"".join(padded) + path.block(i)


class KeyParts(NamedTuple):
    """What a key says."""

    parent: int
    namespace: bytes
    extras: bytes
    tokens: npt.NDArray[np.uint32]


def parts_of_key(key: bytes) -> KeyParts:
    """Takes a key apart."""
    parent = int.from_bytes(key[:SERIAL_BYTES], "little")
    middle = SERIAL_BYTES + DIGEST_BYTES
    end = middle + DIGEST_BYTES
    none = bytes(DIGEST_BYTES)
    names = [b"" if name == none else name for name in (key[SERIAL_BYTES:middle], key[middle:end])]
    return KeyParts(parent, names[0], names[1], np.frombuffer(key[end:], "<u4").astype(np.uint32))
