"""What is read from tiers for a prompt: look-ups in shared stores, loads, and their commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.arguments import truth, whole
from blockmgr.errors import OutOfBlocksError, StaleMatchError, TicketError
from blockmgr.manager import BlockManager
from blockmgr.tiers.layout import Pieces
from blockmgr.tiers.paths import Path
from blockmgr.tiers.plans import DEVICE, LookUp, Ticket, Tickets, TierMatch
from blockmgr.tiers.shared_books import SharedBooks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from blockmgr.prompt import Prompt
    from blockmgr.tiers.layout import Layout
    from blockmgr.tiers.stores import Stores
    from blockmgr.tiers.tier import TierBooks

__all__ = ["Loads", "LookUps"]


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


class Loads:
    """The sequences that wait for bytes of tiers.

    Their blocks are private, so no other prompt finds what has not arrived, and sees it as being
    computed instead. A ticket holds the blocks to read and those to write, whatever becomes of the
    sequence.

    With several groups of layers, a load makes one boundary, its end, and comes from one tier. A
    shorter one would need other blocks of windows than those that it brings, so it is whole or
    nothing; and nothing can be computed behind a part of it, so the sequence is preempted.

    Args:
        device: The manager.
        layout: Its groups of layers.
        tiers: The tiers, the fastest first.
        tickets: The open tickets.
        max_loading: Most blocks of the device that wait for bytes at a time.
    """

    def __init__(
        self,
        device: BlockManager,
        layout: Layout,
        tiers: tuple[TierBooks, ...],
        tickets: Tickets,
        max_loading: int,
    ) -> None:
        self._device = device
        self._layout = layout
        self._size = device.config.block_size
        self._tiers = tiers
        self._tickets = tickets
        self._max_loading = max_loading
        self.waiting: dict[int, list[Ticket]] = {}
        """The tickets of each loading sequence, in the order of its blocks."""

    def match(self, prompt: Prompt, max_cached_tokens: int | None) -> tuple[TierMatch, Path]:
        """What the device and the tiers have of a prompt, whose last token is always computed."""
        device = self._device.match(prompt, max_cached_tokens=max_cached_tokens)
        most = len(prompt) - 1
        if max_cached_tokens is not None:
            most = min(most, max_cached_tokens)
        path = Path.of_prompt(prompt, self._size, most)
        tokens = tuple(books.reach(path).num_tokens for books in self._tiers)
        best = max(tokens)
        whole = len(device.block_ids) * self._size
        loadable = best - whole if best > device.num_cached_tokens else 0
        return TierMatch(device, tokens, loadable), path

    def shorter(self, path: Path, most: int) -> int:
        """The most tokens behind which a load of a path can end, at ``most`` blocks."""
        return max(books.reach(path, most * self._size).num_tokens for books in self._tiers)

    def limit(self, found: TierMatch, path: Path, asked: TierMatch | None) -> int:
        """Where a load of a path may end now, in tokens; not behind what is found if nowhere.

        Raises:
            StaleMatchError: There is less than ``asked``.
            OutOfBlocksError: So many blocks must not wait at a time as ``asked`` needs.
        """
        first = len(found.device.block_ids)
        stop = first * self._size + found.num_loadable_tokens
        room = max(0, self._max_loading - self._tickets.num_blocks(is_load=True))
        if asked is not None:
            asked_tokens = asked.num_cached_tokens
            if found.num_cached_tokens < asked_tokens or first < len(asked.device.block_ids):
                raise StaleMatchError(asked_tokens, found.num_cached_tokens)
        while stop > first * self._size:
            needed = self._layout.needed(stop, first)
            wanted = int(needed.sum())
            if wanted <= room:
                break
            if asked is not None:
                raise OutOfBlocksError(wanted, room)
            stop = self.shorter(path, first + (len(needed) - first) * room // wanted)
        return stop

    def begin(self, handle: int, path: Path, stop: int) -> None:
        """Opens the tickets of a sequence: what it lacks of the first ``stop`` tokens of a path."""
        first = self._device.sequence(handle).num_computed_tokens // self._size
        tickets: list[Ticket] = []
        try:
            for number, books in enumerate(self._tiers):
                end, found = books.reach(path, stop)
                if end < stop:  # another tier goes on, behind whole blocks
                    end -= end % self._size
                count = -(-end // self._size)
                if count > first and (end == stop or not self._layout.is_grouped):
                    pieces = Pieces(self._layout.needed(end, first))
                    tickets.append(self._open(handle, path.first(end), number, found, pieces))
                    first = count
                if end == stop:
                    break
        except BaseException:
            for ticket in tickets:
                self._close(ticket)
            raise
        if tickets:
            self.waiting[handle] = tickets

    def _open(
        self,
        handle: int,
        path: Path,
        number: int,
        found: npt.NDArray[np.int32],
        pieces: Pieces,
    ) -> Ticket:
        """A ticket for some of the blocks that a tier was found to have."""
        books = self._tiers[number]
        sources: list[int] = found[pieces.units, pieces.parts].tolist()
        before = found[: pieces.units[0], 0].tolist()
        targets = self._layout.targets(self._device, handle, pieces)
        ticket = Ticket(
            number=self._tickets.next_number(),
            source=number,
            target=DEVICE,
            path=path,
            pieces=pieces,
            groups=self._layout.groups_of(pieces),
            sources=sources,
            targets=targets,
            proofs=(
                books.proofs(path, pieces, before, books.serials[sources]),
                None,
            ),
            handle=handle,
        )
        books.pool.acquire(sources)
        try:
            self._device.acquire(targets)
        except BaseException:
            books.pool.release(sources[::-1])
            raise
        self._tickets.add(ticket)
        return ticket

    def _close(self, ticket: Ticket) -> None:
        """Drops what a ticket holds."""
        del self._tickets.open[ticket.number]
        self._device.release(ticket.targets[::-1])
        self._tiers[ticket.source].pool.release(ticket.sources[::-1])

    def take(self, deadline: float | None) -> list[Ticket]:
        """The tickets that no mover has yet, which are under way from here on."""
        fresh = [t for t in self._tickets.open.values() if t.is_load and not t.is_taken]
        for ticket in fresh:
            ticket.is_taken, ticket.deadline = True, deadline
        return fresh

    def late(self, now: float) -> list[int]:
        """The sequences with a ticket whose deadline has passed."""
        return [
            handle
            for handle, tickets in self.waiting.items()
            if any(
                t.result is None and t.deadline is not None and t.deadline < now for t in tickets
            )
        ]

    def leave(self, handle: int) -> None:
        """Drops a sequence that has ended; the ticket keeps what its mover has."""
        for ticket in self.waiting.pop(handle, ()):
            ticket.handle = -1
            if not ticket.is_taken:
                self._close(ticket)

    def done(self, ticket: Ticket, n: int, *, refused: bool) -> int:
        """Commits the leading run of what has arrived of a sequence, or ends its load.

        Returns:
            The tokens of the sequence that are computed; 0 if it has left.
        """
        arrived = 0 if ticket.is_void else n
        tickets = self.waiting.get(ticket.handle, ())
        ticket.result = arrived
        # No transfer writes there any more, and a commit makes no state findable that others hold.
        targets, ticket.targets = ticket.targets, []
        self._device.release(targets[::-1])
        try:
            computed = self._commit(ticket.handle, tickets)
        except BaseException:
            ticket.result = None
            raise
        self._close(ticket)
        books = self._tiers[ticket.source]
        books.stats.loaded += arrived
        if refused and n < len(ticket):
            books.stats.refused += 1
            books.forget(ticket.sources[n])
        elif n < len(ticket):
            books.stats.failed += 1
        if all(each.result is not None for each in tickets):
            self.waiting.pop(ticket.handle, None)
        return computed

    def _commit(self, handle: int, tickets: Sequence[Ticket]) -> int:
        """Commits in the order of blocks, up to the first one that has not arrived."""
        if not tickets:
            return 0
        stop = int(tickets[0].pieces.units[0]) * self._size
        for each in tickets:
            if each.result is not None and each.result < len(each) and self._layout.is_grouped:
                BlockManager.preempt(self._device, handle)
                return 0
            stop += each.num_tokens(each.result or 0)
            if each.result != len(each):
                break
        computed = self._device.sequence(handle).num_computed_tokens
        if stop > computed:
            BlockManager.commit(self._device, handle, stop)
            computed = stop
        return computed
