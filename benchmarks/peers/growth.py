"""How does each cost grow with the pool? Full pools of 1,000 to 10,000,000 blocks.

One pool for each system and size, all of its blocks cached; block ids are in the order in which
the system handed them out. A system is left out when its pool would take too long to build,
estimated from the time for a pool a tenth of that size.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from benchmarks.peers import work
from benchmarks.peers.adapter import BLOCK_SIZE, Cache, Operation, Peer, TooSlowError
from benchmarks.peers.rows import Row, Sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NEEDS", "Pool", "build", "growth_rows"]

NEEDS = (Operation.GROWTH, Operation.COLD_ADMIT, Operation.EVICTING_ADMIT)
"""What a system must be able to do, so that a pool of it can be filled and used."""

DECODED_STEPS = 64


class Pool:
    """A full pool of one system."""

    def __init__(self, peer: Peer, num_blocks: int, sizes: Sizes, seconds: float) -> None:
        start = perf_counter()
        self.peer, self.num_blocks = peer, num_blocks
        tokens = sizes.growth_tokens
        self.cache: Cache = peer.open(
            num_blocks,
            max_requests=max(64, sizes.growth_batch),
            max_tokens=max(2 * tokens, 5 * BLOCK_SIZE + DECODED_STEPS),
        )
        left = seconds - (perf_counter() - start)
        prompts = work.fill(peer, self.cache, num_blocks, tokens, seconds=left)
        whole = num_blocks // (tokens // BLOCK_SIZE)  # blocks of the first may have been evicted
        prompts = prompts[-whole:]
        self.hot = work.Scene(peer, self.cache, num_blocks, prompts[-1:], tokens)
        self.in_turn = work.Scene(peer, self.cache, num_blocks, prompts, tokens)
        self.seconds = perf_counter() - start


def build(
    peer: Peer, num_blocks: int, sizes: Sizes, limit: float, before: tuple[int, float] | None
) -> Pool:
    """A full pool, unless it would take more than ``limit`` seconds to build.

    Raises:
        TooSlowError: It would, or did.
    """
    if before is not None:
        expected = before[1] * num_blocks / before[0]
        if expected > limit:
            raise TooSlowError(f"building {num_blocks:,} blocks would take {expected:,.0f} s")
    return Pool(peer, num_blocks, sizes, limit)


def growth_rows(sizes: Sizes, pools: dict[Peer, Pool]) -> Iterator[Row]:
    """The rows for pools of one size, timed in this order: the last ones evict prompts."""
    tokens, batch = sizes.growth_tokens, sizes.growth_batch
    blocks = tokens // BLOCK_SIZE

    def decode(peer: Peer) -> work.Decode:
        return work.Decode(peer, lambda: pools[peer].cache, batch, DECODED_STEPS)

    def evict(peer: Peer) -> work.EvictingAdmit:
        pool = pools[peer]
        return work.EvictingAdmit(peer, pool.cache, pool.num_blocks, tokens)

    timed = (
        ("match", Operation.MATCH, blocks, lambda peer: work.Match(pools[peer].hot)),
        (
            "match, prompts in turn",
            Operation.MATCH,
            blocks,
            lambda peer: work.Match(pools[peer].in_turn),
        ),
        ("warm admit", Operation.ADMIT, blocks, lambda peer: work.Admit(pools[peer].hot)),
        ("free", Operation.FREE, blocks, lambda peer: work.Free(pools[peer].hot)),
        (f"decode of {batch:,}", Operation.DECODE, 1, decode),
        ("cold admit, each block evicts", Operation.EVICTING_ADMIT, blocks, evict),
    )
    for name, operation, count, case in timed:
        unit = "step" if operation == Operation.DECODE else "block"
        yield Row(f"growth/{name}", name, (operation, *NEEDS), unit, count, case)
