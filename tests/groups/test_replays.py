"""Windows that prompts do not find, and that are computed again before a hit.

Rules G19 to G21 of the second design of groups, and its attack 10.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockmgr import PAD_SLOT, BlockManager, MissReason
from blockmgr.blocks import Admission
from blockmgr.errors import NeverFitsError, OutOfBlocksError, StaleMatchError, StepError
from blockmgr.groups import FullAttention, RecurrentState, Ring, SlidingWindow
from blockmgr.lab.replay_config import ReplayConfig
from blockmgr.tiers.layout import Layout
from tests.groups.world import FULL, World
from tests.specification import layers as kinds
from tests.stress.perform import finish_up
from tests.stress.run import Plan, Run

WINDOW = kinds.SlidingWindow(5, cached=False, replay=5)
PROMPT = list(range(1, 25))
FLASH = [FullAttention(256), SlidingWindow(128, 64, cached=False, replay=128), Ring(8, 4)]
"""The groups of DeepSeek-V4.1."""


def hit_of(world: World, handle: int) -> tuple[int, int]:
    view = world.manager.core.sequence(handle)
    return view.num_cached_tokens, view.num_replayed_tokens


def with_hit(num_blocks: int = 40, *more: kinds.Kind, **options: Any) -> tuple[World, int]:
    """A world with a sequence that has found 12 tokens and begins at 7."""
    world = World(num_blocks, 4, FULL, WINDOW, *more, **options)
    world.serve(PROMPT[:13])
    handle = world.manager.admit([*PROMPT[:12], 91, 92, 93])
    assert hit_of(world, handle) == (7, 5)
    return world, handle


# G19: a replay begins at H - min(r, H), r the largest of all groups


def test_a_replay_begins_so_many_tokens_before_the_hit() -> None:
    world, handle = with_hit()
    assert world.manager.seqs[handle].computed == 7
    world.compute(handle, 15)
    assert world.manager.match([*PROMPT[:12], 91]) == 7


def test_a_hit_of_no_more_tokens_than_the_replay_counts_as_none() -> None:
    world = World(40, 4, FULL, kinds.SlidingWindow(5, cached=False, replay=8))
    world.serve(PROMPT)
    for length, found in ((5, 0), (9, 0), (11, 0), (13, 4), (17, 8)):
        handle = world.manager.admit([*PROMPT[: length - 1], 99])
        assert hit_of(world, handle) == (found, 8 if found else 0)
        world.compute(handle, length)
        world.manager.free(handle)


def test_the_largest_replay_is_that_of_all_groups() -> None:
    small = kinds.SlidingWindow(2, cached=False, replay=1)
    world = World(40, 4, FULL, small, WINDOW, kinds.SlidingWindow(3))
    world.serve(PROMPT)
    handle = world.manager.admit(PROMPT)
    assert hit_of(world, handle) == (15, 5)
    world.compute(handle, 18, 24)


def test_a_replay_is_computed_in_chunks_of_any_length() -> None:
    world, handle = with_hit()
    world.compute(handle, 8, 9, 11, 12, 14, 15)


def test_a_forward_may_go_beyond_the_hit() -> None:
    world, handle = with_hit()
    world.compute(handle, 11, 14)


def test_cached_groups_have_no_slots_for_what_is_computed_again() -> None:
    manager = BlockManager(
        60,
        4,
        groups=[FullAttention(2), SlidingWindow(3), SlidingWindow(5, 4, False, 5)],
        null_block=True,
    )
    first = manager.admit(PROMPT)
    manager.commit(first, 24)
    manager.free(first)
    handle = manager.admit([*PROMPT[:20], 99, 98])
    assert manager.sequence(handle).num_cached_tokens == 15
    found = [manager.slot_mapping(handle, 15, 22)]
    found += [manager.slot_mapping(handle, 15, 22, group=group) for group in (0, 1)]
    for slots in found:
        assert (slots[:-2] == PAD_SLOT).all()
        assert (slots[-2:] >= 0).all()
    assert (manager.slot_mapping(handle, 15, 22, group=2) >= 0).all()
    manager.commit(handle, 22)  # that does not change: the blocks belong to others
    assert (manager.slot_mapping(handle, 15, 22) == found[0]).all()


def test_a_ring_is_computed_again_where_there_is_a_replay() -> None:
    """G17: such a hit need not lie where the ring restarts."""
    world = World(40, 4, FULL, WINDOW, kinds.Ring(8, restart=4), min_partial_tokens=1)
    world.serve(PROMPT)
    handle = world.manager.admit([*PROMPT[:18], 99, 98])
    assert hit_of(world, handle) == (13, 5)
    world.compute(handle, 15, 20)
    assert len(world.manager.tables(handle)[2]) == 1


def test_a_launched_replay_moves_a_ring_even_if_there_are_slots_for_no_more() -> None:
    world = World(40, 4, FULL, WINDOW, kinds.Ring(8, restart=4), min_partial_tokens=1)
    world.serve(PROMPT)
    handle = world.manager.admit([*PROMPT[:16], 91, 92, 93], num_slots=16)
    assert hit_of(world, handle) == (11, 5)
    world.forward(handle, 14)
    with pytest.raises(StepError, match="ring"):
        world.manager.fork(handle)


def test_the_groups_of_deepseek_v4_1() -> None:
    manager = BlockManager(64, 256, groups=FLASH, null_block=True, min_partial_tokens=1)
    prompt = np.arange(1_000, dtype=np.int64)
    first = manager.admit(prompt)
    manager.commit(first, 1_000)
    manager.free(first)
    found = manager.match(prompt[:900])
    assert (found.num_cached_tokens, found.num_replayed_tokens) == (771, 128)
    handle = manager.admit(prompt[:900], match=found)
    row = manager.group_table(1)[manager.row(handle)]
    assert np.flatnonzero(row).tolist() == [12, 13, 14]  # from the block with token 771 on
    assert manager.take_copies().zeros is not None
    manager.check_invariants()


# G20: below the hit, nothing else changes


def cache_of(world: World) -> tuple[object, ...]:
    stats = world.manager.stats()
    found = [world.manager.match([*PROMPT[:n], 99]) for n in range(1, 24)]
    return found, stats.cached_blocks, stats.promoted_blocks


def test_a_commit_inside_the_replay_promotes_nothing_and_moves_no_window() -> None:
    world, handle = with_hit(40, kinds.SlidingWindow(3))
    before, tables = cache_of(world), world.manager.tables(handle)
    world.compute(handle, 9, 11)
    assert cache_of(world) == before
    assert world.manager.tables(handle) == tables
    world.compute(handle, 15)
    assert cache_of(world) == before  # its last node is not full
    assert world.manager.tables(handle) != tables


def test_an_early_commit_inside_the_replay_keeps_what_its_forward_reads() -> None:
    world = World(40, 4, FULL, WINDOW)
    world.manager.early = True
    world.serve_early(PROMPT[:13])
    handle = world.manager.admit([*PROMPT[:12], 91, 92, 93])
    for stop in (9, 12):  # forwards from 7 and from 9 on
        world.manager.commit(handle, stop)
        assert all(world.manager.tables(handle)[1][1:])  # from token 4 on
        world.step()
    world.manager.commit(handle, 15)  # its forward reads from token 8 on
    assert world.manager.tables(handle)[1][:2] == (0, 0)
    world.step()


def test_what_a_replay_promises_is_written_before_it_ends() -> None:
    world = World(40, 4, FULL, WINDOW)
    world.manager.early = True
    manager = world.manager
    world.serve_early(PROMPT[:13])
    handle = manager.admit([*PROMPT[:12], 91, 92, 93])
    manager.commit(handle, 9)
    before = manager.fingerprint()
    for call in (
        manager.free,
        manager.preempt,
        manager.fork,
        lambda each: manager.truncate(each, 5),
    ):
        with pytest.raises(StepError):
            call(handle)
        assert manager.fingerprint() == before
    world.step()
    manager.free(handle)


@pytest.mark.parametrize("end", ["free", "preempt", "abort"])
@pytest.mark.parametrize("stop", [7, 9])
def test_an_end_inside_the_replay_leaves_the_cache_as_it_was(end: str, stop: int) -> None:
    world = World(40, 4, FULL, WINDOW, min_partial_tokens=1)
    world.serve(PROMPT[:13])
    before, available = cache_of(world), world.manager.available()
    handle = world.manager.admit([*PROMPT[:12], 91, 92, 93])
    world.compute(handle, stop)
    if end == "abort":
        world.manager.take_copies()
        world.manager.copies_aborted()
    world.manager.preempt(handle) if end == "preempt" else world.manager.free(handle)
    assert cache_of(world) == before
    assert world.manager.available() == available
    if end == "preempt":
        world.manager.resume(handle)
        assert hit_of(world, handle) == (7, 5)
        world.compute(handle, 15)


@pytest.mark.parametrize("stop", [7, 9, 11, 12, 14])
def test_a_fork_copies_what_its_window_has_of_its_own(stop: int) -> None:
    world, parent = with_hit()
    world.compute(parent, stop)
    available = world.manager.available()
    [child] = world.manager.fork(parent)
    assert hit_of(world, child) == (7, 5)
    assert world.manager.seqs[child].computed == stop
    held = [block for block in world.manager.tables(parent)[1] if block]
    assert world.manager.available() == available - len(held)
    copies = {copy.source: copy.num_tokens for copy in world.manager.pending if copy.group == 1}
    first = world.manager.tables(parent)[1].index(held[0]) * 4
    due = {b: min(4, stop - first - 4 * i) for i, b in enumerate(held)}
    assert copies == {block: count for block, count in due.items() if count > 0}
    for number, handle in enumerate((parent, child)):
        world.manager.append(handle, [number] * 3)
    world.compute(child, 18)
    world.compute(parent, 18)


def test_a_sequence_that_takes_the_place_of_another_replays_as_that_one() -> None:
    world, one = with_hit()
    other = world.manager.admit([7] * 6)
    world.compute(other, 6)
    world.compute(one, 9)
    world.manager.reparent([one, other], [1, 0])
    assert (hit_of(world, one), hit_of(world, other)) == ((0, 0), (7, 5))
    for handle in (one, other):
        world.manager.append(handle, [5])
    world.compute(one, 7)
    world.compute(other, 12, 16)


def test_attack_10_a_prompt_for_which_only_its_slots_have_room_waits() -> None:
    """A hit of 20 tokens with a replay of 8 takes two blocks of the window before any slot."""
    for num_blocks, answer in ((13, Admission.NOW), (12, Admission.LATER)):
        world = World(num_blocks, 4, FULL, kinds.SlidingWindow(5, cached=False, replay=8))
        world.serve(PROMPT[:21])
        world.manager.admit([77] * 8)
        prompt = [*PROMPT[:20], 98, 99]
        assert world.manager.can_admit(prompt) is answer
        if answer is Admission.NOW:
            world.compute(world.manager.admit(prompt), 22)
        else:
            with pytest.raises(OutOfBlocksError):
                world.manager.admit(prompt)


def test_what_is_computed_again_decides_whether_a_prompt_ever_fits() -> None:
    """A hit of 16 tokens with a replay of 8: 12 blocks, and 8 of the window before any is free."""
    window = kinds.SlidingWindow(2, cached=False, replay=8)
    for num_blocks, answer in ((19, Admission.NEVER), (20, Admission.NOW)):
        world = World(num_blocks, 2, FULL, window)
        world.serve(PROMPT[:8], 8)
        handle = world.manager.admit(PROMPT[:17], num_slots=8)
        world.compute(handle, 8)
        world.manager.reserve(handle, 17)
        world.compute(handle, 17)
        world.manager.free(handle)
        prompt = [*PROMPT[:16], *range(90, 98)]
        assert world.manager.match(prompt[:17]) == 8
        assert world.manager.can_admit(prompt) is answer
        assert world.manager.can_admit(prompt, num_slots=18) is Admission.NOW


def test_uncached_windows_count_in_what_a_prompt_needs_and_in_quotas() -> None:
    world = World(20, 4, FULL, WINDOW, quotas={b"tenant": 7})
    assert world.manager.can_admit([1] * 16, namespace=b"tenant") is Admission.NEVER
    with pytest.raises(NeverFitsError):
        world.manager.admit([1] * 16, b"tenant")
    assert world.manager.can_admit([1] * 16, namespace=b"tenant", num_slots=8) is Admission.NOW
    handle = world.manager.admit([1] * 12, b"tenant")
    assert world.manager.available(b"tenant") == 1
    with pytest.raises(OutOfBlocksError):
        world.manager.fork(handle)


def test_an_uncached_window_gives_back_what_it_has_passed() -> None:
    world = World(40, 4, FULL, WINDOW)
    handle = world.manager.admit(PROMPT)
    world.compute(handle, 16)
    assert [bool(block) for block in world.manager.tables(handle)[1]] == [False] * 3 + [True] * 3
    world.manager.free(handle)
    stats = world.manager.stats()
    assert (stats.cached_blocks, stats.free_blocks) == (4, 36)


def test_a_preempted_sequence_begins_again_before_its_hit() -> None:
    world = World(40, 4, FULL, WINDOW, kinds.Ring(8, restart=4), min_partial_tokens=1)
    handle = world.manager.admit(PROMPT)
    world.compute(handle, 22)
    world.manager.preempt(handle)
    world.manager.resume(handle)
    assert hit_of(world, handle) == (17, 5)
    world.compute(handle, 24)


# G15: going back


def test_drafts_are_taken_back_while_the_window_has_what_is_read() -> None:
    world = World(40, 4, FULL, WINDOW)
    world.manager.lookahead = 3
    handle = world.manager.admit(PROMPT)
    world.compute(handle, 24)
    assert world.manager.truncate(handle, 21) == 21
    world.manager.append(handle, [9, 9, 9])
    world.compute(handle, 24)


def test_where_the_window_has_gone_a_sequence_falls_to_its_beginning() -> None:
    world, handle = with_hit()
    world.compute(handle, 15)
    assert world.manager.truncate(handle, 9) == 0
    world.manager.reserve(handle, 9)
    world.compute(handle, 9)


def test_a_block_has_nothing_before_the_token_with_which_the_replay_began() -> None:
    """Its window holds the block of tokens 8 to 11, of which it computed those from 9 on."""
    for length, left in ((13, 13), (12, 0)):
        world = World(40, 4, FULL, WINDOW, min_partial_tokens=1)
        world.serve(PROMPT[:16])
        handle = world.manager.admit([*PROMPT[:14], 91])
        assert hit_of(world, handle) == (9, 5)
        world.compute(handle, 15)
        assert world.manager.truncate(handle, length) == left
        world.manager.reserve(handle, length)
        world.compute(handle, length)


def test_a_ring_has_nothing_before_the_token_with_which_the_replay_began() -> None:
    """The query after 11 tokens reads from token 6 on, and the ring was given those from 7 on."""
    window = kinds.SlidingWindow(2, cached=False, replay=5)
    world = World(40, 4, FULL, window, kinds.Ring(8, restart=6))
    world.serve(PROMPT[:13])
    handle = world.manager.admit([*PROMPT[:12], 91, 92, 93])
    assert hit_of(world, handle) == (7, 5)
    world.compute(handle, 12)
    assert world.manager.truncate(handle, 11) == 0
    world.manager.reserve(handle, 11)
    world.compute(handle, 11)


def test_inside_its_replay_a_sequence_that_is_cut_falls_to_its_beginning() -> None:
    for length, left in ((13, 9), (12, 9), (11, 0)):
        world, handle = with_hit()
        world.compute(handle, 9)
        assert world.manager.truncate(handle, length) == left
        world.manager.reserve(handle, length)
        world.compute(handle, length)


def test_cut_inside_its_replay_a_sequence_begins_it_again_if_a_ring_has_lost_what_it_reads() -> (
    None
):
    """The forward of tokens 7 and 8 may have gone on to token 14, with which token 8 is lost."""
    for restart in (2, 5):  # with the hit of 12 tokens at a multiple of it, and not
        world, handle = with_hit(40, kinds.Ring(restart, restart=restart))
        world.compute(handle, 9)
        assert world.manager.truncate(handle, 13) == 7
        world.compute(handle, 13)


def test_a_sequence_that_is_cut_keeps_no_tokens_without_a_slot() -> None:
    """Token 5 has lost its block of one token, so the block of 16 that it lies in has no slots."""
    groups = [FullAttention(), SlidingWindow(1, 1, cached=False, replay=1)]
    manager = BlockManager(77, 16, groups=groups, null_block=True)
    handle = manager.admit(range(19))
    manager.commit(handle, 8)
    assert manager.truncate(handle, 4) == 0
    manager.check_invariants()
    handle = manager.admit(range(100, 140))
    manager.commit(handle, 36)
    assert manager.truncate(handle, 32) == 32
    manager.check_invariants()


# G21: what is computed again counts as equal


def test_what_lies_behind_a_replay_is_cached() -> None:
    world = World(60, 4, FULL, WINDOW)
    world.serve(PROMPT[:13])
    assert world.serve(PROMPT) == 7
    assert world.serve([*PROMPT, 99]) == 19


# What callers see, and what is refused


def served(**options: Any) -> BlockManager:
    groups = [FullAttention(), SlidingWindow(5, None, False, 5)]
    manager = BlockManager(40, 4, groups=groups, null_block=True, **options)
    handle = manager.admit(PROMPT)
    manager.commit(handle, 24)
    manager.free(handle)
    return manager


def test_an_admission_takes_exactly_what_was_matched() -> None:
    manager = served()
    found = manager.match(PROMPT)
    assert (found.num_cached_tokens, found.num_replayed_tokens) == (15, 5)
    handle = manager.admit(PROMPT, match=found)
    assert manager.sequence(handle).num_cached_tokens == 15
    manager.free(handle)
    less = manager.match(PROMPT, max_cached_tokens=11)
    assert (less.num_cached_tokens, less.num_replayed_tokens) == (11, 5)
    assert manager.match(PROMPT, max_cached_tokens=0).num_replayed_tokens == 0
    manager.reset_prefix_cache()
    with pytest.raises(StaleMatchError, match="15"):
        manager.admit(PROMPT, match=found)


def test_hit_rates_count_what_need_not_be_computed() -> None:
    manager = served()
    manager.admit(PROMPT)
    assert manager.stats().hit_tokens == 15


def test_decode_counts_the_replay_as_computed() -> None:
    manager = served(strict_decode=True)
    handle = manager.admit(PROMPT[:22])
    manager.commit(handle, 21)
    manager.decode([handle], [5])
    assert manager.sequence(handle).num_computed_tokens == 22
    manager.check_invariants()


def test_decode_ends_a_replay_that_was_not_committed() -> None:
    manager = served()
    handle = manager.admit(PROMPT[:22])
    assert manager.sequence(handle).num_computed_tokens == 15
    manager.decode([handle], [5])
    assert manager.sequence(handle).num_computed_tokens == 22
    manager.check_invariants()


def test_a_commit_before_what_is_computed_again_is_refused() -> None:
    manager = served()
    handle = manager.admit(PROMPT)
    manager.commit(handle, 18)
    for wrong in (14, 17):
        with pytest.raises(ValueError, match=r"\[18, 24\]"):
            manager.commit(handle, wrong)


def test_explain_names_the_group_for_which_a_hit_is_too_short() -> None:
    manager = served()
    explained = manager.explain([*PROMPT[:4], 99])
    assert explained.num_cached_tokens == 0
    assert [m.group for m in explained.misses if m.reason is MissReason.GROUP] == [1]


def test_events_say_nothing_of_uncached_windows() -> None:
    manager = served(events=True)
    assert set(manager.take_events().group.tolist()) == {0}


REPLAYED = [FullAttention(), SlidingWindow(4, None, False, 8)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SlidingWindow(5, None, False), "uncached window of 5"),
        (lambda: SlidingWindow(5, None, False, 3), "replay must be at least 4"),
        (lambda: SlidingWindow(1, None, False), "replay must be at least 1"),
        (lambda: SlidingWindow(5, replay=5), "replay must be 0 for a window that is cached"),
        (lambda: ReplayConfig(groups=REPLAYED), "no uncached windows for a replay"),
        (
            lambda: BlockManager(40, 4, groups=[*REPLAYED, RecurrentState()], null_block=True),
            "replay must be 0 beside states",
        ),
        (
            lambda: BlockManager(40, 4, groups=[*REPLAYED, Ring(10, 10)], null_block=True),
            r"a restart of at most replay \+ 1, 9",
        ),
        (lambda: Layout(served().config), "no uncached windows for tiers"),
        (
            lambda: served().admit(PROMPT, num_loaded_tokens=8),
            "num_loaded_tokens must be 0 with uncached windows",
        ),
        (lambda: served().resume_together([]), "resumed one by one with uncached windows"),
    ],
)
def test_what_a_replay_cannot_mean_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_cached_is_a_bool() -> None:
    with pytest.raises(TypeError, match="cached must be a bool"):
        SlidingWindow(5, None, 0, 5)  # type: ignore[arg-type]


def play(seed: int) -> Run:
    run = Run(Plan(150), "replays", seed)
    for _ in range(150):
        run.one()
    finish_up(run.world)
    return run


@pytest.mark.specification_alone
def test_random_worlds_agree_with_the_specification_and_read_nothing_wrong() -> None:
    worlds = [play(seed).world for seed in range(12)]
    assert sum(world.replayed for world in worlds) > 50
    assert sum(world.device.num_reads for world in worlds) > 3_000
    windows = [k for w in worlds for k in w.kinds if not k.cached and not isinstance(k, kinds.Ring)]
    assert len({kind.block_size for kind in windows}) > 1  # in blocks of their own, too
