"""Random requests, and two block managers that serve them in lock-step.

A stream admits prompts with common prefixes, prefills them in chunks, decodes, preempts, resumes
and ends them in random order. After every step both sides must have found equally many tokens, have
equally many blocks available, and agree on what does not fit.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from blockmgr import BlockManager, NeverFitsError, OutOfBlocksError

BLOCK_SIZE = 4
MAX_TOKENS = 64
# The other side does not distinguish "not now" from "never".
NO_ROOM = (OutOfBlocksError, NeverFitsError)


class Side(Protocol):
    """One block manager, as a scheduler uses it. Requests are named by small ints."""

    def admit(self, name: int, tokens: list[int], chunk: int) -> int | None:
        """Finds the cached prefix and allocates slots for ``chunk`` more tokens.

        Returns the number of cached tokens, or ``None`` if there are too few blocks.
        """

    def prefill(self, name: int, chunk: int) -> bool:
        """Allocates slots for the next ``chunk`` tokens; false if blocks are short."""

    def decode(self, name: int, token: int) -> bool:
        """Appends a token with its slot; false if blocks are short."""

    def release(self, name: int) -> None:
        """Frees all blocks."""

    def available(self) -> int:
        """Blocks that are available."""

    def has_twins(self) -> bool:
        """Whether identical blocks are cached more than once, which never happens in ours."""


class Ours:
    """``BlockManager``, configured like vLLM: append-only tables, no partial reuse.

    Like the other side, it caches blocks when they are scheduled, not when they are computed.
    """

    def __init__(self, num_blocks: int, *, dedup: str = "append_only") -> None:
        self.manager = BlockManager(
            num_blocks,
            BLOCK_SIZE,
            null_block=True,
            early_commit=True,
            max_seqs=64,
            dedup=dedup,  # type: ignore[arg-type]
        )
        self.handles: dict[int, int] = {}

    def _end_step(self) -> None:
        self.manager.copies_applied(self.manager.take_copies().ticket)

    def admit(self, name: int, tokens: list[int], chunk: int) -> int | None:
        found = self.manager.match(tokens).num_cached_tokens
        until = min(found + chunk, len(tokens))
        try:
            handle = self.manager.admit(tokens, num_slots=until)
        except NO_ROOM:
            return None
        self.handles[name] = handle
        self.manager.commit(handle, until)
        self._end_step()
        return found

    def prefill(self, name: int, chunk: int) -> bool:
        sequence = self.manager.sequence(self.handles[name])
        until = sequence.num_computed_tokens + chunk
        try:
            sequence.reserve(until)
        except NO_ROOM:
            return False
        sequence.commit(until)
        self._end_step()
        return True

    def decode(self, name: int, token: int) -> bool:
        sequence = self.manager.sequence(self.handles[name])
        try:
            sequence.append([token])
        except NO_ROOM:
            return False
        sequence.commit(sequence.num_tokens)
        self._end_step()
        return True

    def release(self, name: int) -> None:
        self.manager.free(self.handles.pop(name))

    def available(self) -> int:
        return self.manager.num_available

    def has_twins(self) -> bool:
        return False


@dataclass
class Request:
    """A scheduler's view of a request."""

    name: int
    tokens: list[int]
    num_computed: int = 0


@dataclass
class Stream:
    """One seed's worth of requests, driven through both sides."""

    seed: int
    ours: Side
    theirs: Side
    twins: bool
    """Whether requests may compute a block that is cached already: prompts that end where a block
    does, and prompts that are prefilled in chunks side by side."""

    steps: Counter[str] = field(default_factory=Counter)
    requests: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.names = iter(range(10**9))
        self.tokens = iter(range(1000, 2**31))  # of outputs: no two requests generate the same

    def run(self, steps: int) -> bool:
        """Makes steps until one shows a difference; returns whether all agreed.

        Stops early, with agreement, once the other side caches a block twice: its cache then has
        less room for other blocks, and the sides differ legitimately (see README.md).
        """
        for _ in range(steps):
            agreed = self._step()
            self.steps["steps"] += 1
            if self.theirs.has_twins():
                self.steps["ended by twins"] += 1
                return agreed
            if not agreed or self.ours.available() != self.theirs.available():
                return False
        return True

    def _step(self) -> bool:
        kinds = [self._admit] * 4 + [self._resume]
        if self.requests:
            kinds += [self._advance] * 8 + [self._finish] * 3 + [self._preempt]
        return self.rng.choice(kinds)()

    def _prompt(self) -> list[int]:
        """Common prefixes: a few tokens, each of which can be followed by two others."""
        length = self.rng.randrange(1, MAX_TOKENS)
        if not self.twins and length % BLOCK_SIZE == 0:
            length += 1
        return [self.rng.randrange(2) if i % 8 == 0 else i for i in range(length)]

    def _admit(self) -> bool:
        return self._start(Request(next(self.names), self._prompt()))

    def _resume(self) -> bool:
        if not self.preempted:
            return True
        request = self.preempted.pop(self.rng.randrange(len(self.preempted)))
        return self._start(Request(next(self.names), request.tokens))

    def _start(self, request: Request) -> bool:
        chunk = self.rng.choice([3, 8, len(request.tokens)]) if self.twins else len(request.tokens)
        ours, theirs = (
            side.admit(request.name, request.tokens, chunk) for side in (self.ours, self.theirs)
        )
        self.steps["refused" if ours is None else "admitted"] += 1
        self.steps["hit tokens"] += ours or 0
        if ours is not None:
            request.num_computed = min(ours + chunk, len(request.tokens))
            self.requests.append(request)
        return ours == theirs

    def _advance(self) -> bool:
        request = self.rng.choice(self.requests)
        left = len(request.tokens) - request.num_computed
        if left:
            chunk = min(self.rng.choice([1, 5, 40]), left)
            ours, theirs = (side.prefill(request.name, chunk) for side in (self.ours, self.theirs))
            request.num_computed += chunk if ours else 0
            self.steps["chunk" if ours else "no room"] += 1
        else:
            token = next(self.tokens)
            ours, theirs = (side.decode(request.name, token) for side in (self.ours, self.theirs))
            request.tokens += [token] if ours else []
            request.num_computed += ours
            self.steps["decode" if ours else "no room"] += 1
        if not ours:
            self._release(request)
        return ours == theirs

    def _finish(self) -> bool:
        self.steps["finished"] += 1
        self._release(self.rng.choice(self.requests))
        return True

    def _preempt(self) -> bool:
        request = self.rng.choice(self.requests)
        self.steps["preempted"] += 1
        self._release(request)
        if self.twins or len(request.tokens) % BLOCK_SIZE:
            self.preempted.append(request)
        return True

    def _release(self, request: Request) -> None:
        self.requests.remove(request)
        for side in (self.ours, self.theirs):
            side.release(request.name)
