"""``blockmgr doctor``."""

from __future__ import annotations

import json
import sys

import click

from blockmgr.cli.options import json_option
from blockmgr.lab.report import environment, print_environment

__all__ = ["doctor"]


@click.command(short_help="Print versions and devices for a bug report.")
@json_option
def doctor(*, json_wanted: bool) -> None:
    """Print versions, extras and devices for a bug report."""
    if json_wanted:
        click.echo(json.dumps(dict(environment()), indent=2))
    else:
        print_environment(sys.stdout)
