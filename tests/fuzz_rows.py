"""A fuzzer of rows for ``tests.fuzz_parsers``: samples of all trace files, changed field by field.

Fields are renamed, removed, added, doubled, retyped and put in another order; rows are repeated and
moved; files are cut and compressed. A file must be read or refused with the documented error. Of
the fields that no format has, each one in a place that a format knows must be reported; a field
that is twice in an object must be refused.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from blockmgr.errors import TraceFormatError
from blockmgr.lab import trace
from blockmgr.lab.formats.chat_tokens import ChatTokens
from tests.lab.byte_tokenizer import TEMPLATE, saved
from tests.lab.test_trace_files import SAMPLES

UNKNOWN = "zz_"
KNOWN_PLACES = {
    *("messages", "content", "body", "request", "payload", "response", "choices", "message"),
    *("usage", "requests", "conversations", "tool_calls", "function", "output", "events"),
    "timing_events",
}
"""Fields whose objects a reader looks into; a field in any other object is part of a value."""

VALUES = (None, True, -1, 0, 7, 2**70, 1.5, float("nan"), "", "7", "x", [], [1], {}, {"a": 1})


class Rows:
    """The fuzzer.

    Args:
        seed: Seed of the changes.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._folder = Path(tempfile.mkdtemp())
        self._chat = ChatTokens(saved(self._folder / "tokenizer", TEMPLATE))
        self._names = 0
        self.file = self._folder / "trace.jsonl"
        self.read = 0
        self.samples = [
            (name, *self._parsed(data), options)
            for name, (data, options) in sorted(SAMPLES.items())
        ]

    @staticmethod
    def _parsed(data: bytes) -> tuple[bytes, list[Any] | None]:
        try:
            value = json.loads(data)
        except ValueError:
            try:
                return data, [json.loads(line) for line in data.splitlines()]
            except ValueError:
                return data, None
        return data, value if isinstance(value, list) else [value]

    def one(self) -> None:
        """Change and read one sample.

        Raises:
            AssertionError: A rule is broken.
        """
        rng = self._rng
        name, data, rows, options = rng.choice(self.samples)
        doubled = False
        expected: set[str] = set()
        if rows is not None:
            rows = json.loads(json.dumps(rows))
            for _ in range(rng.randint(0, 3)):
                self._change(rows)
            expected = {field for row in rows for field in unknown(row)}
            texts = [self._text(row) for row in rows]
            if rng.random() < 0.1:
                doubled = True
                place = rng.randrange(len(texts))
                doubled = texts[place].startswith("{") and texts[place] != "{}"
                if doubled:
                    key = next(iter(rows[place]))
                    texts[place] = f"{{{json.dumps(key)}: 1, {texts[place][1:]}"
            data = self._file(texts)
        data, cut = self._bytes(data)
        path = self.file
        path.write_bytes(data)
        self._read(path, options, set() if cut else expected, doubled and not cut, name)

    def _read(
        self, path: Path, options: dict[str, Any], expected: set[str], doubled: bool, name: str
    ) -> None:
        made, trace.ChatTokens = trace.ChatTokens, lambda _: self._chat  # type: ignore[misc,assignment]
        try:
            read = trace.read_trace(path, tokenizer="-", sort=True, **options).read
        except (TraceFormatError, ValueError) as error:
            said = str(error)
            if isinstance(error, TraceFormatError):
                assert said.startswith(f"{path}:"), said
                assert "\n" not in said, said
            else:
                assert "--" in said, said
            return
        finally:
            trace.ChatTokens = made  # type: ignore[misc]
        self.read += 1
        assert read is not None
        assert not doubled, f"{name}: a field was twice in a row, and was read"
        told = [f".{field}." for field in read.unread]
        missing = {field for field in expected if not any(one in f".{field}." for one in told)}
        assert not missing, f"{name}: not reported: {missing}, of {read}"

    def _change(self, rows: list[Any]) -> None:
        rng = self._rng
        kind = rng.randrange(8)
        if kind == 0:
            rows.insert(rng.randrange(len(rows) + 1), json.loads(json.dumps(rng.choice(rows))))
            return
        if kind == 1:
            rng.shuffle(rows)
            return
        holder = rng.choice(objects(rows) or [{}])
        if kind == 2 or not holder:
            self._names += 1
            holder[f"{UNKNOWN}{self._names}"] = copy.deepcopy(rng.choice(VALUES[1:]))
            return
        field = rng.choice(list(holder))
        if kind == 3:
            del holder[field]
        elif kind == 4:
            self._names += 1
            holder[f"{UNKNOWN}{self._names}"] = holder.pop(field)
        elif kind == 5:
            holder[field] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 6:
            items = list(holder.items())
            rng.shuffle(items)
            holder.clear()
            holder.update(items)
        else:
            other = rng.choice(objects(rows))
            holder[field] = copy.deepcopy(rng.choice([*other.values(), 1]))

    def _text(self, row: Any) -> str:
        return json.dumps(row, indent=None)

    def _file(self, texts: list[str]) -> bytes:
        kind = self._rng.randrange(4)
        if kind == 0:
            return f"[{', '.join(texts)}]".encode()
        if kind == 1:
            return ("[\n" + ",\n".join(texts) + "\n]\n").encode()
        if kind == 2 and all(text.startswith("{") for text in texts):
            return "\n".join("{\n" + text[1:] for text in texts).encode()
        return "".join(text + "\n" for text in texts).encode()

    def _bytes(self, data: bytes) -> tuple[bytes, bool]:
        rng = self._rng
        cut = rng.random() < 0.15
        if cut:
            data = data[: rng.randrange(len(data) + 1)]
        if rng.random() < 0.15:
            data = gzip.compress(data, 1)
            if rng.random() < 0.3:
                return data[: rng.randrange(len(data) + 1)], True
        return data, cut


def objects(value: Any) -> list[dict[str, Any]]:
    """All objects in a value, outermost first."""
    if isinstance(value, list):
        return [one for item in value for one in objects(item)]
    if isinstance(value, dict):
        return [value, *(one for item in value.values() for one in objects(item))]
    return []


def unknown(value: Any, place: str = "") -> set[str]:
    """The fields that no format has, in places that a reader looks into: names with dots.

    A reader may name the object that has the field instead, if it reads nothing of that object.
    """
    if isinstance(value, list):
        return {name for item in value for name in unknown(item, place)}
    if not isinstance(value, dict):
        return set()
    found = {
        f"{place}{name}"
        for name, one in value.items()
        if name.startswith(UNKNOWN) and one is not None
    }
    within = (
        unknown(one, f"{place}{name}.") for name, one in value.items() if name in KNOWN_PLACES
    )
    return found.union(*within)
