"""Shared by all commands: exit codes and errors, progress bars, commands to repeat runs."""

from __future__ import annotations

import os
import shlex
import string
import sys
import traceback
from contextlib import contextmanager, suppress
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

from blockmgr import interrupt
from blockmgr.errors import MissingExtraError, TraceFormatError
from blockmgr.files import printable
from blockmgr.lab.replay import held_blocks
from blockmgr.lab.study import Capacity, parse_share
from blockmgr.lab.sweep import largest_request_blocks
from blockmgr.lab.tier_sizes import AskedLinks, AskedTiers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from blockmgr.lab.replay import ReplayConfig
    from blockmgr.lab.trace import Trace

__all__ = [
    "READING",
    "Group",
    "WrongCommand",
    "WrongInput",
    "one_line_errors",
    "percent",
    "progress_bar",
    "repeat_command",
    "shell_word",
    "tell_rejected",
    "telling",
]


READING: Final = "blockmgr.reading"
"""Key of the options for reading a trace, in a context."""


class WrongCommand(click.ClickException):
    """The command cannot run as given, for a reason that ``--help`` does not explain."""

    exit_code = 2


class WrongInput(click.ClickException):
    """A file is malformed, or cannot be read or written; stdout is such a file."""

    exit_code = 3


class Interrupted(click.ClickException):
    """The user pressed Ctrl-C."""

    exit_code = interrupt.EXIT_CODE

    def __init__(self) -> None:
        super().__init__(interrupt.LINE.removeprefix("error: "))


class Group(click.Group):
    """A group that always ends with an exit code, and with one line on stderr if it is not 0.

    It flushes stdout after every command, so that a failed write becomes an error.
    """

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run a command and exit with a code; every error is one line on stderr."""
        options["standalone_mode"] = False
        code: object = 0
        message = ""
        try:
            code = super().main(*args, **options)
            with _ending():
                sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = error.exit_code
        except click.ClickException as error:
            message = error.format_message().rstrip(".")
            if isinstance(error, click.UsageError) and error.ctx is not None:
                message += f" (try '{error.ctx.command_path} --help')"
            code = error.exit_code
        if message:
            _say_at_the_end(message)
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """As in click; ``--help`` prints here."""
        with _ending():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """As in click."""
        with _ending():
            return super().invoke(ctx)


@contextmanager
def _ending() -> Iterator[None]:
    """Convert the errors of any command for ``Group.main`` before click handles them itself."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None
    except BrokenPipeError as error:
        raise WrongInput("stdout was closed before everything was written") from error
    except OSError as error:
        raise WrongInput(str(error)) from error


def _say_at_the_end(message: str) -> None:
    """Flush stdout as far as possible, then print the last line."""
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter would flush again at exit and print its own error.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    with suppress(OSError):  # there is no stream for a message
        click.echo(f"error: {printable(message)}", err=True)


@contextmanager
def one_line_errors(ctx: click.Context, *, show_traceback: bool) -> Iterator[None]:
    """Convert the errors of the lab into a line on stderr and an exit code."""
    try:
        yield
    except BrokenPipeError:
        raise  # only Group.main reports errors of stdout
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
def progress_bar(what: str, unit: str, total: int | None) -> Iterator[Callable[[], None]]:
    """Show a progress bar while the block runs; yields a function that advances it by 1.

    Args:
        what: The activity, such as ``"replaying"``. The bar appears only if stderr is a terminal.
        unit: The unit of the count, such as ``"requests"``.
        total: The final count; None if only the run itself decides it.
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
    """The command line that repeats this run, with all parameters that decide the result.

    Args:
        ctx: Context of the command.
        always: Parameters to include even if they were not given, unless they are None.
        values: Values of parameters that the command chose itself, by parameter name.
        leave_out: Parameters to omit.
    """
    words = ["blockmgr", ctx.info_name or ""]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if name in leave_out or not (given or name in always):
            continue
        reading = ctx.meta.get(READING, {})
        value = values.get(name, ctx.params.get(name, reading.get(name)))
        if isinstance(value, bool):
            words.append(parameter.opts[0])
        elif isinstance(parameter, click.Argument):
            words += [] if value is None else [_word(value)]
        elif isinstance(value, tuple):
            words += [parameter.opts[0], ",".join(map(_word, value))]
        elif value is not None:
            words += [parameter.opts[0], _word(value)]
    return " ".join(map(shell_word, words))


def shell_word(text: str) -> str:
    r"""``text`` quoted as one word of a shell command on one line, whatever bytes it contains.

    >>> print(shell_word("a trace.jsonl"), shell_word("a\udcff\n"))
    'a trace.jsonl' $'a\xff\n'
    """
    if text.isprintable():
        return shlex.quote(text)
    letters = []
    for char in text:
        if char in "\\'":
            letters.append(f"\\{char}")
        elif char.isprintable():
            letters.append(char)
        elif char == "\n":
            letters.append(r"\n")
        else:
            letters += (f"\\x{byte:02x}" for byte in os.fsencode(char))
    return f"$'{_apart(letters)}'"


def _apart(letters: list[str]) -> str:
    """The contents of a ``$'...'``, with a break if a hexadecimal digit follows an escape."""
    text = ""
    for before, letter in zip(["", *letters], letters, strict=False):
        follows = before.startswith("\\x") and letter in string.hexdigits
        text += f"'$'{letter}" if follows else letter
    return text


@contextmanager
def telling(*paths: Path) -> Iterator[None]:
    """Report on stderr which files the block wrote, and which of them it replaced.

    Args:
        paths: Files that the block writes.
    """
    before = [path.exists() for path in paths]
    yield
    for path, existed in zip(paths, before, strict=True):
        click.echo(f"{'replaced' if existed else 'wrote'} {printable(str(path))}", err=True)


def tell_rejected(trace: Trace, config: ReplayConfig, num_blocks: int) -> None:
    """Report on stderr how many requests did not fit a pool, and the pool size that fits all."""
    least = largest_request_blocks(trace, config)
    if least > num_blocks:
        rejected = sum(held_blocks(request, config) > num_blocks for request in trace.requests)
        click.echo(
            f"{rejected:,} of {len(trace.requests):,} requests are larger than a pool of "
            f"{num_blocks:,} blocks and count as missed; from {least:,} blocks on all fit",
            err=True,
        )


def percent(share: Fraction) -> str:
    """A share as a percentage, or exactly if rounding would change it."""
    text = f"{float(100 * share):g}%"
    return text if parse_share(text) == share else str(share)


def _word(value: object) -> str:
    if isinstance(value, Fraction):
        return percent(value)
    return value.text if isinstance(value, Capacity | AskedTiers | AskedLinks) else str(value)
