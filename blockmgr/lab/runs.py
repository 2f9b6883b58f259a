"""The result of ``references``: a forest of runs, and the paths of requests, as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from blockmgr import _core

__all__ = ["COLUMNS", "NO_RUN", "References"]

Numbers = npt.NDArray[np.int64]

NO_RUN: Final = -1
"""The number of the empty prefix, instead of a run."""

COLUMNS: Final = (
    "arrival_ms",
    "service_ms",
    "limit",
    "prompt",
    "limit_blocks",
    "prompt_blocks",
    "asked_blocks",
    "held_blocks",
    "first_held_blocks",
    "query_tokens",
    "last_tokens",
    "num_samples",
)
"""The numbers of a request, in the order of the core.

* ``arrival_ms``, ``service_ms``: When it arrives, and how long it runs.
* ``limit``: Last run of the prompt that may hit; ``limit_blocks``: the blocks up to its end.
* ``prompt``: Last run of the prompt that is cached when the request is admitted;
  ``prompt_blocks``: the blocks up to its end.
* ``asked_blocks``: Blocks that must be available to admit it.
* ``held_blocks``: Blocks it holds if none of it is cached; ``first_held_blocks``: of those, blocks
  it takes before the fork.
* ``query_tokens``: Tokens of the prompt.
* ``last_tokens``: Tokens in the last block of the path, less than the block size if partial.
* ``num_samples``: Sequences that continue the prompt.
"""


@dataclass(frozen=True, eq=False, kw_only=True)
class References:
    """The blocks of a trace at one block size, as columns of ``int64``.

    A run stands for the path that ends with it, and its parent has a smaller number.

    Attributes:
        block_size: Tokens per block.
        parent: The run before each run, ``NO_RUN`` at a root.
        length: Blocks of each run.
        end: Blocks from the root to the end of each run, including its own.
        requests: Numbers of the requests in order of arrival: ``int64[n, COLUMNS]``.
        ends: For each sample, the last run that is cached after its end, one request after another.
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
    def num_nodes(self) -> int:
        """Number of distinct blocks."""
        return int(self.length.sum())

    @property
    def query_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return int(self.column("query_tokens").sum())

    @property
    def query_blocks(self) -> int:
        """Blocks looked up: those that may hit."""
        return int(self.column("limit_blocks").sum())

    @property
    def looked_at_blocks(self) -> int:
        """Of the blocks looked up, those in the sample."""
        limit = self.column("limit")
        return int(self.end[limit[limit != NO_RUN]].sum())

    @cached_property
    def _first_end(self) -> Numbers:
        return np.concatenate(([0], np.cumsum(self.column("num_samples"))))

    def ends_of(self, request: int) -> list[int]:
        """The ends of the samples of a request, by its index."""
        first, last = self._first_end[request : request + 2]
        ends: list[int] = self.ends[first:last].tolist()
        return ends

    def nodes(self, run: int) -> Numbers:
        """The blocks from a root to the end of ``run``: equal numbers are equal prefixes.

        Cost: O(blocks).
        """
        parts = []
        while run != NO_RUN:
            last = int(self._last_node[run])
            parts.append(np.arange(last + 1 - self.length[run], last + 1))
            run = int(self.parent[run])
        return np.concatenate(parts[::-1]) if parts else np.zeros(0, dtype=np.int64)

    @cached_property
    def _last_node(self) -> Numbers:
        return np.cumsum(self.length) - 1

    def counted_after(self, number: int) -> References:
        """The same references, without counting the first requests.

        Those compute all their blocks and look none up, so an eviction order that knows the future
        keeps blocks only for the others.
        """
        requests = self.requests.copy()
        for name, value in (("limit", NO_RUN), ("limit_blocks", 0), ("query_tokens", 0)):
            requests[:number, COLUMNS.index(name)] = value
        return replace(self, requests=requests)

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
