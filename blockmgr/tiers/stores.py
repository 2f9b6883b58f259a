"""Plans what is copied to tiers: idle blocks, the coldest first, ahead of their eviction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.tiers.paths import Origin, Path
from blockmgr.tiers.plans import DEVICE
from blockmgr.tiers.proposals import proposals_for
from blockmgr.tiers.tickets import Ticket, Tickets, num_unchanged

if TYPE_CHECKING:
    from blockmgr.idle_calls import IdleCalls
    from blockmgr.tiers.tier import TierBooks

__all__ = ["Stores"]

MOST_WANTED = 1024  # prompts that wait for a copy to the fastest tier; later ones are left out


class Stores:
    """Decides which paths are stored, and makes them findable when their bytes have arrived.

    Args:
        device: The manager.
        num_blocks: Its blocks.
        tiers: The tiers, the fastest first.
        tickets: The open tickets.
        max_storing: Most blocks that are written at a time.
    """

    def __init__(
        self,
        device: IdleCalls,
        num_blocks: int,
        tiers: tuple[TierBooks, ...],
        tickets: Tickets,
        *,
        max_storing: int,
    ) -> None:
        self._device = device
        self._tiers = tiers
        self._tickets = tickets
        above = (num_blocks, *(books.pool.num_blocks for books in tiers))
        self._proposals = [
            proposals_for(
                books.config, self._holder(target - 1), above[target], books.pool.block_size
            )
            for target, books in enumerate(tiers)
        ]
        self.counts_finds = any(books.config.store == "second_touch" for books in tiers)
        self._max_storing = max_storing
        self._wanted: list[Path] = []

    def found(self, path: Path) -> None:
        """Notes that a request has found this prefix, on the device or in a tier."""
        for each in self._proposals:
            each.found(path)

    def prefetch(self, path: Path) -> None:
        """Copies a path from slower tiers to the fastest one with the next plans."""
        if len(self._wanted) < MOST_WANTED:
            self._wanted.append(path)

    def take(self, most_blocks: int) -> list[Ticket]:
        """Plans stores of at most so many blocks, which are under way from here on."""
        left = min(most_blocks, self._max_storing - self._tickets.num_blocks(is_load=False))
        planned: list[Ticket] = []
        wanted: list[Path] = []  # as before, if a part has to wait for room
        try:
            for path in self._wanted:
                count, is_done = self._fetch(path, left, planned)
                left -= count
                wanted += () if is_done else (path,)
            for target in range(len(self._tiers)):
                left -= self._walk(target, left, planned)
        except BaseException:
            for ticket in planned:  # which no mover gets
                self._close(ticket)
            raise
        self._wanted = wanted
        for each in self._proposals:
            each.finish()
        return planned

    def _fetch(self, path: Path, left: int, planned: list[Ticket]) -> tuple[int, bool]:
        """``_store`` to the fastest tier, from the slower one that has most of a path."""
        found = [books.find(path) for books in self._tiers]
        best = max(range(len(found)), key=lambda i: (len(found[i]), -i))
        if best == 0:
            return 0, True
        pool = self._tiers[best].pool
        prefix = pool.prefix_of(found[best][-1])
        pool.touch(found[best][-1:])
        origin = Origin(best, Path.of_tier(prefix, path.block_size), prefix)
        return self._store(origin, 0, left, planned)

    def _walk(self, target: int, left: int, planned: list[Ticket]) -> int:
        """Plans stores of what is proposed to a tier; the number of their blocks."""
        source = target - 1
        holder, proposals = self._holder(source), self._proposals[target]
        count = 0
        for block in proposals.blocks():
            if count >= left:
                break
            prefix = holder.prefix_of(block)
            make = Path.of_device if source == DEVICE else Path.of_tier
            path = make(prefix, self._tiers[target].pool.block_size)
            origin = Origin(source, path, prefix)
            part = origin.head(proposals.part(origin))
            stored, is_done = self._store(part, target, left - count, planned)
            count += stored
            if is_done:
                proposals.settle(block, origin)
        return count

    def _store(
        self, origin: Origin, target: int, left: int, planned: list[Ticket]
    ) -> tuple[int, bool]:
        """Plans a store of what a tier lacks of a path.

        Returns:
            The number of its blocks, and whether nothing of the path is left to do.
        """
        books, path = self._tiers[target], origin.path
        have = books.find(path)
        books.retain(have, origin.levels, origin.until)
        missing = len(path) - len(have)
        if missing <= 0:
            books.pool.touch(have[::-1])
            return 0, True
        before = have[-1] if have else -1
        if books.name_of(path, len(have), before) in books.storing:
            return 0, False  # by another store, which may fail
        books.pool.acquire(have, found=False)
        try:
            count = min(missing, left, books.room(path.namespace))
            books.stats.dropped += min(missing, left) - count
            if count:
                planned.append(self._begin(origin, target, have, count))
        finally:
            if not planned or planned[-1].have is not have:
                books.pool.release(have[::-1])
        # What finds no room is dropped: trying again would only evict what was stored just now.
        return count, count == missing or 0 < count < min(missing, left)

    def _begin(self, origin: Origin, target: int, have: list[int], count: int) -> Ticket:
        """Opens the ticket of a store of ``count`` blocks after ``have``, which it keeps."""
        books, path, first = self._tiers[target], origin.path, len(have)
        before = have[-1] if have else -1
        serial = books.take_serials(count)
        serials = list(range(serial, serial + count))
        proofs = None
        if origin.source != DEVICE:
            above = self._tiers[origin.source]
            kept = [int(s) for s in above.serials[origin.blocks[first : first + count]]]
            parent = origin.blocks[first - 1] if first else -1
            proofs = above.proofs(path, first, parent, kept)
        ticket = Ticket(
            number=self._tickets.next_number(),
            source=origin.source,
            target=target,
            path=path,
            first=first,
            sources=origin.blocks[first : first + count],
            targets=[],
            proofs=(proofs, books.proofs(path, first, before, serials)),
            have=have,
            levels=origin.levels[first : first + count],
            until=origin.until[first : first + count],
            contents=origin.contents[first : first + count],
            serial=serial,
            is_taken=True,
        )
        ticket.targets = books.pool.take(count, namespace=path.namespace).tolist()
        books.storing.add(books.name_of(path, first, before))
        self._tickets.add(ticket)
        return ticket

    def read(self, ticket: Ticket, n: int) -> int:
        """Notes that the leading ``n`` blocks were read, and returns how many of them count."""
        ticket.num_read = min(n, num_unchanged(self._holder(ticket.source), ticket))
        return ticket.num_read

    def done(self, ticket: Ticket, n: int, *, refused: bool) -> int:
        """Makes the leading ``n`` blocks of a store findable, and returns how many are.

        A block that was refused, because its bytes were not those of its proof, is forgotten in the
        tier that it was read from.
        """
        books, have = self._tiers[ticket.target], ticket.have
        unchanged = num_unchanged(self._holder(ticket.source), ticket)
        read = unchanged if ticket.num_read is None else ticket.num_read
        kept = 0 if ticket.is_void else min(n, read)
        # Bytes that were read too late have good checksums, which the next process would trust.
        is_late = ticket.source == DEVICE and (
            n > read or (ticket.num_read is None and read < len(ticket))
        )
        if (ticket.is_void or is_late) and books.take_back(ticket):  # first, because it can fail
            kept = 0
        count = books.promote(ticket.path, have, ticket.targets[:kept], ticket.serial)
        books.retain(ticket.targets[:count], ticket.levels, ticket.until)
        self._close(ticket)
        books.stats.stored += count
        books.stats.failed += len(ticket) - count
        if ticket.source != DEVICE:
            above = self._tiers[ticket.source]
            above.stats.promoted += count if ticket.target < ticket.source else 0
            if refused and n < unchanged:
                above.stats.refused += 1
                above.forget(ticket.sources[n])
        return count

    def _close(self, ticket: Ticket) -> None:
        """Drops what a ticket holds."""
        books, have = self._tiers[ticket.target], ticket.have
        before = have[-1] if have else -1
        books.storing.discard(books.name_of(ticket.path, ticket.first, before))
        books.pool.release(ticket.targets[::-1])
        books.pool.release(have[::-1])
        del self._tickets.open[ticket.number]

    def _holder(self, source: int) -> IdleCalls:
        return self._device if source == DEVICE else self._tiers[source].pool
