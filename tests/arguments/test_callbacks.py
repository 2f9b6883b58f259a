"""Digests and policies in Python that raise, call back, or drop what calls them, at any point."""

from __future__ import annotations

import gc
import hashlib
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from blockmgr import BlockManager, BlockMgrError, PolicyError, ReentrancyError
from blockmgr.pool import BlockPool
from tests.arguments.test_inside import ASKED, CALLS, QUIET, World, scribble, shrink
from tests.fingerprints import fingerprint
from tests.reference_policies import Lru


class Halt(BaseException):
    """An error that is no Exception, as KeyboardInterrupt is."""


@pytest.mark.parametrize("error", [Halt, KeyboardInterrupt, MemoryError, SystemExit])
@pytest.mark.parametrize("name", CALLS)
def test_a_digest_that_raises_at_any_of_its_calls_changes_nothing(
    name: str, error: type[BaseException]
) -> None:
    for at in range(100):
        world = World("digest")
        before = world.state()
        left = [at]

        def act(world: World = world, left: list[int] = left) -> None:
            if not left[0]:
                raise error
            left[0] -= 1
            world.inside.act = act

        world.inside.act = act
        try:
            CALLS[name](world, np.array(ASKED, np.uint32))
        except error:
            assert world.state() == before
            continue
        finally:
            world.inside.act = None
        assert left[0] >= 0
        assert at or name in QUIET["digest"]
        return
    pytest.fail("the call hashes without an end")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["digest", "policy"])
def test_code_inside_a_call_cannot_call_the_same_manager(kind: str, name: str) -> None:
    world = World(kind)
    refused = []

    def act() -> None:
        for again in CALLS:
            try:
                CALLS[again](world, ASKED)
            except ReentrancyError:
                refused.append(again)
            except BlockMgrError:
                pass

    world.inside.act = act
    CALLS[name](world, np.array(ASKED, np.uint32))
    world.inside.act = None
    assert bool(refused) is (name not in QUIET[kind])
    world.state()


@pytest.mark.parametrize("after", range(12))
def test_a_policy_that_raises_at_any_of_its_calls_is_remembered_and_the_call_finishes(
    after: int,
) -> None:
    left = [1000]  # the constructor looks at its methods

    class Raises(Lru):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_") or name == "victim":
                if not left[0]:
                    raise Halt(name)
                left[0] -= 1
            return super().__getattribute__(name)

    manager = BlockManager(8, 4, eviction=Raises)
    left[0] = after
    for first in range(6):
        handle = manager.admit([first] * 12)
        manager.commit(handle, 12)
        manager.free(handle)
    with pytest.raises(PolicyError) as raised:
        manager.check_policy()
    assert isinstance(raised.value.__cause__, Halt)
    assert manager._core.violations() == []


@pytest.mark.parametrize("holder", [BlockManager, BlockPool])
def test_the_last_reference_to_a_manager_may_go_inside_its_own_call(
    holder: type[BlockManager] | type[BlockPool],
) -> None:
    """A digest drops it, itself and its policy; another thread may collect the garbage."""
    box: list[Any] = []
    gone: list[weakref.ref[Any]] = []

    def digest(message: bytes) -> bytes:
        box.clear()
        collector = threading.Thread(target=scribble)
        collector.start()
        collector.join()
        return hashlib.sha256(message).digest()[:16]

    box.append(holder(16, 4, digest=digest, eviction=Lru))
    gone.append(weakref.ref(box[0]))
    del digest
    if holder is BlockManager:
        box[0].block_digests(np.arange(40, dtype=np.uint32))
    else:
        box[0].promote(box[0].take(1), [1, 2, 3, 4])
    assert not box
    gc.collect()
    assert gone[0]() is None


@pytest.mark.parametrize("dtype", [np.uint32, np.int32, np.int64])
@pytest.mark.parametrize("name", CALLS)
def test_an_array_may_go_while_its_call_waits_for_a_digest_of_another_thread(
    name: str, dtype: Any
) -> None:
    """The call has its whole array, or says that it changed."""
    world, array = World("digest"), np.array(ASKED, dtype)
    inside, may_end = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def hold() -> None:
        inside.set()
        assert may_end.wait(60)

    def slow() -> None:
        for owner in (world.manager, world.grouped):
            if owner is held:
                owner.block_digests([30] * 8)
        if world.pool is held:
            world.pool.find([30] * 8)

    def run() -> None:
        try:
            CALLS[name](world, array)
        except (ValueError, BlockMgrError) as error:
            errors.append(error)

    held: Any = world.pool if "pool" in name else world.manager
    held = world.grouped if "groups" in name else held
    world.inside.act = hold
    threads = [threading.Thread(target=target) for target in (slow, run)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    threads[1].join(0.03)  # it waits now, or has not begun: either must be right
    shrink(array)
    may_end.set()
    for thread in threads:
        thread.join()
    world.state()
    assert all("changed" in str(e) or "empty" in str(e) or "fill" in str(e) for e in errors)


class OddBytes(bytes):
    def __len__(self) -> int:
        raise Halt

    def __iter__(self) -> Any:
        raise Halt


@pytest.mark.parametrize("make", [bytearray, memoryview, np.frombuffer])
def test_a_namespace_and_an_extra_key_must_be_bytes_that_cannot_change(make: Any) -> None:
    manager = BlockManager(16, 4)
    before = fingerprint(manager)
    value = make(bytearray(b"key")) if make is not np.frombuffer else make(b"key", np.uint8)
    with pytest.raises(TypeError, match="namespace must be bytes"):
        manager.admit([1, 2, 3], namespace=value)
    with pytest.raises(TypeError, match="extras"):
        manager.admit([1, 2, 3], extras={0: value})
    assert fingerprint(manager) == before


def test_the_bytes_of_a_subclass_count_and_not_its_methods() -> None:
    manager = BlockManager(16, 4)
    odd = OddBytes(b"key")
    handle = manager.admit([1, 2, 3, 4, 5], namespace=odd, extras={0: odd})
    manager.commit(handle, 5)
    found = manager.match([1, 2, 3, 4, 6], namespace=b"key", extras={0: b"key"})
    assert found.num_cached_tokens == 4
