"""What the commands that replay requests have in common: a source, a model, and how to replay."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from blockmgr.cli.common import one_line_errors, repeat_command
from blockmgr.cli.models import chosen_block_sizes, chosen_model
from blockmgr.cli.options import DEFAULT_WORKLOAD, Source, chosen_jobs, chosen_source
from blockmgr.lab.replay_config import ReplayConfig
from blockmgr.lab.report import Provenance
from blockmgr.lab.study import working_set_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from blockmgr.lab.models import Model
    from blockmgr.lab.tasks import RayCluster
    from blockmgr.lab.tiered import ReplayTier
    from blockmgr.lab.trace import Trace

__all__ = ["Given", "given"]

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

    @cached_property
    def model(self) -> Model | None:
        """The model of ``--model``."""
        return chosen_model(self.options["model"], self.options["dtype"])

    @cached_property
    def block_sizes(self) -> tuple[int, ...]:
        """The block sizes, or the model's own."""
        value = self.options[self.sizes]
        sizes = value if isinstance(value, tuple) else (value,)
        return chosen_block_sizes(self.ctx, self.sizes, sizes, self.model)

    @cached_property
    def config(self) -> ReplayConfig:
        """The config of the replays, with the first block size."""
        groups = () if self.model is None else self.model.groups
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
            for name in ("store", "links"):
                if self.ctx.get_parameter_source(name) is not DEFAULT:
                    raise click.UsageError(f"--{name} needs --tiers", self.ctx)
            return []
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
            raise click.UsageError("--tiers takes one size for each tier here", self.ctx)
        return replace(self.config, tiers=tiers)

    @cached_property
    def trace(self) -> Trace:
        """The requests."""
        return self.source.trace(self.seed)

    def jobs(self, most: int) -> int | RayCluster:
        """The workers for so many tasks."""
        return chosen_jobs(self.options["jobs"], self.options.get("ray_address"), most)

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
