"""The chapters of a report about fleets of replicas behind a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from blockmgr.lab.fleet import FleetResult
from blockmgr.lab.page.chapter import Chapter, Table
from blockmgr.lab.page.parts import dress, label, legend, percent_axis

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from blockmgr.lab.fleets import FleetRow
    from blockmgr.lab.page.facts import Report
    from blockmgr.lab.page.paint import Colours
    from blockmgr.lab.page.parts import Placed

__all__ = ["draw_fleet_balance", "draw_fleet_hits", "fleet_chapters"]

MARKERS: Final = "osD^vPX"
"""One marker per router, so that they differ in more than colour."""
HIT_HEADINGS: Final = ("replicas", "router", "blocks each", "GiB each", "hit rate", "no more than")
BALANCE_HEADINGS: Final = (
    "replicas",
    "router",
    "imbalance",
    "prefill load",
    "first token, mean",
    "first token, 99%",
    "waited",
)
NOTHING: Final = "\N{EN DASH}"
PERCENTILE: Final = 0.99


def fleet_chapters(report: Report) -> list[Chapter]:
    """The chapters for reports with fleets."""
    if not report.fleet:
        return []
    counted = [row for row in report.fleet if row.result is not None]
    blocks = report.result.num_blocks
    text = (
        f"The same {blocks:,} blocks, split evenly over replicas; a router sends each request to "
        "one of them."
    )
    if any(row.best_hit_rate is not None for row in counted):
        text += (
            " The dashed line is what one pool of all these blocks could find with knowledge of "
            "the future: no routing finds more."
        )
    if report.warmup:
        text += " All requests are counted here."
    if len(counted) < len(report.fleet):
        text += " Where a replica does not hold the largest request, there is no point."
    best = max(counted, key=lambda row: _of(row).hit_rate)
    worst = max(counted, key=lambda row: _of(row).imbalance)
    return [
        Chapter(
            name="fleet",
            heading="A fleet: hit rate by router",
            text=text,
            description=(
                f"Token hit rate over replicas, a line for each router. The highest is "
                f"{_of(best).hit_rate:.1%}, with {best.router} and {best.replicas} replicas."
            ),
            height=380,
            tall=380,
            draw=draw_fleet_hits,
            tables=(_hit_table(report),),
        ),
        Chapter(
            name="balance",
            heading="A fleet: balance and first token",
            text=(
                "Imbalance is what the busiest replica computes over the mean of all; 1 is even. "
                "Time to first token is a model: the wait for blocks and for earlier prefills, a "
                "fixed part, and a part for each prompt token that is computed. Prefill load is "
                "what is asked of the busiest replica over the time in which the trace "
                "arrives: above 1, its queue grows to the end of the trace."
            ),
            description=(
                f"Imbalance and time to first token over replicas, a line for each router. The "
                f"least even fleet is {worst.router} with {worst.replicas} replicas, "
                f"{_of(worst).imbalance:.2f}."
            ),
            height=340,
            tall=620,
            draw=draw_fleet_balance,
            tables=(_balance_table(report),),
        ),
    ]


def draw_fleet_hits(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Hit rate over replicas, with one line per router, and the upper bound."""
    axes: Axes = canvas.add_subplot()
    placed = _lines(
        axes, report, colour, lambda found: 100 * found.hit_rate, "hit rate {:.2f}%".format
    )
    bounds = {row.replicas: row.best_hit_rate for row in report.fleet if row.best_hit_rate}
    if bounds:
        rates = [100 * rate for rate in bounds.values()]
        style = {"color": colour("quiet"), "linestyle": (0, (5, 4)), "linewidth": 1.3}
        axes.plot(list(bounds), rates, **style)  # type: ignore[arg-type]
        label(axes, "no routing finds more", (min(bounds), rates[0]), colour("quiet"), (0, 5))
    tops = [top for _, _, top, _ in placed] + [100 * rate for rate in bounds.values()]
    axes.set_ylim(0, max(1.0, *tops) * 1.12)
    percent_axis(axes, colour)
    _dress_fleet(axes, report, colour)
    legend(axes, canvas, colour, narrow=narrow)
    return placed


