"""Rules for every manager: cache on or off, each dedup policy, digest and eviction order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    Admission,
    BlockManager,
    NeverFitsError,
    OutOfBlocksError,
    SequenceStateError,
    TicketError,
    UnknownSequenceError,
)
from blockmgr.config import EVICTION_POLICIES
from tests.strategies import DIGESTS
from tests.stress.world import World
from tests.unit.engine import ids, serve, step
from tests.unit.snapshot import refused

KINDS: dict[str, dict[str, Any]] = {
    f"{cache}, {dedup}, {digest}, {reuse}": {
        "prefix_caching": cache == "cache",
        "dedup": dedup,
        "digest": DIGESTS[digest],
        "min_partial_tokens": 1 if reuse == "tokens" else 0,
    }
    for cache in ("cache", "no cache")
    for dedup in ("remap", "append_only")
    for digest in DIGESTS
    for reuse in ("blocks", "tokens")
}
KINDS |= {
    f"evicting by {eviction}, {reuse}": {
        "eviction": eviction,
        "min_partial_tokens": 1 if reuse == "tokens" else 0,
    }
    for eviction in EVICTION_POLICIES[1:]
    for reuse in ("blocks", "tokens")
}

Make = Callable[..., BlockManager]


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def make(request: pytest.FixtureRequest) -> Make:
    def build(num_blocks: int = 12, block_size: int = 2, **options: Any) -> BlockManager:
        return BlockManager(num_blocks, block_size, **{**request.param, **options})

    return build


def test_a_life_from_admission_to_the_end(make: Make) -> None:
    manager = make()
    assert manager.can_admit([1] * 5) is Admission.NOW
    with manager.sequence(manager.admit([1] * 5)) as seq:
        assert seq.num_slots == 6
        step(manager)
        assert seq.num_computed_tokens == 5
        slots = manager.decode([seq.handle], [2])
        assert slots.tolist() == seq.slot_mapping(5, 6).tolist()
        [child] = seq.fork()
        child.append([3])
        step(manager)
        assert child.tokens.tolist() == [1] * 5 + [2, 3]
        child.truncate(2)
        child.preempt()
        child.resume()
        assert child.tokens.tolist() == [1, 1]
        child.free()
    manager.check_invariants()
    assert manager.num_available == 12
    assert manager.handles() == []


def test_a_prompt_reads_back_right_whatever_was_found(make: Make, request: Any) -> None:
    kind = KINDS[request.node.callspec.id]
    config = {"num_blocks": 40, "block_size": 2, **kind}
    world = World(config, manager=BlockManager)
    for prompt in ([1, 1, 2], [1, 1, 2, 3], [1, 1], [1, 1, 2, 3, 3, 3], [2, 1, 1]):
        entry = world.admit(prompt)
        assert entry is not None
        world.step()
        for child in world.fork(entry):
            world.append(child, [1])
        world.append(entry, [2])
        world.step()
        world.free(entry)
    for entry in list(world.entries):
        world.free(entry)
    assert world.manager.num_available == 40


def test_shortage_is_an_error_that_changes_nothing(make: Make) -> None:
    manager = make(3, 2)
    handle = manager.admit([1] * 4)
    with refused(manager, OutOfBlocksError):
        manager.admit([2] * 4)
    manager.append(handle, [1])
    with refused(manager, OutOfBlocksError):
        manager.admit([2])
    with refused(manager, NeverFitsError):
        manager.append(handle, [1] * 2)


def test_wrong_handles_and_states_are_refused(make: Make) -> None:
    manager = make()
    handle = manager.admit([1])
    manager.preempt(handle)
    with refused(manager, SequenceStateError):
        manager.append(handle, [1])
    manager.free(handle)
    with refused(manager, UnknownSequenceError):
        manager.free(handle)
    with refused(manager, TicketError):
        manager.copies_applied(1)


def test_forked_tails_are_copied_on_write(make: Make) -> None:
    manager = make(block_size=4)
    parent = serve(manager, [1] * 6)
    [child] = parent.fork()
    child.append([2])
    assert [tuple(copy) for copy in manager.take_copies()] == [(ids(parent)[1], ids(child)[1], 2)]


def test_tables_and_lengths_are_live_arrays(make: Make) -> None:
    manager = make(max_seqs=2, max_blocks_per_seq=3)
    tables, lengths = manager.block_tables, manager.seq_lens
    seq = serve(manager, [1] * 5)
    assert tables.shape == (2, 3)
    assert tables[seq.row].tolist() == ids(seq)
    assert lengths[seq.row] == 5
    seq.free()
    assert not np.any(tables)
    assert not np.any(lengths)


def test_counts_do_not_depend_on_the_digest(make: Make, request: Any) -> None:
    """The digest only finds candidates: every counter is the same under each of them."""
    name = request.node.callspec.id
    counts = []
    for digest in DIGESTS.values():
        manager = BlockManager(12, 2, **{**KINDS[name], "digest": digest})
        for turn in range(1, 8):
            serve(manager, [1, 2, 3, 4][: turn % 4 + 1] * 2)
            manager.free(manager.handles()[0])
        counts.append(manager.stats())
    assert counts[0] == counts[1] == counts[2]
