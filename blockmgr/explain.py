"""Why the rest of a prompt is not in the cache: the result of ``explain``."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    _Numbers = npt.NDArray[np.int64]
    Report = tuple[int, int, int, npt.NDArray[np.uint8], _Numbers, _Numbers, _Numbers, _Numbers]

__all__ = ["Explanation", "Miss", "MissReason"]


class MissReason(enum.Enum):
    """Why tokens of a prompt have to be computed.

    Each token that is not found has one reason: the first one here that applies.
    """

    CACHING_OFF = "prefix caching is off"
    """The manager was built with ``prefix_caching=False``."""

    TOO_LARGE = "larger than the pool"
    """The request does not fit even an empty pool. Only a replay reports this: ``explain``
    raises."""

    LAST_TOKEN = "last token"
    """The last token is always left to compute, and so is the whole block that it completes, unless
    part of that block can be reused."""

    PARTIAL_BLOCK = "shorter than a block"
    """The end of the prompt does not fill a block: only part of a cached block could serve it."""

    NOT_COMMITTED = "computed but not committed"
    """A running sequence holds a block with these tokens that is not findable: it is not committed
    yet, or still waits for a copy."""

    GROUP = "not in every group"
    """The block belongs to a cached prefix, in full attention if a group has that, but a group of
    layers lacks what the token after it reads: a block of its window or chunk, or a state at
    exactly that token."""

    EVICTED = "evicted"
    """It was cached and then evicted."""

    OTHER_EXTRAS = "cached under other extras"
    """The same tokens are cached in this namespace, with other extra keys."""

    OTHER_NAMESPACE = "cached under another namespace"
    """The same tokens are cached in another namespace: of another tenant, or another adapter."""

    DIVERGED = "diverges within a block"
    """A cached block begins with the same tokens and then differs, or is shorter. This block and
    all after it have this reason."""

    NEVER_SEEN = "never seen"
    """It was never cached."""

    NOT_REMEMBERED = "never seen, or evicted and forgotten"
    """It was never cached, was evicted so long ago that it is not remembered (which depends on
    ``ghost_blocks``), or was taken out of the cache by ``reset_prefix_cache``, ``forget`` or
    ``retire``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """A run of prompt tokens that have to be computed for one reason.

    Attributes:
        reason: Why.
        start: Position of the first of them.
        stop: Position after the last of them.
        more_blocks: If evicted: for each block of the run, how many more blocks the pool would need
            for LRU to keep it; 0 if LRU would have kept it in this pool. Else empty.
        evicted_ago: If evicted: blocks handed out since the first block of the run was evicted.
        diverges_at: If the run diverges: position of the first token that differs.
        group: If a group refused: its position in ``ManagerConfig.groups``.
    """

    reason: MissReason
    start: int
    stop: int
    more_blocks: tuple[int, ...] = ()
    evicted_ago: int | None = None
    diverges_at: int | None = None
    group: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens in the run."""
        return self.stop - self.start

    @property
    def why(self) -> str:
        """The reason as text: a phrase that continues "these tokens"."""
        match self.reason:
            case MissReason.EVICTED:
                return f"were evicted{self._evicted()}"
            case MissReason.DIVERGED:
                return f"differ from what is cached, from token {self.diverges_at:,} on"
            case MissReason.GROUP:
                return f"belong to a cached prefix, but group {self.group} has no block there"
            case _:
                return _SENTENCES[self.reason]

    def __str__(self) -> str:
        return f"tokens {self.start:,} to {self.stop - 1:,} {self.why}"

    def _evicted(self) -> str:
        most = max(self.more_blocks, default=0)
        kept = f"{_blocks(most)} more would have kept it" if most else "LRU would have kept it"
        return f", {_blocks(self.evicted_ago or 0)} handed out since: {kept}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How much of a prompt is cached, and why the rest is not.

    Attributes:
        num_tokens: Tokens in the prompt.
        num_cached_tokens: Leading tokens that would be found.
        num_partial_tokens: Of those, tokens that would come from part of a block.
        misses: The other tokens in order, from ``num_cached_tokens`` to ``num_tokens``; never
            empty, because the last token is always missed.
    """

    num_tokens: int
    num_cached_tokens: int
    num_partial_tokens: int
    misses: tuple[Miss, ...]

    @property
    def reason(self) -> MissReason:
        """Why the first missing token was not found."""
        return self.misses[0].reason

    def missed_tokens(self, reason: MissReason) -> int:
        """Number of tokens missed for this reason."""
        return sum(miss.num_tokens for miss in self.misses if miss.reason is reason)

    def __str__(self) -> str:
        found = f"{self.num_cached_tokens:,} of {self.num_tokens:,} tokens are cached"
        if self.num_partial_tokens:
            found += f", {self.num_partial_tokens:,} of them in part of a block"
        return "; ".join([found, *map(str, self.misses)])


_SENTENCES = {
    MissReason.CACHING_OFF: "were not looked for: prefix caching is off",
    MissReason.TOO_LARGE: "were not looked for: the request is larger than the pool",
    MissReason.LAST_TOKEN: "are left to compute: the last token is never served from the cache",
    MissReason.PARTIAL_BLOCK: "fill no whole block, and no cached part of one serves them",
    MissReason.NOT_COMMITTED: "belong to a running sequence that has yet to commit them",
    MissReason.OTHER_EXTRAS: "are cached with other extra keys",
    MissReason.OTHER_NAMESPACE: "are cached in another namespace",
    MissReason.NEVER_SEEN: "were never cached",
    MissReason.NOT_REMEMBERED: "were never cached, or evicted longer ago than is remembered",
}


def _blocks(count: int) -> str:
    return f"{count:,} {'block' if count == 1 else 'blocks'}"


_REASONS = tuple(MissReason)


def explanation(report: Report) -> Explanation:
    """The core's reasons for single blocks, joined into runs of one reason."""
    num_cached, num_partial, diverges_at, reasons, stops, more_blocks, evicted_ago, groups = report
    changes = np.flatnonzero((np.diff(reasons) != 0) | (np.diff(groups) != 0))
    ends = np.append(changes + 1, len(reasons)).tolist()
    misses = []
    first, start = 0, num_cached
    for end in ends:
        reason = _REASONS[reasons[first]]
        evicted = reason is MissReason.EVICTED
        stop = int(stops[end - 1])
        misses.append(
            Miss(
                reason=reason,
                start=start,
                stop=stop,
                more_blocks=tuple(more_blocks[first:end].tolist()) if evicted else (),
                evicted_ago=int(evicted_ago[first]) if evicted else None,
                diverges_at=diverges_at if reason is MissReason.DIVERGED else None,
                group=int(groups[first]) if reason is MissReason.GROUP else None,
            )
        )
        first, start = end, stop
    return Explanation(
        num_tokens=int(stops[-1]),
        num_cached_tokens=num_cached,
        num_partial_tokens=num_partial,
        misses=tuple(misses),
    )
