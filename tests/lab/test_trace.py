"""Reading, expanding and writing traces; the error and the place in a malformed one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockmgr.errors import TraceFormatError
from blockmgr.lab import trace as trace_module
from blockmgr.lab.trace import HashedPrompt, Request, Trace, read_trace, write_trace
from tests.lab.conftest import MakeRequest, MakeTrace, WriteLines

GOOD = '{"timestamp": 5, "input_length": 513, "output_length": 7, "hash_ids": [3, 9]}'


def hashed(ids: list[int], num_tokens: int) -> HashedPrompt:
    return HashedPrompt(np.array(ids, dtype=np.int64), num_tokens)


def test_a_mooncake_record_becomes_a_request(write_lines: WriteLines) -> None:
    trace = read_trace(write_lines(GOOD))

    (request,) = trace.requests
    assert trace.name == "trace.jsonl"
    assert request.arrival_ms == 5
    assert request.num_prompt_tokens == 513
    assert request.num_output_tokens == 7
    assert request.num_samples == 1
    assert request.tokens().dtype == np.uint32
    assert request.tokens().tolist() == [3] * 512 + [9]


def test_the_last_line_may_lack_its_newline(write_lines: WriteLines) -> None:
    assert len(read_trace(write_lines(GOOD, GOOD.encode())).requests) == 2


def test_windows_line_ends_are_read(write_lines: WriteLines) -> None:
    assert (
        len(read_trace(write_lines(GOOD.encode() + b"\r\n" + GOOD.encode() + b"\r\n")).requests)
        == 2
    )


def test_an_id_of_31_bits_is_its_own_token() -> None:
    assert hashed([2**31 - 1], 2).expand().tolist() == [2**31 - 1] * 2


def test_an_id_too_wide_for_its_words_is_refused() -> None:
    with pytest.raises(ValueError, match="words must be 3 for ids of more than 31 bits, got 1"):
        hashed([2**31], 2).expand()


@pytest.mark.parametrize("block_size", [1, 2, 16, 256, 512])
def test_equal_ids_are_equal_blocks_at_every_size_that_divides_512(block_size: int) -> None:
    one, other = hashed([4, 7, 1], 1300).expand(), hashed([4, 7, 2], 1300).expand()

    blocks = 1024 // block_size
    equal = [
        (one[i * block_size : (i + 1) * block_size] == other[i * block_size : (i + 1) * block_size])
        .all()
        .item()
        for i in range(1300 // block_size)
    ]
    assert equal == [True] * blocks + [False] * (1300 // block_size - blocks)


@pytest.mark.parametrize("block_size", [3, 48, 768])
def test_a_block_size_that_does_not_divide_512_is_refused_for_ids(block_size: int) -> None:
    request = Request(arrival_ms=0, prompt=hashed([1], 10), num_output_tokens=0)
    with pytest.raises(ValueError, match=f"block_size must divide 512.*got {block_size}"):
        Trace("t", (request,)).check_block_size(block_size)


def test_any_block_size_is_good_for_a_trace_of_tokens(make_trace: MakeTrace) -> None:
    make_trace([1, 2, 3]).check_block_size(3)


@pytest.mark.parametrize(
    ("line", "column", "found", "expected"),
    [
        ("", 1, "broken JSON (expecting value)", "a JSON object"),
        ('{"timestamp": 5,, }', 17, "broken JSON", "a JSON object"),
        ('{"timestamp": 5', 16, "broken JSON", "a JSON object"),
        ("[1, 2]", 1, "a list", "a JSON object"),
        ("7", 1, "an integer", "a JSON object"),
        ("[" * 100_000, 1, "unusable JSON", "a JSON object"),
        ("1" * 5_000, 1, "unusable JSON", "a JSON object"),
        (GOOD.replace("timestamp", "when"), 1, "no time", "a time in every record, or in none"),
        (GOOD.replace("hash_ids", "ids"), 1, "no hash_ids: a prompt of which", "the ids of its"),
        (GOOD.replace("5", '"five"', 1), 2, 'timestamp "five"', "a number in [0,"),
        (GOOD.replace("5", '"2025-01-01"', 1), 2, "timestamp ", "milliseconds from the start"),
        (GOOD.replace("5", "NaN", 1), 2, "timestamp NaN", "a number in [0,"),
        (GOOD.replace("5", "true", 1), 2, "timestamp true", "a number in [0,"),
        (GOOD.replace("5", "-5", 1), 2, "timestamp -5", "a number in [0,"),
        (GOOD.replace("5", "1e999", 1), 2, "timestamp Infinity", "a number in [0,"),
        (GOOD.replace("513", "0"), 18, "input_length 0", "an integer in [1,"),
        (GOOD.replace("7", "-1"), 39, "output_length -1", "an integer in [0,"),
        (GOOD.replace("[3, 9]", "null"), 59, "hash_ids null", "a list"),
        (GOOD.replace("9]", '"9"]'), 59, "strings in hash_ids", "numbers only, as before"),
        (GOOD.replace("9]", "false]"), 59, "false in hash_ids", "integers or strings"),
        (GOOD.replace("9]", "9.5]"), 59, "9.5 in hash_ids", "integers or strings"),
        (GOOD.replace("9", str(2**64)), 59, "numbers of more than 64 bits in", "numbers only"),
        (GOOD.replace("513", "512"), 59, "2 hash_ids for input_length 512", "1, one for each"),
        (GOOD.replace("513", "1025"), 60, "2 hash_ids for input_length 1025", "3, one for each"),
        (GOOD.replace("5", "4", 1), 2, "timestamp 4", "at least 5 ms, as before"),
        (GOOD.replace("3, 9", "4, 9"), 59, "id 9 after id 4 in hash_ids", "it after id 3, as in"),
        (GOOD.replace("3, 9", "9, 3"), 59, "id 9 first in hash_ids", "it after id 3, as in line 1"),
        (GOOD.replace("3, 9", "4, 3"), 59, "id 3 after id 4 in hash_ids", "it first, as in line 1"),
        (GOOD.replace("3, 9", "4, 4"), 59, "id 4 after id 4 in hash_ids", "it first, as in line 2"),
    ],
)
def test_a_malformed_line_is_named_with_its_column(
    write_lines: WriteLines, line: str, column: int, found: str, expected: str
) -> None:
    path = write_lines(GOOD, line)
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)

    error = caught.value
    assert (error.path, error.line) == (str(path), 2)
    assert error.column == column
    assert error.found.startswith(found)
    assert error.expected.startswith(expected)
    assert str(error).startswith(f"{path}:2:{column}: found ")
    assert "\n" not in str(error)


def test_bytes_that_are_no_text_are_named_with_their_column(write_lines: WriteLines) -> None:
    with pytest.raises(TraceFormatError, match=r":1:3: found byte 0xff, expected UTF-8 text"):
        read_trace(write_lines("{é".encode() + b"\xff}"))


@pytest.mark.parametrize("header", [(), ('{"format": "blockmgr-trace", "version": 1}',)])
def test_a_file_without_requests_is_malformed(
    write_lines: WriteLines, header: tuple[str, ...]
) -> None:
    line = len(header) + 1
    with pytest.raises(TraceFormatError, match=f":{line}:1: found the end of the file, expected a"):
        read_trace(write_lines(*header))


def test_a_found_value_is_cut_short(write_lines: WriteLines) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write_lines(GOOD.replace("5", '"' + "x" * 1000 + '"', 1)))
    assert len(str(caught.value)) < 300


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.jsonl")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    rng = random.Random(11)
    requests = []
    for arrival in sorted(rng.choices(range(50), k=20)):
        outputs = [
            np.array(rng.choices(range(2**32), k=rng.randrange(4)), dtype=np.uint32)
            for _ in range(rng.randrange(3))
        ]
        requests.append(
            Request(
                arrival_ms=arrival,
                prompt=np.array(rng.choices(range(2**32), k=rng.randint(1, 5)), dtype=np.uint32),
                num_output_tokens=max(map(len, outputs), default=rng.randrange(9)),
                outputs=tuple(outputs),
                namespace=rng.randbytes(rng.randrange(3)),
                session=arrival % 3 * 2**40,
                tool_ms=arrival % 4 or None,
            )
        )
    requests.append(Request(arrival_ms=60, prompt=hashed([5, 6], 600), num_output_tokens=1))
    path = tmp_path / "own.jsonl"

    write_trace(Trace("made", tuple(requests)), path)
    back = read_trace(path)

    assert len(back.requests) == len(requests)
    for read, written in zip(back.requests, requests, strict=True):
        assert read.tokens().tolist() == written.tokens().tolist()
        assert [o.tolist() for o in read.outputs] == [o.tolist() for o in written.outputs]
        for name in ("arrival_ms", "num_output_tokens", "namespace", "session", "tool_ms"):
            assert getattr(read, name) == getattr(written, name)


OWN = {"arrival_ms": 1, "namespace": "", "num_output_tokens": 2, "outputs": [[8, 9]], "tokens": [4]}


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        ({"tokens": []}, "an empty prompt", "at least 1 token"),
        ({"tokens": [2**32]}, "4294967296 in tokens", "integers in [0, 4294967295]"),
        ({"outputs": [3]}, "3 in outputs", "a list of integers"),
        ({"outputs": [[8.5]]}, "8.5 in outputs", "integers in"),
        ({"num_output_tokens": 3}, "num_output_tokens 3", "2, the length of the longest"),
        (
            {"namespace": "xy"},
            "a namespace that is a string of 2 characters",
            "a string of hexadecimal bytes",
        ),
        ({"namespace": 7}, "a namespace that is no string", "a string of hexadecimal bytes"),
    ],
)
def test_a_malformed_record_of_the_own_format_is_named(
    write_lines: WriteLines, changes: dict[str, Any], found: str, expected: str
) -> None:
    header = '{"format": "blockmgr-trace", "version": 1}'
    field = next(iter(changes))
    line = json.dumps({**OWN, **changes})
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write_lines(header, json.dumps(OWN), line))

    assert caught.value.line == 3
    assert caught.value.column == line.index(f'"{field}"') + 1
    assert caught.value.found.startswith(found)
    assert caught.value.expected.startswith(expected)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ({"format": "other", "version": 1}, 'format "other"'),
        ({"format": "blockmgr-trace", "version": 2}, "version 2"),
        ({"format": "blockmgr-trace"}, 'no field "version"'),
    ],
)
def test_an_unknown_header_is_refused(
    write_lines: WriteLines, header: dict[str, Any], found: str
) -> None:
    with pytest.raises(TraceFormatError) as caught:
        read_trace(write_lines(json.dumps(header), json.dumps(OWN)))
    assert caught.value.found == found
    assert caught.value.line == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arrival_ms": -1}, "arrival_ms must be at least 0, got -1"),
        ({"num_output_tokens": -1}, "num_output_tokens must be at least 0, got -1"),
        ({"prompt": np.zeros(0, np.uint32)}, "prompt must hold at least 1 token"),
        ({"outputs": (np.zeros(3, np.uint32),)}, "length of the longest output, 3, got 2"),
    ],
)
def test_a_request_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    good = {"arrival_ms": 0, "prompt": np.ones(1, np.uint32), "num_output_tokens": 2}
    with pytest.raises(ValueError, match=message):
        Request(**{**good, **changes})


def test_a_trace_is_in_order_and_not_empty(make_request: MakeRequest) -> None:
    with pytest.raises(ValueError, match="at least 1 request"):
        Trace("t", ())
    with pytest.raises(ValueError, match="in order of arrival_ms"):
        Trace("t", (make_request([1], arrival_ms=2), make_request([1], arrival_ms=1)))


@pytest.mark.parametrize("kind", ["mooncake", "own"])
def test_a_line_that_is_too_long_is_refused_before_it_is_read_whole(
    write_lines: WriteLines, kind: str
) -> None:
    short, long = {
        "mooncake": (GOOD, GOOD[:-1] + " " * 200 + "}"),
        "own": ('{"format": "blockmgr-trace", "version": 1}', '{"tokens": [' + "1," * 200),
    }[kind]
    path = write_lines(short, long)
    with pytest.raises(TraceFormatError, match=":2:201: found a line of more than 200 bytes"):
        read_trace(path, max_line_bytes=200)


def test_what_could_not_be_read_again_is_not_written(
    make_trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_module, "MAX_LINE_BYTES", 100)
    path = tmp_path / "trace.jsonl"
    path.write_text("precious")
    with pytest.raises(ValueError, match=r"request 2 takes a line of \d+ bytes, more than the 100"):
        write_trace(make_trace([1], [1] * 1500), path)
    assert path.read_text() == "precious"
