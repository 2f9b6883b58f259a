"""The command line: parses, calls the lab, prints.

Data goes to stdout, everything else to stderr. Exit codes: 0 done, 1 the result says no, 2 the
command is wrong, 3 the input is.
"""

from __future__ import annotations

import shlex
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from blockmgr import __version__
from blockmgr.errors import MissingExtraError, TraceFormatError

try:
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
except ImportError as error:
    raise MissingExtraError("cli", "the command line") from error

from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.report import Provenance, as_json, print_environment, print_study
from blockmgr.lab.study import Capacity, Study, parse_capacities, parse_share, study
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workloads import WORKLOADS, generate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

__all__ = ["cli", "main"]

RESULT_SAYS_NO = 1
INTERRUPTED = 130

DEFAULT_WORKLOAD = "shared-prompt"
# Defaults that shape every result, and so are spelled out for whoever repeats it.
ALWAYS_REPEATED = frozenset({"workload", "capacities", "block_size", "seed"})


class _WrongCommand(click.ClickException):
    """The command cannot be carried out as given; asking for help would not tell why."""

    exit_code = 2


class _WrongInput(click.ClickException):
    """A file is not what it should be."""

    exit_code = 3


class _Group(click.Group):
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


def _capacities(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[Capacity, ...]:
    try:
        return parse_capacities(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _share(_ctx: click.Context, _param: click.Parameter, text: str | None) -> Fraction | None:
    try:
        return None if text is None else parse_share(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="blockmgr", message="%(prog)s %(version)s")
def cli() -> None:
    """Paged KV-cache block manager: measure hit rates without a GPU."""


@cli.command()
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Replay a recorded trace: Mooncake JSONL, or blockmgr's own.",
)
@click.option(
    "--workload",
    type=click.Choice(sorted(WORKLOADS)),
    help=f"Replay a generated workload.  [default: {DEFAULT_WORKLOAD}]",
)
@click.option(
    "--capacity",
    "capacities",
    callback=_capacities,
    default="5%,10%,20%,50%,100%",
    show_default=True,
    metavar="SIZES",
    help="Pool sizes: blocks, or percentages of the working set, separated by commas.",
)
@click.option("--block-size", default=16, show_default=True, help="Tokens per block.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the workload.",
)
@click.option(
    "--service-ms-per-token",
    default=30,
    show_default=True,
    help="How long a request holds its blocks, for each output token.",
)
@click.option(
    "--min-service-ms",
    default=500,
    show_default=True,
    help="Shortest time a request holds its blocks.",
)
@click.option(
    "--max-seqs", default=1024, show_default=True, help="Sequences running at once, at most."
)
@click.option(
    "--min-partial-tokens",
    default=0,
    show_default=True,
    help="Reuse parts of blocks from this many tokens on; 0 is off.",
)
@click.option(
    "--dedup",
    type=click.Choice(["remap", "append_only"]),
    default="remap",
    show_default=True,
    help="What happens to a block that is found to be cached already.",
)
@click.option(
    "--digest",
    type=click.Choice(["xxh3_128", "sha256"]),
    default="xxh3_128",
    show_default=True,
    help="What finds candidates; hits are proved either way.",
)
@click.option(
    "--min-hit-rate",
    callback=_share,
    metavar="SHARE",
    help="Exit with 1 if a capacity stays below this, such as 30%.",
)
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON instead of a table.")
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the curve into a .png or .svg, with the data beside it as .csv.",
)
@click.option("--debug", is_flag=True, help="Show where an error came from.")
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    *,
    trace_path: Path | None,
    workload: str | None,
    capacities: tuple[Capacity, ...],
    seed: int,
    min_hit_rate: Fraction | None,
    json_wanted: bool,
    plot_path: Path | None,
    debug: bool,
    **settings: Any,
) -> None:
    """Replay requests through the block manager and print the hit rate at each capacity.

    Without --trace and --workload it replays the built-in shared-prompt workload.
    """
    if trace_path is not None and workload is not None:
        raise click.UsageError("--trace and --workload exclude each other", ctx)
    with _one_line_errors(ctx, show_traceback=debug):
        if plot_path is not None:
            # Before the work, so that a missing extra does not waste it.
            from blockmgr.lab import plot  # noqa: PLC0415  (matplotlib only when drawing)

            plot.check_path(plot_path)
        config = ReplayConfig(**settings)
        if trace_path is not None:
            trace = read_trace(trace_path)
        else:
            trace = generate(workload or DEFAULT_WORKLOAD, seed)
        outcome = _study_with_progress(trace, capacities, config)
        provenance = Provenance(command=_command(ctx), seed=seed)
        if json_wanted:
            click.echo(as_json(outcome, provenance))
        else:
            print_study(outcome, sys.stdout)
            click.echo(provenance.line, err=True)
        if plot_path is not None:
            for path in plot.save_plot(outcome, plot_path):
                click.echo(f"wrote {path}", err=True)
    if min_hit_rate is not None and outcome.lowest_hit_rate < min_hit_rate:
        click.echo(
            f"hit rate {float(outcome.lowest_hit_rate):.2%} is below --min-hit-rate "
            f"{float(min_hit_rate):.2%}",
            err=True,
        )
        ctx.exit(RESULT_SAYS_NO)


@cli.command()
def doctor() -> None:
    """Print versions, extras and devices: what a bug report needs."""
    print_environment(sys.stdout)


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    cli.main(prog_name="blockmgr")


@contextmanager
def _one_line_errors(ctx: click.Context, *, show_traceback: bool) -> Iterator[None]:
    """Turn what the lab raises into a line on stderr and an exit code."""
    try:
        yield
    except (TraceFormatError, MissingExtraError, OSError, ValueError, MemoryError) as error:
        if show_traceback:
            traceback.print_exc()
        if isinstance(error, MemoryError):
            message = "not enough memory for a pool of this size; ask for a smaller --capacity"
            raise _WrongCommand(message) from error
        if isinstance(error, MissingExtraError):
            raise _WrongCommand(str(error)) from error
        if isinstance(error, TraceFormatError | OSError):
            raise _WrongInput(str(error)) from error
        raise click.UsageError(str(error), ctx) from error


def _study_with_progress(
    trace: Trace, capacities: tuple[Capacity, ...], config: ReplayConfig
) -> Study:
    console = Console(stderr=True)
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("requests", total=len(trace.requests) * len(capacities))
        return study(trace, capacities, config, progress=lambda: bar.advance(task))


def _command(ctx: click.Context) -> str:
    """The command line that repeats this run: what decides the result, and what was asked for."""
    values = {**ctx.params}
    if values["trace_path"] is None and values["workload"] is None:
        values["workload"] = DEFAULT_WORKLOAD
    words = ["blockmgr", "replay"]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not given and name not in ALWAYS_REPEATED:
            continue
        value = values[name]
        if isinstance(value, bool):
            words.append(parameter.opts[0])
        elif isinstance(value, tuple):
            words += [parameter.opts[0], ",".join(capacity.text for capacity in value)]
        elif value is not None:
            words += [parameter.opts[0], str(value)]
    return shlex.join(words)
