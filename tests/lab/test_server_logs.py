"""Logs of vLLM's and SGLang's servers: which requests they become, in whatever frames they are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from blockmgr.errors import TraceFormatError
from blockmgr.lab.formats import log_lines, sglang_log, vllm_log
from blockmgr.lab.trace import read_trace
from tests.lab.conftest import WriteLines
from tests.lab.worlds import facts, same
from tests.lab.worlds import prompts_of as prompts
from tests.server_logs import (
    FRAMES,
    TRAP,
    answered,
    as_json,
    asked,
    details,
    framed,
    generated,
    received,
    sglang,
    vllm,
)

TRACES = Path(__file__).parent / "traces"
VLLM = (TRACES / "vllm.log").read_text().splitlines()
PROMPTS = [[128000, 46864, 11, 10137], [128000, 13347], [128000, 13347, 0]]


def refused(path: Path) -> TraceFormatError:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    return caught.value


# vLLM


def test_a_log_of_vllm_names_prompts_and_outputs() -> None:
    trace = read_trace(TRACES / "vllm.log")
    assert [facts(request) for request in trace.requests] == [(0, 4, 3), (1000, 2, 2), (5000, 3, 0)]
    assert prompts(trace) == PROMPTS
    first, second, _ = trace.requests
    assert first.outputs[0].tolist() == [9, 8, 7]
    assert second.outputs[0].tolist() == [1548, 385]  # the pieces of a stream
    assert second.namespace == b"lora poet"


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("[128000, 13347, 0]", "[128000, 13347", "broken prompt_token_ids"),
        ("[128000, 13347, 0]", "[128000, -1]", "-1 in prompt_token_ids"),
        ("[128000, 13347, 0]", "[128000, x]", '"[128000, x]" in prompt_token_ids'),
        ("11-22 15:00:06", "13-22 15:00:06", "time 13-22 15:00:06"),
        ("11-22 15:00:06", "11-22 14:00:06", "time 11-22 14:00:06"),
        ("11-22 15:00:06", "", "no time"),
    ],
)
def test_a_malformed_line_of_a_log_is_named(tmp_path: Path, old: str, new: str, found: str) -> None:
    text = (TRACES / "vllm.log").read_text().replace(old, new)
    path = tmp_path / "vllm.log"
    path.write_text(text)
    caught = refused(path)
    assert caught.line == 9
    assert caught.found.startswith(found)
    line = text.splitlines()[8]
    place = found.rpartition(" in ")[2].removeprefix("no ").removeprefix("broken ")
    place = place.removeprefix("time ")
    assert caught.column == (line.find(place) + 1 or 1)


def test_a_line_without_its_end_does_not_lose_the_adapter(write_lines: WriteLines) -> None:
    for line in (VLLM[2], VLLM[9]):
        cut = line[: line.index("lora_request: ") + 14]
        assert refused(write_lines(VLLM[1], cut)).found == "a broken request"


def test_a_request_whose_answer_was_not_logged_waits_for_it_only_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_lines, "UNANSWERED", 1)
    trace = read_trace(TRACES / "vllm.log")
    assert [request.num_output_tokens for request in trace.requests] == [0, 2, 0]


def test_newer_versions_tell_the_adapter_and_the_samples_on_a_line_of_their_own(
    write_lines: WriteLines,
) -> None:
    lines = [
        vllm(1, details("a", [1, 2]), "DEBUG"),
        vllm(1, received("a", "poet", samples=2)),
        vllm(2, generated("a", [3])),
        vllm(3, generated("a", [4, 5])),
        vllm(4, details("b", [6]), "DEBUG"),
        vllm(4, received("b")),
    ]
    first, second = read_trace(write_lines(*lines)).requests
    assert (first.namespace, second.namespace) == (b"lora poet", b"")
    assert [output.tolist() for output in first.outputs] == [[3], [4, 5]]


def test_the_newest_versions_tell_the_tokens_of_answers_at_the_debug_level(
    write_lines: WriteLines,
) -> None:
    lines = [
        vllm(1, details("a", [1, 2]), "DEBUG"),
        vllm(1, received("a")),
        vllm(2, "Generated response a details: output_token_ids: [3, 4]", "DEBUG"),
        vllm(2, "Generated response a: output: 'x', finish_reason: stop"),
    ]
    [request] = read_trace(write_lines(*lines)).requests
    assert request.outputs[0].tolist() == [3, 4]


def test_pieces_of_several_samples_give_a_length_alone(write_lines: WriteLines) -> None:
    delta = " (streaming delta)"
    lines = [
        vllm(1, details("a", [1, 2]), "DEBUG"),
        vllm(1, received("a", samples=2)),
        *(vllm(2, generated("a", [n], delta)) for n in range(5)),
        *(vllm(3, generated("a", None, " (streaming complete)")) for _ in range(2)),
    ]
    [request] = read_trace(write_lines(*lines)).requests
    assert (request.num_output_tokens, request.outputs) == (3, ())


def test_answers_to_the_prompts_of_one_request_go_to_them_in_turn(write_lines: WriteLines) -> None:
    asked = [vllm(1, details(f"a-{n}", [n]), "DEBUG") for n in range(3)]
    told = [vllm(1, received(f"a-{n}")) for n in range(3)]
    answers = [vllm(2, generated("a", [n + 10])) for n in range(3)]
    trace = read_trace(write_lines(*asked, *told, *answers))
    assert [r.outputs[0].tolist() for r in trace.requests] == [[10], [11], [12]]


def test_what_users_wrote_is_no_line_of_the_server(write_lines: WriteLines, left_out: Any) -> None:
    trap = "] Received request z: prompt_token_ids: [7], lora_request: None."
    lines = [
        vllm(1, details("a", [1, 2], prompt=trap), "DEBUG"),
        vllm(1, received("a")),
        vllm(2, generated("a", [3], output=f"{trap} output_token_ids: [9], finish_reason: ")),
    ]
    path = write_lines(*lines)
    assert prompts(read_trace(path)) == [[1, 2]]
    assert left_out(path) == {}


def test_lines_of_processes_alternate_and_may_come_twice(
    write_lines: WriteLines, left_out: Any
) -> None:
    one, other = "APIServer_0 pid=7", "APIServer_1 pid=8"
    lines = [
        vllm(1, details("a", [1]), "DEBUG", one),
        vllm(1, details("b", [2]), "DEBUG", other),
        vllm(1, details("b", [2]), "DEBUG", other),
        vllm(1, received("b"), process=other),
        vllm(1, received("a"), process=one),
        vllm(1, details("c", [5]), "DEBUG", one),
        "(EngineCore pid=9) DEBUG 11-22 15:00:01 [core.py:1] EngineCore loop active.",
        vllm(2, generated("b", [3]), process=other),
        vllm(2, generated("old", [3]), process=other),
        vllm(2, received("late"), process=other),
        vllm(3, details("none", None), "DEBUG", one),
        vllm(3, received("none"), process=one),
    ]
    path = write_lines(*lines)
    assert prompts(read_trace(path)) == [[1], [2], [5]]
    assert left_out(path) == {
        vllm_log.REPEATED: 1,
        vllm_log.UNASKED: 1,
        vllm_log.WITHOUT: 2,
        vllm_log.UNDESCRIBED: 1,
    }


def test_requests_with_one_id_are_all_read(write_lines: WriteLines) -> None:
    lines = [vllm(n, details("a", [n]), "DEBUG") for n in range(1, 4)]
    assert prompts(read_trace(write_lines(*lines))) == [[1], [2], [3]]


def test_a_log_without_tokens_says_how_to_get_them(write_lines: WriteLines) -> None:
    plain = write_lines(VLLM[0], vllm(1, received("a")), vllm(2, received("b")), VLLM[3])
    caught = refused(plain)
    assert (caught.line, caught.found) == (3, f"2 {vllm_log.WITHOUT}")
    assert "--enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG" in caught.expected
    assert refused(write_lines(VLLM[0], VLLM[3])).found == "a log of vLLM without requests"


def test_a_log_goes_on_in_the_new_year(write_lines: WriteLines) -> None:
    old = vllm(1, details("a", [1]), "DEBUG").replace("11-22 15", "12-31 23")
    new = vllm(1, details("b", [2]), "DEBUG").replace("11-22 15", "01-01 00")
    later = vllm(1, details("c", [2]), "DEBUG").replace("11-22 15", "01-02 00")
    trace = read_trace(write_lines(old, new, later))
    assert [request.arrival_ms for request in trace.requests] == [0, 3_600_000, 90_000_000]


def test_logs_that_were_put_together_can_be_sorted(write_lines: WriteLines) -> None:
    lines = [vllm(n, details(f"r{n}", [n]), "DEBUG") for n in (5, 3)]
    assert "--sort" in refused(write_lines(*lines)).expected
    assert prompts(read_trace(write_lines(*lines), sort=True)) == [[3], [5]]


# Frames


@pytest.mark.parametrize("how", FRAMES)
def test_a_log_reads_alike_in_every_frame(write_lines: WriteLines, how: str) -> None:
    lines = [framed(how, line, number) for number, line in enumerate(VLLM)]
    assert same(read_trace(write_lines(*lines)), read_trace(TRACES / "vllm.log"))


@pytest.mark.parametrize("how", ["docker", "kubernetes"])
def test_long_lines_that_a_container_split_are_whole(write_lines: WriteLines, how: str) -> None:
    lines = []
    for number, line in enumerate(VLLM):
        pieces = [line[at : at + 40] for at in range(0, len(line), 40)]
        for place, piece in enumerate(pieces):
            made = framed(how, piece, number)
            if place + 1 < len(pieces):
                made = made.replace("\\n", "").replace("stdout F", "stdout P")
            lines.append(made)
    path = write_lines(*lines)
    assert same(read_trace(path), read_trace(TRACES / "vllm.log"))


def test_a_split_line_without_its_end_is_read_as_far_as_it_goes(write_lines: WriteLines) -> None:
    whole = framed("kubernetes", VLLM[1], 1)
    cut = framed("kubernetes", VLLM[2], 2).replace("stdout F", "stdout P")
    assert len(read_trace(write_lines(whole, cut)).requests) == 2
    cut = framed("kubernetes", VLLM[2][:120], 2).replace("stdout F", "stdout P")
    assert refused(write_lines(whole, cut)).line == 2


def test_a_split_line_has_a_bound(write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "MAX_LINE_BYTES", 100)
    parts = [framed("kubernetes", VLLM[1][:60], 1).replace("stdout F", "stdout P")] * 2
    assert refused(write_lines(*parts)).found == "a split line of more than 100 bytes"


def test_a_logger_of_json_has_the_time_in_its_frame(write_lines: WriteLines) -> None:
    said = [details("a", [1]), received("a"), details("b", [2]), received("b")]
    lines = [
        json.dumps({"asctime": f"2026-11-22 15:00:0{n},500", "levelname": "DEBUG", "message": text})
        for n, text in enumerate(said)
    ]
    head = json.dumps({"message": VLLM[0], "asctime": "2026-11-22 14:00:00,000"})
    trace = read_trace(write_lines(head, *lines))
    assert [facts(request) for request in trace.requests] == [(0, 1, 0), (2000, 1, 0)]


def test_times_in_frames_have_zones(write_lines: WriteLines) -> None:
    said = [(details("a", [1]), "16:00:00+01:00"), (details("b", [2]), "15:00:01Z")]
    lines = [json.dumps({"message": text, "time": f"2026-11-22T{time}"}) for text, time in said]
    head = json.dumps({"message": VLLM[0].partition("] ")[2], "time": "2026-11-22T15:00:00+01:00"})
    marked = json.dumps({"message": "x INFO 11-22 15:00:00 x"})
    trace = read_trace(write_lines(head, marked, *lines))
    assert [request.arrival_ms for request in trace.requests] == [0, 1000]


def test_a_broken_frame_is_refused_because_its_text_is_escaped(write_lines: WriteLines) -> None:
    lines = [framed("docker", line, number) for number, line in enumerate(VLLM)]
    caught = refused(write_lines(*lines[:2], lines[2][:-20]))
    assert (caught.line, caught.found) == (3, "a broken frame")


@pytest.mark.parametrize(
    "line",
    [
        vllm(1, details("a", [1], prompt=TRAP), "DEBUG"),
        vllm(1, generated("a", [1], output=TRAP)),
    ],
)
def test_text_of_users_in_a_cut_line_is_no_request(write_lines: WriteLines, line: str) -> None:
    cut = line.partition(" None.")[0] + " None."
    assert refused(write_lines(VLLM[1], cut)).found.startswith("a broken ")


def test_a_compressed_log_is_a_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log.gz"
    path.write_bytes(gzip.compress((TRACES / "vllm.log").read_bytes()))
    assert same(read_trace(path), read_trace(TRACES / "vllm.log"))


def test_text_about_logs_is_no_log(write_lines: WriteLines) -> None:
    said = json.dumps({"messages": [{"role": "user", "content": VLLM[1]}], "timestamp": 1})
    with pytest.raises(ValueError, match="--tokenizer"):
        read_trace(write_lines(said))


# SGLang


SGLANG = [
    "[2026-11-22 14:59:59] server_args=ServerArgs(model_path='m')",
    sglang(1, f"Receive: obj={asked('a', [5, 6, 7])}"),
    "[2026-11-22 15:00:01 TP0] Prefill batch, #new-seq: 1, #new-token: 3, #cached-token: 0",
    sglang(2, f"Receive: obj={asked('b', [5, 6], lora_path='poet')}"),
    sglang(3, f"Finish: obj={asked('a', [5, 6, 7])}{answered([8, 9])}"),
    sglang(4, f"Finish: obj={asked('b', [5, 6])}{answered([1])}"),
    sglang(5, f"Receive: obj={asked('c', [4])}"),
]


def test_a_log_of_sglang_names_prompts_and_outputs(write_lines: WriteLines) -> None:
    trace = read_trace(write_lines(*SGLANG))
    assert [facts(request) for request in trace.requests] == [(0, 3, 2), (1000, 2, 1), (4000, 1, 0)]
    assert prompts(trace) == [[5, 6, 7], [5, 6], [4]]
    assert trace.requests[0].outputs[0].tolist() == [8, 9]
    assert [request.namespace for request in trace.requests] == [b"", b"lora poet", b""]


def test_a_request_of_sglang_is_remembered_only_so_long(
    write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a log of any length takes little memory: repeats far apart are requests of their own."""
    again = [sglang(6 + n, f"Receive: obj={asked(name, [n])}") for n, name in enumerate("ac")]
    assert len(prompts(read_trace(write_lines(*SGLANG, *again)))) == 3
    monkeypatch.setattr(log_lines, "UNANSWERED", 2)
    assert prompts(read_trace(write_lines(*SGLANG, *again))) == [[5, 6, 7], [5, 6], [4], [0]]


