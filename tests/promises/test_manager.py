"""Every prediction of a manager or a pool, compared with what then happens.

The stress program's engine prepares small worlds. In each, a question is asked, the action in
question is performed, and the world is discarded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    Admission,
    BlockManager,
    NeverFitsError,
    OutOfBlocksError,
    OutOfSequencesError,
    QuotaUsage,
    Stats,
)
from blockmgr.pool import BlockPool
from tests.promises.questions import Acts, Broken, keeps_its_word, questions
from tests.stress.draw import Draw
from tests.stress.lockstep import DivergenceError
from tests.stress.perform import finish_up, perform
from tests.stress.profiles import DIGESTS, PROFILES, draw_config
from tests.stress.world import World
from tests.unit.snapshot import snapshot

PLACES = ("balanced", "admission", "tiny_pool", "exact_fit", "multi_tenant")
NAMESPACES = (b"", b"tenant", b"a", b"nobody yet")
SHORTAGES = (OutOfBlocksError, OutOfSequencesError)
WORLDS = 150


@dataclass
class Place:
    """A world that an engine has used, and a prompt for the question."""

    world: World
    rng: random.Random
    config: dict[str, Any]
    tokens: list[int]
    key: dict[str, Any]

    @property
    def manager(self) -> BlockManager:
        manager: BlockManager = self.world.manager
        return manager

    def room(self) -> int:
        """The number of blocks that the manager reports for an admission into the namespace."""
        usage = self.manager.quota_usage(self.key["namespace"])
        watermark = self.config["watermark_blocks"] * usage.limit // self.manager.config.capacity
        return usage.available - watermark


def build(seed: int, manager: Callable[..., BlockManager] = BlockManager) -> Place:
    rng = random.Random(seed)
    profile = rng.choice(PLACES)
    config = draw_config(rng, PROFILES[profile])
    config["digest"] = DIGESTS[config["digest"]]
    quotas = {name.encode(): blocks for name, blocks in config.pop("quotas", {}).items()}
    config["quotas"] = quotas
    if not quotas and rng.random() < 0.5:
        config |= {"retention": True, "max_pinned_blocks": 1, "ghost_blocks": rng.choice([0, 5])}
    world = World(config, manager=manager, model=None, detectors="", seed=seed)
    draw = Draw(rng, profile)
    for _ in range(rng.randint(3, 40)):
        perform(world, draw.one())
    return Place(world, rng, config, *prompt(world, rng, draw))


def prompt(world: World, rng: random.Random, draw: Draw) -> tuple[list[int], dict[str, Any]]:
    """A prompt in use, one with a common prefix, or a new one; some are far too long."""
    key: dict[str, Any] = {"namespace": rng.choice(NAMESPACES), "extras": None}
    tokens = rng.choice(draw.stems) + draw.tokens(5)
    if world.entries and rng.random() < 0.6:
        entry = rng.choice(world.entries)
        tokens = [*entry.tokens, *draw.tokens(3)][rng.randint(0, 1) :]
        key = {"namespace": entry.namespace, "extras": entry.extras or None}
    length = rng.choice([len(tokens), rng.randint(1, len(tokens)), rng.randint(1, 400)])
    return (tokens * 400)[:length], key


def leave(place: Place) -> None:
    """Ends all sequences and completes their steps."""
    if place.world.open is not None:
        place.world.finish(place.world.open)
    finish_up(place.world)


def acts(place: Place, **asked: Any) -> Acts:
    def alone() -> int:
        return BlockManager(**place.config).admit(place.tokens, **place.key, **asked)

    return Acts(
        act=lambda: place.manager.admit(place.tokens, **place.key, **asked),
        shortages=SHORTAGES,
        nevers=(NeverFitsError,),
        everybody_leaves=lambda: leave(place),
        alone=alone,
        unchanged=lambda: snapshot(place.manager),
    )


def draw_limits(place: Place) -> dict[str, Any]:
    """Random limits on the cached tokens and on the blocks held back, or none."""
    rng, limits = place.rng, {}
    if rng.random() < 0.3:
        limits["max_cached_tokens"] = rng.randint(0, len(place.tokens))
    if rng.random() < 0.3:
        limits["watermark_blocks"] = rng.randint(0, 4)
    return limits


def draw_slots(place: Place) -> dict[str, Any]:
    rng = place.rng
    slots = rng.choice([None, None, rng.randint(1, len(place.tokens) + 9)])
    return {"num_slots": slots, "read_cache": rng.random() < 0.7, **draw_limits(place)}


# The checks, by name of the question.


def can_admit(place: Place) -> None:
    asked = draw_slots(place)
    verdict = place.manager.can_admit(place.tokens, **place.key, **asked)
    handle = keeps_its_word(verdict, acts(place, **asked))
    if handle is not None and place.manager.sequence(handle).num_slots < (asked["num_slots"] or 1):
        raise Broken("admitted with fewer slots than asked for")


def match(place: Place) -> None:
    """``match`` must predict what ``admit`` finds and takes, with or without ``match=``."""
    limits = draw_limits(place)
    slots = place.rng.choice([None, None, place.rng.randint(1, len(place.tokens) + 9)])
    manager, size = place.manager, place.config["block_size"]
    found = manager.match(place.tokens, **place.key, num_slots=slots, **limits)
    longer = manager.match(place.tokens + [0] * 500, **place.key)
    if len(longer.block_ids) < len(found.block_ids):
        raise Broken(f"a longer prompt finds less: {longer}, {found}")
    asked = {"num_slots": slots, **limits}
    if place.rng.random() < 0.5:
        asked |= {"match": found}
        asked.pop("max_cached_tokens", None)
    verdict = manager.can_admit(place.tokens, **place.key, **asked)
    before = manager.num_available
    if verdict is not Admission.NOW:
        keeps_its_word(verdict, acts(place, **asked)) if "match" not in asked else None
        return
    view = manager.sequence(manager.admit(place.tokens, **place.key, **asked))
    if view.num_cached_tokens != found.num_cached_tokens:
        raise Broken(f"match found {found}, admit found {view.num_cached_tokens}")
    if view.block_ids[: len(found.block_ids)].tolist() != found.block_ids.tolist():
        raise Broken(f"match named {found.block_ids}, admit took {view.block_ids}")
    taken = before - manager.num_available
    due = -(-view.num_slots // size) - len(found.block_ids) + found.num_idle_blocks
    if taken != due:
        raise Broken(f"after match {found}, admit took {taken} blocks, not {due}")


def explain(place: Place) -> None:
    if len(place.tokens) > place.manager.config.row_width * place.config["block_size"]:
        return
    said = place.manager.explain(place.tokens, **place.key)
    found = place.manager.match(place.tokens, **place.key)
    whole = len(found.block_ids) * place.config["block_size"]
    # A match leaves out a partial block if there is no room for its copy.
    parts = (
        {said.num_partial_tokens, 0} if not found.num_partial_tokens else {found.num_partial_tokens}
    )
    if (
        said.num_partial_tokens not in parts
        or said.num_cached_tokens - said.num_partial_tokens != whole
    ):
        raise Broken(f"explain said {said}, match {found}")
    if sum(miss.num_tokens for miss in said.misses) + said.num_cached_tokens != len(place.tokens):
        raise Broken(f"explain does not account for every token: {said}")


def num_available(place: Place) -> None:
    """Exactly the reported number of blocks can be allocated."""
    manager, size = place.manager, place.config["block_size"]
    if manager.num_available != manager.stats().available:
        raise Broken("two different counts of available blocks")
    running = [e for e in place.world.entries if e.running]
    if not running or manager.config.quotas:
        return
    entry = place.rng.choice(running)
    view = manager.sequence(entry.handle)
    least = view.num_slots + 1 if view.num_slots >= view.num_tokens else view.num_tokens
    most = view.num_blocks + manager.num_available
    fits = most <= min(manager.config.row_width, manager.config.capacity)
    if not fits or -(-least // size) > most:
        return
    copies = manager.num_available
    try:
        manager.reserve(entry.handle, most * size)
    except OutOfBlocksError as error:
        if error.needed <= copies:
            raise Broken(f"{copies} available, but {error!r}") from error
        return  # one for a copy of the block that is written next
    if manager.num_available:
        raise Broken("all available blocks were taken, but some are left")


def quota_usage(place: Place) -> None:
    """An uncached prompt of exactly the reported blocks is admitted, a larger one is not."""
    manager, size, room = place.manager, place.config["block_size"], place.room()
    if not 0 < room <= manager.config.row_width:
        return
    if len(manager.handles()) == manager.config.max_seqs:
        return
    fresh = [7_000_000] * (size * room)
    namespace = place.key["namespace"]
    try:
        manager.admit([*fresh, 7_000_001], namespace=namespace)
    except (OutOfBlocksError, NeverFitsError):
        manager.admit(fresh, namespace=namespace)
        return
    raise Broken(f"{room} blocks were reported, but {room + 1} could be taken")


def num_common_prefix_blocks(place: Place) -> None:
    manager, size = place.manager, place.config["block_size"]
    views = [manager.sequence(e.handle) for e in place.world.entries if e.running]
    said = manager.num_common_prefix_blocks()
    tables = [view.block_ids.tolist() for view in views]
    computed = min((view.num_computed_tokens // size for view in views), default=0)
    due = 0
    while due < computed and len({table[due] for table in tables}) == 1:
        due += 1
    if said != due:
        raise Broken(f"{said} common blocks reported, expected {due}")


CHECKS: dict[str, Callable[[Place], None]] = {
    "can_admit": can_admit,
    "match": match,
    "explain": explain,
    "num_available": num_available,
    "num_common_prefix_blocks": num_common_prefix_blocks,
    "quota_usage": quota_usage,
}


def run(name: str, worlds: int, manager: Callable[..., BlockManager] = BlockManager) -> None:
    for seed in range(worlds):
        place = build(seed, manager)
        try:
            CHECKS[name](place)
        except Broken as broken:
            broken.add_note(f"world {seed}: {place.config}, {place.tokens}, {place.key}")
            raise
        place.manager.check_invariants()


def test_nothing_that_a_manager_can_be_asked_is_left_out() -> None:
    assert questions(BlockManager) <= set(CHECKS)
    assert questions(BlockPool) == {"find", "num_available", "num_free", "num_idle"}
    # Questions on results of calls, which are compared with those of the manager.
    assert questions(Stats) == questions(QuotaUsage) == {"available"}


@pytest.mark.parametrize("name", CHECKS)
def test_what_a_manager_says_comes_true(name: str) -> None:
    run(name, WORLDS)


# The detector can fail: promises that are broken on purpose.


class ForgetsToRead(BlockManager):
    """Counts on hits that the admission will not look for."""

    __slots__ = ()

    def can_admit(self, tokens: Any, **key: Any) -> Admission:
        return super().can_admit(tokens, **{**key, "read_cache": True})


class Hopeful(BlockManager):
    """Reports "later" instead of "never"."""

    __slots__ = ()

    def can_admit(self, tokens: Any, **key: Any) -> Admission:
        verdict = super().can_admit(tokens, **key)
        return Admission.LATER if verdict is Admission.NEVER else verdict


class Gloomy(BlockManager):
    """Reports "never" instead of "later"."""

    __slots__ = ()

    def can_admit(self, tokens: Any, **key: Any) -> Admission:
        verdict = super().can_admit(tokens, **key)
        return Admission.NEVER if verdict is Admission.LATER else verdict


class Boastful(BlockManager):
    """Finds blocks with other extra keys, which an admission does not get."""

    __slots__ = ()

    def match(self, tokens: Any, **key: Any) -> Any:
        return super().match(tokens, **{**key, "extras": None})


class Miscounting(BlockManager):
    """Reports one block too many."""

    __slots__ = ()

    def quota_usage(self, namespace: bytes = b"") -> QuotaUsage:
        usage = super().quota_usage(namespace)
        sizes = {name: getattr(usage, name) for name in QuotaUsage.__dataclass_fields__}
        return QuotaUsage(**{**sizes, "free_blocks": usage.free_blocks + 1})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("can_admit", ForgetsToRead),
        ("can_admit", Hopeful),
        ("can_admit", Gloomy),
        ("match", Boastful),
        ("quota_usage", Miscounting),
    ],
)
def test_a_broken_promise_is_noticed(name: str, kind: Callable[..., BlockManager]) -> None:
    with pytest.raises((Broken, DivergenceError, OutOfBlocksError, NeverFitsError)):
        run(name, 4 * WORLDS, kind)


# The pool.


def build_pool(seed: int) -> tuple[BlockPool, random.Random, list[int]]:
    """A pool after random calls, and the blocks held in it."""
    rng = random.Random(seed)
    pool = BlockPool(rng.randint(2, 9), 2, null_block=rng.random() < 0.3)
    held: list[int] = []
    for _ in range(rng.randint(0, 30)):
        move = rng.randrange(4)
        if move == 0 and pool.num_available:
            held += pool.take(rng.randint(1, pool.num_available)).tolist()
        elif move == 1 and held:
            block = held.pop(rng.randrange(len(held)))
            if pool.ref_count(block) and not pool.is_cached(block):
                held.append(pool.promote(block, [rng.randrange(3), rng.randrange(3)]))
            else:
                held.append(block)
        elif held:
            pool.release([held.pop(rng.randrange(len(held)))])
    return pool, rng, held


def pool_says(name: str, pool: BlockPool, rng: random.Random) -> tuple[int, Any]:
    """The reported number, and a call that takes a given number of blocks."""
    if name in ("num_available", "num_free"):
        return getattr(pool, name), pool.take
    return pool.num_idle, pool.evict


@pytest.mark.parametrize("name", ["num_available", "num_idle"])
def test_as_many_as_a_pool_says_can_be_taken_and_no_more(name: str) -> None:
    for seed in range(WORLDS):
        pool, rng, _ = build_pool(seed)
        count, take = pool_says(name, pool, rng)
        with pytest.raises(OutOfBlocksError):
            take(count + 1)
        assert len(take(count)) == count
        assert getattr(pool, name) == 0
        pool.check_invariants()


def test_as_many_free_blocks_as_a_pool_says_are_had_without_an_eviction() -> None:
    for seed in range(WORLDS):
        pool, _, _ = build_pool(seed)
        cached, free = pool.num_cached, pool.num_free
        pool.take(free)
        assert (pool.num_cached, pool.num_free) == (cached, 0)


def test_what_a_pool_finds_can_be_acquired_and_holds_those_tokens() -> None:
    for seed in range(WORLDS):
        pool, rng, _ = build_pool(seed)
        tokens = [rng.randrange(3) for _ in range(4)]
        found = pool.find(tokens)
        before, idle = pool.num_available, pool.is_idle(found)
        pool.acquire(found)
        assert (
            np.concatenate([pool.tokens(int(b)) for b in found] or [[]]).tolist()
            == (tokens[: 2 * len(found)])
        )
        assert before - pool.num_available == idle.sum()
        pool.check_invariants()
