"""The whole state of a manager or a pool as bytes, to show that a call changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest

from blockmgr import BlockManager
from blockmgr.pool import BlockPool

try:
    from blockmgr import _core_testing
except ImportError:  # blockmgr was installed from a wheel
    _core_testing = None  # type: ignore[assignment]

SHOWN = ("stats", "blocks", "idle_blocks")


def fingerprint(subject: BlockManager | BlockPool) -> bytes:
    """The state of the core, including what no public call shows: queues, keys, tickets.

    In tests of a wheel, only the state that public calls show.
    """
    if _core_testing is None:
        return _shown(subject)
    return _core_testing.fingerprint(subject._core)


def _shown(subject: BlockManager | BlockPool) -> bytes:
    facts = [getattr(subject, name)() for name in SHOWN if hasattr(subject, name)]
    if isinstance(subject, BlockPool):
        blocks = range(subject.num_blocks)
        facts += [subject.num_available, subject.num_used, subject.num_pending_copies]
        facts += [(subject.generation(each), subject.waits_for_copy(each)) for each in blocks]
        facts += [subject.ref_count(blocks).tolist(), subject.is_cached(blocks).tolist()]
    # No handle: two managers in the same state give different ones.
    if isinstance(subject, BlockManager):
        for each in map(subject.sequence, subject.handles()):
            lengths = (each.row, each.num_computed_tokens, each.num_slots, each.is_preempted)
            facts.append((*lengths, each.tokens.tolist(), each.block_ids.tolist()))
    return repr(facts).encode()


@contextmanager
def unchanged(
    facts: Callable[[], object], error: type[Exception], match: str | None = None
) -> Iterator[Any]:
    """The call inside raises exactly this error, and the facts are the same before and after."""
    before = facts()
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert type(caught.value) is error
    assert facts() == before


def core_testing() -> ModuleType:
    """The module itself; the test is skipped where there is none."""
    if _core_testing is None:
        pytest.skip("needs an editable install, which has blockmgr._core_testing")
    return _core_testing
