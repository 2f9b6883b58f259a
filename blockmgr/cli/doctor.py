"""``blockmgr doctor``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from blockmgr.cli.common import WrongInput
from blockmgr.cli.options import json_option, read_option
from blockmgr.cli.replay import RESULT_SAYS_NO
from blockmgr.lab.choices import parse_gib
from blockmgr.lab.report import environment, print_facts

if TYPE_CHECKING:
    from blockmgr.tiers.ground import SlabGround

__all__ = ["doctor"]

GIB = 2**30


@click.command(short_help="Print versions and devices for a bug report, and look at tiers.")
@read_option(
    "--host-tier",
    parse_gib,
    "GIB",
    "GiB for a tier in memory, or a size such as 20GiB: adds whether so much is free.",
)
@click.option(
    "--disk-tier",
    type=click.Path(),
    metavar="FILE",
    help="The file of a tier on disk: adds what is there, and how fast its file system is.",
)
@read_option(
    "--disk-size",
    parse_gib,
    "GIB",
    "GiB for --disk-tier, if it is to be made: refused if so much is not free.",
)
@json_option()
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    host_tier: float | None,
    disk_tier: str | None,
    disk_size: float | None,
    json_wanted: bool,
) -> None:
    """Print versions, extras and devices for a bug report.

    With --host-tier or --disk-tier, say first whether such tiers would work here. The exit code is
    1 if memory is missing, and 3 if the file is refused.
    """
    if disk_size is not None and disk_tier is None:
        raise click.UsageError("--disk-size is for --disk-tier")
    facts: list[tuple[str, str]] = []
    is_missing = False
    if host_tier is not None:
        from blockmgr.tiers.ground import free_memory  # noqa: PLC0415  (slabs need POSIX)

        free = free_memory() / GIB
        is_missing = host_tier > free
        facts.append(("host tier", f"{host_tier:.1f} GiB wanted, {free:.1f} GiB are free"))
    if disk_tier is not None:
        facts += _disk_facts(disk_tier, disk_size)
    facts += environment()
    if json_wanted:
        click.echo(json.dumps(dict(facts), indent=2))
    else:
        print_facts(facts, sys.stdout)
    if is_missing:
        ctx.exit(RESULT_SAYS_NO)


def _disk_facts(path: str, size: float | None) -> list[tuple[str, str]]:
    """What is at a path, and how fast it is."""
    from blockmgr.tiers import SlabError, SlabSpaceError  # noqa: PLC0415  (slabs need POSIX)
    from blockmgr.tiers.ground import slab_ground  # noqa: PLC0415

    try:
        ground = slab_ground(path)
        needed = int((size or 0) * GIB)
        if not ground.num_bytes and needed > ground.free_bytes:
            raise SlabSpaceError(path, needed, ground.free_bytes)
    except SlabError as error:
        raise WrongInput(str(error)) from None
    there = "no file yet"
    if ground.num_bytes:
        named = ", ".join(f"{name} {value}" for name, value in ground.made_for.items())
        there = f"a slab of {ground.num_bytes / GIB:.1f} GiB for {named}"
    return [
        ("disk tier", there),
        ("disk space", f"{ground.free_bytes / GIB:.1f} GiB are free"),
        ("disk speed", _speed(ground)),
    ]


def _speed(ground: SlabGround) -> str:
    size = ground.trial_bytes / 1e9
    how = "past the page cache" if ground.is_direct else "through the page cache"
    return (
        f"{size / ground.write_s:.2f} GB/s written, {size / ground.read_s:.2f} GB/s read, measured "
        f"with {ground.trial_bytes >> 20} MiB on one thread, {how}"
    )
