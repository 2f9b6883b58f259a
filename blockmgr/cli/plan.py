"""``blockmgr plan``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich import box
from rich.table import Table

from blockmgr.cli.common import one_line_errors, percent, progress_bar, repeat_command
from blockmgr.cli.options import (
    block_sizes,
    chosen_source,
    debug_option,
    how_options_without,
    source_options,
)
from blockmgr.lab.choices import pick
from blockmgr.lab.planning import ELEMENT_BYTES, Plan, PlanRow, kv_bytes_per_token
from blockmgr.lab.planning import plan as run_plan
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.report import Provenance, json_text, print_table
from blockmgr.lab.study import parse_share

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

__all__ = ["plan"]

ALWAYS_REPEATED: Final = frozenset({"source", "hit_rates", "block_sizes", "seed"})
SHAPE: Final = ("layers", "kv_heads", "head_size", "dtype")


def _hit_rates(
    _ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]
) -> tuple[Fraction, ...]:
    try:
        rates = tuple(parse_share(item.strip()) for text in texts for item in text.split(","))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    for rate in rates:
        if rates.count(rate) > 1:
            raise click.BadParameter(f"hit rates must differ, got {percent(rate)} twice")
    return rates


def _dtype(_ctx: click.Context, _param: click.Parameter, name: str | None) -> str | None:
    try:
        return None if name is None else pick("dtype", name, ELEMENT_BYTES)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _model_options(command: Callable[..., None]) -> Callable[..., None]:
    """``--model``, or the numbers that decide the size of its K/V."""
    positive = click.IntRange(min=1)
    for option in (
        click.option(
            "--dtype",
            callback=_dtype,
            metavar="NAME",
            help=f"Element type of the cache: {', '.join(ELEMENT_BYTES)}.",
        ),
        click.option("--head-size", type=positive, help="Elements of one head of K, and of V."),
        click.option("--kv-heads", type=positive, help="K/V heads of a layer on one device."),
        click.option("--layers", type=positive, help="Layers that keep K/V."),
        click.option(
            "--model",
            type=click.Path(exists=True, path_type=Path),
            metavar="PATH",
            help="A Hugging Face config.json, or its folder, instead of the next three.",
        ),
    ):
        command = option(command)
    return command


@click.command(short_help="Print the blocks and GiB for a hit rate.")
@source_options
@click.option(
    "--hit-rate",
    "hit_rates",
    multiple=True,
    required=True,
    callback=_hit_rates,
    metavar="SHARE",
    help="A token hit rate to reach, such as 30%; may be given several times.",
)
@click.option(
    "--block-size",
    "--block-sizes",
    "block_sizes",
    callback=block_sizes,
    default="16",
    show_default=True,
    metavar="SIZES",
    help="Tokens per block; several, separated by commas, are compared.",
)
@_model_options
@how_options_without("block_size", "eviction", "min_partial_tokens", "dedup")
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON instead of a table.")
@debug_option
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    *,
    source: str | None,
    trace_path: Path | None,
    workload: str | None,
    hit_rates: tuple[Fraction, ...],
    block_sizes: tuple[int, ...],
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_size: int | None,
    dtype: str | None,
    seed: int,
    json_wanted: bool,
    debug: bool,
    **settings: Any,
) -> None:
    """Print the number of blocks, and of GiB of K/V, for a hit rate.

    SOURCE is a trace file or the name of a workload, shared-prompt if there is none. The answer
    comes from the curve of LRU, which is exact unless requests wait. A replay checks it.
    """
    chosen = chosen_source(ctx, source, trace_path, workload)
    with one_line_errors(ctx, show_traceback=debug):
        size = _bytes_per_token(ctx, model, (layers, kv_heads, head_size), dtype)
        config = ReplayConfig(block_size=block_sizes[0], **settings)
        trace = chosen.trace(seed)
        total = len(block_sizes) * (1 + len(hit_rates))
        with progress_bar("planning", "steps", total) as advance:
            outcome = run_plan(
                trace,
                hit_rates,
                config,
                block_sizes=block_sizes,
                bytes_per_token=size,
                advance=advance,
            )
        command = repeat_command(ctx, ALWAYS_REPEATED, chosen.repeated)
        provenance = Provenance(command=command, seed=seed)
        if json_wanted:
            click.echo(json_text(_document(outcome, hit_rates), provenance))
        else:
            _print(outcome, hit_rates)
            click.echo(provenance.line, err=True)


def _bytes_per_token(
    ctx: click.Context,
    model: Path | None,
    numbers: tuple[int | None, int | None, int | None],
    dtype: str | None,
) -> int | None:
    """K/V bytes of a token in all layers; None if no option describes the model."""
    layers, kv_heads, head_size = numbers
    if model is not None:
        if numbers != (None, None, None):
            raise click.UsageError("--model excludes --layers, --kv-heads and --head-size", ctx)
        return _of_config(model, dtype)
    if dtype is None and numbers == (None, None, None):
        return None
    if layers is None or kv_heads is None or head_size is None or dtype is None:
        wanted = ", ".join("--" + name.replace("_", "-") for name in SHAPE)
        raise click.UsageError(f"the size of a block takes all of {wanted}; or --model", ctx)
    return kv_bytes_per_token(layers, kv_heads, head_size, dtype)


def _of_config(model: Path, dtype: str | None) -> int:
    # Seconds, and an extra, that nothing else here needs. It goes first: it says what is missing.
    from blockmgr.kv import ModelShape  # noqa: I001, PLC0415
    import torch  # noqa: PLC0415

    chosen = None if dtype is None else getattr(torch, dtype)
    return ModelShape.from_config(model, chosen).bytes_per_token


def _document(outcome: Plan, hit_rates: tuple[Fraction, ...]) -> dict[str, Any]:
    config = asdict(outcome.config)
    del config["block_size"]
    return {
        "bytes_per_token": outcome.bytes_per_token,
        "cheapest_block_size": {
            percent(rate): outcome.cheapest(rate).block_size for rate in hit_rates
        },
        "config": config,
        "results": [_entry(row) for row in outcome.rows],
        "trace": outcome.trace,
    }


def _entry(row: PlanRow) -> dict[str, Any]:
    replayed = row.replayed
    return {
        "attainable_hit_rate": row.attainable,
        "block_size": row.block_size,
        "hit_rate": float(row.hit_rate),
        "num_blocks": row.num_blocks,
        "num_bytes": row.num_bytes,
        "num_tokens": row.num_tokens,
        "replayed_hit_rate": None if replayed is None else replayed.hit_rate,
        "replayed_waited": None if replayed is None else replayed.waited,
    }


def _print(outcome: Plan, hit_rates: tuple[Fraction, ...]) -> None:
    table = Table(box=box.SIMPLE, padding=0)
    headings = ["hit\nrate", "block\nsize", "blocks", "tokens", "GiB", "replayed", "waited"]
    if outcome.bytes_per_token is None:
        headings.remove("GiB")
    for heading in [*headings, "cheapest"]:
        table.add_column(heading, justify="right", style="bold cyan" if heading == "blocks" else "")
    for rate in hit_rates:
        best = outcome.cheapest(rate)
        for row in outcome.rows:
            if row.hit_rate == rate:
                mark = "*" if row is best else ""
                table.add_row(*_cells(row, outcome.bytes_per_token is not None), mark)
        table.add_section()
    print_table(table, sys.stdout, *_titles(outcome))


def _titles(outcome: Plan) -> list[str]:
    ceilings = {row.block_size: row.attainable for row in outcome.rows}
    attainable = ", ".join(f"{rate:.2%} at {size}" for size, rate in ceilings.items())
    title = f"{outcome.trace}: attainable by block size {attainable}"
    if outcome.bytes_per_token is None:
        return [title]
    return [title, f"K/V of a token in all layers: {outcome.bytes_per_token:,} bytes"]


def _cells(row: PlanRow, sized: bool) -> list[str]:
    first = [percent(row.hit_rate), str(row.block_size)]
    if row.replayed is None:
        return [*first, "not attainable", "", *([""] if sized else []), "", ""]
    memory = [f"{row.gib:,.2f}"] if sized else []
    return [
        *first,
        f"{row.num_blocks:,}",
        f"{row.num_tokens:,}",
        *memory,
        f"{row.replayed.hit_rate:.2%}",
        f"{row.replayed.waited:,}",
    ]
