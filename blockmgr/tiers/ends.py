"""The ends in a tier: what a prompt finds behind the whole blocks that it finds."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Ends", "Parent"]

TOKEN_BYTES = 4

Parent: TypeAlias = int | bytes
"""The serial of the block that an end continues; a namespace, if it begins a prompt."""


class Ends:
    """Finds ends by what they continue, their extra key and their tokens: all of these, exactly.

    The pool has an end as a block that no look-up of whole blocks finds, and evicts it without a
    word. So what is found here is there if the pool says so.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[Parent, bytes, bytes], int] = {}
        self._names: dict[int, tuple[Parent, bytes, bytes]] = {}
        self._lengths: dict[Parent, Counter[int]] = {}

    def add(self, block: int, parent: Parent, extras: bytes, tokens: bytes) -> None:
        """Notes that a block has an end."""
        name = parent, extras, tokens
        self.drop(self._blocks.get(name, block))
        self._blocks[name], self._names[block] = block, name
        self._lengths.setdefault(parent, Counter())[len(tokens)] += 1

    def drop(self, block: int) -> None:
        """Notes that a block gets other content."""
        name = self._names.pop(block, None)
        if name is None:
            return
        parent, _, tokens = name
        del self._blocks[name]
        lengths = self._lengths[parent]
        lengths[len(tokens)] -= 1
        if not lengths[len(tokens)]:
            del lengths[len(tokens)]
        if not lengths:
            del self._lengths[parent]

    def __contains__(self, parent: Parent) -> bool:
        """Whether anything may be found behind this."""
        return parent in self._lengths

    def find(self, parent: Parent, extras: bytes, tokens: bytes) -> Iterator[tuple[int, int]]:
        """The ends with which these tokens begin, the longest first: number of tokens, block."""
        for length in sorted(self._lengths.get(parent, ()), reverse=True):
            if length <= len(tokens):
                block = self._blocks.get((parent, extras, tokens[:length]))
                if block is not None:
                    yield length // TOKEN_BYTES, block
