"""Sessions that take turns and together exceed the pool: what each eviction order keeps.

LRU keeps nothing: each session is evicted just before its turn.
"""

from __future__ import annotations

import numpy as np

from benchmarks.hybrid.ours import Ours
from benchmarks.hybrid.shapes import Shape

PAGE = 16
SESSIONS, TOKENS = 40, 2048
TURNS = 40


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


def test_s3fifo_keeps_most_sessions_where_lru_keeps_none() -> None:
    # At most 5/6 - 1/40 of them can stay, because one more is admitted while they are cached.
    shape = Shape("one group", PAGE, 0, 0, 0, 0, "")
    assert found(shape, "lru") == 0
    assert found(shape, "s3fifo") > 0.5
