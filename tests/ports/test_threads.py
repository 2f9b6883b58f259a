"""Calls of ports in several threads: each waits for the one before it, or says that it does not."""

from __future__ import annotations

import inspect
from threading import Event, Thread
from typing import Any

from blockmgr.ports import aphrodite, nano_vllm, radix, slots, tgi
from blockmgr.ports.locking import exclusive, new_mutex

PORTS = (aphrodite, nano_vllm, radix, slots, tgi)


class Port:
    """A port with a call that does not end before it is told to."""

    def __init__(self) -> None:
        self._mutex = new_mutex()
        self.inside, self.go = Event(), Event()

    @exclusive
    def call(self) -> None:
        self.inside.set()
        self.nested()
        self.go.wait(60)

    @exclusive
    def nested(self) -> None:
        """A call of the same thread, which does not wait."""


def test_an_exclusive_call_lets_no_other_in_until_it_ends() -> None:
    port = Port()
    thread = Thread(target=port.call)
    thread.start()
    port.inside.wait(60)
    assert not port._mutex.acquire(blocking=False)
    port.go.set()
    thread.join()
    assert port._mutex.acquire(blocking=False)
    port._mutex.release()


def test_objects_that_change_the_same_state_have_one_mutex() -> None:
    allocator = slots.SlotAllocator(3)
    assert slots.PrefixCacheManager(8, slots=allocator)._mutex is allocator._mutex
    cache = radix.CacheManager(None, 8)
    assert cache._mutex is cache.manager._mutex


DOCUMENTED = ("one thread at a time", "belong to the loop's thread")


EXCLUSIVE = exclusive(lambda self: None).__code__


# Calls that make one locked call, or that keep no books.
WITHOUT_MUTEX = {
    "get_num_free_cpu_blocks",
    "get_num_free_gpu_blocks",
    "lock",
    "unlock",
}


def keeps_books(kind: Any) -> bool:
    """Whether the calls of a port's class change shared state."""
    changes = ("allocate", "alloc", "append_token_ids", "evict", "insert", "get_num_cached_tokens")
    return inspect.isclass(kind) and any(hasattr(kind, name) for name in changes)


def test_every_call_of_a_port_waits_for_the_others_or_says_that_it_does_not() -> None:
    unsaid = []
    for port in PORTS:
        for kind in filter(keeps_books, map(port.__dict__.__getitem__, port.__all__)):
            calls = [
                (name, call.__code__ is EXCLUSIVE)
                for name, call in inspect.getmembers(kind, inspect.isfunction)
                if not name.startswith("_") and name not in WITHOUT_MUTEX
            ]
            if any(is_exclusive for _, is_exclusive in calls):
                unsaid += [f"{kind.__name__}.{name}" for name, is_one in calls if not is_one]
                continue
            doc = " ".join((kind.__doc__ or "").split())
            is_said = any(words in doc for words in DOCUMENTED)
            is_part = issubclass(kind, aphrodite.Block) or kind is aphrodite.BlockAllocator
            unsaid += [] if is_said or is_part else [kind]
    assert not unsaid
