"""One JSON record of a trace, and all messages about malformed records."""

from __future__ import annotations

import json
import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from blockmgr.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from blockmgr.lab.formats.opened import Opened

__all__ = [
    "MAX_NUMBER",
    "MAX_TOKEN",
    "Record",
    "checked_tokens",
    "is_json",
    "kind_of",
    "records",
    "scaled",
    "shown",
]

TYPE_NAMES: Final = {
    bool: "a boolean",
    dict: "an object",
    float: "a fraction",
    int: "an integer",
    list: "a list",
    str: "a string",
    type(None): "null",
}
MAX_TOKEN: Final = 2**32 - 1
MAX_NUMBER: Final = 2**53
PIECE: Final = 64 * 2**10
CUT: Final = 16  # more characters than the longest word of JSON
SPACE: Final = " \t\r\n"
NUMBER: Final = r"-?\d+(\.\d*)?([eE][+-]?\d+)?"
WORD: Final = r"[a-zN]+"
JSON: Final = re.compile(rf"""\s*(\{{|\[\s*(["{{\[\]]|({NUMBER}|{WORD})\s*(,|\]\s*$)))""")
ARRAY: Final = re.compile(rf"""\s*\[\s*(["{{\[\]]|{WORD}\s*[,\]])""")
OBJECT_OF_LINES: Final = re.compile(r"\s*\{[ \t\r]*\n")


class Record:
    """A JSON value in a file: a line, or an element of an array.

    Attributes:
        value: The value, an object in most formats.
        line: Number of its first line, from 1.
    """

    def __init__(self, path: str, line: int, text: str, value: Any, column: int = 1) -> None:
        self.value = value
        self.line = line
        self._path = path
        self._text = text
        self._column = column

    @classmethod
    def of_line(cls, path: str, line: int, raw: bytes) -> Record:
        """The record on a line.

        Raises:
            TraceFormatError: It is none.
        """
        text = _text(path, line, raw).rstrip("\r\n")
        try:
            return cls(path, line, text, json.loads(text, object_pairs_hook=_once))
        except json.JSONDecodeError as error:
            column, found = error.colno, f"broken JSON ({error.msg.lower()})"
        except _TwiceError as error:
            column, found = text.find(json.dumps(error.name)) + 1 or 1, str(error)
        except (RecursionError, ValueError) as error:
            column, found = 1, f"unusable JSON ({error})"
        raise TraceFormatError(path, line, column, found, "a JSON object")

    @property
    def num_chars(self) -> int:
        """Length of its text."""
        return len(self._text)

    def error(self, field: str, found: str, expected: str) -> TraceFormatError:
        """The error about ``field``, at the position of its name."""
        at = max(0, self._text.find(json.dumps(field))) if field else 0
        before = self._text[:at]
        line = self.line + before.count("\n")
        column = at - before.rfind("\n") if "\n" in before else at + self._column
        return TraceFormatError(self._path, line, column, found, expected)

    def wrong(self, field: str, value: Any, expected: str) -> TraceFormatError:
        """The error about the value of ``field``."""
        return self.error(field, f"{field} {shown(value)}", expected)

    def renamed(self, value: dict[str, Any]) -> Record:
        """The same position of the file, with another value."""
        return Record(self._path, self.line, self._text, value, self._column)

    def object(self) -> dict[str, Any]:
        """The value, if it is an object.

        Raises:
            TraceFormatError: It is something else.
        """
        if isinstance(self.value, dict):
            return self.value
        raise self.error("", kind_of(self.value), "a JSON object")

    def get(self, field: str) -> Any:
        """The value of a field that every record has.

        Raises:
            TraceFormatError: This record does not have it.
        """
        if field not in self.object():
            raise self.error(field, f"no field {json.dumps(field)}", "one in every record")
        return self.value[field]

    def integer(self, field: str, low: int, high: int) -> int:
        """An integer in ``[low, high]``.

        Raises:
            TraceFormatError: It is none.
        """
        value = self.get(field)
        # A bool is an int in Python, but an error in a trace.
        if type(value) is not int or not low <= value <= high:
            raise self.wrong(field, value, f"an integer in [{low}, {high}]")
        return value

    def milliseconds(self, field: str, scale: int = 1) -> int:
        """A time as whole milliseconds, rounded down.

        Args:
            field: Name of the field, whose value may be fractional.
            scale: Milliseconds per unit of the field.

        Raises:
            TraceFormatError: It is not a number, or is negative or too large.
        """
        value = self.get(field)
        high = MAX_NUMBER // scale
        if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= high:
            raise self.wrong(field, value, f"a number in [0, {high}]")
        return scaled(value, scale, 1)

    def items(self, field: str) -> list[Any]:
        """A list of anything.

        Raises:
            TraceFormatError: It is none.
        """
        value = self.get(field)
        if type(value) is not list:
            raise self.wrong(field, value, "a list")
        return value

    def tokens(self, field: str, values: Any) -> list[int]:
        """``values``, found in ``field``, if they are a list of token ids.

        Raises:
            TraceFormatError: They are not.
        """
        return checked_tokens(field, values, partial(self.error, field))


