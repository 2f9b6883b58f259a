"""Isolation: what one tenant can do to another, and learn about it, as documented here.

Namespaces are tested with a hit and a miss, because a miss alone also occurs with the cache off. A
tenant's quota is tested in two worlds: its random calls with and without the others must give the
same results; and without quotas they must not, or the test would show nothing.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from blockmgr import Admission, BlockManager, FullAttention, SlidingWindow, namespace_key
from blockmgr.config import EVICTION_POLICIES
from blockmgr.groups import Group
from tests.conftest import MakeManager
from tests.groups.random_runs import WITH_FULL, Layout
from tests.stress.profiles import groups_named
from tests.unit.engine import cache, ids, serve
from tests.unit.tenant import Observation, Tenant, Translate, play

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]

# Two tenants each, by what distinguishes them.
PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "salt": ({"namespace": b"salt-1"}, {"namespace": b"salt-2"}),
    "no salt": ({"namespace": b"salt-1"}, {}),
    "adapter": (
        {"namespace": namespace_key(adapter=b"lora-1")},
        {"namespace": namespace_key(adapter=b"lora-2")},
    ),
    "salt and adapter of one text": (
        {"namespace": namespace_key(salt=b"x")},
        {"namespace": namespace_key(adapter=b"x")},
    ),
    "salt, under one adapter": (
        {"namespace": namespace_key(salt=b"1", adapter=b"a")},
        {"namespace": namespace_key(salt=b"2", adapter=b"a")},
    ),
    "adapter, under one salt": (
        {"namespace": namespace_key(salt=b"1", adapter=b"a")},
        {"namespace": namespace_key(salt=b"1", adapter=b"b")},
    ),
    "where one name ends": ({"namespace": b"ab"}, {"namespace": b"a", "extras": {0: b"b"}}),
    "extras": ({"extras": {0: b"image-1"}}, {"extras": {0: b"image-2"}}),
    "salt, with one image": (
        {"namespace": b"1", "extras": {0: b"image"}},
        {"namespace": b"2", "extras": {0: b"image"}},
    ),
    "image, under one salt": (
        {"namespace": b"1", "extras": {0: b"image-1"}},
        {"namespace": b"1", "extras": {0: b"image-2"}},
    ),
}


@pytest.fixture(params=list(PAIRS), ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    return PAIRS[request.param]


@pytest.fixture(params=[False, True], ids=["shared", "quotas"])
def quotas(request: pytest.FixtureRequest, pair: Any) -> dict[bytes, int]:
    """None, or some for the first of the pair."""
    return {pair[0]["namespace"]: 20} if request.param and "namespace" in pair[0] else {}


def test_the_one_hits_and_the_other_misses(
    make_manager: MakeManager, pair: Any, quotas: dict[bytes, int]
) -> None:
    manager = make_manager(40, 2, quotas=quotas, min_partial_tokens=1)
    one, other = pair
    cache(manager, PROMPT, **one)
    assert manager.match(PROMPT, **one).num_cached_tokens == 8
    assert manager.match(PROMPT, **other).num_cached_tokens == 0
    assert serve(manager, PROMPT, **other).num_cached_tokens == 0
    assert serve(manager, PROMPT, **one).num_cached_tokens == 8


def test_equal_blocks_of_the_one_are_merged_and_of_the_other_are_not(
    make_manager: MakeManager, pair: Any, quotas: dict[bytes, int]
) -> None:
    manager = make_manager(40, 2, quotas=quotas)
    one, other = pair
    handles = [manager.admit(PROMPT, **key) for key in (one, one, other)]
    for handle in handles:
        manager.commit(handle, 9)
    first, second, third = (ids(manager.sequence(handle)) for handle in handles)
    assert first[:4] == second[:4]
    assert not {*first, *second} & {*third}


def test_a_tail_of_the_one_is_continued_and_never_by_the_other(
    make_manager: MakeManager, pair: Any, quotas: dict[bytes, int]
) -> None:
    manager = make_manager(40, 4, quotas=quotas, min_partial_tokens=1)
    one, other = pair
    cache(manager, [1, 2, 3], **one)
    assert manager.match([1, 2, 3, 4], **other).num_partial_tokens == 0
    assert serve(manager, [1, 2, 3, 4], **other).num_cached_tokens == 0
    assert serve(manager, [1, 2, 3, 4], **one).num_cached_tokens == 3


def test_a_waiting_prompt_of_the_one_touches_nothing_of_the_other(
    make_manager: MakeManager, pair: Any, quotas: dict[bytes, int]
) -> None:
    manager = make_manager(40, 2, quotas=quotas)
    one, other = pair
    cache(manager, PROMPT, **one)
    assert manager.touch(PROMPT, **other) == 0
    assert manager.touch(PROMPT, **one) == 4


def test_a_resumed_sequence_of_the_one_finds_its_own_blocks_only(
    make_manager: MakeManager, pair: Any, quotas: dict[bytes, int]
) -> None:
    manager = make_manager(40, 2, quotas=quotas)
    one, other = pair
    mine, theirs = manager.admit(PROMPT, **one), manager.admit(PROMPT, **other)
    manager.preempt(theirs)
    manager.commit(mine, 9)
    manager.preempt(mine)
    manager.resume(theirs)
    manager.resume(mine)
    assert manager.sequence(theirs).num_cached_tokens == 0
    assert manager.sequence(mine).num_cached_tokens == 8


def test_can_admit_counts_what_the_one_has_cached_and_not_what_the_other_has(
    make_manager: MakeManager, pair: Any
) -> None:
    manager = make_manager(6, 2)
    one, other = pair
    serve(manager, PROMPT, **one)  # in use: one block is left
    assert manager.can_admit(PROMPT, **one) is Admission.NOW
    assert manager.can_admit(PROMPT, **other) is Admission.LATER


# ---- two worlds ------------------------------------------------------------------------------

SHARES = {b"a": 9, b"b": 7}
ROUNDS = 40
SEEDS = range(10)


def options(seed: int, eviction: str) -> dict[str, Any]:
    rng = random.Random(seed)
    return {
        "block_size": rng.choice([1, 2, 3]),
        "eviction": eviction,
        "max_seqs": 512,
        "dedup": rng.choice(["remap", "append_only"]),
        "min_partial_tokens": rng.choice([0, 1]),
        "early_commit": rng.choice([False, False, True]),
        "steps_in_flight": rng.choice([0, 0, 2]),
        "null_block": rng.choice([False, True]),
        "watermark_blocks": rng.choice([0, 5]),
    }


def observe(
    seed: int,
    eviction: str,
    watched: bytes,
    others: list[bytes],
    *,
    quotas: dict[bytes, int],
    translate: Translate = int,
    groups: tuple[Group, ...] = (),
) -> list[Observation]:
    """Everything that one tenant observes beside others that need more than there is."""
    chosen = options(seed, eviction) | ({"groups": groups, "null_block": True} if groups else {})
    scale = 2 * len(groups) or 1
    quotas = {name: scale * blocks for name, blocks in quotas.items()}
    manager = BlockManager(25 * scale, quotas=quotas, **chosen)
    tenant = Tenant(manager, watched, seed)
    crowd = [
        Tenant(manager, name, seed * 100 + i, translate=translate, greed=2)
        for i, name in enumerate(others)
    ]
    play(manager, [tenant, *crowd], ROUNDS)
    return tenant.seen


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
@pytest.mark.parametrize(
    ("watched", "others"),
    [(b"a", [b"b"]), (b"a", [b"x", b"y"]), (b"x", [b"a", b"b"]), (b"a", [b"b", b""])],
    ids=["from-another-quota", "from-the-rest", "the-rest", "from-everybody"],
)
def test_with_quotas_a_tenant_sees_the_same_with_and_without_the_others(
    eviction: str, watched: bytes, others: list[bytes]
) -> None:
    """Hits, block ids, shortages and copies do not depend on the others."""
    for seed in SEEDS:
        alone = observe(seed, eviction, watched, [], quotas=SHARES)
        beside = observe(seed, eviction, watched, others, quotas=SHARES)
        assert beside == alone, f"seed {seed}"


@pytest.mark.parametrize("layout", WITH_FULL[1:], ids=", ".join)
def test_with_groups_of_layers_a_tenant_sees_the_same_too(layout: Layout) -> None:
    """The blocks of every table, and the stops, too."""
    groups = tuple(groups_named(layout))
    for seed in SEEDS:
        alone = observe(seed, "lru", b"a", [], quotas=SHARES, groups=groups)
        beside = observe(seed, "lru", b"a", [b"b", b""], quotas=SHARES, groups=groups)
        assert beside == alone, f"seed {seed}"


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_without_quotas_a_tenant_feels_the_others(eviction: str) -> None:
    """The result of the previous test if quotas had no effect."""
    felt = [
        observe(seed, eviction, b"a", [], quotas={})
        != observe(seed, eviction, b"a", [b"b"], quotas={})
        for seed in SEEDS
    ]
    assert all(felt)


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
def test_even_without_quotas_the_content_of_others_makes_no_difference(eviction: str) -> None:
    """Only their number of blocks shows: the same calls with other tokens look the same."""
    for seed in SEEDS:
        world = [
            observe(seed, eviction, b"a", [b"b"], quotas={}, translate=translate)
            for translate in (int, lambda token: token + 1_000, lambda token: 7 - token)
        ]
        assert world[0] == world[1] == world[2], f"seed {seed}"


@pytest.mark.parametrize("eviction", EVICTION_POLICIES)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retention": True},
        {"ghost_blocks": 600},
        {"min_partial_tokens": 1},
        {"groups": (FullAttention(), SlidingWindow(8)), "null_block": True},
    ],
    ids=["plain", "retention", "ghosts", "partial", "groups"],
)
def test_the_tokens_of_others_decide_no_match_and_no_eviction(
    eviction: str, options: dict[str, Any]
) -> None:
    """In a crowded pool, large enough for a policy that remembers only some blocks by digest."""
    world = [
        crowded(eviction, options, translate) for translate in (int, lambda token: 9999 - token)
    ]
    assert world[0] == world[1]


def crowded(eviction: str, options: dict[str, Any], translate: Translate) -> list[Any]:
    """What tenant ``a`` finds beside ``b``, and the order of eviction of all blocks."""
    rng = random.Random(5)
    manager = BlockManager(600, 2, eviction=eviction, **options)
    names = {b"a": int, b"b": translate}
    prompts = {name: [[rng.randrange(50) for _ in range(40)] for _ in range(40)] for name in names}
    seen: list[Any] = []
    for turn in range(600):
        name = rng.choice([*names])
        number = rng.randrange(40)
        prompt = prompts[name][number][: rng.randint(5, 40)] + [rng.randrange(50) for _ in range(5)]
        if rng.random() < 0.3:
            prompts[name][number] = prompt
        handle = manager.admit([names[name](token) for token in prompt], namespace=name)
        manager.commit(handle, len(prompt))
        manager.copies_applied(manager.take_copies().ticket)
        if name == b"a":
            seen.append(manager.sequence(handle).num_cached_tokens)
        manager.free(handle)
        if turn % 50 == 0:
            seen.append(manager.blocks().eviction_rank.tolist())
    assert manager.stats().evicted_blocks > 600
    return seen


def test_a_tenant_that_floods_the_cache_leaves_what_another_has_in_its_quota(
    make_manager: MakeManager,
) -> None:
    """Without quotas, the same load takes everything."""
    for quotas, expected in (({b"a": 4}, 8), ({}, 0)):
        manager = make_manager(12, 2, quotas=quotas)
        cache(manager, PROMPT[:8], namespace=b"a")
        for start in range(100, 400, 10):
            cache(manager, list(range(start, start + 8)), namespace=b"b")
        assert manager.match(PROMPT, namespace=b"a").num_cached_tokens == expected
