"""Admissions whose leading tokens something else than a forward provides: a connector, a tier.

They run on the manager alone. A load writes what a group has blocks for, and nothing else.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from blockmgr import Admission, BlockManager, OutOfBlocksError, StaleMatchError, StepError
from tests.groups.adapter import Running
from tests.groups.world import FULL, STATE, World
from tests.specification.layers import ChunkedAttention, Kind, SlidingWindow

pytestmark = pytest.mark.parametrize("world_of", [BlockManager], indirect=True)
SIZE = 4
LAYOUTS: tuple[tuple[Kind, ...], ...] = (
    (FULL, SlidingWindow(5)),
    (FULL, SlidingWindow(6), SlidingWindow(1)),
    (FULL, ChunkedAttention(8)),
    (FULL, STATE),
    (FULL, SlidingWindow(9), STATE),
)


class Loading(World):
    """A world with sequences whose first tokens come from elsewhere."""

    def __init__(self, num_blocks: int, *kinds: Kind, **options: Any) -> None:
        super().__init__(num_blocks, SIZE, *kinds, **options)
        self.loads: dict[int, int] = {}

    def begin(self, tokens: list[int], loaded: int) -> int:
        """Admits a prompt; its load is begun and not done."""
        handle = int(self.manager.core.admit(tokens, num_loaded_tokens=loaded))
        self.manager.seqs[handle] = seq = Running(self.manager, handle, b"", list(tokens))
        seq.settled_before = seq.computed
        if loaded > seq.cached:
            self.loads[handle] = min(loaded, len(tokens) - 1)
        return handle

    def fill(self, handle: int) -> None:
        """The load writes what the groups have blocks for; before, it writes something else."""
        stop = self.loads[handle]
        work = self.work(handle, self.manager.seqs[handle].computed, stop)
        for group, kind in enumerate(self.manager.kinds):
            if kind == STATE:
                self.memory._advance(group, self.work(handle, 0, stop))
                continue
            slots, names = self.memory._written(group, work)
            there = slots >= self.memory.first_slot
            self.memory.cells[slots[there]] = names[there]

    def finish(self, handle: int) -> None:
        self.fill(handle)
        self.manager.commit(handle, self.loads.pop(handle))
        assert not self.manager.violations()


def test_a_window_has_blocks_for_what_is_read_behind_a_load_alone() -> None:
    loading = Loading(40, FULL, SlidingWindow(5))
    handle = loading.begin(list(range(30)), 24)
    full, window = loading.manager.tables(handle)
    assert all(full)
    assert [bool(block) for block in window] == [False] * 5 + [True] * 3
    assert loading.manager.core.num_available == 40 - 8 - 3
    loading.finish(handle)
    loading.compute(handle, 30)
    loading.manager.free(handle)
    # What was loaded is found, where every group has what is read there.
    assert loading.manager.match([*range(26), 90]) == 24
    assert loading.manager.match([*range(10), 90]) == 0
    assert loading.serve([*range(26), 90]) == 24


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_load_is_in_memory_before_the_forward_of_its_step(layout: tuple[Kind, ...]) -> None:
    loading = Loading(60, *layout)
    loading.manager.early = True
    handle = loading.begin(list(range(30)), 24)
    loading.finish(handle)
    core = loading.manager.core
    core.check_invariants()
    assert core.sequence(handle).num_computed_tokens == 24
    (fork,) = core.fork(handle)  # there is nothing that this step's forward has yet to write
    core.free(handle)
    core.free(fork)
    core.check_invariants()  # none of their blocks waits for the forward


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_load_does_not_wait_for_what_is_found_before_it(layout: tuple[Kind, ...]) -> None:
    loading = Loading(80, *layout)
    loading.manager.early = True
    core = loading.manager.core
    first = core.admit(list(range(9)))
    core.commit(first, 8)  # this step's forward writes it
    handle = loading.begin([*range(8), *range(50, 65)], 22)
    assert loading.manager.seqs[handle].cached == 8
    loading.finish(handle)
    if STATE not in layout:  # a state is nowhere until the forward
        (fork,) = loading.manager.fork(handle)
        loading.manager.append(fork, [91])  # copies a block of which the load wrote a part
        assert len(loading.manager.pending) == len(layout)
        loading.manager.free(fork)
    core.free(handle)
    core.check_invariants()  # none of the loaded blocks waits for the forward


def behind_promises(layout: tuple[Kind, ...], **options: Any) -> tuple[Loading, int]:
    """A load of 22 tokens, of which this step's forward writes the first 8."""
    loading = Loading(80, *layout, **options)
    loading.manager.early = True
    first = loading.manager.admit(list(range(9)))
    loading.manager.commit(first, 8)
    handle = loading.begin([*range(8), *range(50, 66)], 22)
    loading.finish(handle)
    loading.manager.seqs[handle].settled_before = 22  # the load is in memory
    return loading, handle


