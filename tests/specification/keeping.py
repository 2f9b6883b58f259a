"""What a commit makes findable, what is kept of a sequence, and where it can go back to."""

from __future__ import annotations

from blockmgr.blocks import Remap
from tests.specification.blocks import NODES, Block, Prefix, Seq
from tests.specification.forgetting import ModelForgetting
from tests.specification.layers import Ring

__all__ = ["ModelKeeping"]


class ModelKeeping(ModelForgetting):
    """Promotes blocks, keeps states and ends, and finds them again."""

    # ---- units of attention -------------------------------------------------------------

    def follow(self, seq: Seq, *, within: bool = True, advances: bool = True) -> None:
        """Caches what was computed, and releases what no later query reads.

        within: a state may be kept within a unit.
        advances: more is computed than before.
        """
        is_settled = not self.promises(seq)
        if is_settled and self.confirms(seq, advances):
            seq.stands, seq.moves = True, 0
        self.promote(seq)
        if is_settled and (within or seq.computed % self.size == 0):
            self.keep_state(seq)
        self.drop_windows(seq)

    def confirms(self, seq: Seq, advances: bool = True) -> bool:
        """Its states are where a commit says, unless that may be about an earlier step.

        A commit of no more than before may be about one that did not compute the sequence.
        """
        tells = seq.moves <= 1 and (advances or self.early)
        return seq.stands or not self.in_flight or tells

    def promote(self, seq: Seq) -> None:
        """Makes full computed units findable, group by group, and deduplicates them (rule 5)."""
        caches = self.config.prefix_caching and not seq.outdated
        while caches and seq.promoted < seq.computed // self.size:
            unit = seq.promoted
            prefix = seq.prefix((unit + 1) * self.size)
            own = {group: seq.tables[group][unit] for group, _ in self.attention()}
            if any(block and self.is_destination(block) for block in own.values()):
                return
            written = min(max(0, seq.written - unit * self.size), self.size)
            if not self.merges(seq, unit):
                own = {group: self.block_of_unit(seq, group, unit) for group in own}
            else:
                twins = {group: self.find((group, prefix)) for group in own}
                if written == self.size and any(t and t.unwritten for t in twins.values()):
                    return  # written K/V is not replaced by K/V that is yet to be written
                lacks = any(block and twins[group] is None for group, block in own.items())
                if lacks and self.shares(seq, unit):
                    return  # the others keep their blocks, and one of them would be found
            for group, block in own.items():
                if block is None:
                    continue  # all left the window before its promotion
                twin = self.find((group, prefix))
                if twin is None:
                    self.publish(block, (group, prefix))
                    block.unwritten = self.size - written
                    self.count["promoted_blocks"] += 1
                elif twin is not block:
                    self.merge(seq, group, unit, twin, self.size - written)
            seq.promoted += 1
            self.note_passing(seq, prefix)
            self.settle()

    def merges(self, seq: Seq, unit: int) -> bool:
        """Whether another block stands for its own: in full attention, or else in any group."""
        prefix = seq.prefix((unit + 1) * self.size)
        for group in self.full_attention()[:1] or [g for g, _ in self.attention()]:
            block = seq.tables[group][unit]
            if block is not None and self.find((group, prefix)) not in {None, block}:
                return True
        return False

    def merge(self, seq: Seq, group: int, unit: int, twin: Block, unwritten: int) -> None:
        """Two blocks with equal content become one.

        Only the sequence that commits moves: the slots of others stay until a call on them. If no
        table may change, its block stays private beside the other one, until that one leaves its
        last table.
        """
        block = seq.tables[group][unit]
        assert block is not None
        if self.config.dedup == "remap":
            self.inherit(block, twin)
            seq.tables[group][unit] = twin
            self.remaps.append(Remap(seq.handle, unit, block.id, twin.id))
        elif block.twin is not twin:
            self.inherit(block, twin)
            if self.references(twin):
                block.twin, block.twinned = twin, next(self.clock)
            else:
                self.move(twin, block)
            block.unwritten = unwritten
        else:
            return
        self.count["deduplicated_blocks"] += 1

    def sharers(self, seq: Seq, unit: int) -> list[Seq]:
        """The sequences that have this unit of the sequence in full attention, itself first."""
        full = self.full_attention()
        if not full:
            return [seq]
        block = seq.tables[full[0]][unit]
        others = [one for one in self.seqs.values() if one is not seq]
        return [seq, *(one for one in others if one.tables[full[0]][unit : unit + 1] == [block])]

    def shares(self, seq: Seq, unit: int) -> bool:
        return len(self.kinds) > 1 and len(self.sharers(seq, unit)) > 1

    def block_of_unit(self, seq: Seq, group: int, unit: int) -> Block | None:
        """Its own block; where it has left the window, that of one which shares the unit."""
        blocks = (one.tables[group][unit] for one in self.sharers(seq, unit))
        return next((block for block in blocks if block is not None), None)

    def drop_windows(self, seq: Seq) -> None:
        """Releases what no later query reads, even if drafts are truncated (rule 12)."""
        for group, kind in self.attention():
            first = self.first_unit(kind, max(0, seq.settled - self.lookahead))
            table = seq.tables[group]
            table[:first] = [None] * min(first, len(table))
        for group, kind in () if seq.begins < seq.again[1] else self.uncached():
            first = self.first_unit(kind, max(0, seq.settled - self.lookahead))
            table = seq.tables[group]
            table[:first] = [None] * min(first, len(table))

    # ---- states, and ends of sequences --------------------------------------------------

    def keep_state(self, seq: Seq) -> None:
        """At a stop, caches the state and continues the sequence in a copy (rule 9)."""
        if seq.computed not in seq.stops or not seq.stands:
            return
        prefix = seq.prefix(seq.computed)
        seq.stops.discard(seq.computed)
        if seq.computed == seq.prompt_end:
            self.keep_prompt_end(seq, prefix)
            return
        room = self.available(self.share(seq.namespace))
        if seq.computed % self.size:
            if self.keep_branch(seq, prefix, room):
                self.branches.add(prefix)
            return
        if self.keep_whole(seq, room) and seq.computed in {seq.diverges, seq.retained_end}:
            self.keep_as_shared(prefix)

    def keep_prompt_end(self, seq: Seq, prefix: Prefix) -> None:
        """The same where the next turn may continue: it evicts nothing, and is just passed."""
        room = len(self.free_blocks(self.share(seq.namespace)))
        if seq.computed % self.size:
            is_kept = self.keep_branch(seq, prefix, room)
        else:
            lacks = any(self.find((group, prefix)) is None for group in self.recurrent())
            is_kept = lacks and self.keep_whole(seq, room)
        if is_kept and self.serves(prefix):
            self.pass_by(prefix)

    def keep_whole(self, seq: Seq, room: int) -> bool:
        """Caches the state at the end of a unit if its copies take no more blocks than these."""
        prefix = seq.prefix(seq.computed)
        missing = [g for g in self.recurrent() if self.find((g, prefix)) is None]
        own = map(seq.state, missing)
        if any(self.is_kept(block) or self.is_destination(block) for block in own):
            return False
        if len(missing) > room or seq.promoted * self.size < seq.computed:
            return False
        fresh = self.take(len(missing), self.share(seq.namespace))
        for group, successor in zip(missing, fresh, strict=True):
            state = seq.state(group)
            self.publish(state, (group, prefix))
            seq.tables[group][seq.slot] = successor
            self.record(group, state, successor, self.size, keeps=True)
        return self.is_boundary_now(prefix)

    def keep_branch(self, seq: Seq, prefix: Prefix, room: int) -> bool:
        """Handles a stop within a unit.

        Caches the computed tokens of the unit and the state; the sequence continues in copies of
        both (rule 16), if these take no more blocks than there is room for.
        """
        unit, rest = divmod(seq.computed, self.size)
        share = self.share(seq.namespace)
        if seq.outdated or seq.promoted < unit or not rest >= self.min_partial_tokens > 0:
            return False
        if not self.has_room_to_branch(seq, room):
            return False
        if any(self.find((group, prefix)) for group in range(len(self.kinds))):
            self.pass_no_more(prefix)
            return False
        own: dict[int, Block | None] = {g: seq.state(g) for g in self.recurrent()}
        if any(block and self.is_kept(block) for block in own.values()):
            return False
        own |= {group: seq.own(group, unit) for group, _ in self.attention()}
        if not all(map(self.may_be_given, own.values())):
            return False
        taken = iter(self.take(len(own) - (self.nodes in own), share))
        for group, block in own.items():
            [fresh] = self.more(group, 1, taken)
            assert block is not None
            self.publish(block, (group, prefix))
            recurrent = group in self.recurrent()
            seq.tables[group][seq.slot if recurrent else unit] = fresh
            self.record(group, block, fresh, self.size if recurrent else rest, keeps=recurrent)
        self.is_boundary_now(prefix)
        return True

    def has_room_to_branch(self, seq: Seq, room: int) -> bool:
        """Whether there are blocks for the copies, and a node."""
        if len(self.recurrent()) + len(self.in_memory()) > room:
            return False
        if self.nodes is None:
            return True
        passed = seq.computed == seq.prompt_end  # it evicts nothing
        return (self.num_free_nodes() if passed else self.available(NODES)) > 0

    def may_be_given(self, block: Block | None) -> bool:
        """Whether only this sequence has the block, so that it can be cached."""
        return (
            block is not None
            and self.references(block) <= 1
            and block.content is None
            and not self.is_destination(block)
        )

    def last_end(self, seq: Seq) -> int:
        """The last place of what it has computed where another sequence can continue; 0: none.

        A state stands at one place only.
        """
        if self.recurrent() and not self.can_start(seq.computed):
            return 0
        end = seq.computed - seq.computed % self.restart
        return end if self.can_start(end) else 0

    def keep_end(self, seq: Seq) -> bool:
        """Caches the state and the tail at the end of a sequence.

        Returns whether both are cached now and the tail was not cached before.
        """
        end = self.last_end(seq)
        prefix = seq.prefix(end)
        unit, rest = divmod(end, self.size)
        if not end or seq.loads or (self.recurrent() and not seq.stands):
            return False
        if seq.outdated or seq.promoted < unit or not self.config.prefix_caching:
            return False
        if not self.may_continue(end):
            return False
        if self.found_at(prefix, promised=True) is not None:
            if rest:
                self.pass_no_more(prefix)  # it is an end, too
            return rest == 0
        ends: list[tuple[int, Block | None]] = [(g, seq.state(g)) for g in self.recurrent()]
        if rest:
            # Even if unread: the unit may become full.
            ends += [(group, seq.own(group, unit)) for group, _ in self.attention()]
        new = [(group, block) for group, block in ends if self.find((group, prefix)) is None]
        if not all(self.may_be_given(block) for _, block in new):
            return False
        if not any(self.find((group, prefix)) for group, _ in self.attention()):
            self.branches.discard(prefix)
        for group, block in new:
            assert block is not None
            self.publish(block, (group, prefix))
        self.count["cached_tails"] += rest > 0
        return True

    # ---- going back ---------------------------------------------------------------------

    def can_fall_to(self, seq: Seq, length: int, before: int) -> bool:
        for group, kind in self.attention():
            for unit in range(self.first_unit(kind, length), self.units(length)):
                end = (unit + 1) * self.size
                if seq.own(group, unit) is None and (
                    end > length or self.found_again(seq, group, end) is None
                ):
                    return False
        begins_again = seq.replays or length % self.ring_restart == 0
        has_rings = begins_again or self.rings_reach(seq, length)
        if not (has_rings and self.holds_own(seq, length)):
            return False
        if length == 0 or not self.recurrent():
            return True
        if length == before and seq.stands:
            return True
        if length % self.size:
            return False  # its block is not that of the tail with the state
        return all(self.state_to_go_back_to(seq, group, length) for group in self.recurrent())

    def holds_own(self, seq: Seq, length: int) -> bool:
        """Whether it has computed, and still has, what uncached windows read here (G15)."""
        if length in {0, seq.computed} or not self.uncached():
            return True
        units = self.units(length)
        return not seq.replays and all(
            kind.first_read(length) >= seq.again[0]
            and None not in seq.tables[group][self.first_unit(kind, length) : units]
            for group, kind in self.uncached()
        )

    def rings_reach(self, seq: Seq, length: int) -> bool:
        """Whether its rings have what the query here reads (G15)."""
        if length <= seq.since:
            return length == seq.since == seq.farthest
        rings = [kind for kind in self.kinds if isinstance(kind, Ring)]
        least = seq.since if seq.replays else 0  # only a replay may lack what lies before it
        return all(
            max(least, ring.first_read(length)) >= max(seq.since, seq.farthest - ring.width)
            for ring in rings
        )

    def found_again(self, seq: Seq, group: int, length: int) -> Block | None:
        """What the sequence has released in a group; it finds it by its own full attention."""
        for full in self.full_attention():
            own = seq.own(full, length // self.size - 1)
            if own is None or own.content is None:
                return None
        return self.find((group, seq.prefix(length)))

    def state_to_go_back_to(self, seq: Seq, group: int, length: int) -> Block | None:
        """A cached state; none if the sequence's own one is kept, or a copy is writing it now."""
        state = seq.state(group)
        source = self.found_again(seq, group, length)
        if self.is_kept(state):
            return None
        is_written = any(state is copy.destination for copy in self.taken or ())
        return None if is_written else source

    def fall_to(self, seq: Seq, length: int, before: int) -> None:
        covered = []
        goes_on = seq.replays and length > 0  # with its replay
        for group, kind in self.attention():
            table = seq.tables[group]
            first = self.first_unit(kind, length)
            for unit in range(first, length // self.size):
                if table[unit] is None:
                    table[unit] = self.found_again(seq, group, (unit + 1) * self.size)
            end = first
            while end < len(table) and table[end] is not None:
                end += 1
            covered.append(max(end, first))
        for group, kind in self.uncached():
            first = self.first_unit(kind, length)
            held = seq.tables[group][first:]
            covered.append(first + (held.index(None) if None in held else len(held)))
        for group in self.growing():
            del seq.tables[group][min(covered) :]
        seq.again = (min(seq.again[0], length), min(seq.again[1], length))
        seq.replayed = seq.begun = min(seq.replayed, length)
        if length < before or not seq.stands:
            for group in self.recurrent() if length else ():
                source = self.state_to_go_back_to(seq, group, length)
                assert source is not None
                self.record(group, source, seq.state(group), self.size)
            seq.stands, seq.moves = True, 0
        at, start = (seq.replayed, seq.again[0]) if goes_on else (length, length)
        if self.rings() and not self.rings_reach(seq, at):
            for group in self.rings():
                [ring] = seq.tables[group]
                assert ring is not None
                self.empty(ring)
            seq.since = seq.farthest = start
            seq.replayed = seq.begun = min(seq.replayed, start)
        seq.computed = length
        self.settle_at(seq, length)
