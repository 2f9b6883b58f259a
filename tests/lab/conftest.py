"""Small requests and files for the tests of the lab."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockmgr.files import MAX_LINE_BYTES
from blockmgr.lab.formats import Reading, read_rows
from blockmgr.lab.formats.fields import Notes
from blockmgr.lab.formats.opened import opened
from blockmgr.lab.trace import Request, Trace, read_trace
from tests.lab.byte_tokenizer import TEMPLATE, saved

MakeRequest = Callable[..., Request]
MakeTrace = Callable[..., Trace]
WriteLines = Callable[..., Path]


def _request(
    prompt: Sequence[int],
    *,
    arrival_ms: int = 0,
    outputs: Sequence[Sequence[int]] = (),
    num_output_tokens: int = 0,
    namespace: bytes = b"",
) -> Request:
    return Request(
        arrival_ms=arrival_ms,
        prompt=np.array(prompt, dtype=np.uint32),
        num_output_tokens=max(map(len, outputs), default=num_output_tokens),
        outputs=tuple(np.array(output, dtype=np.uint32) for output in outputs),
        namespace=namespace,
    )


@pytest.fixture(scope="session")
def make_request() -> MakeRequest:
    """Build a request from plain lists."""
    return _request


@pytest.fixture(scope="session")
def make_trace() -> MakeTrace:
    """Build a trace from prompts that arrive one millisecond after another, or from requests."""

    def make(*items: Request | Sequence[int]) -> Trace:
        requests = [
            item if isinstance(item, Request) else _request(item, arrival_ms=number)
            for number, item in enumerate(items)
        ]
        return Trace("test", tuple(requests))

    return make


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token a byte, and a template that shows everything."""
    return saved(tmp_path_factory.mktemp("bytes"), TEMPLATE)


@pytest.fixture
def write_lines(tmp_path: Path) -> WriteLines:
    """Write lines into a trace file; bytes are written unchanged."""

    def write(*lines: str | bytes) -> Path:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(
            b"".join(line if isinstance(line, bytes) else line.encode() + b"\n" for line in lines)
        )
        return path

    return write


@pytest.fixture
def read(write_lines: WriteLines) -> Callable[..., Trace]:
    """Read a trace of JSON rows."""

    def from_rows(*rows: Any, **options: Any) -> Trace:
        return read_trace(write_lines(*map(json.dumps, rows)), **options)

    return from_rows


@pytest.fixture
def notes() -> Callable[[Path], Notes]:
    """What reading a file assumes, leaves out and does not use."""

    def read(path: Path) -> Notes:
        reading = Reading()
        with opened(str(path)) as file:
            _, rows = read_rows(file, reading, MAX_LINE_BYTES, None)
            for _ in rows:
                pass
        return reading.notes

    return read


@pytest.fixture
def left_out(notes: Callable[[Path], Notes]) -> Callable[[Path], dict[str, int]]:
    """What reading a file leaves out, with counts."""
    return lambda path: notes(path).left_out
