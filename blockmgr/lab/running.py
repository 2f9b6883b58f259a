"""What a replay knows of a request that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockmgr.lab.trace import Request

__all__ = ["Running"]


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
