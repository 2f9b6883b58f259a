"""The lines of a server's log, without what containers and journals write around them.

Removed are colours, and the frames of Docker (``{"log": ...}``), Kubernetes (``... stdout F ...``),
journald (``{"MESSAGE": ...}``) and loggers that write JSON. Long lines that a container's logger
has split are joined. Other prefixes, such as those of ``docker compose`` and ``journalctl``, stay.

``LoggedRequests`` keeps requests until the lines of their answers.
"""

from __future__ import annotations

import json
import re
from calendar import timegm
from collections import Counter
from dataclasses import dataclass
from functools import partial
from time import strptime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from blockmgr.errors import TraceFormatError
from blockmgr.files import MAX_LINE_BYTES
from blockmgr.lab.formats.record import checked_tokens, is_json
from blockmgr.lab.formats.times import iso_ms
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.lab.formats.reading import Reading

__all__ = [
    "REPEATED",
    "SHORT",
    "STRING",
    "UNASKED",
    "Asked",
    "LogLine",
    "LoggedRequests",
    "head_of_log",
    "log_lines",
    "without_strings",
]

COLOUR: Final = re.compile(r"(?:\x1b|#033|\^\[)\[[0-9;]*m")
KUBERNETES: Final = re.compile(r"(\d{4}-\d\d-\d\dT\S+) (stdout|stderr) ([FP])(?: |$)")
STRING: Final = re.compile(r"'(?:[^'\\]|\\.)*(?:'|$)|\"(?:[^\"\\]|\\.)*(?:\"|$)")
NAME: Final = re.compile(r"['\"]\w{1,32}['\"]")
TEXTS: Final = ("log", "MESSAGE", "message", "msg", "line")
"""Fields of JSON frames that hold the line, in the order of the checks."""

TIMES: Final = ("time", "timestamp", "@timestamp", "ts", "asctime", "__REALTIME_TIMESTAMP")
SHORT: Final = re.compile(
    r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)"
)
LONG: Final = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?")
MICROSECONDS: Final = re.compile(r"\d{16}")
HALF_A_YEAR_MS: Final = 183 * 86_400_000
LEAP_YEAR: Final = 2000
"""So that 29 February is valid in dates without a year."""

