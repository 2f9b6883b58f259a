"""Traces: requests in order of arrival, and reading and writing them.

``read_trace`` reads the formats of ``blockmgr.lab.formats``, plain or compressed with gzip or zstd,
from files, folders and standard input. It keeps the requests in a store, which uses a temporary
file if it is large, so a trace may be larger than memory.

``write_trace`` writes blockmgr's own format: a header record with format and version, then one
record per request with all its tokens.

``write_mooncake`` writes Mooncake's format, with one id for each 512 tokens of a prompt. It loses
some information: tokens of outputs, so prompts that continue an answer no longer find it; samples
beyond the longest one; and shared prefixes that end inside 512 tokens. Prefixes shared in whole
runs of 512 tokens stay shared, and namespaces stay separate. So a replay with blocks of 512 tokens
counts the same hits, except for outputs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Final

from blockmgr.errors import TraceFormatError
from blockmgr.files import MAX_LINE_BYTES, printable, replacing
from blockmgr.lab.formats import FROM_ZERO, AsRead, Reading, read_rows
from blockmgr.lab.formats.chat_tokens import ChatTokens
from blockmgr.lab.formats.opened import STDIN, opened, parts
from blockmgr.lab.formats.own import FORMAT, VERSION
from blockmgr.lab.request import TOKENS_PER_HASH_ID, HashedPrompt, Request, Tokens
from blockmgr.lab.stored import RequestStore, StoredRequests

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = [
    "HashedPrompt",
    "Request",
    "Tokens",
    "Trace",
    "read_trace",
    "write_mooncake",
    "write_trace",
]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Attributes:
        name: File name or workload name, for reports.
        requests: At least one, ``arrival_ms`` never decreasing.
        read: How ``read_trace`` read it: what it assumed, left out and did not use; None for a
            trace that was made.

    Raises:
        ValueError: There are no requests, they are out of order, or ids stand for different numbers
            of tokens.
    """

    name: str
    requests: Sequence[Request]
    read: AsRead | None = None

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError("requests must hold at least 1 request, got 0")
        if isinstance(self.requests, StoredRequests):
            return  # sorted already
        arrivals = [request.arrival_ms for request in self.requests]
        if arrivals != sorted(arrivals):
            raise ValueError("requests must be in order of arrival_ms")
        sizes = {prompt.tokens_per_id for prompt in self._hashed_prompts()}
        if len(sizes) > 1:
            raise ValueError(
                f"tokens_per_id must be the same for all prompts, got {', '.join(map(str, sizes))}"
            )

    @property
    def is_hashed(self) -> bool:
        """Whether every prompt is known by ids alone, and no output is known."""
        if isinstance(self.requests, StoredRequests):
            return self.requests.all_hashed
        return all(
            isinstance(request.prompt, HashedPrompt) and not request.outputs
            for request in self.requests
        )

    @property
    def names_sessions(self) -> bool:
        """Whether any request names its session. Cost: Up to one pass over the requests."""
        return any(request.session for request in self.requests)

    @property
    def tokens_per_id(self) -> int:
        """Tokens that each id stands for; 1 if no prompt is known by ids."""
        if isinstance(self.requests, StoredRequests):
            return self.requests.tokens_per_id
        return next((prompt.tokens_per_id for prompt in self._hashed_prompts()), 1)

    def segment_size(self, block_size: int) -> int:
        """Tokens of the largest unit in which a trace identifies prefixes.

        That is an id if all prompts are known by ids of whole blocks each, else a block.
        """
        size = self.tokens_per_id
        return size if self.is_hashed and size % block_size == 0 else block_size

    def check_block_size(
        self, block_size: int, min_partial_tokens: int = 0, *, any_size: bool = False
    ) -> None:
        """Refuse a block size at which the trace does not determine which blocks are equal.

        Args:
            block_size: Tokens per block.
            min_partial_tokens: Fewest tokens to reuse from part of a block; 0 is off.
            any_size: Whether blocks may contain parts of ids. Two blocks are then equal if all
                these ids are equal: a prefix shared inside different ids counts as different.

        Raises:
            ValueError: The size is below 1; or a prompt is known by ids, and the size is neither a
                divisor nor a multiple of the tokens of an id; or a block has too few tokens to
                distinguish ids.
        """
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {block_size}")
        size, words = self.tokens_per_id, self._words()
        if any_size and size > 1 and gcd(size, block_size) < words:
            raise ValueError(
                f"block_size must have a divisor of at least {words} in common with {size}, the "
                f"tokens a hash id of this trace stands for, got {block_size}"
            )
        if not any_size and not self.has_whole_ids(block_size):
            raise ValueError(
                f"block_size must divide {size}, the tokens a hash id of this trace stands for, or "
                f"be a multiple of it, got {block_size}"
            )
        if block_size < words:
            raise ValueError(
                f"block_size must be at least {words}, since ids of this trace have more than 31 "
                f"bits, got {block_size}"
            )
        if 0 < min_partial_tokens < words:
            raise ValueError(
                f"min_partial_tokens must be 0 or at least {words}, since ids of this trace have "
                f"more than 31 bits, got {min_partial_tokens}"
            )

    def has_whole_ids(self, block_size: int) -> bool:
        """Whether ids consist of whole blocks of this size, or the other way round."""
        size = self.tokens_per_id
        return size % block_size == 0 or block_size % size == 0

    def _words(self) -> int:
        if isinstance(self.requests, StoredRequests):
            return self.requests.words if self.requests.any_hashed else 1
        return max((prompt.words for prompt in self._hashed_prompts()), default=1)

    def _hashed_prompts(self) -> list[HashedPrompt]:
        prompts = (request.prompt for request in self.requests)
        return [prompt for prompt in prompts if isinstance(prompt, HashedPrompt)]


