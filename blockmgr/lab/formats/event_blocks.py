"""The blocks that a recording has stored, and the tokens of their prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.record import MAX_TOKEN

if TYPE_CHECKING:
    from array import array

    from blockmgr.lab.formats.record import Record

__all__ = ["UNKNOWN", "KeyTokens", "KnownBlock", "KnownBlocks", "Names"]

UNKNOWN: Final = MAX_TOKEN
"""In place of a token that was not recorded."""

KEPT_NAMES: Final = 2**18
"""Names that are compared."""


@dataclass(slots=True)
class KnownBlock:
    """A stored block.

    Attributes:
        parent: Name of the block before it, or None.
        tokens: Its tokens; those that keys change are numbers of ``KeyTokens``.
        namespace: That of its prompt.
        scope: The part of the namespace that every event of the prompt repeats.
        children: Number of known blocks that continue it.
        removed: Whether the engine has removed it.
    """

    parent: int | str | None
    tokens: array[int]
    namespace: bytes
    scope: bytes
    children: int = 0
    removed: bool = False


class KnownBlocks:
    """Known blocks by name."""

    def __init__(self) -> None:
        self._blocks: dict[int | str, KnownBlock] = {}

    def get(self, name: int | str | None) -> KnownBlock | None:
        """A block, or None if it is unknown."""
        return None if name is None else self._blocks.get(name)

    def store(self, name: int | str, block: KnownBlock) -> bool:
        """Add a block whose parent is known; False, without a change, if it has other content."""
        known = self._blocks.get(name)
        if known is not None:
            known.removed = False
            return (known.parent, known.tokens) == (block.parent, block.tokens)
        self._blocks[name] = block
        parent = self.get(block.parent)
        if parent is not None:
            parent.children += 1
        return True

    def remove(self, name: int | str) -> None:
        """Remove a block; its tokens are needed as long as another block continues it."""
        block = self._blocks.get(name)
        if block is None:
            return
        block.removed = True
        at: int | str | None = name
        while block is not None and block.removed and not block.children:
            assert at is not None
            del self._blocks[at]
            at = block.parent
            block = self.get(at)
            if block is not None:
                block.children -= 1

    def path(self, name: int | str | None) -> list[int]:
        """Tokens from the start of a prompt to the end of a block."""
        parts = []
        while name is not None:
            block = self._blocks[name]
            parts.append(block.tokens)
            name = block.parent
        return [token for part in reversed(parts) for token in part]


class Names:
    """Names of blocks by content, to find keys that a recording does not tell.

    Engines name a block by everything that identifies it. Two names for the same tokens after the
    same parent mean that something else differs, such as a salt or an image.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[int | str | None, bytes, bytes], int | str] = {}

    def are_apart(
        self, parent: int | str | None, namespace: bytes, tokens: bytes, name: int | str
    ) -> bool:
        """Whether the same content had another name first."""
        found = self._first.setdefault((parent, namespace, tokens), name)
        if len(self._first) > KEPT_NAMES:
            del self._first[next(iter(self._first))]
        return found != name


class KeyTokens:
    """Numbers in place of tokens whose content a token id does not tell, such as images.

    A number stands for a token and the key that belongs to it, so prompts part where their images
    differ. Numbers count down from ``UNKNOWN``.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}
        self._largest = 0

    def of(self, token: int, key: str) -> int:
        """The number for a token with a key."""
        return self._numbers.setdefault((token, key), UNKNOWN - 1 - len(self._numbers))

    def check(self, record: Record, largest: int) -> None:
        """Compare the largest token of an event with the numbers.

        Raises:
            TraceFormatError: A token may be equal to a number.
        """
        self._largest = max(self._largest, largest)
        most = UNKNOWN - 1 - len(self._numbers)
        if self._largest > most:
            found = f"{self._largest} in token_ids"
            expected = f"at most {most}: larger numbers stand for images, keys and unknown tokens"
            raise record.error("token_ids", found, expected)

    def changed(self, record: Record, tokens: list[int], keys: list[list[Any]]) -> list[int]:
        """The tokens of some blocks, with numbers where keys belong to them.

        Args:
            record: Position for errors.
            tokens: Tokens of the blocks, equally many for each.
            keys: Keys of each block; an image is a pair of its name and its first token, relative
                to the block. Other keys, and images from earlier blocks, change the first token.
        """
        changed = [token if token <= MAX_TOKEN else self.of(0, f"wide {token}") for token in tokens]
        size = len(tokens) // max(1, len(keys))
        for index, of_block in enumerate(keys):
            for key in of_block:
                place = _place(key)
                at = index * size + (place if 0 <= place < size else 0)
                changed[at] = self.of(changed[at], json.dumps(key, sort_keys=True))
        self.check(record, max((token for token in tokens if token <= MAX_TOKEN), default=0))
        return changed


def _place(key: Any) -> int:
    """Where the content of a key begins, relative to its block."""
    if isinstance(key, list) and len(key) == 2 and type(key[1]) is int:
        return int(key[1])
    return 0
