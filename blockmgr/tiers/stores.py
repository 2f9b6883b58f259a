"""Plans what is copied to tiers: idle blocks, the coldest first, ahead of their eviction.

Which blocks are proposed to a tier says one class for each way to write. The walk of ``Stores``
asks it for blocks, plans stores of their prefixes, and says of which nothing is left to do. A
proposal counts as dealt with once the whole plan is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blockmgr.manager import BlockManager
from blockmgr.pool import BlockPool
from blockmgr.tiers.layout import Pieces
from blockmgr.tiers.paths import Origin, Path, part_of
from blockmgr.tiers.plans import DEVICE, Ticket, Tickets, num_unchanged

if TYPE_CHECKING:
    import numpy.typing as npt

    from blockmgr.common_calls import CommonCalls
    from blockmgr.tiers.layout import Layout
    from blockmgr.tiers.tier import TierBooks, TierConfig

__all__ = ["Proposals", "Stores", "proposals_for"]

PART_AHEAD = 16  # of the blocks above, one in so many is stored ahead of its eviction


class Proposals:
    """Idle blocks, the coldest first.

    Args:
        holder: The manager, or the pool of the tier above.
        ahead: Idle blocks to look at.
    """

    def __init__(self, holder: CommonCalls, ahead: int) -> None:
        self._holder = holder
        self._ahead = ahead
        self._front: dict[int, int] = {}  # content by block
        self._done: set[int] = set()  # contents of which nothing is left to do
        self._settled: list[int] = []
        self._calm: npt.NDArray[np.int64] | None = None  # a front that is done

    def blocks(self) -> list[int]:
        """The ends of the prefixes to store."""
        self._settled = []
        front = self._holder.idle_front(self._ahead)
        if self._calm is not None and np.array_equal(front.contents, self._calm):
            return []
        contents = front.contents.tolist()
        self._calm = None
        self._done &= set(contents)
        self._front = dict(zip(front.block_ids.tolist(), contents, strict=True))
        return [block for block, content in self._front.items() if content not in self._done]

    def part(self, origin: Origin) -> int:
        """Leading blocks of a proposed prefix to store."""
        return len(origin.path)

    def settle(self, block: int, origin: Origin | None) -> None:
        """Nothing is left to do for the prefix that ends with this block; None: nor can be."""
        self._settled.append(block)

    def finish(self) -> None:
        """The plan is made, so what was settled is not proposed again."""
        self._done.update(self._front[block] for block in self._settled if block in self._front)
        if self._calm is None and len(self._done) == len(self._front):
            self._calm = np.array([*self._front.values()], np.int64)

    def found(self, path: Path) -> None:
        """A request has found this prefix."""


class _FoundAgain(Proposals):
    """Of idle blocks, those that a request has found, or whose content was computed twice.

    Args:
        holder: As in ``Proposals``.
        ahead: As in ``Proposals``.
        seen: A new pool, for prefixes that were proposed or found: its blocks have no bytes.
    """

    def __init__(self, holder: CommonCalls, ahead: int, seen: BlockPool) -> None:
        super().__init__(holder, ahead)
        self._seen = seen
        # By block of that pool, the content with which it was proposed first; -1: it was used again
        self._first = np.zeros(seen.num_blocks, np.int64)
        self._proposed: list[Origin] = []

    def blocks(self) -> list[int]:
        self._proposed = []
        return super().blocks()

    def part(self, origin: Origin) -> int:
        known = origin.path.find_in(self._seen)
        is_again = self._first[known] != origin.contents[: len(known)]
        return len(known) if is_again.all() else int(is_again.argmin())

    def settle(self, block: int, origin: Origin | None) -> None:
        super().settle(block, origin)
        self._proposed += () if origin is None else (origin,)

    def finish(self) -> None:
        super().finish()
        for origin in self._proposed:
            self._note(origin.path, origin.contents)
        self._proposed = []

    def found(self, path: Path) -> None:
        self._note(path, np.full(len(path), -1, np.int64))

    def _note(self, path: Path, contents: npt.NDArray[np.int64]) -> None:
        path = path.whole()  # an end that is found is none any more
        pool, known = self._seen, path.find_in(self._seen).tolist()
        was = self._first[known]
        self._first[known] = np.where(was == contents[: len(known)], was, -1)
        pool.acquire(known, found=False)
        fresh = pool.take(min(len(path) - len(known), pool.num_available)).tolist()
        self._first[fresh] = contents[len(known) : len(known) + len(fresh)]
        path.promote_in(pool, known, fresh)
        pool.release([*known, *fresh][::-1])


class _Computed(Proposals):
    """What is computed of running sequences, then idle blocks."""

    def __init__(self, manager: BlockManager) -> None:
        super().__init__(manager, manager.config.num_blocks)
        self._manager = manager
        self._ends: dict[int, tuple[int, int]] = {}  # by block: handle, whole computed blocks
        self._stored: dict[int, int] = {}  # by handle: such blocks of which nothing is left to do

    def blocks(self) -> list[int]:
        manager, self._ends = self._manager, {}
        views = [manager.sequence(handle) for handle in manager.handles()]
        counts = {
            view.handle: view.num_computed_tokens // manager.config.block_size
            for view in views
            if not view.is_preempted
        }
        self._stored = {h: n for h, n in self._stored.items() if h in counts}
        for handle, count in counts.items():
            if count and self._stored.get(handle) != count:
                block = manager.block_ids(handle)[count - 1]
                if manager.is_cached(block):  # not the twin of a cached one
                    self._ends[block] = handle, count
        return [*self._ends, *super().blocks()]

    def finish(self) -> None:
        super().finish()
        self._stored.update(self._ends[block] for block in self._settled if block in self._ends)


def proposals_for(
    config: TierConfig, holder: CommonCalls, blocks_above: int, block_size: int
) -> Proposals:
    """The proposals to a tier.

    Args:
        config: Of the tier.
        holder: The manager, or the pool of the tier above.
        blocks_above: Its blocks.
        block_size: Tokens per block.
    """
    if config.store == "commit" and isinstance(holder, BlockManager):
        return _Computed(holder)
    if config.store in {"commit", "release"}:  # in a tier, what is there is computed
        return Proposals(holder, blocks_above)
    ahead = min(blocks_above, config.ahead or max(1, blocks_above // PART_AHEAD))
    if config.store == "second_touch":
        return _FoundAgain(holder, ahead, BlockPool(config.size, block_size))
    return Proposals(holder, ahead)


MOST_WANTED = 1024  # prompts that wait for a copy to the fastest tier; later ones are left out


class Stores:
    """Decides which paths are stored, and makes them findable when their bytes have arrived.

    Args:
        device: The manager.
        layout: Its groups of layers.
        num_blocks: Its blocks.
        tiers: The tiers, the fastest first.
        tickets: The open tickets.
        max_storing: Most blocks that are written at a time.
    """

    def __init__(
        self,
        device: CommonCalls,
        layout: Layout,
        num_blocks: int,
        tiers: tuple[TierBooks, ...],
        tickets: Tickets,
        *,
        max_storing: int,
    ) -> None:
        self._device = device
        self._layout = layout
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
        reaches = [books.reach(path) for books in self._tiers]
        best = max(range(len(reaches)), key=lambda i: (reaches[i].num_tokens, -i))
        if best == 0:
            return 0, True
        stop, blocks = reaches[best]
        origin = self._origin(best, int(blocks[-1, 0]))
        assert origin is not None
        used = Pieces(self._layout.needed(stop))
        self._tiers[best].pool.touch(origin.blocks[used.units, used.parts][::-1])
        return self._store(origin, 0, left, planned)

    def _walk(self, target: int, left: int, planned: list[Ticket]) -> int:
        """Plans stores of what is proposed to a tier; the number of their blocks."""
        source, proposals = target - 1, self._proposals[target]
        keeps_ends = self._tiers[target].keeps_ends
        count = 0
        for block in proposals.blocks():
            if count >= left:
                break
            origin = self._origin(source, block)
            if origin is None:
                if source != DEVICE:  # what mends it in a tier is another end
                    proposals.settle(block, None)
                continue
            most = len(origin.path) if keeps_ends else origin.path.num_whole
            part = self._head(origin, min(most, proposals.part(origin)))
            stored, is_done = self._store(part, target, left - count, planned)
            count += stored
            if is_done:
                proposals.settle(block, origin)
        return count

    def _head(self, origin: Origin, n: int) -> Origin:
        """Its first ``n`` blocks, or none, if no prompt can continue there now."""
        if n == len(origin.path):
            return origin
        if n and self._layout.is_grouped:  # which needs other parts than those of its end
            own = self._origin(origin.source, int(origin.blocks[n - 1, 0]))
            return origin.head(0) if own is None else own
        return origin.head(n)

    def _origin(self, source: int, block: int) -> Origin | None:
        """What ends with an idle block; None if no prompt can continue there now."""
        prefix, size = self._holder(source).prefix_of(block), self._layout.block_size
        if source == DEVICE:
            blocks = self._layout.blocks_of(prefix)
            path = Path.of_device(prefix, size)
            is_whole = len(blocks) > 0 and prefix.is_whole
            return Origin(source, path, blocks, prefix) if is_whole else None
        path, nodes = Path.of_tier(prefix, size), prefix.block_ids
        if part_of(prefix.extras.get(len(nodes) - 1, b"")):
            books = self._tiers[source]
            path = path.first(len(path.tokens) - len(books.pool.tokens(int(nodes[-1]))))
            nodes = nodes[:-1]
        blocks = self._tiers[source].with_parts(nodes)
        is_whole = self._layout.serves(blocks, len(path.tokens))
        return Origin(source, path, blocks, prefix) if is_whole else None

    def _store(
        self, origin: Origin, target: int, left: int, planned: list[Ticket]
    ) -> tuple[int, bool]:
        """Plans a store of what a tier lacks of a path.

        Returns:
            The number of its blocks, and whether nothing of the path is left to do.
        """
        books, path = self._tiers[target], origin.path
        have, kept, units, missing = books.state_of(path)
        books.retain(kept.tolist(), *origin.retention(units))
        if not len(missing):
            books.pool.touch(kept[::-1])
            return 0, True
        if not books.storing.isdisjoint(books.names_of(path, have, missing)):
            return 0, False  # by another store, which may fail
        books.pool.acquire(kept, found=False)
        try:
            wanted = min(len(missing), left)
            count = min(wanted, books.room(path.namespace))
            books.stats.dropped += wanted - count
            if count:
                planned.append(self._begin(origin, target, have, kept, missing.first(count)))
        finally:
            if not planned or planned[-1].kept is not kept:
                books.pool.release(kept[::-1])
        # What finds no room is dropped: trying again would only evict what was stored just now.
        return count, count == len(missing) or 0 < count < wanted

    def _begin(
        self,
        origin: Origin,
        target: int,
        have: list[int],
        kept: npt.NDArray[np.int32],
        pieces: Pieces,
    ) -> Ticket:
        """Opens the ticket of a store of blocks that continue ``have``, and keeps ``kept``."""
        books, path, count = self._tiers[target], origin.path, len(pieces)
        serial = books.take_serials(count)
        serials = serial + np.arange(count, dtype=np.uint64)
        sources: list[int] = origin.blocks[pieces.units, pieces.parts].tolist()
        proofs = None
        if origin.source != DEVICE:
            above = self._tiers[origin.source]
            before = origin.blocks[: len(have), 0].tolist()
            proofs = above.proofs(path, pieces, before, above.serials[sources])
        levels, until = origin.retention(pieces.units)
        ticket = Ticket(
            number=self._tickets.next_number(),
            source=origin.source,
            target=target,
            path=path,
            pieces=pieces,
            groups=self._layout.groups_of(pieces),
            sources=sources,
            targets=[],
            proofs=(proofs, books.proofs(path, pieces, have, serials)),
            have=have,
            kept=kept,
            names=books.names_of(path, have, pieces),
            levels=levels,
            until=until,
            contents=self._holder(origin.source).contents_of(sources),
            serial=serial,
            is_taken=True,
        )
        # In the order of the file, so that neighbours are written, and later read, at once.
        ticket.targets = sorted(books.pool.take(count, namespace=path.namespace).tolist())
        books.storing |= ticket.names
        books.writing.update(zip(ticket.targets, serials.tolist(), strict=True))
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
        written = ticket.targets[:kept]
        count = books.promote(ticket.path, have, ticket.pieces, written, ticket.serial)
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
        books = self._tiers[ticket.target]
        books.storing -= ticket.names
        for block in ticket.targets:
            books.writing.pop(block, None)
        books.pool.release(ticket.targets[::-1])
        assert ticket.kept is not None
        books.pool.release(ticket.kept[::-1])
        del self._tickets.open[ticket.number]

    def _holder(self, source: int) -> CommonCalls:
        return self._device if source == DEVICE else self._tiers[source].pool
