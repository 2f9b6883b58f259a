"""The state shared by all readers of trace formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from blockmgr.errors import TraceFormatError
from blockmgr.lab.formats.fields import Notes
from blockmgr.lab.formats.record import shown
from blockmgr.lab.formats.times import TIMES, Arrivals, Clock, Times

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from blockmgr.lab.formats.chat_tokens import ChatTokens
    from blockmgr.lab.formats.record import Record
    from blockmgr.lab.stored import Row

__all__ = ["IdSize", "Ids", "LogReader", "Reading", "RowReader"]

MOST_POWER: Final = 20
UNBOUNDED: Final = 2**53
FITS: Final = 2**61
FIRST_RECORDS: Final = 32
FIRST_CHARS: Final = 2**20
SMALL: Final = "numbers"
LARGE: Final = "numbers of 64 bits"
NEGATIVE: Final = "negative numbers"
WIDE: Final = "numbers of more than 64 bits"
TEXT: Final = "strings"
ALIKE: Final = ({SMALL, LARGE}, {SMALL, NEGATIVE}, {TEXT, WIDE})
"""Kinds of ids that can be distinguished in 64 bits."""


def peeked(records: Iterable[Record]) -> tuple[list[Record], Iterator[Record]]:
    """The first records, as far as they are few and short; and all records, in order."""
    rest = iter(records)
    first: list[Record] = []
    error: list[TraceFormatError] = []
    try:
        while len(first) < FIRST_RECORDS and sum(one.num_chars for one in first) < FIRST_CHARS:
            first.append(next(rest))
    except StopIteration:
        pass
    except TraceFormatError as caught:
        error.append(caught)

    def everything() -> Iterator[Record]:
        yield from first
        if error:
            raise error[0]
        yield from rest

    return first, everything()


class IdSize:
    """Detects the number of tokens per id from the prompts.

    A prompt of L tokens with n ids implies a size in ``[L / n, L / (n - 1))``. Of the sizes that
    fit every prompt, the result is the usual one of the format, or else the only power of two, or
    else the only one.

    Args:
        usual: Size defined by the format; None if there is none.
        known: Size given by the caller; None to detect it.
        names: Name of the field with the ids.

    Attributes:
        whole: Whether only whole blocks have ids.
    """

    def __init__(
        self, usual: int | None, known: int | None = None, *, names: str = "hash_ids"
    ) -> None:
        self._usual = usual
        self._known = known
        self._names = names
        self._source = "as given"
        self.whole = False
        # The sizes that fit if the last, incomplete blocks have no ids.
        self._whole_low, self._whole_high = 1, UNBOUNDED
        self._low, self._high = 1, UNBOUNDED
        self._last: tuple[Record, int, int] | None = None
        self._plausible = usual or 1  # that fit all prompts so far
        self._doubt: TraceFormatError | None = None  # for the first prompt that no likely size fits

    def declare(self, record: Record, name: str, size: int) -> None:
        """Take the size that the field ``name`` of a record says.

        Raises:
            TraceFormatError: The caller, or an earlier record, says another one.
        """
        if self._known is None:
            if not self._low <= size <= self._high:
                expected = f"{self._low} to {self._highest()}, which fit the prompts before"
                raise record.error(name, f"{name} {size}", expected)
            self._known, self._source = size, f"{name} of the rows"
        elif self._known != size:
            of = self._source.replace("as given", "as --tokens-per-id says")
            raise record.error(name, f"{name} {size}", f"{self._known}, {of}")

    def see(self, record: Record, num_ids: int, num_tokens: int) -> bool:
        """Process one prompt.

        Returns:
            Whether the last block of the prompt has no id.

        Raises:
            TraceFormatError: No size fits this prompt and all earlier ones.
        """
        if self.whole and self._known is not None:
            least, most = num_tokens // self._known, -(-num_tokens // self._known)
            if num_ids not in (least, most):
                raise self._contradiction(record, num_ids, num_tokens, self._known)
            return num_ids < most
        self._see(record, num_ids, num_tokens)
        return False

    def _see(self, record: Record, num_ids: int, num_tokens: int) -> None:
        self._whole_low = max(self._whole_low, num_tokens // (num_ids + 1) + 1)
        self._whole_high = min(self._whole_high, num_tokens // num_ids if num_ids else UNBOUNDED)
        low = -(-num_tokens // num_ids) if num_ids else UNBOUNDED + 1
        high = -(-num_tokens // (num_ids - 1)) - 1 if num_ids > 1 else UNBOUNDED
        if self._known is not None:
            if not low <= self._known <= high:
                raise self._contradiction(record, num_ids, num_tokens, self._known)
            return
        if low <= self._low and self._high <= high:
            return
        low, high = max(low, self._low), min(high, self._high)
        if low > high:
            raise self._contradiction(record, num_ids, num_tokens, self._plausible)
        self._low, self._high = low, high
        likely = self._likely()
        if likely:
            self._plausible = likely[0]
        elif self._doubt is None:
            self._doubt = self._contradiction(record, num_ids, num_tokens, self._plausible)

    def size(self) -> int:
        """The number of tokens per id.

        Raises:
            TraceFormatError: No likely size fits all prompts, and several others do.
            ValueError: Several likely sizes fit.
        """
        if self._known is not None:
            return self._known
        if self._low == self._high:
            return self._low
        likely = self._likely()
        if len(likely) == 1:
            return likely[0]
        if not likely and self._doubt is not None:
            raise self._doubt
        raise ValueError(
            f"tokens_per_id (--tokens-per-id) must say how many tokens an id stands for: every "
            f"number from {self._low} "
            + ("on" if self._high == UNBOUNDED else f"to {self._high}")
            + " fits the lengths of these prompts"
        )

    def reason(self, size: int) -> str:
        """``size`` with where it comes from."""
        if self._known is not None:
            return f"{size}, {self._source}"
        if self._low == self._high:
            return f"{size}, the only one that fits the lengths of prompts"
        if size == self._usual:
            return f"{size}, usual for the format; {self._low} to {self._highest()} fit"
        return f"{size}, the only power of two from {self._low} to {self._highest()}, which fit"

    def _highest(self) -> str:
        return "any number" if self._high == UNBOUNDED else str(self._high)

    def _likely(self) -> list[int]:
        """The usual size alone if it fits, else the powers of two that do."""
        if self._usual is not None and self._low <= self._usual <= self._high:
            return [self._usual]
        powers = (1 << power for power in range(MOST_POWER))
        return [power for power in powers if self._low <= power <= self._high]

    def _contradiction(
        self, record: Record, num_ids: int, num_tokens: int, size: int
    ) -> TraceFormatError:
        found = f"{num_ids} {self._names} for input_length {num_tokens}"
        expected = f"{-(-num_tokens // size)}, one for each {size} tokens"
        if self._known is None and self._whole_low <= self._whole_high:
            sizes = range(self._whole_low, min(self._whole_high, 2**MOST_POWER) + 1)
            powers = [power for power in (1 << n for n in range(MOST_POWER)) if power in sizes]
            fits = powers[0] if powers else self._whole_low
            expected += f"; if the last, incomplete block has no id: --tokens-per-id ({fits} fits)"
        elif self._known is not None and num_ids == num_tokens // size:
            found += ", none for the last, incomplete block"
            expected += ", as in the first rows"
        return record.error(self._names, found, expected)


class Ids:
    """Maps ids of any kind to 64-bit numbers, one to one.

    Numbers that fit are kept. Texts, and numbers of more than 64 bits, get consecutive numbers,
    which takes memory for each.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._kinds: set[str] = set()

    def encoded(self, record: Record, name: str, values: list[Any]) -> npt.NDArray[np.uint64]:
        """``values`` of the field ``name``.

        Raises:
            TraceFormatError: A value is neither a whole number nor a text, or its kind cannot be
                mixed with those read before.
        """
        if not values:
            return np.zeros(0, dtype=np.uint64)
        types = set(map(type, values))
        if not types <= {int, str}:
            wrong = next(value for value in values if type(value) not in (int, str))
            raise record.error(name, f"{shown(wrong)} in {name}", "integers or strings")
        kind, encoded = TEXT, None
        if types <= {int}:
            kind, encoded = self._as_numbers(values)
        self._kinds.add(kind)
        if not any(self._kinds <= kinds for kinds in ALIKE):
            others = " or ".join(sorted(self._kinds - {kind}))
            raise record.error(name, f"{kind} in {name}", f"{others} only, as before")
        if encoded is not None:
            return encoded
        numbers = self._numbers
        numbered = [numbers.setdefault(value, len(numbers)) for value in values]
        return np.array(numbered, dtype=np.uint64)

    def encoded_whole(
        self, record: Record, name: str, values: list[Any], unnamed: int | None
    ) -> npt.NDArray[np.uint64]:
        """``values``, and an id that nothing else has for the block numbered ``unnamed``.

        Two low bits tell ids, blocks without ids, and numbered ids apart.

        Raises:
            TraceFormatError: A value is neither a whole number nor a text.
        """
        encoded = []
        for value in values:
            if type(value) is int and 0 <= value < FITS:
                encoded.append(value << 2)
            elif type(value) in (int, str):
                encoded.append(self._numbers.setdefault(value, len(self._numbers)) << 2 | 2)
            else:
                raise record.error(name, f"{shown(value)} in {name}", "integers or strings")
        if unnamed is not None:
            encoded.append(unnamed << 2 | 1)
        return np.array(encoded, dtype=np.uint64)

    @staticmethod
    def _as_numbers(values: list[int]) -> tuple[str, npt.NDArray[np.uint64] | None]:
        try:
            signed = np.array(values, dtype=np.int64)
        except OverflowError:
            if min(values) < 0 or max(values) >= 1 << 64:
                return WIDE, None
            return LARGE, np.array(values, dtype=np.uint64)
        kind = NEGATIVE if (signed < 0).any() else SMALL
        return kind, signed.view(np.uint64)


