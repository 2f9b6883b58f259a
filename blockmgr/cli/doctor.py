"""``blockmgr doctor``."""

from __future__ import annotations

import sys

import click

from blockmgr.lab.report import print_environment

__all__ = ["doctor"]


@click.command(short_help="Print versions: what a bug report needs.")
def doctor() -> None:
    """Print versions, extras and devices: what a bug report needs."""
    print_environment(sys.stdout)
