"""A recorded trace through every system: the host time of all its admissions and ends.

Requests run in order of arrival, without the time between them. A fixed number runs at once; the
oldest ends to make room for the next. The pool holds a tenth of the distinct blocks, or what the
running requests need. Systems take turns of a few requests. Prompts are expanded from the trace
outside the timed part. Every sixteenth request is looked up before its admission, untimed, to see
what each system finds.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.peers.turns import expect, timed, without_gc
from blockmgr.lab.trace import HashedPrompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.peers.adapter import Cache, Peer
    from blockmgr.lab.trace import Request

__all__ = ["Outcome", "pool_for", "replay"]

RUNNING = 16
TURN = 32
SAMPLED = 16


@dataclass
class Outcome:
    """The times of one system in a replay."""

    seconds: float = 0.0
    looked_up: int = 0
    found: int = 0
    error: Exception | None = None
    running: deque[Any] = field(default_factory=deque)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens found, over the requests that were looked up."""
        return self.found / self.looked_up if self.looked_up else 0.0


def pool_for(requests: Sequence[Request], block_size: int) -> int:
    """A tenth of the distinct blocks, or what requests need that run at once."""
    distinct: set[int] = set()
    window: deque[set[int]] = deque()
    uses: Counter[int] = Counter()
    most = 0
    for request in requests:
        prompt = request.prompt
        if not isinstance(prompt, HashedPrompt):
            raise TypeError("the trace must be known by hash ids")
        window.append(set(prompt.ids.tolist()))
        uses.update(window[-1])
        if len(window) > RUNNING + 1:
            uses -= Counter(window.popleft())
        most = max(most, len(uses))
        distinct |= window[-1]
    blocks_per_id = -(-prompt.tokens_per_id // block_size)
    # A system may keep the last block of each request apart, which is not full.
    return max(len(distinct) * blocks_per_id // 10, most * blocks_per_id + 2 * RUNNING)


def replay(
    peers: Sequence[Peer], requests: Sequence[Request], num_blocks: int, block_size: int
) -> dict[str, Outcome]:
    """Every request through every system once."""
    longest = max(request.num_prompt_tokens for request in requests) + block_size
    caches = {
        peer.name: peer.open(num_blocks, block_size, max_requests=RUNNING + 1, max_tokens=longest)
        for peer in peers
    }
    outcomes = {peer.name: Outcome() for peer in peers}
    with without_gc():
        for first in range(0, len(requests), TURN):
            for peer in peers:
                outcome = outcomes[peer.name]
                if outcome.error is None:
                    chosen = enumerate(requests[first : first + TURN], first)
                    gc.collect(0)  # requests of some systems are reference cycles
                    try:
                        _turn(peer, caches[peer.name], chosen, outcome)
                    except Exception as error:
                        outcome.error = error
    for name, outcome in outcomes.items():
        if outcome.error is None:
            for request in outcome.running:
                caches[name].free(request)
            expect(f"free blocks of {name}", caches[name].num_free(), num_blocks)
    return outcomes


def _turn(peer: Peer, cache: Cache, requests: Any, outcome: Outcome) -> None:
    admit, free, running = cache.admit, cache.free, outcome.running
    nanoseconds = 0
    for number, request in requests:
        prompt = peer.prompt(request.tokens())
        if number % SAMPLED == 0:
            outcome.looked_up += request.num_prompt_tokens
            outcome.found += cache.match(prompt)
        ending = running.popleft() if len(running) == RUNNING else None
        if ending is not None:
            nanoseconds += timed(free, ending)[1]
        admitted, took = timed(admit, prompt)
        nanoseconds += took
        running.append(admitted)
    outcome.seconds += nanoseconds * 1e-9
