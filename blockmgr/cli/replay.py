"""``blockmgr replay``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from blockmgr.cli import options
from blockmgr.cli.common import progress_bar, tell_rejected, telling
from blockmgr.cli.options import Given, given
from blockmgr.lab.report import as_json, print_groups, print_study, print_tiers
from blockmgr.lab.study import parse_capacities, parse_share, study

if TYPE_CHECKING:
    from fractions import Fraction
    from pathlib import Path

    from blockmgr.lab.study import Capacity

__all__ = ["replay"]

RESULT_SAYS_NO: Final = 1
# Defaults that affect every result; the printed command includes them.
ALWAYS_REPEATED: Final = frozenset({"workload", "capacities", "block_size", "seed"})


@click.command(short_help="Replay requests and print the hit rate.")
@options.source_options
@options.read_option(
    "--capacity --capacities capacities",
    parse_capacities,
    "SIZES",
    "Pool sizes: blocks, or percentages of the working set, separated by commas.",
    default="5%,10%,20%,50%,100%",
)
@options.tier_options
@options.engine_options()
@options.read_option(
    "--min-hit-rate",
    parse_share,
    "SHARE",
    "Exit with 1 if the rate of a capacity is below this, such as 30%.",
)
@click.option(
    "--no-attainable",
    "ceiling",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Leave out the unbounded pool, which takes memory for every distinct prefix.",
)
@options.json_option()
@options.file_option(
    "--plot plot_path", "Draw the curve into a .png or .svg, and write its data into a .csv."
)
@options.debug_option
@given
def replay(
    run: Given,
    *,
    capacities: tuple[Capacity, ...],
    min_hit_rate: Fraction | None,
    plot_path: Path | None,
    ceiling: bool,
) -> None:
    """Replay requests through the block manager and print the hit rate at each capacity.

    SOURCE is a trace file or the name of a workload, shared-prompt if there is none. With --model,
    layers that read a window, a chunk or a state have blocks of their own, and a second table
    shows what each group held and which one cut hits short. With --tiers, it shows where the
    tokens of prompts came from: found on the device, loaded from a tier, or computed.
    """
    if plot_path is not None:
        # Before the work, so that a missing extra fails early.
        from blockmgr.lab import plot  # noqa: PLC0415  (matplotlib only when drawing)

        plot.check_path(plot_path, inputs=run.source.files)
    trace, config = run.trace, run.tiered
    total = len(trace.requests) * len(capacities)
    with progress_bar("replaying", "requests", total) as progress:
        outcome = study(trace, capacities, config, ceiling=ceiling, progress=progress)
    provenance = run.provenance(ALWAYS_REPEATED, run.repeated_as_workload)
    if run.json_wanted:
        click.echo(as_json(outcome, provenance, run.model))
    else:
        print_study(outcome, sys.stdout)
        if config.groups:
            print_groups(outcome, run.model, sys.stdout)
        if config.tiers:
            print_tiers(outcome, run.model, sys.stdout)
        click.echo(provenance.line, err=True)
    for result in outcome.results:
        tell_rejected(trace, config, result.num_blocks)
    if plot_path is not None:
        with telling(plot_path, plot_path.with_suffix(".csv")):
            plot.save_plot(outcome, plot_path)
    if min_hit_rate is not None and outcome.lowest_hit_rate < min_hit_rate:
        click.echo(
            f"hit rate {float(outcome.lowest_hit_rate):.2%} is below --min-hit-rate "
            f"{float(min_hit_rate):.2%}",
            err=True,
        )
        run.ctx.exit(RESULT_SAYS_NO)
