"""Requests, and the trace files they are read from.

Two line-by-line JSON formats are read, told apart by the first line:

* Mooncake's: ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens) and
  ``hash_ids``, one id for each 512 tokens of the prompt, where an equal id means an equal block
  after an equal prefix, so that an id always follows the same one. Tokens are not in the file:
  id ``h`` stands for the tokens ``[512 h, 512 h + 512)``, and equal ids become equal tokens at
  every block size that divides 512.
* blockmgr's own, written by ``write_trace``: a header record with format and version, then one
  record a request with its tokens in full.

A prompt named by ids is expanded when it is asked for. A production hour of 145 million tokens
is then held in a few megabytes.

Source: Qin et al., "Mooncake", FAST 2025, and the traces released with it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from blockmgr.errors import TraceFormatError
from blockmgr.files import MAX_LINE_BYTES, bounded_lines, printable, replacing

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "TOKENS_PER_HASH_ID",
    "HashedPrompt",
    "Request",
    "Tokens",
    "Trace",
    "read_trace",
    "write_trace",
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

Tokens = npt.NDArray[np.uint32]
"""Token ids in prompt order: ``uint32[num_tokens]`` on the host."""

TOKENS_PER_HASH_ID: Final = 512
"""Tokens that one id of a Mooncake trace stands for."""

MAX_TOKEN: Final = 2**32 - 1
MAX_HASH_ID: Final = 2**32 // TOKENS_PER_HASH_ID - 1
MAX_MILLISECONDS: Final = 2**53
FORMAT: Final = "blockmgr-trace"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class HashedPrompt:
    """A prompt known by one id for each 512 tokens, the last of which may be cut short.

    Attributes:
        ids: ``int64[ceil(num_tokens / 512)]`` on the host.
        num_tokens: Tokens in the prompt.
    """

    ids: npt.NDArray[np.int64]
    num_tokens: int

    def expand(self) -> Tokens:
        """The tokens the ids stand for: ``uint32[num_tokens]``, a fresh array."""
        firsts = self.ids.astype(np.uint32) * np.uint32(TOKENS_PER_HASH_ID)
        offsets = np.arange(TOKENS_PER_HASH_ID, dtype=np.uint32)
        blocks: Tokens = np.add.outer(firsts, offsets)
        return blocks.reshape(-1)[: self.num_tokens]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """One request: a prompt, when it came, and what was generated for it.

    Attributes:
        arrival_ms: When it came, in milliseconds from the start of the trace.
        prompt: The tokens, or the ids they expand from.
        num_output_tokens: Tokens generated; with several samples, by the longest one.
        outputs: The tokens generated, one array a sample; empty if the trace does not know them.
        namespace: Tenant salt or adapter. Nothing is shared across namespaces.

    Raises:
        ValueError: The prompt is empty, a number is negative, or ``num_output_tokens`` is not the
            length of the longest output.
    """

    arrival_ms: int
    prompt: Tokens | HashedPrompt
    num_output_tokens: int
    outputs: tuple[Tokens, ...] = ()
    namespace: bytes = field(default=b"", repr=False)  # may be a secret

    def __post_init__(self) -> None:
        for name in ("arrival_ms", "num_output_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.num_prompt_tokens < 1:
            raise ValueError("prompt must hold at least 1 token, got 0")
        if self.outputs and self.num_output_tokens != max(map(len, self.outputs)):
            raise ValueError(
                f"num_output_tokens must be the length of the longest output, "
                f"{max(map(len, self.outputs))}, got {self.num_output_tokens}"
            )

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens in the prompt."""
        if isinstance(self.prompt, HashedPrompt):
            return self.prompt.num_tokens
        return len(self.prompt)

    @property
    def num_samples(self) -> int:
        """Sequences that continue this prompt: 1 unless several outputs are known."""
        return max(1, len(self.outputs))

    def tokens(self) -> Tokens:
        """The prompt: ``uint32[num_prompt_tokens]``, expanded at each call if known by ids."""
        if isinstance(self.prompt, HashedPrompt):
            return self.prompt.expand()
        return self.prompt


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Attributes:
        name: File name or workload name, for reports.
        requests: At least one, ``arrival_ms`` never decreasing.

    Raises:
        ValueError: There are no requests, or they are out of order.
    """

    name: str
    requests: tuple[Request, ...]

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError("requests must hold at least 1 request, got 0")
        arrivals = [request.arrival_ms for request in self.requests]
        if arrivals != sorted(arrivals):
            raise ValueError("requests must be in order of arrival_ms")

    @property
    def is_hashed(self) -> bool:
        """Whether every prompt is known by ids alone, and no output is known."""
        return all(
            isinstance(request.prompt, HashedPrompt) and not request.outputs
            for request in self.requests
        )

    def check_block_size(self, block_size: int) -> None:
        """Refuse a block size at which the trace does not say which blocks are equal.

        Raises:
            ValueError: Below 1, or a prompt is known by ids and ``block_size`` does not divide 512.
        """
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        hashed = any(isinstance(request.prompt, HashedPrompt) for request in self.requests)
        if hashed and TOKENS_PER_HASH_ID % block_size:
            raise ValueError(
                f"block_size must divide {TOKENS_PER_HASH_ID}, the tokens a hash id of this trace "
                f"stands for, got {block_size}"
            )


def read_trace(path: str | Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Trace:
    """The requests of a trace file, Mooncake's or blockmgr's own.

    Args:
        path: File to read; its name, with what cannot be printed as escapes, is the trace's.
        max_line_bytes: Longest line to accept; no more of a line is ever held.

    Raises:
        TraceFormatError: A line is too long or not what the format says; names line and column.
        OSError: The file cannot be read.

    Cost: O(file size) time; memory for the ids, not for the tokens they stand for.
    """
    requests = tuple(_requests(str(path), max_line_bytes))
    return Trace(printable(Path(path).name), requests)


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` in blockmgr's own format, which keeps outputs and namespaces.

    Raises:
        ValueError: ``path`` is a symbolic link or a folder; or a request takes a line longer than
            ``read_trace`` accepts.
        OSError: The file cannot be written; what was there is as it was.

    Cost: O(tokens) time and file size: prompts known by ids are written in full.
    """
    with replacing(path) as file:
        file.write(json.dumps({"format": FORMAT, "version": VERSION}).encode() + b"\n")
        for number, request in enumerate(trace.requests, start=1):
            record = {
                "arrival_ms": request.arrival_ms,
                "namespace": request.namespace.hex(),
                "num_output_tokens": request.num_output_tokens,
                "outputs": [output.tolist() for output in request.outputs],
                "tokens": request.tokens().tolist(),
            }
            line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(
                    f"request {number} takes a line of {len(line)} bytes, more than the "
                    f"{MAX_LINE_BYTES} that are read"
                )
            file.write(line)


