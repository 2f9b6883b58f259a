"""The prefixes of a trace as a forest of runs, and the paths of requests in it, as columns.

A segment is the blocks that one id stands for, below one prefix, so it stands for the whole prefix
that ends with it. A path begins at a root. The core numbers the segments of all paths and cuts
their forest into runs (``_core.IdTrace``).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from blockmgr import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "COLUMNS",
    "NO_RUN",
    "Paths",
    "References",
    "Rule",
    "cut",
    "made_up_blocks",
    "prompt_blocks",
    "with_own",
]

Numbers = npt.NDArray[np.int64]
Forest = tuple[Numbers, Numbers, Numbers]
"""``parent``, ``length`` and ``end`` of runs, as in ``References``."""

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


@dataclass(frozen=True, eq=False)
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


Count = TypeVar("Count", int, Numbers)

Rule = Literal["manager", "served", "ids"]
"""Rule for the blocks of a prompt; see the table of ``blockmgr.lab.references``."""


def prompt_blocks(rule: Rule, num_tokens: Count, block_size: int) -> tuple[Count, Count]:
    """Blocks of a prompt that may hit, and that are cached when it is admitted."""
    if rule == "ids":
        whole = -(-num_tokens // block_size)
        return whole, whole
    served = (num_tokens - 1) // block_size
    return served, served if rule == "served" else num_tokens // block_size


def made_up_blocks(rule: Rule, num_tokens: Count, output: Count, block_size: int) -> Count:
    """Whole blocks of an output of which only the length is known; no other path has them."""
    if rule == "ids":
        return 0 * output
    cached = prompt_blocks(rule, num_tokens, block_size)[1]
    blocks = (num_tokens + output - 1) // block_size - cached
    return blocks * (blocks > 0)


def with_own(forest: Forest, above: Numbers, own: Numbers) -> tuple[Forest, Numbers]:
    """The forest with a run of ``own`` blocks after each run ``above``; and the last runs."""
    parents, lengths, before = forest
    longer = own > 0
    parent, length = above[longer], own[longer]
    end = length.copy()
    end[parent >= 0] += before[parent[parent >= 0]]
    ends = above.copy()
    ends[longer] = len(parents) + np.arange(len(parent))
    both = ((parents, parent), (lengths, length), (before, end))
    return (np.concatenate(both[0]), np.concatenate(both[1]), np.concatenate(both[2])), ends


def cut(named: _core.IdTrace, limits: Numbers) -> tuple[Forest, Numbers]:
    """The runs of a forest; and for each path, those that end with its limit and with the path."""
    parent, length, end, ends = named.runs(limits.tobytes())
    return (parent, length, end), ends.reshape(-1, 2)


class Paths:
    """Collects paths one by one.

    Args:
        segment_blocks: Blocks of a segment.
    """

    def __init__(self, segment_blocks: int) -> None:
        self._segment_blocks = segment_blocks
        self._spaces: dict[bytes, int] = {}
        self._rows = array("q")
        self._limits = array("q")
        self._ids = array("Q")

    def add(self, namespace: bytes, ids: Sequence[int], limit: int, blocks: int) -> int:
        """Add the path of so many blocks that ``ids`` stand for; returns its number.

        Args:
            namespace: Its root.
            ids: The ids of its segments; of the last one, the path may have leading blocks only.
            limit: Leading blocks after which to cut it, besides its end.
            blocks: Blocks of the path.
        """
        space = self._spaces.setdefault(namespace, len(self._spaces))
        # A path is to the core a prompt with blocks of one token, of which it has at least one.
        self._rows.extend((0, 0, max(1, blocks), 0, blocks, space))
        self._ids.extend(ids[: -(-blocks // self._segment_blocks)] if blocks else (0,))
        self._limits.append(limit)
        return len(self._limits) - 1

    def cut(self) -> tuple[Forest, Numbers]:
        """``cut`` of all paths."""
        rows, ids = self._rows.tobytes(), self._ids.tobytes()
        named = _core.IdTrace(1, self._segment_blocks, 1, list(self._spaces), rows, ids)
        return cut(named, np.array(self._limits, dtype=np.int64))
