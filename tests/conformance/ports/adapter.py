"""The interface through which the conformance suite drives every port."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

__all__ = ["FEATURES", "Adapter"]

FEATURES = frozenset(
    {
        "append",  # a sequence can grow by a token
        "fork",  # a sequence can be forked
        "copy_on_write",  # a fork copies a shared block when it writes; otherwise forks never write
        "shares",  # running sequences with a common prefix share its slots
        "caches",  # a finished prompt can be found
        "evicts",  # cached blocks are evicted when blocks are needed
        "tail_first",  # the end of a finished prompt is evicted before its start
    }
)


class Adapter(Protocol):
    """One port, driven by sequences of tokens.

    The suite calls ``computed`` after every ``start`` and ``append``, once it has run the copies
    and written the tokens that were not cached.
    """

    features: ClassVar[frozenset[str]]
    shortage: ClassVar[type[Exception]]
    misuse: ClassVar[type[Exception]]
    capacity: int

    def __init__(self, num_blocks: int, block_size: int) -> None: ...

    def start(self, tokens: list[int]) -> Any:
        """Admits a prompt, or raises ``shortage`` with nothing changed."""

    def computed(self, sequence: Any) -> None:
        """Reports that K/V of all tokens of the sequence is written."""

    def append(self, sequence: Any, token: int) -> None:
        """Appends a token with a slot, or raises ``shortage`` with nothing changed."""

    def fork(self, sequence: Any) -> Any:
        """A sequence with the same tokens."""

    def finish(self, sequence: Any) -> None:
        """Ends a sequence; raises ``misuse`` for one that has ended."""

    def slots(self, sequence: Any) -> list[int]:
        """The slot of each token."""

    def num_cached(self, sequence: Any) -> int:
        """Tokens found in the cache when the sequence started."""

    def take_copies(self) -> list[tuple[int, int]]:
        """(from, to) slots to copy before the next write; counted as applied."""

    def num_available(self) -> int:
        """Blocks that are available."""

    def check(self) -> None:
        """Checks the invariants of the port and of the core."""
