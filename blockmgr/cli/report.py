"""``blockmgr report``."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from blockmgr.cli import options
from blockmgr.cli.common import progress_bar, telling
from blockmgr.cli.options import Given, given
from blockmgr.files import check_output
from blockmgr.lab.choices import parse_policies, whole_numbers
from blockmgr.lab.replays import warmup_requests
from blockmgr.lab.routers import ROUTERS
from blockmgr.lab.study import parse_capacities

if TYPE_CHECKING:
    from pathlib import Path

    from blockmgr.lab.study import Capacity

__all__ = ["report"]

ALWAYS_REPEATED: Final = frozenset({"source", "capacity", "policies", "block_size", "seed"})
# Without its paths and the number of processes: the same report gives the same bytes.
NOT_SHOWN: Final = frozenset({"jobs", "json_wanted"})
ANY_PAGE: Final = "report.html"
"""The page in the command that the page itself shows."""

PLACES: Final = 6


def _replica_counts(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(whole_numbers("replicas", text)))


@click.command(short_help="Write a web page on the hit rate.")
@options.source_options
@options.file_option("--output -o", "The page: a .html that needs no other file.", required=True)
@options.capacity_option(
    "The pool to look at in detail: blocks, or a percentage of the working set."
)
@options.read_option(
    "--capacities",
    parse_capacities,
    "SIZES",
    "Pool sizes to compare policies at.  [default: those of 1%,2%,5%,10%,20%,50% that fit]",
    none=(),
)
@options.read_option(
    "--policies",
    parse_policies,
    "NAMES",
    "Eviction policies to compare with LRU, separated by commas.",
    default="all",
)
@options.warmup_option
@options.read_option(
    "--replicas",
    _replica_counts,
    "COUNTS",
    "Add a chapter on the same blocks split over so many replicas, such as 1,2,4,8.",
    none=(),
)
@options.read_option(
    "--routers",
    options.router_names,
    "NAMES",
    f"Routers of these replicas: {', '.join(ROUTERS)}.",
    default="all",
)
@options.tier_options
@options.engine_options("eviction", "dedup")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Number of processes.  [default: one a CPU]",
)
@options.json_option("Print the numbers of the page as JSON.")
@options.debug_option
@given
def report(
    run: Given,
    *,
    output: Path,
    capacity: Capacity,
    capacities: tuple[Capacity, ...],
    policies: tuple[str, ...],
    **extent: Any,
) -> None:
    """Write a page on the hit rate, its upper bounds, and the reasons for misses.

    SOURCE is a trace file or the name of a workload, shared-prompt if there is none. With --model,
    the page shows what each group of layers holds and refuses; with --replicas, what routers find;
    with --tiers, what slower memory adds.
    """
    from blockmgr.lab import page  # noqa: PLC0415  (matplotlib only when drawing)

    check_output(output, suffixes=page.PAGES, inputs=run.source.files)
    if not extent["replicas"]:
        run.refuse("--replicas", "routers")
    asked = page.Extent(
        warmup=warmup_requests(run.trace, extent.pop("warmup")),
        seed=run.seed,
        model=run.model,
        **extent,
    )
    shown = {**run.repeated, "output": ANY_PAGE}
    total = page.num_steps(
        policies=len(policies),
        capacities=len(capacities) or PLACES,
        hints=run.config.hints,
        sessions=run.trace.names_sessions,
        tiered=bool(run.tiers),
        fleet_requests=len(asked.replicas) * len(asked.routers) * len(run.trace.requests),
    )
    with progress_bar("replaying", "steps", total) as advance:
        gathered = page.gather(
            run.trace,
            run.tiered,
            capacity=capacity,
            policies=policies,
            capacities=capacities,
            extent=asked,
            jobs=run.options["jobs"] or len(os.sched_getaffinity(0)),
            advance=advance,
        )
    command = run.provenance(ALWAYS_REPEATED, shown, leave_out=NOT_SHOWN).command
    gathered = replace(gathered, command=command)
    origin = {} if run.trace.read is None else {"read": run.trace.read.as_plain}
    numbers = json.dumps({**page.data_of(gathered), **origin}, indent=2, sort_keys=True)
    click.echo(numbers if run.json_wanted else gathered.summary)
    click.echo(run.provenance(ALWAYS_REPEATED, leave_out={"jobs"}).line, err=True)
    with telling(output):
        page.save_report(gathered, output)
