"""Arguments that change other arguments of the same call, and private calls with wrong numbers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import Admission, BlockManager, NeverFitsError, OutOfSequencesError, _core
from blockmgr.pool import BlockPool
from tests.arguments.calls import World
from tests.arguments.containers import Number, Stop, stop
from tests.fingerprints import fingerprint


def scribble() -> None:
    """Allocates the memory that was just freed, and writes to it."""
    gc.collect()
    for size in range(1, 600, 40):
        np.full(size, 0x5A5A5A5A, np.int64)


def resizing(array: Any) -> Number:
    """A number that reallocates an array while the number is read."""

    def act() -> None:
        array.resize((1_000_000, *array.shape[1:]), refcheck=False)
        scribble()

    return Number(1, act)


def test_the_list_of_copies_is_packed_into_the_array_as_it_is_after_all_else_was_read() -> None:
    checker, out = _core.CopyChecker(8, 4), np.zeros((4, 3), np.int32)
    assert checker.check([resizing(out)], [2], None, out) == 1
    assert out[:2].tolist() == [[1, 0, 0], [1, 2, 4]]
    out = np.zeros((4, 3), np.int32)
    assert checker.check_blocks([resizing(out)], out) == 1
    assert out[:2].tolist() == [[1, 0, 0], [-1, 1, 4]]
    out = np.zeros((4, 3), np.int32)
    assert checker.pack(resizing(out), out) == 0


def test_an_array_may_be_resized_while_another_argument_is_read() -> None:
    world = World()
    handles = np.array([world.running, world.second])
    tokens = [resizing(handles), 9]
    world.manager.decode(handles, tokens)  # type: ignore[arg-type]
    assert world.manager.sequence(world.second).tokens.tolist()[-1] == 9
    world.manager.check_invariants()

    blocks = np.array(world.held[3:5])
    given = [resizing(blocks), *range(2, 9)]
    assert len(world.pool.promote(blocks, given)) == 2  # type: ignore[arg-type]
    world.pool.check_invariants()


def test_what_views_hold_cannot_be_taken_away_while_they_are_read() -> None:
    data = bytearray(np.arange(1, 7, dtype=np.int64).tobytes())
    view = memoryview(data).cast("q")
    manager = BlockManager(16, 4)

    def act() -> None:
        view.release()
        data.clear()
        scribble()

    tokens = [Number(1, act), 2]
    handle = manager.admit(view, num_slots=8)
    manager.append(handle, tokens)  # type: ignore[arg-type]
    assert manager.sequence(handle).tokens.tolist() == [1, 2, 3, 4, 5, 6, 1, 2]


def test_a_number_may_end_the_sequence_it_is_meant_for() -> None:
    world = World()

    def act() -> None:
        world.manager.free(world.running)
        world.manager.admit(list(range(30, 40)))

    with pytest.raises(KeyError):
        world.manager.append(world.running, [Number(1, act), 2])  # type: ignore[list-item]
    world.manager.check_invariants()


def test_calls_made_while_a_list_is_read_have_numbers_of_their_own() -> None:
    world = World()

    def act() -> None:
        world.manager.match([5] * 40)
        world.manager.reparent([world.running, world.second], [0, 1])
        with pytest.raises(NeverFitsError):
            world.manager.admit(list(range(100_000)))

    handles = [Number(world.running, act), world.second]
    world.manager.decode(handles, [Number(1, act), 2])  # type: ignore[arg-type, list-item]
    assert world.manager.sequence(world.running).tokens.tolist()[-1] == 1
    world.manager.check_invariants()


def test_an_interrupted_digest_is_passed_on() -> None:
    on = [False]
    manager = BlockManager(8, 2, digest=lambda m: stop() if on[0] else bytes(16))
    handle = manager.admit([1, 2, 3])
    on[0] = True
    before = fingerprint(manager)
    with pytest.raises(Stop):
        manager.commit(handle, 3)
    assert fingerprint(manager) == before


@pytest.mark.parametrize("size", [0, 15, 17, 10**6])
@pytest.mark.parametrize("make", [bytes, bytearray, type("Odd", (bytes,), {"__len__": stop})])
def test_a_digest_of_another_size_or_type_is_refused(size: int, make: Callable[..., Any]) -> None:
    on = [False]
    manager = BlockManager(8, 2, digest=lambda m: make(size) if on[0] else bytes(16))
    handle = manager.admit([1, 2, 3])
    on[0] = True
    with pytest.raises((TypeError, ValueError), match="digest must"):
        manager.commit(handle, 3)
    manager.check_invariants()


# Lengths before contents.


class Unread:
    """A sequence that reports a length, and fails the test if it is read."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        pytest.fail("it was read")


