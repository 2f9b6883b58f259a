"""``blockmgr stress``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from blockmgr.cli.common import one_line_errors
from blockmgr.cli.options import debug_option
from blockmgr.stress.command import DETECTORS, Command, plan_of
from blockmgr.stress.profiles import PROFILES

__all__ = ["stress"]


@click.command(short_help="Check the manager with random operations.")
@click.option("--seed", default=1, show_default=True, help="Decides every operation.")
@click.option(
    "--profile",
    type=click.Choice(["all", *PROFILES]),
    default="all",
    show_default=True,
    metavar="NAME",
    help=f"What is played: all in turn, or one of {', '.join(PROFILES)}.",
)
@click.option(
    "--ops",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="Number of operations.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Stop after this long, whatever --ops says.",
)
@click.option(
    "--config",
    type=click.Choice(["random", "default"]),
    default="random",
    show_default=True,
    help="Options of the managers; default draws only sizes.",
)
@click.option(
    "--detectors",
    default=DETECTORS,
    show_default=True,
    help="I invariants, K a memory of what was written, D a slow model.",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes."
)
@click.option(
    "--replay",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Run the operations of a file instead.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="stress-failure.jsonl",
    show_default=True,
    metavar="FILE",
    help="Where a failing run is kept.",
)
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON instead of text.")
@debug_option
@click.pass_context
def stress(
    ctx: click.Context,
    /,
    *,
    replay: Path | None,
    out: Path,
    jobs: int,
    json_wanted: bool,
    debug: bool,
    **options: Any,
) -> None:
    """Check the manager with random operations under three detectors.

    Exits with 1 if there is a violation, and keeps the shortest run that shows it.
    """
    command = Command("blockmgr stress", as_json=json_wanted)
    with one_line_errors(ctx, show_traceback=debug):
        plan = plan_of(**options)
        code = command.run(plan, jobs, out) if replay is None else command.replay(replay, plan)
    ctx.exit(code)
