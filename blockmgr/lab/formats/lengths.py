"""Detects traces with lengths only, such as Azure's and BurstGPT's, and refuses them."""

from __future__ import annotations

from typing import Final

from blockmgr.errors import TraceFormatError

__all__ = ["refuse_lengths"]

HEADERS: Final = {
    "ContextTokens": "Azure's LLM inference traces",
    "Request tokens": "BurstGPT",
}


def refuse_lengths(path: str, head: str) -> None:
    """Refuse a file that begins like a table of lengths.

    Raises:
        TraceFormatError: It does; the message says why it gives no hit rate.
    """
    first = head.partition("\n")[0].rstrip("\r")
    columns = [name.strip().strip('"').lower() for name in first.split(",")]
    for header, source in HEADERS.items():
        if header.lower() in columns:
            at = first.lower().index(header.lower()) + 1
            found = f"column {header}, the lengths of {source}"
            expected = (
                "ids, tokens or text of the prompts: the common prefixes of prompts are unknown, "
                "so no hit rate follows from them"
            )
            raise TraceFormatError(path, 1, at, found, expected)