WRONG = [*range(50_000), -1]
LONG_PROMPTS: dict[str, Any] = {
    "list": WRONG,
    "tuple": tuple(WRONG),
    "list subclass": type("Sub", (list,), {})(WRONG),
    "tuple subclass": type("Sub", (tuple,), {})(WRONG),
    "int64": np.array(WRONG),
    "int32": np.array(WRONG, np.int32),
    "memoryview": memoryview(np.array(WRONG)),
    "range": range(-1, 10**9),
    "sequence": Unread(2**62),
    "longest sequence": Unread(2**63 - 1),
}


@pytest.mark.parametrize("quotas", [{}, {b"tenant": 3}], ids=["one pool", "quotas"])
@pytest.mark.parametrize("kind", LONG_PROMPTS)
def test_a_prompt_that_never_fits_is_refused_unread_and_leaves_no_memory(
    kind: str, quotas: dict[bytes, int]
) -> None:
    """The last number is invalid, so a call that reads that far raises another error."""
    manager = BlockManager(16, 4, quotas=quotas, watermark_blocks=1)
    handle = manager.admit([1, 2, 3], namespace=b"tenant")
    manager.commit(handle, 3)
    prompt = LONG_PROMPTS[kind]
    before, memory = fingerprint(manager), manager.memory_usage()
    calls: list[Callable[[], object]] = [
        lambda: manager.admit(prompt),
        lambda: manager.admit(prompt, namespace=b"tenant", num_slots=4),
        lambda: manager.append(handle, prompt),
        lambda: manager.explain(prompt),
    ]
    for call in calls:
        with pytest.raises(NeverFitsError):
            call()
    assert manager.can_admit(prompt) is Admission.NEVER
    assert manager.can_admit(prompt, namespace=b"tenant") is Admission.NEVER
    assert fingerprint(manager) == before
    assert manager.memory_usage() == memory


class Endless(Unread):
    """A sequence of which at most 65 numbers may be read."""

    def __getitem__(self, index: int) -> int:
        return index if index < 65 else super().__getitem__(index)


@pytest.mark.parametrize(
    "prompt", [WRONG, np.array(WRONG), Endless(50_000)], ids=["list", "int64", "sequence"]
)
def test_a_look_up_reads_no_more_than_the_cache_can_hold(prompt: Any) -> None:
    """A block table may be longer than the pool; the rest of a prompt is then not read."""
    manager = BlockManager(16, 4, max_blocks_per_seq=50_000, retention=True, max_pinned_blocks=16)
    handle = manager.admit(list(range(64)))
    manager.commit(handle, 64)
    manager.free(handle)
    memory = manager.memory_usage()
    assert manager.match(prompt).num_cached_tokens == 64
    assert manager.touch(prompt) == 16
    assert manager.retain_prefix(prompt, priority=None) == 16
    assert manager.pinned(manager.pin(prompt)).num_blocks == 16
    assert manager.memory_usage() <= memory + 65 * 4


