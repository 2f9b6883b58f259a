"""The batch of a step: its tokens, and the slots and block tables of each group of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.groups import RecurrentState, table_group, tokens_per_block
from blockmgr.ports.transformers.attention import GroupTables, PagedBatch

if TYPE_CHECKING:
    from blockmgr.manager import BlockManager
    from blockmgr.ports.engine.jobs import Track

__all__ = ["batch_of"]

ROW_MASK: Final = 0xFFFFFFFF  # of a handle: its row in the block tables


def batch_of(manager: BlockManager, tracks: list[Track]) -> PagedBatch:
    """The tokens ``[written, target)`` of these tracks, concatenated."""
    starts = np.array([track.written for track in tracks])
    stops = np.array([track.target for track in tracks])
    rows = np.array([track.live() for track in tracks]) & ROW_MASK
    longest, config = int(stops.max()), manager.config
    tokens = [t for track in tracks for t in track.tokens[track.written : track.target]]
    is_last = stops == np.array([len(track.tokens) for track in tracks])

    def tables_of(group: int | None, *, has_slots: bool = True) -> GroupTables:
        slots = None
        if has_slots:
            slots = np.concatenate(
                [manager.slot_mapping(t.live(), t.written, t.target, group=group) for t in tracks]
            )
        table = manager.block_tables if group is None else manager.group_table(group)
        size = config.block_size
        if config.groups:
            kind = config.groups[table_group(config.groups) if group is None else group]
            size = tokens_per_block(kind, size)
        return GroupTables(slots=slots, block_tables=table[rows, : -(-longest // size)])

    whole = tables_of(None)
    assert whole.slots is not None
    return PagedBatch(
        tokens=np.array(tokens, np.int64),
        positions=np.concatenate([np.arange(t.written, t.target) for t in tracks]),
        slots=whole.slots,
        query_lens=stops - starts,
        context_lens=stops,
        block_tables=whole.block_tables,
        outputs=(np.cumsum(stops - starts) - 1)[is_last],
        groups=tuple(
            tables_of(group, has_slots=not isinstance(kind, RecurrentState))
            for group, kind in enumerate(manager.config.groups)
        ),
    )
