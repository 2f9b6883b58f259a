"""Look-ups: what shared stores are asked, and what they said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.arguments import truth, whole
from blockmgr.errors import TicketError
from blockmgr.tiers.layout import Pieces
from blockmgr.tiers.plans import LookUp
from blockmgr.tiers.shared_books import SharedBooks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from blockmgr.tiers.paths import Path
    from blockmgr.tiers.stores import Stores
    from blockmgr.tiers.tier import TierBooks

__all__ = ["LookUps"]


@dataclass(slots=True, eq=False)
class _Open:
    """A look-up.

    Attributes:
        plan: Its question.
        path: The whole blocks of the prompt.
        wanted: The prompt, with an end.
        known: What was known of the path.
        asked: What is asked of it.
        fetch: Whether to fetch what is wanted.
        is_taken: Whether a mover has it.
    """

    plan: LookUp
    path: Path
    wanted: Path
    known: npt.NDArray[np.bool_]
    asked: Pieces
    fetch: bool
    is_taken: bool = False


class LookUps:
    """The look-ups that have no answer yet.

    Args:
        tiers: The tiers, the fastest first.
        stores: Fetches what was found, if asked to.
    """

    def __init__(self, tiers: tuple[TierBooks, ...], stores: Stores) -> None:
        last = len(tiers) - 1
        self._tier = last
        self._books = tiers[last] if isinstance(tiers[last], SharedBooks) else None
        self._stores = stores
        self.open: dict[int, _Open] = {}
        self._last = 0

    def ask(self, path: Path, num_known: int, *, fetch: bool) -> int:
        """Asks for what follows the blocks that are known; 0: there is nothing to ask."""
        books, wanted, path = self._books, path, path.whole()
        if not isinstance(books, SharedBooks) or num_known >= len(path):
            return 0
        known = books.known(path)
        asked = Pieces(books.layout.readable(len(path), num_known) & ~known)
        self._last += 1
        plan = LookUp(self._last, self._tier, tuple(books.keys(path, asked)))
        self.open[self._last] = _Open(plan, path, wanted, known, asked, fetch)
        return self._last

    def take(self, now: float | None) -> list[LookUp]:
        """The look-ups that no mover has yet."""
        if isinstance(self._books, SharedBooks) and now is not None:
            self._books.pass_time(now)
        fresh = [each for each in self.open.values() if not each.is_taken]
        for each in fresh:
            each.is_taken = True
        return [each.plan for each in fresh]

    def done(self, ticket: object, has: object) -> int:
        """Notes an answer, and returns how many blocks are known now that were not."""
        number = whole("ticket", ticket, -(2**63), 2**63 - 1)
        known = self.open.get(number)
        if known is None or not known.is_taken:
            raise TicketError(f"look-up {number} was never taken, or is resolved")
        if not isinstance(has, list | tuple):
            raise TypeError(f"has must be a list or tuple of bool, got {type(has).__name__}")
        whole("has length", len(has), 0, len(known.plan.keys))
        asked = known.asked.first(len(has))
        there = known.known.copy()
        there[asked.units, asked.parts] = [truth("has", each) for each in has]
        assert isinstance(self._books, SharedBooks)
        # If a reset came between, or the answer is wrong, a load finds out.
        new = self._books.saw(known.path, there) if any(has) else 0
        del self.open[number]
        if known.fetch:
            self._stores.prefetch(known.wanted)
        return new
