"""Clocks: how one call is timed, on a processor and on a device."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Clock", "DeviceClock", "HostClock", "summary"]

MICROSECOND = 1e6
LONGEST_DELAY = 0.05
CALIBRATION_CYCLES = 10_000_000


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and minimum, in microseconds."""
    values = np.asarray(seconds) * MICROSECOND
    return {
        "median": round(float(np.median(values)), 2),
        "p99": round(float(np.percentile(values, 99)), 2),
        "min": round(float(values.min()), 2),
    }


class Clock(Protocol):
    """Times one call of a way; ``load`` runs before every call."""

    def time(self, load: Callable[[], Callable[[], None]]) -> dict[str, float]:
        """Seconds by the name of the quantity."""


class HostClock:
    """Times from the call to its return; the work is then done."""

    def time(self, load: Callable[[], Callable[[], None]]) -> dict[str, float]:
        call = load()
        start = perf_counter()
        call()
        return {"wall": perf_counter() - start}


class DeviceClock:
    """Times two calls: one on an idle device, one behind a delay.

    The first gives the time until the call returns and until the device is done. The delay before
    the second keeps the device busy until everything is enqueued, so that events show the device's
    own time.
    """

    def __init__(self) -> None:
        self._start, self._stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(CALIBRATION_CYCLES)
        self._cycles_per_second = 1.0
        seconds = self._between_events(lambda: torch.cuda._sleep(CALIBRATION_CYCLES), delay=0.0)
        self._cycles_per_second = CALIBRATION_CYCLES / seconds

    def time(self, load: Callable[[], Callable[[], None]]) -> dict[str, float]:
        call = load()
        torch.cuda.synchronize()
        start = perf_counter()
        call()
        enqueued = perf_counter()
        torch.cuda.synchronize()
        done = perf_counter()
        enqueue = enqueued - start
        return {
            "enqueue": enqueue,
            "wall": done - start,
            "gpu": self.device_time(load, enqueue),
        }

    def device_time(self, load: Callable[[], Callable[[], None]], enqueue: float) -> float:
        """The device's own seconds for a call that takes ``enqueue`` seconds to make."""
        # The delay is doubled, because the call is sometimes slower. If the delay is still too
        # short, the time includes the host's, and the enqueue time beside it shows that.
        return self._between_events(load(), min(2 * enqueue + 50e-6, LONGEST_DELAY))

    def _between_events(self, call: Callable[[], None], delay: float) -> float:
        torch.cuda.synchronize()
        torch.cuda._sleep(int(delay * self._cycles_per_second))
        self._start.record()
        call()
        self._stop.record()
        torch.cuda.synchronize()
        return self._start.elapsed_time(self._stop) * 1e-3
