"""``blockmgr doctor``."""

from __future__ import annotations

import sys

import click

from blockmgr.lab.report import print_environment

__all__ = ["doctor"]


@click.command(short_help="Print versions and devices for a bug report.")
def doctor() -> None:
    """Print versions, extras and devices for a bug report."""
    print_environment(sys.stdout)
