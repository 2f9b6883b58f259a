"""Writes any trace in Mooncake's format, with one id for each 512 tokens of a prompt.

The format loses some information: tokens of outputs, so prompts that continue an answer no longer
find it; samples beyond the longest one; and shared prefixes that end inside 512 tokens.
Prefixes shared in whole runs of 512 tokens stay shared, and namespaces stay separate. So a
replay with blocks of 512 tokens counts the same hits, except for outputs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from blockmgr.files import replacing
from blockmgr.lab.trace import TOKENS_PER_HASH_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from blockmgr.lab.trace import Request, Trace

__all__ = ["write_mooncake"]

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
