"""Detects tables with lengths only, such as Azure's and BurstGPT's, and refuses them."""

from __future__ import annotations

import re
from typing import Final

from blockmgr.errors import TraceFormatError

__all__ = ["refuse_lengths"]

SOURCES: Final = {
    "ContextTokens": "Azure's LLM inference traces",
    "Request tokens": "BurstGPT",
    "num_prefill_tokens": "Vidur",
    **dict.fromkeys(
        (
            *("input_tokens", "prompt_tokens", "num_prompt_tokens", "input_length"),
            *("prompt_length", "input_len", "prompt_len"),
        ),
        "a table of requests",
    ),
}
"""Columns with the length of a prompt, and where they come from."""

SEPARATORS: Final = re.compile(r"[,;\t]")
WAY_ON: Final = (
    "ids, tokens or text of the prompts: the common prefixes of prompts are unknown, so no hit "
    "rate follows from them; vLLM logs tokens with --enable-log-requests and "
    "VLLM_LOGGING_LEVEL=DEBUG, SGLang with --log-requests --log-requests-level 3"
)


def refuse_lengths(path: str, head: str) -> None:
    """Refuse a file that begins like a table of lengths.

    Raises:
        TraceFormatError: It does; the message says why it gives no hit rate.
    """
    first = head.partition("\n")[0].rstrip("\r")
    columns = [name.strip().strip("\"'").lower() for name in SEPARATORS.split(first)]
    for header, source in SOURCES.items():
        if len(columns) > 1 and header.lower() in columns:
            at = first.lower().index(header.lower()) + 1
            found = f"column {header}, the lengths of {source}"
            raise TraceFormatError(path, 1, at, found, WAY_ON)