def _requests(path: str, max_line_bytes: int) -> Iterator[Request]:
    """Read a file line by line, so that only the requests are ever held."""
    own = False
    parents: dict[int, tuple[int | None, int]] = {}
    earliest = 0
    number = 0
    for number, raw in bounded_lines(path, max_line_bytes):
        line = _Line(path, number, raw)
        if number == 1 and "format" in line.record:
            line.header()
            own = True
            continue
        arrival = "arrival_ms" if own else "timestamp"
        request = line.own_request() if own else line.mooncake_request(parents)
        if request.arrival_ms < earliest:
            raise line.error(
                arrival, f"{arrival} {request.arrival_ms}", f"at least {earliest}, as before"
            )
        earliest = request.arrival_ms
        yield request
    if number == int(own):
        raise TraceFormatError(path, number + 1, 1, "the end of the file", "a request")


class _Line:
    """One line of a trace, and the only place that words what is wrong with it."""

    def __init__(self, path: str, number: int, raw: bytes) -> None:
        self._path = path
        self._number = number
        try:
            self._text = raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            column = len(raw[: error.start].decode("utf-8")) + 1
            found = f"byte 0x{raw[error.start]:02x}"
            raise TraceFormatError(path, number, column, found, "UTF-8 text") from None
        self.record = self._parse()

    def error(self, field: str, found: str, expected: str) -> TraceFormatError:
        """The error to raise about ``field``, at the column where its name stands."""
        column = max(0, self._text.find(json.dumps(field))) + 1
        return TraceFormatError(self._path, self._number, column, found, expected)

    def header(self) -> None:
        """Check a header record of blockmgr's own format."""
        name = self._get("format")
        if name != FORMAT:
            raise self.error("format", f"format {_show(name)}", json.dumps(FORMAT))
        version = self._integer("version", 0, MAX_MILLISECONDS)
        if version != VERSION:
            raise self.error("version", f"version {version}", f"version {VERSION}")

    def mooncake_request(self, parents: dict[int, tuple[int | None, int]]) -> Request:
        """The request of a Mooncake record.

        Args:
            parents: What came before each id, None for the first of a prompt, and the line that
                said so; grows by the ids of this record.
        """
        arrival_ms = self._integer("timestamp", 0, MAX_MILLISECONDS)
        num_tokens = self._integer("input_length", 1, MAX_MILLISECONDS)
        num_output_tokens = self._integer("output_length", 0, MAX_MILLISECONDS)
        ids = self._integers("hash_ids", MAX_HASH_ID)
        expected = -(-num_tokens // TOKENS_PER_HASH_ID)
        if len(ids) != expected:
            raise self.error(
                "hash_ids",
                f"{len(ids)} hash_ids for input_length {num_tokens}",
                f"{expected}, one for each {TOKENS_PER_HASH_ID} tokens",
            )
        self._check_prefixes(ids, parents)
        return Request(
            arrival_ms=arrival_ms,
            prompt=HashedPrompt(np.array(ids, dtype=np.int64), num_tokens),
            num_output_tokens=num_output_tokens,
        )

    def _check_prefixes(self, ids: list[int], parents: dict[int, tuple[int | None, int]]) -> None:
        """Refuse an id that stood after another one before: it would be two blocks in one."""
        before = None
        for current in ids:
            known, line = parents.setdefault(current, (before, self._number))
            if known != before:
                found = f"id {current} {_place(before)} in hash_ids"
                expected = f"it {_place(known)}, as in line {line}: an id stands for its prefix too"
                raise self.error("hash_ids", found, expected)
            before = current

    def own_request(self) -> Request:
        """The request of a record of blockmgr's own format."""
        arrival_ms = self._integer("arrival_ms", 0, MAX_MILLISECONDS)
        tokens = self._integers("tokens", MAX_TOKEN)
        if not tokens:
            raise self.error("tokens", "an empty prompt", "at least 1 token")
        num_output_tokens = self._integer("num_output_tokens", 0, MAX_MILLISECONDS)
        samples = self._list("outputs")
        outputs = [self._whole_list("outputs", sample, MAX_TOKEN) for sample in samples]
        if outputs and max(map(len, outputs)) != num_output_tokens:
            raise self.error(
                "num_output_tokens",
                f"num_output_tokens {num_output_tokens}",
                f"{max(map(len, outputs))}, the length of the longest output",
            )
        return Request(
            arrival_ms=arrival_ms,
            prompt=np.array(tokens, dtype=np.uint32),
            num_output_tokens=num_output_tokens,
            outputs=tuple(np.array(output, dtype=np.uint32) for output in outputs),
            namespace=self._namespace(),
        )

    def _parse(self) -> dict[str, Any]:
        try:
            record = json.loads(self._text)
        except json.JSONDecodeError as error:
            column, found = error.colno, f"broken JSON ({error.msg.lower()})"
        except (RecursionError, ValueError) as error:
            column, found = 1, f"unusable JSON ({error})"
        else:
            if isinstance(record, dict):
                return record
            column, found = 1, TYPE_NAMES[type(record)]
        raise TraceFormatError(self._path, self._number, column, found, "a JSON object")

    def _get(self, field: str) -> Any:
        if field not in self.record:
            raise self.error(field, f"no field {json.dumps(field)}", "one in every record")
        return self.record[field]

    def _integer(self, field: str, low: int, high: int) -> int:
        value = self._get(field)
        # A bool is an int to Python and a mistake in a trace.
        if type(value) is not int or not low <= value <= high:
            raise self.error(field, f"{field} {_show(value)}", f"an integer in [{low}, {high}]")
        return value

    def _list(self, field: str) -> list[Any]:
        value = self._get(field)
        if type(value) is not list:
            raise self.error(field, f"{field} {_show(value)}", "a list")
        return value

    def _integers(self, field: str, high: int) -> list[int]:
        return self._whole_list(field, self._list(field), high)

    def _whole_list(self, field: str, values: Any, high: int) -> list[int]:
        if type(values) is not list:
            raise self.error(field, f"{_show(values)} in {field}", "a list of integers")
        for value in values:
            if type(value) is not int or not 0 <= value <= high:
                expected = f"integers in [0, {high}]"
                raise self.error(field, f"{_show(value)} in {field}", expected)
        return values

    def _namespace(self) -> bytes:
        value = self._get("namespace")
        try:
            return bytes.fromhex(value)
        except (TypeError, ValueError):
            # A namespace may be a secret, a mistyped one too: its kind must do.
            found = f"a namespace that is {_kind(value)}"
            raise self.error("namespace", found, "a string of hexadecimal bytes") from None


def _kind(value: Any) -> str:
    return f"a string of {len(value)} characters" if isinstance(value, str) else "no string"


def _place(before: int | None) -> str:
    return "first" if before is None else f"after id {before}"


def _show(value: Any) -> str:
    """A JSON value as it was written, cut short so that the error stays one line."""
    longest = 40
    text = json.dumps(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
