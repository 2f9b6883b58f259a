"""Reduces failing runs, and reads and writes them as files.

Source:
    Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 2002: the
    algorithm ddmin, here over complements only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blockmgr.errors import TraceFormatError
from blockmgr.files import MAX_LINE_BYTES, bounded_lines, replacing
from tests.stress.profiles import DIGESTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stress.draw import Record

__all__ = ["Case", "read_case", "shrink", "write_case"]

FORMAT = "blockmgr.stress/1"


@dataclass(frozen=True)
class Case:
    """A run that can be repeated: configuration, seed of the device, detectors, operations."""

    config: dict[str, Any]
    seed: int
    detectors: str
    records: list[Record]


def shrink(
    records: list[Record], fails: Callable[[list[Record]], bool], most_tries: int = 2_000
) -> list[Record]:
    """The operations that a failure needs: no single one of them can be left out.

    Args:
        records: Operations that fail.
        fails: Returns whether these operations, run from the beginning, fail as well.
        most_tries: Most calls of ``fails``; then the best result so far is returned.
    """
    size, end = max(1, len(records) // 2), len(records)
    has_shrunk = False  # since the last pass from the end
    # From the end: no operation needs a later one.
    for _ in range(most_tries):
        start = max(0, end - size)
        shorter = records[:start] + records[end:]
        if shorter and fails(shorter):
            records, has_shrunk = shorter, True
        end = start
        if end:
            continue
        # A removed operation may have needed one of the others.
        if size == 1 and not has_shrunk:
            break
        size, end, has_shrunk = max(1, size // 2), len(records), False
    return records


def write_case(path: Path, case: Case, violation: object) -> None:
    """Writes a run as JSON lines: its settings, then one operation per line."""
    head = {
        "format": FORMAT,
        "config": case.config,
        "seed": case.seed,
        "detectors": case.detectors,
        "violation": repr(violation),
    }
    lines = [json.dumps(record) for record in [head, *case.records]]
    with replacing(path) as file:
        file.writelines(line.encode() + b"\n" for line in lines)


def read_case(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Case:
    """Reads such a file.

    Args:
        path: File to read.
        max_line_bytes: Longest line to accept; the reader never holds more of a line.

    Raises:
        TraceFormatError: A line is too long; the error names it.
        ValueError: It is not such a file; the message names the file.
        OSError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            lines = bounded_lines(file, str(path), max_line_bytes)
            head, *records = [json.loads(line.decode()) for _, line in lines]
        if head["format"] != FORMAT or head["config"]["digest"] not in DIGESTS:
            raise ValueError(f"format {head['format']!r}")
        if not all(isinstance(record["entry"], int) for record in records):
            raise ValueError("an operation names no sequence")
        return Case(head["config"], head["seed"], head["detectors"], records)
    except TraceFormatError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} holds no run of tests.stress: {error}") from error
