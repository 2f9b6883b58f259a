"""The comparison of vLLM's events can fail: it finds bugs planted in the event code.

Skipped where vLLM is not installed: see ``tests/engines/run``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM: see tests/engines/run")

from vllm.distributed.kv_events import BlockRemoved

from blockmgr.ports.vllm import commits, events
from tests.engines.events import EventWorld
from tests.engines.world import draw

MODEL = os.environ.get("BLOCKMGR_TINY_MODEL", "")
pytestmark = pytest.mark.skipif(not MODEL, reason="BLOCKMGR_TINY_MODEL names no model")
SEEDS = 4


def wrong_runs(kind: str = "full", *, sized: bool = False) -> int:
    """Runs in which the mirror differs from what can be found, or that end in an error."""
    wrong = 0
    named: dict[str, Any] = {"kind": kind, "sized": sized, "lossless": kind != "full"}
    for seed in range(SEEDS):
        world = EventWorld(draw(seed, MODEL, "fcfs", False, {}, events=True, **named))
        try:
            world.run()
        except Exception:
            wrong += 1
        else:
            wrong += bool(world.differing or world.published.twice or world.published.unknown)
    return wrong


@pytest.mark.parametrize(("kind", "sized"), [("full", False), ("window", True), ("state", True)])
def test_the_events_themselves_are_right(kind: str, sized: bool) -> None:
    assert wrong_runs(kind, sized=sized) == 0


def test_a_commit_that_is_not_told_of_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: Any, held: Any, num_tokens: int) -> None:
        self._manager.commit(held.handle, num_tokens)
        held.num_committed = num_tokens

    monkeypatch.setattr(commits.Commits, "_commit", commit)
    assert wrong_runs("state", sized=True) > 0


def test_small_blocks_that_are_told_once_for_each_large_one_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_runs = events.KVEvents._new_runs

    def forgetful(self: Any, *arguments: Any) -> Any:
        self._copies = defaultdict(lambda: 1)
        return new_runs(self, *arguments)

    monkeypatch.setattr(events.KVEvents, "_new_runs", forgetful)
    assert wrong_runs("window", sized=True) > 0


def test_blocks_that_are_told_of_at_the_wrong_place_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hashes = events.KVEvents._hashes

    def elsewhere(self: Any, request: Any, start: int, stop: int) -> Any:
        return hashes(self, request, 0, stop - start)

    monkeypatch.setattr(events.KVEvents, "_hashes", elsewhere)
    assert wrong_runs() > 0


def test_a_removal_that_is_not_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    take = events.KVEvents.take

    def keep(self: Any) -> Any:
        return [event for event in take(self) if not isinstance(event, BlockRemoved)]

    monkeypatch.setattr(events.KVEvents, "take", keep)
    assert wrong_runs() > 0
