"""One request of a trace: prompt, arrival and outputs.

A prompt known by ids is expanded on access, so a production hour of 145 million tokens takes only a
few megabytes. An id stands for a fixed number of tokens. Their values do not matter as long as
equal ids have equal tokens and different ids have different ones. They are repeated *words* of the
id: the id itself if no id of the trace has more than 31 bits, else its three words of 31 bits in
turn. The highest bit marks made-up tokens of outputs, which therefore never equal those of an id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = [
    "ID_BITS",
    "OUTPUT_TOKEN",
    "TOKENS_PER_HASH_ID",
    "HashedPrompt",
    "Hints",
    "Request",
    "Running",
    "Tokens",
    "Traits",
    "words_of",
]

Tokens = npt.NDArray[np.uint32]
"""Token ids in prompt order: ``uint32[num_tokens]`` on the host."""

TOKENS_PER_HASH_ID: Final = 512
"""Tokens per id of a Mooncake trace, unless the trace shows another number."""

ID_BITS: Final = 64
"""Bits of the widest id that is stored directly."""

WORD_BITS: Final = 31
OUTPUT_TOKEN: Final = 1 << WORD_BITS
"""Tokens from here on are never words of ids, but made-up tokens of outputs."""


def words_of(largest_id: int) -> int:
    """Tokens that identify an id, in a trace whose ids are at most this large."""
    return 1 if largest_id < 1 << WORD_BITS else -(-ID_BITS // WORD_BITS)


@dataclass(frozen=True, slots=True, eq=False)
class HashedPrompt:
    """A prompt known by one id per group of tokens; the last group may be shorter.

    Attributes:
        ids: ``int64`` or ``uint64[ceil(num_tokens / tokens_per_id)]`` on the host, none negative.
        num_tokens: Tokens in the prompt.
        tokens_per_id: Tokens that each id stands for.
        words: Tokens that identify an id: ``words_of`` the largest one of the trace.
    """

    ids: npt.NDArray[np.int64] | npt.NDArray[np.uint64]
    num_tokens: int
    tokens_per_id: int = TOKENS_PER_HASH_ID
    words: int = 1

    def expand(self) -> Tokens:
        """The tokens of the ids: ``uint32[num_tokens]``, a new array.

        Raises:
            ValueError: An id is too wide for its ``words``.
        """
        if self.words == 1:
            if len(self.ids) and int(self.ids.max()) >= OUTPUT_TOKEN:
                raise ValueError(
                    f"words must be {words_of(int(self.ids.max()))} for ids of more than "
                    f"{WORD_BITS} bits, got 1"
                )
            tokens: Tokens = np.repeat(self.ids.astype(np.uint32), self.tokens_per_id)
            return tokens[: self.num_tokens]
        shifts = np.arange(self.words, dtype=np.uint64) * np.uint64(WORD_BITS)
        mask = np.uint64(OUTPUT_TOKEN - 1)
        of_ids = (self.ids.astype(np.uint64)[:, None] >> shifts & mask).astype(np.uint32)
        places = np.arange(self.tokens_per_id) % self.words
        return of_ids[:, places].reshape(-1)[: self.num_tokens]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Request:
    """One request: prompt, arrival and outputs.

    Attributes:
        arrival_ms: When it came, in milliseconds from the start of the trace.
        prompt: The tokens, or the ids that expand to them.
        num_output_tokens: Tokens generated; with several samples, those of the longest one.
        outputs: The tokens generated, one array a sample; empty if the trace does not know them.
        namespace: Tenant salt or adapter. Nothing is shared across namespaces.
        session: Number of its session, from 1 on; 0 if the trace names none.
        tool_ms: Milliseconds that the tools take which its answer calls, the longest one; None if
            it calls none, or the trace does not know.

    Raises:
        ValueError: The prompt is empty, a number is negative, or ``num_output_tokens`` is not the
            length of the longest output.
    """

    arrival_ms: int
    prompt: Tokens | HashedPrompt
    num_output_tokens: int
    outputs: tuple[Tokens, ...] = ()
    namespace: bytes = field(default=b"", repr=False)  # may be a secret
    session: int = 0
    tool_ms: int | None = None

    def __post_init__(self) -> None:
        if self.arrival_ms < 0 or self.num_output_tokens < 0:
            for name in ("arrival_ms", "num_output_tokens"):
                if getattr(self, name) < 0:
                    raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.tool_ms is not None and self.tool_ms < 0:
            raise ValueError(f"tool_ms must be at least 0, got {self.tool_ms}")
        if self.num_prompt_tokens < 1:
            raise ValueError("prompt must hold at least 1 token, got 0")
        if self.outputs and self.num_output_tokens != max(map(len, self.outputs)):
            raise ValueError(
                f"num_output_tokens must be the length of the longest output, "
                f"{max(map(len, self.outputs))}, got {self.num_output_tokens}"
            )

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens in the prompt."""
        if isinstance(self.prompt, HashedPrompt):
            return self.prompt.num_tokens
        return len(self.prompt)

    @property
    def num_samples(self) -> int:
        """Number of sequences that continue this prompt: 1 unless several outputs are known."""
        return max(1, len(self.outputs))

    def tokens(self) -> Tokens:
        """The prompt: ``uint32[num_prompt_tokens]``, expanded in each call if known by ids."""
        if isinstance(self.prompt, HashedPrompt):
            return self.prompt.expand()
        return self.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The traits of a request that an engine knows at its end.

    Attributes:
        arrival_ms: When it came, in milliseconds from the start of the trace.
        turn: 1 if it continues no earlier request, else the turn of that request plus 1.
        num_prompt_tokens: Tokens of its prompt.
        num_output_tokens: Tokens generated for it.
    """

    arrival_ms: int
    turn: int
    num_prompt_tokens: int
    num_output_tokens: int


Hints = Callable[[Traits], bool | None]
"""Predicts whether the conversation of an ending request will continue; None for no hint."""


@dataclass(slots=True)
class Running:
    """An admitted request.

    Attributes:
        number: Its number in the trace, from 1.
        request: The request.
        handles: Its sequences.
        num_cached_tokens: Tokens of its prompt that were found.
        is_loading: Whether it waits for what tiers have of its prompt, which is not computed yet.
    """

    number: int
    request: Request
    handles: list[int]
    num_cached_tokens: int
    is_loading: bool = False
