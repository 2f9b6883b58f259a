"""Every wrong call, row by row: the exception, the argument it names, and nothing changed.

One table, so that a reader sees at once what is refused and how. What kinds of values count as
tokens, handles or options is spelled out in ``test_bad_input``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest

from blockmgr import (
    BlockManager,
    BlockStateError,
    CopyPlan,
    LayoutError,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    ReentrancyError,
    SequenceStateError,
    StepError,
    TicketError,
    UnknownSequenceError,
)
from blockmgr.pool import BlockPool
from tests.conftest import MakeManager
from tests.unit.snapshot import snapshot

PROMPT: Final = [1, 2, 3, 4, 5, 6]


@dataclass
class World:
    """A manager with some of everything, and names for what wrong calls are made with."""

    manager: BlockManager
    running: int
    preempted: int
    freed: int
    foreign: int
    plan: CopyPlan


@pytest.fixture
def world(make_manager: MakeManager) -> World:
    manager = make_manager(12, 4, max_seqs=4, steps_in_flight=1)
    freed = manager.admit([9] * 5)
    manager.free(freed)
    running = manager.admit(PROMPT)
    manager.commit(running, 6)
    preempted = manager.admit([7] * 6)
    manager.preempt(preempted)
    [child] = manager.fork(running)
    manager.append(child, [8])
    plan = manager.take_copies()
    foreign = BlockManager(8, 4).admit([1])
    return World(manager, running, preempted, freed, foreign, plan)


def register(**wrong: int) -> object:
    """One segment of four blocks of sixteen bytes, but for what is wrong with it."""
    torch = pytest.importorskip("torch", reason="blockmgr.kv needs torch")
    from blockmgr.kv import KVBlocks, Segment

    tensor = torch.zeros(64, dtype=torch.uint8)
    sizes = {"block_stride": 16, "num_rows": 1, "row_stride": 16, "row_bytes": 16, "num_blocks": 4}
    return KVBlocks([Segment(name="pool", tensor=tensor, **{**sizes, **wrong})], block_size=4)


Wrong = Callable[[World], Any]
ROWS: list[tuple[str, Wrong, type[Exception], str]] = [
    # Admission.
    ("admit: no tokens", lambda w: w.manager.admit([]), ValueError, "tokens"),
    ("admit: negative token", lambda w: w.manager.admit([-1]), ValueError, "tokens"),
    ("admit: token of 33 bits", lambda w: w.manager.admit([2**32]), ValueError, "tokens"),
    ("admit: float token", lambda w: w.manager.admit([1.0]), TypeError, "tokens"),
    ("admit: bool token", lambda w: w.manager.admit([True]), TypeError, "tokens"),
    ("admit: 2-D", lambda w: w.manager.admit(np.ones((2, 2), int)), ValueError, "tokens"),
    ("admit: strided", lambda w: w.manager.admit(np.arange(8)[::2]), ValueError, "tokens"),
    ("admit: too few blocks", lambda w: w.manager.admit(range(44)), OutOfBlocksError, "need "),
    ("admit: never", lambda w: w.manager.admit(range(49)), NeverFitsError, "49 tokens"),
    ("admit: no slots", lambda w: w.manager.admit([1], num_slots=0), ValueError, "num_slots"),
    ("admit: str namespace", lambda w: w.manager.admit([1], namespace="t"), TypeError, "namespace"),
    (
        "admit: long namespace",
        lambda w: w.manager.admit([1], namespace=bytes(1025)),
        ValueError,
        "namespace",
    ),
    ("admit: extras list", lambda w: w.manager.admit([1], extras=[b"x"]), TypeError, "extras"),
    ("admit: str extras", lambda w: w.manager.admit([1], extras={0: "x"}), TypeError, "extras"),
    ("admit: no extras", lambda w: w.manager.admit([1], extras={0: b""}), ValueError, "extras"),
    (
        "admit: long extras",
        lambda w: w.manager.admit([1], extras={0: bytes(1025)}),
        ValueError,
        "extras",
    ),
    (
        "admit: extras of -1",
        lambda w: w.manager.admit([1], extras={-1: b"x"}),
        ValueError,
        "extras",
    ),
    ("match: no tokens", lambda w: w.manager.match([]), ValueError, "tokens"),
    ("match: too long", lambda w: w.manager.match(range(49)), NeverFitsError, "49 tokens"),
    ("can_admit: no tokens", lambda w: w.manager.can_admit([]), ValueError, "tokens"),
    # Growth.
    ("append: freed", lambda w: w.manager.append(w.freed, [1]), UnknownSequenceError, "handle"),
    ("append: foreign", lambda w: w.manager.append(w.foreign, [1]), UnknownSequenceError, "handle"),
    ("append: unknown", lambda w: w.manager.append(3, [1]), UnknownSequenceError, "3"),
    ("append: negative", lambda w: w.manager.append(-1, [1]), UnknownSequenceError, "-1"),
    ("append: float", lambda w: w.manager.append(1.0, [1]), TypeError, "handle"),
    ("append: no tokens", lambda w: w.manager.append(w.running, []), ValueError, "tokens"),
    (
        "append: preempted",
        lambda w: w.manager.append(w.preempted, [1]),
        SequenceStateError,
        "preempted",
    ),
    (
        "append: too few blocks",
        lambda w: w.manager.append(w.running, range(40)),
        OutOfBlocksError,
        "need ",
    ),
    ("append: never", lambda w: w.manager.append(w.running, range(50)), NeverFitsError, "56"),
    ("reserve: none", lambda w: w.manager.reserve(w.running, 0), ValueError, "num_slots"),
    ("reserve: freed", lambda w: w.manager.reserve(w.freed, 8), UnknownSequenceError, "handle"),
    ("reserve: never", lambda w: w.manager.reserve(w.running, 49), NeverFitsError, "49"),
    ("commit: back", lambda w: w.manager.commit(w.running, 5), ValueError, "num_computed_tokens"),
    ("commit: ahead", lambda w: w.manager.commit(w.running, 7), ValueError, "num_computed_tokens"),
    ("commit: freed", lambda w: w.manager.commit(w.freed, 1), UnknownSequenceError, "handle"),
    ("commit: preempted", lambda w: w.manager.commit(w.preempted, 1), SequenceStateError, "resume"),
    ("truncate: 0", lambda w: w.manager.truncate(w.running, 0), ValueError, "num_tokens"),
    ("truncate: more", lambda w: w.manager.truncate(w.running, 7), ValueError, "num_tokens"),
    ("truncate: freed", lambda w: w.manager.truncate(w.freed, 1), UnknownSequenceError, "handle"),
    ("decode: twice", lambda w: w.manager.decode([w.running] * 2, [1, 2]), ValueError, "handles"),
    ("decode: uneven", lambda w: w.manager.decode([w.running], [1, 2]), ValueError, "tokens"),
    ("decode: freed", lambda w: w.manager.decode([w.freed], [1]), UnknownSequenceError, "handle"),
    # Families.
    ("fork: none", lambda w: w.manager.fork(w.running, 0), ValueError, "n must"),
    ("fork: too many", lambda w: w.manager.fork(w.running, 2), OutOfSequencesError, "need "),
    ("fork: freed", lambda w: w.manager.fork(w.freed), UnknownSequenceError, "handle"),
    ("fork: preempted", lambda w: w.manager.fork(w.preempted), SequenceStateError, "preempted"),
    ("reparent: index", lambda w: w.manager.reparent([w.running], [1]), ValueError, "parents"),
    ("reparent: uneven", lambda w: w.manager.reparent([w.running], []), ValueError, "parents"),
    (
        "reparent: freed",
        lambda w: w.manager.reparent([w.freed], [0]),
        UnknownSequenceError,
        "handle",
    ),
    # Release.
    ("free: twice", lambda w: w.manager.free(w.freed), UnknownSequenceError, "handle"),
    ("free: foreign", lambda w: w.manager.free(w.foreign), UnknownSequenceError, "handle"),
    ("preempt: twice", lambda w: w.manager.preempt(w.preempted), SequenceStateError, "preempted"),
    ("preempt: freed", lambda w: w.manager.preempt(w.freed), UnknownSequenceError, "handle"),
    ("resume: running", lambda w: w.manager.resume(w.running), SequenceStateError, "running"),
    ("resume: freed", lambda w: w.manager.resume(w.freed), UnknownSequenceError, "handle"),
    # Copies and steps.
    ("take_copies: open", lambda w: w.manager.take_copies(), StepError, "ticket"),
    ("applied: unknown", lambda w: w.manager.copies_applied(99), TicketError, "99"),
    ("aborted: unknown", lambda w: w.manager.copies_aborted(99), TicketError, "99"),
    ("applied: float", lambda w: w.manager.copies_applied(1.0), TypeError, "ticket"),
    ("complete: unknown", lambda w: w.manager.complete(99), StepError, "99"),
    # Reading.
    (
        "slots: freed",
        lambda w: w.manager.slot_mapping(w.freed, 0, 1),
        UnknownSequenceError,
        "handle",
    ),
    ("slots: backwards", lambda w: w.manager.slot_mapping(w.running, 2, 1), ValueError, "start"),
    ("slots: beyond", lambda w: w.manager.slot_mapping(w.running, 0, 9), ValueError, "stop"),
    ("row: freed", lambda w: w.manager.row(w.freed), UnknownSequenceError, "handle"),
    ("sequence: freed", lambda w: w.manager.sequence(w.freed), UnknownSequenceError, "handle"),
    ("debug: 3", lambda w: setattr(w.manager, "debug", 3), ValueError, "debug"),
    # Other objects, which must leave this manager alone as well.
    ("manager: no blocks", lambda _: BlockManager(0, 4), ValueError, "num_blocks"),
    ("manager: bool", lambda _: BlockManager(True, 4), TypeError, "num_blocks"),
    ("manager: float", lambda _: BlockManager(8.0, 4), TypeError, "num_blocks"),
    ("manager: too many", lambda _: BlockManager(2**31, 4), ValueError, "num_blocks"),
    ("manager: block of 0", lambda _: BlockManager(8, 0), ValueError, "block_size"),
    ("pool: released twice", lambda _: BlockPool(4, 4).release([0]), BlockStateError, "0"),
    ("pool: negative block", lambda _: BlockPool(4, 4).acquire([-1]), ValueError, "blocks"),
    ("pool: beyond", lambda _: BlockPool(4, 4).acquire([4]), ValueError, "blocks"),
    (
        "pool: null block",
        lambda _: BlockPool(4, 4, null_block=True).acquire([0]),
        ValueError,
        "blocks",
    ),
    ("segments: no row", lambda _: register(num_rows=0), LayoutError, "num_rows"),
    ("segments: past the storage", lambda _: register(num_blocks=9), LayoutError, "pool"),
    (
        "segments: blocks that overlap",
        lambda _: register(block_stride=8),
        LayoutError,
        "pool",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "names"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_a_wrong_call_is_refused_and_changes_nothing(
    world: World, call: Wrong, error: type[Exception], names: str
) -> None:
    before = snapshot(world.manager)
    with pytest.raises(error) as caught:
        call(world)
    assert type(caught.value) is error
    assert names in str(caught.value)
    assert snapshot(world.manager) == before
    world.manager.check_invariants()


def test_the_same_ticket_twice_is_refused(world: World) -> None:
    world.manager.copies_applied(world.plan.ticket)
    before = snapshot(world.manager)
    for resolve in (world.manager.copies_applied, world.manager.copies_aborted):
        with pytest.raises(TicketError, match=str(world.plan.ticket)):
            resolve(world.plan.ticket)
    assert snapshot(world.manager) == before


def test_a_call_from_inside_a_call_is_refused() -> None:
    caught: list[BaseException] = []

    def digest(message: bytes) -> bytes:
        if managers:
            try:
                managers[0].stats()
            except ReentrancyError as error:
                caught.append(error)
        return bytes(16)

    managers: list[BlockManager] = []
    managers.append(BlockManager(8, 2, digest=digest))
    managers[0].commit(managers[0].admit([1, 2, 3]), 3)
    assert caught
    managers[0].check_invariants()
