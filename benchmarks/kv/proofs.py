"""Counts what one call does on a device: synchronisations, allocations, kernels."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.kv.pools import Pool
    from benchmarks.kv.ways import Way

__all__ = ["prove", "synchronisation_is_an_error"]

CALLS = 4
"""Fewer than the ring of pair lists holds, so that none has to wait for another."""

MOVES = ("Memcpy", "Memset")


@contextmanager
def synchronisation_is_an_error() -> Iterator[None]:
    """Makes torch raise on every call of its own that waits for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the mode a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def prove(pool: Pool, way: Way, pairs: int = 32) -> dict[str, Any]:
    """Counts over a few calls, by torch's guard and profiler; or ``error`` with the reason."""
    way.load(pool.draw(pairs, whole=True))()
    torch.cuda.synchronize()
    try:
        with synchronisation_is_an_error():
            allocations = _allocations(_load(pool, way, pairs))
        torch.cuda.synchronize()
        idle, busy = _profiled([]), _profiled(_load(pool, way, pairs))
    except RuntimeError as error:
        return {"error": str(error)}
    device = busy[1]
    kernels = sum(n for name, n in device.items() if not name.startswith(MOVES))
    if not kernels:
        return {"error": "the profiler saw no kernel"}
    return {
        "calls": CALLS,
        "synchronisations": _waits(busy[0]) - _waits(idle[0]),
        "allocations": allocations,
        "kernels_per_call": kernels / CALLS,
        "uploads_per_call": (sum(device.values()) - kernels) / CALLS,
        "on_device": dict(device),
    }


def _load(pool: Pool, way: Way, pairs: int) -> list[Callable[[], None]]:
    return [way.load(pool.draw(pairs, whole=True)) for _ in range(CALLS)]


def _allocations(calls: Sequence[Callable[[], None]]) -> int:
    """Blocks of device memory allocated from torch's allocator or from the device."""
    names = ("allocation.all.allocated", "segment.all.allocated")
    before = torch.cuda.memory_stats()
    for call in calls:
        call()
    after = torch.cuda.memory_stats()
    return sum(after[name] - before[name] for name in names)


def _profiled(calls: Sequence[Callable[[], None]]) -> tuple[Counter[str], Counter[str]]:
    """Names of the calls of the host and of the operations of the device."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for call in calls:
            call()
    host: Counter[str] = Counter()
    device: Counter[str] = Counter()
    for event in profiler.events():
        on_device = event.device_type == DeviceType.CUDA
        if not (on_device and event.name.endswith("Sync")):
            (device if on_device else host)[event.name] += 1
    return host, device


def _waits(names: Counter[str]) -> int:
    return sum(n for name, n in names.items() if "Synchronize" in name)
