"""An upper bound on the hits of any eviction order in a pool of a given size.

With knowledge of the future, the best victim is the block with the farthest next use. That can
always be a leaf: a use of a block is also a use of its parent, so a parent's next use is never
later than its child's, and ties go to the deeper block.

* One request at a time, in order of arrival. A request's own blocks cannot be evicted while it
  runs.
* A hit needs its block to be in the pool at every admission since its last use. Concurrent requests
  only leave less room for that. So no replay with the same admission order finds more, however long
  its requests run and whatever it evicts.
* If a prompt ends exactly at the end of a block, that block never hits, because its last token is
  computed again. The bound may evict such a block until then and keep the blocks after it, which no
  pool does: only in this case can the bound exceed the reachable optimum.

Source: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
Journal 5(2), 1966; Mattson et al., IBM Systems Journal 9(2), 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.lab.references import Rule, references
from blockmgr.lab.replay_config import check_one_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.runs import References
    from blockmgr.lab.trace import Trace

__all__ = ["Optimum", "check_full_blocks_only", "optima_of", "optimum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best that a pool of ``num_blocks`` could have done.

    Attributes:
        num_blocks: Blocks in the pool.
        query_blocks: Blocks looked up that may hit, of all requests.
        hit_blocks: Of those, blocks found.
        query_tokens: Prompt tokens of all requests.
        hit_tokens: Of those, tokens found.
    """

    num_blocks: int
    query_blocks: int
    hit_blocks: int
    query_tokens: int
    hit_tokens: int

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens, in ``0 … 1``."""
        return self.hit_tokens / self.query_tokens


def optimum(trace: Trace, num_blocks: int, config: ReplayConfig, rule: Rule = "manager") -> Optimum:
    """The best result of any eviction order in a pool of ``num_blocks`` blocks.

    A request larger than the pool is rejected, as in a replay, and counts as missed.

    Args:
        trace: The requests.
        num_blocks: Blocks in the pool, at least 1.
        config: Config of a replay; service times do not matter.
        rule: Which blocks a prompt refers to, see ``references``.

    Raises:
        ValueError: ``num_blocks`` is below 1, ``config.min_partial_tokens`` is not 0, or the trace
            cannot be cut into blocks of ``config.block_size``.

    Cost: That of ``references``, and O(log runs) for each run of each request, in the core.
    """
    return optima_of(references(trace, config, rule), [num_blocks], config)[0]


def optima_of(columns: References, sizes: Sequence[int], config: ReplayConfig) -> list[Optimum]:
    """``optimum`` at several pool sizes, for a trace with known references.

    Raises:
        ValueError: As ``optimum`` does.
    """
    for num_blocks in sizes:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
    check_full_blocks_only(config)
    paths = columns.paths()
    found = [paths.most_hits(num_blocks, config.max_seqs) for num_blocks in sizes]
    return [
        Optimum(
            num_blocks=num_blocks,
            query_blocks=columns.query_blocks,
            hit_blocks=hit_blocks,
            query_tokens=columns.query_tokens,
            hit_tokens=hit_tokens,
        )
        for num_blocks, (hit_blocks, hit_tokens) in zip(sizes, found, strict=True)
    ]


def check_full_blocks_only(config: ReplayConfig) -> None:
    """Refuse groups and reuse of parts of blocks: bounds on whole blocks do not hold for them.

    Raises:
        ValueError: ``config`` has groups, or ``min_partial_tokens`` is not 0.
    """
    check_one_group(config, "a bound on whole blocks")
    if config.min_partial_tokens:
        raise ValueError(
            f"min_partial_tokens must be 0 to count whole blocks, got {config.min_partial_tokens}"
        )
