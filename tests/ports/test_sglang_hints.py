"""The hints that SGLang's requests carry, carried out on the pages of a pool at their ends.

``tests/engines/sglang`` runs SGLang itself.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra 'hints'")

from blockmgr import Priority
from blockmgr.pool import BlockPool
from blockmgr.ports.sglang import hinting
from blockmgr.ports.sglang.keys import namespace_of

SIZE = 2
LOW, NORMAL, HIGH = Priority.LOW, Priority.NORMAL, Priority.HIGH


class Cache:
    """A pool whose requests end one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pool = BlockPool(16, SIZE, retention=True)
        self.hints = hinting.RequestHints(self.pool, 4)
        self.now = 0.0
        monkeypatch.setattr(hinting.time, "monotonic", lambda: self.now)

    def end(
        self,
        tokens: list[int],
        *actions: dict[str, Any],
        session: Any = None,
        salt: str | None = None,
    ) -> list[int]:
        """Caches the prompt of a request, which then ends; its pages."""
        namespace = namespace_of(None, salt)
        found = self.pool.find(tokens, namespace=namespace)
        own = self.pool.take(len(tokens) // SIZE - len(found))
        if len(own):
            self.pool.promote(
                own, tokens[len(found) * SIZE :], parent=int(found[-1]) if len(found) else -1,
                namespace=b"" if len(found) else namespace,
            )  # fmt: skip
            self.pool.release(own)
        pages = [*found.tolist(), *own.tolist()]
        envelope = None
        if actions:
            named = [
                {"action_id": str(n), "action_version": "1.0", "payload": {}} | action
                for n, action in enumerate(actions)
            ]
            envelope = {"protocol_version": "0.1", "message_id": str(tokens), "actions": named}
        request = SimpleNamespace(
            kv_hints=envelope, session_id=session, extra_key=None, cache_salt=salt
        )
        self.hints.end(request, pages)
        self.pool.check_invariants()
        return pages

    def levels(self, pages: list[int]) -> list[Priority]:
        return [self.pool.priority(page) for page in pages]

    @property
    def results(self) -> dict[str, int]:
        return {name: n for name, n in self.hints.hints.counts.results.items() if n}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Cache:
    return Cache(monkeypatch)


def action(kind: str, **payload: Any) -> dict[str, Any]:
    return {"action_type": kind, "payload": payload}


def test_a_request_keeps_its_pages_for_as_long_as_it_asks(cache: Cache) -> None:
    pages = cache.end([1, 2, 3, 4], action("kv.retain", ttl=10.0))
    assert cache.levels(pages) == [HIGH, HIGH]
    cache.now = 11.0
    cache.hints.set_time()
    assert cache.levels(pages) == [NORMAL, NORMAL]


def test_a_range_and_a_bound_apply_to_the_pages_of_the_request(cache: Cache) -> None:
    pages = cache.end([1, 2, 3, 4, 5, 6], action("kv.retain", token_range=[0, 3], max_blocks=1))
    assert cache.levels(pages) == [HIGH, NORMAL, NORMAL]
    assert cache.results == {"clipped": 1}


def test_each_request_of_one_message_has_its_own_pages(cache: Cache) -> None:
    cache.end([1, 2], action("kv.demote"))
    again = cache.end([1, 2], action("kv.demote"))
    assert cache.results == {"accepted": 2}
    assert cache.levels(again) == [LOW]


def test_the_pages_of_a_session_are_those_of_its_last_request(cache: Cache) -> None:
    first = cache.end([1, 2, 3, 4], session="s")
    second = cache.end([1, 2, 5, 6], session="s")
    cache.end([9, 9], action("kv.retain", session="s"))
    assert cache.levels([first[1], *second]) == [NORMAL, HIGH, HIGH]
    cache.end([8, 8], action("kv.release", session="s"))
    assert cache.levels([first[1], *second]) == [NORMAL, NORMAL, LOW]
    cache.end([7, 7], action("kv.retain", session="s"))
    assert cache.results == {"accepted": 2, "missing": 1}


def test_what_others_have_of_a_session_stays(cache: Cache) -> None:
    pages = cache.end([1, 2, 3, 4, 5, 6, 7, 8], session="s")
    cache.end([1, 2, 3, 4], session="t")
    cache.end([9, 9], action("kv.demote", session="s"))
    assert cache.levels(pages) == [NORMAL, NORMAL, LOW, LOW]
    cache.end([9, 9, 1, 1], action("kv.demote", session="t"))
    # Those of the other session come after these.
    assert cache.levels(pages) == [NORMAL, NORMAL, LOW, LOW]


def test_what_a_request_uses_stays(cache: Cache) -> None:
    pages = cache.end([1, 2, 3, 4, 5, 6], session="s")
    cache.pool.acquire(pages[:2])
    cache.end([9, 9], action("kv.release", session="s"))
    assert cache.levels(pages) == [NORMAL, NORMAL, LOW]


def test_a_page_with_other_content_is_none_of_the_session(cache: Cache) -> None:
    cache.end([1, 2, 3, 4], session="s")
    cache.pool.release(cache.pool.evict(cache.pool.num_idle))
    others = cache.end([5, 6, 7, 8])
    cache.end([9, 9], action("kv.retain", session="s"), action("kv.demote", session="s"))
    assert cache.levels(others) == [NORMAL, NORMAL]
    assert cache.results == {"missing": 1, "accepted": 1}


def test_a_session_belongs_to_its_tenant(cache: Cache) -> None:
    pages = cache.end([1, 2], session="s", salt="a")
    for salt in ("b", None):
        cache.end([1, 2], action("kv.release", session="s"), salt=salt)
    assert cache.levels(pages) == [NORMAL]
    assert cache.results == {"missing": 2}


def test_no_digest_of_a_message_names_a_page(cache: Cache) -> None:
    pages = cache.end([1, 2])
    forged = hinting._PageName.of(pages[0], cache.pool.generation(pages[0]))
    for names in ([forged.hex()], [bytes(forged)], [int.from_bytes(forged, "big")]):
        cache.end([3, 4, len(str(names)), 5], action("kv.retain", block_hashes=names))
    assert cache.levels(pages) == [NORMAL]
    assert cache.results == {"rejected": 3}


def test_pins_and_tiers_are_rejected_with_the_reason(cache: Cache) -> None:
    cache.end([1, 2], action("kv.pin"), action("kv.prefetch"), action("kv.unknown"))
    assert cache.results == {"deferred": 1, "rejected": 2}
    assert cache.hints.hints.counts.ignored == 1


@pytest.mark.parametrize("envelope", [7, {"protocol_version": "9"}, b"\xff"])
def test_a_malformed_message_is_logged_once_and_stops_nothing(
    cache: Cache, envelope: Any, caplog: pytest.LogCaptureFixture
) -> None:
    request = SimpleNamespace(kv_hints=envelope, session_id=None, extra_key=None, cache_salt=None)
    with caplog.at_level(logging.WARNING, logger="sglang.blockmgr"):
        for _ in range(3):
            cache.hints.end(request, [])
    assert len(caplog.records) == 1
    assert cache.hints.hints.counts.malformed == 3


@pytest.mark.parametrize("session", [7, "", "s" * 257, ["s"]])
def test_a_session_that_no_hint_can_name_is_not_remembered(cache: Cache, session: Any) -> None:
    cache.end([1, 2], session=session)
    assert not cache.hints._pages._sessions


def test_the_sessions_are_bounded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hinting, "MOST_SESSIONS", 3)
    for number in range(10):
        cache.end([1, 2, 3, 4], session=str(number))
    cache.end([1, 2], session="9")
    assert list(cache.hints._pages._sessions) == [(b"", b"7"), (b"", b"8"), (b"", b"9")]
    assert sum(cache.hints._pages._tips.values()) == 3