def read_trace(
    path: str | Path,
    *,
    sort: bool = False,
    tokenizer: str | Path | None = None,
    tokens_per_id: int | None = None,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Trace:
    """The requests of a trace, of any of the formats of ``blockmgr.lab.formats``.

    Args:
        path: File to read, or a folder whose files are parts of one trace; ``"-"`` is standard
            input. Its name, with unprintable characters escaped, is the name of the trace.
        sort: Whether to accept requests in any order and sort them by arrival.
        tokenizer: Local folder with a Hugging Face tokenizer, for traces of text.
        tokens_per_id: Tokens per id; None to detect it from the lengths of prompts.
        max_line_bytes: Longest line or record to accept; the reader never holds more of one.

    Raises:
        TraceFormatError: A file has an unknown format, another format than earlier files, or is
            malformed; the error has path, line and column.
        MissingExtraError: A file needs an extra that is not installed.
        ValueError: An argument is wrong, is missing for this trace, or has no effect on it.
        OSError: A file cannot be read.

    Cost: O(size of the files) time. Memory does not grow with the number of requests, except for 24
    bytes each if they must be sorted; see ``blockmgr.lab.stored``.
    """
    if tokens_per_id is not None and tokens_per_id < 1:
        raise ValueError(f"tokens_per_id must be at least 1, got {tokens_per_id}")
    chat = None if tokenizer is None else ChatTokens(tokenizer)
    reading = Reading(sort=sort, chat=chat, tokens_per_id=tokens_per_id)
    store = RequestStore()
    before: tuple[str, str] | None = None
    for part in parts(path):
        with opened(part) as file:
            held = len(store)
            name, rows = read_rows(file, reading, max_line_bytes, before)
            store.add(rows)
            if len(store) == held:
                raise TraceFormatError(
                    file.path, file.line + 1, 1, "the end of the file", "a request"
                )
            before = (name, file.path)
    if tokens_per_id is not None and reading.id_size is None:
        raise ValueError(
            "tokens_per_id (--tokens-per-id) must be None for a trace without ids, got "
            f"{tokens_per_id}"
        )
    if chat is not None and not chat.is_used:
        raise ValueError(
            f"tokenizer (--tokenizer) must be None for a trace without text, got {str(tokenizer)!r}"
        )
    size = reading.id_size.size() if reading.id_size is not None else 1
    dates = reading.times is not None and reading.times.dates
    from_zero = dates or (before is not None and before[0] in FROM_ZERO)
    requests = store.requests(size, from_zero=from_zero)
    name = "stdin" if str(path) == STDIN else Path(path).resolve().name
    if reading.id_size is not None:
        reading.notes.assume("tokens an id", reading.id_size.reason(size))
    assert before is not None  # a trace has at least one file
    return Trace(printable(name), requests, reading.notes.as_read(before[0]))


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` in blockmgr's own format, which keeps outputs and namespaces.

    Raises:
        ValueError: ``path`` is a symbolic link or a folder; or a request takes a line longer than
            ``read_trace`` accepts.
        OSError: The file cannot be written; an existing file is unchanged.

    Cost: O(tokens) time and file size: prompts known by ids are written in full.
    """
    with replacing(path) as file:
        file.write(json.dumps({"format": FORMAT, "version": VERSION}).encode() + b"\n")
        for number, request in enumerate(trace.requests, start=1):
            record = {
                "arrival_ms": request.arrival_ms,
                "namespace": request.namespace.hex(),
                **({"session": request.session} if request.session else {}),
                **({} if request.tool_ms is None else {"tool_ms": request.tool_ms}),
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


# Ids that the reader can expand to 32-bit tokens.
MOST_IDS: Final = 2**32 // TOKENS_PER_HASH_ID


def write_mooncake(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` as Mooncake JSON lines; ids are numbered in order of first occurrence.

    Args:
        trace: The requests.
        path: File to write.

    Raises:
        ValueError: There are more distinct runs of 512 tokens than the format has ids; or ``path``
            is a symbolic link or a folder.
        OSError: The file cannot be written; an existing file is unchanged.

    Cost: O(tokens) time; memory for the distinct runs.

    Source: Qin et al., "Mooncake", FAST 2025, and the traces released with it.
    """
    with replacing(path) as file:
        file.writelines(line.encode() + b"\n" for line in _lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    # (previous id, tokens) -> id. An id stands for its whole prefix, as in a chain of digests; the
    # namespace replaces the id before the first one.
    ids: dict[tuple[int | bytes, bytes], int] = {}
    for request in trace.requests:
        record = {
            "timestamp": request.arrival_ms,
            "input_length": request.num_prompt_tokens,
            "output_length": request.num_output_tokens,
            "hash_ids": _hash_ids(request, ids),
        }
        yield json.dumps(record)


def _hash_ids(request: Request, ids: dict[tuple[int | bytes, bytes], int]) -> list[int]:
    tokens = request.tokens()
    chain = []
    before: int | bytes = request.namespace
    for start in range(0, len(tokens), TOKENS_PER_HASH_ID):
        key = (before, tokens[start : start + TOKENS_PER_HASH_ID].tobytes())
        before = ids.setdefault(key, len(ids))
        if before == MOST_IDS:
            raise ValueError(
                f"trace must have at most {MOST_IDS} distinct runs of {TOKENS_PER_HASH_ID} tokens "
                f"for Mooncake's format"
            )
        chain.append(before)
    return chain
