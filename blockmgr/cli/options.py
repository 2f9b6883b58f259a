"""Options that several commands take: which requests to replay, how, and on which model."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from blockmgr.cli.common import READING, one_line_errors, repeat_command
from blockmgr.files import printable
from blockmgr.lab.choices import different, hint, pick, pick_policy, whole_numbers
from blockmgr.lab.formats.opened import STDIN, parts
from blockmgr.lab.models import NAMED, Model, named
from blockmgr.lab.replay_config import ReplayConfig
from blockmgr.lab.report import Provenance
from blockmgr.lab.routers import ROUTERS
from blockmgr.lab.study import Capacity, parse_capacities, parse_share, working_set_blocks
from blockmgr.lab.tier_sizes import AskedLinks, AskedTiers
from blockmgr.lab.trace import Trace, read_trace
from blockmgr.lab.workers import RayCluster
from blockmgr.lab.workloads import NAMES, generate
from blockmgr.shapes import ELEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from dataclasses import Field

    from blockmgr.lab.tiered import ReplayTier
    from blockmgr.lab.trace import Trace

__all__ = [
    "DEFAULT_WORKLOAD",
    "EVERY_ROUTER",
    "Given",
    "Source",
    "block_sizes_option",
    "capacity_option",
    "debug_option",
    "dtype_option",
    "engine_options",
    "file_option",
    "given",
    "how_options_of",
    "how_options_without",
    "jobs_options",
    "json_option",
    "model_option",
    "parsed",
    "read_option",
    "router_names",
    "seed_option",
    "source_options",
    "tier_options",
    "warmup_option",
]

DEFAULT_WORKLOAD: Final = "shared-prompt"
EVERY_ROUTER: Final = "all"

F = TypeVar("F", bound="Callable[..., Any]")


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


def read_option(
    flags: str,
    parse: Callable[[Any], Any],
    metavar: str,
    help_: str,
    *,
    default: str | None = None,
    none: Any = None,
) -> Callable[[F], F]:
    """An option whose text ``parse`` reads.

    Args:
        flags: Its flags, and the name of its parameter if that differs, separated by spaces.
        parse: Reads the value; its ``ValueError`` is the message.
        metavar: What stands for the value in the help.
        help_: The help.
        default: The default, as text.
        none: The value if the option is not given and has no default.
    """
    return click.option(
        *flags.split(),
        callback=parsed(parse, none=none),
        default=default,
        show_default=default is not None,
        metavar=metavar,
        help=help_,
    )


def file_option(flags: str, help_: str, *, required: bool = False) -> Callable[[F], F]:
    """An option with a file to write; ``flags`` as in ``read_option``."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option(*flags.split(), type=kind, required=required, metavar="FILE", help=help_)


def json_option(instead: str = "Print JSON instead of a table.") -> Callable[[F], F]:
    """``--json``, as ``json_wanted``."""
    return click.option("--json", "json_wanted", is_flag=True, help=instead)


