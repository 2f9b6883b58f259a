"""Counts cached blocks that no prompt can use, from a snapshot of a manager.

A prompt can continue at a *boundary*: a prefix for which every group holds what the next query
reads. A cached block that no boundary needs wastes memory. A manager frees such blocks
immediately; this module counts them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from blockmgr.blocks import BlockState
from blockmgr.groups import (
    ChunkedAttention,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    table_group,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from blockmgr.blocks import BlockSnapshot
    from blockmgr.groups import Group

__all__ = ["useless_blocks"]

NEVER: Final = 1 << 62


def useless_blocks(blocks: BlockSnapshot, groups: Sequence[Group], block_size: int) -> int:
    """Number of idle blocks of any group that no boundary needs.

    Args:
        blocks: A snapshot without pending copies.
        groups: The groups of the manager.
        block_size: Tokens per block.

    Cost: O(blocks x groups).
    """
    findable = np.isin(blocks.state, (BlockState.CACHED, BlockState.IDLE))
    idle: list[bool] = (blocks.state == BlockState.IDLE).tolist()
    full = table_group(groups)
    nodes = _parents_first(blocks, np.flatnonzero(findable & (blocks.group == full)).tolist())
    parents = blocks.parent.tolist()
    depth: dict[int, int] = {}
    for node in nodes:
        depth[node] = depth[parents[node]] + 1 if parents[node] >= 0 else 0
    tokens = blocks.num_tokens.tolist()
    length = {node: depth[node] * block_size + tokens[node] for node in nodes}

    places = [place for place in range(len(groups)) if place != full]
    parts = {place: _by_node(blocks, findable & (blocks.group == place)) for place in places}
    boundaries = set(nodes)
    reads: dict[int, dict[int, int]] = {}
    for place in places:
        group = groups[place]
        if isinstance(group, RecurrentState):
            boundaries &= parts[place].keys()
            continue
        reads[place] = {n: _first_read(group, length[n]) // block_size for n in nodes}
        run: dict[int, int] = {}  # length of the gapless run of blocks that ends here
        for node in nodes:
            run[node] = 1 + run.get(parents[node], 0) if node in parts[place] else 0
            if run[node] <= depth[node] - reads[place][node]:
                boundaries.discard(node)

    needed = set(boundaries)
    reach = {place: dict.fromkeys(nodes, NEVER) for place in reads}
    for node in reversed(nodes):
        parent = parents[node]
        if node in needed and parent >= 0:
            needed.add(parent)
        for place, first in reach.items():
            if node in boundaries:
                first[node] = min(first[node], reads[place][node])
            if parent >= 0:
                first[parent] = min(first[parent], first[node])
    useless = sum(idle[node] for node in nodes if node not in needed)
    for place in places:
        for node, part in parts[place].items():
            by_query = reach[place][node] <= depth[node] if place in reach else node in boundaries
            useless += idle[part] and not by_query
    return useless


def _first_read(group: Group, position: int) -> int:
    """The first position that the query at this position reads."""
    match group:
        case SlidingWindow(width):
            return max(0, position - width + 1)
        case ChunkedAttention(width):
            return position - position % width
        case FullAttention() | RecurrentState():
            return 0


def _by_node(blocks: BlockSnapshot, chosen: npt.NDArray[np.bool_]) -> dict[int, int]:
    """Blocks of another group, by the block of full attention with which they are found."""
    ids = np.flatnonzero(chosen)
    return dict(zip(blocks.parent[ids].tolist(), ids.tolist(), strict=True))


def _parents_first(blocks: BlockSnapshot, nodes: list[int]) -> list[int]:
    """Nodes in an order with parents before children."""
    children: dict[int, list[int]] = {}
    roots = []
    for node, parent in zip(nodes, blocks.parent[nodes].tolist(), strict=True):
        if parent >= 0:
            children.setdefault(parent, []).append(node)
        else:
            roots.append(node)
    order = roots
    for node in order:
        order += children.get(node, ())
    return order
