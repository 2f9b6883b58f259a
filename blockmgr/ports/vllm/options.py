"""The options under ``blockmgr`` in vLLM's ``--additional-config``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

from blockmgr.config import EVICTION_POLICIES, ManagerConfig, options_of
from blockmgr.digest import namespace_key
from blockmgr.errors import BlockMgrError
from blockmgr.options import same_option

__all__ = ["OptionError", "Options"]

MAX_PORT = 65_535
STATE_PARTIAL_TOKENS = 16
# Fields of ManagerConfig that vLLM decides, with the source of the decision.
DECIDED_BY_VLLM = {
    "num_blocks": "--num-gpu-blocks-override or the available memory",
    "block_size": "--block-size",
    "max_seqs": "--max-num-seqs",
    "max_blocks_per_seq": "--max-model-len",
    "prefix_caching": "--enable-prefix-caching",
    "watermark_blocks": "--watermark",
    "steps_in_flight": "--async-scheduling",
    "dedup": "its workers only append to block tables",
    "early_commit": "its order of steps",
    "stop_margin_tokens": "its draft head",
    "null_block": "its workers reserve block 0",
}


class OptionError(BlockMgrError, ValueError):
    """An option under ``blockmgr`` is unknown, out of bounds, or decided by vLLM."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the block manager inside vLLM.

    Attributes:
        enabled: False leaves everything to vLLM.
        fallback: Handling of unsupported configurations: ``"refuse"`` them at start-up with every
            reason, or use vLLM's own manager (``"stock"``) with a line in the log.
        hash_requests: Whether vLLM still hashes each request's blocks, although nothing reads the
            hashes; with a KV connector or KV cache events it always does.
        report_every: Seconds between log lines about the hit rate; 0 for none.
        explain_every: Explain the missed tokens of one of this many prompts, for the log and
            Prometheus; 0 for none. An explanation may scan all cached blocks.
        metrics_port: Port on which the engine's process serves Prometheus; 0 for none.
            Data-parallel ranks add their number.
        metrics_host: Address to listen on.
        eviction: As in ``ManagerConfig``, by name.
        min_partial_tokens: As in ``ManagerConfig``: fewest tokens to reuse from part of a block,
            with vLLM's own block copies. None for 0, or, if layers have recurrent states, 16.
        ghost_blocks: As in ``ManagerConfig``; ``report_every`` needs it to estimate larger pools.
        hit_rate_window: As in ``ManagerConfig``.
        retention: As in ``ManagerConfig``; requests set it in ``vllm_xargs``: ``blockmgr_priority``
            (``low`` to ``high``), ``blockmgr_ttl`` in seconds, ``blockmgr_cache_control``
            (``5m`` or ``1h``) and ``blockmgr_expect_reuse``; ``session_id`` names its session.
        kv_hints: Whether ``kv_hints`` of requests are carried out. For a server behind a router:
            the engine cannot know who wrote them.
        max_pinned_blocks: As in ``ManagerConfig``.
        halfway_stop_tokens: As in ``ManagerConfig``, for models with recurrent states.
        prompt_end_stop: As in ``ManagerConfig``, for models with recurrent states.
        quotas: Blocks reserved for single values of the requests' ``cache_salt``.
        debug: As in ``ManagerConfig``.
    """

    enabled: bool = True
    fallback: Literal["refuse", "stock"] = "refuse"
    hash_requests: bool = False
    report_every: float = 0.0
    explain_every: int = 0
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"
    eviction: str = same_option(ManagerConfig, "eviction")
    min_partial_tokens: int | None = None
    ghost_blocks: int = same_option(ManagerConfig, "ghost_blocks")
    hit_rate_window: int = same_option(ManagerConfig, "hit_rate_window")
    retention: bool = False
    kv_hints: bool = False
    max_pinned_blocks: int = same_option(ManagerConfig, "max_pinned_blocks")
    halfway_stop_tokens: int = same_option(ManagerConfig, "halfway_stop_tokens")
    prompt_end_stop: int | None = same_option(ManagerConfig, "prompt_end_stop")
    quotas: Mapping[str, int] = field(default_factory=dict)
    debug: int = same_option(ManagerConfig, "debug")

    @classmethod
    def read(cls, values: object) -> Options:
        """Options from parsed JSON.

        Raises:
            OptionError: Not an object, an unknown option, or an invalid value. Bounds that depend
                on the pool are checked when it is created.
        """
        if values is True:
            return cls()
        if not isinstance(values, Mapping):
            raise OptionError(f"blockmgr must be an object of options or true, got {values!r}")
        known = {option.name for option in fields(cls)}
        for name in values:
            if name in DECIDED_BY_VLLM:
                raise OptionError(f"vLLM decides blockmgr.{name}: {DECIDED_BY_VLLM[name]}")
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
        port = self.metrics_port
        is_port = isinstance(port, int) and not isinstance(port, bool) and 0 <= port <= MAX_PORT
        self._require("metrics_port", is_port, f"a port from 0 to {MAX_PORT}")
        for row in fields(self):
            value = getattr(self, row.name)
            if row.type == "bool":
                self._require(row.name, isinstance(value, bool), "true or false")
            elif row.type == "int" or (value is not None and row.type == "int | None"):
                is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
                self._require(row.name, is_whole, "a whole number, at least 0")
        self._require("kv_hints", self.retention or not self.kv_hints, "false without retention")
        is_host = isinstance(self.metrics_host, str) and bool(self.metrics_host)
        self._require("metrics_host", is_host, "an address")
        is_number = isinstance(self.report_every, int | float)
        is_number = is_number and not isinstance(self.report_every, bool)
        self._require("report_every", is_number and self.report_every >= 0, "seconds, at least 0")
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

    def for_model(
        self, block_sizes: Sequence[int], *, has_states: bool, has_head: bool = False
    ) -> Options:
        """The same, with the defaults that depend on the model's layers.

        Args:
            block_sizes: Tokens per block, by group of layers.
            has_states: Whether some layers have a recurrent state. Then a block holds hundreds of
                tokens, and prompts seldom diverge where one ends.
            has_head: Whether a draft head finds one token less than other layers (EAGLE). Then the
                manager looks into blocks, and half of the smallest block is worth a copy: of a
                block that ends with what is cached, all but the last token is found.
        """
        if self.min_partial_tokens is not None:
            return self
        least = min(STATE_PARTIAL_TOKENS, math.lcm(*block_sizes)) if has_states else 0
        if has_head and not has_states:
            least = max(1, min(block_sizes) // 2)
        return replace(self, min_partial_tokens=least)

    def config(self, **decided: Any) -> ManagerConfig:
        """The manager's configuration, with vLLM's decisions.

        Raises:
            OptionError: A value out of bounds.
        """
        quotas = {namespace_of(salt, None): blocks for salt, blocks in self.quotas.items()}
        options = {**options_of(self), "quotas": quotas, "null_block": True, "early_commit": True}
        options["min_partial_tokens"] = self.min_partial_tokens or 0
        try:
            return ManagerConfig(**{"dedup": "append_only", **options, **decided})
        except (TypeError, ValueError) as error:
            raise OptionError(f"blockmgr: {error}") from error


def namespace_of(salt: str | None, adapter: str | None, path: str | None = None) -> bytes:
    """The namespace of a request with this salt and adapter.

    The path distinguishes adapters that were loaded under the same name.
    """
    parts = {"salt": salt, "lora": adapter, "path": path}
    # JSON can hold half of a surrogate pair, which UTF-8 has no bytes for.
    named = {n: value.encode(errors="surrogatepass") for n, value in parts.items() if value}
    return namespace_key(**named) if named else b""
