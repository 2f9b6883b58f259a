"""A coverage-guided fuzzer of the parsers: ``python -m tests.fuzz_parsers --seconds 60``.

``--rows`` changes the fields of sample files instead; see ``tests.fuzz_rows``.

A parser must read any file or refuse it with the documented error; and a trace that was read must
be the same after it is written and read again. Inputs are mutations of the corpus; an input that
reaches a line of the parsers for the first time joins the corpus for the rest of the run.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

from blockmgr import shapes
from blockmgr.errors import TraceFormatError
from blockmgr.lab import formats, trace
from blockmgr.lab.formats import (
    bodies,
    chat,
    event_batch,
    fields,
    ids,
    kv_events,
    log_lines,
    opened,
    own,
    reading,
    record,
    recorded_engine,
    sglang_log,
    times,
    tracelab,
    vllm_log,
)
from blockmgr.shapes import config, elements, hybrid, model
from blockmgr.shapes import fields as config_fields
from tests.stress import shrink

CORPUS = Path(__file__).parent / "fuzz_corpus"
READERS = (
    *(formats, bodies, chat, fields, ids, opened, own, reading, record, times, tracelab),
    *(kv_events, event_batch, recorded_engine, log_lines, sglang_log, vllm_log),
)
SHAPES = (config, config_fields, elements, hybrid, model)
PARSERS = {module.__file__ for module in (trace, shrink, *READERS, *SHAPES)}
FOLDER = Path(tempfile.mkdtemp())


def expect(holds: object, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def read_trace(data: bytes) -> None:
    path = FOLDER / "trace.jsonl"
    path.write_bytes(data)
    try:
        read = trace.read_trace(path)
    except (TraceFormatError, ValueError) as error:
        if not isinstance(error, TraceFormatError):
            expect("--" in str(error), f"no option is named: {error}")
            return
        expect(str(error).startswith(str(path)), f"no file is named: {error}")
        return
    if sum(request.num_prompt_tokens for request in read.requests) > 10_000:
        return  # a copy would write all the tokens that ids stand for
    trace.write_trace(read, path)
    first = path.read_bytes()
    trace.write_trace(trace.read_trace(path), path)
    expect(path.read_bytes() == first, "a trace changed when it was written and read again")


def read_case(data: bytes) -> None:
    path = FOLDER / "case.jsonl"
    path.write_bytes(data)
    try:
        shrink.read_case(path)
    except ValueError as error:
        expect(str(path) in str(error), f"no file is named: {error}")


def read_shape(data: bytes) -> None:
    path = FOLDER / "config.json"
    path.write_bytes(data)
    try:
        shapes.ModelShape.from_config(path)
    except (ValueError, TypeError) as error:
        expect(str(error), "an error says nothing")


TARGETS = (read_trace, read_case, read_shape)


def one_input(data: bytes) -> None:
    """The first byte chooses the parser."""
    if data:
        TARGETS[min(data[0] % 3, len(TARGETS) - 1)](data[1:])


def corpus() -> list[bytes]:
    """The corpus, in an order that does not depend on the file system."""
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def mutated(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The input with a few changes of the kinds that files suffer."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        change = rng.randrange(5)
        if change == 0 and out:
            out[at % len(out)] = rng.randrange(256)
        elif change == 1:
            out[at:at] = rng.choice(
                [b"-1", b"0", b"null", b"[]", b'"', b"}", b"\n", b"1e9", b"\xff"]
            )
        elif change == 2:
            del out[at : at + rng.randint(1, 8)]
        elif change == 3:
            start = rng.randrange(len(other) + 1)
            out[at:at] = other[start : start + rng.randint(1, 30)]
        else:
            out = out[:at] + out[at : at + 20] + out[at:]
    return bytes(out[:4096])


def lines_reached(data: bytes) -> set[tuple[str, int]]:
    """Runs one input; returns the lines of the parsers that it reached."""
    reached: set[tuple[str, int]] = set()

    def trace_lines(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in PARSERS:
            return None
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return trace_lines

    sys.settrace(trace_lines)
    try:
        one_input(data)
    finally:
        sys.settrace(None)
    return reached


def fuzz(seconds: float, seed: int, runs: int) -> tuple[int, int, int]:
    """The number of runs, of inputs with new lines and of lines; raises on an error."""
    rng = random.Random(seed)
    kept, known = corpus(), set[tuple[str, int]]()
    for data in kept:
        known |= lines_reached(data)
    start, done, end = len(kept), 0, time.monotonic() + seconds
    while done < runs and time.monotonic() < end:
        data = mutated(rng, rng.choice(kept), rng.choice(kept))
        try:
            reached = lines_reached(data)
        except Exception:
            print(f"input {data!r}", file=sys.stderr)
            raise
        if not reached <= known:
            kept.append(data)
            known |= reached
        done += 1
    return done, len(kept) - start, len(known)


def fuzz_rows(seconds: float, seed: int, runs: int) -> tuple[int, int]:
    """The number of runs on samples of trace files, and of those that were read."""
    from tests.fuzz_rows import Rows

    rows, done, end = Rows(seed), 0, time.monotonic() + seconds
    while done < runs and time.monotonic() < end:
        try:
            rows.one()
        except Exception:
            print(f"row fuzzer, seed {seed}, run {done}: {rows.file}", file=sys.stderr)
            raise
        done += 1
    return done, rows.read


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_parsers", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--runs", type=int, default=10**9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", action="store_true", help="change fields of sample files")
    args = parser.parse_args(argv)
    if args.rows:
        done, read = fuzz_rows(args.seconds, args.seed, args.runs)
        print(f"{done:,} files, {read:,} of them read, 0 violations")
        return 0
    done, new, lines = fuzz(args.seconds, args.seed, args.runs)
    print(f"{done:,} inputs, {new} of them reached something new, {lines} lines, 0 violations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
