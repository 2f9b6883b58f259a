"""KV hints, sessions and retention of vLLM's requests, with one group of layers and several."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra 'hints'")

from blockmgr.errors import BlockMgrError
from blockmgr.ports.vllm.options import Options
from tests.ports.vllm_modules import KINDS, make, serve, spec, stand_ins

A, B = list(range(1, 10)), list(range(11, 20))  # two blocks of four tokens, and one more token
GROUPS: dict[str, tuple[Any, ...]] = {
    "full attention": (),
    "a window": (spec(), spec(KINDS.SLIDING_WINDOW, sliding_window=8)),
}


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from stand_ins(monkeypatch)


@pytest.fixture(params=GROUPS)
def specs(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    return GROUPS[request.param]


def envelope(kind: str, number: int = 0, **payload: Any) -> dict[str, Any]:
    action = {
        "action_id": "a", "action_type": kind, "action_version": "1.0", "payload": payload,
    }  # fmt: skip
    return {"protocol_version": "0.1", "message_id": str(number), "actions": [action]}


def found(manager: Any, tokens: list[int]) -> int:
    return int(manager.manager.match(tokens).num_cached_tokens)


def fill(manager: Any) -> None:
    """Other prompts, until what is idle and not retained is evicted."""
    for number in range(20):
        serve(manager, [100 + number] * 9, f"other {number}")


@pytest.mark.parametrize(
    "said",
    [
        {"kv_hints": envelope("kv.retain", priority="high")},
        {"sampling_params": SimpleNamespace(extra_args={"blockmgr_cache_control": "5m"})},
    ],
    ids=["hint", "wish"],
)
def test_a_request_keeps_its_prompt_as_it_says(
    specs: tuple[Any, ...], said: dict[str, Any]
) -> None:
    manager = make(*specs, retention=True, kv_hints="kv_hints" in said)
    serve(manager, A, "kept", **said)
    serve(manager, B, "plain")
    fill(manager)
    assert (found(manager, A), found(manager, B)) == (8, 0)


def test_a_request_pins_what_it_leaves(specs: tuple[Any, ...]) -> None:
    manager = make(*specs, retention=True, kv_hints=True, max_pinned_blocks=4)
    serve(manager, A, "kept", kv_hints=envelope("kv.pin"))
    assert manager.hints.counts.results["deferred"] == 1
    assert manager.hints.counts.pins == 1
    fill(manager)
    assert found(manager, A) == 8


def test_a_hint_acts_in_the_namespace_of_its_request() -> None:
    manager = make(retention=True, kv_hints=True)
    serve(manager, A, "theirs")
    names = [digest.hex() for digest in manager.manager.block_digests(A[:8])]
    hint = envelope("kv.demote", block_hashes=names)
    serve(manager, B, "ours", cache_salt="ours", kv_hints=hint)
    assert manager.hints.counts.results["missing"] == 1


def test_malformed_hints_are_counted_and_stop_nothing(caplog: pytest.LogCaptureFixture) -> None:
    manager = make(retention=True, kv_hints=True)
    with caplog.at_level(logging.WARNING):
        for number, wrong in enumerate([3, {}, b"\xc1", {"protocol_version": "9"}]):
            serve(manager, A, str(number), kv_hints=wrong)
    assert manager.hints.counts.malformed == 4
    assert len(caplog.records) == 1


def test_hints_are_ignored_unless_the_operator_turns_them_on() -> None:
    manager = make(retention=True)
    serve(manager, A, "kept", kv_hints=envelope("kv.retain"))
    assert manager.manager.stats().high_priority_blocks == 0
    with pytest.raises(BlockMgrError, match=r"blockmgr.kv_hints must be false without retention"):
        Options.read({"kv_hints": True})


@pytest.mark.parametrize("name", ["chat", "\ud800", "x" * 10_000])
def test_the_next_prompt_of_a_session_supersedes_the_last(name: str) -> None:
    manager = make(retention=True)
    serve(manager, [*A[:8], 5, 5, 5, 5, 9], "first", session_id=name)
    serve(manager, [*A[:8], 6, 6, 6, 6, 9], "second", session_id=name)
    assert manager.manager.stats().superseded_blocks == 1
    serve(manager, [*A[:8], 7, 7, 7, 7, 9], "third", session_id=None)
    assert manager.manager.stats().superseded_blocks == 1


def test_sessions_need_retention() -> None:
    manager = make()
    serve(manager, A, "first", session_id="chat")
    assert found(manager, A) == 8


def test_cache_control_yields_to_a_priority_and_may_be_wrong() -> None:
    manager = make(retention=True)
    for said in (
        {"blockmgr_cache_control": "1h", "blockmgr_priority": "low"},
        {"blockmgr_cache_control": "1d"},
        {"blockmgr_cache_control": ["1h"]},
    ):
        serve(manager, A, "first", sampling_params=SimpleNamespace(extra_args=said))
    assert manager.wishes.ignored == {"cache_control": 3}
