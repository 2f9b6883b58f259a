"""The requests of a server's log that wait for the lines of their answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from blockmgr.errors import TraceFormatError
from blockmgr.lab.formats.log_lines import LogClock
from blockmgr.lab.formats.record import MAX_TOKEN, shown
from blockmgr.lab.stored import Row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blockmgr.lab.formats.log_lines import LogLine
    from blockmgr.lab.formats.reading import Reading

__all__ = ["REPEATED", "UNASKED", "Asked", "LoggedRequests"]

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
            num_tokens=None,
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
        if not isinstance(values, list):
            raise self.error(line, where, f"{shown(values)} in {name}", "a list of integers")
        for value in values:
            if type(value) is not int or not 0 <= value <= MAX_TOKEN:
                expected = f"integers in [0, {MAX_TOKEN}]"
                raise self.error(line, where, f"{shown(value)} in {name}", expected)
        return values

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
