"""The hit rate of an unbounded pool with groups of layers.

Such a pool evicts no boundary. Windows and chunks are then cached wherever full attention is, so it
finds what full attention alone would find, with that many blocks per group. A state exists only
where a forward ended, so with states, a manager with a large enough pool is replayed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from blockmgr.groups import RecurrentState
from blockmgr.lab.attainable import Attainable
from blockmgr.lab.demand import row_blocks
from blockmgr.lab.replay import replay

if TYPE_CHECKING:
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = ["ample_blocks", "as_alone", "by_ample_pool"]


def as_alone(alone: Attainable, config: ReplayConfig) -> Attainable:
    """The counts with windows and chunks, from those of full attention alone."""
    groups = len(config.groups)
    return replace(
        alone,
        full_blocks=alone.full_blocks * groups,
        peak_private_blocks=alone.peak_private_blocks * groups,
    )


def ample_blocks(trace: Trace, config: ReplayConfig) -> int:
    """The size of a pool in which a replay never evicts.

    A sequence leaves its attention blocks, and one more for a branch inside a block. It keeps
    states at three stops and at its end, besides the current one.
    """
    states = sum(isinstance(group, RecurrentState) for group in config.groups)
    attention = len(config.groups) - states
    total = 0
    for request in trace.requests:
        lengths = config.output_lengths(request)
        blocks = row_blocks(request.num_prompt_tokens, lengths, config.block_size) + 1
        total += len(lengths) * (blocks * attention + 5 * states)
    return total


def by_ample_pool(trace: Trace, config: ReplayConfig) -> Attainable:
    """The counts from a replay without evictions and waits.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """
    sequences = sum(request.num_samples for request in trace.requests)
    ample = replay(trace, ample_blocks(trace, config), replace(config, max_seqs=sequences))
    assert ample.by_group is not None
    assert not ample.evictions
    kept = ample.by_group.cached_blocks_at_end
    # The peak is measured before each forward; a state kept after it takes a block immediately.
    states = sum(isinstance(group, RecurrentState) for group in config.groups)
    return Attainable(
        query_tokens=ample.query_tokens,
        hit_tokens=ample.hit_tokens,
        full_blocks=kept,
        peak_private_blocks=ample.by_group.peak_blocks + states - kept,
    )
