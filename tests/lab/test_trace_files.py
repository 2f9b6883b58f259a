"""The table of trace files on the page is true: each row has a sample that is read as it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockmgr.errors import TraceFormatError
from blockmgr.lab.trace import read_trace
from tests.server_logs import asked, received, sglang, vllm

ROOT = Path(__file__).parents[2]
TRACES = Path(__file__).parent / "traces"
PAGE = ROOT / "docs" / "guides" / "trace-files.md"
IDS: dict[str, Any] = {"input_length": 600, "output_length": 4, "hash_ids": [1, 2]}
TIME = {"timestamp": 1_764_000_000}
USER = {"role": "user", "content": "hello"}
CHOICE = {"message": {"role": "assistant", "content": "x"}}


def sample(name: str) -> bytes:
    return (TRACES / name).read_bytes()


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


SAMPLES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "blockmgr's own": (
        lines(
            {"format": "blockmgr-trace", "version": 1},
            {
                **{"arrival_ms": 0, "tokens": [1], "num_output_tokens": 0},
                **{"outputs": [], "namespace": ""},
            },
        ),
        {},
    ),
    "Mooncake (FAST 2025)": (sample("mooncake.jsonl"), {}),
    "kvcache-simulator": (lines({"block_size": 64, "hash_ids": [1, 2], "input_length": 128}), {}),
    "Dynamo": (
        lines(
            {
                **{"request_id": "r", "session_id": "s", "created_time": 0.0},
                **{"input_tokens": 600, "output_tokens": 3, "hash_ids": [1, 2]},
            },
            {"session_id": "s", "delay": 5, **IDS},
        ),
        {},
    ),
    "aiperf": (
        lines(
            {"text_input": "hello", "output_length": 4, "timestamp": 0},
            {"messages": [USER], "tools": [{"name": "f"}], "output_length": 4, "timestamp": 5},
            {"payload": {"prompt": "hello", "max_tokens": 50}, "timestamp": 1000},
        ),
        {},
    ),
    "llmtrafficlens": (
        lines(
            {**IDS, "timestamp": 1_764_000_000_000, "hash_ids": [5, 6], "input_length": 40},
            {**IDS, "timestamp": 1_764_000_000_900, "hash_ids": [5, 7], "input_length": 41},
        ),
        {"tokens_per_id": 16},
    ),
    "Qwen-Bailian": (sample("bailian.jsonl"), {}),
    "LMCache's lookup hashes": (
        lines(
            {
                **{**TIME, "request_id": "r", "model_name": "m", "chunk_size": 256},
                **{"seq_len": 300, "dtypes": [], "shapes": [], "chunk_hashes": ["0xa"]},
            }
        ),
        {},
    ),
    "kv-cache-tester": (
        json.dumps(
            {
                **{"id": "s", "models": ["m"], "block_size": 64, "hash_id_scope": "local"},
                **{"tool_tokens": 5, "system_tokens": 5, "totals": {}},
                "requests": [
                    {
                        **{"t": 0.5, "type": "s", "model": "m", "in": 70, "out": 4},
                        **{"hash_ids": [1, 2], "input_types": ["text"], "output_types": ["text"]},
                        **{"stop": "end_turn", "api_time": 1.5, "think_time": 0, "ttft": 0.1},
                    }
                ],
            },
            indent=2,
        ).encode(),
        {},
    ),
    "TraceLab": (
        lines(
            {
                **{"provider": "p", "project": "j", "session_id": "s", "round_index": 0},
                **{"round_id": "r", "turn_id": None, "model": "m", "user": "u"},
                **{"input_tokens_total": 200, "prefix_tokens": 70, "newly_append_tokens": 130},
                **{"output_tokens": 9, "reasoning_output_tokens": None, "store": ".p"},
                "timing_events": [
                    {
                        **{"event_type": "user_message", "content_chars": 7},
                        **{"timestamp": "2026-01-01T00:00:00.5Z", "source": "user.message"},
                    }
                ],
                "tools": [
                    {
                        **{
                            "tool_index": 0,
                            "tool_name": "t",
                            "tool_call_id": "c",
                            "input_chars": 1,
                        },
                        **{"tool_wall_latency_ms": 40, "tool_internal_latency_ms": None},
                        **{"emitted_at": "2026-01-01T00:00:02Z", "result_at": None},
                        **{"result_chars": 5, "is_error": False},
                    }
                ],
            }
        ),
        {},
    ),
    "KV events of vLLM": (sample("kv_events.jsonl"), {}),
    "vLLM's log, ": (sample("vllm.log"), {}),
    "vLLM's log at": (
        "\n".join((sample("vllm.log").decode().splitlines()[0], vllm(1, received("a")))).encode(),
        {},
    ),
    "SGLang's log, ": (sglang(1, f"Receive: obj={asked('a', [5, 6])}").encode(), {}),
    "SGLang's log at": (sglang(1, "Prefill batch, #new-seq: 1, #new-token: 6").encode(), {}),
    "OpenAI chat completions": (
        lines({**TIME, "request": {"messages": [USER]}, "response": {"choices": [CHOICE]}}),
        {},
    ),
    "OpenAI batch input": (
        lines(
            {
                **{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions"},
                "body": {"model": "m", "messages": [USER], "max_tokens": 5},
            }
        ),
        {},
    ),
    "OpenAI completions": (
        lines({**TIME, "body": {"prompt": "a", "model": "m"}, "response": {"choices": []}}),
        {},
    ),
    "OpenAI responses": (lines({**TIME, "body": {"model": "m", "input": "a"}}), {}),
    "Anthropic messages": (
        lines(
            {
                **TIME,
                "request": {"model": "m", "system": "s", "messages": [USER], "max_tokens": 9},
                "response": {
                    **{"id": "1", "type": "message", "role": "assistant", "model": "m"},
                    **{"content": [{"type": "text", "text": "x"}], "stop_reason": "end_turn"},
                    **{"stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1}},
                },
            }
        ),
        {},
    ),
    "ShareGPT": (sample("sharegpt.json"), {}),
    "OpenAI batch output": (
        lines({"id": "b", "custom_id": "1", "response": {"body": {"choices": []}}}),
        {},
    ),
    "vLLM's `bench` results": (
        json.dumps({"input_lens": [5], "output_lens": [4], "ttfts": [0.1]}, indent=1).encode(),
        {},
    ),
    "Azure, BurstGPT": (sample("azure.csv"), {}),
}


def rows_of_page() -> dict[str, str]:
    """What each row of the table says that a file is read as, by the name of the file."""
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| file ")
    ]
    assert cells
    return {row[0]: row[1] for row in cells}


def sample_of(file: str) -> tuple[bytes, dict[str, Any]]:
    [found] = [value for name, value in SAMPLES.items() if file.startswith(name)]
    return found


def test_every_row_of_the_table_has_a_sample_and_every_sample_a_row() -> None:
    assert len(rows_of_page()) == len(SAMPLES)
    for file in rows_of_page():
        assert sample_of(file)[0]


@pytest.mark.parametrize("file", sorted(rows_of_page()))
def test_the_sample_of_a_row_is_read_as_the_table_says(
    file: str, tmp_path: Path, tokenizer: Path
) -> None:
    data, options = sample_of(file)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(data)
    expected = rows_of_page()[file]
    if expected == "refused":
        with pytest.raises(TraceFormatError) as caught:
            read_trace(path, tokenizer=tokenizer)
        assert not caught.value.expected.startswith("a trace: ")  # it has a reason of its own
        return
    try:
        read = read_trace(path, **options).read
    except ValueError:  # it has texts
        read = read_trace(path, tokenizer=tokenizer, **options).read
    assert read is not None
    assert (read.format, read.unread) == (expected, {})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[2025-09-30 00:08:43,982] LMCache INFO: Stored 31 tokens", '"[2025-09-30'),
        ("[INFO] started", '"[INFO] started"'),
        ('["a", "b"]', "a string"),
        ("[1, 2, 3]", "a list"),
        ("[[1.0, [], 0]]", "no stored block of a prompt"),
        ("[null]", "null"),
        ("[]", "the end of the file"),
    ],
)
def test_a_file_that_begins_with_a_bracket_is_not_called_broken(
    tmp_path: Path, text: str, found: str
) -> None:
    path = tmp_path / "trace"
    path.write_text(text + "\n")
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    assert caught.value.found.startswith(found)
