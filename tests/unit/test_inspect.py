"""Inspection: the snapshot of every block, and its text form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from blockmgr import (
    BlockManager,
    FullAttention,
    RecurrentState,
    SlidingWindow,
    UnknownSequenceError,
)
from blockmgr.blocks import BlockSnapshot, BlockState
from blockmgr.inspect import LETTERS, describe, pieces, ranges, rows
from tests.conftest import MakeManager
from tests.specification.blocks import Block
from tests.specification.leaves import ModelLeaves
from tests.stress.profiles import ONE_GROUP
from tests.stress.run import Plan, Run
from tests.stress.world import World
from tests.unit.engine import ids, serve
from tests.unit.snapshot import snapshot

FREE, OWNED, CACHED, IDLE, FENCED, NULL, OUT = BlockState


# ---- the snapshot, by construction ---------------------------------------------------------------


def test_a_fresh_pool_is_free_but_for_the_null_block(make_manager: MakeManager) -> None:
    blocks = make_manager(4, 2, null_block=True).blocks()
    assert blocks.state.tolist() == [NULL, FREE, FREE, FREE]
    for column in (blocks.ref_count, blocks.pins, blocks.num_tokens, blocks.num_children):
        assert column.tolist() == [0] * 4
    for column in (blocks.parent, blocks.twin, blocks.eviction_rank, blocks.copy_source):
        assert column.tolist() == [-1] * 4


def test_every_column_has_a_value_for_every_block(make_manager: MakeManager) -> None:
    manager = make_manager(7, 2)
    serve(manager, [1, 2, 3])
    blocks = manager.blocks()
    assert len(blocks) == 7
    dtypes = {name: getattr(blocks, name).dtype for name in BlockSnapshot.__slots__}
    assert dtypes.pop("state") == np.uint8
    assert dtypes.pop("priority") == np.uint8
    assert dtypes.pop("copy_taken") == np.bool_
    assert set(dtypes.values()) == {np.dtype(np.int32)}
    assert all(len(getattr(blocks, name)) == 7 for name in BlockSnapshot.__slots__)


def test_idle_blocks_are_ranked_as_they_are_evicted(make_manager: MakeManager) -> None:
    manager = make_manager(6, 2)
    for base in (10, 20, 30):
        serve(manager, [base, base + 1, base + 2, base + 3]).free()
    order = manager.blocks().eviction_order.tolist()
    assert len(order) == 6
    for victim in order:
        taken = manager.admit([victim + 100])
        assert ids(manager.sequence(taken)) == [victim]


def test_a_copy_is_told_at_its_destination_until_it_is_resolved(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1, 2, 3, 4, 5, 6])
    [child] = parent.fork()
    child.append([7])
    source, destination = ids(parent)[1], ids(child)[1]
    pending = manager.blocks()
    assert pending.copy_source[destination] == source
    assert pending.copy_tokens[destination] == 2
    assert not pending.copy_taken[destination]
    assert np.count_nonzero(pending.copy_source >= 0) == 1
    assert pending.pins[source] == 1

    plan = manager.take_copies()
    taken = manager.blocks()
    assert (taken.copy_source[destination], taken.copy_tokens[destination]) == (source, 2)
    assert np.flatnonzero(taken.copy_taken).tolist() == [destination]

    manager.copies_applied(plan.ticket)
    assert set(manager.blocks().copy_source.tolist()) == {-1}


def test_the_source_of_a_copy_is_owned_though_no_table_names_it(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(8, 4)
    parent = serve(manager, [1, 2, 3, 4, 5, 6])
    [child] = parent.fork()
    child.append([7])
    source = ids(parent)[1]
    parent.free()
    blocks = manager.blocks()
    assert (blocks.state[source], blocks.ref_count[source], blocks.pins[source]) == (OWNED, 0, 1)
    assert blocks.num_tokens[source] == 2, "kept for the tokens that the copy reads"


def test_a_private_block_names_its_cached_twin(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, dedup="append_only")
    one, other = (manager.sequence(manager.admit([1, 2, 3])) for _ in range(2))
    one.commit(3)
    other.commit(3)
    blocks = manager.blocks()
    assert blocks.twin[ids(other)[0]] == ids(one)[0]
    assert blocks.state[ids(other)[0]] == OWNED
    assert blocks.parent[ids(other)[0]] == -1


def test_a_snapshot_changes_nothing_and_is_the_callers_own(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    serve(manager, [1, 2, 3, 4, 5]).fork()
    before = snapshot(manager)
    blocks = manager.blocks()
    blocks.state[:] = NULL
    blocks.ref_count[:] = 77
    assert snapshot(manager) == before
    assert manager.blocks().count(NULL) == 0


# ---- the snapshot, against the model -------------------------------------------------------------

Facts = tuple[int, ...]


def facts_of(blocks: BlockSnapshot, block: int) -> Facts:
    parent, depth = int(blocks.parent[block]), 0
    while parent >= 0:
        parent, depth = int(blocks.parent[parent]), depth + 1
    columns = (
        blocks.state,
        blocks.ref_count,
        blocks.num_children,
        blocks.num_tokens,
        blocks.num_computed_tokens,
        blocks.copy_tokens,
        blocks.copy_taken,
    )
    return (*(int(column[block]) for column in columns), depth)


def model_facts(model: ModelLeaves, block: Block) -> Facts:
    content = block.content
    if block.stamp is None:
        state = OWNED if content is None else CACHED
    else:
        state = FENCED if block.fence in model.in_flight else IDLE
    depth = 0 if content is None else model.depth(block)
    tokens = computed = 0 if depth == 0 else len(content[1][1]) - (depth - 1) * model.size
    for seq in model.seqs.values():
        if block in seq.blocks:
            start = seq.blocks.index(block) * model.size
            tokens = max(tokens, min(model.size, seq.num_tokens - start))
            computed = max(computed, min(model.size, seq.num_computed_tokens - start))
    taken = model.taken or []
    for copy in [*taken, *model.pending]:
        if copy.source is block:
            tokens, computed = max(tokens, copy.num_tokens), max(computed, copy.num_tokens)
    into = [copy for copy in [*taken, *model.pending] if copy.destination is block]
    whole = content is not None and not model.is_tail(block)
    children = [b for b in model.live if whole and model.parent_of(b) == content[1]]
    return (
        state,
        model.references(block),
        len(children),
        tokens,
        computed,
        into[0].num_tokens if into else 0,
        bool(into) and into[0] in taken,
        max(0, depth - 1),
    )


def nothing(blocks: BlockSnapshot, block: int) -> Facts:
    """The facts of a block without content or user: free, fenced or the null block."""
    return (int(blocks.state[block]), 0, 0, 0, 0, 0, 0, 0) if not blocks.pins[block] else ()


def compare(world: World) -> None:
    model, blocks = world.model, world.manager.blocks()
    expected = {block: model_facts(model, block) for block in model.live}
    for block, facts in expected.items():
        name = world.names.get(block.serial)
        if name is not None:
            assert facts_of(blocks, name) == facts
    live = [b for b in range(len(blocks)) if facts_of(blocks, b) != nothing(blocks, b)]
    assert sorted(facts_of(blocks, b) for b in live) == sorted(expected.values())

    idle = sorted(model.idle(), key=lambda block: (model.level(block), block.stamp))
    order = blocks.eviction_order
    ranked = [(int(blocks.eviction_rank[b]), facts_of(blocks, int(b))) for b in order]
    due = [
        (rank, expected[block])
        for share in {block.share for block in idle}
        for rank, block in enumerate(block for block in idle if block.share == share)
    ]
    assert sorted(ranked) == sorted(due)
    assert [rank for rank, _ in ranked] == sorted(rank for rank, _ in ranked)

    shares = (None, *model.quotas)
    assert blocks.count(FREE) == sum(len(model.free_blocks(share)) for share in shares)
    assert blocks.count(NULL) == int(model.config.null_block)
    used = (blocks.state == OWNED) | (blocks.state == CACHED)
    assert np.array_equal(used, (blocks.ref_count > 0) | (blocks.pins > 0))
    for copy in model.pending:
        ours = world.names[copy.destination.serial]
        assert blocks.copy_source[ours] == world.names[copy.source.serial]


@pytest.mark.parametrize("profile", [name for name in ONE_GROUP if name != "huge"])
def test_the_snapshot_of_every_block_equals_the_models_after_any_call(profile: str) -> None:
    for seed in range(3):
        run = Run(Plan(100, options={"eviction": "lru"}), profile, seed)
        for _ in range(100):
            run.one()
            compare(run.world)


# ---- the text ------------------------------------------------------------------------------------


def test_the_text_of_a_manager_counts_every_state(make_manager: MakeManager) -> None:
    manager = make_manager(12, 2, null_block=True, steps_in_flight=1)
    serve(manager, [1, 2, 3, 4]).free()
    manager.complete(1)
    serve(manager, [5, 6, 7])
    manager.complete(2)
    leaving = manager.sequence(manager.admit([8, 9]))
    ticket = manager.take_copies().ticket
    manager.copies_applied(ticket)
    leaving.free()
    text = describe(manager).splitlines()
    stats = manager.stats()
    assert text[0] == "BlockManager: 12 blocks of 2 tokens, 1 sequence"
    assert text[1] == (
        f"{stats.free_blocks} free, 1 owned, 1 cached, {stats.idle_blocks} idle, "
        f"{stats.fenced_blocks} fenced, 1 null; {manager.num_available} available"
    )


def test_the_grid_has_the_letter_of_each_block(make_manager: MakeManager) -> None:
    manager = make_manager(150, 2)
    for base in range(0, 60, 6):
        serve(manager, [base, base + 1, base + 2]).fork()
    serve(manager, list(range(100, 120))).free()
    strips = [piece.text for piece in pieces(manager) if piece.is_strip]
    letters = "".join(LETTERS[BlockState(state)] for state in manager.blocks().state)
    assert "".join(strips).startswith(letters)
    grid = describe(manager).splitlines()[3:6]
    assert [line.split()[0] for line in grid] == ["0", "64", "128"]


def test_a_letter_stands_for_several_blocks_of_a_large_pool() -> None:
    manager = BlockManager(10_000, 1, max_seqs=2)
    manager.admit(list(range(5_000)))
    text = describe(manager)
    assert "a letter stands for 8 blocks, and says what most of them are" in text
    grid = "".join(piece.text for piece in pieces(manager) if piece.is_strip).split("\n")[0]
    assert grid[:1250].count("o") == 625
    assert grid[:1250].count(".") == 625


def test_the_text_of_shared_blocks_points_to_the_row_above(make_manager: MakeManager) -> None:
    manager = make_manager(12, 2)
    one = serve(manager, [1, 2, 3, 4, 5])
    two = serve(manager, [8, 8, 8])
    three = serve(manager, [1, 2, 3, 4, 6])
    names = {one.handle: "one", two.handle: "two", three.handle: "three"}
    lines = describe(manager, names=names).splitlines()
    strips = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("t", "o"))}
    assert strips == {"one": "CCo", "three": '""o', "two": "Co"}
    assert lines[-1] == '" the block above'
    assert [row.name for row in rows(manager, names)] == ["one", "three", "two"]


def test_the_text_of_a_sequence_tells_runs_tails_sharing_and_copies(
    make_manager: MakeManager,
) -> None:
    manager = make_manager(16, 4)
    parent = serve(manager, list(range(14)))
    [child] = parent.fork()
    child.append([7])
    child.reserve(20)
    lines = describe(child, names={parent.handle: "the parent"}).splitlines()
    blocks = ids(child)
    assert lines[0] == f"Sequence {child.handle} (row {child.row}): running"
    assert lines[1] == "15 tokens, 14 computed, 0 from the cache; 20 slots"
    assert [line.split("  ", 1)[0] for line in lines[4:]] == ["[0, 12)", "[12, 16)", "[16, 20)"]
    assert lines[4].endswith(f"{ranges(blocks[:3])}     cached; shared with the parent")
    assert lines[5].endswith(
        f"owned; 3 tokens, 2 computed; copy of 2 tokens from {ids(parent)[3]} pending"
    )
    assert lines[6].endswith(f"{blocks[4]}       owned; no tokens yet")


def test_the_text_of_a_twin_and_of_a_taken_copy(make_manager: MakeManager) -> None:
    manager = make_manager(12, 2, dedup="append_only")
    one, other = (manager.sequence(manager.admit([1, 2, 3])) for _ in range(2))
    one.commit(3)
    other.commit(3)
    assert f"owned; twin of {ids(one)[0]}" in describe(other)
    [child] = one.fork()
    child.append([4])
    plan = manager.take_copies()
    [copy] = list(plan)
    assert f"copy of 1 token from {copy.source} taken" in describe(child)
    what = f"copies taken, not resolved: {copy.source} to {copy.destination} (1 token)"
    assert describe(manager).splitlines()[-1] == what
    manager.copies_applied(plan.ticket)


def test_a_preempted_sequence_and_waiting_tokens_are_said(make_manager: MakeManager) -> None:
    manager = make_manager(12, 2)
    gone = serve(manager, [1, 2, 3])
    gone.preempt()
    manager.admit(list(range(10, 20)), num_slots=4)
    text = describe(manager)
    assert "3 tokens, preempted" in text
    assert "10 tokens, 0 computed; 6 wait for slots; blocks" in text
    assert describe(gone).splitlines()[0].endswith(": preempted")
    assert len(describe(gone).splitlines()) == 2


def test_idle_tails_are_told_in_the_order_of_eviction(make_manager: MakeManager) -> None:
    manager = make_manager(40, 4, min_partial_tokens=1)
    serve(manager, list(range(6))).free()
    tail, full = manager.blocks().eviction_order.tolist()
    assert describe(manager).splitlines()[-1] == f"evicted next: {tail} (tail of 2), {full}"
    serve(manager, list(range(100, 160))).free()
    assert describe(manager).splitlines()[-1].endswith(" and 5 more")


def test_what_does_not_fit_is_counted(make_manager: MakeManager) -> None:
    manager = make_manager(64, 1, max_seqs=40)
    handles = [manager.admit([number]) for number in range(30)]
    assert describe(manager, max_lines=8).splitlines()[-1] == "and 22 more sequences"
    manager.truncate(manager.fork(handles[0])[0], 1)
    wide = serve(manager, [5] * 20)
    for number in range(1, 6):
        manager.fork(wide.handle)
        wide.append([number])
    assert describe(wide, max_lines=1).splitlines()[-1].startswith("and ")


def test_text_of_a_long_sequence_keeps_its_width() -> None:
    manager = BlockManager(4096, 1, max_seqs=2)
    manager.commit(manager.admit(list(range(3000))), 3000)
    line = next(line for line in describe(manager).splitlines() if line.startswith("row 0"))
    assert len(line) < 120
    assert "3,000 blocks" in line


@pytest.mark.parametrize(
    ("ids_", "most", "expected"),
    [
        ([], None, ""),
        ([7], None, "7"),
        ([1, 2, 3, 7], None, "1-3, 7"),
        ([3, 2, 1, 2], None, "3-1, 2"),
        ([5, 6, 5], None, "5-6, 5"),
        ([1, 3, 5, 6], 2, "1, 3 and 2 more"),
    ],
)
def test_ranges_join_neighbours(ids_: list[int], most: int | None, expected: str) -> None:
    assert ranges(ids_, most) == expected


def test_text_looks_and_touches_nothing(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    [child] = serve(manager, [1, 2, 3, 4, 5]).fork()
    child.append([6])
    before = snapshot(manager)
    assert describe(manager) == describe(manager)
    assert describe(child) == describe(child)
    assert snapshot(manager) == before


def test_text_of_what_is_not_there_is_refused(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2)
    sequence = serve(manager, [1, 2, 3])
    sequence.free()
    before = snapshot(manager)
    with pytest.raises(UnknownSequenceError):
        describe(sequence)
    with pytest.raises(TypeError, match="what must be a BlockManager or a Sequence, got str"):
        describe("manager")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_lines must be at least 1, got 0"):
        describe(manager, max_lines=0)
    assert snapshot(manager) == before


def test_rows_that_share_are_neighbours_whatever_came_between(make_manager: MakeManager) -> None:
    manager = make_manager(40, 1)
    prompts = [[1, 2, 3], [9, 9], [1, 2, 4], [1, 5], [9, 8], [7]]
    for prompt in prompts:
        serve(manager, prompt)
    found = rows(manager)
    firsts = [row.view.tokens[0] for row in found]
    assert [key for key, _ in itertools.groupby(firsts)] == [1, 9, 7]
    assert [row.same.tolist() for row in found][:3] == [
        [False] * 3,
        [True, True, False],
        [True, False],
    ]


def test_the_text_of_groups_has_a_row_for_each_table() -> None:
    groups = (FullAttention(), SlidingWindow(4), RecurrentState())
    manager = BlockManager(num_blocks=32, block_size=4, null_block=True, groups=groups)
    handle = manager.admit(range(18))
    for stop in (16, 18):
        manager.copies_applied(manager.take_copies().ticket)
        manager.commit(handle, stop)
    manager.copies_applied(manager.take_copies().ticket)
    blocks = manager.blocks()
    text = describe(manager, names={handle: "prompt"})

    lines = text.splitlines()
    counts = [line for line in lines if line.startswith("group ")]
    assert [line.partition(":")[0] for line in counts] == [
        "group 0, FullAttention()",
        "group 1, SlidingWindow(width=4)",
        "group 2, RecurrentState()",
    ]
    used = [int(line.split(": ")[1].split()[0]) for line in counts]
    cached = [int(line.split(", ")[2].split()[0]) for line in counts]
    in_use = blocks.count(BlockState.OWNED) + blocks.count(BlockState.CACHED)
    assert sum(used) == in_use
    assert sum(cached) == blocks.count(BlockState.IDLE)
    [prompt] = [number for number, line in enumerate(lines) if line.startswith("prompt")]
    assert lines[prompt].split()[1] == "CCCCo"
    window, state = (lines[prompt + place].split()[-1] for place in (1, 2))
    # The window has released what the next token does not read.
    assert window.startswith("---")
    assert set(window[3:]) <= {"C", "o"}
    assert state in ("C", "o")
    assert "- no block of this group" in text


def test_a_table_of_windows_alone_shows_where_they_are_gone() -> None:
    manager = BlockManager(
        num_blocks=32, block_size=4, null_block=True, groups=(SlidingWindow(6),), num_nodes=40
    )
    one = serve(manager, list(range(30)))
    serve(manager, list(range(1, 30)))  # whose gone windows are no shared blocks
    lines = describe(manager, names={one.handle: "one"}).splitlines()
    [row] = [line for line in lines if line.startswith("one ")]
    assert row.split()[1] == "------Co"
    assert lines[-1].split("  ")[-1] == "- no block of this group"
    runs = [line.split(maxsplit=2) for line in describe(one).splitlines()[4:]]
    assert [(slots, state.split("  ")[-1].strip()) for _, slots, state in runs] == [
        ("24)", "no block of this group"),
        ("28)", "cached"),
        ("32)", "owned; 2 tokens"),
    ]