@pytest.mark.parametrize("layout", LAYOUTS[:3])
def test_a_fork_of_what_was_truncated_copies_a_block_behind_promises(
    layout: tuple[Kind, ...],
) -> None:
    loading, handle = behind_promises(layout)
    loading.manager.truncate(handle, 21)
    (fork,) = loading.manager.fork(handle)
    loading.manager.append(fork, [91])
    assert loading.manager.seqs[fork].computed == 21
    assert len(loading.manager.pending) == len(layout)
    loading.step()
    loading.compute(fork, 22)


@pytest.mark.parametrize("layout", LAYOUTS[:3])
def test_a_prompt_finds_a_part_of_a_block_behind_promises(layout: tuple[Kind, ...]) -> None:
    loading, handle = behind_promises(layout, min_partial_tokens=1)
    loading.manager.commit(handle, 24)  # the forward writes the last two tokens of the block
    prompt = loading.manager.admit([*range(8), *range(50, 64), 90])
    assert loading.manager.seqs[prompt].cached == 22
    (fork,) = loading.manager.fork(prompt)
    loading.manager.append(fork, [91])
    assert loading.manager.seqs[fork].computed == 22


def test_an_admission_counts_what_a_load_saves() -> None:
    loading = Loading(12, FULL, SlidingWindow(5))
    core, tokens = loading.manager.core, list(range(30))
    assert core.can_admit(tokens) is Admission.NEVER
    assert core.can_admit(tokens, num_loaded_tokens=24) is Admission.NOW
    loading.finish(loading.begin(tokens, 24))
    assert core.num_available == 1
    with pytest.raises(OutOfBlocksError):
        core.admit([5] * 9, num_loaded_tokens=8)


def test_a_match_counts_what_need_not_be_loaded() -> None:
    loading = Loading(18, FULL, SlidingWindow(5))
    core, prompt = loading.manager.core, list(range(14))
    handle = core.admit(list(range(24)), num_slots=8)
    for stop in (8, 24):
        core.reserve(handle, stop)
        core.copies_applied(core.take_copies().ticket)
        core.commit(handle, stop)
        if stop == 8:
            match = core.match(prompt)
    core.free(core.admit([9] * 20))  # evicts the blocks of the window before its last ones
    assert (match.num_cached_tokens, core.match(prompt).num_cached_tokens) == (8, 0)
    with pytest.raises(StaleMatchError):
        core.admit(prompt, match=match)
    second = core.admit(prompt, match=match, num_loaded_tokens=13)
    assert core.sequence(second).num_cached_tokens == 8


def test_of_a_prompt_that_is_loaded_as_a_whole_the_last_token_is_computed() -> None:
    loading = Loading(40, FULL, SlidingWindow(5))
    handle = loading.begin(list(range(24)), 24)
    assert [bool(block) for block in loading.manager.tables(handle)[1]] == [False] * 4 + [True] * 2
    loading.finish(handle)
    loading.compute(handle, 24)


@pytest.mark.parametrize("kinds", LAYOUTS)
def test_nothing_but_the_load_goes_on(kinds: tuple[Kind, ...]) -> None:
    loading = Loading(60, *kinds)
    core = loading.manager.core
    handle = loading.begin(list(range(30)), 24)
    before = core.stats()
    for call in (
        lambda: core.decode([handle], [1]),
        lambda: core.fork(handle, 1),
        lambda: core.truncate(handle, 20),
        *([lambda: core.cache_state(handle)] if STATE in kinds else []),
    ):
        with pytest.raises(StepError, match=f"{handle}: its first 24 tokens are being loaded"):
            call()
    with pytest.raises(ValueError, match="num_computed_tokens must be at least 24, got 20"):
        core.commit(handle, 20)
    assert core.stats() == before
    core.append(handle, [7])
    core.reserve(handle, 35)
    loading.manager.seqs[handle].tokens.append(7)
    loading.finish(handle)
    loading.compute(handle, 31)