class _TwiceError(ValueError):
    """An object has two fields of the same name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"two fields {shown(name)} in an object")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for name in names if names.count(name) > 1))
    return found


def is_json(head: str) -> bool:
    """Whether a file with these first characters holds JSON records.

    A log may begin with "[" as well, before the time or the level of its first line.
    """
    return JSON.match(head) is not None


def records(file: Opened, most_bytes: int) -> Iterator[Record]:
    """The records of a file: its lines, the elements of its array, or objects of several lines.

    Raises:
        TraceFormatError: A record is not JSON, or is longer than ``most_bytes``.
    """
    head = file.head.decode("utf-8", "replace").lstrip("\ufeff")
    is_array = ARRAY.match(head) is not None
    if is_array or OBJECT_OF_LINES.match(head):
        yield from _values(file, most_bytes, is_array=is_array)
        return
    for number, raw in file.lines(most_bytes):
        yield Record.of_line(file.path, number, raw.removeprefix(b"\xef\xbb\xbf"))


def checked_tokens(
    name: str,
    values: Any,
    refuse: Callable[[str, str], TraceFormatError],
    most: int = MAX_TOKEN,
    expected: str = f"integers in [0, {MAX_TOKEN}]",
) -> list[int]:
    """The value of the field ``name``, if it is a list of tokens up to ``most``.

    Raises:
        TraceFormatError: It is none; ``refuse`` returns the error.
    """
    if type(values) is not list:
        raise refuse(f"{shown(values)} in {name}", "a list of integers")
    for value in values:
        if type(value) is not int or not 0 <= value <= most:
            raise refuse(f"{shown(value)} in {name}", expected)
    return values


def kind_of(value: Any) -> str:
    """The kind of a JSON value in words."""
    return TYPE_NAMES.get(type(value), "something else")


def shown(value: Any) -> str:
    """A JSON value as text, shortened so that the error fits one line."""
    longest = 40
    text = json.dumps(value)
    return text if len(text) <= longest else f"{text[:longest]}…"


def _text(path: str, line: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode("utf-8")) + 1
        found = f"byte 0x{raw[error.start]:02x}"
        raise TraceFormatError(path, line, column, found, "UTF-8 text") from None


class _Window:
    """A window of a file's text; earlier text is dropped."""

    def __init__(self, file: Opened, most_bytes: int) -> None:
        self._file = file
        self.most_bytes = most_bytes
        self._raw = b""
        self.text = ""
        self.line = 1
        self.column = 1
        self.ended = False

    def more(self) -> None:
        """Read twice as much, so that the number of retries stays small."""
        size = max(PIECE, len(self.text))
        if len(self.text) > self.most_bytes:
            raise self.too_long()
        data = self._file.read(size, self.line)
        self.ended = len(data) < size
        self._raw += data
        # The last character may be incomplete.
        whole = self._raw if self.ended else self._raw[: _last_whole(self._raw)]
        lines = self.text.count("\n") + self.line
        self.text += _text(self._file.path, lines, whole)
        self._raw = self._raw[len(whole) :]

    def drop(self, count: int) -> None:
        """Drop the first ``count`` characters."""
        gone = self.text[:count]
        newlines = gone.count("\n")
        self.line += newlines
        self.column = count - gone.rfind("\n") if newlines else self.column + count
        self.text = self.text[count:]

    def skip_space(self) -> str:
        """The next character that is not a space, without dropping it; empty at the end."""
        while True:
            self.drop(len(self.text) - len(self.text.lstrip(SPACE)))
            if self.text or self.ended:
                return self.text[:1]
            self.more()

    def check_end(self) -> None:
        """Refuses what follows an array, such as another one: its requests would be left out."""
        if after := self.skip_space():
            raise self.error(f"{after!r} behind an array", "the end of the file")

    def too_long(self) -> TraceFormatError:
        found = f"a record of more than {self.most_bytes} bytes"
        return self.error(found, f"at most {self.most_bytes} bytes a record")

    def error(self, found: str, expected: str) -> TraceFormatError:
        return TraceFormatError(self._file.path, self.line, self.column, found, expected)


