"""The retention that requests ask for in ``vllm_xargs``: read once, when a request is admitted.

Requests are untrusted input. An invalid wish is ignored, counted and named in the log; it must not
stop the engine, least of all when the request ends and its blocks are released.
"""

from __future__ import annotations

import logging
import math
import reprlib
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from blockmgr import Priority

if TYPE_CHECKING:
    from vllm.v1.request import Request

__all__ = ["NO_WISH", "Wish", "Wishes"]

PREFIX: Final = "blockmgr_"
PRIORITIES: Final = {p.name.lower(): p for p in Priority if p is not Priority.PINNED}
ACCEPTED: Final = {
    "priority": f"one of {', '.join(PRIORITIES)}",
    "ttl": "a finite number of seconds above 0, beside a priority",
    "cache_control": "5m or 1h, without a priority",
    "expect_reuse": "true or false",
}
CACHE_CONTROL: Final = {"5m": 300.0, "1h": 3600.0}
"""Seconds of the times to live that clients of Anthropic's API know."""

OTHER: Final = "other"
"""Counts wishes of unknown names, whose number must not grow with what clients invent."""

SILENCE_S: Final = 60.0
"""Shortest time between two lines of the log about ignored wishes."""

logger = logging.getLogger("vllm.blockmgr")  # below the logger that vLLM sets up


class Wish(NamedTuple):
    """What a request asks for, checked.

    Attributes:
        priority: How long to keep its prompt; None for no wish.
        ttl: Seconds until that ends; None for never.
        expect_reuse: Whether its conversation will continue; None if it does not say.
    """

    priority: Priority | None = None
    ttl: float | None = None
    expect_reuse: bool | None = None


NO_WISH: Final = Wish()


class Wishes:
    """Reads the wishes of requests, and counts those that it ignores.

    Args:
        retention: Whether the manager has retention; without it, every wish is ignored.

    Attributes:
        ignored: Ignored wishes by name, without the prefix ``blockmgr_``.
    """

    def __init__(self, retention: bool) -> None:
        self._retention = retention
        self._due = -math.inf
        self.ignored: Counter[str] = Counter()

    def of(self, request: Request) -> Wish:
        """The wishes of a request; never raises."""
        params = request.sampling_params
        extra = getattr(params, "extra_args", None)
        if type(extra) is not dict:
            return NO_WISH
        # Exact types: a subclass may run code of its own when it is compared or converted.
        said = {
            name.removeprefix(PREFIX): value
            for name, value in extra.items()
            if type(name) is str and name.startswith(PREFIX)
        }
        if not said:
            return NO_WISH
        priority = said.get("priority")
        wish = Wish(
            PRIORITIES.get(priority) if type(priority) is str else None,
            _seconds(said.get("ttl")),
            _truth(said.get("expect_reuse")),
        )
        if wish.priority is None:
            wish = wish._replace(ttl=None)
        heard = wish if self._retention else NO_WISH
        control = said.get("cache_control")
        seconds = CACHE_CONTROL.get(control) if type(control) is str else None
        if seconds is not None and "priority" not in said and self._retention:
            heard = heard._replace(priority=Priority.HIGH, ttl=seconds)
            said = {name: value for name, value in said.items() if name != "cache_control"}
        for name, value in said.items():
            if getattr(heard, name, None) is None:
                self._ignore(name, value, request.request_id)
        return heard

    def _ignore(self, name: str, value: Any, request_id: str) -> None:
        self.ignored[name if name in ACCEPTED else OTHER] += 1
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + SILENCE_S
        reason = f"must be {ACCEPTED[name]}" if name in ACCEPTED else "is no wish of blockmgr"
        logger.warning(
            "blockmgr ignores %s%s=%s of request %s: it %s; %d wishes ignored so far",
            PREFIX,
            reprlib.repr(name)[1:-1],
            _shown(value),
            reprlib.repr(request_id),
            reason if self._retention else "needs the option blockmgr.retention",
            self.ignored.total(),
        )


def _truth(value: Any) -> bool | None:
    """A truth, which JSON clients may send as 0 or 1; None if it is none."""
    is_truth = type(value) is bool or (type(value) is int and value in {0, 1})
    return bool(value) if is_truth else None


def _shown(value: Any) -> str:
    """A short text of a value; its type alone where the value has no text."""
    try:
        return reprlib.repr(value)
    except Exception:  # an int of more than 4,300 digits, at any depth
        return f"({type(value).__name__})"


def _seconds(value: Any) -> float | None:
    """A time to live; None if it is none."""
    if type(value) is not int and type(value) is not float:
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if 0 < seconds < math.inf else None
