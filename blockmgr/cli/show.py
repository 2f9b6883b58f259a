"""``blockmgr show``."""

from __future__ import annotations

import sys
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TextIO

import click
from rich.console import Console
from rich.text import Text

from blockmgr.block_words import further_tables, group_blocks
from blockmgr.blocks import BlockState
from blockmgr.cli import options
from blockmgr.cli.common import percent, progress_bar, telling
from blockmgr.cli.options import Given, given
from blockmgr.files import check_output
from blockmgr.inspect import LETTERS, pieces
from blockmgr.lab.replay import Moment, replay, replay_until
from blockmgr.lab.report import json_text
from blockmgr.lab.study import parse_share, working_set_blocks

if TYPE_CHECKING:
    from pathlib import Path

    from blockmgr.lab.study import Capacity

__all__ = ["show"]

# Defaults that affect the result; the printed command includes them.
ALWAYS_REPEATED: Final = frozenset({"workload", "capacity", "block_size", "seed", "at"})

STYLES: Final = {
    LETTERS[BlockState.CACHED]: "bold green",
    LETTERS[BlockState.OWNED]: "yellow",
    LETTERS[BlockState.IDLE]: "cyan",
    LETTERS[BlockState.FENCED]: "magenta",
    LETTERS[BlockState.FREE]: "dim",
    LETTERS[BlockState.NULL]: "dim",
    LETTERS[BlockState.OUT]: "dim",
}


@click.command(short_help="Show the blocks in the middle of a replay.")
@options.source_options
@options.capacity_option("Pool size: blocks, or a percentage of the working set.")
@options.engine_options()
@click.option(
    "--step",
    type=click.IntRange(min=1),
    help="Show the pool after this step: an instant at which requests were admitted or ended.",
)
@options.read_option(
    "--at", parse_share, "SHARE", "Show the pool after this share of the steps.  [default: 50%]"
)
@options.file_option("--output -o", "Draw a map into a .svg instead of printing text.")
@options.json_option("Print JSON instead of text.")
@options.debug_option
@given
def show(
    run: Given,
    *,
    capacity: Capacity,
    step: int | None,
    at: Fraction | None,
    output: Path | None,
) -> None:
    """Show the blocks of a pool in the middle of a replay: states, sharing, sequences.

    SOURCE is a trace file or the name of a workload, shared-prompt if there is none. With --model
    and several groups of layers, each sequence has a row of blocks for each of them.
    """
    if step is not None and at is not None:
        raise click.UsageError("--step and --at exclude each other", run.ctx)
    if output is not None and run.json_wanted:
        raise click.UsageError("--output and --json exclude each other", run.ctx)
    if output is not None:
        from blockmgr.lab.block_map import SUFFIX  # noqa: PLC0415  (matplotlib only when drawing)

        check_output(output, suffixes=(SUFFIX,), inputs=run.source.files)
    blocks = capacity.blocks(working_set_blocks(run.trace, run.config))
    if step is None:
        at = Fraction(1, 2) if at is None else at
        step = _step_at(at, run, blocks)
    with progress_bar("replaying", "requests", len(run.trace.requests)) as progress:
        moment = replay_until(run.trace, blocks, run.config, step, progress=progress)
    chosen = run.repeated_as_workload
    if at is not None:
        chosen["at"] = percent(at)
    _print_or_draw(run, moment, chosen, output)


def _step_at(at: Fraction, run: Given, num_blocks: int) -> int:
    """The step that ends this share of the replay; a replay counts the steps."""
    with progress_bar("counting steps", "requests", len(run.trace.requests)) as progress:
        steps = replay(run.trace, num_blocks, run.config, progress=progress).steps
    if not steps:
        raise ValueError(f"no request fits a pool of {num_blocks} blocks: there is no step to show")
    return max(1, int(at * steps))


def _print_or_draw(
    run: Given, moment: Moment, chosen: dict[str, object], output: Path | None
) -> None:
    capacity: Capacity = run.ctx.params["capacity"]
    title = f"{run.trace.name}: step {moment.step:,}"
    stats = moment.manager.stats()
    share_of = "" if isinstance(capacity.value, int) else f", {capacity.text} of the working set"
    facts = [
        ("simulated time", f"{moment.time_ms / 1000:,.1f} s"),
        ("pool", f"{stats.capacity:,} blocks{share_of}"),
        ("waiting requests", f"{moment.waiting:,}"),
        ("token hit rate so far", f"{stats.hit_rate:.2%}"),
    ]
    provenance = run.provenance(ALWAYS_REPEATED, chosen)
    if run.json_wanted:
        click.echo(json_text({"trace": run.trace.name, **_numbers(moment)}, provenance))
        return
    if output is None:
        _print(title, facts, moment, sys.stdout)
        click.echo(provenance.line, err=True)
        return
    from blockmgr.lab.block_map import block_map, save_block_map  # noqa: PLC0415

    # Without the path of the file: the same moment gives the same bytes.
    of_moment = run.provenance(ALWAYS_REPEATED, chosen, leave_out={"output"})
    facts.append(("seen with", of_moment.command))
    shown = block_map(moment.manager, title=title, names=moment.names, facts=facts)
    click.echo(provenance.line, err=True)
    with telling(output):
        save_block_map(shown, output)


def _numbers(moment: Moment) -> dict[str, object]:
    """The moment as JSON: the states of all blocks, and the sequences."""
    manager = moment.manager
    blocks = manager.blocks()
    states = Counter(BlockState(state).name.lower() for state in blocks.state.tolist())
    sequences = []
    for handle, name in moment.names.items():
        view = manager.sequence(handle)
        entry: dict[str, object] = {
            "name": name,
            "num_tokens": view.num_tokens,
            "num_cached_tokens": view.num_cached_tokens,
            "block_ids": manager.block_ids(handle),
        }
        further = further_tables(manager, view)
        if further:
            entry["block_ids_by_group"] = {number: table.tolist() for number, table in further}
        sequences.append(entry)
    held = [
        {"group": repr(each.group), "used_blocks": each.used, "cached_blocks": each.cached}
        for each in group_blocks(manager, blocks)
    ]
    return {
        **({"blocks_by_group": held} if held else {}),
        "step": moment.step,
        "time_ms": moment.time_ms,
        "waiting_requests": moment.waiting,
        "hit_rate": manager.stats().hit_rate,
        "num_blocks": manager.config.num_blocks,
        "blocks_by_state": dict(states),
        "sequences": sequences,
    }


def _print(title: str, facts: list[tuple[str, str]], moment: Moment, file: TextIO) -> None:
    """Print the moment as text: states in colour on a terminal, plain elsewhere."""
    console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
    text = Text.assemble((f"{title}\n", "bold"))
    text.append("".join(f"{name}: {value}\n" for name, value in facts) + "\n")
    for piece in pieces(moment.manager, names=moment.names):
        if piece.is_strip:
            for letter in piece.text:
                text.append(letter, STYLES.get(letter, ""))
        else:
            text.append(piece.text)
    if console.is_terminal and not console.no_color:
        console.print(text, end="")
    else:
        # Without colours, rich would still write bold text, which NO_COLOR users do not want
        # either.
        click.echo(text.plain, file=file, nl=False)
