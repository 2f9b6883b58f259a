"""What the tests of tiers share: a small manager, and movers that are honest."""

from __future__ import annotations

from typing import Any

from blockmgr.tiers import TierConfig, TieredManager, Transfer

PROMPT = list(range(1, 10))  # four whole blocks of two tokens, and one token


def managed(*tiers: TierConfig, num_blocks: int = 8, **options: Any) -> TieredManager:
    """A manager of blocks of two tokens that stores all that is idle."""
    known = tiers or (tier(16),)
    return TieredManager(num_blocks, 2, tiers=list(known), **options)


def tier(num_blocks: int, **options: Any) -> TierConfig:
    return TierConfig(num_blocks=num_blocks, **{"ahead": 999, **options})


def compute(manager: TieredManager, tokens: list[int], **how: Any) -> None:
    """Admits a prompt, computes it with a stop wherever states are kept, and frees it."""
    handle = manager.admit(tokens, **how)
    for stop in (*manager.stops(handle), len(tokens)):
        manager.copies_applied(manager.take_copies().ticket)
        manager.commit(handle, stop)
    manager.free(handle)


def store(manager: TieredManager) -> list[Transfer]:
    """Stores what is to be stored, all of it."""
    stores = list(manager.take_stores())
    for each in stores:
        assert manager.stores_done(each.ticket, len(each)) == len(each)
    return stores


def evict(manager: TieredManager) -> None:
    """Has the device evict everything."""
    manager.free(manager.admit([77] * 2 * manager.num_available))


def stored(manager: TieredManager, tokens: list[int] = PROMPT, **how: Any) -> None:
    """Has this prompt in the tiers only."""
    compute(manager, tokens, **how)
    while store(manager):
        pass
    evict(manager)


def brought(manager: TieredManager, tokens: list[int], **how: Any) -> list[Transfer]:
    """Has this prompt in the tiers only, by a reset; the stores that brought it there."""
    compute(manager, tokens, **how)
    stores: list[Transfer] = []
    while more := store(manager):
        stores += more
    manager.reset_prefix_cache(tiers=False)
    return stores


def loading(manager: TieredManager, tokens: list[int] = PROMPT, **how: Any) -> tuple[int, Transfer]:
    """A sequence that loads this prompt, and its only load."""
    handle = manager.admit(tokens, load=True, **how)
    [load] = manager.take_loads()
    assert load.handle == handle
    return handle, load


def in_tier(manager: TieredManager, tokens: list[int] = PROMPT, **how: Any) -> tuple[int, ...]:
    """Tokens of a prompt that each tier has."""
    return manager.match_tiers(tokens, **how).num_tier_tokens
