"""Which blocks a trace refers to, request by request.

A block stands for the whole prefix that ends with it. The prefixes of a trace form a forest, one
tree a namespace, and every prompt is a path from a root. Paths are kept as *runs*: stretches of a
tree that no path enters, leaves or ends in the middle of. All blocks of a run share their fate to
the last request, so an hour of production traffic costs as many steps as it has turns, whatever
the block size::

    A  a0 a1 a2 a3 a4                 run 0: a0 a1     run 1: a2 a3 a4
    B  a0 a1 b2 b3                                     run 2: b2 b3
    C  a0 a1 a2 a3 a4 c5                                        run 3: c5, below run 1

Three rules say which blocks a prompt of ``n`` tokens refers to, at ``b`` tokens a block:

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

By ``ids`` the partial last block of a prompt known by hash ids is the full block that begins
alike; of a prompt known by tokens it is a block of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from blockmgr.lab.replay import held_blocks
from blockmgr.lab.trace import TOKENS_PER_HASH_ID, HashedPrompt

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.trace import Request, Tokens, Trace

__all__ = ["NO_RUN", "References", "RequestReferences", "Rule", "Runs", "check_rule", "references"]

Rule = Literal["manager", "served", "ids"]
"""Which blocks a prompt refers to: see the table of the module."""

NO_RUN: Final = -1
"""In place of a run: the empty prefix."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The forest of prefixes, by runs. A run's parent has a smaller number.

    Attributes:
        parent: The run before each run, ``NO_RUN`` at a root.
        length: Blocks of each run.
        end: Blocks from the root to the end of each run, its own included.
        first_node: Number of the first block of each run; the others follow on.
    """

    parent: list[int]
    length: list[int]
    end: list[int]
    first_node: list[int]

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def num_nodes(self) -> int:
        """Distinct blocks."""
        return self.first_node[-1] + self.length[-1] if self.parent else 0

    def path(self, run: int) -> list[int]:
        """The runs from a root to ``run``, in that order; none for ``NO_RUN``."""
        path = []
        while run != NO_RUN:
            path.append(run)
            run = self.parent[run]
        path.reverse()
        return path


@dataclass(frozen=True, slots=True)
class RequestReferences:
    """What one request refers to. Runs stand for the path that ends with them.

    Attributes:
        limit: Last run of the prompt that may hit.
        prompt: Last run of the prompt that is cached when the request is admitted.
        ends: Last run that is cached when it has ended, one for each sample.
        held_blocks: Blocks it holds when nothing of it is cached.
        first_held_blocks: Of those, blocks it takes before it is forked.
        query_tokens: Tokens of the prompt.
        last_tokens: Tokens in the last block of the path, the block size unless partial.
        num_samples: Sequences that continue the prompt.
    """

    limit: int
    prompt: int
    ends: tuple[int, ...]
    held_blocks: int
    first_held_blocks: int
    query_tokens: int
    last_tokens: int
    num_samples: int


@dataclass(frozen=True, slots=True)
class References:
    """The blocks of a trace at one block size.

    Attributes:
        block_size: Tokens a block.
        runs: The forest.
        requests: One record a request, in order of arrival.
    """

    block_size: int
    runs: Runs
    requests: tuple[RequestReferences, ...]

    @property
    def query_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.query_tokens for request in self.requests)

    @property
    def query_blocks(self) -> int:
        """Blocks looked up: those that may hit."""
        ends = self.runs.end
        return sum(ends[r.limit] for r in self.requests if r.limit != NO_RUN)

    def nodes(self, run: int) -> list[int]:
        """The blocks from a root to the end of ``run``: equal numbers are equal prefixes.

        Cost: O(blocks).
        """
        starts, lengths = self.runs.first_node, self.runs.length
        return [
            node
            for part in self.runs.path(run)
            for node in range(starts[part], starts[part] + lengths[part])
        ]


def check_rule(rule: str) -> None:
    """Refuse a rule that does not exist.

    Raises:
        ValueError: ``rule`` is none of those in the table of the module.
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")


def references(trace: Trace, config: ReplayConfig, rule: Rule = "manager") -> References:
    """The blocks that ``trace`` refers to at ``config.block_size``.

    Args:
        trace: The requests.
        config: Its block size counts, nothing else.
        rule: Which blocks a prompt refers to.

    Raises:
        ValueError: There is no such rule, or the trace cannot be cut into these blocks.

    Cost: O(hash ids) if every prompt is known by ids and no output is known, else O(blocks).

    >>> from blockmgr.lab.replay import ReplayConfig
    >>> from blockmgr.lab.workloads import generate
    >>> stream = references(generate("chat", seed=0, conversations=2), ReplayConfig())
    >>> stream.runs.num_nodes > len(stream.runs)
    True
    """
    check_rule(rule)
    trace.check_block_size(config.block_size)
    return _Builder(trace, config, rule).build()


_Cut = tuple[int, int]
"""A place where a path ends: a segment, and how many of its blocks come before."""

EMPTY: Final[_Cut] = (-1, 0)


@dataclass(frozen=True, slots=True)
class _Path:
    """A request in the tree: where limit, prompt and samples end, and the blocks it holds."""

    cuts: tuple[_Cut, ...]
    held_blocks: int
    first_held_blocks: int


