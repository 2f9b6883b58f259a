"""``blockmgr explain``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from blockmgr.cli import options
from blockmgr.cli.common import progress_bar, tell_rejected
from blockmgr.cli.options import Given, given
from blockmgr.explain import MissReason
from blockmgr.lab.misses import explain_request, misses
from blockmgr.lab.report import json_text, new_table, print_table
from blockmgr.lab.study import working_set_blocks

if TYPE_CHECKING:
    from blockmgr.explain import Explanation
    from blockmgr.groups import Group
    from blockmgr.lab.misses import MissTable
    from blockmgr.lab.study import Capacity

__all__ = ["explain"]

# Defaults that affect the result; the printed command includes them.
ALWAYS_REPEATED: Final = frozenset({"source", "capacity", "block_size", "seed"})
# The table shows how many more blocks would keep these shares of the evicted tokens.
SHARES: Final = (0.25, 0.5, 0.75, 1.0)


@click.command(short_help="Print the reasons for missed tokens.")
@options.source_options
@options.capacity_option("Pool size: blocks, or a percentage of the working set.")
@options.engine_options()
@click.option(
    "--request",
    type=click.IntRange(min=1),
    metavar="N",
    help="Explain only the N-th request of the trace, at its admission.",
)
@options.json_option()
@options.debug_option
@given
def explain(run: Given, *, capacity: Capacity, request: int | None) -> None:
    """Replay requests and print the reasons for missed tokens.

    SOURCE is a trace file or the name of a workload, shared-prompt if there is none. With --model
    and several groups of layers, some tokens are cached in full attention and refused by a group.
    """
    trace, config = run.trace, run.config
    num_blocks = capacity.blocks(working_set_blocks(trace, config))
    total = min(request or len(trace.requests), len(trace.requests))
    with progress_bar("replaying", "requests", total) as advance:
        if request is None:
            table = misses(trace, num_blocks, config, progress=advance)
            document = _table_document(table)
        else:
            found = explain_request(trace, num_blocks, config, request, progress=advance)
            document = _request_document(found, request, num_blocks)
    if request is None:
        tell_rejected(trace, config, num_blocks)
    provenance = run.provenance(ALWAYS_REPEATED)
    if run.json_wanted:
        document |= {"config": config.as_plain, "trace": trace.name}
        click.echo(json_text(document, provenance))
        return
    if request is None:
        _print_misses(table)
    else:
        title = f"{trace.name}, request {request:,}, {num_blocks:,} blocks"
        _print_request(found, config.groups, title)
    click.echo(provenance.line, err=True)


def _table_document(table: MissTable) -> dict[str, Any]:
    return {
        "evicted_tokens_by_more_blocks": [
            {"more_blocks": more, "tokens": tokens}
            for more, tokens in zip(
                table.more_blocks.tolist(), table.saved_tokens.tolist(), strict=True
            )
        ],
        "hit_tokens": table.hit_tokens,
        "missed_tokens": {reason.name.lower(): n for reason, n in table.missed_tokens.items()},
        "num_blocks": table.num_blocks,
        "query_tokens": table.query_tokens,
        **({} if table.refusing is None else {"refused_by": table.refusing}),
    }


def _request_document(found: Explanation, request: int, num_blocks: int) -> dict[str, Any]:
    return {
        "misses": [{**asdict(miss), "reason": miss.reason.name.lower()} for miss in found.misses],
        "num_blocks": num_blocks,
        "num_cached_tokens": found.num_cached_tokens,
        "num_partial_tokens": found.num_partial_tokens,
        "num_tokens": found.num_tokens,
        "request": request,
    }


def _print_misses(table: MissTable) -> None:
    rows = new_table(("prompt tokens", "tokens", "share"), left="prompt tokens", strong="share")
    rows.add_row("found", f"{table.hit_tokens:,}", f"{table.hit_tokens / table.query_tokens:.2%}")
    for reason, tokens in table.missed_tokens.items():
        grouped = reason is MissReason.GROUP
        name = f"refused by {table.refusing}" if grouped else reason.value
        rows.add_row(name, f"{tokens:,}", f"{tokens / table.query_tokens:.2%}")
    told = len(table.more_blocks) > 0
    if told:
        rows.add_section()
    for share in SHARES if told else ():
        more = table.more_blocks_for(share)
        tokens = table.saved(more)
        kept = f"{more:,} more blocks would have kept"
        rows.add_row(kept, f"{tokens:,}", f"{tokens / table.query_tokens:.2%}")
    blocks = f"{table.num_blocks:,} blocks of {table.config.block_size}"
    print_table(rows, sys.stdout, f"{table.trace}: {table.query_tokens:,} prompt tokens, {blocks}")


def _print_request(found: Explanation, groups: tuple[Group, ...], title: str) -> None:
    rows = new_table(("from", "to", "tokens", "why"), left="why")
    cached = found.num_cached_tokens
    rows.add_row("0", f"{cached:,}", f"{cached:,}", "found")
    for miss in found.misses:
        refused = "" if miss.group is None else f": {groups[miss.group]!r}"
        place = (f"{miss.start:,}", f"{miss.stop:,}", f"{miss.num_tokens:,}")
        rows.add_row(*place, miss.why + refused)
    print_table(rows, sys.stdout, title)
