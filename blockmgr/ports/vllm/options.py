"""The options under ``blockmgr`` in vLLM's ``--additional-config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Literal

from blockmgr.config import EVICTION_POLICIES, ManagerConfig
from blockmgr.digest import namespace_key
from blockmgr.errors import BlockMgrError

__all__ = ["OptionError", "Options"]

MAX_PORT = 65_535
WHOLE_NUMBERS = (
    "explain_every",
    "min_partial_tokens",
    "ghost_blocks",
    "hit_rate_window",
    "max_pinned_blocks",
)
# Of ManagerConfig, and who decides instead.
DECIDED_BY_VLLM = {
    "num_blocks": "--num-gpu-blocks-override or the memory there is",
    "block_size": "--block-size",
    "max_seqs": "--max-num-seqs",
    "max_blocks_per_seq": "--max-model-len",
    "prefix_caching": "--enable-prefix-caching",
    "watermark_blocks": "--watermark",
    "steps_in_flight": "--async-scheduling",
    "dedup": "its workers, whose tables only grow",
    "early_commit": "its order of steps",
    "null_block": "its workers, which keep block 0",
}


class OptionError(BlockMgrError, ValueError):
    """An option under ``blockmgr`` that is unknown, out of bounds, or vLLM's to decide."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the block manager inside vLLM.

    Attributes:
        enabled: False leaves everything to vLLM.
        fallback: What to do with a configuration that is not supported: ``"refuse"`` it at start-up
            with every reason, or leave it to vLLM's own manager (``"stock"``) with a line in the
            log.
        hash_requests: Whether vLLM goes on hashing each request's blocks though nothing reads it;
            with a KV connector or KV cache events it always does.
        report_every: Seconds between lines in the log on what the cache finds; 0 for none.
        explain_every: Count why tokens of each so many-th prompt are not found, for the log and
            Prometheus; 0 for none. To explain one can take a look at each cached block.
        metrics_port: Port on which the engine's process answers Prometheus; 0 for none. Ranks of
            data parallelism add their number.
        metrics_host: Address on which it listens.
        eviction: As ``ManagerConfig`` has it, by name.
        min_partial_tokens: As ``ManagerConfig`` has it: parts of a block are reused from so many
            tokens on, by vLLM's own block copies.
        ghost_blocks: As ``ManagerConfig`` has it: what ``report_every`` says of larger pools.
        hit_rate_window: As ``ManagerConfig`` has it.
        retention: As ``ManagerConfig`` has it; requests say how long they are worth keeping in
            ``vllm_xargs``: ``blockmgr_priority`` (``low`` to ``high``), ``blockmgr_ttl`` in
            seconds, and ``blockmgr_expect_reuse``.
        max_pinned_blocks: As ``ManagerConfig`` has it.
        quotas: Blocks set apart, by the requests' ``cache_salt``.
        debug: As ``ManagerConfig`` has it.
    """

    enabled: bool = True
    fallback: Literal["refuse", "stock"] = "refuse"
    hash_requests: bool = False
    report_every: float = 0.0
    explain_every: int = 0
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    eviction: str = "lru"
    min_partial_tokens: int = 0
    ghost_blocks: int = 0
    hit_rate_window: int = 1000
    retention: bool = False
    max_pinned_blocks: int = 0
    quotas: Mapping[str, int] = field(default_factory=dict)
    debug: int = 0

    @classmethod
    def read(cls, values: object) -> Options:
        """Options out of parsed JSON.

        Raises:
            OptionError: Not an object, an unknown option, or an invalid value. Bounds that
                depend on the pool are looked at when it is made.
        """
        if values is True:
            return cls()
        if not isinstance(values, Mapping):
            raise OptionError(f"blockmgr must be an object of options or true, got {values!r}")
        known = {option.name for option in fields(cls)}
        for name in values:
            if name in DECIDED_BY_VLLM:
                raise OptionError(f"blockmgr.{name} is for vLLM to say: {DECIDED_BY_VLLM[name]}")
            if name not in known:
                near = get_close_matches(str(name), known, 1)
                raise OptionError(
                    f"blockmgr.{name} is unknown" + (f"; is it {near[0]}?" if near else "")
                )
        options = cls(**values)
        options.check()
        return options

    def check(self) -> None:
        """Refuses values of the wrong type, by name."""
        for name in ("enabled", "hash_requests", "retention"):
            self._require(name, isinstance(getattr(self, name), bool), "true or false")
        for name in WHOLE_NUMBERS:
            value = getattr(self, name)
            is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            self._require(name, is_whole, "a whole number from 0 on")
        port = self.metrics_port
        is_port = isinstance(port, int) and not isinstance(port, bool) and 0 <= port <= MAX_PORT
        self._require("metrics_port", is_port, f"a port from 0 to {MAX_PORT}")
        is_host = isinstance(self.metrics_host, str) and bool(self.metrics_host)
        self._require("metrics_host", is_host, "an address")
        is_number = isinstance(self.report_every, int | float)
        is_number = is_number and not isinstance(self.report_every, bool)
        self._require("report_every", is_number and self.report_every >= 0, "seconds from 0 on")
        self._require("fallback", self.fallback in ("refuse", "stock"), '"refuse" or "stock"')
        self._require(
            "eviction", self.eviction in EVICTION_POLICIES, f"one of {list(EVICTION_POLICIES)}"
        )
        is_quotas = isinstance(self.quotas, Mapping) and all(
            isinstance(salt, str) and salt and isinstance(blocks, int) and blocks > 0
            for salt, blocks in self.quotas.items()
        )
        self._require("quotas", is_quotas, "an object of salts and whole numbers of blocks")

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise OptionError(f"blockmgr.{name} must be {what}, got {getattr(self, name)!r}")

    def config(self, **decided: Any) -> ManagerConfig:
        """The manager's configuration, with what vLLM has decided.

        Raises:
            OptionError: A value out of bounds.
        """
        quotas = {namespace_of(salt, None): blocks for salt, blocks in self.quotas.items()}
        decided = {"dedup": "append_only", **decided}
        try:
            return ManagerConfig(
                null_block=True,
                early_commit=True,
                eviction=self.eviction,
                min_partial_tokens=self.min_partial_tokens,
                ghost_blocks=self.ghost_blocks,
                hit_rate_window=self.hit_rate_window,
                retention=self.retention,
                max_pinned_blocks=self.max_pinned_blocks,
                quotas=quotas,
                debug=self.debug,
                **decided,
            )
        except (TypeError, ValueError) as error:
            raise OptionError(f"blockmgr: {error}") from error


def namespace_of(salt: str | None, adapter: str | None, path: str | None = None) -> bytes:
    """Whose cache a request of this salt and adapter is served from.

    The path tells adapters apart that came under one name, one after the other.
    """
    parts = {"salt": salt, "lora": adapter, "path": path}
    named = {name: value.encode() for name, value in parts.items() if value}
    return namespace_key(**named) if named else b""
