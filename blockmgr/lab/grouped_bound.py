"""The hit rate of a pool without bounds, with groups of layers.

Such a pool evicts no boundary. Windows and chunks are then wherever full attention is, so it finds
what full attention alone would find, in as many blocks a group. A state is only where a forward
has stopped, so with states a manager is replayed in a pool that is large enough.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from blockmgr.groups import RecurrentState
from blockmgr.lab.attainable import Attainable
from blockmgr.lab.group_demand import row_blocks
from blockmgr.lab.replay import replay

if TYPE_CHECKING:
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = ["ample_blocks", "as_alone", "by_ample_pool"]


def as_alone(alone: Attainable, config: ReplayConfig) -> Attainable:
    """With windows and chunks, from what an unbounded pool of full attention alone does."""
    groups = len(config.groups)
    return replace(
        alone,
        full_blocks=alone.full_blocks * groups,
        peak_private_blocks=alone.peak_private_blocks * groups,
    )


def ample_blocks(trace: Trace, config: ReplayConfig) -> int:
    """A pool in which a replay never evicts: all that its requests can leave behind.

    A sequence leaves its blocks of attention, with one more for a branch within a block. It keeps
    a state at two stops and at its end, beside the one that it moves.
    """
    states = sum(isinstance(group, RecurrentState) for group in config.groups)
    attention = len(config.groups) - states
    total = 0
    for request in trace.requests:
        lengths = config.output_lengths(request)
        blocks = row_blocks(request.num_prompt_tokens, lengths, config.block_size) + 1
        total += len(lengths) * (blocks * attention + 4 * states)
    return total


def by_ample_pool(trace: Trace, config: ReplayConfig) -> Attainable:
    """From a replay in which nothing is evicted and no request waits.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """
    sequences = sum(request.num_samples for request in trace.requests)
    ample = replay(trace, ample_blocks(trace, config), replace(config, max_seqs=sequences))
    assert ample.by_group is not None
    assert not ample.evictions
    kept = ample.by_group.cached_blocks_at_end
    # The peak is seen before each forward; a state that is kept after it takes a block at once.
    states = sum(isinstance(group, RecurrentState) for group in config.groups)
    return Attainable(
        query_tokens=ample.query_tokens,
        hit_tokens=ample.hit_tokens,
        full_blocks=kept,
        peak_private_blocks=ample.by_group.peak_blocks + states - kept,
    )
