"""``blockmgr sweep``."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import click

from blockmgr.cli import options
from blockmgr.cli.common import progress_bar
from blockmgr.cli.options import Given, given
from blockmgr.lab.choices import parse_policies
from blockmgr.lab.replays import warmup_requests
from blockmgr.lab.report import counts_of, json_text, new_table, print_table
from blockmgr.lab.study import parse_capacities
from blockmgr.lab.sweep import Sweep, SweepRow, num_tasks
from blockmgr.lab.sweep import sweep as run_sweep

if TYPE_CHECKING:
    from fractions import Fraction

    from rich.table import Table

    from blockmgr.lab.models import Model
    from blockmgr.lab.replay_result import ReplayResult
    from blockmgr.lab.study import Capacity
    from blockmgr.lab.tiered import ReplayTier

__all__ = ["sweep"]

# Defaults that affect every row; the printed command includes them.
ALWAYS_REPEATED: Final = frozenset({"source", "policies", "capacities", "block_sizes", "seed"})
# Shown if there is no value: a pool without a replay, or no gap to close.
NOTHING: Final = "\N{EN DASH}"
HEADINGS: Final = (
    "block\nsize",
    "capacity",
    "blocks",
    "policy",
    "hit\nrate",
    "optimum",
    "unbounded",
    "gap\nclosed",
    "evictions",
    "waited",
)
TIER_HEADINGS: Final = ("tiers", "of\ndevice", "one LRU\npool", "stored")


@click.command(short_help="Compare policies, pool sizes and block sizes.")
@options.source_options
@options.read_option(
    "--policies --eviction policies",
    parse_policies,
    "NAMES",
    "Eviction policies, separated by commas.",
    default="all",
)
@options.read_option(
    "--capacities --capacity capacities",
    parse_capacities,
    "SIZES",
    "Pool sizes: blocks, or percentages of the working set, separated by commas.",
    default="1%,2%,5%,10%,20%,50%",
)
@options.block_sizes_option(
    "Tokens per block, separated by commas.", "--block-sizes", "--block-size"
)
@options.warmup_option
@options.tier_options
@options.engine_options("block_size", "eviction")
@options.jobs_options
@options.json_option()
@options.debug_option
@given
def sweep(
    run: Given,
    *,
    policies: tuple[str, ...],
    capacities: tuple[Capacity, ...],
    warmup: Fraction,
) -> None:
    """Replay with every eviction policy at every pool size and block size.

    SOURCE is a trace file or the name of a workload, shared-prompt if there is none. Each hit rate
    is printed with the optimum of that pool and the rate of an unbounded pool. With --model and
    several groups of layers, and for parts of blocks, there is no optimum. With --tiers, which
    take several sizes, such as host=2%,8%,20%, the optimum is that of one pool of all blocks.
    """
    trace = run.trace
    configs = [
        replace(run.config, block_size=size, tiers=tiers)
        for size in run.block_sizes
        for tiers in run.tiers or [()]
    ]
    warmed = warmup_requests(trace, warmup)
    total = num_tasks(
        policies=len(policies),
        capacities=len(capacities),
        configs=len(configs),
        hints=run.config.hints,
    )
    with progress_bar("sweeping", "replays", total) as advance:
        outcome = run_sweep(
            trace,
            capacities,
            configs,
            policies=policies,
            warmup=warmed,
            jobs=run.jobs(total),
            advance=advance,
        )
    # The number of workers does not affect the result.
    provenance = run.provenance(ALWAYS_REPEATED, leave_out={"jobs", "ray_address"})
    if run.json_wanted:
        click.echo(json_text(_document(outcome, run.model, warmed), provenance))
        return
    for small in outcome.too_small:
        click.echo(
            f"{small.capacity.text} ({small.num_blocks:,} blocks of {small.block_size}) is "
            f"not replayed: the largest request takes {small.least_blocks:,}",
            err=True,
        )
    requests = f"{len(trace.requests):,} requests"
    if warmed:
        requests += f", the first {warmed:,} are not counted"
    print_table(_table(outcome, capacities, run.tiers), sys.stdout, f"{trace.name}: {requests}")
    click.echo(provenance.line, err=True)


def _document(outcome: Sweep, model: Model | None, warmup: int) -> dict[str, Any]:
    config = outcome.config.as_plain
    # Each row has its own.
    del config["block_size"], config["eviction"]
    known = {} if model is None else {"model": model.as_plain(outcome.config.block_size)}
    return {
        **known,
        "config": config,
        "results": [_entry(row, model) for row in outcome.rows],
        "too_small": [
            {**asdict(small), "capacity": small.capacity.text} for small in outcome.too_small
        ],
        "trace": outcome.trace,
        "warmup_requests": warmup,
    }


def _entry(row: SweepRow, model: Model | None) -> dict[str, Any]:
    return {
        **counts_of(row.result, model, row.block_size),
        "attainable_hit_rate": row.attainable.hit_rate,
        "block_size": row.block_size,
        "capacity": row.capacity.text,
        "gap_closed": row.gap_closed,
        "hit_rate": row.result.hit_rate,
        "optimum_hit_rate": None if row.optimum is None else row.optimum.hit_rate,
        "policy": row.policy,
    }


def _table(
    outcome: Sweep, capacities: tuple[Capacity, ...], tiers: list[tuple[ReplayTier, ...]]
) -> Table:
    headings = (*HEADINGS, *(TIER_HEADINGS if tiers else ()))
    table = new_table(headings, left="policy")
    cells: dict[tuple[int, str], list[list[str]]] = {}
    for row in outcome.rows:
        cells.setdefault((row.block_size, row.capacity.text), []).append(_cells(row))
    for small in outcome.too_small:
        line = [str(small.block_size), small.capacity.text, f"{small.num_blocks:,}"]
        lines = [line + [NOTHING] * (len(headings) - len(line))]
        cells[small.block_size, small.capacity.text] = lines
    # All requested pools, including those that could not be replayed.
    for block_size in dict.fromkeys(size for size, _ in cells):
        for capacity in capacities:
            for line in cells[block_size, capacity.text]:
                table.add_row(*line)
            table.add_section()
    return table


def _cells(row: SweepRow) -> list[str]:
    gap = row.gap_closed
    return [
        str(row.block_size),
        row.capacity.text,
        f"{row.result.num_blocks:,}",
        row.policy,
        f"{row.result.hit_rate:.2%}",
        NOTHING if row.optimum is None else f"{row.optimum.hit_rate:.2%}",
        f"{row.attainable.hit_rate:.2%}",
        NOTHING if gap is None else f"{gap:.0%}",
        f"{row.result.evictions:,}",
        f"{row.result.waited:,}",
        *_tier_cells(row.result),
    ]


def _tier_cells(result: ReplayResult) -> list[str]:
    found = result.by_tier
    if found is None:
        return []
    sizes = (f"{counts.tier.name} {counts.tier.num_blocks:,}" for counts in found.tiers)
    stored = (f"{counts.moved.stored:,}" for counts in found.tiers)
    shares = (found.device_tokens, found.one_pool_hit_tokens)
    return [
        "; ".join(sizes),
        *(f"{found.share(tokens):.2%}" for tokens in shares),
        "; ".join(stored),
    ]
