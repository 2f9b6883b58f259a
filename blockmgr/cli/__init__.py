"""The command line: parses, calls the lab, prints.

Data goes to stdout, everything else to stderr. Exit codes: 0 success, 1 a negative result, 2 a
wrong command, 3 a file error (stdout is a file, too), 130 interrupted.

Each command has one module; ``common`` and ``options`` hold shared code.
"""

from __future__ import annotations

from typing import NoReturn

from blockmgr import __version__
from blockmgr.errors import MissingExtraError

try:
    import click
    import rich  # noqa: F401  (fails here, so that the error names the missing extra)
except ImportError as error:
    raise MissingExtraError("cli", "the command line") from error

from blockmgr.cli import (
    doctor,
    explain,
    fleet,
    generate,
    index,
    plan,
    replay,
    report,
    show,
    sweep,
    workload,
)
from blockmgr.cli.common import Group

__all__ = ["cli", "main"]


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="blockmgr", message="%(prog)s %(version)s")
def cli() -> None:
    """Paged KV-cache block manager: measure hit rates without a GPU."""


for command in (
    *(replay.replay, sweep.sweep, fleet.fleet, plan.plan, explain.explain, report.report),
    *(show.show, workload.workload, index.index, generate.generate, doctor.doctor),
):
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    cli.main(prog_name="blockmgr")