@pytest.mark.parametrize("end", ["free", "preempt"])
@pytest.mark.parametrize("kinds", LAYOUTS)
def test_a_load_that_fails_leaves_nothing_behind(kinds: tuple[Kind, ...], end: str) -> None:
    loading = Loading(60, *kinds, min_partial_tokens=1)
    loading.serve(list(range(8)), 8)
    handle = loading.begin([*range(8), *range(50, 70)], 20)
    loading.fill(handle)  # all but the last bytes arrived
    getattr(loading.manager, end)(handle)
    assert not loading.manager.violations()
    assert loading.manager.match([*range(8), *range(50, 70)]) <= 8
    if end == "preempt":
        loading.manager.resume(handle)
        loading.compute(handle, 28)
    loading.serve([*range(8), *range(50, 75)])


@pytest.mark.parametrize(
    ("loaded", "kind", "said"),
    [
        (-1, ValueError, "num_loaded_tokens must be at least 0, got -1"),
        (31, ValueError, r"num_loaded_tokens must be in \[0, 30\], got 31"),
        (2.0, TypeError, "num_loaded_tokens"),
    ],
)
def test_a_wrong_number_is_refused(loaded: Any, kind: type[Exception], said: str) -> None:
    core = Loading(40, FULL, SlidingWindow(5)).manager.core
    for call in (core.admit, core.can_admit):
        with pytest.raises(kind, match=said):
            call(list(range(30)), num_loaded_tokens=loaded)
    with pytest.raises(ValueError, match=r"num_loaded_tokens must be in \[0, 8\], got 12"):
        core.admit(list(range(30)), num_slots=8, num_loaded_tokens=12)
    assert core.num_available == 40


def test_with_full_attention_alone_it_makes_no_difference() -> None:
    core = BlockManager(num_blocks=20, block_size=SIZE)
    handle = core.admit(list(range(30)), num_loaded_tokens=24)
    core.commit(handle, 12)  # a load of which a part arrived
    core.commit(handle, 30)
    assert core.match(list(range(31))).num_cached_tokens == 28


def play(seed: int, ops: int) -> tuple[int, int]:
    """A random world; tokens found and tokens loaded."""
    rng = random.Random(seed)
    kinds = LAYOUTS[seed % len(LAYOUTS)]
    loading = Loading(rng.randint(40, 90), *kinds, min_partial_tokens=rng.choice([0, 1]))
    manager, core = loading.manager, loading.manager.core
    stems = [[rng.randrange(3) for _ in range(40)] for _ in range(3)]
    found = loaded = 0
    for _ in range(ops):
        handles = list(manager.seqs)
        handle = rng.choice(handles) if handles else -1
        seq = manager.seqs.get(handle)
        op = rng.choice(["admit", "admit", "finish", "finish", "compute", "free", "preempt"])
        if op == "admit" and len(handles) < 5:
            stem = rng.choice(stems)
            tokens = [*stem[: rng.randint(4, 40)], rng.randrange(3), rng.randrange(3)]
            load = rng.randrange(len(tokens) + 1) if rng.random() < 0.7 else 0
            try:
                handle = loading.begin(tokens, load)
            except OutOfBlocksError:
                continue
            found += manager.seqs[handle].cached
            loaded += loading.loads.get(handle, 0)
        elif seq is None:
            continue
        elif op == "free" or seq.preempted:
            loading.loads.pop(handle, None)
            manager.free(handle)
        elif op == "preempt":
            loading.loads.pop(handle, None)
            manager.preempt(handle)
            if rng.random() < 0.7 and core.num_available > 60:
                manager.resume(handle)
        elif handle in loading.loads:
            if op == "finish":
                loading.finish(handle)
            else:
                loading.fill(handle)
                loading.launch()
        elif seq.computed < len(seq.tokens):
            loading.compute(handle, rng.randint(seq.computed + 1, len(seq.tokens)))
        assert not manager.violations()
    return found, loaded


def test_random_worlds_read_nothing_of_others() -> None:
    totals = np.sum([play(seed, 60) for seed in range(60)], axis=0)
    assert totals.min() > 2000
