"""Stores requests in a temporary file, for traces larger than memory.

A store has two byte strings: the concatenated contents of prompts and outputs, and an index with
one fixed-size record per request. Each is in memory as long as it is small, and then continues
in a temporary file in ``TMPDIR``, which has no name and so disappears with the process. So
memory use does not depend on the number of requests.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, overload

import numpy as np
import numpy.typing as npt

from blockmgr.lab.request import HashedPrompt, Request, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["RequestStore", "Row", "StoredRequests"]

IN_MEMORY: Final = 64 * 2**20
"""Bytes of the contents, or of the index, above which they go to a file."""

AT_ONCE: Final = 4096
"""Requests whose index records are read together."""

NO_TOOL: Final = -1

INDEX: Final = np.dtype(
    [
        ("arrival_ms", "<i8"),
        ("order", "<i8"),
        ("start", "<i8"),
        ("items", "<i4"),
        ("outputs", "<i4"),
        ("num_tokens", "<i8"),
        ("num_output_tokens", "<i8"),
        ("namespace", "<i4"),
        ("hashed", "<i4"),
        ("session", "<i8"),
        ("tool_ms", "<i8"),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A reader's record of one request.

    Attributes:
        arrival_ms: When it came.
        order: Its place among simultaneous requests.
        prompt: Ids or tokens.
        num_tokens: Number of tokens of the ids; None if ``prompt`` holds tokens.
        num_output_tokens: Tokens generated.
        outputs: The tokens generated, one list per sample; empty if unknown.
        namespace: Tenant salt or adapter.
        session: Number of the session; 0 for none.
        tool_ms: Milliseconds that the longest tool takes which the answer calls; None for none.
    """

    arrival_ms: int
    order: int
    prompt: Sequence[int] | npt.NDArray[Any]
    num_tokens: int | None = None
    num_output_tokens: int = 0
    outputs: Sequence[Sequence[int]] = ()
    namespace: bytes = b""
    session: int = 0
    tool_ms: int | None = None


class _Bytes:
    """Bytes that can be appended, and read at any position; in memory while they are few."""

    def __init__(self, in_memory: int) -> None:
        self._in_memory = in_memory
        self._kept = bytearray()
        self._file: IO[bytes] | None = None
        self._spilled = 0

    def _hold(self, file: IO[bytes]) -> None:
        """Keep a file open for the lifetime of this object."""
        self._file = file
        weakref.finalize(self, file.close)

    def __len__(self) -> int:
        return self._spilled + len(self._kept)

    def append(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) > self._in_memory:
            self._spill()

    def freeze(self) -> None:
        """Ends appending."""
        if self._file is not None:
            self._spill()

    def read(self, start: int, size: int) -> bytes:
        if self._file is None:
            return bytes(self._kept[start : start + size])
        return os.pread(self._file.fileno(), size, start)

    def _spill(self) -> None:
        if self._file is None:
            self._hold(tempfile.TemporaryFile(buffering=0))  # noqa: SIM115  (see _hold)
        assert self._file is not None
        view = memoryview(self._kept)
        while view:
            view = view[self._file.write(view) :]
        view.release()
        self._spilled += len(self._kept)
        self._kept = bytearray()

    def __getstate__(self) -> tuple[bytes, str | None, int]:
        # Another process on this machine opens the same unnamed file.
        path = None if self._file is None else f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        return bytes(self._kept), path, self._spilled

    def __setstate__(self, state: tuple[bytes, str | None, int]) -> None:
        kept, path, self._spilled = state
        self._in_memory, self._kept = 0, bytearray(kept)
        self._file = None
        if path is not None:
            self._hold(Path(path).open("rb", buffering=0))  # noqa: SIM115  (see _hold)


class RequestStore:
    """Takes rows one by one, and returns them as a sequence of requests.

    Args:
        in_memory: Most bytes of the contents, and of the index, in memory.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._data = _Bytes(in_memory)
        self._index = _Bytes(in_memory)
        self._largest_id = 0
        self._all_hashed = True
        self._any_hashed = False
        self._latest = (-1, -1)
        self._in_order = True

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows in any order."""
        record = np.zeros(1, dtype=INDEX)
        for row in rows:
            hashed = row.num_tokens is not None
            start = len(self._data)
            if hashed:
                ids = np.array(row.prompt, dtype=np.uint64)
                if len(ids):
                    self._largest_id = max(self._largest_id, int(ids.max()))
                self._data.append(ids.tobytes())
            else:
                self._data.append(np.array(row.prompt, dtype=np.uint32).tobytes())
            self._any_hashed |= hashed
            self._all_hashed &= hashed and not row.outputs
            for output in row.outputs:
                self._data.append(np.array([len(output)], dtype=np.int64).tobytes())
                self._data.append(np.array(output, dtype=np.uint32).tobytes())
            self._data.append(row.namespace)
            record[0] = (
                row.arrival_ms,
                row.order,
                start,
                len(row.prompt),
                len(row.outputs),
                row.num_tokens if row.num_tokens is not None else len(row.prompt),
                row.num_output_tokens,
                len(row.namespace),
                hashed,
                row.session,
                NO_TOOL if row.tool_ms is None else row.tool_ms,
            )
            self._index.append(record.tobytes())
            self._in_order &= self._latest <= (row.arrival_ms, row.order)
            self._latest = (row.arrival_ms, row.order)

    def __len__(self) -> int:
        return len(self._index) // INDEX.itemsize

    def requests(self, tokens_per_id: int, *, from_zero: bool = False) -> StoredRequests:
        """All requests in order of arrival; no rows can be added after this call.

        Args:
            tokens_per_id: Tokens that each id stands for.
            from_zero: Whether to count time from the first request.

        Cost: Temporarily 24 bytes of memory per request if rows were not in order.
        """
        self._data.freeze()
        self._index.freeze()
        index = self._index if self._in_order else self._sorted()
        stored = StoredRequests(
            self._data, index, self._all_hashed, tokens_per_id, words_of(self._largest_id)
        )
        stored.any_hashed = self._any_hashed
        if from_zero and len(stored):
            stored.start_ms = stored[0].arrival_ms
        return stored

    def _sorted(self) -> _Bytes:
        keys = [chunk[["arrival_ms", "order"]] for chunk in _chunks(self._index, len(self), INDEX)]
        order = np.lexsort(
            (
                np.concatenate([chunk["order"] for chunk in keys]),
                np.concatenate([chunk["arrival_ms"] for chunk in keys]),
            )
        )
        result = _Bytes(self._in_memory)
        for place in order.tolist():
            result.append(self._index.read(place * INDEX.itemsize, INDEX.itemsize))
        result.freeze()
        return result


