"""The rows of the comparison: what is timed, on what sizes, in which pools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.cases import Prompts
from benchmarks.peers import work
from benchmarks.peers.adapter import BLOCK_SIZE, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.peers.adapter import Cache, Peer
    from benchmarks.peers.turns import Case

__all__ = ["FULL", "TINY", "Row", "Scattered", "Sizes", "rows", "scattered_rows"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of prompts, pools and batches."""

    prompt_tokens: tuple[int, ...]
    """Lengths of the prompts that are matched and admitted warm; the middle one is the usual
    one."""
    turn_tokens: tuple[int, int]
    """Tokens of a conversation that are cached, and those that its next prompt adds."""
    pool_blocks: int
    batches: tuple[int, ...]
    fork_blocks: int
    num_children: int
    scattered_blocks: int
    growth_blocks: tuple[int, ...]
    growth_tokens: int
    growth_batch: int

    @property
    def usual_tokens(self) -> int:
        """Tokens of the prompt in all rows with a single size."""
        return self.prompt_tokens[len(self.prompt_tokens) // 2]


FULL = Sizes(
    prompt_tokens=(1024, 32_768, 131_072),
    turn_tokens=(136_320, 5_680),
    pool_blocks=65_536,
    batches=(64, 256, 1024, 4096),
    fork_blocks=2048,
    num_children=8,
    scattered_blocks=1 << 20,
    growth_blocks=(1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    growth_tokens=4096,
    growth_batch=64,
)
TINY = Sizes(
    prompt_tokens=(64, 128, 256),
    turn_tokens=(256, 32),
    pool_blocks=64,
    batches=(16, 32),
    fork_blocks=4,
    num_children=3,
    scattered_blocks=192,
    growth_blocks=(200, 400),
    growth_tokens=64,
    growth_batch=16,
)


LENGTHS = ("short", "usual", "long")
"""Names of ``Sizes.prompt_tokens`` in the keys of rows."""


@dataclass(frozen=True)
class Row:
    """An operation at one size, and a factory of the timed case."""

    key: str
    """The same for every size: ``match/usual``."""
    name: str
    needs: tuple[Operation, ...]
    unit: str
    count: int
    """Units in one run."""
    case: Callable[[Peer], Case]


def thousands(tokens: int) -> str:
    """``32k`` for 32,768."""
    return f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)


def rows(sizes: Sizes) -> Iterator[Row]:
    """Every row that builds a separate cache for each system."""
    hot = (
        ("warm match", Operation.MATCH, work.Match),
        ("warm admit", Operation.ADMIT, work.Admit),
        ("free", Operation.FREE, work.Free),
    )
    for words, operation, case in hot:
        for length in LENGTHS:
            yield _hot(sizes, words, operation, length, case)
    usual, pool = sizes.usual_tokens, sizes.pool_blocks
    blocks = usual // BLOCK_SIZE
    yield Row(
        "cold",
        "cold admit + commit",
        (Operation.COLD_ADMIT,),
        "block",
        blocks,
        lambda peer: work.ColdAdmit(peer, usual, pool),
    )
    yield Row(
        "evicting",
        "cold admit, each block evicts",
        (Operation.EVICTING_ADMIT, Operation.COLD_ADMIT),
        "block",
        blocks,
        lambda peer: _evicting(peer, pool, usual),
    )
    before, added = sizes.turn_tokens
    yield Row(
        "turn",
        f"next turn of an agent, {before + added:,} tokens, {before / (before + added):.0%} cached",
        (Operation.COLD_ADMIT, Operation.ADMIT),
        "call",
        1,
        lambda peer: work.NextTurn(peer, before, added, pool),
    )
    for batch in sizes.batches:
        yield Row(
            f"decode/{batch}",
            f"decode of {batch:,}",
            (Operation.DECODE,),
            "step",
            1,
            _decode_maker(batch, pool),
        )
    forked, children = sizes.fork_blocks, sizes.num_children
    yield Row(
        "fork",
        f"fork of {forked:,} blocks x {children}",
        (Operation.FORK,),
        "call",
        1,
        lambda peer: work.Fork(peer, forked, children),
    )
    yield Row(
        "copy on write",
        "the copy-on-write step after it",
        (Operation.COPY_ON_WRITE, Operation.FORK),
        "step",
        1,
        lambda peer: work.CopyOnWrite(peer, forked, children),
    )


def _hot(
    sizes: Sizes, words: str, operation: Operation, length: str, case: Callable[[work.Scene], Case]
) -> Row:
    tokens = sizes.prompt_tokens[LENGTHS.index(length)]
    blocks = tokens // BLOCK_SIZE
    pool = max(sizes.pool_blocks, 2 * blocks)
    return Row(
        f"{operation}/{length}",
        f"{words}, {thousands(tokens)}",
        (operation,),
        "block",
        blocks,
        lambda peer: case(work.Hot(peer, tokens, pool)),
    )


def _evicting(peer: Peer, pool: int, tokens: int) -> work.EvictingAdmit:
    cache = peer.open(pool, max_requests=16, max_tokens=tokens + BLOCK_SIZE)
    work.fill(peer, cache, pool, tokens)
    return work.EvictingAdmit(peer, cache, pool, tokens)


def _decode_maker(batch: int, pool: int) -> Callable[[Peer], Case]:
    blocks = max(pool, 32 * batch)
    steps = blocks // 2 // (batch // BLOCK_SIZE)

    def make(peer: Peer) -> Case:
        def open_cache() -> Cache:
            return peer.open(blocks, max_requests=batch, max_tokens=steps + (6 * BLOCK_SIZE))

        return work.Decode(peer, open_cache, batch, steps)

    return make


class Scattered:
    """A large pool with its blocks in random order, shared by prompts of every size.

    Each size takes up a quarter of the pool, and its prompts are visited in turn: between two
    turns of a prompt, the blocks of all others of its size pass through the processor's caches.
    """

    def __init__(self, peer: Peer, sizes: Sizes) -> None:
        num_blocks = sizes.scattered_blocks
        cache = peer.open(
            num_blocks, max_requests=4096, max_tokens=max(sizes.prompt_tokens) + BLOCK_SIZE
        )
        cache.scatter(np.random.default_rng(4).permutation(num_blocks))
        draw = Prompts().draw
        self.scenes: dict[int, work.InTurn] = {}
        for tokens in sizes.prompt_tokens:
            count = num_blocks // 4 // (tokens // BLOCK_SIZE)
            prompts = [draw(tokens + 1) for _ in range(count)]
            for prompt in prompts:
                work.cached(cache, peer.prompt(prompt[:-1]))
            self.scenes[tokens] = work.InTurn(peer, cache, num_blocks, prompts, tokens)


def scattered_rows(sizes: Sizes, pools: dict[Peer, Scattered]) -> Iterator[Row]:
    """The rows in a scattered pool; ``pools`` has it for each system."""
    timed = (
        ("match", Operation.MATCH, work.Match),
        ("admit", Operation.ADMIT, work.Admit),
        ("free", Operation.FREE, work.Free),
    )
    for words, operation, case in timed:
        for length, tokens in zip(LENGTHS, sizes.prompt_tokens, strict=True):
            if operation != Operation.MATCH and length != "usual":
                continue
            yield Row(
                f"{operation}/{length}/scattered",
                f"{words}, {thousands(tokens)}, cache-missing",
                (operation, Operation.SCATTERED),
                "block",
                tokens // BLOCK_SIZE,
                lambda peer, case=case, tokens=tokens: case(pools[peer].scenes[tokens]),
            )
