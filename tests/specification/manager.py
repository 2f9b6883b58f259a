"""What each call promises, in the order of a sequence's life.

A *sequence* has tokens, and in each group of layers a table of blocks. The first ``computed`` of
its tokens have K/V in memory, or will have it before a later step reads it. A block is *findable*
once all tokens of its unit are computed. A findable block, or one in several tables, is never
written: a sequence that would write there continues in a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from blockmgr.blocks import Admission, Match, Remap
from blockmgr.errors import (
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    SequenceStateError,
    StepError,
)
from tests.specification.admission import Terms, token_list, whole
from tests.specification.blocks import NODES, Block, Seq
from tests.specification.keeping import ModelKeeping

__all__ = ["Specification"]


Growth = tuple[dict[int, Block], dict[int | None, int]]


class Specification(ModelKeeping):
    """The calls on prompts and sequences."""

    # ---- prompts ------------------------------------------------------------------------

    def match(self, tokens: Iterable[int], *, num_slots: int | None = None, **asked: Any) -> Match:
        """What ``admit`` would find now, or when there is room."""
        seq, terms = self.asked(tokens, asked)
        slots = len(seq.tokens) if num_slots is None else num_slots
        try:
            self.checked_slots(seq, num_slots, terms)
        except NeverFitsError:
            terms.watermark = -(2**31)  # a prompt that never fits finds everything that is cached
        plan, _ = self.best_plan(seq, slots, terms)
        lead = plan.shared.get(0, [])
        last = len(seq.tokens) - 1 if terms.most is None else min(len(seq.tokens) - 1, terms.most)
        most = self.num_computing(seq.prefix(last // self.size * self.size))
        start = self.start_of(plan.cached)
        return Match(
            start,
            plan.cached % self.size,
            np.array([block.id for block in lead], np.int32),
            plan.idle - plan.taken_over * len(plan.copied),
            most * self.size - plan.cached if most > len(lead) else 0,
            num_replayed_tokens=plan.cached - start,
        )

    def can_admit(
        self, tokens: Iterable[int], *, num_slots: int | None = None, **asked: Any
    ) -> Admission:
        seq, terms = self.asked(tokens, asked, num_slots)
        try:
            slots = self.checked_slots(seq, num_slots, terms)
            self.new_rows(1)
            self.fitting_plan(seq, slots, terms)
        except NeverFitsError:
            return Admission.NEVER
        except (OutOfSequencesError, OutOfBlocksError):
            return Admission.LATER
        return Admission.NOW

    def admit(self, tokens: Iterable[int], *, num_slots: int | None = None, **asked: Any) -> int:
        """Shares the longest prefix that is cached, and takes blocks for the rest."""
        seq, terms = self.asked(tokens, asked, num_slots)
        slots = self.checked_slots(seq, num_slots, terms)
        [seq.handle] = self.new_rows(1)
        with self.call():
            self.place(seq, slots, terms)
            self.seqs[seq.handle] = seq
        if terms.read_cache:
            self.count_hits(seq, "")
            hit = seq.num_cached_tokens
            self.count["partial_hit_tokens"] += min(seq.cached % self.size, hit)
            self.lookups.append((len(seq.tokens), hit))
        return seq.handle

    def count_hits(self, seq: Seq, kind: str) -> None:
        self.count[f"{kind}query_tokens"] += len(seq.tokens)
        self.count[f"{kind}hit_tokens"] += seq.num_cached_tokens

    # ---- growth -------------------------------------------------------------------------

    def reserve(self, handle: int, num_slots: int) -> None:
        seq = self.running(handle)
        num_slots = whole("num_slots", num_slots, 1, 2**62)
        self.grow_all([seq], [num_slots], write=num_slots > len(seq.tokens))

    def append(self, handle: int, tokens: Iterable[int]) -> None:
        seq, tokens = self.running(handle), token_list(tokens)
        self.grow_all([seq], [len(seq.tokens) + len(tokens)])
        seq.tokens += tokens

    def shared_at(self, seq: Seq, moving: Iterable[Block] = ()) -> dict[int, Block]:
        """By group, the block of the next token, if another sequence may read it.

        moving: the same of sequences that leave these blocks in this call.
        """
        unit = len(seq.tokens) // self.size
        own = {group: seq.own(group, unit) for group, _ in self.attention()}
        shared = {
            group: block
            for group, block in own.items()
            if block is not None
            and (
                self.references(block) - list(moving).count(block) > 1 or block.content is not None
            )
        }
        # It leaves the unit in all groups, if another sequence may read it in full attention.
        moves = any(group in shared for group in self.full_attention())
        return {g: block for g, block in own.items() if block is not None} if moves else shared

    def check_written(self, seq: Seq, *, commits: bool = False) -> None:
        """Checks that the tokens of a copy are written before the forward of this step."""
        self.check_not_loading(seq)
        if self.singles() and not (self.confirms(seq) if commits else seq.stands):
            raise StepError("the copy lacks what a forward wrote, and a state cannot go back")
        start = len(seq.tokens) // self.size * self.size
        kept = seq.settled if self.taken is None else seq.computed
        if kept > max(seq.written, start):
            raise StepError(f"sequence {seq.handle} rests on what this step's forward writes")

    def grow_all(self, seqs: list[Seq], slots: list[int], *, write: bool = True) -> None:
        """Takes slots for every sequence and makes the next block private, or does nothing."""
        self.take_growth(seqs, self.checked_growth(seqs, slots, write=write), write=write)

    def checked_growth(
        self, seqs: list[Seq], slots: list[int], *, write: bool = True, left: bool = False
    ) -> list[Growth]:
        """By sequence, the blocks that it leaves for copies, and the number of new ones by group.

        left: blocks that their commits give back count as available.
        """
        moving: list[Block] = []
        wanted: list[Growth] = []
        for seq, num_slots in zip(seqs, slots, strict=True):
            self.check_growth(seq, num_slots)
            shared = self.shared_at(seq, moving) if write else {}
            if shared:
                self.check_written(seq)
            moving += shared.values()
            tables = ((group, seq.tables[group]) for group in self.growing())
            more: dict[int | None, int] = {
                g: max(0, self.num_entries(g, num_slots) - len(t)) for g, t in tables
            }
            wanted.append((shared, more))
        shares = [self.share(seq.namespace) for seq in seqs]
        # What one of several commits makes findable, another one may take into use.
        merges = self.config.dedup == "remap"
        several = merges and sum(self.num_to_promote(seq) > 0 for seq in seqs) > 1
        given_back = [self.num_left(seq, several) if left else 0 for seq in seqs]
        pairs = zip(wanted, given_back, strict=True)
        self.check_room(shares, [self.num_blocks(growth) - back for growth, back in pairs])
        nodes = sum((self.nodes in left) + more.get(self.nodes, 0) for left, more in wanted)
        self.check_room([NODES], [nodes])
        return wanted

    def num_blocks(self, growth: Growth) -> int:
        left, more = growth
        count = sum(count for group, count in more.items() if group != self.nodes)
        return len(self.of_memory(left.values())) + count

    def growing(self) -> list[int]:
        """The groups whose tables grow with the slots."""
        return [group for group, _ in (*self.attention(), *self.uncached())]

    def num_to_promote(self, seq: Seq) -> int:
        """The units that are full once all of its tokens are computed, and not promoted yet."""
        caches = self.config.prefix_caching and not seq.outdated
        return seq.num_tokens // self.size - seq.promoted if caches else 0

    def num_left(self, seq: Seq, before: bool) -> int:
        """The blocks that windows give back once all tokens of a sequence are computed.

        before: only those of units that it has promoted before.
        """
        kept = {block for copy in self.waiting() for block in (copy.source, copy.destination)}
        kept.update(self.holds)
        count = 0
        for group, kind in (*self.attention(), *self.uncached()):
            first = self.first_unit(kind, max(0, seq.num_tokens - self.lookahead))
            first = min(first, seq.promoted) if before else first
            left = [block for block in seq.tables[group][:first] if block and block not in kept]
            count += sum(self.references(b) == 1 and b.id not in self.out for b in left)
        return count

    def take_growth(self, seqs: list[Seq], wanted: list[Growth], *, write: bool = True) -> None:
        shares = [self.share(seq.namespace) for seq in seqs]
        with self.call():
            pairs = zip(wanted, shares, strict=True)
            taken = [self.take(self.num_blocks(growth), share) for growth, share in pairs]
            for seq, (shared, more), blocks in zip(seqs, wanted, taken, strict=True):
                fresh = iter(blocks)
                if write:
                    self.make_writable(seq, shared, fresh)
                for group, count in more.items():
                    seq.tables[group] += self.more(group, count, fresh)

    def check_growth(self, seq: Seq, num_slots: int) -> None:
        self.check_fits(seq, num_slots)

    def check_room(self, shares: list[bytes | None], needed: list[int]) -> None:
        for share in (None, *self.quotas, NODES):
            pairs = zip(shares, needed, strict=True)
            in_all = sum(count for own, count in pairs if own == share)
            if in_all > 0 and in_all > self.available(share):
                raise OutOfBlocksError(in_all, self.available(share))

    def make_writable(self, seq: Seq, shared: dict[int, Block], fresh: Iterator[Block]) -> None:
        """Moves the sequence to blocks of its own; takes those off the fresh ones."""
        unit = len(seq.tokens) // self.size
        start = unit * self.size
        for group, _ in self.attention():
            block = seq.own(group, unit)
            if block is not None and group not in shared:
                block.twin = None  # about to diverge from it
        brought = least = max(0, min(seq.written, seq.computed) - start)
        for group, source in shared.items():
            [own] = self.more(group, 1, fresh)
            seq.tables[group][unit] = own
            if brought:
                least = min(least, self.record(group, source, own, brought))
        if shared:  # tokens that are not written yet cannot be copied: they are computed again
            self.limit_computed(seq, start + least)

    # ---- what was computed --------------------------------------------------------------

    def commit(self, handle: int, num_computed_tokens: int) -> None:
        """Declares K/V written up to here, and states at this position.

        An early commit declares that the forward of this step writes the K/V; it says nothing about
        a state (rule 10).
        """
        seq = self.running(handle)
        self.check_no_open_ticket()
        high = min(len(seq.tokens), self.num_slots(seq))
        least = max(seq.loads, seq.num_computed_tokens)
        n = whole("num_computed_tokens", num_computed_tokens, least, high)
        advances = n > seq.num_computed_tokens
        with self.call():
            seq.replayed = min(n, seq.again[1])
            if not self.early:
                seq.begun = seq.replayed
            if seq.replays:  # nothing else changes (G20)
                if not self.promises(seq) and self.confirms(seq, advances):
                    seq.stands, seq.moves = True, 0
                return
            if seq.loads:  # it is in memory, and the forward of this step begins behind it
                seq.settled = seq.written = seq.loads
            seq.computed, seq.loads = n, 0
            if not self.early:
                seq.settled = seq.written = n
            self.follow(seq, advances=advances)

    def place_state(self, handle: int, slot: int) -> None:
        """Says in which of its slots the states of a sequence are: its forward has left several."""
        seq = self.running(handle)
        extra = max((self.kinds[group].extra_blocks for group in self.recurrent()), default=0)
        seq.slot = whole("slot", slot, 0, extra)

    def cache_state(self, handle: int) -> bool:
        """Caches the state at the end of a unit in free blocks; the boundary is only passed."""
        seq = self.running(handle)
        if self.recurrent():
            self.check_not_loading(seq)
        if self.recurrent() and not seq.stands:
            raise StepError(f"sequence {handle} has a state at an unknown position")
        at_end = seq.computed == seq.settled and seq.computed % self.size == 0
        if not (self.recurrent() and seq.computed and at_end):
            return False
        prefix = seq.prefix(seq.computed)
        if all(self.find((group, prefix)) for group in self.recurrent()):
            return False
        with self.call():
            room = len(self.free_blocks(self.share(seq.namespace)))
            if is_kept := self.keep_whole(seq, room):
                self.pass_by(prefix)
        return is_kept

    # ---- a step of many sequences -------------------------------------------------------

    def decode(self, handles: Iterable[int], tokens: Iterable[int]) -> Any:
        """Commits all tokens of each sequence and appends one; returns the slots of those."""
        self.check_no_open_ticket()
        seqs: list[Seq] = []
        moving: list[Block] = []
        new = [int(token) for token in tokens]
        for handle in handles:
            seq = self.running(int(handle))
            if seq in seqs:
                raise ValueError(f"handles must be distinct, got {handle} twice")
            if self.num_slots(seq) < seq.num_tokens:
                raise SequenceStateError(f"sequence {handle} has tokens without slots")
            self.check_not_loading(seq)
            self.check_not_promised(seq)
            self.check_growth(seq, seq.num_tokens + 1)
            shared = self.shared_at(seq, moving)
            if shared:
                moving += shared.values()
                self.check_written(seq, commits=True)
                self.check_brought(seq, shared)
            seqs.append(seq)
        before = [(s.computed, s.settled, s.written, s.stands, s.moves) for s in seqs]
        for seq in seqs:
            seq.computed = seq.settled = seq.written = seq.num_tokens
            seq.stands = self.confirms(seq)
        # Windows that the commits leave make room, unless a step in flight may still read them.
        drops_first = len(self.kinds) > 1 and not self.in_flight
        slots = [seq.num_tokens + 1 for seq in seqs]
        try:
            wanted = self.checked_growth(seqs, slots, left=drops_first)
        except (OutOfBlocksError, StepError):
            for seq, facts in zip(seqs, before, strict=True):
                seq.computed, seq.settled, seq.written, seq.stands, seq.moves = facts
            raise
        if not drops_first:
            self.take_growth(seqs, wanted)
        for seq in seqs:
            with self.call():
                seq.replayed = seq.begun = seq.again[1]
                self.follow(seq, within=False)
        if drops_first:
            self.take_growth(seqs, wanted)
        for seq, token in zip(seqs, new, strict=True):
            seq.tokens.append(token)
        return np.array([self.slot(seq, seq.num_tokens - 1) for seq in seqs], np.int64)

    def check_brought(self, seq: Seq, shared: dict[int, Block]) -> None:
        """Counts tokens of a block as computed only up to those that a pending copy brings."""
        offset = len(seq.tokens) % self.size
        for copy in self.pending:
            if copy.destination in shared.values() and copy.num_tokens < offset:
                raise StepError(f"sequence {seq.handle} waits for a copy")

    def fork(self, handle: int, n: int = 1) -> list[int]:
        """Shares the blocks of attention; each child has its own states (rule 9)."""
        parent = self.running(handle)
        self.check_not_promised(parent)
        handles = self.new_rows(whole("n", n, 1, 2**31))
        self.check_parent(parent)
        share, count = self.share(parent.namespace), self.num_forked(parent)
        self.check_room([share], [n * count])
        with self.call():
            fresh = iter(self.take(n * count, share))
            for new in handles:
                child = self.new_seq(new)
                self.become_fork(child, parent, fresh)
                self.seqs[new] = child
        self.count["forks"] += n
        return handles

    def check_parent(self, parent: Seq) -> None:
        self.check_not_promised(parent)
        self.check_not_loading(parent)
        if self.singles() and not parent.stands:
            raise StepError(f"sequence {parent.handle} has a state or ring at an unknown position")

    def reparent(self, handles: Iterable[int], parents: Iterable[int]) -> None:
        """Each sequence becomes a fork of its parent as it was before the call."""
        handles, order = list(handles), list(parents)
        if len(handles) != len(order):
            raise ValueError(f"parents must be as many as handles, got {len(order)}")
        seqs: list[Seq] = []
        for index, (handle, parent) in enumerate(zip(handles, order, strict=True)):
            seq = self.running(handle)
            if seq in seqs:
                raise ValueError(f"handles must be distinct, got {handle} twice")
            if whole("parents", parent, 0, len(order) - 1) != index:
                self.check_not_promised(seq)
            seqs.append(seq)
        changed = [i for i, parent in enumerate(order) if parent != i]
        for i in changed:
            self.check_parent(seqs[order[i]])
        shares = [self.share(seqs[order[i]].namespace) for i in changed]
        needed = [self.num_forked(seqs[order[i]]) for i in changed]
        self.check_room(shares, needed)
        with self.call():
            fresh = [self.take(n, share) for n, share in zip(needed, shares, strict=True)]
            before = [self.new_seq() for _ in seqs]
            for old, seq in zip(before, seqs, strict=True):
                self.become_fork(old, seq)
            tables = [seqs[i].tables for i in changed]
            left = [b for t in reversed(tables) for table in t for b in table if b]
            self.dropped = list(left)
            for i in changed:
                self.leave(seqs[i])
            for i, blocks in zip(changed, fresh, strict=True):
                self.become_fork(seqs[i], before[order[i]], iter(blocks))
            self.let_go(left)

    def num_forked(self, parent: Seq) -> int:
        """The blocks that a fork takes: states, rings and uncached windows (rule 9, G16, G20)."""
        units = self.units(len(parent.tokens))
        tables = [parent.tables[group][:units] for group, _ in self.uncached()]
        return len(self.singles()) + sum(len(t) - t.count(None) for t in tables)

    def become_fork(self, child: Seq, parent: Seq, fresh: Iterator[Block] | None = None) -> None:
        """Takes over everything; in look-ahead slots, nothing is written yet.

        fresh: blocks of its own; None: it only remembers what the parent was.
        """
        units = self.units(len(parent.tokens))
        child.tokens, child.tables = list(parent.tokens), [list(t) for t in parent.tables]
        for group in self.growing():
            del child.tables[group][units:]
        child.namespace, child.extras = parent.namespace, dict(parent.extras)
        child.computed, child.cached = parent.computed, parent.cached
        child.settled, child.written = parent.settled, parent.written
        child.promoted, child.outdated = parent.promoted, parent.outdated
        child.stands, child.moves = parent.stands, parent.moves
        child.slot = 0 if fresh else parent.slot
        child.since, child.farthest = parent.since, parent.farthest
        child.again, child.replayed = parent.again, parent.replayed
        child.begun, child.loads = parent.begun, parent.loads
        child.stops, child.named = set(parent.stops), set(parent.named)
        child.diverges, child.last = parent.diverges, parent.last
        child.retained_end, child.prompt_end = parent.retained_end, parent.prompt_end
        for group in self.recurrent() if fresh else ():
            child.tables[group] = self.new_slots(group, fresh)
            if parent.computed:
                self.record(group, parent.state(group), child.state(group), self.size)
        for group in self.rings() if fresh else ():
            [ring] = parent.tables[group]
            assert ring is not None
            child.tables[group] = [block := next(fresh)]
            self.record(group, ring, block, self.size)
        for group, _ in self.uncached() if fresh else ():
            for unit, source in enumerate(child.tables[group]):
                if source is not None:
                    child.tables[group][unit] = own = next(fresh)
                    valid = min(self.size, child.num_computed_tokens - unit * self.size)
                    if valid > 0:
                        self.record(group, source, own, valid)

    # ---- taking back --------------------------------------------------------------------

    def truncate(self, handle: int, num_tokens: int) -> int:
        """Reduces the computed length to a position where every group can continue (rule 12)."""
        seq = self.running(handle)
        n = whole("num_tokens", num_tokens, 1, len(seq.tokens))
        self.check_not_loading(seq)
        if n < seq.computed:
            self.check_not_promised(seq)
        with self.call():
            before = self.reach(seq)
            seq.farthest = max(seq.farthest, seq.replayed if seq.replays else before)
            self.leave(seq)
            del seq.tokens[n:]
            for group in self.growing():
                self.shorten(seq.tables[group], self.num_entries(group, n))
            if self.promises(seq):
                return seq.num_computed_tokens
            most = min(before, n)
            length = next(p for p in range(most, -1, -1) if self.can_fall_to(seq, p, before))
            self.fall_to(seq, length, before)
            seq.promoted = min(seq.promoted, length // self.size)
            seq.cached = min(seq.cached, seq.computed)
        return seq.num_computed_tokens

    def reach(self, seq: Seq) -> int:
        """The end of what it has."""
        return seq.computed

    def shorten(self, table: list[Block | None], units: int) -> None:
        """Releases the blocks after so many units."""
        left = [block for block in table[units:] if block]
        self.dropped = list(left)
        del table[units:]
        self.let_go(left)

    # ---- the end, and resuming ----------------------------------------------------------

    def preempt(self, handle: int, *, withdraw: bool = False) -> None:
        """Releases the blocks and keeps the tokens."""
        seq = self.running(handle)
        if withdraw:
            self.withdraw(seq)
        self.check_not_promised(seq)
        with self.call():
            self.give_back(seq, resumes=True)
            self.settle()  # its end gets the requested level
            seq.retained, seq.retained_end, seq.last = {}, 0, 0
            seq.computed = seq.settled = seq.written = seq.cached = seq.promoted = 0
            seq.again, seq.replayed, seq.begun, seq.loads = (0, 0), 0, 0, 0
            seq.prompt_end = max({seq.prompt_end} & seq.stops, default=0)
            seq.stops, seq.named = set(), set()
            seq.preempted, seq.outdated = True, False
        self.count["preemptions"] += 1

    def resume(self, handle: int, *, num_slots: int | None = None, read_cache: bool = True) -> None:
        """Admits the tokens again."""
        seq = self.sequence(handle)
        if not seq.preempted:
            raise SequenceStateError(f"sequence {handle} is running")
        slots = self.checked_slots(seq, num_slots, Terms())
        # A sequence that grew past the watermark must be able to resume in an empty pool.
        share = self.share(seq.namespace)
        spare = self.limit(share) - self.units(max(len(seq.tokens), slots))
        with self.call():
            held_back = max(0, min(self.watermark(share), spare))
            self.place(seq, slots, Terms(held_back, read_cache))
        if read_cache:
            self.count_hits(seq, "resumed_")

    def free(
        self, handle: int, *, expect_reuse: bool | None = None, withdraw: bool = False
    ) -> None:
        """Ends a sequence; what can be found of it stays cached."""
        if expect_reuse is not None and not self.config.retention:
            raise ValueError("needs retention=True")
        seq = self.sequence(handle)
        if withdraw:
            self.withdraw(seq)
        self.check_not_promised(seq)
        with self.call():
            if not seq.preempted:
                self.give_back(seq, expect_reuse=expect_reuse)
                self.settle()  # its end gets the requested level
            del self.seqs[handle]
        self.generations[seq.row] += 1

    def give_back(
        self, seq: Seq, *, resumes: bool = False, expect_reuse: bool | None = None
    ) -> None:
        """Releases all blocks; what can be found stays cached (rules 11 and 12)."""
        raise NotImplementedError

    # ---- looking at it ------------------------------------------------------------------

    def take_remaps(self) -> list[Remap]:
        taken, self.remaps = self.remaps, []
        return taken

    def slot(self, seq: Seq, position: int) -> int:
        block = seq.blocks[0 if self.lead is None else position // self.size]
        assert block is not None
        return block.id * self.size + position % self.size

    def slot_mapping(self, handle: int, start: int, stop: int) -> Any:
        seq = self.sequence(handle)
        whole("stop", stop, 0, self.num_slots(seq))
        whole("start", start, 0, stop)
        again = range(*seq.again)  # it writes nothing there
        return np.array([-1 if p in again else self.slot(seq, p) for p in range(start, stop)], int)

    def group_table(self, group: int) -> Any:
        longest = (len(seq.tables[group]) for seq in self.seqs.values())
        tables = np.zeros((self.config.max_seqs, max(self.width, *longest, 0)), np.int32)
        for seq in self.seqs.values():
            ids = [block.id if block else 0 for block in seq.tables[group]]
            tables[seq.row, : len(ids)] = ids
        return tables

    @property
    def block_tables(self) -> Any:
        return self.group_table(self.lead or 0)

    def stops(self, handle: int) -> tuple[int, ...]:
        """Where its forwards should end, so that its states can be kept there."""
        seq = self.sequence(handle)
        return tuple(sorted(s for s in seq.stops if seq.computed < s <= seq.num_tokens))

    @property
    def seq_lens(self) -> Any:
        lengths = np.zeros(self.config.max_seqs, np.int32)
        for seq in self.seqs.values():
            lengths[seq.row] = 0 if seq.preempted else seq.num_tokens
        return lengths

    def handles(self) -> list[int]:
        return list(self.seqs)

    def row(self, handle: int) -> int:
        return int(self.sequence(handle).row)