@dataclass(slots=True, kw_only=True)
class Reading:
    """The reading of one trace, from one or several files.

    Attributes:
        sort: Whether requests may be in any order.
        chat: Converts text to tokens; None without a tokenizer.
        tokens_per_id: Tokens per id; None to detect it.
        ids: Ids read so far.
        id_size: Set by readers of ids.
        clock: Clock of the current file.
        notes: What was assumed, left out and not read so far.
        order: Number of requests read so far.
        times: Converts times; set by readers of formats with times.
        sessions: Number of sessions read so far, by readers that give them a pace.
        named: Numbers of sessions by name, from 1 on.
        carried: State that a reader keeps from one file of a trace to the next, by its name.
    """

    sort: bool = False
    chat: ChatTokens | None = None
    tokens_per_id: int | None = None
    ids: Ids = field(default_factory=Ids)
    id_size: IdSize | None = None
    clock: Clock = field(default_factory=lambda: Clock(sort=True))
    notes: Notes = field(default_factory=Notes)
    order: int = 0
    times: Times | None = None
    sessions: int = 0
    named: dict[Any, int] = field(default_factory=dict)
    carried: dict[str, Any] = field(default_factory=dict)

    def begun(
        self, records: Iterable[Record], unit: str
    ) -> tuple[list[dict[str, Any]], Iterator[Record], Arrivals]:
        """The first rows of a file with times, all its records, and their arrivals.

        Args:
            records: The records of the file.
            unit: Unit of times from the start of the trace, as in ``Times``.
        """
        first, everything = peeked(records)
        rows = [one.value for one in first if isinstance(one.value, dict)]
        if self.times is None:
            self.times = Times(unit)
        self.times.settle(
            next((row[name] for name in TIMES if row.get(name) is not None), None) for row in rows
        )
        return rows, everything, Arrivals(self.clock, self.times, self.notes)

    def session(self, name: Any) -> int:
        """The number of a session; 0 for None."""
        return 0 if name is None else self.named.setdefault(name, len(self.named) + 1)

    def next_order(self) -> int:
        """The index of the next request."""
        self.order += 1
        return self.order


class RowReader(Protocol):
    """Reads the records of one file of one format."""

    def __call__(self, records: Iterable[Record], reading: Reading) -> Iterator[Row]:
        """The requests of these records."""


class LogReader(Protocol):
    """Reads the lines of one file of one server's log."""

    def __call__(
        self, path: str, lines: Iterable[tuple[int, bytes]], reading: Reading
    ) -> Iterator[Row]:
        """The requests of these lines."""
