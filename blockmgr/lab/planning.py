"""Finds the blocks and the memory for a hit rate, from the curve and a replay.

The curve contains the hit rates of all pool sizes, and is exact as long as no request waits for
blocks. In small pools requests do wait, so each answer is replayed, and the result is shown with
it.

With several groups of layers a hit ends where any group lacks a block, so there is no such curve,
and pools are replayed. A larger pool almost always finds more. The answer is a pool that reaches
the rate, while one that is smaller by a hundredth of the working set does not, or by one block if
the answer is far above the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from blockmgr.lab.curve import hit_rate_curve
from blockmgr.lab.replay import ReplayConfig, ReplayResult, replay
from blockmgr.lab.replay_config import different_configs
from blockmgr.lab.study import attainable
from blockmgr.lab.sweep import largest_request_blocks
from blockmgr.shapes import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from fractions import Fraction

    from blockmgr.lab.sweep import Advance
    from blockmgr.lab.trace import Trace

__all__ = ["LARGE_STEP", "Plan", "PlanRow", "PoolSearch", "kv_bytes_per_token", "plan"]

LARGE_STEP: Final = 0.005
"""Hit rate above the requested one from which the search goes on, block by block at last."""

STEPS: Final = 100
"""Resolution of pool sizes, as a fraction of the working set."""


class PoolSearch:
    """Replays of one trace at one block size, with each pool replayed once.

    Args:
        trace: The requests.
        config: Config of the replays, with groups.
        advance: Called once for each replay.

    Raises:
        ValueError: The trace cannot be cut into blocks of ``config.block_size``.
    """

    def __init__(self, trace: Trace, config: ReplayConfig, advance: Advance | None = None) -> None:
        self._trace = trace
        self._config = config
        self._advance = advance or (lambda: None)
        best = attainable(trace, config)
        self.attainable = best.hit_rate
        self._working_set = best.working_set_blocks
        self._least = largest_request_blocks(trace, config)
        self._replayed: dict[int, ReplayResult] = {}

    def replay(self, num_blocks: int) -> ReplayResult:
        """The replay of a pool."""
        if num_blocks not in self._replayed:
            self._replayed[num_blocks] = replay(self._trace, num_blocks, self._config)
            self._advance()
        return self._replayed[num_blocks]

    def blocks_for(self, hit_rate: Fraction) -> int | None:
        """The smallest pool that reaches ``hit_rate``; None if an unbounded one does not."""
        if hit_rate > self.attainable:
            return None
        largest = max(self._least, self._working_set)
        step = max(1, largest // STEPS)
        low, high = self._least, largest
        if self.replay(low).hit_rate >= hit_rate:
            return low
        while high - low > step or (high - low > 1 and self._is_far_above(high, hit_rate)):
            middle = (low + high) // 2
            if self.replay(middle).hit_rate >= hit_rate:
                high = middle
            else:
                low = middle
        return high

    def _is_far_above(self, num_blocks: int, hit_rate: Fraction) -> bool:
        return self.replay(num_blocks).hit_rate - float(hit_rate) > LARGE_STEP

    def smaller(self, num_blocks: int) -> ReplayResult | None:
        """The replay of the largest pool below ``num_blocks`` so far; None if there is none."""
        tried = [blocks for blocks in self._replayed if blocks < num_blocks]
        return self._replayed[max(tried)] if tried else None


GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """The pool for one hit rate at one block size.

    Attributes:
        hit_rate: The requested hit rate.
        block_size: Tokens per block.
        attainable: Hit rate of an unbounded pool at this block size.
        num_blocks: The smallest pool that reaches it; None if no pool does.
        num_bytes: K/V bytes of these blocks; None if there are none or the model is unknown.
        replayed: A replay at ``num_blocks`` with service times; None without ``num_blocks``.
        smaller: With several groups, a replay of the largest smaller pool that was tried, which
            does not reach the rate; None with one group, whose answer is exact.
        tiered: A replay at ``num_blocks`` with the tiers of the config, which shows what they add;
            None without tiers.
    """

    hit_rate: Fraction
    block_size: int
    attainable: float
    num_blocks: int | None
    num_bytes: int | None
    replayed: ReplayResult | None
    smaller: ReplayResult | None = None
    tiered: ReplayResult | None = None

    @property
    def num_tokens(self) -> int | None:
        """Tokens that fit the pool in blocks of any group, to compare pools of different blocks."""
        return None if self.num_blocks is None else self.num_blocks * self.block_size

    @property
    def gib(self) -> float | None:
        """``num_bytes`` in GiB."""
        return None if self.num_bytes is None else self.num_bytes / GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answers by hit rate, then by block size, in the requested order.

    Attributes:
        trace: Name of the trace.
        config: Config of the replays, except for the block size.
        bytes_per_token: K/V bytes per token in all layers, or in the layers of one of several
            groups; None if the model is unknown.
        rows: At least one.
    """

    trace: str
    config: ReplayConfig
    bytes_per_token: int | None
    rows: tuple[PlanRow, ...]

    def cheapest(self, hit_rate: Fraction) -> PlanRow:
        """The row that reaches ``hit_rate`` with the least memory; ties go to the largest blocks.

        Larger blocks mean shorter block tables, so they are better at equal memory.
        """
        reached = [row for row in self.rows if row.hit_rate == hit_rate and row.num_tokens]
        return min(reached, key=lambda row: (row.num_tokens or 0, -row.block_size))


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_size: int, dtype: str) -> int:
    """Bytes of K and V per token in all layers.

    Args:
        num_layers: Layers that keep K/V, at least 1.
        num_kv_heads: K/V heads per layer on one device, at least 1.
        head_size: Elements of a head of K, at least 1.
        dtype: A key of ``blockmgr.shapes.ELEMENTS``.

    >>> kv_bytes_per_token(32, 8, 128, "bfloat16")
    131072
    """
    return 2 * num_layers * num_kv_heads * head_size * ELEMENTS[dtype].itemsize


