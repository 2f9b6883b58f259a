"""Calls from several threads: each waits its turn, so that they are linearizable."""

from __future__ import annotations

import gc
import itertools
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from blockmgr import Admission, BlockManager, BlockMgrError, OutOfBlocksError, ReentrancyError
from blockmgr.pool import BlockPool
from tests.specification.leaves import ModelLeaves

HISTORIES = 1000
THREADS = 3
CALLS = 3
PROMPTS = ([1, 1, 1], [1, 1, 2, 2, 3], [2, 2, 1], [1, 1, 2, 2, 1, 1, 5])
TINY: dict[str, int] = {"num_blocks": 5, "block_size": 2, "max_seqs": 8}


@pytest.fixture(autouse=True)
def hasty_switches() -> Iterator[None]:
    """Makes threads switch as often as the interpreter allows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def yielding_digest(message: bytes) -> bytes:
    """An object that lets other threads run in the middle of a call."""
    time.sleep(1e-5)
    return bytes([sum(message) % 256] * 16)


def in_threads(*bodies: Callable[[], None]) -> None:
    """Run the bodies at once; the first error of any of them is raised."""
    errors: list[BaseException] = []
    together = threading.Barrier(len(bodies))

    def run(body: Callable[[], None]) -> None:
        try:
            together.wait()
            body()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Slow:
    """A digest that takes long enough for another thread to run."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.outside = False

    def __call__(self, message: bytes) -> bytes:
        if len(message) > 16:  # of a block; a namespace is hashed while no thread waits
            self.inside.set()
            time.sleep(0.02)
            self.outside = True
        return bytes(16)


def test_a_call_waits_for_the_call_another_thread_is_inside() -> None:
    digest = Slow()
    manager = BlockManager(8, 2, digest=digest)
    handle = manager.admit([1, 2, 3])
    seen: list[bool] = []

    def intrude() -> None:
        digest.inside.wait()
        manager.free(handle)
        seen.append(digest.outside)

    in_threads(lambda: manager.commit(handle, 3), intrude)
    assert seen == [True]
    assert manager.handles() == []
    assert manager.match([1, 2, 3]).num_cached_tokens == 2


def test_reading_waits_as_well() -> None:
    digest = Slow()
    manager = BlockManager(8, 2, digest=digest)
    handle = manager.admit([1, 2, 3])
    facts: list[int] = []

    def look() -> None:
        digest.inside.wait()
        facts.append(manager.stats().cached_blocks)
        facts.append(manager.sequence(handle).num_computed_tokens)

    in_threads(lambda: manager.commit(handle, 3), look)
    assert facts == [1, 3]


def test_a_pool_waits_as_well() -> None:
    digest = Slow()
    pool = BlockPool(4, 2, digest=digest)
    [block] = pool.take(1).tolist()
    facts: list[Any] = []

    def look() -> None:
        digest.inside.wait()
        facts.append(pool.is_cached(block))

    in_threads(lambda: facts.append(pool.promote(block, [1, 2])), look)
    assert sorted(facts) == sorted([block, True])


def test_separate_managers_share_nothing() -> None:
    managers = [BlockManager(16, 2, digest=yielding_digest) for _ in range(THREADS)]

    def serve(manager: BlockManager) -> None:
        for length in range(1, 20):
            handle = manager.admit([1] * length)
            manager.commit(handle, length)
            manager.free(handle)

    in_threads(*(lambda m=m: serve(m) for m in managers))  # type: ignore[misc]
    assert len({manager.stats() for manager in managers}) == 1


def test_many_threads_leave_books_that_agree() -> None:
    manager = BlockManager(12, 2, digest=yielding_digest)
    refused = []

    def serve(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(80):
            tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 12))]
            try:
                handle = manager.admit(tokens)
            except OutOfBlocksError as error:
                refused.append(error)
                continue
            manager.commit(handle, len(tokens))
            manager.free(handle)

    in_threads(*(lambda n=n: serve(n) for n in range(THREADS)))  # type: ignore[misc]
    manager.check_invariants()
    assert manager.handles() == []
    assert manager.num_available == 12
    assert manager.stats().evicted_blocks > 0


