"""Computes the hit rate of an unbounded pool without a manager.

Such a pool keeps every computed prefix, so hits depend only on the earlier prefixes. Each segment
of their forest has the number of its tokens that are computed, because the last id of a prompt may
stand for fewer tokens.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blockmgr.lab.by_ids import IdReplays, id_replays
from blockmgr.lab.forest import NO_SEGMENT, Forest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.request import Request
    from blockmgr.lab.trace import Trace

__all__ = ["Attainable", "unbounded", "unbounded_by_ids"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attainable:
    """The counts of an unbounded pool, in which no request waits.

    Attributes:
        query_tokens: Prompt tokens of the trace.
        hit_tokens: Of those, tokens found.
        full_blocks: Distinct full blocks that end up in the pool.
        peak_private_blocks: Most additional blocks that running requests hold at a time: each
            sequence's blocks from the one with its last prompt token on, which never come from the
            cache.
    """

    query_tokens: int
    hit_tokens: int
    full_blocks: int
    peak_private_blocks: int

    @property
    def hit_rate(self) -> float:
        """Hit tokens over query tokens, in ``0 … 1``."""
        return self.hit_tokens / self.query_tokens

    @property
    def working_set_blocks(self) -> int:
        """Number of blocks with which a replay of full-block reuse neither evicts nor waits.

        Capacities given in percent are shares of this number.
        """
        return self.full_blocks + self.peak_private_blocks


def unbounded(trace: Trace, config: ReplayConfig) -> Attainable:
    """Count the hits of an unbounded pool that reuses full blocks only.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.

    Cost: O(hash ids) if every prompt is known by ids and no output is known, else O(tokens).
    """
    trace.check_block_size(config.block_size)
    by_ids = id_replays(trace, config)
    return _Unbounded(trace, config).run() if by_ids is None else unbounded_by_ids(by_ids)


def unbounded_by_ids(replays: IdReplays) -> Attainable:
    """``unbounded`` for a trace whose blocks are numbered already."""
    hit_tokens, full_blocks, private = replays.unbounded()
    return Attainable(
        query_tokens=replays.query_tokens,
        hit_tokens=hit_tokens,
        full_blocks=full_blocks,
        peak_private_blocks=private,
    )


class _Unbounded:
    """The replay's event loop, with a set of prefixes instead of the manager."""

    def __init__(self, trace: Trace, config: ReplayConfig) -> None:
        self._requests = trace.requests
        self._config = config
        self._forest = Forest(trace, config.block_size)
        self._computed: dict[int, int] = {}  # tokens, by segment
        self._full_blocks = 0

    def run(self) -> Attainable:
        query_tokens = hit_tokens = private = peak_private = 0
        running: list[tuple[int, int, Request, int]] = []
        for number, request in enumerate(self._requests):
            while running and running[0][0] <= request.arrival_ms:
                _, _, ended, blocks = heapq.heappop(running)
                self._add_outputs(ended)
                private -= blocks
            query_tokens += request.num_prompt_tokens
            hit_tokens += self._add_prompt(request)
            blocks = self._private_blocks(request)
            private += blocks
            peak_private = max(peak_private, private)
            end_ms = request.arrival_ms + self._config.service_ms(request)
            heapq.heappush(running, (end_ms, number, request, blocks))
        for _, _, request, _ in running:
            self._add_outputs(request)
        return Attainable(
            query_tokens=query_tokens,
            hit_tokens=hit_tokens,
            full_blocks=self._full_blocks,
            peak_private_blocks=peak_private,
        )

    def _private_blocks(self, request: Request) -> int:
        block_size = self._config.block_size
        served = (request.num_prompt_tokens - 1) // block_size
        return sum(
            -(-(request.num_prompt_tokens + output) // block_size) - served
            for output in self._config.output_lengths(request)
        )

    def _add_prompt(self, request: Request) -> int:
        """Make a prompt findable; returns the number of its tokens that were findable before."""
        num_tokens, block_size = request.num_prompt_tokens, self._config.block_size
        found = self._add(request.namespace, self._forest.keys(request), num_tokens)
        return min(found, (num_tokens - 1) // block_size) * block_size

    def _add_outputs(self, request: Request) -> None:
        for output in request.outputs:
            # The last token of an output is never computed.
            if len(output) > 1:
                tokens = np.concatenate((request.tokens(), output[:-1]))
                self._add(request.namespace, self._forest.token_keys(tokens), len(tokens))
        if not request.outputs:
            # Made up, so that no prompt shares them: these blocks need no numbers.
            [length] = self._config.output_lengths(request)
            size, prompt = self._config.block_size, request.num_prompt_tokens
            self._full_blocks += max(0, (prompt + length - 1) // size - prompt // size)

    def _add(self, namespace: bytes, keys: Iterable[bytes], num_tokens: int) -> int:
        """Add a chain of segments; returns the number of its leading blocks that existed before."""
        forest, computed, block_size = self._forest, self._computed, self._config.block_size
        parent = forest.segment(NO_SEGMENT, namespace)
        found, left = 0, num_tokens
        for key in keys:
            tokens = min(forest.segment_size, left)
            left -= tokens
            segment = forest.segment(parent, key)
            before = computed.get(segment, 0)
            # A segment is only added below one that is computed to its end, so the found segments
            # are always a prefix of the chain.
            found += min(before, tokens) // block_size
            if tokens > before:
                self._full_blocks += tokens // block_size - before // block_size
                computed[segment] = tokens
            parent = segment
        return found
