"""What the tests of ``BlockPool`` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from blockmgr.pool import BlockPool
from tests.fingerprints import fingerprint, unchanged

MakePool = Callable[..., BlockPool]


@contextmanager
def refused(pool: BlockPool, error: type[Exception], match: str | None = None) -> Iterator[Any]:
    """The call inside raises exactly this error and leaves the pool unchanged."""
    with unchanged(lambda: fingerprint(pool), error, match) as caught:
        yield caught
    pool.check_invariants()


def cache(pool: BlockPool, tokens: list[int], **options: Any) -> list[int]:
    """Blocks held by the caller, with these tokens, cached."""
    blocks = pool.take(len(tokens) // pool.block_size)
    return pool.promote(blocks, tokens, **options).tolist()
