"""``blockmgr plan``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from blockmgr.cli import options
from blockmgr.cli.common import percent, progress_bar
from blockmgr.cli.options import Given, given
from blockmgr.lab.choices import different, parse_gib
from blockmgr.lab.planning import LARGE_STEP, Plan, PlanRow, kv_bytes_per_token
from blockmgr.lab.planning import plan as run_plan
from blockmgr.lab.report import json_text, new_table, print_table
from blockmgr.lab.study import parse_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from fractions import Fraction

    from blockmgr.lab.models import Model

__all__ = ["plan"]

ALWAYS_REPEATED: Final = frozenset({"source", "hit_rates", "block_sizes", "seed"})
SHAPE: Final = ("layers", "kv_heads", "head_size", "dtype")


def _hit_rates(texts: tuple[str, ...]) -> tuple[Fraction, ...]:
    rates = (parse_share(item.strip()) for text in texts for item in text.split(","))
    return different("hit rates", rates, percent)


def _model_options(command: Callable[..., None]) -> Callable[..., None]:
    """``--model``, or the numbers that determine the size of its K/V in one group."""
    positive = click.IntRange(min=1)
    for option in (
        options.dtype_option,
        click.option("--head-size", type=positive, help="Elements of one head of K, and of V."),
        click.option("--kv-heads", type=positive, help="K/V heads of a layer on one device."),
        click.option("--layers", type=positive, help="Layers that keep K/V."),
    ):
        command = option(command)
    return options.model_option(command)


@click.command(short_help="Print the blocks and GiB for a hit rate.")
@options.source_options
@click.option(
    "--hit-rate",
    "hit_rates",
    multiple=True,
    required=True,
    callback=options.parsed(_hit_rates),
    metavar="SHARE",
    help="A token hit rate to reach, such as 30%; may be given several times.",
)
@options.block_sizes_option(
    "Tokens per block; several, separated by commas, are compared.",
    "--block-size",
    "--block-sizes",
)
@_model_options
@click.option(
    "--tensor-parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="GPUS",
    help="GPUs that divide the K/V heads of --model: GiB are those of each.",
)
@options.read_option(
    "--gpu-memory",
    parse_gib,
    "GIB",
    "GiB for K/V on each GPU, or a size such as 20GiB: adds whether the blocks fit.",
)
@options.tier_options
@options.how_options_without("block_size", "eviction", "dedup")
@options.json_option()
@options.debug_option
@given
def plan(
    run: Given,
    *,
    hit_rates: tuple[Fraction, ...],
    tensor_parallel: int,
    gpu_memory: float | None,
    **numbers: int | None,
) -> None:
    """Print the number of blocks, and of GiB of K/V, for a hit rate.

    SOURCE is a trace file or the name of a workload, shared-prompt if there is none. The answer
    comes from the curve of LRU, which is exact unless requests wait. A replay checks it. With
    --tiers, another replay shows what these find in addition, on a device of so many blocks.
    """
    if run.options["model"] is not None and any(n is not None for n in numbers.values()):
        raise click.UsageError("--model excludes --layers, --kv-heads and --head-size", run.ctx)
    size = _bytes_per_token(run, {**numbers, "dtype": run.options["dtype"]}, tensor_parallel)
    if gpu_memory is not None and size is None:
        raise click.UsageError("--gpu-memory needs --model, or the numbers of its layers", run.ctx)
    # With several groups, the search decides how many replays there are.
    total = None if run.config.groups else len(run.block_sizes) * (1 + len(hit_rates))
    with progress_bar("planning", "steps", total) as advance:
        outcome = run_plan(
            run.trace,
            hit_rates,
            [replace(run.tiered, block_size=each) for each in run.block_sizes],
            bytes_per_token=size,
            advance=advance,
        )
    provenance = run.provenance(ALWAYS_REPEATED)
    if run.json_wanted:
        document = _document(outcome, hit_rates, run.model)
        if gpu_memory is not None:
            for entry in document["results"]:
                entry["fits"] = _fits(entry["num_bytes"], gpu_memory)
        click.echo(json_text(document, provenance))
    else:
        _print(outcome, hit_rates, tensor_parallel, gpu_memory)
        for line in _steps(outcome):
            click.echo(line, err=True)
        click.echo(provenance.line, err=True)


def _fits(num_bytes: int | None, gpu_memory: float) -> bool:
    return num_bytes is not None and num_bytes <= gpu_memory * 2**30


def _bytes_per_token(run: Given, shape: dict[str, Any], gpus: int) -> int | None:
    """K/V bytes per token in the layers of a group; None if no option describes the model."""
    if run.model is not None:
        return run.model.bytes_per_token_on(gpus)
    if gpus > 1:
        raise click.UsageError(
            "--tensor-parallel needs --model; --kv-heads are those of one device", run.ctx
        )
    missing = [name for name, value in shape.items() if value is None]
    if len(missing) == len(shape):
        return None
    if missing:
        wanted = ", ".join("--" + name.replace("_", "-") for name in SHAPE)
        raise click.UsageError(f"the size of a block needs all of {wanted}, or --model", run.ctx)
    return kv_bytes_per_token(*(shape[name] for name in SHAPE))


def _document(
    outcome: Plan, hit_rates: tuple[Fraction, ...], model: Model | None
) -> dict[str, Any]:
    config = outcome.config.as_plain
    del config["block_size"]
    known = {}
    if model is not None and model.groups:
        known["model"] = model.as_plain(outcome.config.block_size)
    return {
        **known,
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
        **({} if row.tiered is None else {"with_tiers": row.tiered.as_plain}),
        "replayed_waited": None if replayed is None else replayed.waited,
        "smaller": None
        if row.smaller is None
        else {"hit_rate": row.smaller.hit_rate, "num_blocks": row.smaller.num_blocks},
    }


def _print(
    outcome: Plan, hit_rates: tuple[Fraction, ...], gpus: int, gpu_memory: float | None
) -> None:
    memory = [] if outcome.bytes_per_token is None else ["GiB" if gpus == 1 else "GiB\na GPU"]
    memory += ["fits"] * (gpu_memory is not None)
    headings = ["hit\nrate", "block\nsize", "blocks", "pool\ntokens", *memory, "replayed", "waited"]
    headings += ["with\ntiers"] * bool(outcome.config.tiers)
    table = new_table([*headings, "cheapest"], strong="blocks")
    for rate in hit_rates:
        best = outcome.cheapest(rate)
        for row in outcome.rows:
            if row.hit_rate == rate:
                mark = "*" if row is best else ""
                sizes = []
                if row.gib is not None:
                    sizes.append(f"{row.gib:,.2f}")
                    if gpu_memory is not None:
                        sizes.append("yes" if _fits(row.num_bytes, gpu_memory) else "no")
                cells = _cells(row, sizes or [""] * len(memory))
                if outcome.config.tiers:
                    cells.append("" if row.tiered is None else f"{row.tiered.hit_rate:.2%}")
                table.add_row(*cells, mark)
        table.add_section()
    print_table(table, sys.stdout, *_titles(outcome, gpus))


def _steps(outcome: Plan) -> Iterator[str]:
    """Which rates lie inside a step: with several groups, hits do not grow block by block."""
    for row in outcome.rows:
        above, below = row.replayed, row.smaller
        if above is None or below is None or above.hit_rate - float(row.hit_rate) <= LARGE_STEP:
            continue
        yield (
            f"{percent(row.hit_rate)} with blocks of {row.block_size} is inside a step: "
            f"{above.num_blocks:,} blocks find {above.hit_rate:.2%}, {below.num_blocks:,} find "
            f"{below.hit_rate:.2%}"
        )


def _titles(outcome: Plan, gpus: int) -> list[str]:
    ceilings = {row.block_size: row.attainable for row in outcome.rows}
    attainable = ", ".join(f"{rate:.2%} at {size}" for size, rate in ceilings.items())
    title = f"{outcome.trace}: attainable by block size {attainable}"
    if outcome.bytes_per_token is None:
        return [title]
    of = "the layers of a group" if outcome.config.groups else "all layers"
    where = "" if gpus == 1 else f" on each of {gpus} GPUs"
    return [title, f"K/V of a token in {of}{where}: {outcome.bytes_per_token:,} bytes"]


def _cells(row: PlanRow, sizes: list[str]) -> list[str]:
    first = [percent(row.hit_rate), str(row.block_size)]
    if row.replayed is None:
        return [*first, "not attainable", "", *sizes, "", ""]
    return [
        *first,
        f"{row.num_blocks:,}",
        f"{row.num_tokens:,}",
        *sizes,
        f"{row.replayed.hit_rate:.2%}",
        f"{row.replayed.waited:,}",
    ]
