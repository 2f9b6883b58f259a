"""Replays in the core for traces of hash ids: same counts in a fraction of the time.

A manager's decisions depend on which full blocks are equal and on their number, but not on the
number of tokens in each. An id identifies all of its blocks, so prompts are not expanded into
tokens here:

* the blocks of a trace are numbered once, in a forest of prefixes (``_core.IdTrace``);
* a replay passes these numbers, as blocks of one token, to the store and the eviction policies that
  ``BlockManager`` uses; each block has the digest of all its tokens, because policies remember
  blocks by digest (``_core.IdReplay``).

So the cache and the policies are the same; only the input differs. This works for traces known by
ids alone, block sizes that divide the tokens of an id, and reuse of whole blocks. A replay also
needs a built-in policy and no hints. Otherwise the functions return ``None``, and the caller
replays with a manager for the same counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from blockmgr import _core
from blockmgr.config import ManagerConfig
from blockmgr.digest import digest_options
from blockmgr.lab.replay_result import ReplayResult
from blockmgr.lab.request import ID_BITS, OUTPUT_TOKEN, HashedPrompt
from blockmgr.lab.runs import COLUMNS, References, cut, made_up_blocks, prompt_blocks, with_own
from blockmgr.lab.stored import StoredRequests

if TYPE_CHECKING:
    from blockmgr.lab.replay_config import ReplayConfig
    from blockmgr.lab.runs import Rule
    from blockmgr.lab.trace import Trace

__all__ = ["IdColumns", "IdReplays", "id_columns", "id_replays"]

Numbers = npt.NDArray[np.int64]

AT_ONCE: Final = 1024
"""Requests between two checks for signals: a few milliseconds of a replay."""

MOST_IDS: Final = 1 << 28
"""Number of ids above which the requests of a trace are read one by one, to save memory."""

MOST_NAMES: Final = OUTPUT_TOKEN
"""Most blocks of a trace that can be numbered."""


@dataclass(frozen=True, slots=True, eq=False)
class IdColumns:
    """The requests of a trace known by ids alone, as columns: ``int64[n]`` each.

    Attributes:
        arrival_ms: Arrival of each request.
        num_tokens: Tokens of each prompt.
        num_output_tokens: Tokens generated for each request.
        space: Index of each namespace.
        spaces: The namespaces.
        ids: The ids of all prompts, one after another: ``uint64[ids]``.
        tokens_per_id: Tokens that each id stands for.
        words: Tokens that identify an id; 0 if that differs between prompts.
    """

    arrival_ms: Numbers
    num_tokens: Numbers
    num_output_tokens: Numbers
    space: Numbers
    spaces: tuple[bytes, ...]
    ids: npt.NDArray[np.uint64]
    tokens_per_id: int
    words: int


def id_columns(trace: Trace, block_size: int) -> IdColumns | None:
    """The columns of ``trace``; None unless it is known by ids of whole blocks each.

    Cost: O(ids) memory, without Python code per id.
    """
    size = trace.tokens_per_id
    if not trace.is_hashed or size % block_size:
        return None
    if isinstance(trace.requests, StoredRequests):
        records, namespaces, ids = trace.requests.columns()
        arrival, tokens, outputs, counts = records
        words = trace.requests.words
    else:
        arrival, tokens, outputs, counts = np.array(
            [
                (r.arrival_ms, r.num_prompt_tokens, r.num_output_tokens, len(_ids(r.prompt)))
                for r in trace.requests
            ],
            dtype=np.int64,
        ).T
        namespaces = [request.namespace for request in trace.requests]
        ids = np.concatenate([_ids(r.prompt).astype(np.uint64) for r in trace.requests])
        known = {r.prompt.words for r in trace.requests if isinstance(r.prompt, HashedPrompt)}
        words = known.pop() if len(known) == 1 else 0
    if not np.array_equal(counts, -(-tokens // size)) or len(ids) > MOST_IDS:
        return None
    spaces = {name: number for number, name in enumerate(dict.fromkeys(namespaces))}
    return IdColumns(
        arrival_ms=arrival,
        num_tokens=tokens,
        num_output_tokens=outputs,
        space=np.array([spaces[name] for name in namespaces], dtype=np.int64),
        spaces=tuple(spaces),
        ids=ids,
        tokens_per_id=size,
        words=words,
    )


def _ids(prompt: Any) -> npt.NDArray[Any]:
    assert isinstance(prompt, HashedPrompt)
    ids: npt.NDArray[Any] = prompt.ids
    return ids


def id_replays(trace: Trace, config: ReplayConfig) -> IdReplays | None:
    """Replays of ``trace`` by its ids; None unless it is known by ids of whole blocks each.

    Args:
        trace: The requests.
        config: Config of the replays; all of them have its service times, outputs and block size.
    """
    columns = id_columns(trace, config.block_size)
    return None if columns is None else IdReplays(columns, config)


class IdReplays:
    """One trace at one block size and with fixed service times."""

    def __init__(self, columns: IdColumns, config: ReplayConfig) -> None:
        self._columns = columns
        self._config = config
        self._size = size = config.block_size
        tokens, outputs = columns.num_tokens, columns.num_output_tokens
        self._held = held = outputs if config.outputs == "hold" else np.zeros_like(outputs)
        self._service = np.maximum(config.min_service_ms, config.service_ms_per_token * outputs)
        self._cached = tokens // size
        self._blocks = -(-(tokens + held) // size)
        self._trace = self._named(self._cached)
        self._with_digests: _core.IdReplays | None = None

    def _named(self, cached: Numbers) -> _core.IdTrace:
        columns = self._columns
        requests = np.stack(
            (
                columns.arrival_ms,
                self._service,
                columns.num_tokens,
                self._held,
                cached,
                columns.space,
            ),
            axis=1,
        )
        return _core.IdTrace(
            self._size,
            columns.tokens_per_id,
            max(1, columns.words),
            list(columns.spaces),
            requests.astype(np.int64).tobytes(),
            columns.ids.tobytes(),
        )

    @property
    def query_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return int(self._columns.num_tokens.sum())

    def exact(self, config: ReplayConfig) -> bool:
        """Whether ``replay`` gives the same counts as a replay through the manager.

        Args:
            config: Like that of this object, except policy, hints, rows, deduplication and tiers.
        """
        columns = self._columns
        wide = int(columns.ids.max(initial=0)) >= OUTPUT_TOKEN
        return (
            isinstance(config.eviction, str)
            and config.hints == "none"
            and not config.min_partial_tokens
            and not config.tiers
            # A manager cannot distinguish such ids, or not within such a small block.
            and columns.words > 0
            and self._size >= columns.words
            and not (wide and columns.words == 1)
            and columns.words * (OUTPUT_TOKEN.bit_length() - 1) >= (ID_BITS if wide else 1)
            and self._trace.num_names() <= MOST_NAMES
        )

    def replay(self, num_blocks: int, config: ReplayConfig) -> ReplayResult:
        """The same counts as ``blockmgr.lab.replay.replay``, if ``exact``.

        In the result, ``host_s`` is the time of the whole replay.
        """
        rows = min(config.max_seqs, len(self._held))
        manager = ManagerConfig(
            num_blocks=num_blocks,
            block_size=self._size,
            max_seqs=rows,
            max_blocks_per_seq=min(int(self._blocks.max()), num_blocks),
            dedup=config.dedup,
            digest=config.digest,
            eviction=config.eviction,
        )
        start = time.thread_time()
        if self._with_digests is None:
            self._with_digests = _core.IdReplays(
                self._trace, {"prefix_caching": True, **digest_options(config.digest, True)}
            )
        replay = _core.IdReplay(
            self._with_digests,
            manager.num_blocks,
            manager.max_seqs,
            manager.row_width,
            manager.hit_rate_window,
            config.dedup == "remap",
            str(config.eviction),
        )
        while not replay.run(AT_ONCE):
            pass
        counts: dict[str, Any] = replay.counts()
        return ReplayResult(
            num_blocks=num_blocks,
            requests=len(self._held),
            partial_hit_tokens=0,
            copies=0,
            host_s=time.thread_time() - start,
            **counts,
        )

    def columns(self, rule: Rule = "manager") -> References:
        """The references of all blocks; see ``blockmgr.lab.references.references``."""
        tokens, size = self._columns.num_tokens, self._size
        limit, cached = prompt_blocks(rule, tokens, size)
        own = made_up_blocks(rule, tokens, self._held, size)
        named = self._trace if rule == "manager" else self._named(cached)
        forest, cuts = cut(named, limit)
        asked = self._blocks if rule == "manager" else cached + own
        last_tokens = (tokens - 1) % size + 1 if rule == "ids" else np.full_like(limit, size)
        limits, prompts = cuts.T
        forest, ends = with_own(forest, prompts, own)
        rows = {
            "arrival_ms": self._columns.arrival_ms,
            "service_ms": self._service,
            "limit": limits,
            "prompt": prompts,
            "limit_blocks": limit,
            "prompt_blocks": cached,
            "asked_blocks": asked,
            "held_blocks": asked,
            "first_held_blocks": asked,
            "query_tokens": tokens,
            "last_tokens": last_tokens,
            "num_samples": np.ones_like(tokens),
        }
        requests = np.stack([rows[name] for name in COLUMNS], axis=1)
        return References(size, *forest, requests, ends)


def same_replays(config: ReplayConfig) -> ReplayConfig:
    """The part of ``config`` that is the same for all replays of one ``IdReplays``."""
    return replace(
        config,
        max_seqs=1,
        min_partial_tokens=0,
        dedup="remap",
        eviction="lru",
        hints="none",
        tiers=(),
    )
