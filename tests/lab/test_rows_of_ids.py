"""Rows of ids: block sizes that rows declare, blocks without ids, other names, times, sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockmgr.errors import TraceFormatError
from blockmgr.lab.attainable import unbounded
from blockmgr.lab.replay import ReplayConfig
from blockmgr.lab.trace import Trace, read_trace
from tests.lab.conftest import WriteLines


def row(time: Any, tokens: int, ids: list[Any], **more: Any) -> dict[str, Any]:
    return {"timestamp": time, "input_length": tokens, "output_length": 1, "hash_ids": ids, **more}


def arrivals(trace: Trace) -> list[int]:
    return [request.arrival_ms for request in trace.requests]


def assumed(trace: Trace, subject: str) -> str:
    assert trace.read is not None
    return trace.read.assumed[subject]


@pytest.mark.parametrize(("size", "tokens"), [(48, 140), (1056, 3100), (7, 20)])
def test_the_block_size_of_the_rows_decides(read: Any, size: int, tokens: int) -> None:
    rows = [row(n, tokens, [1, 10 * n + 2, 10 * n + 3], block_size=size) for n in range(5)]
    trace = read(*rows)
    assert trace.tokens_per_id == size
    assert assumed(trace, "tokens an id") == f"{size}, block_size of the rows"
    assert unbounded(trace, ReplayConfig(block_size=size)).hit_tokens == 4 * size


def test_rows_and_options_that_disagree_about_the_block_size_are_refused(read: Any) -> None:
    rows = [row(0, 20, [1, 2], block_size=16), row(1, 20, [1, 3], block_size=18)]
    with pytest.raises(TraceFormatError, match="block_size 18, expected 16, block_size of the"):
        read(*rows)
    with pytest.raises(TraceFormatError, match="block_size 16, expected 15, as --tokens-per-id"):
        read(rows[0], tokens_per_id=15)
    with pytest.raises(TraceFormatError, match="block_size 16, expected 20 to 39"):
        read(row(0, 40, [1, 2]), row(1, 20, [1, 3], block_size=16))


def whole_blocks(wide: bool) -> list[dict[str, Any]]:
    rows, ids = [], 100
    for number, tokens in enumerate((338, 407, 523, 611, 350, 777)):
        mine = [0, 1, 2, 3, *range(ids, ids + tokens // 16 - 4)]
        ids += tokens // 16 - 4
        named = [f"{one:064x}" for one in mine] if wide else mine
        rows.append(row(9000 * number, tokens, named))
    return rows


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("declared", [False, True])
def test_ids_of_whole_blocks_alone_are_read_with_their_size(
    read: Any, wide: bool, declared: bool
) -> None:
    rows = whole_blocks(wide)
    if declared:
        trace = read(*({**one, "block_size": 16} for one in rows))
    else:
        trace = read(*rows, tokens_per_id=16)
    assert [r.num_prompt_tokens for r in trace.requests] == [r["input_length"] for r in rows]
    assert unbounded(trace, ReplayConfig(block_size=16)).hit_tokens == 5 * 64
    assert "whole blocks alone" in assumed(trace, "ids")


def test_the_same_prompt_twice_shares_no_block_without_an_id(read: Any) -> None:
    trace = read(*[row(n, 40, [2**63 + 5, -1], block_size=16) for n in range(3)])
    assert unbounded(trace, ReplayConfig(block_size=4)).hit_tokens == 2 * 32


def test_a_block_without_an_id_is_equal_to_no_block_with_one(read: Any) -> None:
    # The id of the second prompt's last block is the number of the first request.
    rows = [row(0, 40, [7, 8], block_size=16), row(1, 48, [7, 8, 1], block_size=16)]
    assert unbounded(read(*rows), ReplayConfig(block_size=4)).hit_tokens == 32


def test_without_a_size_ids_of_whole_blocks_are_refused_with_the_option(read: Any) -> None:
    with pytest.raises(TraceFormatError, match=r"incomplete block .*--tokens-per-id \(16 fits\)"):
        read(*whole_blocks(wide=False))


def test_a_later_row_may_not_lack_the_id_of_its_last_block(read: Any) -> None:
    good = [row(n, 40, [1, 2, 10 + n], block_size=16) for n in range(40)]
    with pytest.raises(TraceFormatError, match=r":41:.* none for the last, incomplete block"):
        read(*good, row(50, 40, [1, 2], block_size=16))


def test_names_of_dynamo_and_aiperf_are_read(read: Any) -> None:
    one = {"created_time": 5.0, "input_tokens": 600, "output_tokens": 3, "hash_ids": [1, 2]}
    trace = read(one, {**one, "created_time": 1005.0, "request_id": "r"})
    [first, second] = trace.requests
    assert (second.arrival_ms, first.num_prompt_tokens, first.num_output_tokens) == (1005, 600, 3)
    assert trace.read.unread == {}
    with pytest.raises(TraceFormatError, match="input_length 600 and input_tokens 601"):
        read({**one, "input_length": 600, "input_tokens": 601})


EPOCH = 1_764_000_000


@pytest.mark.parametrize("name", ["timestamp", "ts", "time", "start_time", "startTime"])
@pytest.mark.parametrize(
    ("times", "unit"),
    [
        ([EPOCH, EPOCH + 1.5], "seconds since 1970"),
        ([EPOCH * 10**3, EPOCH * 10**3 + 1500], "milliseconds since 1970"),
        ([EPOCH * 10**6, EPOCH * 10**6 + 1_500_000], "microseconds since 1970"),
        ([str(EPOCH * 10**9), str(EPOCH * 10**9 + 1_500_000_000)], "nanoseconds since 1970"),
        (["2025-11-24T16:00:00Z", "2025-11-24T17:00:01.5+01:00"], "ISO 8601"),
        ([0, 1500], "milliseconds from the start"),
    ],
)
def test_units_of_times_are_told_apart_by_size(
    read: Any, name: str, times: list[Any], unit: str
) -> None:
    rows = [{**row(None, 600, [1, 2]), name: at} for at in times]
    trace = read(*rows)
    assert arrivals(trace) == [0, 1500]
    assert assumed(trace, "clock") == f"{name} in {unit}"


def test_the_first_records_decide_whether_times_are_dates(read: Any) -> None:
    # Twelve days in milliseconds are no date, even if the file is not in order.
    trace = read(row(10**9 + 7, 600, [1, 2]), row(12, 600, [1, 3]), sort=True)
    assert arrivals(trace) == [12, 10**9 + 7]
    rows = [row(EPOCH, 600, [1, n + 2]) for n in range(40)]
    with pytest.raises(TraceFormatError, match="timestamp 12, expected a date"):
        read(*rows, row(12, 600, [1, 99]))


def test_a_second_time_of_a_row_is_reported(read: Any) -> None:
    trace = read({**row(5, 600, [1, 2]), "ts": 5, "request_time": 9})
    assert trace.read.unread == {"request_time": 1}


def test_sessions_without_times_go_on_after_their_answers(read: Any) -> None:
    plain = {"input_length": 600, "output_length": 10, "hash_ids": [1, 2]}
    trace = read(
        {**plain, "session_id": "a"},
        {**plain, "session_id": "b"},
        {**plain, "session_id": "a", "delay": 50},
        {**plain, "session_id": "a"},
    )
    # 30 ms a token of the answer, then the delay, or ten seconds.
    assert arrivals(trace) == [0, 350, 1000, 350 + 300 + 10_000]
    assert assumed(trace, "clock").startswith("none: conversations begin 1000 ms apart")


def test_a_time_that_only_some_rows_lack_is_refused(read: Any) -> None:
    plain = {"input_length": 600, "output_length": 10, "hash_ids": [1, 2]}
    with pytest.raises(TraceFormatError, match="found no time, expected a time in every record"):
        read({**plain, "timestamp": 4}, plain)
    with pytest.raises(TraceFormatError, match="delay -1"):
        read({**plain, "delay": -1})


def test_turns_that_hold_only_what_is_new_are_refused(read: Any) -> None:
    turns = [row(0, 600, [1, 2], session_id="a"), row(1, 600, [3, 4], session_id="a")]
    with pytest.raises(TraceFormatError, match=r"session_id \"a\" that shares no id with the one"):
        read(*turns)
    with pytest.raises(TraceFormatError, match=r'message_mode "delta", expected rows with whole'):
        read({**turns[0], "message_mode": "delta"})
    assert len(read(*({**one, "message_mode": "full"} for one in turns)).requests) == 2


def test_lookup_hashes_of_lmcache_are_prompts_of_whole_chunks(read: Any) -> None:
    def lookup(time: float, tokens: int, hashes: list[str], model: str = "m") -> dict[str, Any]:
        return {
            **{"timestamp": time, "request_id": "r", "model_name": model, "chunk_size": 256},
            **{"seq_len": tokens, "dtypes": ["bf16"], "shapes": [[2]], "chunk_hashes": hashes},
        }

    rows = [
        lookup(EPOCH + 0.123, 600, ["0xab", "0xcd"]),
        lookup(EPOCH + 1, 560, ["0xab", "0xef"]),
        lookup(EPOCH + 2, 200, []),
        lookup(EPOCH + 3, 600, ["0xab", "0xcd"], model="other"),
    ]
    trace = read(*rows)
    assert (trace.tokens_per_id, trace.read.unread) == (256, {})
    assert arrivals(trace) == [0, 877, 1877, 2877]
    assert [r.namespace for r in trace.requests] == [b"m", b"m", b"m", b"other"]
    assert unbounded(trace, ReplayConfig(block_size=256)).hit_tokens == 256


def test_sessions_of_kv_cache_tester_have_ids_of_their_own(tmp_path: Path) -> None:
    def request(t: float, tokens: int, ids: list[int]) -> dict[str, Any]:
        return {"t": t, "type": "n", "model": "m", "in": tokens, "out": 5, "hash_ids": ids}

    agent = {"t": 3, "type": "subagent", "requests": [request(3.5, 70, [9, 1])]}
    session = {
        **{"id": "one", "block_size": 64, "hash_id_scope": "local", "models": ["m"]},
        "requests": [request(0, 130, [1, 2, 3]), request(2.5, 200, [1, 2, 4, 5]), agent],
    }
    agent["requests"][0]["hash_ids"] = [8, 9]
    (tmp_path / "a.json").write_text(json.dumps(session, indent=1))
    (tmp_path / "b.json").write_text(json.dumps({**session, "id": "two", "odd": 1}))
    trace = read_trace(tmp_path)
    assert (trace.tokens_per_id, len(trace.requests)) == (64, 6)
    assert arrivals(trace) == [0, 1000, 2500, 3500, 3500, 4500]
    assert trace.read is not None
    assert trace.read.unread == {"odd": 1}
    # Each session finds the two blocks of its first request, and nothing of the other session.
    assert unbounded(trace, ReplayConfig(block_size=64)).hit_tokens == 2 * 128


def test_the_pause_after_a_tool_call_of_kv_cache_tester_is_its_tools(tmp_path: Path) -> None:
    def request(t: float, stop: str, think: float | None) -> dict[str, Any]:
        named = {"t": t, "in": 64, "out": 5, "hash_ids": [1], "model": "m", "stop": stop}
        return {**named, "think_time": think}

    agent = {"requests": [request(3, "tool_use", 0), request(9, "end_turn", 2.5)]}
    own = [
        *(request(0, "tool_use", 0.0), agent, request(20, "end_turn", 11.5)),
        *(request(30, "tool_use", 9.0), request(40, "tool_use", None)),
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"id": "one", "block_size": 64, "requests": own}))
    tools = [one.tool_ms for one in read_trace(path).requests]
    assert tools == [11_500, 2500, None, None, None, None]
    own[2]["think_time"] = -1
    path.write_text(json.dumps({"id": "one", "block_size": 64, "requests": own}))
    with pytest.raises(TraceFormatError, match="think_time -1, expected a number in"):
        read_trace(path)


def test_a_field_that_is_twice_in_a_row_is_refused(write_lines: WriteLines) -> None:
    line = json.dumps(row(0, 600, [1, 2])).replace("{", '{"input_length": 5, ', 1)
    for text in (line, f"[{line}]", "{\n" + line[1:]):
        with pytest.raises(TraceFormatError, match='two fields "input_length"'):
            read_trace(write_lines(text))


def test_sessions_are_read_by_their_names(read: Any) -> None:
    rows = [row(n, 600, [1, 2 + n]) for n in range(4)]
    named = zip(rows, ("a", 7, "a", None), strict=True)
    trace = read(*({**one, "session_id": name} for one, name in named))
    assert [request.session for request in trace.requests] == [1, 2, 1, 0]


def test_chats_of_one_conversation_are_a_session(read: Any) -> None:
    chats = [(10, -1), (11, -1), (12, 10), (13, 12), (14, 99)]
    rows = [
        {**row(n, 30, [1, 2 + n]), "chat_id": chat, "parent_chat_id": parent}
        for n, (chat, parent) in enumerate(chats)
    ]
    trace = read(*rows)
    assert [request.session for request in trace.requests] == [1, 2, 1, 1, 3]
