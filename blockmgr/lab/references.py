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

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from blockmgr.lab.by_ids import id_replays
from blockmgr.lab.demand import held_blocks
from blockmgr.lab.forest import NO_SEGMENT, Forest
from blockmgr.lab.replay_config import check_one_group
from blockmgr.lab.runs import NO_RUN, References, RequestReferences, RunColumns, Runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.trace import Request, Tokens, Trace

__all__ = [
    "NO_RUN",
    "References",
    "RequestReferences",
    "Rule",
    "Runs",
    "Sample",
    "check_rule",
    "references",
    "run_columns",
]

Rule = Literal["manager", "served", "ids"]
"""Rule for the blocks of a prompt; see the table of the module."""


def check_rule(rule: str) -> None:
    """Refuse a rule that does not exist.

    Raises:
        ValueError: ``rule`` is not in the table of the module.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")


def references(
    trace: Trace, config: ReplayConfig, rule: Rule = "manager", *, sample: Sample | None = None
) -> References:
    """The blocks that ``trace`` refers to at ``config.block_size``.

    Args:
        trace: The requests.
        config: Config of the replay.
        rule: Rule for the blocks of a prompt.
        sample: Selects the blocks to include; None for all. The forest contains only the selected
            blocks, but the block counts of requests include all blocks.

    Raises:
        ValueError: There is no such rule, ``config`` has groups of layers, or the trace cannot be
            cut into these blocks.

    Cost: O(hash ids) if every prompt is known by ids and no output is known, else O(blocks).

    >>> from blockmgr.lab.replay import ReplayConfig
    >>> from blockmgr.lab.workloads import generate
    >>> stream = references(generate("chat", seed=0, conversations=2), ReplayConfig())
    >>> stream.runs.num_nodes > len(stream.runs)
    True
    """
    check_rule(rule)
    check_one_group(config, "references to blocks")
    trace.check_block_size(config.block_size)
    if sample is None and (by_ids := id_replays(trace, config)) is not None:
        return by_ids.references(rule)
    return _Builder(trace, config, rule, sample or _everything).build()


def run_columns(trace: Trace, config: ReplayConfig, rule: Rule = "manager") -> RunColumns:
    """``references`` of all blocks, as columns.

    Raises:
        ValueError: As in ``references``.
    """
    check_rule(rule)
    check_one_group(config, "references to blocks")
    trace.check_block_size(config.block_size)
    by_ids = id_replays(trace, config)
    if by_ids is not None:
        return by_ids.columns(rule)
    return _Builder(trace, config, rule, _everything).build().columns()


Sample = Callable[[bytes, bytes], tuple[bytes, bool]]
"""Maps the digest of a prefix and the bytes after it to the digest of both, and to whether the
block that ends there is in the sample."""


def _everything(before: bytes, key: bytes) -> tuple[bytes, bool]:
    """Include all blocks. Parents identify prefixes, so no digest is needed."""
    del before
    return key, True


_Cut = tuple[int, int]
"""The end of a path: a segment, and the number of its blocks before the end."""

EMPTY: Final[_Cut] = (-1, 0)


@dataclass(frozen=True, slots=True)
class _Entered:
    """A request in the tree: the ends of limit, prompt and samples, and its blocks.

    Own blocks are the blocks of an output, after the prompt, that no other request shares.
    """

    cuts: tuple[_Cut, ...]
    limit_blocks: int
    prompt_blocks: int
    asked_blocks: int
    held_blocks: int
    first_held_blocks: int
    own_blocks: int


@dataclass(slots=True)
class _Path:
    """A path of segments from a root.

    Attributes:
        segments: The selected segments, beginning with the root, which has no block.
        starts: Number of blocks before each of them; -1 for the root.
        digest: Digest of all segments, selected or not.
    """

    segments: list[int]
    starts: list[int]
    digest: bytes


def _own_run(runs: Runs, prompt: int, blocks: int) -> int:
    """A new run of this many blocks after the end of a prompt."""
    first = runs.num_nodes
    runs.first_node.append(first)
    runs.parent.append(prompt)
    runs.length.append(blocks)
    runs.end.append(blocks + (runs.end[prompt] if prompt != NO_RUN else 0))
    return len(runs.parent) - 1


class _Builder:
    """Two passes: one enters every path into a forest of segments, one cuts it into runs.

    Runs end where paths branch or end at the ends of segments, and at the cuts inside segments.
    """

    def __init__(self, trace: Trace, config: ReplayConfig, rule: Rule, sample: Sample) -> None:
        self._trace = trace
        self._config = config
        self._remapped = replace(config, dedup="remap")  # a request rarely holds a block twice
        self._rule = rule
        self._sample = sample
        self._forest = Forest(trace, config.block_size)
        self._segment_blocks = self._forest.segment_size // config.block_size
        self._extent: dict[int, int] = {}  # blocks of the segment that any path reaches
        self._cuts: dict[int, set[int]] = {}  # blocks of the segment before each cut
        self._outputs = 0  # made-up tokens

    def build(self) -> References:
        entered = [self._enter(request) for request in self._trace.requests]
        runs, ends = self._cut_into_runs()
        requests = []
        for request, path in zip(self._trace.requests, entered, strict=True):
            limit, prompt, *outputs = (ends[cut] for cut in path.cuts)
            if path.own_blocks:
                outputs = [_own_run(runs, prompt, path.own_blocks)]
            requests.append(
                RequestReferences(
                    arrival_ms=request.arrival_ms,
                    service_ms=self._config.service_ms(request),
                    limit=limit,
                    prompt=prompt,
                    ends=tuple(outputs),
                    limit_blocks=path.limit_blocks,
                    prompt_blocks=path.prompt_blocks,
                    asked_blocks=path.asked_blocks,
                    held_blocks=path.held_blocks,
                    first_held_blocks=path.first_held_blocks,
                    query_tokens=request.num_prompt_tokens,
                    last_tokens=self._last_tokens(request),
                    num_samples=request.num_samples,
                )
            )
        return References(self._config.block_size, runs, tuple(requests))

    def _enter(self, request: Request) -> _Entered:
        """Enter a request's paths into the tree, and cut it where they end."""
        size, prompt = self._config.block_size, request.num_prompt_tokens
        limit, cached = (prompt - 1) // size, prompt // size
        if self._rule == "ids":
            limit = cached = -(-prompt // size)
        elif self._rule == "served":
            cached = limit
        root = self._forest.segment(NO_SEGMENT, request.namespace)
        start = _Path([root], [-1], request.namespace)
        path = self._extend(start, self._prompt_keys(request, cached), 0, cached)
        cuts = [self._cut(path, limit), self._cut(path, cached)]
        outputs = () if self._rule == "ids" else request.outputs
        held = cached
        for output in outputs:
            # The last token of an output is never computed.
            blocks = max(cached, (prompt + len(output) - 1) // size)
            longer = path
            if blocks > cached:
                keys = self._token_keys(np.concatenate((request.tokens(), output)), cached, blocks)
                longer = self._extend(path, keys, cached, blocks)
                held += blocks - cached
            cuts.append(self._cut(longer, blocks))
        own = 0
        if not outputs:
            cuts.append(cuts[-1])
            own = self._own_blocks(path, request, cached)
            held += own
        asked = first_held = held
        if self._rule == "manager":
            asked = held_blocks(request, self._config)
            held = held_blocks(request, self._remapped)
            first = prompt + self._config.output_lengths(request)[0]
            first_held = -(-first // size)
        return _Entered(tuple(cuts), limit, cached, asked, held, first_held, own)

    def _own_blocks(self, path: _Path, request: Request, cached: int) -> int:
        """The selected blocks of an output of which only the length is known."""
        if self._rule == "ids":
            return 0
        [length] = self._config.output_lengths(request)
        blocks = (request.num_prompt_tokens + length - 1) // self._config.block_size - cached
        if self._sample is _everything:
            return max(0, blocks)
        self._outputs += 1
        name = b"output" + self._outputs.to_bytes(8)
        keys = (name + number.to_bytes(8) for number in range(blocks))
        return sum(self._sample(path.digest, key)[1] for key in keys)

    def _prompt_keys(self, request: Request, blocks: int) -> Iterable[bytes]:
        if self._forest.hashed:
            return self._forest.keys(request)
        return self._token_keys(request.tokens(), 0, blocks)

    def _token_keys(self, tokens: Tokens, start: int, stop: int) -> Iterable[bytes]:
        size = self._config.block_size
        return (tokens[n * size : (n + 1) * size].tobytes() for n in range(start, stop))

    def _extend(self, path: _Path, keys: Iterable[bytes], start: int, stop: int) -> _Path:
        """``path`` of ``start`` blocks, extended by ``keys`` up to ``stop`` blocks."""
        segments, starts, digest = path.segments.copy(), path.starts.copy(), path.digest
        forest, extent, size = self._forest, self._extent, self._segment_blocks
        parent = segments[-1]
        for begin, key in zip(range(start, stop, size), keys, strict=False):
            digest, looked_at = self._sample(digest, key)
            if not looked_at:
                continue
            segment = forest.segment(parent, digest)
            extent[segment] = max(extent.get(segment, 0), min(size, stop - begin))
            segments.append(segment)
            starts.append(begin)
            parent = segment
        return _Path(segments, starts, digest)

    def _cut(self, path: _Path, blocks: int) -> _Cut:
        """End a run after the first ``blocks`` blocks of ``path``."""
        last = bisect_left(path.starts, blocks) - 1
        if last <= 0:  # only the root
            return EMPTY
        segment = path.segments[last]
        within = min(self._segment_blocks, blocks - path.starts[last])
        self._cuts.setdefault(segment, set()).add(within)
        return segment, within

    def _cut_into_runs(self) -> tuple[Runs, dict[_Cut, int]]:
        runs = Runs([], [], [], [])
        ends: dict[_Cut, int] = {EMPTY: NO_RUN}
        parents = self._forest.parents
        num_children = Counter(parents)
        last = [NO_RUN] * len(parents)  # the last run of each segment
        whole, none = self._segment_blocks, frozenset[int]()
        for segment, extent in sorted(self._extent.items()):
            parent = parents[segment]
            run = last[parent]
            cuts = self._cuts.get(segment, none)
            goes_on = (
                run != NO_RUN
                and num_children[parent] == 1
                and whole not in self._cuts.get(parent, none)
            )
            done = 0
            for cut in sorted({*cuts, extent}):
                if not goes_on:
                    runs.length.append(0)
                    runs.end.append(runs.end[run] if run != NO_RUN else 0)
                    runs.parent.append(run)
                    run = len(runs.parent) - 1
                runs.length[run] += cut - done
                runs.end[run] += cut - done
                done, goes_on = cut, False
                ends[segment, cut] = run
            last[segment] = run
        # One number more than the number of runs; without runs there is no first block.
        runs.first_node.extend([*accumulate(runs.length, initial=0)][:-1])
        return runs, ends

    def _last_tokens(self, request: Request) -> int:
        """Tokens in the last block that the prompt refers to."""
        size = self._config.block_size
        if self._rule != "ids":
            return size
        return (request.num_prompt_tokens - 1) % size + 1
