"""What the conformance suite asks of a port, whatever its own calls look like."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

__all__ = ["FEATURES", "Adapter"]

FEATURES = frozenset(
    {
        "append",  # a sequence can grow by a token
        "fork",  # a sequence can be forked
        "copy_on_write",  # a fork moves to a copy when it writes; else forks never write
        "shares",  # equal prefixes of running sequences lie in equal slots
        "caches",  # a finished prompt is found again
        "evicts",  # what is cached makes room for what is needed
        "tail_first",  # the end of a finished prompt is evicted before its start
    }
)


class Adapter(Protocol):
    """One port, driven by sequences of tokens.

    ``computed`` is called after every ``start`` and ``append``, once the suite has run the copies
    and written what was not cached.
    """

    features: ClassVar[frozenset[str]]
    shortage: ClassVar[type[Exception]]
    misuse: ClassVar[type[Exception]]
    capacity: int

    def __init__(self, num_blocks: int, block_size: int) -> None: ...

    def start(self, tokens: list[int]) -> Any:
        """Takes a prompt in, or raises ``shortage`` with nothing changed."""

    def computed(self, sequence: Any) -> None:
        """K/V of all present tokens of the sequence is written."""

    def append(self, sequence: Any, token: int) -> None:
        """One more token with a slot, or ``shortage`` with nothing changed."""

    def fork(self, sequence: Any) -> Any:
        """A sequence with the same tokens."""

    def finish(self, sequence: Any) -> None:
        """Ends a sequence; raises ``misuse`` for one that has ended."""

    def slots(self, sequence: Any) -> list[int]:
        """The slot of each present token."""

    def num_cached(self, sequence: Any) -> int:
        """Tokens that were found when the sequence was started."""

    def take_copies(self) -> list[tuple[int, int]]:
        """(from, to) slots to copy before the next write; counted as applied."""

    def num_available(self) -> int:
        """Blocks that could be handed out."""

    def check(self) -> None:
        """The port's own invariants and the core's."""
