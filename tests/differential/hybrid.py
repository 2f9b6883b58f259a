"""Compares groups of layers with vLLM: what each side finds for the same requests.

    python -m tests.differential.hybrid --steps 100000

A stream admits prompts with common prefixes, prefills them in chunks, decodes, preempts, resumes
and ends them in random order. Each side chooses its stops: vLLM where its scheduler ends a chunk,
ours where ``stops`` says. At each admission the two numbers of found tokens are compared. A
difference needs a reason: a position at which the side that finds more has kept something, of a
kind in ``VERDICTS``. An unexplained difference ends the run with exit code 1; so does a hit on a
state at a position where no forward of that side has stopped.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    FullAttention,
    NeverFitsError,
    OutOfBlocksError,
    RecurrentState,
    SlidingWindow,
)
from blockmgr.groups import Group

SIZE = 4
MAX_TOKENS = 72
NO_ROOM = (OutOfBlocksError, NeverFitsError)
GROUPS: dict[str, tuple[Group, ...]] = {
    "window": (FullAttention(), SlidingWindow(9)),
    "chunk": (FullAttention(), ChunkedAttention(8)),
    "state": (FullAttention(), RecurrentState()),
    "window and state": (FullAttention(), SlidingWindow(6), RecurrentState()),
    "two windows and two states": (
        FullAttention(), SlidingWindow(5), SlidingWindow(12), RecurrentState(), RecurrentState(),
    ),
}  # fmt: skip

VERDICTS = {
    "within a page": "ours: a prompt may go on inside a page",
    "end of a sequence": "ours: the end of a sequence stays findable, its state included",
    "interior of a window": "ours: windows are kept at every page end while there is room; vLLM's "
    "interval 0 keeps them where a prompt ended or diverged",
    "page end": "vLLM keeps a state at a page end that ours did not name: at each chunk end "
    "(interval None), or where a prompt diverged from attention that none of our states needed",
    "unit end": "vLLM's finer unit keeps a state at the last unit of a prompt",
    "order of eviction": "the pool was full: the sides evict in different orders",
    "refused by theirs": "vLLM admits a prompt if all of it fits, ours if its first chunk does",
    "refused by ours": "the pool was full: the sides share other blocks",
}
"""Kinds of differences, and the reason for each."""


class Unexplained(AssertionError):
    """A difference without a reason."""


@dataclass
class Request:
    """A scheduler's view of a request, and the progress of each side."""

    name: int
    tokens: list[int]
    target: int = 0


class Side(Protocol):
    """One manager. ``kept`` maps tokens to the positions where it may have kept something."""

    kept: dict[tuple[int, ...], str]
    evicts: bool

    def admit(self, request: Request, target: int) -> int | None:
        """Admits and computes up to ``target``; the tokens found, or ``None`` without room."""

    def prefill(self, request: Request, target: int) -> bool:
        """Computes up to ``target``; false if there is no room."""

    def decode(self, request: Request) -> bool:
        """Appends and computes a token; false if there is no room."""

    def release(self, name: int, *, preempted: bool) -> None:
        """Frees all blocks."""