def _last_whole(raw: bytes) -> int:
    """Bytes up to the last complete character."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte < 0x80:
            return len(raw)
        if byte >= 0xC0:
            needed = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(raw) if back >= needed else len(raw) - back
    return len(raw)


def _values(file: Opened, most_bytes: int, *, is_array: bool) -> Iterator[Record]:
    """The elements of an array, or objects one after another, without holding all of them."""
    window = _Window(file, most_bytes)
    window.more()
    window.drop(len(window.text) - len(window.text.lstrip("\ufeff")))
    if is_array:
        window.drop(window.text.index("[") + 1)
        if window.skip_space() == "]":
            window.drop(1)
            window.check_end()
            return
    decoder = json.JSONDecoder(object_pairs_hook=_once)
    while window.skip_space() or is_array:
        line, column = window.line, window.column
        value, size = _decoded(decoder, window)
        yield Record(file.path, line, window.text[:size], value, column)
        window.drop(size)
        if not is_array:
            continue
        after = window.skip_space()
        if after not in (",", "]"):
            raise window.error(f"{after or 'the end of the file'!r}"[:40], "',' or ']'")
        window.drop(1)
        if after == "]":
            window.check_end()
            return


def _decoded(decoder: json.JSONDecoder, window: _Window) -> tuple[Any, int]:
    """The value at the beginning of the window, and its length."""
    while True:
        try:
            value, size = decoder.raw_decode(window.text)
        except json.JSONDecodeError as error:
            # Truncated JSON fails at its end, or at the start of a string.
            cut = error.pos > len(window.text) - CUT or error.msg.startswith("Unterminated")
            if window.ended or not cut:
                window.drop(error.pos)
                raise window.error(f"broken JSON ({error.msg.lower()})", "a JSON object") from None
        except (RecursionError, ValueError) as error:
            raise window.error(f"unusable JSON ({error})", "a JSON object") from None
        else:
            # A number at the end may continue; an object or a list cannot.
            if size > window.most_bytes:
                raise window.too_long()
            if size < len(window.text) or window.ended:
                return value, size
        window.more()


def scaled(number: float, more: int, less: int) -> int:
    """``number * more / less``, rounded down."""
    if isinstance(number, int):
        return number * more // less
    # 61.114 s is 61,114 ms, although its binary fraction may be slightly smaller.
    return math.floor(round(number * more / less, 6))