# A separate process, in which a hanging thread can be killed.
FIRST_ARRAYS = """
import builtins, threading, time
from blockmgr import BlockManager

manager = BlockManager(8, 2)
real = builtins.__import__

def slow(*arguments, **keywords):
    time.sleep(0.05)
    return real(*arguments, **keywords)

builtins.__import__ = slow
threads = [threading.Thread(target=manager.match, args=([1, 2, 3],)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_arrays_of_two_threads_do_not_wait_for_each_other() -> None:
    """The look-up of NumPy may let other threads run, so no lock may be held during it."""
    subprocess.run([sys.executable, "-c", FIRST_ARRAYS], check=True, timeout=60)


class Hostile:
    """A thread whose arguments call back, let others run, or create garbage during a call."""

    def __init__(self, manager: BlockManager, seed: int) -> None:
        self.manager = manager
        self.rng = random.Random(seed)
        self.own: list[tuple[int, list[int]]] = []
        self.shared = [self.rng.randrange(2) for _ in range(9)]  # a list that changes meanwhile
        self.meddling = False
        self.refused = 0

    def meddle(self) -> None:
        """A random call, possibly from inside another one."""
        if self.meddling:
            return
        self.meddling = True
        try:
            self.read()
            if self.rng.random() < 0.3:
                self.free()
            else:
                self.admit([1, 0, 1])
        except ReentrancyError:
            self.refused += 1
        finally:
            self.meddling = False

    def tokens(self) -> tuple[Any, list[int]]:
        """Tokens in a random container, and their values."""
        values = [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 9))]
        shape = self.rng.randrange(4)
        if shape == 0:
            return [Calling(self, value) for value in values], values
        if shape == 1:
            return Calling(self, values), values
        if shape == 2:
            return np.array(values, self.rng.choice([np.int8, np.uint32, np.int64])), values
        return tuple(values), values

    def admit(self, given: Any = None) -> None:
        tokens, values = self.tokens() if given is None else (given, given)
        handle = self.manager.admit(tokens, namespace=self.rng.choice([b"", b"other"]))
        self.own.append((handle, list(values)))

    def free(self) -> None:
        if self.own:
            handle, _ = self.own.pop(self.rng.randrange(len(self.own)))
            try:
                self.manager.free(handle)
            except ReentrancyError:
                self.own.append((handle, []))
                raise

    def step(self) -> None:
        Garbage(self)
        choice = self.rng.randrange(8)
        if choice < 3 or not self.own:
            return self.admit()
        handle, values = self.own[self.rng.randrange(len(self.own))]
        if choice == 3:
            return self.free()
        if choice == 4 and values:
            return self.manager.commit(Calling(self, handle), len(values))
        if choice == 5:
            self.shared.append(self.rng.randrange(2))
            del self.shared[9:]
            self.manager.match(self.shared)
            return None
        if choice == 6:
            self.manager.debug = self.rng.randrange(3)
            self.manager.take_remaps()
            return None
        self.read()
        return None

    def read(self) -> None:
        manager = self.manager
        for handle, values in self.own:
            if values:
                assert manager.sequence(handle).tokens.tolist() == values
        stats = manager.stats()
        assert stats.free_blocks + stats.idle_blocks + stats.used_blocks <= stats.capacity
        assert len(manager.blocks().state) == stats.capacity
        assert manager.num_available <= stats.capacity
        assert manager.memory_usage() > 0
        assert len(manager.handles()) <= manager.config.max_seqs


@dataclass
class Calling:
    """A number, or an array, whose conversion calls the manager."""

    by: Hostile
    value: Any

    def __index__(self) -> int:
        self.by.meddle()
        return self.value

    def __array__(self) -> Any:
        self.by.meddle()
        return np.array(self.value, np.int64)


class Garbage:
    """A cycle whose finalizer calls the manager during garbage collection."""

    def __init__(self, by: Hostile) -> None:
        self.me, self.by = self, by

    def __del__(self) -> None:
        try:
            self.by.manager.take_remaps()  # computes no digest, which would create more of these
        except ReentrancyError:
            self.by.refused += 1


@pytest.mark.parametrize("seed", range(3))
def test_threads_whose_arguments_and_garbage_call_back_leave_books_that_agree(seed: int) -> None:
    def digest(message: bytes) -> bytes:
        for caller in callers:
            Garbage(caller)
        return yielding_digest(message)

    callers: list[Hostile] = []
    manager = BlockManager(40, 2, digest=digest, max_seqs=24, debug=2)
    callers += [Hostile(manager, seed * THREADS + n) for n in range(THREADS)]
    short = []

    def play(caller: Hostile) -> None:
        for _ in range(150):
            try:
                caller.step()
            except BlockMgrError as error:
                if isinstance(error, ReentrancyError | AssertionError):
                    raise
                short.append(error)
                caller.free()
        while caller.own:
            caller.free()

    thresholds = gc.get_threshold()
    gc.set_threshold(3)
    try:
        in_threads(*(lambda c=c: play(c) for c in callers))  # type: ignore[misc]
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    manager.check_invariants()
    assert manager.handles() == []
    assert manager.num_available == 40
    assert sum(caller.refused for caller in callers), (
        "no calls overlapped, so the test proves nothing"
    )


# Linearizability on short histories: Wing and Gong, "Testing and Verifying Concurrent Objects",
# Journal of Parallel and Distributed Computing 17 (1993), section 3.


@dataclass(slots=True)
class Call:
    """One call: its thread, its name and arguments, its result, and when it began and ended."""

    thread: int
    name: str
    prompt: int
    result: Any = None
    begin: int = 0
    end: int = 0


@dataclass(slots=True)
class Caller:
    """One thread's side of a history, on a manager or on the model."""

    target: Any
    handles: list[int] = field(default_factory=list)

    def make(self, call: Call) -> Any:
        return getattr(self, call.name)(PROMPTS[call.prompt])

    def admit(self, tokens: list[int]) -> str:
        try:
            self.handles.append(self.target.admit(tokens))
        except BlockMgrError as error:
            return type(error).__name__
        return "admitted"

    def match(self, tokens: list[int]) -> int:
        return self.target.match(tokens).num_cached_tokens

    def can_admit(self, tokens: list[int]) -> Admission:
        return self.target.can_admit(tokens)

    def commit(self, tokens: list[int]) -> int:
        for handle in self.handles[-1:]:
            self.target.commit(handle, self.target.sequence(handle).num_tokens)
        return len(self.handles)

    def free(self, tokens: list[int]) -> int:
        for handle in self.handles[-1:]:
            self.target.free(handle)
        del self.handles[-1:]
        return len(self.handles)


