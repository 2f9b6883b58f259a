"""The specification of groups, part four: the calls of a manager.

Written from the rules of nodes and groups, independently of the core: a manager that is consistent
in itself could still break each rule and serve wrong K/V. The calls are those of ``BlockManager``;
a few return additional facts.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

from tests.groups import memory
from tests.groups.memory import Prefix
from tests.groups.model_admission import ModelAdmission
from tests.groups.model_pool import Block, OutOfBlocks, Seq, WrongStep, cut


class ModelManager(ModelAdmission):
    """A manager for any set of groups, which scans everything in every call."""

    handles = itertools.count(1)
    # ---- prompts ------------------------------------------------------------------------

    def match(self, tokens: list[int], namespace: bytes = b"") -> int:
        """The tokens that ``admit`` would find now, or when there is room."""
        seq = Seq(0, namespace, list(tokens), [])
        plan = self.best_plan(seq, len(tokens))
        if plan is not None:
            return plan.cached
        share = self.share(namespace)
        plans = (p for p in self.plans(seq, len(tokens)) if self.may_fit(p, len(tokens), share))
        return max((p.cached for p in plans), default=0)

    def admit(self, tokens: list[int], namespace: bytes = b"", num_slots: int | None = None) -> int:
        seq = Seq(next(self.handles), namespace, list(tokens), [])
        with self.call():
            self.place(seq, len(tokens) if num_slots is None else num_slots)
            self.seqs[seq.handle] = seq
        return seq.handle

    def resume(self, handle: int, num_slots: int | None = None) -> None:
        seq = self.seqs[handle]
        assert seq.preempted
        with self.call():
            self.place(seq, len(seq.tokens) if num_slots is None else num_slots)

    # ---- growth -------------------------------------------------------------------------

    def shared_at(self, seq: Seq) -> dict[int, Block]:
        """By group, the block of the next token, if another sequence may read it."""
        unit = len(seq.tokens) // self.size
        found = {}
        for group, _ in self.attention():
            table = seq.tables[group]
            block = table[unit] if unit < len(table) else None
            if block and (self.references(block) > 1 or block.content is not None):
                found[group] = block
        return found

    def grow(self, seq: Seq, num_slots: int, *, write: bool) -> None:
        """Allocates slots and makes the block of the next token private: all or nothing."""
        shared = self.shared_at(seq) if write else {}
        if shared and self.recurrent() and not seq.stands:
            raise WrongStep  # the copy lacks what a forward wrote; a state cannot go back
        if shared:
            self.check_written(seq)
        units = self.units(num_slots)
        more = sum(max(0, units - len(seq.tables[group])) for group, _ in self.attention())
        share = self.share(seq.namespace)
        if more + len(shared) > self.available(share):
            raise OutOfBlocks
        fresh = iter(self.take(more + len(shared), share))
        unit = len(seq.tokens) // self.size
        start = unit * self.size
        brought = max(0, self.to_bring(seq) - start)
        least = brought
        for group, block in shared.items():
            own = next(fresh)
            seq.tables[group][unit] = own
            if brought:
                least = min(least, self.record(group, block, own, brought))
        if shared:
            seq.computed = min(seq.computed, start + least)
            seq.settled = min(seq.settled, seq.computed)
            seq.written = min(seq.written, seq.computed)
        for group, _ in self.attention():
            table = seq.tables[group]
            table += itertools.islice(fresh, max(0, units - len(table)))

    def to_bring(self, seq: Seq) -> int:
        """The length up to which a copy can bring tokens, because it runs before the forward."""
        return min(seq.written, seq.computed)

    def check_written(self, seq: Seq) -> None:
        """Checks that the tokens of a copy are written, or that the sequence can recompute them."""
        start = len(seq.tokens) // self.size * self.size
        kept = seq.computed if self.closed else seq.settled
        if kept > max(seq.written, start):
            raise WrongStep

    def promises(self, seq: Seq) -> bool:
        """Whether other sequences may rely on what its next forward writes."""
        return seq.computed > seq.settled

    def reserve(self, handle: int, num_slots: int) -> None:
        seq = self.running(handle)
        with self.call():
            self.grow(seq, num_slots, write=num_slots > len(seq.tokens))

    def append(self, handle: int, tokens: list[int]) -> None:
        seq = self.running(handle)
        with self.call():
            self.grow(seq, len(seq.tokens) + len(tokens), write=True)
            seq.tokens += tokens

    def running(self, handle: int) -> Seq:
        seq = self.seqs[handle]
        assert not seq.preempted
        return seq

    def retain_tokens(self, handle: int, start: int, stop: int, level: int) -> None:
        """Gives the units of these tokens a level.

        A level above normal means that prompts will probably continue from the end of the range. So
        a forward should stop there, also within a unit if a tail with the state may be kept there.
        """
        seq = self.running(handle)
        with self.call():
            known = self.known()
            for unit in range(start // self.size, self.units(stop)):
                prefix = seq.prefix(min((unit + 1) * self.size, seq.computed))
                seq.retained[unit] = level
                if unit < self.units(seq.computed) and prefix in known:
                    self.levels[prefix] = level
                    del seq.retained[unit]
            if level > 0:
                self.expect_end(seq, stop)

    def expect_end(self, seq: Seq, stop: int) -> None:
        rest = stop % self.size
        within = bool(self.recurrent()) and rest >= self.min_partial_tokens > 0
        end = stop if within else stop - rest
        if end > seq.computed:
            stops = seq.stops if self.recurrent() else seq.named
            if seq.prompt_end == end:
                seq.prompt_end = 0  # it is more than that
            if seq.retained_end != seq.diverges:
                stops.discard(seq.retained_end)  # the last request counts
            stops.add(end)
            seq.retained_end = end
        elif end and end % self.size == 0 and self.can_go_on(seq.prefix(end)):
            self.keep_boundary(seq.prefix(end))

    # ---- what was computed --------------------------------------------------------------

    def commit(self, handle: int, computed: int) -> None:
        """Declares K/V written up to here, and states at this position.

        An early commit declares that the forward of this step writes the K/V; it says nothing about
        a state (rule 10).
        """
        seq = self.running(handle)
        assert seq.computed <= computed <= min(len(seq.tokens), self.num_slots(seq))
        self.check_open()
        with self.call():
            seq.computed = computed
            if not self.early:
                seq.settled = seq.written = computed
            if seq.settled == computed:
                self.confirm(seq)
            self.promote(seq)
            if seq.settled == computed:
                self.keep_state(seq)
            self.drop_windows(seq)

    def check_open(self) -> None:
        if self.early and self.closed:
            raise WrongStep  # it could be about this forward or the next one

    def confirm(self, seq: Seq) -> None:
        """The states are where the commit says, unless it may be about an earlier step."""
        if not self.open_steps or seq.moves <= 1:
            seq.stands, seq.moves = True, 0

    def promote(self, seq: Seq) -> None:
        """Promotes full computed units, group by group (rule 5)."""
        if seq.promoted < 0:
            return  # it continues a forgotten block
        while seq.promoted < seq.computed // self.size:
            unit = seq.promoted
            prefix = seq.prefix((unit + 1) * self.size)
            own = {g: seq.tables[g][unit] for g, _ in self.attention()}
            if any(b and self.is_destination(b) for b in own.values()):
                return
            written = min(max(0, seq.written - unit * self.size), self.size)
            if not self.merges(seq, unit):
                own = {g: self.block_of_unit(seq, g, unit) for g in own}
            else:
                twins = {g: self.find((g, prefix)) for g in own}
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
                    block.content = (group, prefix)
                    block.unwritten = self.size - written
                elif twin is not block:
                    self.move(seq, group, unit, twin)
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

    def move(self, seq: Seq, group: int, unit: int, twin: Block) -> None:
        """Only the sequence that commits moves: the slots of others stay until a call on them."""
        seq.tables[group][unit] = twin

    def sharers(self, seq: Seq, unit: int) -> list[Seq]:
        """The sequences that have this unit of the sequence in full attention, itself first."""
        full = self.full_attention()
        if not full:
            return [seq]
        block = seq.tables[full[0]][unit]
        others = [one for one in self.seqs.values() if one is not seq and one.tables]
        return [seq, *(one for one in others if one.tables[full[0]][unit : unit + 1] == [block])]

    def shares(self, seq: Seq, unit: int) -> bool:
        return len(self.kinds) > 1 and len(self.sharers(seq, unit)) > 1

    def block_of_unit(self, seq: Seq, group: int, unit: int) -> Block | None:
        """Its own block; where it has left the window, that of one which shares the unit."""
        blocks = (one.tables[group][unit] for one in self.sharers(seq, unit))
        return next((block for block in blocks if block is not None), None)

    def note_passing(self, seq: Seq, prefix: Prefix) -> None:
        """Notes that a unit can be found, and whether it is only passed.

        If the prefix is a boundary, and neither a state nor a stop made it one, it is evicted
        before all boundaries that are not passed.
        """
        several = len(self.kinds) > 1 and not self.recurrent()
        passes = several and len(prefix[1]) not in seq.named
        if not passes:
            self.passed.pop(prefix, None)
        if self.serves(prefix) and prefix not in self.stamps:
            self.stamps[prefix] = next(self.clock)
            if passes:
                self.pass_by(prefix)
            elif several and len(prefix[1]) == seq.last:
                self.pass_earlier(seq)
        if several and not passes and len(prefix[1]) == seq.diverges and prefix in self.stamps:
            self.continued.add(prefix)
            self.shared.add(prefix)

    def pass_earlier(self, seq: Seq) -> None:
        """Passes the ends of earlier turns: the next turn continues from the end of this one."""
        for end in range(seq.cached // self.size * self.size, 0, -self.size):
            earlier = seq.prefix(end)
            if earlier in self.passed and earlier in self.continued:
                return  # an earlier turn passed those before it
            ends = earlier in self.stamps and earlier not in self.passed
            if ends and not self.serves_others(earlier):
                self.pass_by(earlier)
                self.continued.add(earlier)

    def serves_others(self, boundary: Prefix) -> bool:
        """Whether more than one path needs it, or a caller wants it kept."""
        length = len(boundary[1])
        next_units = range(length + 1, length + self.size + 1)
        after = {p for p in self.known() if len(p[1]) in next_units and cut(p, length) == boundary}
        users = [self.references(b) for b in self.blocks if b.content and b.content[1] == boundary]
        return (
            boundary in self.shared
            or max(users, default=0) > 1
            or len(after) > 1
            or self.level(boundary) > 0
        )

    def pass_by(self, prefix: Prefix) -> None:
        """Marks a boundary as passed, before its parent if that is passed: the deepest first."""
        if prefix in self.passed:
            return
        order = list(self.passed)
        parent = cut(prefix, len(prefix[1]) - self.size)
        order.insert(order.index(parent) if parent in self.passed else len(order), prefix)
        self.passed = dict.fromkeys(order)

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
            self.passed.pop(prefix, None)
            self.continued.add(prefix)
            self.shared.add(prefix)

    def keep_prompt_end(self, seq: Seq, prefix: Prefix) -> None:
        """The same where the next turn may continue: it evicts nothing, and is just passed."""
        room = len(self.free_blocks(self.share(seq.namespace)))
        if seq.computed % self.size:
            is_kept = self.keep_branch(seq, prefix, room)
        else:
            lacks = any(self.find((group, prefix)) is None for group in self.recurrent())
            is_kept = lacks and self.keep_whole(seq, room)
        if is_kept and prefix in self.stamps:
            self.pass_by(prefix)

    def cache_state(self, handle: int) -> bool:
        """Caches the state at the end of a unit in free blocks; the boundary is passed."""
        seq = self.running(handle)
        if self.recurrent() and not seq.stands:
            raise WrongStep
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

    def keep_whole(self, seq: Seq, room: int) -> bool:
        """Caches the state at the end of a unit if its copies take no more blocks than these."""
        prefix = seq.prefix(seq.computed)
        missing = [g for g in self.recurrent() if self.find((g, prefix)) is None]
        own = [seq.tables[group][0] for group in missing]
        if any(block and (self.is_kept(block) or self.is_destination(block)) for block in own):
            return False
        share = self.share(seq.namespace)
        if len(missing) > room or seq.promoted * self.size < seq.computed:
            return False
        fresh = self.take(len(missing), share)
        for group, successor in zip(missing, fresh, strict=True):
            [state] = seq.tables[group]
            assert state is not None
            state.content = (group, prefix)
            seq.tables[group] = [successor]
            self.record(group, state, successor, self.size, keeps=True)
        is_served = self.serves(prefix)
        if is_served:
            self.stamps[prefix] = next(self.clock)
        return is_served

    def keep_branch(self, seq: Seq, prefix: Prefix, room: int) -> bool:
        """Handles a stop within a unit.

        Caches the computed tokens of the unit and the state; the sequence continues in copies of
        both (rule 16), if these take no more blocks than there is room for.
        """
        unit, rest = divmod(seq.computed, self.size)
        share = self.share(seq.namespace)
        if seq.promoted < unit or not rest >= self.min_partial_tokens > 0:
            return False
        if len(self.kinds) > room:
            return False
        if any(self.find((group, prefix)) for group in range(len(self.kinds))):
            self.passed.pop(prefix, None)
            return False
        own: dict[int, Block | None] = {g: seq.tables[g][0] for g in self.recurrent()}
        if any(block and self.is_kept(block) for block in own.values()):
            return False
        own |= {group: self.own(seq, group, unit) for group, _ in self.attention()}
        if not all(map(self.may_be_given, own.values())):
            return False
        for (group, block), fresh in zip(own.items(), self.take(len(own), share), strict=True):
            assert block is not None
            block.content = (group, prefix)
            recurrent = group in self.recurrent()
            seq.tables[group][0 if recurrent else unit] = fresh
            self.record(group, block, fresh, self.size if recurrent else rest, keeps=recurrent)
        if self.serves(prefix):
            self.stamps[prefix] = next(self.clock)
        return True

    def may_be_given(self, block: Block | None) -> bool:
        """Whether only this sequence has the block, so that it can be cached."""
        return (
            block is not None
            and self.references(block) <= 1
            and block.content is None
            and not self.is_destination(block)
        )

    def drop_windows(self, seq: Seq) -> None:
        """Releases what no later query reads, even if drafts are truncated (rule 12)."""
        for group, kind in self.attention():
            first = self.first_unit(kind, max(0, seq.settled - self.lookahead))
            table = seq.tables[group]
            table[:first] = [None] * min(first, len(table))

    # ---- several sequences --------------------------------------------------------------

    def fork(self, handle: int, count: int = 1) -> list[int]:
        """Shares the blocks of attention; each child has its own states (rule 9)."""
        parent = self.running(handle)
        groups = self.recurrent()
        if self.promises(parent) or (groups and not parent.stands):
            raise WrongStep
        share = self.share(parent.namespace)
        if count * len(groups) > self.available(share):
            raise OutOfBlocks
        made = []
        with self.call():
            fresh = iter(self.take(count * len(groups), share))
            for _ in range(count):
                child = Seq(next(self.handles), b"", [], [])
                self.become_fork(child, parent, {group: next(fresh) for group in groups})
                self.seqs[child.handle] = child
                made.append(child.handle)
        return made

    def reparent(self, handles: list[int], parents: list[int]) -> None:
        """Each sequence becomes a fork of its parent as it was before the call."""
        seqs = [self.running(handle) for handle in handles]
        changed = [(seqs[i], seqs[p]) for i, p in enumerate(parents) if p != i]
        groups = self.recurrent()
        if groups and not all(parent.stands for _, parent in changed):
            raise WrongStep
        if any(self.promises(seq) for pair in changed for seq in pair):
            raise WrongStep
        shares = [self.share(parent.namespace) for _, parent in changed]
        if any(shares.count(s) * len(groups) > self.available(s) for s in set(shares)):
            raise OutOfBlocks
        with self.call():
            fresh = [self.take(len(groups), share) for share in shares]
            before = {
                seq.handle: replace(seq, tokens=list(seq.tokens), tables=list(seq.tables))
                for seq in seqs
            }
            self.held += [b for seq in seqs for table in seq.tables for b in table if b]
            for seq, _ in changed:
                self.touch(seq.prefix(seq.computed))
            for (seq, parent), blocks in zip(changed, fresh, strict=True):
                states = dict(zip(groups, blocks, strict=True))
                self.become_fork(seq, before[parent.handle], states)

    def become_fork(self, child: Seq, parent: Seq, states: dict[int, Block]) -> None:
        units = self.units(len(parent.tokens))
        child.namespace, child.tokens = parent.namespace, list(parent.tokens)
        child.tables, child.stands = [table[:units] for table in parent.tables], parent.stands
        child.settled, child.written, child.moves = parent.settled, parent.written, parent.moves
        child.computed, child.cached = parent.computed, parent.cached
        child.promoted, child.stops = parent.promoted, set(parent.stops)
        child.named, child.diverges = set(parent.named), parent.diverges
        child.retained_end, child.last = parent.retained_end, parent.last
        child.prompt_end = parent.prompt_end
        for group, block in states.items():
            [state] = parent.tables[group]
            assert state is not None
            child.tables[group] = [block]
            if parent.computed:
                self.record(group, state, block, self.size)

    # ---- taking back --------------------------------------------------------------------

    def truncate(self, handle: int, num_tokens: int) -> int:
        """Reduces the computed length to a position where every group can continue (rule 12)."""
        seq = self.running(handle)
        assert 1 <= num_tokens <= len(seq.tokens)
        if self.promises(seq) and num_tokens < seq.computed:
            raise WrongStep
        with self.call():
            before = seq.computed
            self.touch(seq.prefix(before))  # the path it leaves is evicted from its end, too
            del seq.tokens[num_tokens:]
            for group, _ in self.attention():
                del seq.tables[group][self.units(num_tokens) :]
            if self.promises(seq):
                return before
            most = min(before, num_tokens)
            length = next(p for p in range(most, -1, -1) if self.can_fall_to(seq, p, before))
            self.fall_to(seq, length, before)
            seq.promoted = min(seq.promoted, length // self.size)
            seq.cached = min(seq.cached, length)
        return length

    def can_fall_to(self, seq: Seq, length: int, before: int) -> bool:
        for group, kind in self.attention():
            for unit in range(self.first_unit(kind, length), self.units(length)):
                end = (unit + 1) * self.size
                if self.own(seq, group, unit) is None and (
                    end > length or self.find((group, seq.prefix(end))) is None
                ):
                    return False
        if length == 0 or not self.recurrent():
            return True
        if length == before and seq.stands:
            return True
        if length % self.size:
            return False  # its block is not that of the tail with the state
        return all(self.state_to_go_back_to(seq, group, length) for group in self.recurrent())

    def own(self, seq: Seq, group: int, unit: int) -> Block | None:
        table = seq.tables[group]
        return table[unit] if unit < len(table) else None

    def state_to_go_back_to(self, seq: Seq, group: int, length: int) -> Block | None:
        """A cached state; none if the sequence's own one is kept, or a copy is writing it now."""
        [state] = seq.tables[group]
        source = self.find((group, seq.prefix(length)))
        if state is None or self.is_kept(state):
            return None
        is_written = any(state is copy.destination for copy in self.flight)
        return None if is_written else source

    def fall_to(self, seq: Seq, length: int, before: int) -> None:
        covered = []
        for group, kind in self.attention():
            table = seq.tables[group]
            first = self.first_unit(kind, length)
            for unit in range(first, length // self.size):
                if table[unit] is None:
                    table[unit] = self.find((group, seq.prefix((unit + 1) * self.size)))
            end = first
            while end < len(table) and table[end] is not None:
                end += 1
            covered.append(max(end, first))
        for group, _ in self.attention():
            del seq.tables[group][min(covered) :]
        if length < before or not seq.stands:
            for group in self.recurrent() if length else ():
                source = self.state_to_go_back_to(seq, group, length)
                [state] = seq.tables[group]
                assert source is not None
                assert state is not None
                self.record(group, source, state, self.size)
            seq.stands, seq.moves = True, 0
        seq.computed = length
        self.settle_at(seq, length)

    def give_back(self, seq: Seq, *, resumes: bool = False) -> None:
        """Releases all blocks; what can be found stays cached (rules 11 and 12)."""
        if self.promises(seq):
            raise WrongStep
        is_end = self.keep_end(seq)
        path, cached = seq.prefix(seq.computed), seq.cached
        if not is_end or seq.computed % self.size == 0:
            self.passed.pop(seq.prefix(seq.promoted * self.size), None)
        seq.tables = [[] for _ in self.kinds]
        self.touch(path)
        if is_end and self.recurrent() and path in self.stamps:
            self.end_path(path, cached, resumes=resumes)

    def end_path(self, path: Prefix, cached: int, *, resumes: bool) -> None:
        """Decides which of a sequence's boundaries are only passed.

        A sequence continued from one boundary, stopped at the end of its last whole unit and ended
        in a tail. One sequence in 32 is observed: none of its three boundaries is then passed.
        """
        self.num_ended += 1
        observes = self.num_ended % 32 == 0
        whole = cut(path, len(path[1]) // self.size * self.size)
        if whole != path and whole in self.stamps and whole not in self.continued:
            if observes:
                self.observed |= {whole, path}
            elif not resumes and self.prefers_whole(whole, len(path[1])):
                self.pass_by(path)
            else:
                self.pass_by(whole)
        found = cut(path, cached)
        if cached % self.size or not 0 < cached < len(whole[1]):
            return
        if found in self.stamps and found not in self.shared:
            if observes:
                self.observed.add(found)
            elif not self.outlives(found):
                self.pass_by(found)

    def prefers_whole(self, whole: Prefix, length: int) -> bool:
        """Whether the last whole unit serves more tokens per block than the end after it.

        The former serves prompts that continue from either, the latter only prompts that continue
        from the end.
        """
        units, blocks = self.units(len(whole[1])), len(self.recurrent())
        by_whole = Fraction((self.wholes + self.ends) * len(whole[1]), units + blocks)
        return by_whole > Fraction(self.ends * length, units + blocks + 1)

    def outlives(self, found: Prefix) -> bool:
        """Whether a boundary from which one prompt continued is worth its states.

        It is, if prompts continue from such a boundary a second time often enough that its states
        serve as much as the same number of blocks of another path.
        """
        units, blocks = self.units(len(found[1])), len(self.recurrent())
        return Fraction(self.agains, self.wholes + self.ends) >= Fraction(blocks, units + blocks)

    def keep_end(self, seq: Seq) -> bool:
        """Caches the state and the tail at the end of a sequence.

        Returns whether both are cached now and the tail was not cached before.
        """
        prefix, unit = seq.prefix(seq.computed), seq.computed // self.size
        rest = seq.computed % self.size
        if not seq.computed or (self.recurrent() and not seq.stands):
            return False
        if seq.promoted < unit or (rest and not rest >= self.min_partial_tokens > 0):
            return False
        if self.found_at(prefix, promised=True) is not None:
            if rest:
                self.passed.pop(prefix, None)  # it is an end, too
            return rest == 0
        ends: list[tuple[int, Block | None]] = [(g, seq.tables[g][0]) for g in self.recurrent()]
        if rest:
            ends += [
                (group, self.own(seq, group, unit))
                for group, _ in self.attention()  # even if unread: the unit may become full
            ]
        for group, block in ends:
            taken = self.find((group, prefix)) is not None
            if taken:
                continue
            if not self.may_be_given(block):
                return False
        if not any(self.find((group, prefix)) for group, _ in self.attention()):
            self.branches.discard(prefix)
        for group, block in ends:
            if self.find((group, prefix)) is None:
                assert block is not None
                block.content = (group, prefix)
        return True

    def preempt(self, handle: int) -> None:
        seq = self.running(handle)
        with self.call():
            self.give_back(seq, resumes=True)
            self.settle()  # its end gets the requested level
            seq.retained, seq.retained_end = {}, 0
            seq.computed = seq.settled = seq.written = seq.cached = seq.promoted = 0
            seq.prompt_end = max({seq.prompt_end} & seq.stops, default=0)
            seq.stops.clear()
            seq.named.clear()
            seq.last = 0
            seq.preempted = True

    def free(self, handle: int) -> None:
        seq = self.seqs[handle]
        with self.call():
            if not seq.preempted:
                self.give_back(seq)
                self.settle()  # its end gets the requested level
            del self.seqs[handle]

    def forget(self, ids: list[int]) -> None:
        """Forgets these blocks and everything computed after them, in all groups.

        No prompt finds them any more. Sequences that have one of them continue and cache nothing
        more.
        """
        if any(map(self.promises, self.seqs.values())):
            raise WrongStep
        with self.call():
            wrong = [self.blocks[block - 1] for block in ids]
            starts = {block.content[1] for block in wrong if block.content is not None}
            for seq in self.seqs.values():
                for group, _ in self.attention():
                    table = seq.tables[group] if seq.tables else []
                    units = [unit for unit, block in enumerate(table) if block in wrong]
                    starts |= {seq.prefix((unit + 1) * self.size) for unit in units}
                    if units:
                        seq.promoted = -1
                for group in self.recurrent():
                    if seq.tables[group] and seq.tables[group][0] in wrong:
                        seq.promoted = -1
            gone = {
                block
                for block in self.blocks
                if block.content is not None
                and any(cut(block.content[1], len(start[1])) == start for start in starts)
            }
            for seq in self.seqs.values():
                if any(block in gone for table in seq.tables for block in table):
                    seq.promoted = -1
            for block in gone:
                block.content = None

    # ---- looking at it ------------------------------------------------------------------

    def tables(self, handle: int) -> tuple[tuple[int, ...], ...]:
        return self.ids(self.running(handle))

    def ids(self, seq: Seq) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(memory.NULL if block is None else block.id for block in table)
            for table in seq.tables
        )

    def held_ids(self) -> set[int]:
        """The blocks that a sequence or a copy holds."""
        return {block.id for block in self.in_use()}

    def fingerprint(self) -> tuple[object, ...]:
        """Everything that a call may change, and that a call which raises must leave unchanged."""
        seqs = [
            (s.handle, tuple(s.tokens), self.ids(s), s.computed, s.settled, s.written, s.stands)
            for s in self.seqs.values()
        ]
        copies = [(c.group, c.source.id, c.destination.id, c.num_tokens) for c in self.waiting()]
        contents = [block.content for block in self.blocks]
        order = sorted(self.stamps, key=self.stamps.__getitem__)
        return seqs, copies, contents, order, sorted(self.levels.items())

    def violations(self) -> list[str]:
        """Violations of invariants, which no call may leave behind."""
        found = []
        running = [seq for seq in self.seqs.values() if not seq.preempted]
        states = [seq.tables[group][0] for seq in running for group in self.recurrent()]
        if len(states) != len(set(states)):
            found.append("two sequences share a state")
        if any(block is None or block.content for block in states):
            found.append("a state that is written is findable")
        destinations = [c.destination for c in self.pending]
        if len(destinations) != len(set(destinations)):
            found.append("a copy has two sources")
        if {c.source for c in self.pending} & set(destinations):
            found.append("a copy reads what another one writes")
        needed = {c for prefix in self.stamps for c in self.needs(prefix)}
        found += [f"{content} is needed and gone" for content in needed if not self.find(content)]
        found += [f"{b} is of no use" for b in self.idle_blocks() if b.content not in needed]
        contents = [b.content for b in self.blocks if b.content is not None]
        if len(contents) != len(set(contents)):
            found.append("two blocks are findable by one content")
        held = [(s, b) for s in running for table in s.tables for b in table if b]
        if any(self.owners[block.id - 1] != self.share(seq.namespace) for seq, block in held):
            found.append("a sequence holds a block of another share")
        for seq in running:
            for group, kind in self.attention():
                first = self.first_unit(kind, seq.settled)
                if None in seq.tables[group][first:]:
                    found.append(f"sequence {seq.handle} has a gap in group {group}")
        return found
