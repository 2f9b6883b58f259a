"""``blockmgr fleet``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from blockmgr.arguments import amount
from blockmgr.cli import options
from blockmgr.cli.common import progress_bar, telling
from blockmgr.cli.options import Given, given
from blockmgr.lab.choices import pick, whole_numbers
from blockmgr.lab.fleet import USUAL_PREFILL, FleetOptions, PrefillModel, Size, Split
from blockmgr.lab.fleets import FleetRow, fleets
from blockmgr.lab.report import json_text, new_table, print_table
from blockmgr.lab.routers import BY_EVENTS, ROUTERS
from blockmgr.lab.routing import REPAIRS, Delivery, deliveries
from blockmgr.lab.study import parse_share

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.table import Table

    from blockmgr.lab.models import Model
    from blockmgr.lab.study import Capacity

__all__ = ["fleet"]

F = TypeVar("F", bound="Callable[..., Any]")

ALWAYS_REPEATED: Final = frozenset(
    {"source", "capacity", "replicas", "routers", "block_size", "seed"}
)
SEEING: Final = tuple(name for name in ROUTERS if name != BY_EVENTS)  # need no extra
NOTHING: Final = "\N{EN DASH}"
HEADINGS: Final = (
    "replicas",
    "blocks\neach",
    "router",
    "hit\nrate",
    "best",
    "imbalance",
    "prefill\nload",
    "first token\nmean ms",
    "p99 ms",
    "waited",
)
APART: Final = ("sent\ntokens", "handover\nmean ms")


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a row costs, as far as the command says it.

    Attributes:
        block_bytes: Bytes of a block of any group; None without a model.
        gpus: GPUs of a replica.
        gpu_price: Price of a GPU for an hour; None if it was not given.
    """

    block_bytes: int | None
    gpus: int
    gpu_price: float | None

    def headings(self) -> list[str]:
        """Of the columns, which only those that know them get."""
        gib = [] if self.block_bytes is None else ["GiB\neach"]
        return gib if self.gpu_price is None else [*gib, "GPUs", "price\nan hour"]

    def cells(self, row: FleetRow) -> list[str]:
        """Of the row, under these headings."""
        forms = {"gib": "{:,.2f}", "gpus": "{:,}", "price_per_hour": "{:,.2f}"}
        return [forms[name].format(value) for name, value in self.as_plain(row).items()]

    def as_plain(self, row: FleetRow) -> dict[str, Any]:
        """The same for a JSON document; memory is that of one replica, in GiB."""
        gpus = row.replicas * self.gpus
        known: dict[str, Any] = {}
        if self.block_bytes is not None:
            known["gib"] = row.num_blocks * self.block_bytes / 2**30
        if self.gpu_price is not None:
            known |= {"gpus": gpus, "price_per_hour": gpus * self.gpu_price}
        return known


def _replicas(text: str) -> tuple[Size, ...]:
    try:
        sizes = [tuple(map(int, item.split("+"))) for item in text.split(",")]
    except ValueError:
        sizes = [()]
    if not all(len(size) in (1, 2) and min(size) > 0 for size in sizes):
        raise ValueError(
            f"replicas must be whole numbers above 0, or two of them such as 6+2, got {text!r}"
        )
    return tuple(dict.fromkeys(size[0] if len(size) == 1 else Split(*size) for size in sizes))


def _delays(text: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(whole_numbers("delays", text, 0)))


def _losses(text: str) -> tuple[float, ...]:
    return tuple(dict.fromkeys(float(parse_share(item.strip())) for item in text.split(",")))


def _repairs(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pick("repair", item.strip(), REPAIRS) for item in text.split(",")))


def _amount(flags: str, default: float | None, help_: str, **more: Any) -> Callable[[F], F]:
    """An option with a number of at least 0; ``flags`` as in ``options.read_option``."""
    return click.option(
        *flags.split(),
        type=float,
        callback=options.parsed(partial(amount, "number")),
        default=default,
        show_default=default is not None,
        help=help_,
        **more,
    )


