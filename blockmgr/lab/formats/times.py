"""When the requests of a trace arrive: times in any usual unit, delays in sessions, or no times.

A number from a date on counts from 1970, and its size shows whether it counts seconds,
milliseconds, microseconds or nanoseconds: the ranges of the years 2001 to 5138 do not overlap.
Smaller numbers count from the start of the trace, in the unit of the format. The smallest number of
the first records decides which of the two a trace has. Texts are numbers or ISO 8601 dates.

Rows without times get a stated pace: conversations begin ``CONVERSATION_MS`` apart, and a turn
arrives ``TURN_MS`` after the answer before it, or after the ``delay`` that its row has.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.record import MAX_NUMBER, scaled

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from blockmgr.lab.formats.fields import Notes
    from blockmgr.lab.formats.record import Record

__all__ = [
    "CONVERSATION_MS",
    "DELAYS",
    "TIMES",
    "TURN_MS",
    "WHOLE",
    "Arrivals",
    "Clock",
    "Times",
    "answered_ms",
    "iso_ms",
]

WHOLE: Final = ("full", "whole", "complete")
"""Values of ``message_mode`` of rows with a whole prompt."""

CONVERSATION_MS: Final = 1000
TURN_MS: Final = 10_000
MS_PER_OUTPUT_TOKEN: Final = 30
MS_IN_SECOND: Final = 1000
MOST_SESSIONS: Final = 2**20

TIMES: Final = (
    *("timestamp", "ts", "time", "start_time", "startTime", "@timestamp", "request_time"),
    *("created_at", "created_time", "created"),
)
"""Names of the time of a request, in order of preference."""

DELAYS: Final = ("delay", "delay_ms")
"""Names of the milliseconds after the answer before, in a session."""

FIRST_DATE: Final = 10**9  # seconds in September 2001
UNITS: Final = (
    (10**11, 10**3, 1, "seconds"),
    (10**14, 1, 1, "milliseconds"),
    (10**17, 1, 10**3, "microseconds"),
    (10**20, 1, 10**6, "nanoseconds"),
)
"""Numbers below the first of each count in its unit, and factor and divisor for milliseconds."""


class Times:
    """Converts the times of a trace to milliseconds.

    Args:
        unit: ``"seconds"`` or ``"milliseconds"``: of times from the start of the trace.
    """

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._dates: bool | None = None

    @property
    def dates(self) -> bool:
        """Whether times are dates, as far as any was read."""
        return bool(self._dates)

    def settle(self, values: Iterable[Any]) -> None:
        """Decide by the first times of a trace whether they are dates."""
        found = [_number(value) for value in values if value is not None]
        if self._dates is None and found:
            self._dates = min(math.inf if one is None else one for one in found) >= FIRST_DATE

    def ms(self, record: Record, name: str, value: Any, notes: Notes) -> int:
        """The milliseconds of ``value``, found in the field ``name``.

        Raises:
            TraceFormatError: It is no time, or counts from another start than the times before.
        """
        self.settle((value,))
        number = _number(value)
        is_date = number is None or number >= FIRST_DATE
        if number is None:
            milliseconds, unit = iso_ms(value), "ISO 8601"
        elif self._dates and is_date:
            _, more, less, unit = next(one for one in UNITS if number < one[0])
            milliseconds, unit = scaled(number, more, less), f"{unit} since 1970"
        else:
            more = MS_IN_SECOND if self._unit == "seconds" else 1
            milliseconds, unit = scaled(number, more, 1), f"{self._unit} from the start"
        if milliseconds is None or not 0 <= milliseconds <= MAX_NUMBER:
            expected = f"a number in [0, {MAX_NUMBER}], or an ISO 8601 date"
            raise record.wrong(name, value, expected)
        if self._dates and not is_date:
            raise record.wrong(name, value, "a date, as in earlier records")
        if not self._dates and number is None:
            expected = f"{self._unit} from the start, as in earlier records"
            raise record.wrong(name, value, expected)
        notes.assume("clock", f"{name} in {unit}")
        return milliseconds


class Clock:
    """Refuses times that go back, unless requests are sorted anyway."""

    def __init__(self, *, sort: bool) -> None:
        self._sort = sort
        self._latest = 0

    def check(self, time_ms: int) -> str | None:
        """The expected time instead of ``time_ms``; None if that is valid."""
        if time_ms < self._latest and not self._sort:
            return f"at least {self._latest} ms, as before, or reading with sort (--sort)"
        self._latest = max(self._latest, time_ms)
        return None


class Arrivals:
    """The arrivals of the requests of one file.

    Args:
        clock: Clock of the file.
        times: Converts times.
        notes: What was assumed and not read so far.
    """

    def __init__(self, clock: Clock, times: Times, notes: Notes) -> None:
        self._clock = clock
        self._times = times
        self._notes = notes
        self._timed: bool | None = None
        self._begun = 0
        self._ended: dict[Any, int] = {}

    def of(
        self, record: Record, places: Sequence[dict[str, Any]], session: Any = None
    ) -> tuple[int, bool]:
        """When the request of a record arrives, and whether the file has its time.

        Args:
            record: The record.
            places: Its objects that may have a time, the best first.
            session: What the requests of one conversation share; None for a request alone.

        Raises:
            TraceFormatError: The time or the delay is none, goes back, or is missing while other
                records have one.
        """
        found = [(name, place) for place in places for name in TIMES if place.get(name) is not None]
        if found:
            name, place = found[0]
            for other, elsewhere in found[1:]:
                if elsewhere is places[0] and elsewhere[other] != place[name]:
                    self._notes.not_read(other)
            time_ms = self._times.ms(record, name, place[name], self._notes)
            if (late := self._clock.check(time_ms)) is not None:
                raise record.wrong(name, place[name], late)
            self._all_or_none(record, timed=True)
            return time_ms, True
        delay_ms = _delay_ms(record, places[0])
        if delay_ms is not None and session is None:
            self._notes.not_read("delay without session_id")
        if session is not None and session in self._ended:
            pause = TURN_MS if delay_ms is None else delay_ms
            return self._ended[session] + pause, False
        self._all_or_none(record, timed=False)
        paced = f"none: conversations begin {CONVERSATION_MS} ms apart, and a turn comes "
        paced += f"{TURN_MS} ms after the answer before it, or after its delay"
        self._notes.assume("clock", paced)
        self._begun += 1
        return (self._begun - 1) * CONVERSATION_MS, False

    def ends(self, session: Any, end_ms: int) -> None:
        """Record when the answer to the latest request of a session is complete."""
        if session is not None and (session in self._ended or len(self._ended) < MOST_SESSIONS):
            self._ended[session] = end_ms

    def _all_or_none(self, record: Record, *, timed: bool) -> None:
        if self._timed is None:
            self._timed = timed
        if self._timed != timed:
            found = "a time" if timed else "no time"
            raise record.error("", found, "a time in every record, or in none")


def answered_ms(num_output_tokens: int) -> int:
    """Milliseconds that an answer takes at the stated pace."""
    return MS_PER_OUTPUT_TOKEN * num_output_tokens


def _delay_ms(record: Record, row: dict[str, Any]) -> int | None:
    for name in DELAYS:
        value = row.get(name)
        if value is not None:
            number = _number(value)
            if number is None or not 0 <= number <= MAX_NUMBER:
                raise record.wrong(name, value, "milliseconds, not negative")
            return scaled(number, 1, 1)
    return None


def _number(value: Any) -> int | float | None:
    """The number that ``value`` is, or is the text of; None if it is none."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if type(value) not in (int, float) or not -math.inf < value < UNITS[-1][0]:
        return None  # a comparison also holds for integers that no float can be
    number: int | float = value
    return number


def iso_ms(value: Any) -> int | None:
    """Milliseconds from 1970 to an ISO 8601 date, of UTC without a zone; None if it is none."""
    try:
        time = datetime.fromisoformat(value)
        aware = time if time.tzinfo else time.replace(tzinfo=UTC)
        return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    except (TypeError, ValueError, OverflowError):
        return None
