"""Formats of traces, detected by the first bytes of a file, with one reader each.

========================= ====================================== ====================
format                    a prompt is known by                   read by
========================= ====================================== ====================
blockmgr's own            tokens                                 ``own``
Mooncake                  ids that stand for prefixes            ``ids``
Qwen-Bailian              ids                                    ``ids``
LMCache's lookup hashes   ids of whole chunks                    ``ids``
kv-cache-tester           ids of one session                     ``ids``
TraceLab                  lengths and splits, by session         ``tracelab``
vLLM's KV events          tokens that were stored                ``kv_events``
vLLM's log                tokens                                 ``vllm_log``
SGLang's log              tokens                                 ``sglang_log``
OpenAI-style chat logs    text, with a tokenizer; or tokens      ``chat``, ``bodies``
ShareGPT                  text, with a tokenizer                 ``chat``
Azure, BurstGPT           lengths alone: refused                 ``__init__``
========================= ====================================== ====================

Each format declares the fields that it knows; ``fields`` has the rule for all others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from blockmgr.errors import TraceFormatError
from blockmgr.lab.formats import chat, ids, kv_events, own, sglang_log, tracelab, vllm_log
from blockmgr.lab.formats.fields import AsRead, Known
from blockmgr.lab.formats.log_lines import head_of_log
from blockmgr.lab.formats.reading import LogReader, Reading, RowReader
from blockmgr.lab.formats.record import Record, is_json, kind_of, records, shown
from blockmgr.lab.formats.times import Clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.opened import Opened
    from blockmgr.lab.stored import Row

__all__ = ["FORMATS", "FROM_ZERO", "AsRead", "Format", "Reading", "read_rows", "refuse_lengths"]

SOURCES: Final = {
    "ContextTokens": "Azure's LLM inference traces",
    "Request tokens": "BurstGPT",
    "num_prefill_tokens": "Vidur",
    **dict.fromkeys(
        (
            *("input_tokens", "prompt_tokens", "num_prompt_tokens", "input_length"),
            *("prompt_length", "input_len", "prompt_len"),
        ),
        "a table of requests",
    ),
}
"""Columns with the length of a prompt, and where they come from."""

SEPARATORS: Final = re.compile(r"[,;\t]")
WAY_ON: Final = (
    "ids, tokens or text of the prompts: the common prefixes of prompts are unknown, so no hit "
    "rate follows from them; vLLM logs tokens with --enable-log-requests and "
    "VLLM_LOGGING_LEVEL=DEBUG, SGLang with --log-requests --log-requests-level 3"
)


def refuse_lengths(path: str, head: str) -> None:
    """Refuse a file that begins like a table of lengths.

    Raises:
        TraceFormatError: It does; the message says why it gives no hit rate.
    """
    first = head.partition("\n")[0].rstrip("\r")
    columns = [name.strip().strip("\"'").lower() for name in SEPARATORS.split(first)]
    for header, source in SOURCES.items():
        if len(columns) > 1 and header.lower() in columns:
            at = first.lower().index(header.lower()) + 1
            found = f"column {header}, the lengths of {source}"
            raise TraceFormatError(path, 1, at, found, WAY_ON)


VLLM_LOG: Final = "vLLM's log"
CHAT_LOG: Final = "OpenAI-style chat log"
SGLANG_LOG: Final = "SGLang's log"
LOGS: Final[dict[str, LogReader]] = {
    VLLM_LOG: vllm_log.vllm_log,
    SGLANG_LOG: sglang_log.sglang_log,
}
"""Readers of servers' logs by the name of their format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format of JSON records.

    Attributes:
        read: Its reader.
        known: The fields of its records; None if the reader checks their parts itself.
        marks: Sets of fields, each of which identifies the format.
        from_zero: Whether it has dates, so that time counts from the first request.
        in_order: Whether it is chronological, so that a clock that goes back is an error.
    """

    read: RowReader
    known: Known | None
    marks: tuple[set[str], ...] = ()
    from_zero: bool = False
    in_order: bool = False


FORMATS: Final[dict[str, Format]] = {
    "blockmgr's own": Format(read=own.own, known=own.KNOWN, marks=({"format"},), in_order=True),
    "Qwen-Bailian": Format(
        read=ids.bailian, known=ids.BAILIAN_ROW, marks=({"chat_id", "hash_ids"},)
    ),
    "Mooncake": Format(read=ids.mooncake, known=ids.MOONCAKE_ROW, marks=({"hash_ids"},)),
    "LMCache's lookup hashes": Format(
        read=ids.lookup_hashes, known=ids.LOOKUP, marks=({"chunk_hashes"},), from_zero=True
    ),
    "kv-cache-tester": Format(
        read=ids.sessions, known=ids.SESSION, marks=({"requests", "block_size"},)
    ),
    "TraceLab": Format(
        read=tracelab.rounds, known=tracelab.ROUND, marks=(tracelab.MARK,), from_zero=True
    ),
    "vLLM's KV events": Format(
        read=kv_events.kv_events, known=None, marks=({"events"},), from_zero=True, in_order=True
    ),
    "ShareGPT": Format(read=chat.sharegpt, known=chat.CONVERSATION, marks=({"conversations"},)),
    CHAT_LOG: Format(read=chat.openai_log, known=chat.LOG, from_zero=True),
}
"""Formats of JSON records by name, in the order of the checks."""

REFUSED: Final[tuple[tuple[str, str, tuple[set[str], ...]], ...]] = (
    (
        "a result of vLLM's benchmark, which has lengths and no prompts",
        "the data set that the benchmark sent, or the server's log with --enable-log-requests",
        ({"input_lens"}, {"request_throughput"}, {"total_input_tokens"}),
    ),
    (
        "answers without their requests",
        "rows with both, or the file of requests that was sent",
        ({"custom_id", "response"}, {"choices"}, {"object", "usage"}),
    ),
    (
        "turns of aiperf without the prompts that were sent",
        "rows with messages, or with input_length and hash_ids",
        ({"turns"}, {"payloads"}),
    ),
    (
        "lengths of prompts without ids",
        "ids, tokens or text of the prompts, because hits depend on common prefixes",
        ({"input_length"}, {"input_tokens"}, {"prompt_tokens"}, {"prompt_len"}),
    ),
)
"""Files that are not traces, and what to use instead, by their fields."""

KNOWN: Final = f"a trace: {', '.join([*FORMATS, *LOGS])}"

FROM_ZERO: Final = frozenset(
    {*LOGS, *(name for name, format_ in FORMATS.items() if format_.from_zero)}
)
"""Formats with dates; time counts from the first request."""


def read_rows(
    file: Opened, reading: Reading, most_bytes: int, expected: tuple[str, str] | None
) -> tuple[str, Iterator[Row]]:
    """The name of the format of a file, and its requests.

    Args:
        file: The file.
        reading: State of the reading so far.
        most_bytes: Longest record to accept.
        expected: Format and path of the previous file, which must have the same format.

    Raises:
        TraceFormatError: Its format is unknown or not the expected one, or it is malformed.
    """
    head = file.head.decode("utf-8", "replace").lstrip("\ufeff")
    text = head_of_log(head)
    name = None if text is None else _log_of(text)
    if name is None and head.strip() and not is_json(head):
        raise _no_trace(file, head)
    if name is not None:
        _check_same(file, name, expected)
        reading.clock = Clock(sort=reading.sort)
        return name, LOGS[name](file.path, file.lines(most_bytes), reading)
    found = records(file, most_bytes)
    first = next(found, None)
    if first is None:
        raise TraceFormatError(file.path, 1, 1, "the end of the file", "a request")
    name = _format_of(first)
    _check_same(file, name, expected)
    format_ = FORMATS[name]
    reading.clock = Clock(sort=reading.sort and not format_.in_order)
    return name, format_.read(_checked(chain((first,), found), format_.known, reading), reading)


def _checked(found: Iterable[Record], known: Known | None, reading: Reading) -> Iterator[Record]:
    """The same records, after their fields were compared with those that the reader knows."""
    for record in found:
        if known is not None:
            reading.notes.check(record.value, known)
        yield record


def _check_same(file: Opened, name: str, expected: tuple[str, str] | None) -> None:
    if expected is not None and expected[0] != name:
        known, path = expected
        raise TraceFormatError(file.path, 1, 1, f"{name}", f"{known}, as in {path}")


def _log_of(text: str) -> str | None:
    """The name of a server's log that begins with this text; None for another file."""
    marks = {VLLM_LOG: vllm_log.MARK, SGLANG_LOG: sglang_log.PREFIX}
    found = {name: mark.search(text) for name, mark in marks.items()}
    starts = {name: at.start() for name, at in found.items() if at is not None}
    return min(starts, key=starts.__getitem__, default=None)


def _no_trace(file: Opened, head: str) -> TraceFormatError:
    """The error for text that is no log."""
    refuse_lengths(file.path, head)
    first = head.partition("\n")[0].rstrip("\r")
    return TraceFormatError(file.path, 1, 1, shown(first), KNOWN)


def _format_of(first: Record) -> str:
    value = first.value
    if _is_batch(value):
        return "vLLM's KV events"
    if not isinstance(value, dict):
        raise first.error("", kind_of(value), KNOWN)
    for name, format_ in FORMATS.items():
        if any(value.keys() >= mark for mark in format_.marks):
            return name
    if chat.is_request(value):
        return CHAT_LOG
    for what, way_on, marks in REFUSED:
        if any(value.keys() >= mark for mark in marks):
            raise first.error("", what, way_on)
    found = f"an object with {', '.join(map(shown, list(value)[:5])) or 'nothing'}"
    raise first.error("", found, KNOWN)


def _is_batch(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 2 <= len(value) <= 4
        and type(value[0]) in (int, float)
        and isinstance(value[1], list)
    )
