"""``blockmgr doctor``."""

from __future__ import annotations

import sys

import click

from blockmgr.lab.report import print_environment

__all__ = ["doctor"]


@click.command()
def doctor() -> None:
    """Print versions, extras and devices: what a bug report needs."""
    print_environment(sys.stdout)
