"""The blocks that a trace refers to, by request.

A block stands for the whole prefix that ends with it. The prefixes of a trace form a forest with
one tree per namespace, and every prompt is a path from a root. Paths are stored as *runs*: segments
of a tree in whose interior no path begins, branches or ends. Every request refers to all blocks of
a run or to none, so the cost of an hour of production traffic depends on the number of turns, not
on the block size::

    A  a0 a1 a2 a3 a4                 run 0: a0 a1     run 1: a2 a3 a4
    B  a0 a1 b2 b3                                     run 2: b2 b3
    C  a0 a1 a2 a3 a4 c5                                        run 3: c5, below run 1

Three rules define the blocks to which a prompt of ``n`` tokens refers, at ``b`` tokens per block:

========= ====================== ========================== ====================================
rule      cached                 may hit                    for
========= ====================== ========================== ====================================
manager   full blocks, known     ``(n - 1) // b``: the last what ``BlockManager`` does
          outputs included       token is computed again
served    ``(n - 1) // b``       all of them                engines that never keep a block the
                                                            prompt itself could not be served
ids       ``ceil(n / b)``        all of them                cache simulators, which take each id
                                                            of a trace for a block
========= ====================== ========================== ====================================

An output of which only the length is known ends a path with blocks that no other path has, except
with the rule ``ids``, or if the replay has no such outputs.

With ``ids``, the partial last block of a prompt known by hash ids is the full block with the same
id; for a prompt known by tokens it is a separate block.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

import numpy as np

from blockmgr.lab.by_ids import id_replays
from blockmgr.lab.demand import held_blocks
from blockmgr.lab.replay_config import check_one_group
from blockmgr.lab.request import HashedPrompt
from blockmgr.lab.runs import (
    COLUMNS,
    NO_RUN,
    Paths,
    References,
    Rule,
    made_up_blocks,
    prompt_blocks,
    with_own,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.trace import Request, Tokens, Trace

__all__ = ["NO_RUN", "References", "Rule", "columns_of", "references"]


def references(trace: Trace, config: ReplayConfig, rule: Rule = "manager") -> References:
    """The blocks that ``trace`` refers to at ``config.block_size``.

    Args:
        trace: The requests.
        config: Config of the replay.
        rule: Rule for the blocks of a prompt.

    Raises:
        ValueError: There is no such rule, ``config`` has groups of layers, or the trace cannot be
            cut into these blocks.

    Cost: O(hash ids) if every prompt is known by ids and no output is known, else O(blocks).

    >>> from blockmgr.lab.replay import ReplayConfig
    >>> from blockmgr.lab.workloads import generate
    >>> stream = references(generate("chat", seed=0, conversations=2), ReplayConfig())
    >>> stream.num_nodes > len(stream.length)
    True
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")
    check_one_group(config, "references to blocks")
    trace.check_block_size(config.block_size)
    return columns_of(trace, config, rule)


def columns_of(trace: Trace, config: ReplayConfig, rule: Rule = "manager") -> References:
    """``references`` at any block size; blocks are equal if their tokens are."""
    by_ids = id_replays(trace, config)
    return _Entering(trace, config, rule).columns() if by_ids is None else by_ids.columns(rule)


class _Entering:
    """Enters the prompts and known outputs of a trace into a forest."""

    def __init__(self, trace: Trace, config: ReplayConfig, rule: Rule) -> None:
        self._trace = trace
        self._config = config
        self._remapped = replace(config, dedup="remap")  # a request rarely holds a block twice
        self._rule = rule
        size = trace.segment_size(config.block_size)
        self._hashed = trace.is_hashed and size == trace.tokens_per_id
        self._segment_blocks = size // config.block_size
        self._paths = Paths(self._segment_blocks)
        self._ids: dict[bytes, int] = {}  # of segments by content
        self._ends = array("q")  # the path that each sample continues
        self._own = array("q")  # and the blocks after it that no other path has

    def columns(self) -> References:
        requests = np.array([self._enter(request) for request in self._trace.requests])
        forest, cuts = self._paths.cut()
        place, prompt = COLUMNS.index("limit"), COLUMNS.index("prompt")
        paths = requests[:, prompt].copy()
        requests[:, place], requests[:, prompt] = cuts[paths].T
        ends, own = (np.array(column, dtype=np.int64) for column in (self._ends, self._own))
        forest, ends = with_own(forest, cuts[ends, 1], own)
        return References(self._config.block_size, *forest, requests, ends)

    def _enter(self, request: Request) -> tuple[int, ...]:
        """Enter a request's paths; returns its ``COLUMNS``, with its path for its runs."""
        size, prompt = self._config.block_size, request.num_prompt_tokens
        limit, cached = prompt_blocks(self._rule, prompt, size)
        path = self._extended([], self._prompt_keys(request, cached), 0, cached)
        number = self._add(request, path, limit, cached)
        outputs = () if self._rule == "ids" else request.outputs
        held = cached
        for output in outputs:
            # The last token of an output is never computed.
            blocks = max(cached, (prompt + len(output) - 1) // size)
            end = number
            if blocks > cached:
                keys = self._token_keys(np.concatenate((request.tokens(), output)), cached, blocks)
                longer = self._extended(path, keys, cached, blocks)
                end = self._add(request, longer, blocks, blocks)
                held += blocks - cached
            self._ends.append(end)
            self._own.append(0)
        if not outputs:
            [length] = self._config.output_lengths(request)
            own = made_up_blocks(self._rule, prompt, length, size)
            self._ends.extend([number] * request.num_samples)
            self._own.extend([own] * request.num_samples)
            held += own
        asked = first_held = held
        if self._rule == "manager":
            asked = held_blocks(request, self._config)
            held = held_blocks(request, self._remapped)
            first_held = -(-(prompt + self._config.output_lengths(request)[0]) // size)
        last_tokens = (prompt - 1) % size + 1 if self._rule == "ids" else size
        blocks_of_it = (limit, cached, asked, held, first_held)
        times = (request.arrival_ms, self._config.service_ms(request))
        return (*times, number, number, *blocks_of_it, prompt, last_tokens, request.num_samples)

    def _add(self, request: Request, path: list[int], limit: int, blocks: int) -> int:
        """Enter a path of so many blocks, as far as it has ids, and cut it at its limit."""
        most = len(path) * self._segment_blocks
        return self._paths.add(request.namespace, path, min(limit, most), min(blocks, most))

    def _prompt_keys(self, request: Request, blocks: int) -> Iterable[bytes]:
        if self._hashed and isinstance(request.prompt, HashedPrompt):
            return (i.to_bytes(8) for i in request.prompt.ids.tolist())
        return self._token_keys(request.tokens(), 0, blocks)

    def _token_keys(self, tokens: Tokens, start: int, stop: int) -> Iterable[bytes]:
        size = self._config.block_size
        return (tokens[n * size : (n + 1) * size].tobytes() for n in range(start, stop))

    def _extended(self, path: list[int], keys: Iterable[bytes], start: int, stop: int) -> list[int]:
        """The ids of ``path``, of ``start`` blocks, and of the segments up to ``stop`` blocks."""
        known = self._ids
        each = zip(range(start, stop, self._segment_blocks), keys, strict=False)
        return [*path, *(known.setdefault(key, len(known)) for _, key in each)]
