"""The visible state of a manager, to show that a refused call has changed nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from blockmgr import BlockManager
from tests.fingerprints import fingerprint, unchanged


def snapshot(manager: BlockManager) -> dict[str, Any]:
    """Stats, tables, views, and the core's own fingerprint.

    The fingerprint covers state that no public call shows: queue orders, pins, keys, tickets.
    """
    views = [manager.sequence(handle) for handle in manager.handles()]
    return {
        "stats": asdict(manager.stats()),
        "block_tables": manager.block_tables.tolist(),
        "seq_lens": manager.seq_lens.tolist(),
        "sequences": [
            (
                view.row,
                view.tokens.tolist(),
                view.block_ids.tolist(),
                view.num_computed_tokens,
                view.num_cached_tokens,
                view.num_slots,
                view.is_preempted,
            )
            for view in views
        ],
        "fingerprint": fingerprint(manager),
    }


@contextmanager
def refused(
    manager: BlockManager, error: type[Exception], match: str | None = None
) -> Iterator[Any]:
    """The call inside raises exactly this error and leaves the manager unchanged."""
    with unchanged(lambda: snapshot(manager), error, match) as caught:
        yield caught
    manager.check_invariants()
