"""The manager and the specification get the same calls and must decide the same.

An engine sees the manager. After each call both are compared: results and refusals, what each
sequence has computed and where it stops, which units of its tables have blocks and who shares
them, planned copies, and the number of free blocks. Ids of blocks may differ.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from blockmgr import BlockState
from blockmgr.errors import NeverFitsError, OutOfBlocksError, StepError
from tests.groups import memory
from tests.groups.core import CoreManager
from tests.groups.engine import SETS as ENGINE_SETS
from tests.groups.engine import Engine
from tests.groups.model import ModelManager
from tests.specification.admission import Terms
from tests.specification.layers import ChunkedAttention, FullAttention, Kind, RecurrentState

SETS = (
    *(kinds for kinds in ENGINE_SETS if len(kinds) > 1 and FullAttention() in kinds),
    (FullAttention(), ChunkedAttention(4), RecurrentState()),
)
"""Models with full attention and more; the manager merges blocks of one group one by one."""


class Different(AssertionError):
    """The manager decides otherwise than the specification."""


class Evicted(Exception):
    """A block was evicted, or would have to be. From here on the two may differ."""


class Tied(Exception):
    """They differ while a copy comes from another one of several blocks with the same prefix."""


class Lockstep(CoreManager):
    """What the manager does, compared with the specification."""

    def __init__(self, num_blocks: int, block_size: int, kinds: Any, **options: Any) -> None:
        super().__init__(num_blocks, block_size, kinds, **options, retention=True)
        self.model = ModelManager(num_blocks, block_size, kinds, **options)
        self.other: dict[int, int] = {}
        """The handle that a sequence has in the specification."""
        self.tied = False
        """A copy has another source than expected, and is not done."""

    def different(self, how: str) -> Exception:
        """What to raise. With a tie, blocks differ that only a copy keeps, and what finds them."""
        return Tied() if self.tied else Different(how)

    # ---- calls ----------------------------------------------------------------------------

    def both(self, model: Callable[[], Any], core: Callable[[], Any]) -> tuple[Any, Any]:
        """Makes a call on both; returns both results, or raises what both raise."""
        self.model.lookahead, self.model.early = self.lookahead, self.early
        self.model.steps_in_flight = self.steps_in_flight
        results: list[Any] = []
        for call in (model, core):
            try:
                results.append(call())
            except (OutOfBlocksError, NeverFitsError, StepError) as refusal:
                results.append(refusal)
        refused = [r if isinstance(r, Exception) else None for r in results]
        expected, found = map(type, refused)
        if expected is not found and not {expected, found} <= {OutOfBlocksError, NeverFitsError}:
            if found is OutOfBlocksError and self.num_kept_for_others():
                raise Evicted  # one of those has to go first
            raise self.different(f"{expected.__name__} expected, {found.__name__} found")
        if refused[1]:
            raise refused[1]
        return results[0], results[1]

    def same(self, name: str, *args: Any, model_args: tuple[Any, ...] | None = None) -> Any:
        """Makes a call whose results must be equal."""
        theirs = args if model_args is None else model_args
        expected, found = self.both(
            lambda: getattr(self.model, name)(*theirs),
            lambda: getattr(CoreManager, name)(self, *args),
        )
        if expected != found:
            raise self.different(f"{expected} expected, {found} found")
        self.compare()
        return found

    def of_one(self, name: str, handle: int, *args: Any) -> Any:
        return self.same(name, handle, *args, model_args=(self.other[handle], *args))

    def match(self, tokens: list[int], namespace: bytes = b"") -> int:
        """What does not fit now may find anything: no admission will use it."""
        found = CoreManager.match(self, tokens, namespace)
        seq = self.model.prompt(tokens, namespace)
        plan, fits = self.model.best_plan(seq, len(tokens), Terms())
        if fits and plan.cached != found and self.num_kept_for_others():
            raise Evicted  # less fits
        if fits:
            self.equal("match", plan.cached, found)
        self.compare()
        return found

    def admit(self, tokens: list[int], namespace: bytes = b"", num_slots: int | None = None) -> int:
        args = (tokens, namespace, num_slots)
        expected, handle = self.both(
            lambda: self.model.admit(*args), lambda: CoreManager.admit(self, *args)
        )
        self.other[handle] = expected
        self.compare()
        return int(handle)

    def fork(self, handle: int, count: int = 1) -> list[int]:
        expected, made = self.both(
            lambda: self.model.fork(self.other[handle], count),
            lambda: CoreManager.fork(self, handle, count),
        )
        self.other.update(zip(made, expected, strict=True))
        self.compare()
        return list(made)

    def reparent(self, handles: list[int], parents: list[int]) -> None:
        others = [self.other[handle] for handle in handles]
        self.same("reparent", handles, parents, model_args=(others, parents))

    def resume(self, handle: int) -> None:
        self.of_one("resume", handle)

    def reserve(self, handle: int, num_slots: int) -> None:
        self.of_one("reserve", handle, num_slots)

    def append(self, handle: int, tokens: list[int]) -> None:
        self.of_one("append", handle, tokens)

    def commit(self, handle: int, computed: int) -> None:
        self.of_one("commit", handle, computed)

    def truncate(self, handle: int, num_tokens: int) -> int:
        return int(self.of_one("truncate", handle, num_tokens))

    def preempt(self, handle: int) -> None:
        self.of_one("preempt", handle)

    def free(self, handle: int) -> None:
        other = self.other[handle]
        self.both(lambda: self.model.free(other), lambda: CoreManager.free(self, handle))
        del self.other[handle]
        self.compare()

    def cache_state(self, handle: int) -> bool:
        return bool(self.of_one("cache_state", handle))

    def retain(self, tokens: list[int], level: int, namespace: bytes = b"") -> int:
        return int(self.same("retain", tokens, level, namespace))

    def retain_tokens(self, handle: int, start: int, stop: int, level: int) -> None:
        self.of_one("retain_tokens", handle, start, stop, level)

    def touch_prompt(self, tokens: list[int], namespace: bytes = b"") -> None:
        self.same("touch_prompt", tokens, namespace)

    def acquire(self, ids: list[int]) -> None:
        """What a held block continues stays, too; the specification does not say so."""

    def release(self, ids: list[int]) -> None:
        """See acquire."""

    def forget(self, ids: list[int]) -> None:
        """Of a block that is not found, the specification forgets more; not compared."""

    def decode(self, handles: list[int], tokens: list[int]) -> None:
        others = [self.other[handle] for handle in handles]
        self.both(
            lambda: self.model.decode(others, tokens),
            lambda: CoreManager.decode(self, handles, tokens),
        )
        self.compare()

    # ---- steps ----------------------------------------------------------------------------

    def take_copies(self) -> list[memory.Copy]:
        expected, found = self.both(self.model.take_copies, lambda: CoreManager.take_copies(self))
        self.compare(expected, found)
        return list(found)

    def copies_applied(self) -> None:
        self.same("copies_applied")

    def copies_aborted(self) -> None:
        self.same("copies_aborted")

    def complete(self) -> None:
        self.same("complete")

    # ---- comparison -------------------------------------------------------------------------

    def compare(self, *plans: list[memory.Copy]) -> None:
        """Raises Different unless both are in the same state."""
        names: dict[int, int] = {}
        for mine, theirs in self.pairs():
            if names.setdefault(mine, theirs) != theirs:
                raise self.different(f"block {mine} is shared by other sequences than expected")
        if len(set(names.values())) != len(names):
            raise self.different("a block that is shared was expected")
        if self.model.count["evicted_blocks"] or self.core.stats().evicted_blocks:
            raise Evicted
        shares = [None, *self.quotas]
        free = sum(len(self.model.free_blocks(share)) for share in shares)
        # The manager keeps a block as long as one that continues it is in use.
        if not 0 <= free - len(self.free_blocks()) <= self.num_kept_for_others():
            raise self.different(f"free: {free} expected, {len(self.free_blocks())} found")
        for handle, other in self.other.items():
            self.equal(
                f"sequence {handle}", self.facts(self.model, other), self.facts(self, handle)
            )
        expected, found = plans or (
            [memory.Copy(*copy_of(c)) for c in self.model.pending],
            self.pending,
        )
        self.equal(
            "copies",
            Counter((c.group, c.destination, c.num_tokens) for c in expected),
            Counter((c.group, names.get(c.destination), c.num_tokens) for c in found),
        )
        self.note_ties(names)

    def note_ties(self, names: dict[int, int]) -> None:
        """names: of blocks in tables, the number that each has in the specification."""
        copies = self.model.pending + self.model.flight
        if not copies and not self.model.in_flight:
            self.tied = False
        expected = {copy.destination.id: copy.source.id for copy in copies}
        known = set(names.values())
        for copy in [*self.pending, *self.flight]:
            source = expected.get(names.get(copy.destination, -1))
            if source is not None and (copy.source in names or source in known):
                self.tied |= names.get(copy.source) != source

    def num_kept_for_others(self) -> int:
        found = self.core.blocks()
        return sum(
            state == BlockState.CACHED and not users
            for state, users in zip(found.state.tolist(), found.ref_count.tolist(), strict=True)
        )

    def equal(self, what: str, expected: object, found: object) -> None:
        if expected != found:
            raise self.different(f"{what}: {expected} expected, {found} found")

    def facts(self, manager: Any, handle: int) -> tuple[object, ...]:
        seq = manager.seqs[handle]
        if seq.preempted:
            return (list(seq.tokens), "preempted")
        stops = sorted(stop for stop in seq.stops if stop > seq.computed)
        return (list(seq.tokens), seq.computed, seq.settled, stops)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Blocks of the manager and of the specification in the same place of a table."""
        for handle, other in self.other.items():
            if self.seqs[handle].preempted:
                continue
            row = self.core.row(handle)
            tables = list(self.tables(handle))
            for group in self.recurrent():
                tables[group] = (int(self.core.group_table(group)[row, 0]),)
            for group, (mine, theirs) in enumerate(
                zip(tables, self.model.tables(other), strict=True)
            ):
                self.equal(
                    f"units of group {group} of sequence {handle}",
                    [bool(block) for block in theirs],
                    [bool(block) for block in mine],
                )
                yield from ((a, b) for a, b in zip(mine, theirs, strict=True) if a)


def copy_of(copy: Any) -> tuple[int, int, int, int]:
    return copy.group, copy.source.id, copy.destination.id, copy.num_tokens


def run(seed: int, kinds: tuple[Kind, ...], build: type[Lockstep] = Lockstep) -> int:
    """The calls of an engine until its end, or until something is evicted."""
    engine = Engine(seed, kinds, build, audits=False, more_blocks=100)
    with contextlib.suppress(Evicted, Tied):
        engine.run(40)
    return engine.calls
