"""Each field of a row is used, known to be harmless, or reported; so are assumptions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockmgr.lab.formats import FORMATS
from blockmgr.lab.formats.fields import LONGEST_NAME, MOST_NAMES, OTHERS, Known, Notes
from blockmgr.lab.trace import AsRead, read_trace
from tests.lab.conftest import WriteLines

TRACES = Path(__file__).parent / "traces"
ROW: dict[str, Any] = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}


def as_read(path: Path, **options: Any) -> AsRead:
    read = read_trace(path, **options).read
    assert read is not None
    return read


def test_a_field_that_no_reader_knows_is_named_with_the_count_of_its_rows(
    write_lines: WriteLines,
) -> None:
    rows = [ROW, {**ROW, "tenant": "a"}, {**ROW, "tenant": "b", "salt": 3}, {**ROW, "salt": None}]
    assert as_read(write_lines(*map(json.dumps, rows))).unread == {"tenant": 2, "salt": 1}


def test_a_field_of_an_inner_object_is_named_with_its_path_and_counted_once_a_row() -> None:
    known = Known("messages", "", {"messages": Known("role", "", {"parts": Known("text")})})
    notes = Notes()
    row = {"messages": [{"role": "a", "cache": 1, "parts": [{"text": "", "kind": 1}]}] * 2}
    notes.check(row, known)
    notes.check(row, known)
    assert notes.unread == {"messages.cache": 2, "messages.parts.kind": 2}


def test_the_names_of_a_million_fields_take_bounded_memory() -> None:
    notes = Notes()
    for number in range(10_000):
        notes.check({f"field {number} " + "x" * 1000: 1}, Known(""))
        notes.assume(f"subject {number}", "text")
        notes.assume("subject 0", f"text {number}")
        notes.leave_out(f"reason {number}")
    assert len(notes.unread) == len(notes.left_out) == MOST_NAMES + 1
    assert notes.unread[OTHERS] == 10_000 - MOST_NAMES
    assert max(map(len, notes.unread)) == LONGEST_NAME + 1
    assert len(notes.assumed) == MOST_NAMES
    assert len(notes.assumed["subject 0"]) < 100 * MOST_NAMES


@pytest.mark.parametrize("file", sorted(TRACES.glob("*.json*")), ids=lambda path: path.name)
def test_the_sample_of_each_format_is_read_to_the_last_field(file: Path) -> None:
    text = file.name in {"openai.jsonl", "sharegpt.json"}
    if text:
        pytest.skip("needs a tokenizer: test_formats.py")
    assert as_read(file).unread == {}


def test_every_format_of_records_declares_its_fields() -> None:
    # Recorded events check their parts themselves: a batch may be a list.
    assert [name for name, one in FORMATS.items() if one.known is None] == ["vLLM's KV events"]


def test_recorded_events_name_the_fields_of_batches_and_of_events(write_lines: WriteLines) -> None:
    event = {"type": "BlockStored", "block_hashes": [1], "token_ids": [1, 2], "block_size": 2}
    batch = {"ts": 1, "events": [{**event, "planet": 1}], "moon": 2}
    assert as_read(write_lines(json.dumps(batch))).unread == {"moon": 1, "planet": 1}


def test_assumptions_about_ids_are_reported(write_lines: WriteLines) -> None:
    path = write_lines(json.dumps(ROW))
    assert as_read(path).assumed["tokens an id"].startswith("512, usual for the format")
    assert as_read(path, tokens_per_id=400).assumed["tokens an id"] == "400, as given"
