"""Options that several commands take: which requests to replay, and how."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from blockmgr.cli.common import READING
from blockmgr.files import printable
from blockmgr.lab.choices import different, hint, pick, pick_policy, whole_numbers
from blockmgr.lab.formats.opened import STDIN, parts
from blockmgr.lab.replay_config import ReplayConfig
from blockmgr.lab.routers import ROUTERS
from blockmgr.lab.study import Capacity, parse_capacities, parse_share
from blockmgr.lab.tasks import RayCluster
from blockmgr.lab.tier_sizes import AskedLinks, AskedTiers
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workloads import NAMES, generate

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field

__all__ = [
    "DEFAULT_WORKLOAD",
    "EVERY_ROUTER",
    "Source",
    "block_sizes_option",
    "capacity_option",
    "chosen_jobs",
    "chosen_source",
    "debug_option",
    "how_options_of",
    "how_options_without",
    "jobs_options",
    "json_option",
    "parsed",
    "router_names",
    "seed_option",
    "source_options",
    "tier_options",
    "trace_options",
    "warmup_option",
]

DEFAULT_WORKLOAD: Final = "shared-prompt"
EVERY_ROUTER: Final = "all"

F = TypeVar("F", bound="Callable[..., Any]")


def trace_options(command: F) -> F:
    """``--trace`` and ``--workload``, as ``trace_path`` and ``workload``; how a trace is read.

    The options for reading are kept in the context, for ``Source.trace``.
    """
    for option in (
        click.option(
            "--workload",
            type=click.Choice(sorted(NAMES)),
            metavar="NAME",
            help="Replay a generated workload: "
            f"{', '.join(sorted(NAMES))}.  [default: {DEFAULT_WORKLOAD}]",
        ),
        click.option(
            "--tokens-per-id",
            type=click.IntRange(min=1),
            callback=_reading,
            expose_value=False,
            help="Tokens for each id of the trace.  [default: from the lengths of prompts]",
        ),
        click.option(
            "--tokenizer",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="FOLDER",
            callback=_reading,
            expose_value=False,
            help="Tokenizer for a trace of text: a local Hugging Face folder.",
        ),
        click.option(
            "--sort",
            is_flag=True,
            callback=_reading,
            expose_value=False,
            help="Take the requests of the trace in any order.",
        ),
        click.option(
            "--trace",
            "trace_path",
            type=click.Path(exists=True, allow_dash=True, path_type=Path),
            metavar="FILE",
            help="Replay a recorded trace: a file, a folder, or - for standard input.",
        ),
    ):
        command = option(command)
    return command


def source_options(command: F) -> F:
    """``[SOURCE]``, a trace or a workload, as ``source``; and ``trace_options``."""
    argument = click.argument("source", required=False)
    return argument(trace_options(command))


def how_options_without(*names: str) -> Callable[[F], F]:
    """``--seed`` and the fields of ``ReplayConfig``, except some that the command has itself."""
    return how_options_of(*(name for name in _HOW if name not in names))


def how_options_of(*names: str) -> Callable[[F], F]:
    """``--seed`` or fields of ``ReplayConfig``."""

    def add(command: F) -> F:
        for name in reversed(names):
            command = _HOW[name](command)
        return command

    return add


def warmup_option(command: F) -> F:
    """``--warmup``, as a share of the requests."""
    return click.option(
        "--warmup",
        callback=parsed(parse_share),
        default="0%",
        show_default=True,
        metavar="SHARE",
        help="Requests at the start that fill the pool and are not counted.",
    )(command)


def tier_options(command: F) -> F:
    """``--tiers``, ``--store`` and ``--links``, for ``Given.tiers``."""
    links = click.option(
        "--links",
        callback=parsed(AskedLinks.parse),
        metavar="RATES",
        help="What moves between the device and each tier, such as 25GB/s,2GB/s: loads then take "
        "time, at the arrivals of the trace. Needs --model.  [default: everything moves at once]",
    )
    tiers = click.option(
        "--tiers",
        callback=parsed(AskedTiers.parse),
        metavar="SIZES",
        help="Slower memory for evicted blocks, the fastest first, such as host=50GiB,disk=1TiB: "
        "in blocks, percentages of the working set, or bytes with --model. Without --links, one "
        "request runs at a time.",
    )
    return tiers(_ROWS["store"](links(command)))


def jobs_options(command: F) -> F:
    """``--jobs`` and ``--ray``, for ``chosen_jobs``."""
    for option in (
        click.option(
            "--ray",
            "ray_address",
            metavar="ADDRESS",
            help="Run on a cluster of Ray: HOST:PORT of its head, auto for one that runs on this "
            "machine, or local to start one here. Needs the extra ray.",
        ),
        click.option(
            "--jobs",
            type=click.IntRange(min=1),
            help="Number of processes; with --ray local, of its processors.  [default: one a CPU]",
        ),
    ):
        command = option(command)
    return command


def chosen_jobs(jobs: int | None, ray_address: str | None, most: int) -> int | RayCluster:
    """The workers that ``jobs_options`` selects.

    Args:
        jobs: The value of ``--jobs``.
        ray_address: The value of ``--ray``.
        most: Number of tasks; more processes than that would have no work.

    Raises:
        ValueError: The address is invalid, or ``jobs`` cannot be combined with it.
    """
    if ray_address is not None:
        return RayCluster(address=ray_address, num_cpus=jobs)
    return min(jobs or len(os.sched_getaffinity(0)), most)


def capacity_option(text: str, default: str = "10%") -> Callable[[F], F]:
    """``--capacity``, one size, with this help."""
    return click.option(
        "--capacity",
        callback=parsed(_one_capacity),
        default=default,
        show_default=True,
        metavar="SIZE",
        help=text,
    )


def block_sizes_option(text: str, *flags: str) -> Callable[[F], F]:
    """An option with block sizes, such as ``16,512``, as ``block_sizes``."""
    return click.option(
        *flags,
        "block_sizes",
        callback=parsed(_block_sizes),
        default="16",
        show_default=True,
        metavar="SIZES",
        help=text,
    )


def json_option(command: F) -> F:
    """``--json``, as ``json_wanted``, in place of a table."""
    return click.option(
        "--json", "json_wanted", is_flag=True, help="Print JSON instead of a table."
    )(command)


def seed_option(command: F) -> F:
    """``--seed``."""
    return click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Seed of the workload.",
    )(command)


def debug_option(command: F) -> F:
    """``--debug``."""
    return click.option("--debug", is_flag=True, help="Show the traceback of an error.")(command)


def _reading(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value is not None:
        ctx.meta.setdefault(READING, {})[param.name] = value
    return value


def parsed(parse: Callable[[Any], Any], *, none: Any = None) -> Callable[..., Any]:
    """The callback of an option whose value ``parse`` reads; its ``ValueError`` is the message.

    Args:
        parse: Reads the value.
        none: The value of an option that is not given and has no default.
    """

    def read(_ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        try:
            return none if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return read


def _one_capacity(text: str) -> Capacity:
    sizes = parse_capacities(text)
    if len(sizes) > 1:
        raise ValueError(f"capacity must be one pool size, got {text!r}")
    return sizes[0]


def _block_sizes(text: str) -> tuple[int, ...]:
    return different("block sizes", whole_numbers("block sizes", text))


def router_names(text: str) -> tuple[str, ...]:
    """Names of routers from a list; ``"all"`` means all of them.

    Raises:
        ValueError: There is no such router.
    """
    if text.strip() == EVERY_ROUTER:
        return tuple(ROUTERS)
    names = (pick("router", item.strip(), ROUTERS) for item in text.split(","))
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Source:
    """The input of a command.

    Attributes:
        trace_path: The file, or None.
        workload: The generator's name, or None.
    """

    trace_path: Path | None
    workload: str | None

    @property
    def files(self) -> list[str]:
        """The files to read; raises ``ValueError`` for a folder without any."""
        return [] if self.trace_path is None else parts(self.trace_path)

    def trace(self, seed: int) -> Trace:
        """The requests, with ``--seed`` for a workload.

        How a file was read is printed on stderr: what was assumed, left out and not used.

        Raises:
            TraceFormatError: The file is not a trace.
            MissingExtraError: Reading it takes an extra that is not installed.
            ValueError: This trace needs an option, such as a tokenizer.
            OSError: The file cannot be read.
        """
        if self.trace_path is None:
            return generate(self.workload or DEFAULT_WORKLOAD, seed)
        context = click.get_current_context(silent=True)
        trace = read_trace(self.trace_path, **(context.meta.get(READING, {}) if context else {}))
        for line in trace.read.lines if trace.read is not None else ():
            click.echo(printable(line), err=True)
        return trace

    @property
    def repeated(self) -> dict[str, object]:
        """Parameters of ``source_options`` for the command that repeats a run."""
        found = self.workload or DEFAULT_WORKLOAD if self.trace_path is None else self.trace_path
        return {"source": found, "trace_path": None, "workload": None}


def chosen_source(
    ctx: click.Context, source: str | None, trace_path: Path | None, workload: str | None
) -> Source:
    """The input that ``source_options`` name; the built-in workload by default.

    Raises:
        click.UsageError: Several are named, or SOURCE is neither a file nor a workload.
    """
    if trace_path is not None and workload is not None:
        raise click.UsageError("--trace and --workload exclude each other", ctx)
    if source is None:
        return Source(trace_path, workload)
    if trace_path is not None or workload is not None:
        raise click.UsageError("SOURCE excludes --trace and --workload", ctx)
    if source == STDIN or Path(source).is_file():
        return Source(Path(source), None)
    if source in NAMES:
        return Source(None, source)
    if Path(source).is_dir():
        return Source(Path(source), None)
    known = ", ".join(NAMES)
    message = f"SOURCE must be a file, a folder or one of {known}, got {source!r}"
    raise click.UsageError(message + hint(source, NAMES), ctx)


def _how_option(row: Field[Any]) -> Callable[[F], F]:
    choices = row.metadata["choices"]
    kind: dict[str, Any] = {"type": click.Choice(choices)} if choices else {}
    if row.name == "eviction":
        kind = {"callback": parsed(pick_policy), "metavar": "NAME"}
    return click.option(
        f"--{row.name.replace('_', '-')}",
        default=row.default,
        show_default=True,
        help=row.metadata["text"],
        **kind,
    )


_ROWS: Final = {
    row.name: _how_option(row) for row in fields(ReplayConfig) if row.metadata.get("text")
}

_HOW: Final = {
    "block_size": _ROWS["block_size"],
    "seed": seed_option,
    **{name: row for name, row in _ROWS.items() if name != "store"},
}
