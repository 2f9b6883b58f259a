"""The comparison of vLLM's events can fail: it finds bugs planted in the event code.

Skipped where vLLM is not installed: see ``tests/engines/run``.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: see tests/engines/run")

from blockmgr.ports.vllm import events
from tests.engines.events import EventWorld
from tests.engines.world import draw

MODEL = os.environ.get("BLOCKMGR_TINY_MODEL", "")
pytestmark = pytest.mark.skipif(not MODEL, reason="BLOCKMGR_TINY_MODEL names no model")
SEEDS = 4


def wrong_runs() -> int:
    """Runs in which the mirror differs from what can be found, or that end in an error."""
    wrong = 0
    for seed in range(SEEDS):
        world = EventWorld(draw(seed, MODEL, "fcfs", False, {}, events=True))
        try:
            world.run()
        except Exception:
            wrong += 1
        else:
            wrong += bool(world.differing or world.published.twice or world.published.unknown)
    return wrong


def test_the_events_themselves_are_right() -> None:
    assert wrong_runs() == 0


def test_blocks_that_are_told_of_at_the_wrong_place_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = events.KVEvents._stored

    def elsewhere(self: Any, request: Any, start: int, stop: int, parent: Any) -> Any:
        return stored(self, request, 0, stop - start, parent)

    monkeypatch.setattr(events.KVEvents, "_stored", elsewhere)
    assert wrong_runs() > 0


def test_a_removal_that_is_not_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = events.KVEvents.take

    def keep(self: Any) -> Any:
        return [event for event in take(self) if not isinstance(event, events.BlockRemoved)]

    monkeypatch.setattr(events.KVEvents, "take", keep)
    assert wrong_runs() > 0
