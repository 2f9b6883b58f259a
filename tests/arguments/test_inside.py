"""Python code that runs inside a call, and changes the arrays that the call was given.

A digest or a policy written in Python runs there, and while another call waits for it, any thread.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from blockmgr import BlockManager, FullAttention, SlidingWindow
from blockmgr.pool import BlockPool
from tests.arguments.calls import plain
from tests.arguments.test_meddling import scribble
from tests.fingerprints import fingerprint
from tests.reference_policies import Lru

CACHED = [1, 2, 3, 4, 5, 6, 7, 8]
ASKED = [1, 2, 3, 4, 5, 6, 70, 71, *range(100, 120)]


class Inside:
    """What runs inside a call, once."""

    def __init__(self) -> None:
        self.act: Callable[[], None] | None = None
        self.has_run = False

    def __call__(self) -> None:
        if self.act is not None:
            act, self.act = self.act, None
            self.has_run = True
            act()


class World:
    """Managers and a pool whose digest or policy is written in Python."""

    def __init__(self, kind: str) -> None:
        self.inside = Inside()
        options: dict[str, Any] = {"retention": True, "max_pinned_blocks": 20}
        if kind == "digest":
            options["digest"] = self.digest
        else:
            options["eviction"] = self.policy
        self.manager = BlockManager(64, 4, min_partial_tokens=1, **options)
        self.grouped = BlockManager(
            64, 4, groups=[FullAttention(), SlidingWindow(4)], null_block=True, **options
        )
        for manager in (self.manager, self.grouped):
            manager.free(self.computed(manager, [*CACHED, 0]))
        self.running = self.computed(self.manager, [9, 9, 9])
        self.pool = BlockPool(64, 4, **options)
        self.blocks = self.pool.take(20).tolist()
        self.pool.promote(self.blocks[:2], CACHED)

    def digest(self, message: bytes) -> bytes:
        self.inside()
        return hashlib.sha256(message).digest()[:16]

    def policy(self, num_blocks: int) -> Lru:
        inside = self.inside

        class Told(Lru):
            def on_hit(self, block: int) -> None:
                inside()
                super().on_hit(block)

            def on_used(self, block: int) -> None:
                inside()
                super().on_used(block)

            def on_cached(self, block: int, parent: int, digest: bytes) -> None:
                inside()
                super().on_cached(block, parent, digest)

        return Told(num_blocks)

    @staticmethod
    def computed(manager: BlockManager, tokens: list[int]) -> int:
        handle = manager.admit(tokens)
        manager.commit(handle, len(tokens))
        manager.copies_applied(manager.take_copies().ticket)
        return handle

    def state(self) -> object:
        for each in (self.manager, self.grouped, self.pool):
            each.check_invariants()
        return [fingerprint(each) for each in (self.manager, self.grouped, self.pool)]


CALLS: dict[str, Callable[[World, Any], Any]] = {
    "match": lambda w, a: w.manager.match(a),
    "can_admit": lambda w, a: w.manager.can_admit(a),
    "admit": lambda w, a: w.manager.admit(a),
    "append": lambda w, a: w.manager.append(w.running, a),
    "explain": lambda w, a: w.manager.explain(a),
    "touch": lambda w, a: w.manager.touch(a),
    "block_digests": lambda w, a: w.manager.block_digests(a),
    "pin": lambda w, a: w.manager.pin(a),
    "retain_prefix": lambda w, a: w.manager.retain_prefix(a, priority=None),
    "match, groups": lambda w, a: w.grouped.match(a),
    "admit, groups": lambda w, a: w.grouped.admit(a),
    "explain, groups": lambda w, a: w.grouped.explain(a),
    "pool.find": lambda w, a: w.pool.find(a),
    "pool.acquire_prefix": lambda w, a: w.pool.acquire_prefix(a),
    "pool.promote": lambda w, a: w.pool.promote(w.blocks[2:9], a, parent=w.blocks[1]),
}
# Calls inside which neither runs: they hash nothing, and change no order of eviction.
QUIET = {
    "digest": {"append"},
    "policy": {
        "match", "can_admit", "append", "explain", "block_digests", "match, groups", "pool.find",
        "explain, groups", "retain_prefix",
    },
}  # fmt: skip
DTYPES = (np.uint32, np.int32, np.int64, np.uint16)


def overwrite(array: Any) -> None:
    array[:] = 50


def shrink(array: Any) -> None:
    array.resize((0,), refcheck=False)
    scribble()


def grow(array: Any) -> None:
    array.resize((1_000_000,), refcheck=False)
    array[:] = 50
    scribble()


def outcome(name: str, kind: str, dtype: Any, act: Callable[[Any], None] | None) -> Any:
    world, array = World(kind), np.array(ASKED, dtype)
    if act is not None:
        world.inside.act = lambda: act(array)
    result = CALLS[name](world, array)
    return plain(result) if name not in ("admit", "admit, groups") else None, world


@pytest.mark.parametrize("act", [overwrite, shrink, grow])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["digest", "policy"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_keeps_to_what_it_was_given(
    name: str, kind: str, dtype: Any, act: Callable[[Any], None]
) -> None:
    """Otherwise a sequence has other tokens than its K/V, and other prompts find them."""
    expected, untouched = outcome(name, kind, dtype, None)
    found, world = outcome(name, kind, dtype, act)
    assert world.inside.has_run is (name not in QUIET[kind])
    assert found == expected
    assert world.state() == untouched.state()
    probe = [*ASKED[:4], 50, 50, 50, 50, 50]
    assert world.manager.match(probe).num_cached_tokens == 4


def test_an_array_may_be_taken_away_while_its_call_waits_for_another() -> None:
    """The other call is inside a digest function, and lets other threads run."""
    inside, may_end = threading.Event(), threading.Event()
    on = [False]

    def digest(message: bytes) -> bytes:
        if on[0]:
            on[0] = False
            inside.set()
            assert may_end.wait(60)
        return hashlib.sha256(message).digest()[:16]

    manager = BlockManager(64, 4, digest=digest)
    first = manager.admit([1, 2, 3, 4, 5])
    second = manager.admit([9])
    given = np.array([7] * 60, np.uint32)
    on[0] = True
    errors: list[BaseException] = []

    def append() -> None:
        try:
            manager.append(second, given)
        except ValueError as error:
            errors.append(error)

    slow = threading.Thread(target=manager.commit, args=(first, 5))
    slow.start()
    assert inside.wait(60)
    waiting = threading.Thread(target=append)
    waiting.start()
    shrink(given)
    may_end.set()
    slow.join()
    waiting.join()
    assert manager.sequence(second).tokens.tolist() == [9, *[7] * (0 if errors else 60)]
    manager.check_invariants()