def plan(
    trace: Trace,
    hit_rates: Sequence[Fraction],
    config: ReplayConfig | Sequence[ReplayConfig],
    *,
    bytes_per_token: int | None = None,
    advance: Advance | None = None,
) -> Plan:
    """The smallest pool for each hit rate with each config.

    Args:
        trace: The requests.
        hit_rates: Hit rates to reach, each in ``[0, 1]``.
        config: Config of the replays, or several configs that differ in ``block_size``.
        bytes_per_token: K/V bytes per token in all layers, or in the layers of one of several
            groups; None for answers in blocks only.
        advance: Called once for each config and once for each row; with several groups, also once
            for each replay of the searches.

    Raises:
        ValueError: No block size reaches a hit rate; the message gives the attainable one. Or the
            trace cannot be cut into blocks of such a size, or a config is given twice.
    """
    step = advance or (lambda: None)
    settings = different_configs(config)
    pools: list[_OnCurve | PoolSearch] = []
    for setting in settings:
        pools.append(
            PoolSearch(trace, setting, step) if setting.groups else _OnCurve(trace, setting)
        )
        step()
    for hit_rate in hit_rates:
        _check_attainable(trace, hit_rate, settings, pools)
    rows = []
    for hit_rate in hit_rates:
        for setting, found in zip(settings, pools, strict=True):
            rows.append(_row(trace, hit_rate, setting, found, bytes_per_token))
            step()
    return Plan(
        trace=trace.name, config=settings[0], bytes_per_token=bytes_per_token, rows=tuple(rows)
    )


def _check_attainable(
    trace: Trace,
    hit_rate: Fraction,
    settings: Iterable[ReplayConfig],
    pools: Iterable[_OnCurve | PoolSearch],
) -> None:
    best, size = max(
        (found.attainable, -setting.block_size)
        for setting, found in zip(settings, pools, strict=True)
    )
    if hit_rate > best:
        # Rounded down, so that the printed rate is attainable.
        most = int(10_000 * best) / 100
        raise ValueError(
            f"hit rate must be at most {most:.2f}%, what an unbounded pool reaches on "
            f"{trace.name} with blocks of {-size}, got {float(hit_rate):.2%}"
        )


def _row(
    trace: Trace,
    hit_rate: Fraction,
    config: ReplayConfig,
    found: _OnCurve | PoolSearch,
    bytes_per_token: int | None,
) -> PlanRow:
    blocks = found.blocks_for(hit_rate)
    taken = None if blocks is None else blocks * config.block_size
    return PlanRow(
        hit_rate=hit_rate,
        block_size=config.block_size,
        attainable=found.attainable,
        num_blocks=blocks,
        num_bytes=None if taken is None or bytes_per_token is None else taken * bytes_per_token,
        replayed=None if blocks is None else found.replay(blocks),
        smaller=None if blocks is None else found.smaller(blocks),
        tiered=replay(trace, blocks, config) if config.tiers and blocks is not None else None,
    )


class _OnCurve:
    """Searches pool sizes with one group of layers, like ``PoolSearch`` with several."""

    def __init__(self, trace: Trace, config: ReplayConfig) -> None:
        self._trace = trace
        self._config = config
        self._curve = hit_rate_curve(trace, config.of_device)
        self.attainable = self._curve.unbounded_hit_rate

    def blocks_for(self, hit_rate: Fraction) -> int | None:
        """The smallest pool; None if an unbounded one does not reach ``hit_rate``."""
        reached = hit_rate <= self.attainable
        return self._curve.blocks_for(float(hit_rate)) if reached else None

    def replay(self, num_blocks: int) -> ReplayResult:
        """The replay of a pool, without tiers."""
        return replay(self._trace, num_blocks, self._config.of_device)

    def smaller(self, num_blocks: int) -> None:
        """No pool: the curve has each of them."""
