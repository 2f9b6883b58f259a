"""Quotas: blocks reserved for single namespaces, the shared rest, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockmgr import Admission, BlockManager, ManagerConfig, NeverFitsError, OutOfBlocksError
from blockmgr.config import EVICTION_POLICIES, Quotas
from tests.conftest import MakeManager
from tests.unit.snapshot import refused

A, B = b"tenant-a", b"tenant-b"


def usage(manager: BlockManager, namespace: bytes) -> tuple[int, int, int, int, int]:
    own = manager.quota_usage(namespace)
    return own.limit, own.free_blocks, own.idle_blocks, own.fenced_blocks, own.used_blocks


# ---- whose blocks ----------------------------------------------------------------------------


def test_namespaces_without_a_quota_share_what_is_left(make_manager: MakeManager) -> None:
    manager = make_manager(10, 2, quotas={A: 4})
    manager.admit(range(8), namespace=B)
    manager.admit(range(4))
    with refused(manager, OutOfBlocksError, "need 1 blocks, 0 available"):
        manager.admit([1])
    assert usage(manager, B) == usage(manager, b"") == (6, 0, 0, 0, 6)
    assert usage(manager, A) == (4, 4, 0, 0, 0)


def test_where_nothing_is_left_other_namespaces_never_fit(make_manager: MakeManager) -> None:
    manager = make_manager(6, 2, quotas={A: 4, B: 2})
    with refused(manager, NeverFitsError, "the quotas leave other namespaces 0"):
        manager.admit([1])
    assert manager.can_admit([1]) is Admission.NEVER
    assert manager.match([1, 2, 3]).num_cached_tokens == 0
    manager.admit(range(8), namespace=A)
    manager.admit(range(4), namespace=B)


def test_a_prompt_larger_than_its_quota_never_fits(make_manager: MakeManager) -> None:
    manager = make_manager(10, 2, quotas={A: 4})
    with refused(manager, NeverFitsError, "the quota of its namespace is 4"):
        manager.admit(range(9), namespace=A)
    assert manager.can_admit(range(9), namespace=A) is Admission.NEVER
    assert manager.can_admit(range(8), namespace=A) is Admission.NOW
    handle = manager.admit(range(8), namespace=A)
    for call, argument in ((manager.append, [1]), (manager.reserve, 9)):
        with refused(manager, NeverFitsError, "the quota of its namespace is 4"):
            call(handle, argument)  # type: ignore[operator]
    with refused(manager, NeverFitsError, "the quota of its namespace is 4"):
        manager.decode([handle], [1])


# ---- the accounting, call by call ------------------------------------------------------------


def test_usage_adds_up_to_the_limit_through_every_state(make_manager: MakeManager) -> None:
    manager = make_manager(10, 2, quotas={A: 6}, steps_in_flight=1)
    handle = manager.admit(range(5), namespace=A)
    assert usage(manager, A) == (6, 3, 0, 0, 3)
    plan = manager.take_copies()
    manager.copies_applied(plan.ticket)
    manager.commit(handle, 5)
    manager.free(handle)
    assert usage(manager, A) == (6, 3, 0, 3, 0)
    assert usage(manager, B) == (4, 4, 0, 0, 0)
    manager.complete(plan.ticket)
    assert usage(manager, A) == (6, 4, 2, 0, 0)
    assert manager.quota_usage(A).available == 6


# ---- batches ---------------------------------------------------------------------------------


def test_a_batch_of_several_namespaces_is_counted_for_each(make_manager: MakeManager) -> None:
    manager = make_manager(12, 1, quotas={A: 4, B: 4})
    manager.admit([5], namespace=A)
    handles = [manager.admit([1, 2], namespace=name) for name in (A, B, b"")]
    slots = manager.decode(handles, [7, 8, 9])
    assert len(set(slots.tolist())) == 3
    with refused(manager, OutOfBlocksError) as caught:
        manager.decode(handles, [7, 8, 9])
    assert (caught.value.needed, caught.value.available) == (1, 0)
    manager.decode(handles[1:], [8, 9])


def test_a_batch_tells_what_the_namespace_that_lacks_would_need(make_manager: MakeManager) -> None:
    manager = make_manager(20, 1, quotas={A: 5, B: 9})
    handles = [manager.admit([i, i], namespace=A) for i in range(2)]
    handles += [manager.admit([i, i], namespace=B) for i in range(3)]
    with refused(manager, OutOfBlocksError, "need 2 blocks, 1 available"):
        manager.decode(handles, [1] * 5)


# ---- the watermark ---------------------------------------------------------------------------


def test_each_share_holds_back_its_part_of_the_watermark(make_manager: MakeManager) -> None:
    """Of a watermark of 6 in 20 blocks: 3 in the quota of 10, 0 in that of 3, 2 in the rest."""
    manager = make_manager(20, 1, quotas={A: 10, B: 3}, watermark_blocks=6)
    for namespace, most in ((A, 7), (B, 3), (b"", 5)):
        with refused(manager, NeverFitsError):
            manager.admit([1] * (most + 1), namespace=namespace)
        manager.admit([1] * most, namespace=namespace)


# ---- the option ------------------------------------------------------------------------------

WRONG: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "quotas must map namespaces to numbers of blocks, got NoneType"),
    ([(A, 1)], TypeError, "quotas must map .* got list"),
    (A, TypeError, "quotas must map .* got bytes"),
    (5, TypeError, "quotas must map .* got int"),
    ({"tenant": 1}, TypeError, "quotas must have bytes as namespaces, got str at position 0"),
    ({A: 1, None: 1}, TypeError, "quotas must have bytes .* got NoneType at position 1"),
    ({bytes(1025): 1}, ValueError, "quotas must have namespaces of at most 1024 bytes, got 1025"),
    ({A: 0}, ValueError, "quotas must be at least 1 block, got 0 at position 0"),
    ({A: 1, B: -1}, ValueError, "quotas must be at least 1 block, got -1 at position 1"),
    ({A: True}, TypeError, "quotas must map to ints, got bool"),
    ({A: 1.0}, TypeError, "quotas must map to ints, got float"),
    ({A: "1"}, TypeError, "quotas must map to ints, got str"),
    ({A: None}, TypeError, "quotas must map to ints, got NoneType"),
    ({A: 5, B: 4}, ValueError, "quotas must add up to at most 8, the capacity, got 9"),
    ({A: 2**40}, ValueError, "quotas must add up to at most 8"),
    ({i.to_bytes(4): 1 for i in range(2**16)}, ValueError, "quotas must be at most 65535"),
]


@pytest.mark.parametrize(("quotas", "error", "message"), WRONG)
def test_wrong_quotas_are_refused(quotas: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ManagerConfig(num_blocks=8, block_size=2, quotas=quotas)
    with pytest.raises(error, match=message):
        BlockManager(8, 2, quotas=quotas)


def test_quotas_of_the_whole_pool_leave_out_the_null_block() -> None:
    with pytest.raises(ValueError, match="at most 7, the capacity"):
        BlockManager(8, 2, quotas={A: 8}, null_block=True)
    BlockManager(8, 2, quotas={A: 7}, null_block=True)


def test_the_longest_namespace_and_any_whole_number_will_do(make_manager: MakeManager) -> None:
    longest = bytes(1024)
    manager = make_manager(8, 2, quotas={longest: np.int64(3), A: np.uint8(2)})
    assert usage(manager, longest)[0] == 3
    assert type(manager.config.quotas[longest]) is int


def test_a_config_keeps_its_quotas_whatever_becomes_of_the_mapping() -> None:
    mine = {A: 4}
    config = ManagerConfig(num_blocks=8, block_size=2, quotas=mine)
    mine[B] = 4
    assert dict(config.quotas) == {A: 4}
    assert config == ManagerConfig(num_blocks=8, block_size=2, quotas={A: 4})
    assert config != ManagerConfig(num_blocks=8, block_size=2)
    assert usage(BlockManager.from_config(config), B)[0] == 4


def test_no_quotas_are_one_share_for_all(make_manager: MakeManager) -> None:
    manager = make_manager(8, 2, quotas={})
    assert usage(manager, A) == usage(manager, b"") == (8, 8, 0, 0, 0)
    assert repr(manager.config.quotas) == "<Quotas: none>"


def test_the_sizes_are_all_that_prints() -> None:
    assert repr(Quotas({A: 5})) == "<Quotas: 1 namespace, 5 blocks>"
    assert repr(Quotas({A: 5, B: 1, b"": 7})) == "<Quotas: 3 namespaces, 5, 1 and 7 blocks>"


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 600), ({"retention": True}, 1_024), ({"retention": True, "ghost_blocks": 5_000}, 1_800)],
    ids=["plain", "retention", "ghosts"],
)
def test_thousands_of_quotas_cost_memory_in_proportion(
    eviction: str, options: dict[str, Any], most: int
) -> None:
    def built(quotas: dict[bytes, int]) -> BlockManager:
        return BlockManager(5_000, 1, quotas=quotas, max_seqs=1, eviction=eviction, **options)

    many = built({i.to_bytes(4): 1 for i in range(4_000)})
    assert 0 < many.memory_usage() - built({A: 1}).memory_usage() < 4_000 * most
    many.check_invariants()


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_a_quota_adds_no_more_under_a_policy_than_it_says(eviction: str) -> None:
    """No bytes per block of others for any policy."""

    def added(num_blocks: int, size: int = 1) -> float:
        few, many = (
            BlockManager(
                num_blocks, 16, eviction=eviction, quotas={b"%d" % i: size for i in range(quotas)}
            ).memory_usage()
            for quotas in (1, 3)
        )
        return (many - few) / 2

    assert added(40_000) == added(20_000), "a quota counts only its own blocks"
    assert added(20_000) < 1_000
    assert added(20_000, 1_024) < 3_000