def _chunks(index: _Bytes, count: int, dtype: np.dtype[Any]) -> Iterator[npt.NDArray[Any]]:
    for first in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - first) * dtype.itemsize
        yield np.frombuffer(index.read(first * dtype.itemsize, size), dtype=dtype)


class StoredRequests(Sequence[Request]):
    """Requests in order of arrival, each created on access.

    Attributes:
        all_hashed: Whether every prompt is known by ids alone, and no output is known.
        any_hashed: Whether any prompt is known by ids.
        tokens_per_id: Tokens that each id stands for.
        words: Tokens that identify an id.
        start_ms: Subtracted from every arrival.
    """

    def __init__(
        self, data: _Bytes, index: _Bytes, all_hashed: bool, tokens_per_id: int, words: int
    ) -> None:
        self._data = data
        self._index = index
        self.all_hashed = all_hashed
        self.tokens_per_id = tokens_per_id
        self.words = words
        self.any_hashed = all_hashed
        self.start_ms = 0

    def __len__(self) -> int:
        return len(self._index) // INDEX.itemsize

    @overload
    def __getitem__(self, place: int) -> Request: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Request, ...]: ...

    def __getitem__(self, place: int | slice) -> Request | tuple[Request, ...]:
        if isinstance(place, slice):
            return tuple(self[number] for number in range(*place.indices(len(self))))
        number = range(len(self))[place]
        raw = self._index.read(number * INDEX.itemsize, INDEX.itemsize)
        return self._request(np.frombuffer(raw, dtype=INDEX)[0].item())

    def __iter__(self) -> Iterator[Request]:
        for chunk in _chunks(self._index, len(self), INDEX):
            for record in chunk.tolist():
                yield self._request(record)

    def lengths(self) -> Iterator[npt.NDArray[np.int64]]:
        """Tokens of prompts and of their outputs, for some requests at a time: ``int64[2, n]``."""
        for chunk in _chunks(self._index, len(self), INDEX):
            yield np.stack((chunk["num_tokens"], chunk["num_output_tokens"]))

    def columns(
        self,
    ) -> tuple[npt.NDArray[np.int64], list[bytes], npt.NDArray[np.uint64]]:
        """All requests as columns, if all are known by ids.

        Returns:
            Arrivals, prompt tokens, output tokens and numbers of ids: ``int64[4, n]``; the
            namespaces; and all ids, concatenated.
        """
        index = np.frombuffer(self._index.read(0, len(self._index)), dtype=INDEX)
        starts, sizes = index["start"], index["items"].astype(np.int64) * 8
        if np.array_equal(starts[1:], starts[:-1] + sizes[:-1]):
            raw = self._data.read(int(starts[0]), int(sizes.sum()))
        else:
            places = zip(starts.tolist(), sizes.tolist(), strict=True)
            raw = b"".join(self._data.read(start, size) for start, size in places)
        names = [b""] * len(index)
        for place in np.flatnonzero(index["namespace"]).tolist():
            record = index[place]
            names[place] = self._data.read(int(starts[place] + sizes[place]), record["namespace"])
        fields = ("num_tokens", "num_output_tokens", "items")
        return (
            np.stack((index["arrival_ms"] - self.start_ms, *(index[name] for name in fields))),
            names,
            np.frombuffer(raw, dtype=np.uint64),
        )

    def _request(self, record: tuple[int, ...]) -> Request:
        arrival, _, start, items, outputs, num_tokens, num_outputs, *more = record
        namespace, hashed, session, tool_ms = more
        width = 8 if hashed else 4
        raw = self._data.read(start, items * width)
        prompt: Any
        if hashed:
            ids = np.frombuffer(raw, dtype=np.uint64)
            prompt = HashedPrompt(ids, num_tokens, self.tokens_per_id, self.words)
        else:
            prompt = np.frombuffer(raw, dtype=np.uint32)
        start += items * width
        found = []
        for _ in range(outputs):
            length = int.from_bytes(self._data.read(start, 8), "little")
            found.append(np.frombuffer(self._data.read(start + 8, 4 * length), dtype=np.uint32))
            start += 8 + 4 * length
        return Request(
            arrival_ms=arrival - self.start_ms,
            prompt=prompt,
            num_output_tokens=num_outputs,
            outputs=tuple(found),
            namespace=self._data.read(start, namespace) if namespace else b"",
            session=session,
            tool_ms=None if tool_ms == NO_TOOL else tool_ms,
        )
