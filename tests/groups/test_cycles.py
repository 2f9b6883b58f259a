"""Sessions that take turns and together exceed the pool: what each eviction order keeps.

LRU keeps nothing: each session is evicted just before its turn.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hybrid.ours import Ours
from benchmarks.hybrid.shapes import Shape

PAGE = 16
SESSIONS, TOKENS = 40, 2048
TURNS = 40
SHAPES = {
    "one group": Shape("one group", PAGE, 0, 0, 0, 0, ""),
    "windows": Shape("windows", PAGE, 3, 256, 0, 0, ""),
    "states": Shape("states", PAGE, 0, 0, 2, 0, ""),
    "large pages and states": Shape("large pages and states", 64, 0, 0, 3, 16, ""),
    "a window and states": Shape("a window and states", PAGE, 1, 256, 2, 0, ""),
}


def pages_of(shape: Shape) -> int:
    """Pages that the boundary at the end of a session needs."""
    window = shape.num_windows * (shape.width // PAGE)
    return TOKENS // shape.page + window + shape.num_states


def found(shape: Shape, eviction: str) -> float:
    """Share of tokens found in the last ten turns, in a pool a sixth too small."""
    pages = SESSIONS * pages_of(shape) * 5 // 6
    engine = Ours(shape, pages, TOKENS + 1, eviction=eviction)
    rng = np.random.default_rng(1)
    sessions = [rng.integers(0, 2**31, TOKENS, dtype=np.uint32) for _ in range(SESSIONS)]
    tokens = 0
    for turn in range(TURNS):
        for session in sessions:
            result = engine.run(np.append(session, np.uint32(turn)))
            assert result is not None
            tokens += result[0] if turn >= TURNS - 10 else 0
    return tokens / (10 * SESSIONS * TOKENS)


@pytest.mark.parametrize("name", SHAPES)
def test_adaptive_keeps_most_sessions_where_lru_keeps_none(name: str) -> None:
    # At most 5/6 - 1/40 of them can stay, because one more is admitted while they are cached.
    assert found(SHAPES[name], "lru") == 0
    assert found(SHAPES[name], "adaptive") > 0.6