@pytest.mark.parametrize("how", FRAMES)
def test_a_log_of_sglang_reads_alike_in_every_frame(write_lines: WriteLines, how: str) -> None:
    plain = read_trace(write_lines(*SGLANG))
    lines = [framed(how, line, number) for number, line in enumerate(SGLANG)]
    assert same(read_trace(write_lines(*lines)), plain)


def test_a_log_of_sglang_in_json_reads_alike(write_lines: WriteLines) -> None:
    plain = read_trace(write_lines(*SGLANG))
    lines = [as_json(line) for line in SGLANG]
    assert sum('"event"' in line for line in lines) == 5
    assert same(read_trace(write_lines(*lines)), plain)


def test_the_prompts_of_one_request_of_sglang_are_requests(write_lines: WriteLines) -> None:
    lines = [sglang(1, f"Receive: obj={asked(['a', 'b'], [[1], [2, 3]])}")]
    lines += [sglang(2, f"Finish: obj={asked('b', [2, 3])}{answered([4])}")]
    trace = read_trace(write_lines(*lines))
    assert [facts(request) for request in trace.requests] == [(0, 1, 0), (0, 2, 1)]
    unnamed = [sglang(1, f"Receive: obj={asked(None, [[1], [2, 3]])}")]
    assert prompts(read_trace(write_lines(*unnamed))) == [[1], [2, 3]]


