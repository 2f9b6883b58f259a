"""A fixture that runs the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from blockmgr.cli import cli

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """Run the command line as a program without a terminal would."""
    return lambda *args: CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="blockmgr")
