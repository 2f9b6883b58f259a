"""The result of ``references``: a forest of runs, and the paths of requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from blockmgr import _core

__all__ = ["NO_RUN", "References", "RequestReferences", "RunColumns", "Runs"]

Numbers = npt.NDArray[np.int64]

NO_RUN: Final = -1
"""The number of the empty prefix, instead of a run."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The forest of prefixes as runs. A run's parent has a smaller number.

    Attributes:
        parent: The run before each run, ``NO_RUN`` at a root.
        length: Blocks of each run.
        end: Blocks from the root to the end of each run, including its own.
        first_node: Number of the first block of each run; the others have consecutive numbers.
    """

    parent: list[int]
    length: list[int]
    end: list[int]
    first_node: list[int]

    def __len__(self) -> int:
        return len(self.parent)

    @property
    def num_nodes(self) -> int:
        """Number of distinct blocks."""
        return self.first_node[-1] + self.length[-1] if self.parent else 0

    def path(self, run: int) -> list[int]:
        """The runs from a root to ``run``, in order; empty for ``NO_RUN``."""
        path = []
        while run != NO_RUN:
            path.append(run)
            run = self.parent[run]
        path.reverse()
        return path


@dataclass(frozen=True, slots=True)
class RequestReferences:
    """The references of one request. A run stands for the path that ends with it.

    Attributes:
        arrival_ms: Arrival.
        service_ms: Time for which it runs.
        limit: Last run of the prompt that may hit.
        prompt: Last run of the prompt that is cached when the request is admitted.
        ends: Last run that is cached after its end, for each sample.
        limit_blocks: Blocks of the prompt that may hit.
        prompt_blocks: Blocks of the prompt that are cached.
        asked_blocks: Blocks that must be available to admit it.
        held_blocks: Blocks it holds if none of it is cached.
        first_held_blocks: Of those, blocks it takes before the fork.
        query_tokens: Tokens of the prompt.
        last_tokens: Tokens in the last block of the path, less than the block size if partial.
        num_samples: Sequences that continue the prompt.
    """

    arrival_ms: int
    service_ms: int
    limit: int
    prompt: int
    ends: tuple[int, ...]
    limit_blocks: int
    prompt_blocks: int
    asked_blocks: int
    held_blocks: int
    first_held_blocks: int
    query_tokens: int
    last_tokens: int
    num_samples: int


@dataclass(frozen=True, slots=True)
class References:
    """The blocks of a trace at one block size.

    Attributes:
        block_size: Tokens per block.
        runs: The forest.
        requests: One record per request, in order of arrival.
    """

    block_size: int
    runs: Runs
    requests: tuple[RequestReferences, ...]

    def columns(self) -> RunColumns:
        """The same as columns. Cost: O(runs + requests)."""
        runs = (self.runs.parent, self.runs.length, self.runs.end)
        parent, length, end = (np.array(column, dtype=np.int64) for column in runs)
        rows = list(map(attrgetter(*COLUMNS), self.requests))
        ends = [run for request in self.requests for run in request.ends]
        return RunColumns(
            block_size=self.block_size,
            parent=parent,
            length=length,
            end=end,
            requests=np.array(rows, dtype=np.int64).reshape(-1, len(COLUMNS)),
            ends=np.array(ends, dtype=np.int64),
        )

    @property
    def query_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(request.query_tokens for request in self.requests)

    @property
    def query_blocks(self) -> int:
        """Blocks looked up: those that may hit."""
        return sum(request.limit_blocks for request in self.requests)

    @property
    def looked_at_blocks(self) -> int:
        """Of the blocks looked up, those in the sample."""
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


COLUMNS: Final = tuple(name for name in RequestReferences.__slots__ if name != "ends")
"""The numbers of a request, in the order of the core."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RunColumns:
    """References as columns of ``int64`` for the core.

    Attributes:
        block_size: Tokens per block.
        parent: As in ``Runs``, like the next two.
        length: Blocks of each run.
        end: Blocks from the root to the end of each run.
        requests: The numbers of ``RequestReferences``, one row per request: ``int64[n, COLUMNS]``.
        ends: The ends of all samples, one request after another.
    """

    block_size: int
    parent: Numbers
    length: Numbers
    end: Numbers
    requests: Numbers
    ends: Numbers

    def column(self, name: str) -> Numbers:
        """One number per request."""
        column: Numbers = self.requests[:, COLUMNS.index(name)]
        return column

    @property
    def query_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return int(self.column("query_tokens").sum())

    @property
    def query_blocks(self) -> int:
        """Blocks looked up: those that may hit."""
        return int(self.column("limit_blocks").sum())

    def counted_after(self, number: int) -> RunColumns:
        """The same references, without counting the first requests.

        Those compute all their blocks and look none up, so an eviction order that knows the future
        keeps blocks only for the others.
        """
        requests = self.requests.copy()
        for name, value in (("limit", NO_RUN), ("limit_blocks", 0), ("query_tokens", 0)):
            requests[:number, COLUMNS.index(name)] = value
        return replace(self, requests=requests)

    def references(self) -> References:
        """The same as objects. Cost: O(runs + requests)."""
        first_node = np.cumsum(self.length) - self.length
        columns = (self.parent, self.length, self.end, first_node)
        ends = iter(self.ends.tolist())
        requests = []
        for row in self.requests.tolist():
            numbers = dict(zip(COLUMNS, row, strict=True))
            own = tuple(islice(ends, numbers["num_samples"]))
            requests.append(RequestReferences(ends=own, **numbers))
        return References(self.block_size, Runs(*(c.tolist() for c in columns)), tuple(requests))

    def paths(self) -> _core.RunPaths:
        """The same as an object of the core."""
        return _core.RunPaths(
            self.block_size,
            self.parent.tobytes(),
            self.length.tobytes(),
            self.end.tobytes(),
            self.requests.tobytes(),
            self.ends.tobytes(),
        )