@click.command(short_help="Replay on several replicas behind a router.")
@options.source_options
@options.read_option(
    "--replicas",
    _replicas,
    "COUNTS",
    "Numbers of replicas, separated by commas; 6+2 are 6 that prefill and 2 that decode.",
    default="1,2,4,8",
)
@options.read_option(
    "--routers --router routers",
    options.router_names,
    "NAMES",
    f"Routers that send requests to replicas: {', '.join(ROUTERS)}; or {options.EVERY_ROUTER}.  "
    f"[default: {options.EVERY_ROUTER} but {BY_EVENTS}, which needs the extra events]",
    none=SEEING,
)
@options.capacity_option(
    "Blocks of the whole fleet, or a percentage of the working set; split evenly.", "20%"
)
@_amount("--load-weight", 0.25, "Weight of the load in prefix-minus-load and events.")
@options.read_option(
    "--event-delay-ms delays_ms",
    _delays,
    "TIMES",
    "How late events reach the router events; several, separated by commas.",
    default="0",
)
@options.read_option(
    "--event-loss losses",
    _losses,
    "SHARES",
    "Shares of the batches of events that never arrive.",
    default="0",
)
@options.read_option(
    "--event-repair repairs",
    _repairs,
    "NAMES",
    f"What a reader does about lost events: {', '.join(REPAIRS)}.",
    default=REPAIRS[0],
)
@click.option(
    "--decode-router",
    type=click.Choice(list(ROUTERS)),
    metavar="NAME",
    default="least-loaded",
    show_default=True,
    help="Router from replicas that prefill to those that decode.",
)
@_amount(
    "--send-ms-per-token",
    0.0,
    "Time from one to the other for each prompt token that is not cached there.",
)
@_amount(
    "--prefill-ms-per-token ms_per_token",
    USUAL_PREFILL.ms_per_token,
    "Time to first token: part for each computed prompt token.",
)
@_amount(
    "--prefill-overhead-ms overhead_ms",
    USUAL_PREFILL.overhead_ms,
    "Time to first token: part for each request.",
)
@click.option(
    "--gpus",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="GPUs of a replica.",
)
@_amount(
    "--gpu-price",
    None,
    "Your price of a GPU for an hour: adds GPUs and the price of a fleet for an hour.",
    metavar="PRICE",
)
@options.engine_options()
@options.jobs_options
@options.json_option()
@options.file_option(
    "--plot plot_path",
    "Draw hit rate and imbalance over replicas into a .png or .svg, the data beside it.",
)
@options.debug_option
@given
def fleet(
    run: Given,
    *,
    replicas: tuple[Size, ...],
    routers: tuple[str, ...],
    capacity: Capacity,
    plot_path: Path | None,
    gpus: int,
    gpu_price: float | None,
    **how: Any,
) -> None:
    """Replay on fleets of several sizes with each router, beside an upper bound.

    SOURCE is a trace or the name of a workload, shared-prompt if there is none. With --model and
    several groups of layers, and for parts of blocks, there is no upper bound.
    """
    if plot_path is not None:
        from blockmgr.lab import plot  # noqa: PLC0415  (matplotlib only when drawing)

        plot.check_path(plot_path, inputs=run.source.files)
    _refuse_split_groups(run.model, replicas)
    _refuse_without_effect(run, replicas, routers, how["losses"], gpu_price)
    trace = run.trace
    first_token = PrefillModel(**{name: how.pop(name) for name in ("ms_per_token", "overhead_ms")})
    ways = deliveries(*(how.pop(name) for name in ("delays_ms", "losses", "repairs")))
    routes: list[str | tuple[str, Delivery]] = []
    for router in routers:
        routes += [(router, way) for way in ways] if router == BY_EVENTS else [router]
    num_fleets = len(replicas) * len(routes)
    with progress_bar("replaying", "requests", len(trace.requests) * num_fleets) as progress:
        rows = fleets(
            trace,
            replicas,
            capacity,
            run.config,
            routers=routes,
            options=FleetOptions(seed=run.seed, first_token=first_token, **how),
            jobs=run.jobs(num_fleets),
            progress=progress,
        )
    provenance = run.provenance(ALWAYS_REPEATED, leave_out={"jobs", "ray_address"})
    size = None if run.model is None else run.model.bytes_per_block(run.config.block_size)
    cost = _Cost(size, gpus, gpu_price)
    if run.json_wanted:
        known = {} if run.model is None else {"model": run.model.as_plain(run.block_sizes[0])}
        document = {
            **known,
            "config": run.config.as_plain,
            "first_token_model": asdict(first_token),
            "results": [_entry(row) | cost.as_plain(row) for row in rows],
            "trace": trace.name,
        }
        click.echo(json_text(document, provenance))
    else:
        title = f"{trace.name}: {len(trace.requests):,} requests, {capacity.text} of blocks"
        print_table(_table(rows, cost), sys.stdout, title)
        click.echo(provenance.line, err=True)
    _warn(rows)
    if plot_path is not None:
        with telling(plot_path, plot_path.with_suffix(".csv")):
            plot.save_fleet_plot(rows, plot_path)


