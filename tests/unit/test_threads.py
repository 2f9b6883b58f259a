"""Calls from several threads: each waits its turn, and together they look as if made one by one."""

from __future__ import annotations

import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from blockmgr import Admission, BlockManager, BlockMgrError, OutOfBlocksError
from blockmgr.pool import BlockPool
from blockmgr.stress.model import ModelManager

HISTORIES = 1000
THREADS = 3
CALLS = 3
PROMPTS = ([1, 1, 1], [1, 1, 2, 2, 3], [2, 2, 1], [1, 1, 2, 2, 1, 1, 5])
TINY: dict[str, int] = {"num_blocks": 5, "block_size": 2, "max_seqs": 8}


@pytest.fixture(autouse=True)
def hasty_switches() -> Iterator[None]:
    """Threads take turns as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def yielding_digest(message: bytes) -> bytes:
    """Lets other threads run in the middle of a call."""
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
    """A digest that stays inside long enough for another thread to have every chance."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.outside = False

    def __call__(self, message: bytes) -> bytes:
        if len(message) > 16:  # a block's: a namespace's is hashed while nobody waits
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


# Linearizability on short histories: Wing and Gong, "Testing and Verifying Concurrent Objects",
# Journal of Parallel and Distributed Computing 17 (1993), section 3.


@dataclass(slots=True)
class Call:
    """One call: who made it, what it was, what came of it, and when it began and ended."""

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
    clock = iter(range(10**6))  # taking the next number is one step of the interpreter

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
    """Whether the calls give these results one by one, in some order that time allows."""
    model = ModelManager(**TINY)
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
    assert overlapping, "the threads never met: this proves nothing"


def test_a_wrong_result_is_not_linearizable() -> None:
    history = recorded(1)
    for call in history:
        right, call.result = call.result, "something else"
        assert not is_linearizable(history)
        call.result = right
    assert is_linearizable(history)