class Ours:
    """``BlockManager`` with groups."""

    def __init__(self, groups: tuple[Group, ...], num_blocks: int, fewest: int) -> None:
        self.manager = BlockManager(
            num_blocks + 1,
            SIZE,
            groups=groups,
            null_block=True,
            max_seqs=64,
            min_partial_tokens=fewest,
        )
        self.states = any(isinstance(group, RecurrentState) for group in groups)
        self.kept: dict[tuple[int, ...], str] = {}
        self.handles: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}

    @property
    def evicts(self) -> bool:
        return self.manager.stats().evicted_blocks > 0

    def admit(self, request: Request, target: int) -> int | None:
        found = self.manager.match(request.tokens).num_cached_tokens
        slots = min(len(request.tokens), max(target, found + 1))
        try:
            if request.name in self.waiting:
                handle = self.waiting[request.name]
                self.manager.resume(handle, num_slots=slots)
                del self.waiting[request.name]
            else:
                handle = self.manager.admit(request.tokens, num_slots=slots)
        except NO_ROOM:
            return None
        self.handles[request.name] = handle
        self.tokens[request.name] = request.tokens
        found = self.manager.sequence(handle).num_computed_tokens
        return found if self.prefill(request, target) else None

    def prefill(self, request: Request, target: int) -> bool:
        handle = self.handles[request.name]
        sequence = self.manager.sequence(handle)
        while sequence.num_computed_tokens < target:
            stops = self.manager.stops(handle)
            end = min([target, *stops])
            try:
                self.manager.reserve(handle, end)
            except NO_ROOM:
                return False
            self._forward(handle, end)
            if self.states and end in stops:
                kind = "within a page" if end % SIZE else "page end"
                self.kept.setdefault(tuple(request.tokens[:end]), kind)
        return True

    def decode(self, request: Request) -> bool:
        handle = self.handles[request.name]
        try:
            self.manager.append(handle, request.tokens[-1:])
        except NO_ROOM:
            return False
        self._forward(handle, len(request.tokens))
        return True

    def _forward(self, handle: int, end: int) -> None:
        self._run_copies()
        self.manager.commit(handle, end)
        self._run_copies()  # a kept state can be found once its copy has run

    def _run_copies(self) -> None:
        self.manager.copies_applied(self.manager.take_copies().ticket)

    def release(self, name: int, *, preempted: bool) -> None:
        handle = self.handles.pop(name)
        end = self.manager.sequence(handle).num_computed_tokens
        self.kept.setdefault(tuple(self.tokens[name][:end]), "end of a sequence")
        if preempted:
            self.manager.preempt(handle)
            self.waiting[name] = handle
        else:
            self.manager.free(handle)


