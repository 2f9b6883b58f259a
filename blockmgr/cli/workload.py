"""``blockmgr workload``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource
from rich.table import Table

from blockmgr.cli.common import one_line_errors, repeat_command, telling
from blockmgr.cli.options import debug_option, file_option, json_option, seed_option
from blockmgr.files import check_output
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.choices import hint
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.report import Provenance, json_text, print_table
from blockmgr.lab.trace import write_mooncake, write_trace
from blockmgr.lab.workloads import NAMES, VARIANTS, WORKLOADS, generate

if TYPE_CHECKING:
    from pathlib import Path

    from blockmgr.lab.trace import Trace

__all__ = ["workload"]

ALWAYS_REPEATED: Final = frozenset({"name", "seed"})
WRITERS: Final = {"mooncake": write_mooncake, "own": write_trace}
BLOCK_SIZES: Final = (16, 64, 256, 512)
LOST: Final = (
    "Mooncake's format has one id for each 512 tokens of a prompt: the tokens of outputs, samples "
    "beyond the longest and prefixes shared in less than 512 tokens are not in the file "
    "(--format own keeps everything)"
)


def _name(_ctx: click.Context, _param: click.Parameter, name: str) -> str:
    if name not in NAMES:
        known = f"must be one of {', '.join(NAMES)}"
        raise click.BadParameter(f"{known}, got {name!r}{hint(name, NAMES)}")
    return name


@click.command(short_help="Describe a generated workload, or export it.")
@click.argument("name", callback=_name)
@seed_option
@file_option("--export", "Write the requests into a .jsonl.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(sorted(WRITERS)),
    default="mooncake",
    show_default=True,
    help="Mooncake's ids of 512 tokens, or blockmgr's own with tokens in full.",
)
@json_option()
@debug_option
@click.pass_context
def workload(
    ctx: click.Context,
    /,
    *,
    name: str,
    seed: int,
    export: Path | None,
    format_: str,
    json_wanted: bool,
    debug: bool,
) -> None:
    """Describe a generated workload, and write it into a trace file."""
    with one_line_errors(ctx, show_traceback=debug):
        if export is not None:
            check_output(export, name="export")
        elif ctx.get_parameter_source("format_") is not ParameterSource.DEFAULT:
            raise click.UsageError("--format needs --export", ctx)
        trace = generate(name, seed)
        provenance = Provenance(command=repeat_command(ctx, ALWAYS_REPEATED, {}), seed=seed)
        facts = _facts(trace)
        if export is not None:
            with telling(export):
                WRITERS[format_](trace, export)
        if json_wanted:
            click.echo(json_text({"workload": name, **facts}, provenance))
        else:
            table = Table(show_header=False, box=None)
            for fact, value in facts.items():
                shown = f"{value:.2%}" if isinstance(value, float) else f"{value:,}"
                table.add_row(fact.replace("_", " "), shown)
            print_table(table, sys.stdout, f"{name}: {_summary(name)}")
            click.echo(provenance.line, err=True)
        if export is not None and format_ == "mooncake":
            click.echo(LOST, err=True)


def _summary(name: str) -> str:
    generator, changes = VARIANTS.get(name, (name, {}))
    others = ", ".join(f"{parameter} {value:,}" for parameter, value in changes.items())
    return WORKLOADS[generator].summary + (f" As {generator}, but {others}." if others else "")


def _facts(trace: Trace) -> dict[str, Any]:
    requests = trace.requests
    facts: dict[str, Any] = {
        "requests": len(requests),
        "sequences": sum(request.num_samples for request in requests),
        "span_s": requests[-1].arrival_ms // 1000,
        "prompt_tokens": sum(request.num_prompt_tokens for request in requests),
        "longest_prompt_tokens": max(request.num_prompt_tokens for request in requests),
        "output_tokens": sum(
            sum(map(len, request.outputs)) or request.num_output_tokens for request in requests
        ),
    }
    for size in BLOCK_SIZES:
        best = unbounded(trace, ReplayConfig(block_size=size))
        facts[f"attainable_hit_rate_at_block_size_{size}"] = best.hit_rate
    return facts