def recorded(seed: int) -> list[Call]:
    """A history of a real manager under several threads."""
    rng = random.Random(seed)
    names = ["admit", "admit", "commit", "free", "match", "can_admit"]
    programs = [
        [Call(t, rng.choice(names), rng.randrange(len(PROMPTS))) for _ in range(CALLS)]
        for t in range(THREADS)
    ]
    manager = BlockManager(**TINY, digest=yielding_digest)
    clock = iter(range(10**6))  # taking the next number is atomic in the interpreter

    def run(program: list[Call]) -> None:
        caller = Caller(manager)
        for call in program:
            call.begin = next(clock)
            call.result = caller.make(call)
            call.end = next(clock)

    in_threads(*(lambda p=p: run(p) for p in programs))  # type: ignore[misc]
    manager.check_invariants()
    return [call for program in programs for call in program]


def is_linearizable(history: list[Call], order: tuple[Call, ...] = ()) -> bool:
    """Whether some sequential order that respects time gives the same results."""
    model = ModelLeaves(**TINY)
    callers = [Caller(model) for _ in range(THREADS)]
    if any(callers[call.thread].make(call) != call.result for call in order):
        return False
    left = [call for call in history if call not in order]
    first_end = min((call.end for call in left), default=0)
    return not left or any(
        is_linearizable(history, (*order, call)) for call in left if call.begin < first_end
    )


def test_short_histories_are_linearizable() -> None:
    overlapping = 0
    for seed in range(HISTORIES):
        history = recorded(seed)
        ordered = sorted(history, key=lambda call: call.begin)
        overlapping += any(a.end > b.begin for a, b in itertools.pairwise(ordered))
        assert is_linearizable(history), history
    assert overlapping, "the threads never overlapped, so the test proves nothing"


def test_a_wrong_result_is_not_linearizable() -> None:
    history = recorded(1)
    for call in history:
        right, call.result = call.result, "something else"
        assert not is_linearizable(history)
        call.result = right
    assert is_linearizable(history)