def source_options(command: F) -> F:
    """``[SOURCE]``, ``--trace`` and ``--workload``, for ``chosen_source``; how a trace is read.

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
    return click.argument("source", required=False)(command)


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


warmup_option = read_option(
    "--warmup",
    parse_share,
    "SHARE",
    "Requests at the start that fill the pool and are not counted.",
    default="0%",
)
"""``--warmup``, as a share of the requests."""


def tier_options(command: F) -> F:
    """``--tiers``, ``--store``, ``--prefetch`` and ``--links``, for ``Given.tiers``."""
    links = read_option(
        "--links",
        AskedLinks.parse,
        "RATES",
        "What moves between the device and each tier, such as 25GB/s,2GB/s: loads then take "
        "time, at the arrivals of the trace. Needs --model.  [default: everything moves at once]",
    )
    tiers = read_option(
        "--tiers",
        AskedTiers.parse,
        "SIZES",
        "Slower memory for evicted blocks, the fastest first, such as host=50GiB,disk=1TiB: "
        "in blocks, percentages of the working set, or bytes with --model. Without --links, one "
        "request runs at a time.",
    )
    for name in reversed(_OF_TIERS):
        command = _ROWS[name](command)
    return tiers(links(command))


def jobs_options(command: F) -> F:
    """``--jobs`` and ``--ray``, for ``Given.jobs``."""
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


def capacity_option(text: str, default: str = "10%") -> Callable[[F], F]:
    """``--capacity``, one size, with this help."""
    return read_option("--capacity", _one_capacity, "SIZE", text, default=default)


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


seed_option = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the workload.",
)
"""``--seed``."""


debug_option = click.option("--debug", is_flag=True, help="Show the traceback of an error.")
"""``--debug``."""


def _reading(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    if value is not None:
        ctx.meta.setdefault(READING, {})[param.name] = value
    return value


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
    if source and Path(source).is_dir():
        return Source(Path(source), None)
    known = ", ".join(NAMES)
    message = f"SOURCE must be a file, a folder or one of {known}, got {source!r}"
    raise click.UsageError(message + hint(source, NAMES), ctx)


def _how_option(row: Field[Any]) -> Callable[[F], F]:
    choices = row.metadata["choices"]
    kind: dict[str, Any] = {"type": click.Choice(choices)} if choices else {}
    if isinstance(row.default, bool):
        kind = {"is_flag": True}
    if row.default is None:
        kind = {"type": int, "metavar": "N"}
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

_OF_TIERS: Final = ("store", "prefetch")

_HOW: Final = {
    "block_size": _ROWS["block_size"],
    "seed": seed_option,
    **{name: row for name, row in _ROWS.items() if name not in _OF_TIERS},
}


def _model(text: str) -> str:
    if text in NAMED or Path(text).exists():
        return text
    raise ValueError(
        f"model must be a config.json, its folder, or one of {', '.join(NAMED)}, "
        f"got {text!r}{hint(text, NAMED)}"
    )


def _dtype(name: str) -> str:
    return pick("dtype", name, ELEMENTS)


model_option = read_option(
    "--model",
    _model,
    "MODEL",
    f"A Hugging Face config.json, its folder, or one of {', '.join(NAMED)}: decides the "
    "groups of layers and the bytes of a block.",
)
"""``--model``, as the text given."""


dtype_option = read_option(
    "--dtype", _dtype, "NAME", f"Element type of the cache: {', '.join(ELEMENTS)}."
)
"""``--dtype``."""


def engine_options(*without: str) -> Callable[[F], F]:
    """``--model``, ``--dtype``, and ``how_options_without``."""

    def add(command: F) -> F:
        return model_option(dtype_option(how_options_without(*without)(command)))

    return add


def chosen_model(text: str | None, dtype: str | None) -> Model | None:
    """The model that ``--model`` and ``--dtype`` describe; None without them.

    Raises:
        ValueError: The config describes no model, or a named model was given a dtype.
        OSError: The file cannot be read.
    """
    if text is None:
        return None
    if text in NAMED:
        if dtype is not None:
            raise ValueError(f"dtype must not be given for {text}, whose sizes are known")
        return named(text)
    try:
        return _of_config(Path(text), dtype)
    except TypeError as error:  # a field of the file, not an argument
        raise ValueError(f"{text}: {error}") from None


def _of_config(path: Path, dtype: str | None) -> Model:
    try:
        return Model.from_config(str(path), path, dtype)
    except ValueError as error:
        # Raises if the config is wrong for a reason unrelated to groups.
        model = Model.as_one_group(str(path), path, dtype)
        click.echo(f"taken as one group of full attention: {error}", err=True)
        return model


DEFAULT: Final = ParameterSource.DEFAULT


@dataclass(frozen=True, eq=False)
class Given:
    """The shared options of a command. What they name is read once, when it is first asked for.

    Its properties raise ``ValueError`` and ``OSError``, which ``given`` prints.

    Attributes:
        ctx: Context of the command.
        source: The input.
        options: The values of the shared options.
        sizes: Name of the option with block sizes.
    """

    ctx: click.Context
    source: Source
    options: Mapping[str, Any]
    sizes: str

    @property
    def seed(self) -> int:
        """Seed of the workload."""
        return int(self.options["seed"])

    @property
    def json_wanted(self) -> bool:
        """Whether to print JSON."""
        return bool(self.options["json_wanted"])

    def refuse(self, needs: str, *names: str) -> None:
        """Refuse parameters that were given although they would have no effect.

        Args:
            needs: What they need, in words.
            names: Names of parameters, which the command need not have.

        Raises:
            click.UsageError: One was given.
        """
        for parameter in self.ctx.command.params:
            name = parameter.name or ""
            if name in names and self.ctx.get_parameter_source(name) is not DEFAULT:
                raise click.UsageError(f"{parameter.opts[0]} needs {needs}", self.ctx)

    @cached_property
    def model(self) -> Model | None:
        """The model of ``--model``."""
        if self.options["model"] is None and "layers" not in self.ctx.params:
            self.refuse("--model", "dtype")
        return chosen_model(self.options["model"], self.options["dtype"])

    @cached_property
    def block_sizes(self) -> tuple[int, ...]:
        """The block sizes, or the model's own."""
        value = self.options[self.sizes]
        sizes = value if isinstance(value, tuple) else (value,)
        if self.model is None or self.model.block_size is None:
            return sizes
        if self.ctx.get_parameter_source(self.sizes) is DEFAULT:
            return (self.model.block_size,)
        for size in sizes:
            self.model.check_block_size(size)
        return sizes

    @cached_property
    def config(self) -> ReplayConfig:
        """The config of the replays, with the first block size."""
        groups = () if self.model is None else self.model.groups
        if not groups:
            self.refuse("--model with several groups of layers", "forward_tokens")
        if self.model is not None:
            self.model.check_partial(self.options["min_partial_tokens"])
        settings = {
            item.name: self.options[item.name]
            for item in fields(ReplayConfig)
            if item.name in self.options and item.name not in ("block_size", "tiers")
        }
        config = ReplayConfig(block_size=self.block_sizes[0], groups=groups, **settings)
        if self.options.get("tiers") is None or self.options["links"]:
            return config
        # Everything moves at once, so the service times are 0, too, unless they were given.
        times = (
            0 if self.ctx.get_parameter_source(name) is DEFAULT else self.options[name]
            for name in ("min_service_ms", "service_ms_per_token")
        )
        return replace(config, min_service_ms=next(times), service_ms_per_token=next(times))

    @cached_property
    def tiers(self) -> list[tuple[ReplayTier, ...]]:
        """The tiers of ``--tiers``, for each combination of sizes; none without it."""
        asked = self.options.get("tiers")
        if asked is None:
            self.refuse("--tiers", *_OF_TIERS, "links")
            return []
        if len(asked.sizes) == 1:
            self.refuse("two tiers or more", "prefetch")
        if len(self.block_sizes) > 1:
            raise click.UsageError("--tiers needs one block size", self.ctx)
        size = self.block_sizes[0]
        block_bytes = None if self.model is None else self.model.bytes_per_block(size)
        found: list[tuple[ReplayTier, ...]] = asked.tiers(
            lambda: working_set_blocks(self.trace, self.config),
            block_bytes,
            () if self.options["links"] is None else self.options["links"].rates,
        )
        return found

    @property
    def tiered(self) -> ReplayConfig:
        """The config with the tiers of ``--tiers``, which must have one size each."""
        if not self.tiers:
            return self.config
        [tiers, *more] = self.tiers
        if more:
            raise click.UsageError(
                f"--tiers must have one size for each tier, as in host=10%,disk=20%; several are "
                f"for sweep; got {self.options['tiers'].text}",
                self.ctx,
            )
        return replace(self.config, tiers=tiers)

    @cached_property
    def trace(self) -> Trace:
        """The requests."""
        if self.source.trace_path is None:
            self.refuse("a trace file", "tokens_per_id", "tokenizer", "sort")
        return self.source.trace(self.seed)

    def jobs(self, most: int) -> int | RayCluster:
        """The workers for so many tasks; more processes than that would have no work.

        Raises:
            ValueError: The address of ``--ray`` is invalid, or ``--jobs`` does not go with it.
        """
        jobs, address = self.options["jobs"], self.options.get("ray_address")
        if address is not None:
            return RayCluster(address=address, num_cpus=jobs)
        return min(jobs or len(os.sched_getaffinity(0)), most)

    @property
    def repeated(self) -> dict[str, object]:
        """The source and the block sizes, for the command that repeats a run."""
        several = self.sizes == "block_sizes"
        size = self.block_sizes if several else self.block_sizes[0]
        return {**self.source.repeated, self.sizes: size}

    @property
    def repeated_as_workload(self) -> dict[str, object]:
        """The same for commands that print a default workload as an option."""
        named = self.ctx.params["source"] is not None or self.source.trace_path is not None
        workload = None if named else self.source.workload or DEFAULT_WORKLOAD
        return {"workload": workload, self.sizes: self.block_sizes[0]}

    def provenance(
        self,
        always: Collection[str],
        repeated: Mapping[str, object] | None = None,
        *,
        leave_out: Collection[str] = (),
    ) -> Provenance:
        """The origin of a result; see ``repeat_command``."""
        chosen = self.repeated if repeated is None else repeated
        command = repeat_command(self.ctx, always, chosen, leave_out=leave_out)
        return Provenance(command=command, seed=self.seed, read=self.trace.read)


SHARED = frozenset(
    {"seed", "json_wanted", "model", "dtype", "jobs", "ray_address", "block_size", "block_sizes"}
    | {"tiers", "links"}
).union(item.name for item in fields(ReplayConfig))


def given(command: Callable[..., None]) -> Callable[..., None]:
    """Pass the shared options as one ``Given``, and the others by name; print errors of the lab."""

    @click.pass_context
    @wraps(command)
    def run(ctx: click.Context, /, **options: Any) -> None:
        names = (options.pop(name) for name in ("source", "trace_path", "workload"))
        source = chosen_source(ctx, *names)
        shared = {name: options.pop(name) for name in SHARED & options.keys()}
        sizes = "block_sizes" if "block_sizes" in shared else "block_size"
        with one_line_errors(ctx, show_traceback=options.pop("debug")):
            command(Given(ctx, source, shared, sizes), **options)

    return run