MS_IN_SECOND: Final = 1000


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line.

    Attributes:
        number: Its number in the file, from 1; of its last part, if it was split.
        text: Its text without the frame.
        framed: The time in the frame, or an empty string.
    """

    number: int
    text: str
    framed: str = ""


def plain(text: str) -> str:
    """A text without colours."""
    return COLOUR.sub("", text)


def without_strings(text: str, start: int = 0) -> str:
    """A line with spaces in place of the strings that Python wrote after ``start``.

    Users choose their content, so it may look like anything. Names of fields are kept.
    """
    return text[:start] + STRING.sub(_blank, text[start:])


def _blank(found: re.Match[str]) -> str:
    string = found[0]
    return string if NAME.fullmatch(string) else "'" + " " * (len(string) - 1)


def head_of_log(head: str) -> str | None:
    """The first lines of a file without their frames; None for a file of other JSON."""
    lines = head.lstrip().split("\n")
    first = lines[0][:1] if lines[0] else ""
    if first == "{":
        is_cut = len(lines) == 1 and re.match(r'\{"(?:log|MESSAGE)"\s*:\s*["\[]', lines[0])
        if _unframed(lines[0]) is None and not is_cut:
            return None
    elif is_json(head):
        return None
    return "\n".join(plain(_part(line)[1]) for line in lines)


def log_lines(path: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[LogLine]:
    """The lines of a file, with the parts of split lines joined.

    Raises:
        TraceFormatError: A joined line is too long, or a frame is broken.
    """
    parts: dict[str, list[str]] = {}
    is_framed = False
    for number, raw in lines:
        text = raw.decode("utf-8", "replace").lstrip("\ufeff").rstrip("\r\n")
        if text.startswith("{"):
            whole = _unframed(text) is not None
            if is_framed and not whole:
                # Its text is escaped, so what users wrote could not be told from the rest.
                raise TraceFormatError(path, number, 1, "a broken frame", "all of it on one line")
            is_framed |= whole
        stream, part, framed, is_whole = _part(text)
        if stream is not None:
            begun = parts.setdefault(stream, [])
            begun.append(part)
            if sum(map(len, begun)) > MAX_LINE_BYTES:
                found = f"a split line of more than {MAX_LINE_BYTES} bytes"
                raise TraceFormatError(path, number, 1, found, f"at most {MAX_LINE_BYTES}")
            if not is_whole:
                continue
            part = "".join(parts.pop(stream))
        yield LogLine(number, plain(part).rstrip("\r\n"), framed)
    for begun in parts.values():
        yield LogLine(number, plain("".join(begun)))


def _part(text: str) -> tuple[str | None, str, str, bool]:
    """The stream of a line, or None outside a container; its text, time and whether it ends."""
    kubernetes = KUBERNETES.match(text)
    if kubernetes is not None:
        return kubernetes[2], text[kubernetes.end() :], kubernetes[1], kubernetes[3] == "F"
    frame = _unframed(text)
    if frame is None:
        return None, text, "", True
    name, inner = next((name, _text(frame[name])) for name in TEXTS if name in frame)
    time = next((str(frame[name]) for name in TIMES if name in frame), "")
    if name == "log" and "stream" in frame:  # Docker's, which ends each line
        return str(frame["stream"]), inner, time, inner.endswith("\n")
    return None, inner, time, True


def _unframed(text: str) -> dict[str, Any] | None:
    """The frame around a line, or None if there is none."""
    if not text.startswith("{"):
        return None
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        return None
    names = [name for name in TEXTS if name in frame] if isinstance(frame, dict) else []
    return frame if names and isinstance(frame[names[0]], (str, list)) else None


def _text(value: Any) -> str:
    """A text; journald writes those with control characters as lists of bytes."""
    if isinstance(value, str):
        return value
    if all(type(byte) is int and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return json.dumps(value)


class LogClock:
    """Times of a log's lines, all from the same source: the line itself, or its frame.

    Dates without a year get one; the year ends where December becomes January.
    """

    def __init__(self) -> None:
        self._source: str | None = None
        self._latest = 0
        self._years = 0

    def shown(self, line: LogLine) -> str:
        """The time of a line as it was written; empty without one."""
        short, long = SHORT.search(line.text), LONG.search(line.text)
        sources = {
            "short": short[1] if short else "",
            "long": long[0] if long else "",
            "frame": line.framed,
        }
        if self._source is None:
            self._source = next((name for name, found in sources.items() if found), None)
        return sources.get(self._source or "", "")

    def time_ms(self, line: LogLine) -> int | str | None:
        """Milliseconds from a fixed point; a text if it is no date; None without a time."""
        shown = self.shown(line)
        if not shown:
            return None
        if self._source != "short":
            return _moment(shown)
        date, _, fraction = shown.partition(".")
        try:
            seconds = timegm(strptime(f"{LEAP_YEAR}-{date}", "%Y-%m-%d %H:%M:%S"))
        except ValueError:
            return shown
        seconds -= timegm((LEAP_YEAR, 1, 1, 0, 0, 0))
        return self._with_year(seconds * MS_IN_SECOND + int(f"{fraction:0<6}"[:6]) // 1000)

    def _with_year(self, time_ms: int) -> int:
        year_ms = 366 * 86_400_000
        if self._latest - time_ms - self._years * year_ms > HALF_A_YEAR_MS:
            self._years += 1
        time_ms += self._years * year_ms
        self._latest = max(self._latest, time_ms)
        return time_ms


def _moment(text: str) -> int | str:
    """Milliseconds of an ISO date, or of a number of microseconds; the text if it is neither."""
    if MICROSECONDS.fullmatch(text):
        return int(text) // 1000
    # Fractions of nanoseconds, which Docker writes, have too many digits for Python.
    found = iso_ms(re.sub(r"(\.\d{6})\d+", r"\1", text.replace(",", ".")))
    return text if found is None else found


UNANSWERED: Final = 8192
"""Most requests that wait for the line of their output; the oldest continues without it."""

UNASKED: Final = "answers without their requests"
REPEATED: Final = "repeated lines"


@dataclass(slots=True)
class Asked:
    """A request that waits for its answer."""

    arrival_ms: int
    order: int
    prompt: list[int]
    namespace: bytes = b""

    def row(self, outputs: list[list[int]], num_tokens: int | None = None) -> Row:
        """The request with its outputs, and their length if it is not that of the longest."""
        longest = max(map(len, outputs), default=0)
        return Row(
            arrival_ms=self.arrival_ms,
            order=self.order,
            prompt=self.prompt,
            num_output_tokens=longest if num_tokens is None else num_tokens,
            outputs=outputs,
            namespace=self.namespace,
        )


A = TypeVar("A", bound=Asked)


class LoggedRequests(Generic[A]):
    """The requests of a log by name.

    Args:
        path: Name of the file in messages.
        reading: State of the reading.

    Attributes:
        waiting: Requests without their answers, the oldest first.
        seen: The latest requests by name, with what tells a repeated line from another request.
        left_out: Numbers of lines that are not in the trace, by reason.
        last_line: Number of the last line that was read.
    """

    def __init__(self, path: str, reading: Reading) -> None:
        self.waiting: dict[str, A] = {}
        self.seen: dict[str, int] = {}
        self.left_out: Counter[str] = Counter()
        self.last_line = 1
        self._path = path
        self._reading = reading
        self._clock = LogClock()
        self._found = False

    def time_ms(self, line: LogLine) -> int:
        """The time of a line in milliseconds, in order unless requests are sorted.

        Raises:
            TraceFormatError: It has none, or one before that of an earlier request.
        """
        time_ms = self._clock.time_ms(line)
        if time_ms is None:
            raise self.error(line, "", "no time", "one such as 11-22 15:04:05 before the message")
        text = self._clock.shown(line)
        if isinstance(time_ms, str):
            raise self.error(line, text, f"time {text}", "a date and time")
        late = self._reading.clock.check(time_ms)
        if late is not None:
            raise self.error(line, text, f"time {text} ({time_ms} ms)", late)
        return time_ms

    def ask(self, name: str, asked: A, mark: int = 0) -> Iterator[A]:
        """Add a request; returns one that cannot wait any more."""
        self.waiting[name] = asked
        self._found = True
        self.seen.pop(name, None)
        self.seen[name] = mark
        if len(self.seen) > UNANSWERED:
            del self.seen[next(iter(self.seen))]
        if len(self.waiting) > UNANSWERED:
            yield self.waiting.pop(next(iter(self.waiting)))

    def tokens(self, line: LogLine, name: str, values: Any, where: str = "") -> list[int]:
        """``values`` of the field ``name``, if they are tokens.

        Raises:
            TraceFormatError: They are not; ``where`` is the text at the position of the error.
        """
        return checked_tokens(name, values, partial(self.error, line, where))

    def tell(self, found: str, expected: str) -> None:
        """Report what was left out, after the last line.

        Raises:
            TraceFormatError: No request was found; the arguments are those of the error.
        """
        if not self._found:
            raise TraceFormatError(self._path, self.last_line, 1, found, expected)
        for what, count in (+self.left_out).items():
            self._reading.notes.leave_out(what, count)

    def error(self, line: LogLine, where: str, found: str, expected: str) -> TraceFormatError:
        """The error about a line, at the position of the text ``where`` in it."""
        column = max(0, line.text.find(where)) + 1
        return TraceFormatError(self._path, line.number, column, found, expected)