def _refuse_split_groups(model: Model | None, sizes: tuple[Size, ...]) -> None:
    """Refuses what the lab refuses, in the words of this command."""
    for size in sizes:
        if model is not None and model.groups and isinstance(size, Split):
            raise ValueError(
                f"replicas must not be split with several groups of layers, which {model.name} "
                f"has, got {size}"
            )


def _refuse_without_effect(
    run: Given,
    sizes: tuple[Size, ...],
    routers: tuple[str, ...],
    losses: tuple[float, ...],
    gpu_price: float | None,
) -> None:
    if BY_EVENTS not in routers:
        run.refuse("--routers events", "delays_ms", "losses", "repairs")
        if "prefix-minus-load" not in routers:
            run.refuse("--routers prefix-minus-load or events", "load_weight")
    if not any(losses):
        run.refuse("--event-loss above 0", "repairs")
    if not any(isinstance(size, Split) for size in sizes):
        run.refuse("--replicas that are split, such as 6+2", "decode_router", "send_ms_per_token")
    if gpu_price is None:
        run.refuse("--gpu-price", "gpus")


def _warn(rows: tuple[FleetRow, ...]) -> None:
    """Says where more prefill is asked of a replica than it can compute."""
    loads = [row.result.prefill_load or 0 for row in rows if row.result is not None]
    above = sum(load > 1 for load in loads)
    if above:
        click.echo(
            f"prefill load above 1 in {above} of {len(rows)} rows, at most {max(loads):.2f}: a "
            "replica is asked for more prefill than it can compute, so its queue grows to the end "
            "of the trace, and its times to first token depend on how long the trace is",
            err=True,
        )


def _entry(row: FleetRow) -> dict[str, Any]:
    found = row.result
    entry = {**row.as_plain, "too_small": found is None}
    if row.delivery is not None:
        entry["events"] = asdict(row.delivery)
    if found is not None:
        entry["waited"] = found.waited
        entry["of_replicas"] = [result.as_plain for result in found.prefill]
    if found is not None and row.split is not None:
        entry |= {
            "prefill": len(found.prefill),
            "decode": len(found.decode),
            "decode_router": found.decode_router,
            "decode_imbalance": found.decode_imbalance,
            "handover_mean_ms": found.handover_mean_ms,
            "sent_tokens": found.sent_tokens,
            "of_decode_replicas": [result.as_plain for result in found.decode],
        }
    return entry


def _table(rows: tuple[FleetRow, ...], cost: _Cost) -> Table:
    priced = cost.headings()
    headings = (*HEADINGS[:2], *priced, *HEADINGS[2:], *APART * any(row.split for row in rows))
    table = new_table(headings, left="router")
    before = rows[0].size
    for row in rows:
        if row.size != before:
            table.add_section()
        before = row.size
        cells = [str(row.size), f"{row.num_blocks:,}", *cost.cells(row), row.label, *row.cells]
        if row.result is not None and row.split is not None:
            cells += [f"{row.result.sent_tokens:,}", f"{row.result.handover_mean_ms:,.0f}"]
        table.add_row(*cells, *[NOTHING] * (len(headings) - len(cells)))
    return table