@pytest.mark.parametrize("field", ["extra_key", "cache_salt", "image_data", "lora_path"])
def test_whatever_else_identifies_a_prompt_of_sglang_is_its_namespace(
    write_lines: WriteLines, field: str
) -> None:
    values = ["A", "B", "A", None]
    lines = [
        sglang(n, f"Receive: obj={asked(f'r{n}', [1], **{field: value})}")
        for n, value in enumerate(values)
    ]
    for made in (lines, [as_json(line) for line in lines]):
        names = [request.namespace for request in read_trace(write_lines(*made)).requests]
        assert names[0] == names[2] != names[1]
        assert names[3] == b""


def test_requests_of_sglang_without_tokens_are_counted(
    write_lines: WriteLines, left_out: Any
) -> None:
    lines = [
        SGLANG[1],
        SGLANG[1],
        sglang(2, f"Receive: obj={asked('t', None)}"),
        sglang(2, f"Receive: obj={asked('s', [1], session_params={'id': 's'})}"),
        sglang(2, f"Receive: obj={asked('HEALTH_CHECK_1', [0])}"),
        sglang(3, f"Finish: obj={asked('old', [1])}{answered([1])}"),
        SGLANG[4],
        SGLANG[4],
    ]
    path = write_lines(*lines)
    assert prompts(read_trace(path)) == [[5, 6, 7]]
    assert left_out(path) == {
        sglang_log.REPEATED: 1,
        sglang_log.WITHOUT: 1,
        sglang_log.SESSIONS: 1,
        sglang_log.HEALTH_CHECKS: 1,
        sglang_log.UNASKED: 1,
    }


