"""True hints about which conversations continue, and their effect on a replay."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from blockmgr.lab.hints import Clients, Outlook, Traits, sessions_of, tool_waits
from blockmgr.lab.replay import ReplayConfig, replay
from blockmgr.lab.replay_config import HINT_MODELS
from blockmgr.lab.trace import Request, Trace
from blockmgr.lab.workloads import generate
from tests.lab.worlds import ONE_AT_A_TIME, hashed

KINDS = "hints must be one of none, session, tool, ended_session, truth"
SEQUENTIAL = replace(ONE_AT_A_TIME, block_size=2)


def trace(
    *prompts: list[int], namespaces: tuple[bytes, ...] = (), outputs: tuple[int, ...] = ()
) -> Trace:
    names, lengths = namespaces or (b"",) * len(prompts), outputs or (1,) * len(prompts)
    requests = (
        Request(arrival_ms=i, prompt=np.array(p, np.uint32), num_output_tokens=n, namespace=name)
        for i, (p, name, n) in enumerate(zip(prompts, names, lengths, strict=True))
    )
    return Trace("made", tuple(requests))


def said(made: Trace, admitted: int = 0) -> list[bool]:
    outlook = Outlook(made, 2)
    return [outlook.goes_on(number, admitted) for number in range(1, len(made.requests) + 1)]


def test_a_request_goes_on_if_a_later_prompt_is_served_all_its_blocks() -> None:
    assert said(trace([1, 2, 3, 4], [1, 2, 3, 4, 5])) == [True, False]


def test_a_last_block_that_ends_the_later_prompt_is_not_served() -> None:
    assert said(trace([1, 2, 3, 4], [1, 2, 3, 4])) == [False, False]


def test_sharing_the_beginning_alone_is_not_going_on() -> None:
    assert said(trace([1, 2, 3, 4], [1, 2, 9, 9, 9])) == [False, False]


def test_other_namespaces_never_go_on() -> None:
    assert said(trace([1, 2], [1, 2, 3], namespaces=(b"a", b"b"))) == [False, False]


def test_what_was_admitted_already_is_no_future() -> None:
    made = trace([1, 2], [1, 2, 3], [1, 2, 4])
    assert said(made, admitted=2) == [True, True, False]
    assert said(made, admitted=3) == [False, False, False]


def test_a_prompt_shorter_than_a_block_never_goes_on() -> None:
    assert said(trace([1], [1, 2, 3])) == [False, False]


def test_prompts_known_by_ids_go_on_by_whole_ids_at_every_block_size() -> None:
    made = hashed(([7, 8], 600), ([7, 9], 1000), ([6], 512))
    for block_size in (16, 512):
        outlook = Outlook(made, block_size)
        assert [outlook.goes_on(n, 0) for n in (1, 2, 3)] == [True, False, False]


def test_hints_save_what_will_be_used_from_what_will_not() -> None:
    made = trace([1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2, 3, 4])
    without = replay(made, 3, SEQUENTIAL)
    hinted = replay(made, 3, replace(SEQUENTIAL, hints="truth"))
    assert (without.hit_tokens, hinted.hit_tokens) == (0, 2)


def test_a_last_id_that_covers_less_than_its_tokens_does_not_come_back() -> None:
    outlook = Outlook(hashed(([7, 8], 600), ([7, 9], 1024), ([6], 100)), 16)
    assert [outlook.num_returning_tokens(n) for n in (1, 2, 3)] == [512, 1024, 0]
    assert Outlook(trace([1, 2, 3]), 2).num_returning_tokens(1) == 3


def test_hints_let_go_of_blocks_that_nobody_can_find() -> None:
    two = [([7, 8], 768), ([17, 18], 768)]  # each leaves two blocks that return, and one
    made = hashed(*two, ([5], 512), ([7, 9], 768), ([17, 19], 768))
    hinted = replay(made, 6, replace(SEQUENTIAL, block_size=256, hints="truth", outputs="none"))
    assert hinted.hit_tokens == 2 * 512


@pytest.mark.parametrize("workload", ["chat", "agent"])
def test_hints_change_what_is_kept_and_nothing_else(workload: str) -> None:
    made = generate(workload, seed=1)
    config = ReplayConfig(block_size=64)
    ample = [replay(made, 100_000, replace(config, hints=hints)) for hints in ("none", "truth")]
    for left, right in pairwise(ample):
        assert replace(left, memory_bytes=0) == replace(right, memory_bytes=0)


def test_an_unknown_kind_of_hint_is_refused() -> None:
    with pytest.raises(ValueError, match=f"{KINDS}, got 'guess'"):
        ReplayConfig(hints="guess")  # type: ignore[arg-type]


class Told:
    """Evicts the idle leaf whose request had the longest output."""

    def __init__(self, _capacity: int) -> None:
        self.length = 0
        self.idle: dict[int, int] = {}
        self.parent: dict[int, int] = {}
        self.traits: list[Traits] = []

    def on_request_end(self, traits: Traits) -> None:
        self.traits.append(traits)
        self.length = traits.num_output_tokens

    def on_cached(self, block: int, parent: int, digest: bytes) -> None:
        self.parent[block] = parent

    def on_hit(self, block: int) -> None: ...

    def on_idle(self, block: int) -> None:
        self.idle[block] = self.length

    def on_used(self, block: int) -> None:
        self.idle.pop(block, None)

    def on_uncached(self, block: int, evicted: bool) -> None:
        self.idle.pop(block, None)
        del self.parent[block]

    def victim(self) -> int:
        inner = set(self.parent.values())
        return max((b for b in self.idle if b not in inner), key=lambda b: (self.idle[b], b))


SHORT_COMES_BACK = trace(
    [1, 2, 3], [4, 5, 6], [7, 8, 9], [4, 5, 6, 7], [4, 5, 6, 7, 8], outputs=(9, 1, 1, 2, 3)
)
NO_OUTPUTS = replace(SEQUENTIAL, outputs="none")


def test_a_policy_of_ones_own_is_told_the_traits_of_what_ends() -> None:
    made: list[Told] = []

    def factory(capacity: int) -> Told:
        made.append(Told(capacity))
        return made[-1]

    result = replay(SHORT_COMES_BACK, 4, replace(NO_OUTPUTS, eviction=factory))
    told = [(t.turn, t.num_prompt_tokens, t.num_output_tokens) for t in made[0].traits]
    assert told == [(1, 3, 9), (1, 3, 1), (1, 3, 1), (2, 4, 2), (3, 5, 3)]
    assert [t.arrival_ms for t in made[0].traits] == [0, 1, 2, 3, 4]
    # The long answer's blocks were evicted first, so both turns find their history.
    assert result.hit_tokens == 2 + 4


def test_hints_may_be_a_function_of_traits() -> None:
    asked: list[Traits] = []

    def short(traits: Traits) -> bool | None:
        asked.append(traits)
        return traits.num_output_tokens < 5

    plain = replay(SHORT_COMES_BACK, 3, NO_OUTPUTS)
    hinted = replay(SHORT_COMES_BACK, 3, replace(NO_OUTPUTS, hints=short))
    assert [t.turn for t in asked] == [1, 1, 1, 2, 3]
    assert hinted.hit_tokens >= plain.hit_tokens
    silent = replay(SHORT_COMES_BACK, 3, replace(NO_OUTPUTS, hints=lambda _: None))
    assert silent.hit_tokens == plain.hit_tokens
    with pytest.raises(ValueError, match=f"{KINDS}, got 'maybe'"):
        replace(NO_OUTPUTS, hints="maybe")  # type: ignore[arg-type]


def numbered(made: Trace, *sessions: int) -> Trace:
    pairs = zip(made.requests, sessions, strict=True)
    return Trace("named", tuple(replace(request, session=number) for request, number in pairs))


def test_a_client_knows_the_conversation_that_it_continues() -> None:
    made = trace([1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4, 9], [1, 2, 9, 9], [5, 6, 7, 8, 9])
    assert sessions_of(made, 2) == [1, 2, 1, 4, 2]
    assert sessions_of(numbered(made, 7, 0, 7, 7, 0), 2) == [7, 0, 7, 7, 0]


def hits(made: Trace, num_blocks: int) -> list[int]:
    config = replace(NO_OUTPUTS, block_size=1)
    kinds = ("none", "session", "ended_session")
    return [replay(made, num_blocks, replace(config, hints=kind)).hit_tokens for kind in kinds]


def test_a_named_session_makes_room_by_what_its_next_prompt_leaves_out() -> None:
    made = trace([8, 8, 8], [1, 2, 3, 4], [1, 2, 6, 7], [8, 8, 8, 0])
    assert hits(numbered(made, 0, 1, 1, 0), 7) == [2 + 1, 2 + 3, 2 + 3]


def test_a_session_that_its_client_ends_makes_room() -> None:
    made = trace([8, 8, 8], [1, 2, 3], [5, 6, 7], [8, 8, 8, 0])
    assert hits(numbered(made, 0, 1, 0, 0), 6) == [0, 0, 3]


def at_times(made: Trace, *times: int) -> Trace:
    pairs = zip(made.requests, times, strict=True)
    return Trace("timed", tuple(replace(request, arrival_ms=time) for request, time in pairs))


def waits(made: Trace, **options: int) -> dict[int, int]:
    sessions = [request.session for request in made.requests]
    return tool_waits(made.requests, sessions, replace(SEQUENTIAL, **options))


def test_without_tools_a_short_pause_in_a_session_is_that_of_a_tool() -> None:
    made = numbered(trace([1], [2], [1], [2], [1], [3]), 1, 2, 1, 2, 1, 0)
    made = at_times(made, 0, 1, 1900, 2000, 40_000, 40_001)
    # Session 1 pauses for 1.9 and 38.1 s, and session 2 for 2 s.
    assert waits(made) == {1: 2, 2: 2}
    assert waits(made, min_service_ms=10_000) == {1: 1, 2: 1, 3: 32}


def test_a_client_states_the_next_power_of_two_of_seconds() -> None:
    pauses = [0, 1000, 1001, 2000, 2001, 4000, 4001, 30_000]
    times = [sum(pauses[:n]) for n in range(len(pauses) + 1)]
    made = at_times(numbered(trace(*([1],) * 9), *([1] * 9)), *times)
    assert list(waits(made).values()) == [1, 1, 2, 2, 4, 4, 8, 32]


def test_tools_of_the_trace_count_instead_of_pauses() -> None:
    made = at_times(numbered(trace([1], [1], [1]), 1, 1, 1), 0, 10, 20)
    first, second, third = made.requests
    made = Trace("tools", (replace(first, tool_ms=30_001), replace(second, tool_ms=7000), third))
    assert waits(made) == {2: 8}  # a client asks for no longer time than 30 s


def test_a_session_that_waits_for_a_tool_is_kept_until_the_tool_is_late() -> None:
    made = numbered(trace([1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2, 3, 0]), 1, 0, 0, 1)
    config = replace(NO_OUTPUTS, block_size=1, hints="tool")
    for tool_ms, hits in ((9000, 3), (3000, 0)):
        first, *others = at_times(made, 0, 1, 5000, 6000).requests
        told = Trace("tools", (replace(first, tool_ms=tool_ms), *others))
        assert replay(told, 6, config).hit_tokens == hits
        assert replay(told, 6, replace(config, hints="session")).hit_tokens == 0


@pytest.mark.parametrize("kind", HINT_MODELS)
def test_clients_say_what_their_model_states_and_nothing_else(kind: str) -> None:
    class Listening:
        def __init__(self) -> None:
            self.heard: set[str] = set()

        def __getattr__(self, name: str) -> object:
            return lambda *_, **__: self.heard.add(name)

    made = at_times(numbered(trace([1], [1], [2]), 1, 1, 2), 0, 10, 20)
    manager, clients = Listening(), Clients(made, replace(SEQUENTIAL, hints=kind))  # type: ignore[arg-type]
    for number, request in enumerate(made.requests, start=1):
        clients.at(manager, request.arrival_ms)  # type: ignore[arg-type]
        clients.after(manager, clients.named(request, number), number)  # type: ignore[arg-type]
    model = HINT_MODELS[kind]
    expected = {"signal", "set_time"} if model.waits else set()
    assert manager.heard == expected | ({"end_session"} if model.ends else set())