@dataclass
class Stream:
    """One seed's worth of requests, driven through both sides.

    Attributes:
        groups: Groups of layers, the same on both sides.
        differences: Admissions by the reason why the sides differ; ``equal`` if they do not.
        tokens: Tokens found by ours and by theirs.
    """

    seed: int
    groups: tuple[Group, ...]
    ours: Side
    theirs: Side
    differences: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.beginnings = [
            [self.rng.randrange(2) for _ in range(self.rng.randint(3, 40))] for _ in range(4)
        ]
        self.running: list[Request] = []
        self.preempted: list[Request] = []
        self.names = iter(range(10**9))
        self.has_states = any(isinstance(group, RecurrentState) for group in self.groups)
        self.computed: set[tuple[int, ...]] = set()

    def run(self, steps: int) -> None:
        """Drive both sides.

        Raises:
            Unexplained: They differ, and no kind of difference explains it.
        """
        for _ in range(steps):
            act = self.rng.choices(
                (self._admit, self._advance, self._finish, self._preempt), (4, 8, 3, 1)
            )[0]
            if self.running or act == self._admit:
                act()

    def _admit(self) -> None:
        if self.preempted and self.rng.random() < 0.5:
            request = self.preempted.pop()
        else:
            begin = self.rng.choice(self.beginnings)
            begin = begin[: self.rng.randint(1, len(begin))] if self.rng.random() < 0.3 else begin
            own = [self.rng.randrange(3) for _ in range(self.rng.randint(1, 20))]
            request = Request(next(self.names), begin + own)
        self._start(request)

    def _start(self, request: Request) -> None:
        total = len(request.tokens)
        request.target = min(total, SIZE * self.rng.randint(1, 20))
        ours, theirs = (side.admit(request, request.target) for side in (self.ours, self.theirs))
        if ours is None or theirs is None:
            by = "both" if ours == theirs else "ours" if ours is None else "theirs"
            if by == "ours" and not self.ours.evicts:
                raise Unexplained(f"ours has no room: {request}")
            self.differences[f"refused by {by}"] += 1
            self._note(request)  # the other side may have computed this
            for side in (self.ours, self.theirs):
                self._drop(side, request)
            return
        request.target = max(request.target, min(total, -(-max(ours, theirs) // SIZE) * SIZE))
        self.tokens.update(ours=ours, theirs=theirs)
        self.differences[self._reason(request, ours, theirs)] += 1
        self.running.append(request)
        self._catch_up(request)

    def _reason(self, request: Request, ours: int, theirs: int) -> str:
        longest = tuple(request.tokens[: max(ours, theirs)])
        # A forward has at least one token, so vLLM's may have gone one beyond the target.
        known = (self.computed, self.ours.kept, self.theirs.kept)
        if longest and not any(longest in ends for ends in known):
            raise Unexplained(f"ours found {ours}, theirs {theirs}, never computed: {request}")
        if ours == theirs:
            return "equal"
        more, side = max((ours, self.ours), (theirs, self.theirs), key=lambda pair: pair[0])
        kind = side.kept.get(tuple(request.tokens[:more]))
        if self.has_states and kind is None:
            raise Unexplained(f"{more} tokens found where no forward has stopped: {request}")
        if side is self.ours and more % SIZE and kind is None:
            kind = "within a page"
        if side is self.ours and kind is None:
            kind = "interior of a window"
        if (side is self.theirs or kind == "page end") and (self.ours.evicts or self.theirs.evicts):
            return "order of eviction"
        if kind is None or (kind == "page end" and side is self.ours):
            raise Unexplained(f"ours found {ours}, theirs {theirs}, by {kind}: {request}")
        return kind

    def _drop(self, side: Side, request: Request) -> None:
        if request.name in getattr(side, "handles", {}) or request.name in getattr(
            side, "requests", {}
        ):
            side.release(request.name, preempted=False)

    def _catch_up(self, request: Request) -> bool:
        self._note(request)
        done = [side.prefill(request, request.target) for side in (self.ours, self.theirs)]
        if not all(done):
            self._release(request)
        return all(done)

    def _note(self, request: Request) -> None:
        self.computed.update(tuple(request.tokens[:end]) for end in range(1, request.target + 1))

    def _advance(self) -> None:
        request = self.rng.choice(self.running)
        total = len(request.tokens)
        if request.target < total:
            begun = request.target // SIZE
            request.target = min(total, SIZE * (begun + self.rng.randint(1, 6)))
            self._catch_up(request)
        elif total < MAX_TOKENS:
            request.tokens.append(self.rng.randrange(3))
            request.target += 1
            self._note(request)
            done = [side.decode(request) for side in (self.ours, self.theirs)]
            if not all(done):
                self._release(request)

    def _finish(self) -> None:
        self._release(self.rng.choice(self.running))

    def _preempt(self) -> None:
        request = self.rng.choice(self.running)
        self._release(request, preempted=True)
        self.preempted.append(request)

    def _release(self, request: Request, *, preempted: bool = False) -> None:
        self.running.remove(request)
        for side in (self.ours, self.theirs):
            side.release(request.name, preempted=preempted)


def main() -> int:
    """Run streams until that many steps were compared."""
    from tests.differential.hybrid_vllm import SETTINGS, Theirs

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=20_000, help="steps for each kind of groups")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first stream")
    options = parser.parse_args()
    seen: set[str] = set()
    for name, groups in GROUPS.items():
        for setting in SETTINGS:
            for pool in (4000, 90):
                differences, tokens = Counter[str](), Counter[str]()
                for seed in range(options.seed, options.seed + options.steps // 500):
                    ours = Ours(groups, pool, fewest=seed % 2)
                    theirs = Theirs(groups, pool, setting)
                    stream = Stream(seed, groups, ours, theirs)
                    try:
                        stream.run(500)
                    except Unexplained as error:
                        print(f"{name}, {setting}, {pool} blocks, seed {seed}: {error}")
                        return 1
                    differences += stream.differences
                    tokens += stream.tokens
                print(f"{name}, {setting}, {pool} blocks: {dict(differences)}, {dict(tokens)}")
                seen |= differences.keys()
    for kind in sorted(seen & VERDICTS.keys()):
        print(f"{kind}: {VERDICTS[kind]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
