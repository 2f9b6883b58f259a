"""Every wrong call, row by row: the exception, the argument it names, and nothing changed.

One table, so that a reader sees what is refused and how. ``test_bad_input`` has wrong tokens and
wrong options of a manager, and ``tests/ports/test_pool_bad_input`` the calls of a pool.
``tests/arguments`` tests which kinds of values count as tokens, handles or options.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest

from blockmgr import (
    BlockManager,
    BlockStateError,
    CopyPlan,
    ForkError,
    LayoutError,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    PinBudgetError,
    Priority,
    SequenceStateError,
    StepError,
    TicketError,
    UnknownPinError,
    UnknownSequenceError,
    _core,
)
from blockmgr.pool import BlockPool
from tests.conftest import MakeManager
from tests.unit.snapshot import snapshot

PROMPT: Final = [1, 2, 3, 4, 5, 6]


@dataclass
class World:
    """A manager with objects of every kind, and names for arguments of wrong calls."""

    manager: BlockManager
    running: int
    preempted: int
    freed: int
    foreign: int
    plan: CopyPlan
    pin: int
    spent_pin: int
    plain: BlockManager


@pytest.fixture
def world(make_manager: MakeManager) -> World:
    manager = make_manager(
        12, 4, max_seqs=4, steps_in_flight=1, retention=True, max_pinned_blocks=1
    )
    manager.set_time(5)
    freed = manager.admit([9] * 5)
    manager.free(freed)
    running = manager.admit(PROMPT)
    manager.commit(running, 6)
    preempted = manager.admit([7] * 6)
    manager.preempt(preempted)
    [child] = manager.fork(running)
    manager.append(child, [8])
    plan = manager.take_copies()
    plain = make_manager(8, 4)
    foreign = plain.admit([1])
    spent_pin = manager.pin(PROMPT)
    manager.unpin(spent_pin)
    pin = manager.pin(PROMPT)
    return World(
        manager, running, preempted, freed, foreign, plan, pin=pin, spent_pin=spent_pin, plain=plain
    )


def retain(world: World, start: Any = 0, stop: Any = 4, **said: Any) -> int:
    """A valid retain of the running sequence of 6 tokens, except for the given arguments."""
    return world.manager.retain(world.running, start, stop, **{"priority": Priority.HIGH, **said})


def retain_prefix(world: World, tokens: Any = PROMPT, **said: Any) -> int:
    """A valid retain of a prompt with one cached block, except for the given arguments."""
    return world.manager.retain_prefix(tokens, **{"priority": Priority.HIGH, **said})


def uncached() -> BlockManager:
    return BlockManager(8, 4, prefix_caching=False)


def forked_around_a_call() -> None:
    """Forks while another thread is inside a call; raises the error of the child's call."""
    if not hasattr(os, "fork"):
        pytest.skip("only POSIX systems fork")
    inside, go = threading.Event(), threading.Event()

    def digest(message: bytes) -> bytes:
        if b"tenant" in message:  # not the call that determines the length of digests
            inside.set()
            go.wait(60)
        return bytes(16)

    manager = BlockManager(8, 2, digest=digest)
    worker = threading.Thread(
        target=manager.admit, args=([1, 2, 3],), kwargs={"namespace": b"tenant"}
    )
    worker.start()
    inside.wait()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from 3.12 on
        child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            manager.stats()
        except ForkError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    go.set()
    worker.join()
    os.waitpid(child, 0)
    said = os.read(reading, 1000).decode()
    os.close(reading)
    if said:
        raise ForkError(said)


def register(**wrong: int) -> object:
    """One segment of four blocks of sixteen bytes, except for the given arguments."""
    torch = pytest.importorskip("torch", reason="blockmgr.kv needs torch")
    from blockmgr.kv import KVBlocks, Segment

    tensor = torch.zeros(64, dtype=torch.uint8)
    sizes = {"block_stride": 16, "num_rows": 1, "row_stride": 16, "row_bytes": 16, "num_blocks": 4}
    return KVBlocks([Segment(name="pool", tensor=tensor, **{**sizes, **wrong})], block_size=4)


class Odd(list[int]):
    """A list whose iterator yields more than its items; only its items count."""

    def __iter__(self) -> Any:
        return iter([0] * 100_000)


