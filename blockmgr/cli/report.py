"""``blockmgr report``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from blockmgr.cli.common import one_line_errors, progress_bar, repeat_command, telling
from blockmgr.cli.models import (
    chosen_block_sizes,
    chosen_model,
    dtype_option,
    forward_options,
    model_option,
)
from blockmgr.cli.options import (
    capacities,
    chosen_source,
    debug_option,
    how_options_without,
    one_capacity,
    policies,
    replica_counts,
    router_names,
    share,
    source_options,
    warmup_option,
)
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.report import Provenance
from blockmgr.lab.routers import ROUTERS
from blockmgr.lab.warmup import warmup_requests

if TYPE_CHECKING:
    from fractions import Fraction

    from blockmgr.lab.study import Capacity

__all__ = ["report"]

ALWAYS_REPEATED: Final = frozenset({"source", "capacity", "policies", "block_size", "seed"})
# Without its paths and the number of processes: the same report gives the same bytes.
NOT_SHOWN: Final = frozenset({"png", "svg", "jobs", "json_wanted"})
ANY_PAGE: Final = "report.html"
"""The page in the command that the page itself shows."""

PLACES: Final = 6


def _sizes(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[Capacity, ...]:
    return () if text is None else capacities(ctx, param, text)


FILE: Final = click.Path(dir_okay=False, path_type=Path)


@click.command(short_help="Write a web page on the hit rate.")
@source_options
@click.option(
    "--output",
    "-o",
    type=FILE,
    required=True,
    metavar="FILE",
    help="The page: a .html that needs no other file.",
)
@click.option("--png", type=FILE, metavar="FILE", help="Draw the charts into a .png as well.")
@click.option("--svg", type=FILE, metavar="FILE", help="Draw the charts into a .svg as well.")
@click.option(
    "--capacity",
    callback=one_capacity,
    default="10%",
    show_default=True,
    metavar="SIZE",
    help="The pool to look at in detail: blocks, or a percentage of the working set.",
)
@click.option(
    "--capacities",
    callback=_sizes,
    metavar="SIZES",
    help="Pool sizes to compare policies at.  [default: those of 1%,2%,5%,10%,20%,50% that fit]",
)
@click.option(
    "--policies",
    callback=policies,
    default="all",
    show_default=True,
    metavar="NAMES",
    help="Eviction policies to compare with LRU, separated by commas.",
)
@warmup_option
@click.option(
    "--sample",
    callback=share,
    default="100%",
    show_default=True,
    metavar="SHARE",
    help="Blocks that the curve looks at; with fewer than all, the page shows its error.",
)
@click.option(
    "--replicas",
    callback=replica_counts,
    metavar="COUNTS",
    help="Add a chapter on the same blocks split over so many replicas, such as 1,2,4,8.",
)
@click.option(
    "--routers",
    callback=router_names,
    default="all",
    show_default=True,
    metavar="NAMES",
    help=f"Routers of these replicas: {', '.join(ROUTERS)}.",
)
@model_option
@dtype_option
@how_options_without("eviction", "dedup")
@forward_options
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Number of processes.  [default: one a CPU]",
)
@click.option("--json", "json_wanted", is_flag=True, help="Print the numbers of the page as JSON.")
@debug_option
@click.pass_context
def report(
    ctx: click.Context,
    /,
    *,
    source: str | None,
    trace_path: Path | None,
    workload: str | None,
    output: Path,
    png: Path | None,
    svg: Path | None,
    capacity: Capacity,
    capacities: tuple[Capacity, ...],
    policies: tuple[str, ...],
    warmup: Fraction,
    sample: Fraction,
    replicas: tuple[int, ...],
    routers: tuple[str, ...],
    model: str | None,
    dtype: str | None,
    seed: int,
    jobs: int | None,
    json_wanted: bool,
    debug: bool,
    **settings: Any,
) -> None:
    """Write a page on the hit rate, its upper bounds, and the reasons for misses.

    SOURCE is a trace file or the name of a workload, shared-prompt if there is none. With --model,
    the page shows what each group of layers holds and refuses; with --replicas, what routers find.
    """
    chosen = chosen_source(ctx, source, trace_path, workload)
    with one_line_errors(ctx, show_traceback=debug):
        from blockmgr.lab import page  # noqa: PLC0415  (matplotlib only when drawing)

        inputs = chosen.files
        page.check_path(output, inputs=inputs)
        pictures = [path for path in (png, svg) if path is not None]
        for path, suffix in ((png, ".png"), (svg, ".svg")):
            if path is not None:
                page.check_path(path, (suffix,), inputs=inputs)
        layers = chosen_model(model, dtype)
        [size] = chosen_block_sizes(ctx, "block_size", (settings.pop("block_size"),), layers)
        groups = () if layers is None else layers.groups
        config = ReplayConfig(block_size=size, groups=groups, **settings)
        trace = chosen.trace(seed)
        extent = page.Extent(
            warmup=warmup_requests(trace, warmup),
            sampling_rate=float(sample),
            replicas=replicas,
            routers=routers,
            seed=seed,
            model=layers,
        )
        repeated = {**chosen.repeated, "block_size": size}
        shown = {**repeated, "output": ANY_PAGE}
        command = repeat_command(ctx, ALWAYS_REPEATED, shown, leave_out=NOT_SHOWN)
        total = page.num_steps(
            policies=len(policies),
            capacities=len(capacities) or PLACES,
            hints=config.hints,
            fleet_requests=len(replicas) * len(routers) * len(trace.requests),
        )
        with progress_bar("replaying", "steps", total) as advance:
            gathered = page.gather(
                trace,
                config,
                capacity=capacity,
                policies=policies,
                capacities=capacities,
                extent=extent,
                jobs=jobs or len(os.sched_getaffinity(0)),
                command=command,
                advance=advance,
            )
        origin = {} if trace.read is None else {"read": trace.read.as_plain}
        numbers = json.dumps({**page.data_of(gathered), **origin}, indent=2, sort_keys=True)
        click.echo(numbers if json_wanted else gathered.summary)
        told = repeat_command(ctx, ALWAYS_REPEATED, repeated, leave_out={"jobs"})
        click.echo(Provenance(command=told, seed=seed).line, err=True)
        with telling(output):
            page.save_report(gathered, output)
        for path in pictures:
            with telling(path):
                page.save_picture(gathered, path)
