"""The timed work, written once against the interface of a peer.

Prompts are random token ids below 128,000. A warm prompt has one token more than its cached
blocks hold, because the last token of a prompt is never served from a cache.
"""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cases import Prompts
from benchmarks.peers.adapter import BLOCK_SIZE, TooSlowError
from benchmarks.peers.turns import WrongWorkError, expect

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from benchmarks.peers.adapter import Cache, Peer
    from benchmarks.peers.turns import Call

__all__ = [
    "Admit",
    "ColdAdmit",
    "CopyOnWrite",
    "Decode",
    "EvictingAdmit",
    "Fork",
    "Free",
    "Hot",
    "InTurn",
    "Match",
    "NextTurn",
    "Scene",
    "cached",
    "fill",
]


MOST_PROMPTS = 1024
"""How many of the prompts in a full pool take turns: 256k blocks at 4,096 tokens each."""


def cached(cache: Cache, prompt: Any) -> None:
    """Leaves every full block of a prompt cached and idle."""
    cache.free(cache.admit(prompt))


def fill(
    peer: Peer, cache: Cache, num_blocks: int, num_tokens: int, *, seconds: float = math.inf
) -> list[npt.NDArray[np.uint32]]:
    """Caches different prompts until no block is free; returns the newest of them.

    Raises:
        TooSlowError: It has taken more than ``seconds``.
    """
    draw = Prompts(3).draw
    until = perf_counter() + seconds
    prompts: deque[npt.NDArray[np.uint32]] = deque(maxlen=MOST_PROMPTS)
    for number in range(-(-num_blocks // (num_tokens // BLOCK_SIZE))):
        prompts.append(draw(num_tokens + 1))
        cached(cache, peer.prompt(prompts[-1][:-1]))
        if perf_counter() > until:
            share = (number + 1) * (num_tokens // BLOCK_SIZE) / num_blocks
            raise TooSlowError(f"filling {share:.0%} of the pool took more than {seconds:.0f} s")
    return list(prompts)


class Scene:
    """A cache in which prompts of one length are cached, and which of them comes next."""

    def __init__(
        self, peer: Peer, cache: Cache, num_blocks: int, prompts: list[Any], num_tokens: int
    ) -> None:
        self.peer, self.cache, self.num_blocks = peer, cache, num_blocks
        self.num_tokens = num_tokens
        self._prompts = prompts
        self._turn = 0

    def next_prompt(self) -> Any:
        """The next prompt in the system's form, in fresh memory like one that has just arrived."""
        self._turn = (self._turn + 1) % len(self._prompts)
        return self.peer.prompt(self._prompts[self._turn].copy())


class Hot(Scene):
    """One prompt in a pool large enough for it: everything stays in the processor's caches."""

    def __init__(self, peer: Peer, num_tokens: int, num_blocks: int) -> None:
        cache = peer.open(num_blocks, max_requests=16, max_tokens=num_tokens + BLOCK_SIZE)
        prompt = Prompts().draw(num_tokens + 1)
        super().__init__(peer, cache, num_blocks, [prompt], num_tokens)
        self._prompt = peer.prompt(prompt)
        cached(cache, self._prompt)

    def next_prompt(self) -> Any:
        return self._prompt


class InTurn(Scene):
    """Many prompts in a scattered pool, so that each block misses the processor's caches."""


class Match:
    """Finds every block, allocates none."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def prepare(self) -> Call:
        return self._scene.cache.match, (self._scene.next_prompt(),)

    def done(self, result: int) -> None:
        expect("cached tokens", result, self._scene.num_tokens)

    def finish(self) -> None: ...


class Admit:
    """Finds and references every block, allocates one for the last token."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._request: Any = None

    def prepare(self) -> Call:
        return self._scene.cache.admit, (self._scene.next_prompt(),)

    def done(self, result: Any) -> None:
        scene = self._scene
        held = scene.num_tokens // BLOCK_SIZE + 1
        expect("free blocks", scene.cache.num_free(), scene.num_blocks - held)
        scene.cache.free(result)

    def finish(self) -> None:
        Free(self._scene).done(None)
        Match(self._scene).done(self._scene.cache.match(self._scene.next_prompt()))


class Free:
    """Ends a request that shares no blocks: all but one stay cached."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def prepare(self) -> Call:
        scene = self._scene
        return scene.cache.free, (scene.cache.admit(scene.next_prompt()),)

    def done(self, result: None) -> None:
        del result
        expect("free blocks", self._scene.cache.num_free(), self._scene.num_blocks)

    def finish(self) -> None:
        Match(self._scene).done(self._scene.cache.match(self._scene.next_prompt()))


class ColdAdmit:
    """Allocates and promotes every block of a prompt that is not cached, from free blocks."""

    def __init__(self, peer: Peer, num_tokens: int, num_blocks: int) -> None:
        self._peer, self._num_tokens, self._num_blocks = peer, num_tokens, num_blocks
        self._prompts = Prompts()
        self._left = 0

    def prepare(self) -> Call:
        blocks = self._num_tokens // BLOCK_SIZE
        if not self._left:  # before the free blocks run out, so that none is evicted
            self._cache = self._peer.open(
                self._num_blocks, max_requests=16, max_tokens=self._num_tokens + BLOCK_SIZE
            )
            self._left = self._num_blocks // blocks
        self._left -= 1
        self._prompt = self._peer.prompt(self._prompts.draw(self._num_tokens))
        return self._cache.admit, (self._prompt,)

    def done(self, result: Any) -> None:
        blocks = self._num_tokens // BLOCK_SIZE
        expect("free blocks", self._cache.num_free(), self._num_blocks - blocks)
        self._cache.free(result)

    def finish(self) -> None:
        most = self._num_tokens - BLOCK_SIZE  # the last token is never served
        expect("cached tokens afterwards", self._cache.match(self._prompt), most)


class NextTurn:
    """The next prompt of a conversation: the last one, which is cached, and what was added."""

    def __init__(self, peer: Peer, num_tokens: int, num_added: int, num_blocks: int) -> None:
        self._peer, self._num_added = peer, num_added
        most = num_tokens + num_added
        self._open = partial(peer.open, num_blocks, max_requests=16, max_tokens=most + BLOCK_SIZE)
        self._num_blocks, self._held = num_blocks, most // BLOCK_SIZE
        self._fits = (num_blocks - num_tokens // BLOCK_SIZE) // (num_added // BLOCK_SIZE)
        self._prompts = Prompts()
        self._before = self._prompts.draw(num_tokens)
        self._left = 0

    def prepare(self) -> Call:
        if not self._left:  # before the free blocks run out, so that none is evicted
            self._cache = self._open()
            cached(self._cache, self._peer.prompt(self._before))
            self._left = self._fits
        self._left -= 1
        added = self._prompts.draw(self._num_added)
        self._prompt = self._peer.prompt(np.concatenate([self._before, added]))
        return self._cache.admit, (self._prompt,)

    def done(self, result: Any) -> None:
        expect("free blocks", self._cache.num_free(), self._num_blocks - self._held)
        self._cache.free(result)

    def finish(self) -> None:
        most = (self._held - 1) * BLOCK_SIZE  # the last token is never served
        expect("cached tokens afterwards", self._cache.match(self._prompt), most)


class EvictingAdmit:
    """The same in a pool full of cached blocks: each block is evicted from an earlier prompt."""

    def __init__(self, peer: Peer, cache: Cache, num_blocks: int, num_tokens: int) -> None:
        self._peer, self._cache, self._num_blocks = peer, cache, num_blocks
        self._num_tokens = num_tokens
        self._prompts = Prompts(1)
        self._oldest: Any = None

    def _draw(self) -> Any:
        return self._peer.prompt(self._prompts.draw(self._num_tokens))

    def prepare(self) -> Call:
        self._prompt = self._draw()
        if self._oldest is None:
            self._oldest = self._prompt
            self._runs = 0
        self._runs += 1
        return self._cache.admit, (self._prompt,)

    def done(self, result: Any) -> None:
        blocks = self._num_tokens // BLOCK_SIZE
        expect("free blocks", self._cache.num_free(), self._num_blocks - blocks)
        self._cache.free(result)

    def finish(self) -> None:
        blocks = self._num_tokens // BLOCK_SIZE
        if self._runs > self._num_blocks // blocks + 1:
            expect("cached tokens of a prompt long evicted", self._cache.match(self._oldest), 0)
        most = self._num_tokens - BLOCK_SIZE
        expect("cached tokens of the newest", self._cache.match(self._prompt), most)


class Decode:
    """One token for each request of a staggered batch: one in sixteen allocates a block."""

    def __init__(
        self, peer: Peer, open_cache: Callable[[], Cache], num_requests: int, most_steps: int
    ) -> None:
        self._peer, self._open, self._num_requests = peer, open_cache, num_requests
        self._most_steps = most_steps
        self._prompts = Prompts(2)
        self._requests: list[Any] = []
        self._left = 0

    def _end(self) -> None:
        while self._requests:
            self._cache.free(self._requests.pop())

    def _start(self) -> None:
        self._end()
        self._cache = self._open()
        lengths = 4 * BLOCK_SIZE + np.arange(self._num_requests) % BLOCK_SIZE
        draw, prompt = self._prompts.draw, self._peer.prompt
        self._requests = [self._cache.admit(prompt(draw(n))) for n in lengths.tolist()]
        self._batch = self._cache.batch(self._requests)
        self._left = self._most_steps

    def prepare(self) -> Call:
        if not self._left:
            self._start()
        self._left -= 1
        self._free = self._cache.num_free()
        tokens = self._peer.prompt(self._prompts.draw(self._num_requests))
        return self._cache.step, (self._batch, tokens)

    def done(self, result: None) -> None:
        del result
        taken = self._num_requests // BLOCK_SIZE
        expect("free blocks", self._cache.num_free(), self._free - taken)

    def finish(self) -> None:
        self._end()


class _Family:
    """A request with a tail that is not full, and its children."""

    def __init__(self, peer: Peer, num_blocks: int, num_children: int) -> None:
        self._peer, self._num_children = peer, num_children
        self._pool = 2 * num_blocks + 2 * num_children
        tokens = num_blocks * BLOCK_SIZE
        self._cache = peer.open(
            self._pool, max_requests=num_children + 1, max_tokens=tokens + 2 * BLOCK_SIZE
        )
        self._prompt = peer.prompt(Prompts().draw(tokens + BLOCK_SIZE // 2))
        self._used = num_blocks + 1
        self._family: list[Any] = []

    def _end(self) -> None:
        while self._family:
            self._cache.free(self._family.pop())
        expect("free blocks", self._cache.num_free(), self._pool)

    def finish(self) -> None:
        self._end()


class Fork(_Family):
    """Children that share every block; they are freed outside the timed part."""

    def prepare(self) -> Call:
        self._end()
        self._family = [self._cache.admit(self._prompt)]
        return self._cache.fork, (self._family[0], self._num_children)

    def done(self, result: Any) -> None:
        expect("children", len(result), self._num_children)
        self._family += result
        taken = self._pool - self._used - self._cache.num_free()
        if taken > self._num_children:  # a system may copy the tail at once
            raise WrongWorkError(f"a fork took {taken} blocks")


class CopyOnWrite(_Family):
    """The step after a fork: all write to the shared tail, and the copies are drained."""

    def prepare(self) -> Call:
        self._end()
        cache = self._cache
        self._family = [cache.admit(self._prompt)]
        cache.copies()
        self._family += cache.fork(self._family[0], self._num_children)
        self._copied = cache.copies()
        batch = cache.batch(self._family)
        tokens = np.arange(len(self._family), dtype=np.uint32)
        return self._step, (batch, self._peer.prompt(tokens))

    def _step(self, batch: Any, tokens: Any) -> int:
        self._cache.step(batch, tokens)
        return self._cache.copies()

    def done(self, result: int) -> None:
        expect("copies", self._copied + result, self._num_children)
        free = self._pool - self._used - self._num_children
        expect("free blocks", self._cache.num_free(), free)
