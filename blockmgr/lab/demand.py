"""How many blocks a request of a replay takes, and a manager no larger than its trace needs.

With groups of layers, a forward writes its whole chunk, so a window holds the tokens that the first
query of the chunk reads and all tokens of the chunk. The results are upper bounds: the alignment of
blocks with a window changes them by one block per group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.config import options_of
from blockmgr.groups import FullAttention, RecurrentState, tokens_per_block
from blockmgr.manager import BlockManager
from blockmgr.tiers import TierConfig, TieredManager

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.blocks import Match
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.trace import Request, Trace
    from blockmgr.policy import PolicyFactory

__all__ = [
    "Limits",
    "attention_blocks",
    "extra_blocks",
    "held_blocks",
    "replay_manager",
    "row_blocks",
]


def row_blocks(request: Request, config: ReplayConfig) -> int:
    """Logical blocks of the longest sequence of a request."""
    longest = request.num_prompt_tokens + max(config.output_lengths(request))
    return -(-longest // config.block_size)


def extra_blocks(match: Match, config: ReplayConfig) -> int:
    """Additional blocks that reuse takes for a time: the sources of its copies.

    Args:
        match: The match to reuse.
        config: Config of the replay.
    """
    states = sum(isinstance(group, RecurrentState) for group in config.groups)
    partly = match.num_partial_tokens > 0
    return states * (match.num_cached_tokens > 0) + attention_blocks(config) * partly


def attention_blocks(config: ReplayConfig) -> int:
    """Blocks of all groups with attention that hold the tokens of one of the manager's."""
    return sum(
        config.block_size // tokens_per_block(group, config.block_size)
        for group in config.groups
        if not isinstance(group, RecurrentState)
    )


def held_blocks(request: Request, config: ReplayConfig) -> int:
    """Blocks that must be available for a request without cached tokens.

    Its samples share the blocks that the prompt fills, and each has its own blocks from the first
    different token on; samples without output share the prompt's tail. With groups of layers, the
    blocks of all groups count.
    """
    prompt, size = request.num_prompt_tokens, config.block_size
    outputs = config.output_lengths(request)
    shared, own = _shared_and_own(prompt, outputs, size, size)
    if not config.groups:
        # A full last block is computed again if it is cached. Without remapping, both blocks then
        # stay in use, and the samples take their own blocks after that.
        twin = prompt % size == 0 and len(outputs) > 1 and config.dedup == "append_only"
        return shared + own + twin
    total = 0
    for group in config.groups:
        if isinstance(group, RecurrentState):
            total += len(outputs) * (1 + group.extra_blocks)
            continue
        size = tokens_per_block(group, config.block_size)
        shared, own = _shared_and_own(prompt, outputs, size, config.block_size)
        if isinstance(group, FullAttention):
            total += shared + own
        else:
            chunk = min(config.forward_tokens, prompt)
            prefill = -(-(group.width - 1 + chunk) // size) + 1
            running = -(-(group.width - 1) // size) + own  # each sequence has its own tail
            total += min(shared + own, max(prefill, running))
    return total


def _shared_and_own(
    prompt: int, outputs: Sequence[int], size: int, shared_size: int
) -> tuple[int, int]:
    """Blocks that all samples of a prompt share, in whole ones of the manager, and all others."""
    shared = prompt // shared_size * shared_size // size
    own = sum(-(-(prompt + output) // size) - shared for output in outputs if output)
    return shared, own + (-(-prompt // size) - shared) * (0 in outputs)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a manager needs for all requests of a trace, and what it has to tell.

    Attributes:
        sequences: Number of samples of all requests.
        widest_blocks: Blocks of the largest request; with groups of layers, of its longest block
            table.
        ghost_blocks: Evicted blocks to remember.
        events: Whether to keep events.
    """

    sequences: int
    widest_blocks: int
    ghost_blocks: int = 0
    events: bool = False

    @classmethod
    def of(cls, trace: Trace, config: ReplayConfig) -> Limits:
        """The limits of ``trace``. Cost: One pass over its requests."""
        blocks = row_blocks if config.groups else held_blocks
        sequences = widest = 0
        for request in trace.requests:
            sequences += request.num_samples
            widest = max(widest, blocks(request, config))
        return cls(sequences, widest)


def replay_manager(
    num_blocks: int, config: ReplayConfig, limits: Limits, eviction: str | PolicyFactory
) -> BlockManager:
    """A manager with the rows and columns that the trace needs, to save memory.

    Args:
        num_blocks: Blocks in the pool. With groups of layers, the null block is additional.
        config: Config of the replay.
        limits: Limits of the trace.
        eviction: The policy of the device; tiers have that of ``config``.
    """
    grouped = bool(config.groups)
    # No request takes or stores more blocks, so none of its events is lost between two steps.
    waiting = max(256, 2 * limits.widest_blocks, min(65_536, 4 * num_blocks))
    options = {
        **options_of(config),
        "max_seqs": min(config.max_seqs, limits.sequences),
        "max_blocks_per_seq": min(limits.widest_blocks, num_blocks),
        "eviction": eviction,
        "ghost_blocks": limits.ghost_blocks,
        "retention": config.hints != "none",
        "null_block": grouped,
        "events": limits.events,
        "event_blocks": waiting if limits.events else None,
    }
    if config.tiers:
        tiers = [
            TierConfig(num_blocks=tier.num_blocks, eviction=config.eviction, store=config.store)
            for tier in config.tiers
        ]
        return TieredManager(num_blocks, tiers=tiers, **options)
    return BlockManager(num_blocks + grouped, **options)
