"""Creates the manager of a replay, no larger than its trace needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.config import options_of
from blockmgr.lab.demand import held_blocks, row_blocks
from blockmgr.manager import BlockManager
from blockmgr.tiers import TierConfig, TieredManager

if TYPE_CHECKING:
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.trace import Trace
    from blockmgr.policy import PolicyFactory

__all__ = ["Limits", "replay_manager"]


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
        sequences = widest = 0
        for request in trace.requests:
            sequences += request.num_samples
            if config.groups:
                lengths = config.output_lengths(request)
                blocks = row_blocks(request.num_prompt_tokens, lengths, config.block_size)
            else:
                blocks = held_blocks(request, config)
            widest = max(widest, blocks)
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