def test_fields_of_sglangs_requests_that_are_not_read_are_named(
    write_lines: WriteLines, notes: Any
) -> None:
    more = {"priority": 1, "future_field": [1], "input_embeds": None, "is_new": None}
    line = sglang(1, f"Receive: obj={asked('a', [1], **more)}")
    for made in (line, as_json(line)):
        assert notes(write_lines(made)).unread == {"future_field": 1}


def test_what_the_logs_do_not_tell_is_told(write_lines: WriteLines, notes: Any) -> None:
    assert list(notes(TRACES / "vllm.log").assumed) == ["images and salts"]
    assert list(notes(write_lines(*SGLANG)).assumed) == ["images"]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([SGLANG[0], SGLANG[2]], "a log of SGLang without requests"),
        ([SGLANG[0], sglang(1, "Receive: obj=GenerateReqInput(rid='a')")], "1 requests without"),
        ([SGLANG[0], as_json(sglang(1, f"Receive: obj={asked('t', None)}"))], "1 requests without"),
    ],
)
def test_a_log_of_sglang_without_tokens_says_how_to_get_them(
    write_lines: WriteLines, lines: list[str], found: str
) -> None:
    caught = refused(write_lines(*lines))
    assert (caught.line, caught.found.startswith(found)) == (len(lines) - (found[0] == "a"), True)
    assert "--log-requests --log-requests-level 3" in caught.expected


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (SGLANG[1].replace("[5, 6, 7]", "[5] ... [7]"), "input_ids without the tokens in the"),
        (as_json(SGLANG[1]).replace("[5, 6, 7]", '[5, "...", 7]'), "input_ids without the tokens"),
        (SGLANG[1][:-30], "a broken request"),
        (SGLANG[4][:-30], "a broken request"),
        (as_json(SGLANG[1])[:-3], "a broken request"),
        (SGLANG[1].replace("[5, 6, 7]", "[5, -6]"), "-6 in input_ids"),
        (SGLANG[1].replace("[5, 6, 7]", "9"), "9 in input_ids"),
        (SGLANG[1].replace("15:00:01", "15:61:01"), "time 2026-11-22 15:61:01"),
        (SGLANG[1].replace("15:00:01", "14:00:01"), "time 2026-11-22 14:00:01"),
    ],
)
def test_a_malformed_request_of_sglang_is_named(
    write_lines: WriteLines, line: str, found: str
) -> None:
    good = sglang(0, f"Receive: obj={asked('z', [1])}")
    caught = refused(write_lines(good, line))
    assert (caught.line, caught.found[: len(found)]) == (2, found)