class Short:
    """A sequence that ends before its length."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        return [1, 2][index]


class Interrupted(Short):
    """A sequence whose reader is interrupted."""

    def __getitem__(self, index: int) -> int:
        raise KeyboardInterrupt


def pack(start: int, num_rows: int) -> int:
    """Packs the rest of a list of one copy, from an index on, into a number of rows."""
    checker = _core.CopyChecker(4, 4)
    checker.check([1], [2], None, np.zeros((2, 3), np.int32))
    return checker.pack(start, np.zeros((num_rows, 3), np.int32))


Wrong = Callable[[World], Any]
ROWS: list[tuple[str, Wrong, type[BaseException], str]] = [
    # Admission.
    ("admit: float token", lambda w: w.manager.admit([1.0]), TypeError, "tokens"),
    ("admit: bool token", lambda w: w.manager.admit([True]), TypeError, "tokens"),
    ("admit: 2-D", lambda w: w.manager.admit(np.ones((2, 2), int)), ValueError, "tokens"),
    ("admit: bytes", lambda w: w.manager.admit(b"text"), TypeError, "got bytes"),
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
    # Containers that misbehave; tests/arguments has every kind of them.
    (
        "admit: odd list",
        lambda w: w.manager.admit(Odd(range(49))),
        NeverFitsError,
        "49 tokens",
    ),
    ("append: odd list", lambda w: w.manager.append(w.running, Odd()), ValueError, "tokens"),
    ("decode: odd list", lambda w: w.manager.decode(Odd([3]), Odd([1])), UnknownSequenceError, "3"),
    ("admit: short", lambda w: w.manager.admit(Short()), ValueError, "ends after 2"),
    ("decode: short", lambda w: w.manager.decode(Short(), [1]), ValueError, "handles"),
    ("admit: interrupted", lambda w: w.manager.admit(Interrupted()), KeyboardInterrupt, ""),
    ("pool: odd list", lambda _: BlockPool(4, 4).release(Odd([0])), BlockStateError, "0"),
    # Lengths are checked first, so an invalid number at the end is not read.
    ("admit: huge", lambda w: w.manager.admit(range(-1, 10**12)), NeverFitsError, "slots for 1000"),
    (
        "append: huge",
        lambda w: w.manager.append(w.running, range(-1, 10**12)),
        NeverFitsError,
        "slots for 1000",
    ),
    ("decode: huge", lambda w: w.manager.decode(range(10**12), [1]), ValueError, "at most 4"),
    ("fork: huge", lambda w: w.manager.fork(w.running, 2**62), OutOfSequencesError, str(2**62)),
    ("pack: from -1", lambda _: pack(-1, 2), ValueError, "start"),
    ("pack: from past the end", lambda _: pack(2, 2), ValueError, "start"),
    ("pack: no row", lambda _: pack(0, 0), TypeError, "out"),
    ("admit: read_cache of 1", lambda w: w.manager.admit([1], read_cache=1), TypeError, "read_ca"),
    (
        "can_admit: no answer",
        lambda w: w.manager.can_admit([1], read_cache=None),
        TypeError,
        "read",
    ),
    ("resume: str", lambda w: w.manager.resume(w.preempted, read_cache="no"), TypeError, "read_ca"),
    # Growth.
    ("append: freed", lambda w: w.manager.append(w.freed, [1]), UnknownSequenceError, "handle"),
    ("append: foreign", lambda w: w.manager.append(w.foreign, [1]), UnknownSequenceError, "handle"),
    ("append: unknown", lambda w: w.manager.append(3, [1]), UnknownSequenceError, "3"),
    ("append: negative", lambda w: w.manager.append(-1, [1]), UnknownSequenceError, "-1"),
    ("append: float", lambda w: w.manager.append(1.0, [1]), TypeError, "handle"),
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
    ("can_admit: no slots", lambda w: w.manager.can_admit([1], num_slots=0), ValueError, "num_slo"),
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
    ("decode: no token", lambda w: w.manager.decode([w.running], []), ValueError, "tokens"),
    ("decode: negative token", lambda w: w.manager.decode([w.running], [-1]), ValueError, "token"),
    ("decode: large token", lambda w: w.manager.decode([w.running], [2**32]), ValueError, "token"),
    ("decode: freed", lambda w: w.manager.decode([w.freed], [1]), UnknownSequenceError, "handle"),
    # Families.
    ("fork: none", lambda w: w.manager.fork(w.running, 0), ValueError, "n must"),
    ("fork: too many", lambda w: w.manager.fork(w.running, 2), OutOfSequencesError, "need "),
    ("fork: freed", lambda w: w.manager.fork(w.freed), UnknownSequenceError, "handle"),
    ("fork: preempted", lambda w: w.manager.fork(w.preempted), SequenceStateError, "preempted"),
    ("reparent: twice", lambda w: w.manager.reparent([w.running] * 2, [0, 1]), ValueError, "disti"),
    ("reparent: negative", lambda w: w.manager.reparent([w.running], [-1]), ValueError, "parents"),
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
    ("resume: no slots", lambda w: w.manager.resume(w.preempted, num_slots=0), ValueError, "slots"),
    ("resume: freed", lambda w: w.manager.resume(w.freed), UnknownSequenceError, "handle"),
    (
        "resume_together: running",
        lambda w: w.manager.resume_together([w.preempted, w.running]),
        SequenceStateError,
        "running",
    ),
    (
        "resume_together: twice",
        lambda w: w.manager.resume_together([w.preempted, w.preempted]),
        ValueError,
        "handles",
    ),
    # Retention.
    ("free: hint of 1", lambda w: w.manager.free(w.running, expect_reuse=1), TypeError, "expect"),
    (
        "free: hint, freed",
        lambda w: w.manager.free(w.freed, expect_reuse=True),
        UnknownSequenceError,
        "handle",
    ),
    (
        "free: hint, no retention",
        lambda w: w.plain.free(w.foreign, expect_reuse=True),
        ValueError,
        "retention",
    ),
    ("retain: empty", lambda w: retain(w, 4, 4), ValueError, "start"),
    ("retain: negative", lambda w: retain(w, -1), ValueError, "start"),
    ("retain: beyond", lambda w: retain(w, 0, 7), ValueError, "6"),
    ("retain: float", lambda w: retain(w, 0.0), TypeError, "start"),
    ("retain: huge", lambda w: retain(w, 0, 2**80), ValueError, "stop"),
    ("retain: int", lambda w: retain(w, priority=3), TypeError, "priority"),
    ("retain: pinned", lambda w: retain(w, priority=Priority.PINNED), ValueError, "see pin"),
    ("retain: no time", lambda w: retain(w, ttl=0), ValueError, "ttl"),
    ("retain: time ago", lambda w: retain(w, ttl=-1.0), ValueError, "ttl"),
    ("retain: forever", lambda w: retain(w, ttl=float("inf")), ValueError, "ttl"),
    ("retain: no number", lambda w: retain(w, ttl=float("nan")), ValueError, "ttl"),
    ("retain: str", lambda w: retain(w, ttl="1"), TypeError, "ttl"),
    ("retain: bool", lambda w: retain(w, ttl=True), TypeError, "ttl"),
    ("retain: time of nothing", lambda w: retain(w, priority=None, ttl=1), ValueError, "ttl"),
    (
        "retain: freed",
        lambda w: w.manager.retain(w.freed, 0, 1, priority=None),
        UnknownSequenceError,
        "handle",
    ),
    (
        "retain: preempted",
        lambda w: w.manager.retain(w.preempted, 0, 1, priority=None),
        SequenceStateError,
        "preempted",
    ),
    (
        "retain: no retention",
        lambda w: w.plain.retain(w.foreign, 0, 1, priority=None),
        ValueError,
        "retention",
    ),
    ("retain_prefix: no tokens", lambda w: retain_prefix(w, []), ValueError, "tokens"),
    ("retain_prefix: too long", lambda w: retain_prefix(w, range(49)), NeverFitsError, "49"),
    ("retain_prefix: str", lambda w: retain_prefix(w, namespace="t"), TypeError, "namespace"),
    ("retain_prefix: int", lambda w: retain_prefix(w, priority=1), TypeError, "priority"),
    ("retain_prefix: no time", lambda w: retain_prefix(w, ttl=0), ValueError, "ttl"),
    (
        "retain_prefix: no retention",
        lambda w: w.plain.retain_prefix([1], priority=None),
        ValueError,
        "retention",
    ),
    ("pin: second", lambda w: w.manager.pin(PROMPT), PinBudgetError, "max_pinned_blocks"),
    ("pin: no tokens", lambda w: w.manager.pin([]), ValueError, "tokens"),
    ("pin: too long", lambda w: w.manager.pin(range(49)), NeverFitsError, "49 tokens"),
    ("pin: extras list", lambda w: w.manager.pin([1], extras=[b"x"]), TypeError, "extras"),
    ("pin: no retention", lambda w: w.plain.pin([1]), ValueError, "retention"),
    ("pin: neither", lambda w: w.plain.pin(range(10_000)), ValueError, "pin needs a manager with"),
    (
        "retain_prefix: neither retention nor room",
        lambda w: w.plain.retain_prefix(range(10_000), priority=Priority.HIGH),
        ValueError,
        "retain_prefix needs a manager with",
    ),
    ("unpin: twice", lambda w: w.manager.unpin(w.spent_pin), UnknownPinError, "pin"),
    ("unpin: unknown", lambda w: w.manager.unpin(77), UnknownPinError, "77"),
    ("unpin: negative", lambda w: w.manager.unpin(-1), UnknownPinError, "-1"),
    ("unpin: large", lambda w: w.manager.unpin(2**70), UnknownPinError, "pin of 71 bits"),
    ("unpin: float", lambda w: w.manager.unpin(1.0), TypeError, "pin"),
    ("unpin: no retention", lambda w: w.plain.unpin(w.pin), ValueError, "retention"),
    ("pinned: given back", lambda w: w.manager.pinned(w.spent_pin), UnknownPinError, "pin"),
    ("pinned: large", lambda w: w.manager.pinned(2**70), UnknownPinError, "pin of 71 bits"),
    ("pinned: no retention", lambda w: w.plain.pinned(w.pin), ValueError, "retention"),
    ("touch: no tokens", lambda w: w.manager.touch([]), ValueError, "tokens"),
    ("touch: too long", lambda w: w.manager.touch(range(49)), NeverFitsError, "49 tokens"),
    ("touch: str", lambda w: w.manager.touch([1], namespace="t"), TypeError, "namespace"),
    ("time: back", lambda w: w.manager.set_time(4.9), ValueError, "seconds"),
    ("time: nan", lambda w: w.manager.set_time(float("nan")), ValueError, "seconds"),
    ("time: never", lambda w: w.manager.set_time(float("inf")), ValueError, "seconds"),
    ("time: huge", lambda w: w.manager.set_time(10**400), ValueError, "seconds"),
    ("time: str", lambda w: w.manager.set_time("6"), TypeError, "seconds"),
    ("time: no retention", lambda w: w.plain.set_time(6), ValueError, "retention"),
    ("time: read without", lambda w: w.plain.time, ValueError, "retention"),
    # Why it was not found.
    ("explain: no tokens", lambda w: w.manager.explain([]), ValueError, "tokens"),
    ("explain: too long", lambda w: w.manager.explain(range(49)), NeverFitsError, "49 tokens"),
    ("curve: no ghosts", lambda w: w.manager.hit_rate_curve(), ValueError, "ghost_blocks"),
    # The cache as a whole.
    ("reset: 1", lambda w: w.manager.reset_prefix_cache(reset_hit_rate=1), TypeError, "reset_hit"),
    ("digests: no tokens", lambda w: w.manager.block_digests([]), ValueError, "tokens"),
    ("digests: str", lambda w: w.manager.block_digests([1], namespace="t"), TypeError, "namespace"),
    ("digests: list", lambda w: w.manager.block_digests([1], extras=[b"x"]), TypeError, "extras"),
    ("digests: none", lambda _: uncached().block_digests([1]), ValueError, "prefix_caching"),
    (
        "common: freed",
        lambda w: w.manager.num_common_prefix_blocks([w.running, w.freed]),
        UnknownSequenceError,
        "handle",
    ),
    (
        "common: preempted",
        lambda w: w.manager.num_common_prefix_blocks([w.preempted]),
        SequenceStateError,
        "preempted",
    ),
    ("common: int", lambda w: w.manager.num_common_prefix_blocks(1), TypeError, "handles"),
    ("common: float", lambda w: w.manager.num_common_prefix_blocks([1.0]), TypeError, "handles"),
    # Shown arrays are read-only.
    ("tables: written", lambda w: w.manager.block_tables.fill(1), ValueError, "read-only"),
    ("lengths: written", lambda w: w.manager.seq_lens.fill(1), ValueError, "read-only"),
    # Processes.
    ("fork: around a call", lambda _: forked_around_a_call(), ForkError, "forked"),
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
    # Other objects, which must also leave this manager unchanged.
    ("manager: no ghosts", lambda _: BlockManager(8, 4, ghost_blocks=-1), ValueError, "ghost_blo"),
    ("manager: ghosts", lambda _: BlockManager(8, 4, ghost_blocks=2**30), ValueError, "ghost_bl"),
    ("manager: half", lambda _: BlockManager(8, 4, ghost_blocks=0.5), TypeError, "ghost_blocks"),
    ("manager: window", lambda _: BlockManager(8, 4, hit_rate_window=-1), ValueError, "hit_rate"),
    ("manager: half one", lambda _: BlockManager(8, 4, hit_rate_window=0.5), TypeError, "hit_rate"),
    ("manager: order", lambda _: BlockManager(8, 4, eviction="lur"), ValueError, "mean 'lru'"),
    ("manager: no order", lambda _: BlockManager(8, 4, eviction=None), TypeError, "eviction"),
    ("manager: object", lambda _: BlockManager(8, 4, eviction=range), TypeError, "eviction"),
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
    world: World, call: Wrong, error: type[BaseException], names: str
) -> None:
    before = snapshot(world.manager), snapshot(world.plain)
    with pytest.raises(error) as caught:
        call(world)
    assert type(caught.value) is error
    assert names in str(caught.value)
    assert (snapshot(world.manager), snapshot(world.plain)) == before
    world.manager.check_invariants()
