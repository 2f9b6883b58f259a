"""One small world for each rule of layouts with sizes of their own; a broken rule fails in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.groups import broken_sizes as broken
from tests.specification.layers import (
    ChunkedAttention,
    FullAttention,
    RecurrentState,
    Ring,
    SlidingWindow,
    check_layout,
)
from tests.specification.layouts import ModelLayouts
from tests.stress.run import build_world

Manager = type[ModelLayouts]


def world_of(manager: Manager, node: int, *layout: str, num_blocks: int = 64, **more: Any) -> Any:
    """A manager, its memory and an engine; block 0 is the null block."""
    usual = {"max_seqs": 8, "null_block": True, "digest": "xxh3_128", "stop_tokens": None}
    sizes = {"layout": layout, "num_blocks": num_blocks + 1, "block_size": node}
    return build_world(usual | sizes | more, 1, "IK", manager)


def compute(world: Any, entry: Any) -> None:
    """Steps until all tokens of a sequence are computed."""
    for _ in range(2 * len(entry.tokens)):
        if world.manager.sequence(entry.handle).num_computed_tokens == len(entry.tokens):
            return
        world.step()
    raise AssertionError("it computes nothing")


def serve(world: Any, tokens: list[int]) -> int:
    """Admits, computes and frees a prompt; returns the hit."""
    entry = world.admit(tokens)
    hit = world.manager.sequence(entry.handle).hit
    compute(world, entry)
    world.free(entry)
    return int(hit)


def free_blocks(world: Any) -> int:
    return int(world.manager.stats().free_blocks)


def tables(world: Any, entry: Any) -> Any:
    return world.tables_of(entry.handle)


# Places


def prompts_that_part_inside_a_block_share_its_nodes(manager: Manager) -> None:
    """G1: the block has 8 tokens, a node 2."""
    world = world_of(manager, 2, "full block_size=8", "window 3 block_size=4")
    serve(world, [1] * 13 + [2] * 5)
    assert serve(world, [1] * 13 + [3] * 5) == 12


def a_block_smaller_than_a_node_is_found_with_it(manager: Manager) -> None:
    """G1: the other way round; 12 of 14 tokens are whole nodes, in 6 blocks."""
    world = world_of(manager, 4, "full block_size=2", "window 5 block_size=1")
    serve(world, [1] * 14 + [2])
    assert serve(world, [1] * 14 + [3]) == 12


def a_prompt_that_parts_inside_a_block_continues_in_a_copy(manager: Manager) -> None:
    """G2: the first prompt is still found whole, and reads its own tokens."""
    world = world_of(manager, 4, "full block_size=8")
    serve(world, [1] * 9)
    assert serve(world, [1] * 4 + [2] * 5) == 4
    assert serve(world, [1] * 9) == 8


def an_idle_block_is_written_behind_its_end(manager: Manager) -> None:
    """G3: the third prompt takes no copy, and the place where it continued is still found."""
    world = world_of(manager, 4, "full block_size=8")
    serve(world, [1] * 4)
    first = world.admit([1] * 4 + [2] * 3)
    assert not world.manager.pending
    compute(world, first)
    second = world.admit([1] * 4 + [3] * 3)
    assert len(world.manager.pending) == 1
    compute(world, second)
    assert world.manager.match([1] * 5).num_cached_tokens == 4


def a_block_that_a_step_may_still_write_is_copied(manager: Manager) -> None:
    """G3: the sequence has ended, but its last forward is in flight."""
    world = world_of(manager, 4, "full block_size=8", steps_in_flight=2)
    entry = world.admit([1] * 4)
    world.step()
    world.begin(applied=True)
    world.free(entry)
    world.admit([1] * 4 + [2] * 2)
    assert len(world.manager.pending) == 1


def what_is_overwritten_is_found_no_more(manager: Manager) -> None:
    """G4: a block whose end nobody needs is written from 4 on; it must not serve at 8 again."""
    world = world_of(manager, 4, "window 8 block_size=8")
    serve(world, [1] * 9)
    for prefix in [p for p in world.manager.stamps if len(p[1]) > 4]:
        del world.manager.stamps[prefix]
    world.manager.settle()
    compute(world, world.admit([1] * 4 + [2] * 3))
    assert serve(world, [1] * 9) == 4
    assert serve(world, [1] * 9) == 8


def a_node_moves_to_the_block_of_a_sister(manager: Manager) -> None:
    """G5: two blocks begin with one node; the second node of one of them goes."""
    world = world_of(manager, 4, "full block_size=8", num_blocks=4)
    serve(world, [1] * 8)
    serve(world, [1] * 4 + [2] * 4)
    assert free_blocks(world) == 2
    del world.manager.stamps[b"", (1,) * 8]
    world.manager.settle()
    assert free_blocks(world) == 3
    assert world.manager.match([1] * 5).num_cached_tokens == 4


def what_is_found_is_used_before_anything_is_evicted(manager: Manager) -> None:
    """G6: the prompt needs all blocks, and its hit is among them."""
    world = world_of(manager, 4, "full block_size=8", num_blocks=3)
    serve(world, [1] * 8)
    serve(world, [2] * 8)
    entry = world.admit([1] * 8 + [3] * 16)
    assert world.manager.sequence(entry.handle).hit == 8
    compute(world, entry)


def a_twin_in_use_stands_in_for_a_cached_block(manager: Manager) -> None:
    """G7: two sequences compute the same; when one of them ends, one block is left."""
    world = world_of(manager, 4, "full block_size=8", num_blocks=6)
    first, second = world.admit([1] * 8), world.admit([1] * 8)
    world.step()
    assert tables(world, first) != tables(world, second)
    world.free(first)
    assert free_blocks(world) == 5


# States


def the_slot_of_a_state_stays(manager: Manager) -> None:
    """G8: the kept state is a copy; the table does not change."""
    world = world_of(manager, 4, "full block_size=8", "state")
    entry = world.admit([1] * 9)
    before = tables(world, entry)[1]
    compute(world, entry)
    assert tables(world, entry)[1] == before
    world.step()
    assert world.manager.match([1] * 9).num_cached_tokens == 8


def a_state_that_moves_is_kept_without_a_copy(manager: Manager) -> None:
    """G8: the worker goes on in the next column, and leaves the state of the multiple."""
    world = world_of(manager, 4, "full block_size=8", "state moves=1 block_size=4")
    entry = world.admit([1] * 10)
    world.step()
    assert not world.manager.pending
    compute(world, entry)
    assert world.manager.match([1] * 10).num_cached_tokens == 8


def a_kept_state_survives_a_step_that_aborts(manager: Manager) -> None:
    """G9: the destination of its copy is in no table."""
    world = world_of(manager, 4, "full block_size=8", "state")
    entry = world.admit([1] * 9)
    world.step()
    world.abort()
    assert len(world.manager.pending) == 1
    compute(world, entry)
    assert serve(world, [1] * 9) == 8


def a_state_is_not_kept_once_a_later_step_is_launched(manager: Manager) -> None:
    """G9: the commit is about a step before it."""
    world = world_of(manager, 4, "full block_size=8", "state", steps_in_flight=2)
    entry = world.admit([1] * 8 + [2] * 4)
    first = world.begin(applied=True)
    world.begin(applied=True)
    world.device.run(first.step)
    world.manager.commit(entry.handle, 8)
    assert not world.manager.pending


def a_child_has_the_block_in_which_it_goes_on(manager: Manager) -> None:
    """G10: whole blocks are shared; no later call changes a table."""
    world = world_of(manager, 4, "full block_size=8")
    parent = world.admit([1] * 12)
    compute(world, parent)
    [child] = world.fork(parent)
    (mine,), (theirs,) = tables(world, child), tables(world, parent)
    assert mine[0] == theirs[0]
    assert mine[1] != theirs[1]
    for entry, token in ((parent, 2), (child, 3)):
        world.append(entry, [token])
    world.step()


def readers_copy_a_kept_state(manager: Manager) -> None:
    """G11: two in one step share the source."""
    world = world_of(manager, 4, "full block_size=8", "state")
    serve(world, [1] * 9)
    for token in (2, 3):
        world.admit([1] * 8 + [token])
    assert len({copy.source for copy in world.manager.pending if copy.group == 1}) == 1
    world.step()


def nothing_merges(manager: Manager) -> None:
    """G12: both keep their blocks."""
    world = world_of(manager, 4, "full block_size=8", "window 5 block_size=2")
    first, second = world.admit([1] * 12), world.admit([1] * 12)
    before = tables(world, first), tables(world, second)
    world.step()
    for entry, old in zip((first, second), before, strict=True):
        assert tables(world, entry)[0] == old[0]


def the_accepted_draft_says_which_state_is_live(manager: Manager) -> None:
    """G13: a step of three tokens leaves three states; two of the tokens are accepted."""
    world = world_of(manager, 4, "full block_size=8", "state extra_blocks=3")
    entry = world.admit([1] * 5)
    compute(world, entry)
    world.append(entry, [3, 3, 3])
    launched = world.begin(applied=True)
    world.device.run(launched.step)
    launched.finished = True
    world.steps.remove(launched)
    world.manager.commit(entry.handle, 7)
    assert world.manager.state_slot(entry.handle, 1) == 1
    entry.ran = entry.left_off = entry.start = 7
    world.truncate(entry, 7)
    world.append(entry, [4])
    compute(world, entry)


def drafts_reach_so_far_as_the_prompts_agree(manager: Manager) -> None:
    """G14: at 8, the cell before was computed with the token behind."""
    world = world_of(manager, 4, "full block_size=8", "window 5 block_size=4 look_ahead=1")
    serve(world, [1] * 8 + [2] * 2)
    assert serve(world, [1] * 8 + [2] * 2) == 8
    assert serve(world, [1] * 8 + [3] * 2) == 4
    world = world_of(manager, 4, "full block_size=8", "window 5 block_size=4 look_ahead=1")
    serve(world, [1] * 9)
    assert serve(world, [1] * 9) == 8  # its last token is the one behind


def a_sequence_falls_to_where_every_group_can_go_on(manager: Manager) -> None:
    """G15: the window has released what a query at 8 reads, and nobody else has it."""
    world = world_of(manager, 4, "full block_size=8", "window 3 block_size=2")
    entry = world.admit([1] * 30)
    compute(world, entry)
    world.manager.stamps.clear()
    world.manager.settle()
    world.truncate(entry, 9)
    assert world.manager.sequence(entry.handle).num_computed_tokens == 0
    world.reserve(entry, 9)
    compute(world, entry)


def a_ring_falls_to_what_is_still_in_it(manager: Manager) -> None:
    """G15: of 8 positions 4 to 11 are in it; 10 is read from 8 on, 3 only from its beginning."""
    world = world_of(manager, 2, "full", "ring 8 restart=4")
    entry = world.admit([1] * 12)
    compute(world, entry)
    for length, due in ((10, 10), (3, 0)):
        world.truncate(entry, length)
        assert world.manager.sequence(entry.handle).num_computed_tokens == due
        world.append(entry, [2])
        compute(world, entry)


# Rings and replay


def a_ring_begins_empty(manager: Manager) -> None:
    """G16: the block had the ring of another sequence."""
    world = world_of(manager, 2, "ring 4 restart=4", "full", num_blocks=8)
    for token in (1, 2, 3):
        serve(world, [token] * 6)


def a_fork_copies_the_ring(manager: Manager) -> None:
    """G16: it goes on inside a group of four."""
    world = world_of(manager, 2, "full", "ring 4 restart=4")
    parent = world.admit([1] * 6)
    compute(world, parent)
    [child] = world.fork(parent)
    world.append(child, [2])
    compute(world, child)


def a_ring_is_hit_at_multiples_of_its_restart(manager: Manager) -> None:
    """G17: at 6, an empty ring lacks positions 4 and 5."""
    world = world_of(manager, 2, "full", "ring 8 restart=4")
    serve(world, [1] * 7)
    assert serve(world, [1] * 6 + [2] * 2) == 4


def rings_and_slots_for_drafts_count(manager: Manager) -> None:
    """G18: five blocks are three of attention, and two slots for a state."""
    world = world_of(manager, 2, "full", "state extra_blocks=1", num_blocks=5)
    assert world.admit([1] * 7) is None
    assert world.admit([1] * 6) is not None


def a_replay_writes_only_what_is_not_cached(manager: Manager) -> None:
    """G19: a hit of 12 with a replay of 5 begins at 7; one of 4 counts as none."""
    layout = ("full block_size=4", "window 5 cached=0 replay=5 block_size=4")
    world = world_of(manager, 4, *layout)
    serve(world, [1] * 13)
    entry = world.admit([1] * 12 + [2] * 3)
    view = world.manager.sequence(entry.handle)
    assert (view.hit, view.num_computed_tokens) == (12, 7)
    compute(world, entry)
    assert serve(world, [1] * 4 + [3] * 3) == 0


def a_commit_inside_a_replay_changes_nothing_else(manager: Manager) -> None:
    """G20: a child of a sequence in its replay shares what was found."""
    layout = ("full block_size=8", "window 5 cached=0 replay=5 block_size=4")
    world = world_of(manager, 4, *layout)
    serve(world, [1] * 17)
    entry = world.admit([1] * 16 + [2] * 3)
    [child] = world.fork(entry)
    assert tables(world, child)[0][:2] == tables(world, entry)[0][:2]
    compute(world, child)


# Eviction


def boundaries_of_one_block_go_together(manager: Manager) -> None:
    """G22: two pages, each with a boundary at each of its nodes; the older one is free at once."""
    world = world_of(manager, 2, "full block_size=8", num_blocks=2)
    for token in (1, 2):
        serve(world, [token] * 8)
    world.manager.evict(None)
    assert free_blocks(world) == 1
    assert serve(world, [2] * 8) == 6


RULES: dict[Callable[[Manager], None], tuple[Manager, ...]] = {
    prompts_that_part_inside_a_block_share_its_nodes: (broken.FindsMultiplesOfAllSizesOnly,),
    a_block_smaller_than_a_node_is_found_with_it: (),
    a_prompt_that_parts_inside_a_block_continues_in_a_copy: (broken.WritesBehindWhatOthersNeed,),
    an_idle_block_is_written_behind_its_end: (),
    a_block_that_a_step_may_still_write_is_copied: (broken.WritesWhereAStepMayStillWrite,),
    what_is_overwritten_is_found_no_more: (broken.KeepsWhatIsOverwritten,),
    a_node_moves_to_the_block_of_a_sister: (broken.KeepsEachBoundaryItsOldestBlock,),
    what_is_found_is_used_before_anything_is_evicted: (broken.EvictsWhatAHitIsMadeOf,),
    a_twin_in_use_stands_in_for_a_cached_block: (broken.KeepsEachBoundaryItsOldestBlock,),
    the_slot_of_a_state_stays: (broken.ExchangesAStateForItsCopy,),
    a_state_that_moves_is_kept_without_a_copy: (),
    a_kept_state_survives_a_step_that_aborts: (broken.DropsAKeptStateWhenAStepAborts,),
    a_state_is_not_kept_once_a_later_step_is_launched: (broken.KeepsAStateBehindALaterStep,),
    a_child_has_the_block_in_which_it_goes_on: (broken.ForksShareWhereTheyGoOn,),
    readers_copy_a_kept_state: (broken.ReadersAdvanceTheKeptState,),
    nothing_merges: (broken.MergesTwins,),
    the_accepted_draft_says_which_state_is_live: (broken.TakesTheFirstSlotToBeLive,),
    drafts_reach_so_far_as_the_prompts_agree: (broken.FindsWithoutLookingAhead,),
    a_sequence_falls_to_where_every_group_can_go_on: (broken.FallsToWhereAWindowHasAGap,),
    a_ring_falls_to_what_is_still_in_it: (broken.FallsToWhereTheRingIsOverwritten,),
    a_ring_begins_empty: (broken.BeginsWithADirtyRing,),
    a_fork_copies_the_ring: (broken.ForksGoOnWithAnEmptyRing,),
    a_ring_is_hit_at_multiples_of_its_restart: (broken.FindsWhereARingLacksItsBeginning,),
    rings_and_slots_for_drafts_count: (broken.CountsNoRingsAndDrafts,),
    a_replay_writes_only_what_is_not_cached: (
        broken.ReplaysIntoBlocksOfOthers,
        broken.TakesAHitInsideTheReplay,
    ),
    a_commit_inside_a_replay_changes_nothing_else: (broken.ForksOfAReplayGoOnWhereItIs,),
    boundaries_of_one_block_go_together: (broken.EvictsOneBoundaryOfABlock,),
}
"""The worlds, and the broken rules that fail in them."""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_holds_in_its_world(rule: Callable[[Manager], None]) -> None:
    rule(ModelLayouts)


@pytest.mark.parametrize(
    ("rule", "manager"),
    [(rule, manager) for rule, managers in RULES.items() for manager in managers],
    ids=lambda value: value.__name__,
)
def test_a_broken_rule_fails_in_its_world(
    rule: Callable[[Manager], None], manager: Manager
) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011  # any error shows that it is broken
        rule(manager)


@pytest.mark.parametrize(
    ("node", "kinds", "field"),
    [
        (4, [FullAttention(block_size=6)], "block_size"),
        (4, [FullAttention(), SlidingWindow(5, replay=5)], "replay"),
        (4, [RecurrentState(), SlidingWindow(5, cached=False, replay=5)], "replay"),
        (4, [FullAttention(extra_blocks=1)], "extra_blocks"),
        (4, [SlidingWindow(5, moves=True)], "moves"),
        (4, [RecurrentState(look_ahead=1)], "look_ahead"),
        (4, [FullAttention(), SlidingWindow(5, cached=False)], "replay"),
        (4, [Ring(4, restart=4), RecurrentState(extra_blocks=1)], "extra_blocks"),
    ],
)
def test_a_layout_that_means_nothing_is_refused(node: int, kinds: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        check_layout(kinds, node)


def test_an_uncached_chunk_begins_empty_at_its_own_multiples() -> None:
    check_layout([FullAttention(), ChunkedAttention(4, cached=False, restart=8)], 4)