class _Builder:
    """Two passes: every path into a tree of segments, then the tree cut into runs.

    A segment is the 512 tokens of a hash id if prompts are known by ids, one block otherwise.
    Only what paths do at the ends of segments, and the cuts within, decide where runs end.
    """

    def __init__(self, trace: Trace, config: ReplayConfig, rule: Rule) -> None:
        self._trace = trace
        self._config = config
        self._rule = rule
        self._hashed = trace.is_hashed
        size = config.block_size
        self._nodes_per_segment = TOKENS_PER_HASH_ID // size if self._hashed else 1
        # Segments by (parent, key). A root is keyed by its namespace and holds no block.
        self._children: dict[tuple[int, Hashable], int] = {}
        self._parent: list[int] = []
        self._extent: list[int] = []  # blocks of the segment that some path reaches
        self._num_children: list[int] = []
        self._cuts: dict[int, set[int]] = {}  # blocks of the segment before each cut

    def build(self) -> References:
        paths = [self._enter(request) for request in self._trace.requests]
        runs, ends = self._cut_into_runs()
        requests = []
        for request, path in zip(self._trace.requests, paths, strict=True):
            limit, prompt, *outputs = (ends[cut] for cut in path.cuts)
            requests.append(
                RequestReferences(
                    limit=limit,
                    prompt=prompt,
                    ends=tuple(outputs),
                    held_blocks=path.held_blocks,
                    first_held_blocks=path.first_held_blocks,
                    query_tokens=request.num_prompt_tokens,
                    last_tokens=self._last_tokens(request),
                    num_samples=request.num_samples,
                )
            )
        return References(self._config.block_size, runs, tuple(requests))

    def _enter(self, request: Request) -> _Path:
        """Enter a request's paths into the tree, and cut it where they end."""
        size, prompt = self._config.block_size, request.num_prompt_tokens
        limit, cached = (prompt - 1) // size, prompt // size
        if self._rule == "ids":
            limit = cached = -(-prompt // size)
        elif self._rule == "served":
            cached = limit
        root = [self._segment(NO_RUN, request.namespace)]
        segments = self._extend(root, self._prompt_keys(request, cached), cached)
        cuts = [self._cut(segments, limit), self._cut(segments, cached)]
        outputs = () if self._rule == "ids" else request.outputs
        own = 0
        for output in outputs:
            # The last token of an output is never computed.
            blocks = max(cached, (prompt + len(output) - 1) // size)
            path = segments
            if blocks > cached:
                keys = self._token_keys(np.concatenate((request.tokens(), output)), cached, blocks)
                path = self._extend(segments, keys, blocks - cached)
                own += blocks - cached
            cuts.append(self._cut(path, blocks))
        if not outputs:
            cuts.append(cuts[-1])
        if self._rule == "manager":
            first = prompt + len(request.outputs[0]) if request.outputs else prompt
            return _Path(tuple(cuts), held_blocks(request, self._config), -(-first // size))
        return _Path(tuple(cuts), cached + own, cached + own)

    def _prompt_keys(self, request: Request, blocks: int) -> Iterable[Hashable]:
        if self._hashed and isinstance(request.prompt, HashedPrompt):
            ids: list[int] = request.prompt.ids.tolist()
            return ids[: -(-blocks // self._nodes_per_segment)]
        return self._token_keys(request.tokens(), 0, blocks)

    def _token_keys(self, tokens: Tokens, start: int, stop: int) -> Iterable[Hashable]:
        size = self._config.block_size
        return (tokens[n * size : (n + 1) * size].tobytes() for n in range(start, stop))

    def _extend(self, path: list[int], keys: Iterable[Hashable], blocks: int) -> list[int]:
        """``path`` with ``blocks`` blocks more, as segments from the root on."""
        path, left, size = path.copy(), blocks, self._nodes_per_segment
        children, extent = self._children, self._extent
        parent = path[-1]
        for key in keys:
            segment = children.get((parent, key))
            if segment is None:
                segment = self._segment(parent, key)
            extent[segment] = max(extent[segment], min(size, left))
            left -= size
            path.append(segment)
            parent = segment
        return path

    def _segment(self, parent: int, key: Hashable) -> int:
        segment = self._children.setdefault((parent, key), len(self._parent))
        if segment == len(self._parent):
            self._parent.append(parent)
            self._extent.append(0)
            self._num_children.append(0)
            if parent != NO_RUN:
                self._num_children[parent] += 1
        return segment

    def _cut(self, path: list[int], blocks: int) -> _Cut:
        """End a run after ``blocks`` blocks of ``path``."""
        if not blocks:
            return EMPTY
        size = self._nodes_per_segment
        # The root comes before the first segment with blocks.
        segment = path[-(-blocks // size)]
        within = blocks - (-(-blocks // size) - 1) * size
        self._cuts.setdefault(segment, set()).add(within)
        return segment, within

    def _cut_into_runs(self) -> tuple[Runs, dict[_Cut, int]]:
        runs = Runs([], [], [], [])
        ends: dict[_Cut, int] = {EMPTY: NO_RUN}
        last = [NO_RUN] * len(self._parent)  # the run that each segment ends with
        whole, none = self._nodes_per_segment, frozenset[int]()
        for segment, (parent, extent) in enumerate(zip(self._parent, self._extent, strict=True)):
            if not extent:
                continue
            run = last[parent]
            cuts = self._cuts.get(segment, none)
            goes_on = (
                run != NO_RUN
                and self._num_children[parent] == 1
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
        runs.first_node.extend(accumulate(runs.length[:-1], initial=0))
        return runs, ends

    def _last_tokens(self, request: Request) -> int:
        """Tokens in the last block that the prompt refers to."""
        size = self._config.block_size
        if self._rule != "ids":
            return size
        return (request.num_prompt_tokens - 1) % size + 1