def test_a_batch_longer_than_there_are_rows_is_refused_unread() -> None:
    world = World()
    memory = world.manager.memory_usage()
    with pytest.raises(ValueError, match="handles must be distinct, so at most 6"):
        world.manager.decode(Unread(7), Unread(7))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="handles must be distinct, so at most 6"):
        world.manager.reparent(Unread(2**62), [0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens must be as many as handles"):
        world.manager.decode([world.running], Unread(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="parents must be as many as handles"):
        world.manager.reparent([world.running], Unread(2))  # type: ignore[arg-type]
    assert world.manager.memory_usage() <= memory + 64


def test_a_chain_longer_than_the_pool_is_refused_unread() -> None:
    pool = World().pool
    with pytest.raises(ValueError, match="blocks must be distinct, so at most 16"):
        pool.promote(Unread(17), Unread(68))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens must fill the blocks, 8 of them"):
        pool.promote([3, 4], Unread(2**62))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokens must fill the blocks, 4 of them"):
        pool.promote(3, Unread(5))  # type: ignore[arg-type]


def test_a_pool_keeps_no_more_memory_than_its_blocks_take() -> None:
    world = World()
    pool = world.pool
    memory = pool.memory_usage()
    many = [world.held[2]] * 100_000
    pool.acquire(many)
    pool.release(many)
    assert pool.find([*range(1, 9), *range(100_000)]).tolist() == world.held[:2]
    assert pool.memory_usage() <= memory + 16 * 8 + 64 * 4


def test_a_fork_into_more_than_there_are_rows_makes_nothing() -> None:
    world = World()

    def view(_: int) -> None:
        pytest.fail("something was made")

    for n in (4, 2**31, 2**62, 2**63 - 1):
        with pytest.raises(OutOfSequencesError):
            world.manager._core.fork(world.running, n, view)
    for n in (0, -1, -(2**63)):
        with pytest.raises(ValueError, match="n must be at least 1"):
            world.manager._core.fork(world.running, n, view)


# Private calls, which the package's Python code makes with checked numbers.


def refuse(error: type[Exception], match: str, call: Callable[..., object], *given: object) -> None:
    with pytest.raises(error, match=match):
        call(*given)


def test_a_list_of_copies_is_packed_from_a_place_in_it_and_into_a_row_at_least() -> None:
    checker, out = _core.CopyChecker(8, 4), np.zeros((4, 3), np.int32)
    checker.check([1], [2], None, out)
    for start in (-1, -(2**62), 2, 2**62):
        refuse(ValueError, "start must be in", checker.pack, start, out)
    assert checker.pack(1, out) == 0
    none = np.zeros((0, 3), np.int32)
    for call, given in (
        (checker.pack, (0,)),
        (checker.check, ([1], [2], None)),
        (checker.check_blocks, ([1],)),
    ):
        refuse(TypeError, "at least one row", call, *given, none)
        for wrong in (out[:, :2], out.T, out[::2], out.astype(np.int64), None, [[0, 0, 0]]):
            refuse(TypeError, "out must be", call, *given, wrong)
        out.setflags(write=False)
        refuse(TypeError, "out must be", call, *given, out)
        out.setflags(write=True)


def test_levels_and_times_to_live_are_checked_by_the_core_too() -> None:
    world = World()
    core = world.manager._core
    for level in (-2, 4, 99, 2**31 - 1, -(2**31)):
        refuse(ValueError, "level must be", core.retain, world.running, 0, 4, level, 1.0)
        refuse(ValueError, "level must be", core.retain_prefix, [1], b"", None, level, 1.0)
    for ttl in (0.0, -1.0, float("nan")):
        refuse(ValueError, "ttl must be", core.retain, world.running, 0, 4, 1, ttl)
        refuse(ValueError, "ttl must be", core.retain_prefix, [1], b"", None, 1, ttl)
    world.manager.check_invariants()


EXTRAS = [
    [(0, b"x")],
    ([0, b"x"],),
    ((0,),),
    ((0, b"x", 1),),
    (5,),
    (("0", b"x"),),
    ((True, b"x"),),
    ((Number(0), b"x"),),
    ((0, "x"),),
    {0: b"x"},
    "ab",
    type("Odd", (tuple,), {"__iter__": stop})(((0, b"x"),)),
]


@pytest.mark.parametrize("extras", EXTRAS, ids=map(str, range(len(EXTRAS))))
def test_extra_keys_reach_the_core_as_a_tuple_of_pairs_that_nothing_can_change(extras: Any) -> None:
    world = World()
    refuse(TypeError, "extras", world.manager._core.block_digests, [1, 2], b"", extras)
    refuse(TypeError, "extras", world.pool._core.find, [1, 2], -1, b"", extras)


def options_of(build: Callable[[], object], core: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options that a public class passes to the core."""
    seen: list[dict[str, Any]] = []

    class Stopped(Exception):
        pass

    def record(options: dict[str, Any]) -> None:
        seen.append(options)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(_core, core, record)
        with pytest.raises(Stopped):
            build()
    return seen[0]


POOL_NUMBERS = (
    *("num_blocks", "block_size", "steps_in_flight", "max_pinned_blocks", "ghost_blocks"),
    *("event_blocks", "digest_size"),
)
NUMBERS = (
    *(*POOL_NUMBERS, "max_seqs", "row_width", "min_partial_tokens", "watermark_blocks"),
    *("hit_rate_window", "max_rollback_tokens", "halfway_stop_tokens", "prompt_end_stop"),
    "stop_margin_tokens",
)


@pytest.mark.parametrize("value", [-(2**63), -(2**31), -1, 2**31, 2**32, 2**40, 2**63 - 1, 2**64])
@pytest.mark.parametrize("name", NUMBERS)
def test_a_core_is_not_built_on_numbers_out_of_bounds(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The low 32 bits of such a number may look like a valid size."""
    options = options_of(lambda: BlockManager(8, 4, retention=True), "Core", monkeypatch)
    refuse(ValueError, name, _core.Core, {**options, name: value})
    options = options_of(lambda: BlockPool(8, 4), "PoolCore", monkeypatch)
    if name in POOL_NUMBERS:
        refuse(ValueError, name, _core.PoolCore, {**options, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_blocks", 0), ("num_blocks", 2**31 - 1), ("block_size", 0), ("block_size", 2**16)),
        *(("steps_in_flight", 201), ("ghost_blocks", 2**30), ("event_blocks", 2**30 + 1)),
    ],
)
def test_a_core_is_not_built_on_numbers_that_its_memory_has_no_room_for(
    name: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(lambda: BlockManager(8, 4), "Core", monkeypatch)
    refuse(ValueError, name, _core.Core, {**options, name: value})
    refuse(ValueError, name, _core.PoolCore, {**options, name: value})


@pytest.mark.parametrize("blocks", [-1, 0, 9, 2**31, 2**32 + 1, 2**63 - 1])
def test_a_core_has_no_more_quotas_than_blocks(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = options_of(lambda: BlockManager(8, 4), "Core", monkeypatch)
    refuse(ValueError, "quotas", _core.Core, {**options, "quotas": [(b"x", blocks)]})
