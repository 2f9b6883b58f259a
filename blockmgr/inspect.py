"""The contents of a manager as text for a terminal.

``describe`` prints a manager or a sequence. Other displays of a manager start from ``rows`` and
``ranges``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from blockmgr.block_words import count, further_tables, group_blocks, listed, ranges
from blockmgr.blocks import BlockSnapshot, BlockState
from blockmgr.groups import full_block_size, sizes_of, table_group
from blockmgr.manager import BlockManager, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["LETTERS", "NO_TOKENS", "SAME", "Piece", "Row", "describe", "pieces", "ranges", "rows"]

Ids = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

LETTERS: Final[Mapping[BlockState, str]] = {
    BlockState.CACHED: "C",
    BlockState.OWNED: "o",
    BlockState.IDLE: "i",
    BlockState.FENCED: "~",
    BlockState.FREE: ".",
    BlockState.NULL: "x",
    BlockState.OUT: "#",
}
"""One letter for each state, used ones first."""

SAME: Final = '"'
"""In the row of a sequence: the same block as in the row above."""

NO_TOKENS: Final = "_"
"""In the row of a sequence: an owned block without tokens."""

NOTHING: Final = "-"
"""In the row of a sequence: no block of this group of layers."""
NO_BLOCK: Final = "no block of this group"

NAMES: Final = {state: state.name.lower() for state in BlockState}
GRID_WIDTH: Final = 64
GRID_GROUP: Final = 8
MOST_LETTERS: Final = 2048
STRIP_WIDTH: Final = 48
MOST_RANGES: Final = 6
MOST_IDLE: Final = 12
DEFAULT_LINES: Final = 40


class Piece(NamedTuple):
    """A piece of the text of a manager."""

    text: str
    """The text, including line ends."""
    is_strip: bool = False
    """Whether each character stands for one or more blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One live sequence and the blocks it holds.

    Attributes:
        name: Name for display.
        view: The sequence.
        block_ids: ``int32[num_blocks]`` on the host: its block table.
        same: ``bool[num_blocks]`` on the host: whether the row above has the same block at that
            place.
        further: With groups of layers, its other block tables: positions of groups, and
            ``int32[n]`` each, the null block where a group holds nothing.
    """

    name: str
    view: Sequence
    block_ids: Ids
    same: Flags
    further: tuple[tuple[int, Ids], ...] = ()


def rows(manager: BlockManager, names: Mapping[int, str] | None = None) -> list[Row]:
    """All live sequences; those with the same first blocks are neighbours.

    Args:
        manager: The manager.
        names: Names by handle, in the order in which sequences should appear; sharing takes
            precedence. A sequence without a name is called by its row.

    Cost: O(entries of all block tables), and a sort of the sequences.
    """
    named = names or {}
    handles = manager.handles()
    live = set(handles)
    ordered = [handle for handle in named if handle in live]
    ordered += [handle for handle in handles if handle not in named]
    views = [manager.sequence(handle) for handle in ordered]
    tables = [view.block_ids for view in views]
    order = _by_prefix(tables, manager.config.num_blocks)
    result: list[Row] = []
    above: Ids = np.zeros(0, dtype=np.int32)
    for index in order:
        view, table = views[index], tables[index]
        same = np.zeros(len(table), dtype=np.bool_)
        shorter = min(len(table), len(above))
        same[:shorter] = table[:shorter] == above[:shorter]
        name = named.get(view.handle, f"row {view.row}")
        result.append(Row(name, view, table, same, tuple(further_tables(manager, view))))
        above = table
    return result


def describe(
    what: BlockManager | Sequence,
    *,
    names: Mapping[int, str] | None = None,
    max_lines: int = DEFAULT_LINES,
) -> str:
    """A description of a manager or a sequence: its blocks, their states, who shares them.

    Args:
        what: A manager or one of its live sequences.
        names: Names of sequences by handle; others are called by their row.
        max_lines: Most sequences, runs of blocks or copies to list; the rest are only counted.

    Raises:
        UnknownSequenceError: The sequence is not live.
        TypeError: Neither a manager nor a sequence.
        ValueError: ``max_lines`` below 1.

    >>> manager = BlockManager(num_blocks=8, block_size=4)
    >>> parent = manager.admit([1, 2, 3, 4, 5, 6])
    >>> manager.commit(parent, 6)
    >>> [child] = manager.fork(parent)
    >>> manager.append(child, [7])
    >>> print(describe(manager))
    BlockManager: 8 blocks of 4 tokens, 2 sequences
    5 free, 2 owned, 1 cached; 5 available
    <BLANKLINE>
    0  Coo.....
    C cached  o owned  . free
    <BLANKLINE>
    row 0  Co  6 tokens, all computed; 2 in the last block; blocks 0-1
    row 1  "o  7 tokens, 6 computed; 3 in the last block; blocks 0, 2
    " the block above
    <BLANKLINE>
    copies to run: 1 to 2 (2 tokens)
    """
    if max_lines < 1:
        raise ValueError(f"max_lines must be at least 1, got {max_lines}")
    if isinstance(what, BlockManager):
        text = pieces(what, names=names, max_lines=max_lines)
        return "".join(piece.text for piece in text).rstrip("\n")
    if isinstance(what, Sequence):
        return "\n".join(_sequence_lines(what, names or {}, max_lines))
    raise TypeError(f"what must be a BlockManager or a Sequence, got {type(what).__name__}")


def pieces(
    manager: BlockManager,
    *,
    names: Mapping[int, str] | None = None,
    max_lines: int = DEFAULT_LINES,
) -> Iterator[Piece]:
    """The text of ``describe(manager)`` in pieces, so that states can be coloured."""
    blocks = manager.blocks()
    config = manager.config
    sizes = sizes_of(config.groups, config.block_size)
    sequences = manager.stats().num_sequences
    yield Piece(
        f"BlockManager: {config.num_blocks:,} blocks of {config.block_size} tokens, "
        f"{count(sequences, 'sequence')}\n"
    )
    states = [state for state in BlockState if blocks.count(state)]
    counts = ", ".join(f"{blocks.count(state):,} {NAMES[state]}" for state in states)
    yield Piece(f"{counts}; {manager.num_available:,} available\n")
    yield Piece("".join(f"{held}\n" for held in group_blocks(manager, blocks)) + "\n")
    yield from _grid(blocks)
    idle = blocks.eviction_order
    if len(idle):
        yield Piece(f"evicted next: {_idle(blocks, idle, sizes)}\n")
    if sequences:
        yield Piece("\n")
        yield from _strips(
            rows(manager, names), blocks, sizes[table_group(config.groups)], max_lines
        )
    if np.any(blocks.copy_source >= 0):
        yield Piece("\n")
    for taken, what in ((True, "copies taken, not resolved"), (False, "copies to run")):
        copies = np.flatnonzero((blocks.copy_source >= 0) & (blocks.copy_taken == taken))
        if len(copies):
            yield Piece(f"{what}: {_copies(blocks, copies, max_lines)}\n")


def _by_prefix(tables: list[Ids], num_blocks: int) -> list[int]:
    """An order that puts tables with a common prefix together, and keeps the given order else."""
    first_seen = np.full(num_blocks, -1, dtype=np.int64)
    seen = 0
    keys = []
    for table in tables:
        fresh = table[first_seen[table] < 0]
        first_seen[fresh] = np.arange(seen, seen + len(fresh))
        seen += len(fresh)
        # Big-endian bytes compare in the same order as the numbers.
        keys.append(first_seen[table].astype(">i8").tobytes())
    # Sequences without blocks keep their order, after all others.
    return sorted(range(len(tables)), key=lambda index: (not keys[index], keys[index]))


def _grid(blocks: BlockSnapshot) -> Iterator[Piece]:
    """A letter for each block, by id; in a large pool a letter stands for several blocks."""
    each = 1
    while len(blocks) > each * MOST_LETTERS:
        each *= 2
    letters = "".join(LETTERS[state] for state in _most_common(blocks.state, each))
    digits = len(str(len(blocks) - 1))
    for start in range(0, len(letters), GRID_WIDTH):
        line = letters[start : start + GRID_WIDTH]
        yield Piece(f"{start * each:>{digits}}  ")
        for group in range(0, len(line), GRID_GROUP):
            yield Piece(line[group : group + GRID_GROUP], is_strip=True)
            yield Piece("\n" if group + GRID_GROUP >= len(line) else " ")
    yield from _key(state for state in LETTERS if LETTERS[state] in letters)
    if each > 1:
        yield Piece(f"a letter stands for {each} blocks, and says what most of them are\n")


def _most_common(states: npt.NDArray[np.uint8], each: int) -> list[BlockState]:
    starts = np.arange(0, len(states), each)
    order = list(LETTERS)  # the first one wins a tie
    counts = [np.add.reduceat(states == state, starts, dtype=np.int64) for state in order]
    return [order[winner] for winner in np.argmax(counts, axis=0)]


def _key(states: Iterable[BlockState]) -> Iterator[Piece]:
    for number, state in enumerate(states):
        yield Piece("  " if number else "")
        yield Piece(LETTERS[state], is_strip=True)
        yield Piece(f" {NAMES[state]}")
    yield Piece("\n")


def _idle(blocks: BlockSnapshot, idle: Ids, sizes: list[int]) -> str:
    shown = []
    for block in idle[:MOST_IDLE].tolist():
        tokens, size = int(blocks.num_tokens[block]), sizes[blocks.group[block]]
        shown.append(f"{block} (tail of {tokens})" if tokens < size else str(block))
    return listed(shown, len(idle))


def _strips(
    sequences: list[Row], blocks: BlockSnapshot, block_size: int, max_lines: int
) -> Iterator[Piece]:
    """Each sequence as a row of letters, aligned so that shared blocks form columns."""
    shown = sequences[:max_lines]
    longest = max(len(row.block_ids) for row in shown)
    each = max(1, -(-longest // STRIP_WIDTH))
    groups = [f"  group {number}" for row in shown for number, _ in row.further]
    width = max(map(len, [*(row.name for row in shown), *groups]))
    used = ""
    for row in shown:
        strip = _strip(row, blocks)[::each]
        used += strip
        yield Piece(f"{row.name:<{width}}  ")
        yield Piece(strip, is_strip=True)
        fill = " " * (-(-longest // each) - len(strip))
        yield Piece(f"{fill}  {_row_text(row, block_size, with_ids=each == 1)}\n")
        for number, table in row.further:
            strip = "".join(_letter(blocks, block) for block in table[::each].tolist())
            used += strip
            yield Piece(f"{f'  group {number}':<{width}}  ")
            yield Piece(strip, is_strip=True)
            yield Piece("\n")
    if len(sequences) > len(shown):
        yield Piece(f"and {count(len(sequences) - len(shown), 'more sequence')}\n")
    meanings = (
        (SAME, "the block above"),
        (NO_TOKENS, "no tokens yet"),
        (NOTHING, NO_BLOCK),
    )
    key = [f"{letter} {meaning}" for letter, meaning in meanings if letter in used]
    if each > 1:
        key.append(f"a letter shows the first of {each} blocks")
    if key:
        yield Piece("  ".join(key) + "\n")


def _strip(row: Row, blocks: BlockSnapshot) -> str:
    letters = [_letter(blocks, block) for block in row.block_ids.tolist()]
    empty = blocks.num_tokens[row.block_ids] == 0
    return "".join(
        SAME if same else NO_TOKENS if no_tokens and letter != NOTHING else letter
        for letter, same, no_tokens in zip(letters, row.same, empty, strict=True)
    )


def _letter(blocks: BlockSnapshot, block: int) -> str:
    """A block of a sequence, or the null block where it has none."""
    state = BlockState(blocks.state[block])
    return NOTHING if state is BlockState.NULL else LETTERS[state]


def _row_text(row: Row, block_size: int, *, with_ids: bool) -> str:
    view = row.view
    tokens = count(view.num_tokens, "token")
    if view.is_preempted:
        return f"{tokens}, preempted"
    computed, total = view.num_computed_tokens, view.num_tokens
    parts = [f"{tokens}, {'all' if computed == total else f'{computed:,}'} computed"]
    if total > view.num_slots:
        parts.append(f"{total - view.num_slots:,} wait for slots")
    elif total % block_size:
        parts.append(f"{total % block_size} in the last block")
    if with_ids:
        parts.append(f"blocks {ranges(row.block_ids.tolist(), MOST_RANGES)}")
    else:
        parts.append(f"{view.num_blocks:,} blocks")
    return "; ".join(parts)


def _copies(blocks: BlockSnapshot, destinations: npt.NDArray[np.intp], max_lines: int) -> str:
    texts = []
    for block in destinations[:max_lines].tolist():
        many = count(int(blocks.copy_tokens[block]), "token")
        texts.append(f"{blocks.copy_source[block]} to {block} ({many})")
    return listed(texts, len(destinations))


def _sequence_lines(sequence: Sequence, names: Mapping[int, str], max_lines: int) -> Iterator[str]:
    """A sequence: one line for each run of blocks that are alike."""
    manager = sequence._manager
    size = full_block_size(manager.config.groups, manager.config.block_size)
    named = f"{names[sequence.handle]}, " if sequence.handle in names else ""
    state = "preempted" if sequence.is_preempted else "running"
    yield f"Sequence {sequence.handle} ({named}row {sequence.row}): {state}"
    yield (
        f"{count(sequence.num_tokens, 'token')}, {sequence.num_computed_tokens:,} computed, "
        f"{sequence.num_cached_tokens:,} from the cache; {sequence.num_slots:,} slots"
    )
    blocks = manager.blocks()
    table = sequence.block_ids
    if not len(table):
        return
    yield ""
    facts = [_facts(blocks, block, size) for block in table.tolist()]
    holders = _holders(manager, sequence, blocks, names)
    lines = [("slots", "blocks", "state")]
    for start, stop in _runs(list(zip(facts, holders, strict=True))):
        slots = f"[{start * size}, {stop * size})"
        ids = ranges(table[start:stop].tolist(), MOST_RANGES)
        lines.append((slots, ids, "; ".join(filter(None, (*facts[start], holders[start])))))
    slots_width, ids_width = (max(len(line[column]) for line in lines) for column in (0, 1))
    for line in lines[: max_lines + 1]:
        yield f"{line[0]:<{slots_width}}  {line[1]:<{ids_width}}  {line[2]}"
    if len(lines) > max_lines + 1:
        yield f"and {count(len(lines) - max_lines - 1, 'more run')}"


def _facts(blocks: BlockSnapshot, block: int, block_size: int) -> tuple[str, ...]:
    state = BlockState(blocks.state[block])
    if state is BlockState.NULL:
        return (NO_BLOCK,)
    tokens, computed = int(blocks.num_tokens[block]), int(blocks.num_computed_tokens[block])
    level = "" if tokens == block_size else count(tokens, "token") if tokens else "no tokens yet"
    if computed < tokens:
        level = f"{level}, {computed} computed".removeprefix(", ")
    twin = f"twin of {blocks.twin[block]}" if blocks.twin[block] >= 0 else ""
    copy = ""
    if blocks.copy_source[block] >= 0:
        how = "taken" if blocks.copy_taken[block] else "pending"
        many = count(int(blocks.copy_tokens[block]), "token")
        copy = f"copy of {many} from {blocks.copy_source[block]} {how}"
    return NAMES[state], level, twin, copy


def _holders(
    manager: BlockManager, sequence: Sequence, blocks: BlockSnapshot, names: Mapping[int, str]
) -> list[str]:
    """The other sequences that hold each block of a sequence."""
    table = sequence.block_ids
    own = table[blocks.state[table] != BlockState.NULL]
    sharers: dict[int, list[str]] = {block: [] for block in table.tolist()}
    for handle in manager.handles():
        if handle != sequence.handle:
            other = manager.sequence(handle)
            name = names.get(handle, f"row {other.row}")
            for block in np.intersect1d(other.block_ids, own).tolist():
                sharers[block].append(name)
    return [_shared_with(sharers[block]) for block in table.tolist()]


def _shared_with(others: list[str]) -> str:
    if not others:
        return ""
    return f"shared with {listed(others[:MOST_RANGES], len(others))}"


def _runs(looks: list[tuple[tuple[str, ...], str]]) -> list[tuple[int, int]]:
    starts = [i for i, look in enumerate(looks) if i == 0 or look != looks[i - 1]]
    return list(zip(starts, [*starts[1:], len(looks)], strict=True))
