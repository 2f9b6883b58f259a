"""What commands share: how they end, how progress is shown, and how a run is repeated."""

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
"""Where a context keeps how a trace is read."""


class WrongCommand(click.ClickException):
    """The command cannot be carried out as given; asking for help would not tell why."""

    exit_code = 2


class WrongInput(click.ClickException):
    """A file is not what it should be, or cannot be read or written; stdout is such a file."""

    exit_code = 3


class Interrupted(click.ClickException):
    """The user pressed Ctrl-C."""

    exit_code = interrupt.EXIT_CODE

    def __init__(self) -> None:
        super().__init__(interrupt.LINE.removeprefix("error: "))


class Group(click.Group):
    """A group that ends in one way: with a code, and with one line on stderr if it is not 0.

    Whatever a command does, stdout is flushed here, so that what it could not say is known.
    """

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run, and leave with an exit code; every error is one line on stderr."""
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
        """As click does; ``--help`` prints here."""
        with _ending():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does."""
        with _ending():
            return super().invoke(ctx)


@contextmanager
def _ending() -> Iterator[None]:
    """Turn what ends any command into what ``Group.main`` shows, before click has its own way."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None
    except BrokenPipeError as error:
        raise WrongInput("stdout was closed before everything was written") from error
    except OSError as error:
        raise WrongInput(str(error)) from error


def _say_at_the_end(message: str) -> None:
    """Print the last line, after flushing stdout as far as possible."""
    try:
        sys.stdout.flush()
    except OSError:
        # At its own end the interpreter would try again, and complain in words of its own.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    with suppress(OSError):  # no stream is left for a message
        click.echo(f"error: {printable(message)}", err=True)


@contextmanager
def one_line_errors(ctx: click.Context, *, show_traceback: bool) -> Iterator[None]:
    """Turn what the lab raises into a line on stderr and an exit code."""
    try:
        yield
    except BrokenPipeError:
        raise  # all of stdout's troubles are told in one place
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
    r"""``text`` as one word of a shell's command line, on one line, whatever bytes it stands for.

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
    """Letters of a ``$'...'``, with a break where a hexadecimal digit follows an escape."""
    text = ""
    for before, letter in zip(["", *letters], letters, strict=False):
        follows = before.startswith("\\x") and letter in string.hexdigits
        text += f"'$'{letter}" if follows else letter
    return text


@contextmanager
def telling(*paths: Path) -> Iterator[None]:
    """Say on stderr what the block has written, and whether a file was there before.

    Args:
        paths: Files that the block writes.
    """
    before = [path.exists() for path in paths]
    yield
    for path, existed in zip(paths, before, strict=True):
        click.echo(f"{'replaced' if existed else 'wrote'} {printable(str(path))}", err=True)


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
