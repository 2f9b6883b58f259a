"""Options that several commands take: which requests to replay, and how."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from blockmgr.lab.study import parse_share
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workloads import WORKLOADS, generate

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

__all__ = [
    "DEFAULT_WORKLOAD",
    "check_one_source",
    "chosen_trace",
    "debug_option",
    "how_options",
    "share",
    "trace_options",
]

DEFAULT_WORKLOAD: Final = "shared-prompt"

F = TypeVar("F", bound="Callable[..., Any]")


def trace_options(command: F) -> F:
    """``--trace`` and ``--workload``, as ``trace_path`` and ``workload``."""
    for option in (
        click.option(
            "--workload",
            type=click.Choice(sorted(WORKLOADS)),
            help=f"Replay a generated workload.  [default: {DEFAULT_WORKLOAD}]",
        ),
        click.option(
            "--trace",
            "trace_path",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Replay a recorded trace: Mooncake JSONL, or blockmgr's own.",
        ),
    ):
        command = option(command)
    return command


def how_options(command: F) -> F:
    """``--seed``, and the fields of ``ReplayConfig``."""
    for option in reversed(_HOW):
        command = option(command)
    return command


def debug_option(command: F) -> F:
    """``--debug``."""
    return click.option("--debug", is_flag=True, help="Show where an error came from.")(command)


def share(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Fraction | None:
    """The callback of an option whose value is a share, such as ``30%``."""
    try:
        return None if text is None else parse_share(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def check_one_source(ctx: click.Context, trace_path: Path | None, workload: str | None) -> None:
    """Refuse a trace and a workload at once.

    Raises:
        click.UsageError: Both are given.
    """
    if trace_path is not None and workload is not None:
        raise click.UsageError("--trace and --workload exclude each other", ctx)


def chosen_trace(trace_path: Path | None, workload: str | None, seed: int) -> Trace:
    """The requests that ``trace_options`` and ``--seed`` name.

    Raises:
        TraceFormatError: The file is not a trace.
        OSError: The file cannot be read.
    """
    if trace_path is not None:
        return read_trace(trace_path)
    return generate(workload or DEFAULT_WORKLOAD, seed)


_HOW: Final = (
    click.option("--block-size", default=16, show_default=True, help="Tokens per block."),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Seed of the workload.",
    ),
    click.option(
        "--service-ms-per-token",
        default=30,
        show_default=True,
        help="How long a request holds its blocks, for each output token.",
    ),
    click.option(
        "--min-service-ms",
        default=500,
        show_default=True,
        help="Shortest time a request holds its blocks.",
    ),
    click.option(
        "--max-seqs", default=1024, show_default=True, help="Sequences running at once, at most."
    ),
    click.option(
        "--min-partial-tokens",
        default=0,
        show_default=True,
        help="Reuse parts of blocks from this many tokens on; 0 is off.",
    ),
    click.option(
        "--dedup",
        type=click.Choice(["remap", "append_only"]),
        default="remap",
        show_default=True,
        help="What happens to a block that is found to be cached already.",
    ),
    click.option(
        "--digest",
        type=click.Choice(["xxh3_128", "sha256"]),
        default="xxh3_128",
        show_default=True,
        help="What finds candidates; hits are proved either way.",
    ),
    click.option(
        "--hints",
        type=click.Choice(["none", "truth"]),
        default="none",
        show_default=True,
        help="What is known when a request ends: nothing, or whether its conversation goes on.",
    ),
)