def draw_fleet_balance(report: Report, canvas: Any, colour: Colours, *, narrow: bool) -> Placed:
    """Imbalance, and time to first token, side by side."""
    panels = canvas.subplots(2, 1) if narrow else canvas.subplots(1, 2)
    even, slow = panels
    placed = _lines(even, report, colour, lambda found: found.imbalance, "imbalance {:.2f}".format)
    even.set_title("imbalance", loc="left", fontsize=13, color=colour("ink"))
    even.set_ylim(bottom=min(1.0, even.get_ylim()[0]))
    placed += _lines(
        slow,
        report,
        colour,
        lambda found: found.first_token_quantile(PERCENTILE) / 1000,
        "first token within {:.2f} s for 99%".format,
    )
    slow.set_title("first token, 99th percentile", loc="left", fontsize=13, color=colour("ink"))
    slow.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    slow.set_ylim(bottom=0)
    for axes in panels:
        _dress_fleet(axes, report, colour)
    legend(even, canvas, colour, narrow=narrow)
    return placed


def _lines(
    axes: Axes,
    report: Report,
    colour: Colours,
    value: Callable[[FleetResult], float],
    words: Callable[[float], str],
) -> Placed:
    """One line per router over the sizes of fleets."""
    placed: Placed = []
    routers = list(dict.fromkeys(row.router for row in report.fleet))
    for place, router in enumerate(routers):
        rows = [row for row in report.fleet if row.router == router and row.result is not None]
        values = [value(_of(row)) for row in rows]
        axes.plot(
            [row.replicas for row in rows],
            values,
            label=router,
            color=colour(f"router-{place % len(MARKERS)}"),
            marker=MARKERS[place % len(MARKERS)],
            markersize=6,
            linewidth=1.8,
        )
        for row, found in zip(rows, values, strict=True):
            text = f"{_replicas(row)}, {router}: {words(found)}"
            placed.append((axes, float(row.replicas), found, text))
    placed.sort(key=lambda point: point[1])
    return placed


def _dress_fleet(axes: Axes, report: Report, colour: Colours) -> None:
    sizes = sorted({row.replicas for row in report.fleet if row.result is not None})
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
    axes.set_xlabel("replicas")
    dress(axes, colour, grid="y")


def _of(row: FleetRow) -> FleetResult:
    assert isinstance(row.result, FleetResult)  # pages show no fleets with separate decoding
    return row.result


def _replicas(row: FleetRow) -> str:
    return f"{row.replicas} replica" + ("" if row.replicas == 1 else "s")


def _hit_table(report: Report) -> Table:
    rows = []
    model, size = report.model, report.config.block_size
    for row in report.fleet:
        found, bound = row.result, row.best_hit_rate
        gib = 0 if model is None else row.num_blocks * model.bytes_per_block(size) / 2**30
        rows.append(
            (
                str(row.replicas),
                row.router,
                f"{row.num_blocks:,}",
                NOTHING if model is None else f"{gib:,.2f}",
                NOTHING if found is None else f"{found.hit_rate:.2%}",
                NOTHING if bound is None else f"{bound:.2%}",
            )
        )
    return Table("Hit rate of fleets by router", HIT_HEADINGS, tuple(rows))


def _balance_table(report: Report) -> Table:
    rows = []
    for row in report.fleet:
        found = row.result
        cells = [NOTHING] * 5
        if found is not None:
            cells = [
                f"{found.imbalance:.2f}",
                NOTHING if found.prefill_load is None else f"{found.prefill_load:.2f}",
                f"{found.first_token_mean_ms:,.0f} ms",
                f"{found.first_token_quantile(PERCENTILE):,.0f} ms",
                f"{found.waited:,}",
            ]
        rows.append((str(row.replicas), row.router, *cells))
    return Table("Balance of fleets by router", BALANCE_HEADINGS, tuple(rows))
