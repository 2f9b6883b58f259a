"""Splits a batch into parts that a model with recurrent layers can run.

Layers with attention take concatenated sequences. In a recurrent layer, a state would leak from one
sequence into the next. So a part has one row per sequence, all with the same number of tokens, and
fresh sequences are separate.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from blockmgr.ports.transformers.attention import PagedBatch

__all__ = ["Part", "parts_of"]


class Part(NamedTuple):
    """Some tokens of some sequences of a batch.

    Attributes:
        batch: The batch of these tokens; its ``query_lens`` are equal.
        rows: ``int64[num_outputs]``: indices of its outputs in the whole batch.
        is_fresh: Whether its sequences have no earlier tokens.
    """

    batch: PagedBatch
    rows: npt.NDArray[np.int64]
    is_fresh: bool


def parts_of(batch: PagedBatch, *, resumes: bool, by_start: bool) -> Iterator[Part]:
    """The parts of a batch, to be run in this order.

    Args:
        batch: The batch.
        resumes: Whether the layers can continue from a state by several tokens at a time; if not,
            sequences with earlier tokens run token by token.
        by_start: Whether the sequences of a part must have the same number of earlier tokens.
    """
    starts = (batch.context_lens - batch.query_lens).tolist()
    rounds: defaultdict[int, defaultdict[tuple[int, int], list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for i, (start, count) in enumerate(zip(starts, batch.query_lens.tolist(), strict=True)):
        steps = count if start and not resumes else 1
        for step in range(steps):
            key = count // steps, start + step if by_start else int(start > 0)
            rounds[step][key].append(i)
    for step, alike in sorted(rounds.items()):
        for (count, start), members in alike.items():
            part, rows = _part(batch, np.array(members), step, count)
            yield Part(part, rows, is_fresh=start == 0)


def _part(
    batch: PagedBatch, members: npt.NDArray[np.int64], step: int, count: int
) -> tuple[PagedBatch, npt.NDArray[np.int64]]:
    """Tokens ``[step, step + count)`` of each of these sequences."""
    ends = np.cumsum(batch.query_lens)
    begins = (ends - batch.query_lens)[members] + step
    picked = (begins[:, None] + np.arange(count)).ravel()
    index = np.full(len(batch.tokens), -1)
    index[picked] = np.arange(len(picked))
    wanted = index[batch.outputs]
    rows = np.flatnonzero(wanted >= 0)
    before = (batch.context_lens - batch.query_lens)[members]
    part = replace(
        batch,
        tokens=batch.tokens[picked],
        positions=batch.positions[picked],
        slots=batch.slots[picked],
        query_lens=np.full(len(members), count),
        context_lens=before + step + count,
        block_tables=batch.block_tables[members],
        outputs=wanted[rows],
        groups=tuple(
            replace(
                group,
                slots=None if group.slots is None else group.slots[picked],
                block_tables=group.block_tables[members],
            )
            for group in batch.groups
        ),
    )
    return part, rows
