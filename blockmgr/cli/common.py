"""What commands share: how errors are shown, how progress is, and how a run is repeated."""

from __future__ import annotations

import shlex
import sys
import traceback
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from blockmgr.errors import MissingExtraError, TraceFormatError
from blockmgr.lab.replay import held_blocks
from blockmgr.lab.study import Capacity, parse_share
from blockmgr.lab.sweep import largest_request_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = [
    "Group",
    "WrongCommand",
    "WrongInput",
    "one_line_errors",
    "percent",
    "progress_bar",
    "repeat_command",
    "tell_rejected",
]

INTERRUPTED: Final = 130


class WrongCommand(click.ClickException):
    """The command cannot be carried out as given; asking for help would not tell why."""

    exit_code = 2


class WrongInput(click.ClickException):
    """A file is not what it should be."""

    exit_code = 3


class Group(click.Group):
    """A group whose errors take one line and end with a hint."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run, and leave with an exit code; every click error is one line on stderr."""
        options["standalone_mode"] = False
        try:
            code = super().main(*args, **options)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            message = error.format_message().rstrip(".")
            if isinstance(error, click.UsageError) and error.ctx is not None:
                message += f" (try '{error.ctx.command_path} --help')"
            click.echo(f"error: {message}", err=True)
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("error: interrupted", err=True)
            sys.exit(INTERRUPTED)
        sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def one_line_errors(ctx: click.Context, *, show_traceback: bool) -> Iterator[None]:
    """Turn what the lab raises into a line on stderr and an exit code."""
    try:
        yield
    except (TraceFormatError, MissingExtraError, OSError, ValueError, MemoryError) as error:
        if show_traceback:
            traceback.print_exc()
        if isinstance(error, MemoryError):
            message = "not enough memory for a pool of this size; ask for a smaller --capacity"
            raise WrongCommand(message) from error
        if isinstance(error, MissingExtraError):
            raise WrongCommand(str(error)) from error
        if isinstance(error, TraceFormatError | OSError):
            raise WrongInput(str(error)) from error
        raise click.UsageError(str(error), ctx) from error


@contextmanager
def progress_bar(what: str, unit: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while the block runs, if that is a terminal; yields what advances it by 1.

    Args:
        what: What is being done, such as ``"replaying"``.
        unit: What is counted, such as ``"requests"``.
        total: How many there are.
    """
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task(unit, total=total)
        yield lambda: bar.advance(task)


def repeat_command(
    ctx: click.Context,
    always: Collection[str],
    values: Mapping[str, object],
    *,
    leave_out: Collection[str] = (),
) -> str:
    """The command line that repeats this run: what decides the result, and what was asked for.

    Args:
        ctx: Of the command that runs.
        always: Parameters to spell out even when they were not given, unless they are None.
        values: What stands for parameters that were left to the command, by parameter name.
        leave_out: Parameters to say nothing of.
    """
    words = ["blockmgr", ctx.info_name or ""]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in leave_out or not (given or name in always):
            continue
        value = values.get(name, ctx.params[name])
        if isinstance(value, bool):
            words.append(parameter.opts[0])
        elif isinstance(parameter, click.Argument):
            words += [] if value is None else [_word(value)]
        elif isinstance(value, tuple):
            words += [parameter.opts[0], ",".join(map(_word, value))]
        elif value is not None:
            words += [parameter.opts[0], _word(value)]
    return shlex.join(words)


def tell_rejected(trace: Trace, config: ReplayConfig, num_blocks: int) -> None:
    """Say on stderr how many requests a pool was too small for, and the smallest that is not."""
    least = largest_request_blocks(trace, config)
    if least > num_blocks:
        rejected = sum(held_blocks(request, config) > num_blocks for request in trace.requests)
        click.echo(
            f"{rejected:,} of {len(trace.requests):,} requests are larger than a pool of "
            f"{num_blocks:,} blocks and count as missed; from {least:,} blocks on all fit",
            err=True,
        )


def percent(share: Fraction) -> str:
    """A share as people write it, or exactly where that would be another one."""
    text = f"{float(100 * share):g}%"
    return text if parse_share(text) == share else str(share)


def _word(value: object) -> str:
    if isinstance(value, Fraction):
        return percent(value)
    return value.text if isinstance(value, Capacity) else str(value)
