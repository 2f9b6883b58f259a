"""Groups with block sizes of their own, whose tables never change: what the manager will be.

``ModelLayouts`` takes any layout of ``layers.py``, and answers as ``boundaries.py`` does but for
what is here. The block size of the manager is the *node*: prompts are told apart there.

- *What a block has* is one prefix: all tokens of the block that are in it. It serves every prompt
  that begins with them, at any boundary inside it, in any number of nodes, or in a part of one.
  So no places are kept: the place of a node is any block that has its tokens.
- *A block has one writer*: the sequence that took it, as long as it is in its table. Another
  sequence that continues inside the block becomes its writer if there is none and nobody needs what
  is behind; the block then has less. Else it continues in a copy.
- *Of several blocks with the same tokens* a boundary needs one: one in use, else the one that other
  boundaries need anyway, else the oldest. The others are free with their last table.
- *What is kept of a state* is a copy; the sequence keeps its slot.
- *Before a hit* a forward computes groups that are not cached again, and writes no other group.

Nothing merges, and no call changes an entry of a table but ``truncate`` and ``reparent``.

``parts.py`` says what blocks have, ``entries.py`` what a prompt finds and how tables grow; here
follow states, ends, forks, and going back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blockmgr.errors import StepError
from tests.specification.blocks import Block, Seq
from tests.specification.entries import ModelEntries
from tests.specification.layers import Attention, RecurrentState, Ring
from tests.specification.parts import LayoutSeq

__all__ = ["LayoutSeq", "ModelLayouts"]


class ModelLayouts(ModelEntries):
    """A manager for any layout, append-only."""

    # ---- states, and ends -----------------------------------------------------------------

    def keep_state(self, seq: Seq) -> None:
        """At a stop, a copy of the state is kept (G8), also of a place inside the step (G13)."""
        assert isinstance(seq, LayoutSeq)
        if not seq.stands:
            return
        for stop in sorted(stop for stop in seq.stops if stop <= seq.computed):
            seq.stops.discard(stop)
            inside = seq.begin < stop and self.leaves_each(seq)
            room = self.available(self.share(seq.namespace))
            is_kept = (stop == seq.computed or inside) and self.keep_at(seq, stop, room)
            if is_kept and stop in {seq.diverges, seq.retained_end}:
                self.keep_as_shared(seq.prefix(stop))

    def keep_whole(self, seq: Seq, room: int) -> bool:
        assert isinstance(seq, LayoutSeq)
        return self.keep_at(seq, seq.computed, room)

    def keep_at(self, seq: LayoutSeq, stop: int, room: int) -> bool:
        prefix = seq.prefix(stop)
        missing = [g for g in self.recurrent() if self.find((g, prefix)) is None]
        # The slot that a state leaves for its next column is the kept one.
        left = [g for g in missing if self.kinds[g].moves and stop % self.tokens_of(g) == 0]
        copied = [group for group in missing if group not in left]
        if len(copied) > room or seq.promoted * self.size < stop:
            return False
        for group, kept in zip(
            copied, self.take(len(copied), self.share(seq.namespace)), strict=True
        ):
            entry = self.goes_on(group, stop)
            own = seq.tables[group][
                entry if self.kinds[group].moves else self.slot_of_stop(seq, group, stop)
            ]
            assert own is not None
            self.publish(kept, (group, prefix))
            self.record(group, own, kept, self.size, keeps=True)
        for group in left:
            own = seq.tables[group][self.goes_on(group, stop)]
            if own is None or self.is_destination(own):
                return False
            self.publish(own, (group, prefix))
        return self.is_boundary_now(prefix)

    def slot_of_stop(self, seq: LayoutSeq, group: int, stop: int) -> int:
        return seq.live[group] if stop == seq.computed else self.slot_of(seq, group, stop)

    def keep_end(self, seq: Seq) -> bool:
        """The end of a sequence can be found at any token; its own state is the kept one."""
        assert isinstance(seq, LayoutSeq)
        end, states = seq.computed - self.look_ahead, self.recurrent()
        prefix = seq.prefix(max(0, end))
        if not self.may_keep_end(seq, end):
            return False
        if self.found_at(prefix, promised=True) is not None and self.serves(prefix):
            return end % self.size == 0
        own = {g: self.block_at(seq, g, end) for g in states if self.find((g, prefix)) is None}
        if not all(self.may_be_given(block) for block in own.values()):
            return False
        for group, _ in self.cached():
            self.show(seq, group, end)
        for group, block in own.items():
            self.publish(block, (group, prefix))
        self.count["cached_tails"] += end % self.size > 0
        return True

    def may_keep_end(self, seq: LayoutSeq, end: int) -> bool:
        stands = not self.recurrent() or (seq.stands and end == seq.computed)
        cached = (b for group, _ in self.cached() for b in seq.tables[group] if b)
        arrived = not any(self.is_destination(b) for b in cached if self.writer(b) is seq)
        whole = seq.promoted * self.size >= seq.computed // self.size * self.size
        caches = self.config.prefix_caching and not seq.outdated
        return (
            caches and stands and arrived and whole and end >= max(1, seq.hit) and self.may_hit(end)
        )

    def withdraw(self, seq: Seq) -> None:
        """Its blocks have no more than what is written; nobody may share the rest."""
        if not self.promises(seq):
            return
        self.check_no_open_ticket()
        own = [b for t in seq.tables for b in t if b and self.writer(b) is seq and b.unwritten]
        if any(self.references(block) > 1 for block in own):
            raise StepError(f"others share what sequence {seq.handle} committed")
        for block in own:
            assert block.content is not None
            self.shorten_content(block, self.reaches(block) - block.unwritten)
            block.unwritten = 0
        seq.promoted = min(seq.promoted, seq.settled // self.size)
        self.limit_computed(seq, seq.settled)
        self.settle()

    def may_be_given(self, block: Block | None) -> bool:
        return super().may_be_given(block) and not self.is_kept(block)  # type: ignore[arg-type]

    # ---- forks ----------------------------------------------------------------------------

    def entries_of_fork(self, parent: LayoutSeq, group: int) -> list[Any]:
        """What it shares, and ``Block`` where it goes on: there it has its own (G10)."""
        table = parent.tables[group]
        if group not in self.growing():
            return [Block for _ in table]
        kind = self.kinds[group]
        first = self.position(parent, group) // self.tokens_of(group)
        if isinstance(kind, RecurrentState):
            first = self.goes_on(group, parent.computed)
            return [None] * first + [Block] * len(table[first:])
        end = max(first, self.num_entries(group, len(parent.tokens)))
        return table[:first] + [Block for _ in table[first:end]]

    def num_forked(self, parent: Seq) -> int:
        assert isinstance(parent, LayoutSeq)
        tables = [self.entries_of_fork(parent, group) for group in range(len(self.kinds))]
        return sum(table.count(Block) for table in tables)

    def become_fork(self, child: Seq, parent: Seq, fresh: Iterator[Block] | None = None) -> None:
        assert isinstance(child, LayoutSeq)
        assert isinstance(parent, LayoutSeq)
        super().become_fork(child, parent)
        child.tables = [list(table) for table in parent.tables]
        child.hit, child.proved, child.since = parent.hit, parent.proved, parent.since
        child.live = dict(parent.live)
        child.begin, child.reached = parent.begin, parent.reached
        if fresh is None:
            return
        for group in range(len(self.kinds)):
            entries = self.entries_of_fork(parent, group)
            child.tables[group] = [next(fresh) if b is Block else b for b in entries]
            self.fork_group(child, parent, group)
        child.live = dict.fromkeys(self.recurrent(), 0)
        child.begin = child.reached  # of the slots for drafts, only the live one is copied
        self.adopt(child)

    def fork_group(self, child: LayoutSeq, parent: LayoutSeq, group: int) -> None:
        kind, position = self.kinds[group], self.position(parent, group)
        if isinstance(kind, Attention):
            if position % self.tokens_of(group) and position // self.tokens_of(group) < len(
                child.tables[group]
            ):
                source = self.block_at(parent, group, position)
                self.copy_beginning(group, source, self.block_at(child, group, position), position)
            return
        if not parent.computed:
            self.to_zero += child.tables[group] if isinstance(kind, Ring) else []
            return
        entry = self.goes_on(group, parent.computed) if kind.moves else 0
        source, own = self.block_at(parent, group, parent.computed), child.tables[group][entry]
        assert own is not None
        if source in self.to_zero:
            self.to_zero.append(own)
        else:
            self.copy_beginning(group, source, own, parent.computed)

    # ---- going back -----------------------------------------------------------------------

    def check_parent(self, parent: Seq) -> None:
        super().check_parent(parent)
        if self.rings() and not parent.stands:
            raise StepError(f"sequence {parent.handle} has a ring at an unknown position")

    def truncate(self, handle: int, num_tokens: int) -> int:
        seq = self.running(handle)
        assert isinstance(seq, LayoutSeq)
        launched = 0 if seq.stands else min(len(seq.tokens), seq.num_slots)
        seq.farthest = max(seq.computed, launched)
        return super().truncate(handle, num_tokens)

    def reach(self, seq: Seq) -> int:
        assert isinstance(seq, LayoutSeq)
        return max(seq.hit, seq.computed)

    def kept_position(self, seq: LayoutSeq, group: int, length: int, before: int) -> int:
        """Where a group goes on if the sequence falls to a length."""
        ahead = self.kinds[group].look_ahead
        if not ahead:
            return length
        end = min(length, len(seq.tokens))
        whole = end >= seq.proved + ahead and length == before
        return (
            max(seq.proved, length - ahead)
            if whole
            else max(0, min(length, max(seq.proved, length)) - ahead)
        )

    def can_fall_to(self, seq: Seq, length: int, before: int) -> bool:
        assert isinstance(seq, LayoutSeq)
        places = self.places_after(seq, length, before)
        moved = [self.moves_at(seq, group, place) for group, place in places.items()]
        return (
            (self.replay > 0 or not self.replays(seq, length))
            and self.rings_can_fall_to(seq, length)
            and all(self.attention_can_fall_to(seq, group, p) for group, p in places.items())
            and self.states_can_fall_to(seq, length, before)
            and len(moved) - moved.count(None) <= self.available(self.share(seq.namespace))
        )

    def places_after(self, seq: LayoutSeq, length: int, before: int) -> dict[int, int]:
        """By group of attention that is not computed again, where it goes on."""
        replays = self.replays(seq, length)
        kept = (group for group, kind in self.attention() if kind.cached or not replays)
        return {group: self.kept_position(seq, group, length, before) for group in kept}

    def attention_can_fall_to(self, seq: LayoutSeq, group: int, position: int) -> bool:
        size = self.tokens_of(group)
        for entry in range(self.goes_on(group, position), self.num_entries(group, position)):
            end = min((entry + 1) * size, position)
            if seq.own(group, entry) is None and (end % size or not self.again(seq, group, end)):
                return False
        return True

    def again(self, seq: LayoutSeq, group: int, end: int) -> Block | None:
        """A cached block that has what it has released."""
        if not self.kinds[group].cached or end + self.kinds[group].look_ahead > len(seq.tokens):
            return None
        found = self.holding((group, seq.prefix(end)), seq.prefix(len(seq.tokens)))
        return next(iter(found), None)

    def moves_at(self, seq: LayoutSeq, group: int, position: int) -> Block | None:
        """The block in which it would go on, if it may not write there."""
        block = seq.own(group, position // self.tokens_of(group))
        if block is None or not position % self.tokens_of(group):
            return None
        may = self.writer(block) is seq and not self.is_needed_behind(block, position, seq)
        return None if may else block

    def rings_can_fall_to(self, seq: LayoutSeq, length: int) -> bool:
        rings = [kind for kind in self.kinds if isinstance(kind, Ring)]
        return all(
            length % ring.restart == 0
            or self.is_still_in(seq, ring, length)
            or (self.is_replayed(ring) and length > self.replay)
            for ring in rings
        )

    def is_still_in(self, seq: LayoutSeq, ring: Ring, length: int) -> bool:
        """Whether the ring has what the query there reads."""
        first = max(seq.since, ring.first_read(length))
        return seq.computed >= length > seq.since and first >= seq.farthest - ring.width

    def states_can_fall_to(self, seq: LayoutSeq, length: int, before: int) -> bool:
        if not length or not self.recurrent() or (length == before and seq.stands):
            return True
        if seq.stands and seq.begin < length <= seq.reached and self.leaves_each(seq):
            return not any(self.kinds[group].moves for group in self.recurrent())
        return all(self.state_again(seq, group, length) for group in self.recurrent())

    def state_again(self, seq: LayoutSeq, group: int, length: int) -> Block | None:
        """A kept state; none if its own slot is the source of a copy, or one writes it now."""
        table = seq.tables[group]
        own = (
            table[self.goes_on(group, length)] if self.goes_on(group, length) < len(table) else None
        )
        source = self.find((group, seq.prefix(length)))
        if own is None or self.is_kept(own) or own.content or source is None:
            return None
        is_written = any(own is copy.destination for copy in self.taken or ())
        return None if is_written or self.is_being_kept(source) else source

    def fall_to(self, seq: Seq, length: int, before: int) -> None:
        assert isinstance(seq, LayoutSeq)
        places = self.places_after(seq, length, before)
        back = length < before or not seq.stands
        within = seq.stands and seq.begin < length <= seq.reached and self.leaves_each(seq)
        for group, position in places.items():
            self.fall_in(seq, group, position)
        for group in self.recurrent() if back and length else ():
            if within:
                seq.live[group] = self.slot_of(seq, group, length)
            else:
                source, seq.live[group] = self.state_again(seq, group, length), 0
                assert source is not None
                self.record(group, source, self.block_at(seq, group, length), self.size)
        for group in self.growing():
            first, table = self.goes_on(group, length), seq.tables[group]
            if isinstance(self.kinds[group], RecurrentState) and table[first:][:1] == [None]:
                del table[first:]  # it begins again
        if back:
            seq.stands, seq.moves = True, 0
            if not within or not length:
                seq.live = dict.fromkeys(self.recurrent(), 0)
        start = self.start_again(seq, length, replays=self.replays(seq, length))
        for group, position in places.items():
            if self.kinds[group].look_ahead and position < seq.proved:
                seq.proved = position
        seq.hit = min(seq.hit, length) if start == length else length
        seq.computed = start
        if back:
            seq.begin, seq.reached = (seq.begin, length) if within else (start, start)
        self.settle_at(seq, seq.hit if start < length else length)
        seq.settled = start
        seq.written = min(seq.written, max(start, seq.hit))

    def fall_in(self, seq: LayoutSeq, group: int, position: int) -> None:
        """Finds again what a window has released, and moves where it may not write."""
        table, size = seq.tables[group], self.tokens_of(group)
        for entry in range(self.goes_on(group, position), position // size):
            if table[entry] is None:
                table[entry] = self.again(seq, group, (entry + 1) * size)
        entry = position // size
        if position % size == 0:
            kept = entry
        elif source := self.moves_at(seq, group, position):
            self.held.append(source)
            [own] = self.take(1, self.share(seq.namespace))
            table[entry], own.writer, kept = own, seq, entry + 1
            self.copy_beginning(group, source, own, position)
        else:
            self.shorten_content(table[entry], position)  # type: ignore[arg-type]
            kept = entry + 1
        for later in range(kept, len(table)):
            block = table[later]
            own = block and self.writer(block) is seq and self.references(block) == 1
            if not own or block.content:
                del table[later:]
                break

    def replays(self, seq: LayoutSeq, length: int) -> bool:
        """Whether groups that are not cached are computed again before this place (G15)."""
        for group, kind in self.attention():
            entries = range(self.goes_on(group, length), self.num_entries(group, length))
            held = seq.computed >= length and kind.first_read(length) >= min(seq.since, length)
            if not kind.cached and not (held and all(seq.own(group, entry) for entry in entries)):
                return True
        rings = [kind for kind in self.kinds if isinstance(kind, Ring)]
        return any(length % r.restart and not self.is_still_in(seq, r, length) for r in rings)

    def start_again(self, seq: LayoutSeq, length: int, *, replays: bool) -> int:
        """Where its forward begins; a ring that it does not continue begins empty."""
        start = length - min(self.replay, length) if replays else length
        for ring in self.rings():
            kind, [own] = self.kinds[ring], seq.tables[ring]
            assert isinstance(kind, Ring)
            if replays or not self.is_still_in(seq, kind, length):
                assert own is not None
                self.to_zero.append(own)
                seq.since = start
        if replays:
            seq.since = start
            for group, kind in self.attention():
                if not kind.cached:
                    seq.tables[group][:] = [None] * self.goes_on(group, start)
        return start

    # ---- steps ----------------------------------------------------------------------------

    def take_copies(self) -> Any:
        """The plan lists the rings to zero, too; no copy fills one that begins empty (G16)."""
        if self.taken is None:
            self.pending = [c for c in self.pending if c.destination not in self.to_zero]
        plan = super().take_copies()
        self.zeroed = [block for block in self.to_zero if block and self.references(block)]
        self.to_zero = []
        return plan

    def copies_aborted(self, ticket: int) -> None:
        super().copies_aborted(ticket)
        self.to_zero = self.zeroed + self.to_zero

    def blocks_to_zero(self) -> list[int]:
        return [block.id for block in self.zeroed]

    # ---- looking at it --------------------------------------------------------------------

    def slot(self, seq: Seq, position: int) -> int:
        lead = self.lead
        if lead is None:
            return 0
        block = seq.own(lead, position // self.tokens_of(lead))
        return (block.id if block else 0) * self.size + position % self.tokens_of(lead)

    def state_slot(self, handle: int, group: int) -> int:
        """The entry of a group's table in which the state of a sequence is."""
        seq = self.running(handle)
        assert isinstance(seq, LayoutSeq)
        moves = self.kinds[group].moves
        return self.goes_on(group, seq.computed) if moves else seq.live[group]

    def violations(self) -> list[str]:
        found = []
        running = [s for s in self.seqs.values() if not s.preempted]
        destinations = [copy.destination for copy in self.pending]
        if len(destinations) != len(set(destinations)):
            found.append("a copy has two sources")
        if {copy.source for copy in self.pending} & set(destinations):
            found.append("a copy reads what another one writes")
        needed = {c for prefix in self.stamps for c in self.needs(prefix)}
        found += [f"{content} is needed and gone" for content in needed if not self.find(content)]
        found += [f"{block} is of no use" for block in self.useless()]
        for seq in running:
            assert isinstance(seq, LayoutSeq)
            for group, kind in enumerate(self.kinds):
                table, position = seq.tables[group], self.position(seq, group)
                if None in table[self.goes_on(group, position) :]:
                    found.append(f"sequence {seq.handle} has a gap in group {group}")
                first = position // self.tokens_of(group) if isinstance(kind, Attention) else 0
                own = [block for block in table[first:] if block and not block.content]
                if any(self.references(block) > 1 for block in own):
                    found.append(f"a block of {seq.handle} has two writers in group {group}")
                if any(block.share != self.share(seq.namespace) for block in table if block):
                    found.append("a sequence holds a block of another share")
        return found
