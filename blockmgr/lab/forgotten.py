"""Finds out, for a manager with groups of layers, whether a missed block was ever cached.

Such a manager remembers no evicted blocks, so its explanations cannot distinguish evicted blocks
from blocks that were never cached. A replay can, because it sees the digest of each computed block.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from blockmgr.explain import Explanation, Miss, MissReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["Seen"]

# Reasons that do not distinguish evictions, or come after it in the order of reasons.
UNSURE: Final = frozenset(
    {
        MissReason.NOT_REMEMBERED,
        MissReason.DIVERGED,
        MissReason.OTHER_EXTRAS,
        MissReason.OTHER_NAMESPACE,
    }
)


class Seen:
    """The digests of all computed blocks.

    Args:
        block_size: Tokens per block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._digests: set[bytes] = set()

    def add(self, digests: Iterable[bytes]) -> None:
        """Record the whole blocks of a sequence."""
        self._digests.update(digests)

    def told(self, explanation: Explanation, digests: Sequence[bytes]) -> Explanation:
        """``explanation`` with ``EVICTED`` and ``NEVER_SEEN`` where they apply.

        Args:
            explanation: Explanation of a prompt.
            digests: Digests of its whole blocks.
        """
        misses = [part for miss in explanation.misses for part in self._parts(miss, digests)]
        return replace(explanation, misses=tuple(misses))

    def _parts(self, miss: Miss, digests: Sequence[bytes]) -> Iterator[Miss]:
        if miss.reason not in UNSURE:
            yield miss
            return
        # A digest covers the whole prefix, so the blocks that were cached are the first ones of the
        # run.
        size = self._block_size
        end = miss.start // size
        while end * size < miss.stop and end < len(digests) and digests[end] in self._digests:
            end += 1
        cut = min(max(miss.start, end * size), miss.stop)
        if cut > miss.start:
            yield Miss(reason=MissReason.EVICTED, start=miss.start, stop=cut)
        if cut < miss.stop:
            forgotten = miss.reason is MissReason.NOT_REMEMBERED
            yield replace(
                miss, start=cut, reason=MissReason.NEVER_SEEN if forgotten else miss.reason
            )
