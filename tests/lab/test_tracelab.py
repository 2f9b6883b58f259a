"""TraceLab's rounds: what prompts share by their lengths, sessions, tools, and hostile rows."""

from __future__ import annotations

import json
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from blockmgr.errors import TraceFormatError
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.trace import HashedPrompt, Trace, read_trace
from tests.lab.conftest import WriteLines

SIZE = ReplayConfig(block_size=64)


def event(second: float, kind: str = "user_message") -> dict[str, Any]:
    return {"event_type": kind, "timestamp": f"2026-01-01T00:00:{second:06.3f}Z"}


def row(index: int, tokens: int, prefix: int = 0, **more: Any) -> dict[str, Any]:
    return {
        **{"provider": "p", "session_id": "s", "round_index": index, "model": "m"},
        **{"input_tokens_total": tokens, "prefix_tokens": prefix, "output_tokens": 9},
        **{"timing_events": [event(index)], **more},
    }


def shared(trace: Trace) -> list[int]:
    """The leading ids that each prompt has in common with any earlier one."""
    prompts = []
    counts = []
    for request in trace.requests:
        assert isinstance(request.prompt, HashedPrompt)
        ids = request.prompt.ids.tolist()
        ends = [[*map(eq, ids, other), False].index(False) for other in prompts]
        counts.append(max(ends, default=0))
        prompts.append(ids)
    return counts


def test_a_longer_prompt_repeats_the_one_before_whatever_the_provider_forgot(read: Any) -> None:
    trace = read(row(0, 640), row(1, 1000, 640), row(2, 1300), row(3, 2000, 1400))
    # 1,000 tokens are 15 whole ids; 1,300 are 20. More than the prompt before cannot be shared.
    assert shared(trace) == [0, 10, 15, 20]
    assert unbounded(trace, SIZE).hit_tokens == (10 + 15 + 20) * 64


def test_a_shorter_prompt_repeats_what_the_provider_had_of_it(read: Any) -> None:
    trace = read(row(0, 1280), row(1, 900, 320), row(2, 1000, 0))
    assert shared(trace) == [0, 5, 14]


def test_first_prompts_share_their_prefix_with_their_own_user_and_model(read: Any) -> None:
    first = row(0, 1000, 640)
    others: list[dict[str, Any]] = [
        {},
        {"user": "u"},
        {"model": "n"},
        {"provider": "q"},
        {"prefix_tokens": 320},
        {"prefix_tokens": 700},
    ]
    named = ({**first, **more, "session_id": str(n)} for n, more in enumerate(others))
    trace = read(first, *named)
    assert shared(trace) == [0, 10, 0, 0, 0, 5, 10]
    assert [one.namespace for one in trace.requests[3:5]] == [b"p n", b"q m"]


def test_another_model_of_a_session_begins_anew(read: Any) -> None:
    trace = read(row(0, 640), row(1, 700, 640, model="n"), row(2, 900, 640))
    assert shared(trace) == [0, 0, 10]
    assert [one.session for one in trace.requests] == [1, 1, 1]


def test_sessions_that_follow_each_other_in_the_file_are_put_in_order(read: Any) -> None:
    rows = [row(0, 64), row(8, 128), {**row(0, 70), "session_id": "t", "timing_events": [event(4)]}]
    trace = read(*rows)
    assert [one.arrival_ms for one in trace.requests] == [0, 4000, 8000]
    assert [one.session for one in trace.requests] == [1, 2, 1]
    assert [one.num_output_tokens for one in trace.requests] == [9, 9, 9]


def test_a_round_arrives_with_its_last_input_before_the_first_output(read: Any) -> None:
    events = [
        [event(5), event(6, "tool_result"), event(7, "text"), event(8, "tool_result")],
        [event(9, "text"), event(10)],
        [{"event_type": "user_message", "timestamp": None}, event(11, "tool_result")],
    ]
    trace = read(*(row(n, 64, timing_events=one) for n, one in enumerate(events)))
    assert [one.arrival_ms for one in trace.requests] == [0, 3000, 5000]


def test_the_slowest_tool_of_an_answer_is_its_time(read: Any) -> None:
    internal, wall = "tool_internal_latency_ms", "tool_wall_latency_ms"
    tools: list[Any] = [
        [{internal: 40, wall: 900}, {internal: None, wall: 70}],
        [],
        None,
        [{wall: -5}, {wall: None}, {}],
        [{wall: 0.5}],
    ]
    trace = read(*(row(n, 64, tools=one) for n, one in enumerate(tools)))
    assert [one.tool_ms for one in trace.requests] == [70, None, None, None, 0]


def test_rounds_that_come_again_or_say_nothing_are_left_out(read: Any) -> None:
    again = {**row(1, 200), "session_id": "t"}
    rows = (row(0, 64), row(1, 128), row(1, 128), row(0, 64), again, row(2, 0))
    trace = read(*rows, row(3, 256, timing_events=[]), row(4, 300, round_index=None))
    assert [one.num_prompt_tokens for one in trace.requests] == [64, 128, 200, 300]
    assert trace.read is not None
    assert trace.read.left_out == {
        "rounds that come again": 2,
        "rounds without a prompt": 1,
        "rounds without times": 1,
    }


def test_ids_stand_for_as_many_tokens_as_asked(read: Any) -> None:
    trace = read(row(0, 640), row(1, 1000, 640), tokens_per_id=16)
    assert (trace.tokens_per_id, shared(trace)) == (16, [0, 40])
    assert read(row(0, 64), row(1, 65), tokens_per_id=2**40).requests[1].num_prompt_tokens == 65


def test_the_sessions_of_several_files_share_their_first_prompts(
    write_lines: WriteLines, tmp_path: Path
) -> None:
    folder = tmp_path / "rounds"
    folder.mkdir()
    for name in ("a", "b"):
        text = json.dumps({**row(0, 1000, 640), "session_id": name})
        (folder / f"{name}.jsonl").write_text(text)
    assert shared(read_trace(folder)) == [0, 10]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"input_tokens_total": 2**22 + 1}, r"input_tokens_total 4194305, expected an integer in"),
        ({"input_tokens_total": -1}, "input_tokens_total -1"),
        ({"input_tokens_total": 1.5}, "input_tokens_total 1.5"),
        ({"prefix_tokens": 65}, r"prefix_tokens 65, expected an integer in \[0, 64\]"),
        ({"output_tokens": "9"}, 'output_tokens "9"'),
        ({"session_id": None}, "session_id null, expected a string"),
        ({"session_id": 5}, "session_id 5, expected a string"),
        ({"model": []}, r"model \[\], expected a string"),
        ({"round_index": "1"}, 'round_index "1"'),
        ({"timing_events": {}}, r"timing_events \{\}, expected a list"),
        ({"timing_events": [7]}, "7 in timing_events, expected objects"),
        ({"timing_events": [{"event_type": "text", "timestamp": "soon"}]}, 'timestamp "soon"'),
        ({"tools": [None]}, "null in tools, expected objects"),
    ],
)
def test_a_malformed_round_is_named(read: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceFormatError, match=message):
        read(row(0, 64), {**row(1, 64), **more})


def test_a_round_without_a_length_is_named(read: Any) -> None:
    later = row(1, 64)
    del later["prefix_tokens"]
    with pytest.raises(TraceFormatError, match='no field "prefix_tokens", expected one in every'):
        read(row(0, 64), later)


def test_the_longest_prompts_of_many_sessions_are_read(read: Any) -> None:
    rows = ({**row(0, 2**22, 2**22), "session_id": str(n)} for n in range(20))
    assert shared(read(*rows))[1:] == [2**16] * 19
