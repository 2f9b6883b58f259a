"""Events of tiers: a mirror that is fed by nothing else knows what each tier has."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockmgr import (
    ChunkedAttention,
    FullAttention,
    Prompt,
    RecurrentState,
    SlidingWindow,
)
from blockmgr.event_columns import Event, EventKind, Events, Tier, joined
from blockmgr.groups import Group
from blockmgr.tiers import (
    SharedStorage,
    Slab,
    TierConfig,
    TieredManager,
    key_bytes,
    shared_key_bytes,
)
from blockmgr.tiers.layout import Layout
from blockmgr.tiers.paths import Path as TierPath
from tests.tiers.fake_store import FakeStore
from tests.tiers.support import PROMPT, compute, evict, in_tier, managed, store, tier


class Mirror:
    """What each tier has, by events alone."""

    def __init__(self) -> None:
        self.has: dict[Tier, set[bytes]] = {kind: set() for kind in Tier}

    def apply(self, events: Events) -> None:
        assert not events.num_lost
        for event in events:
            own = self.has[event.tier]
            if event.kind is EventKind.STORED:
                assert not own & set(event.digests)
                assert event.parent is None or event.parent in own
                own |= set(event.digests)
            elif event.kind is EventKind.REMOVED:
                assert own >= set(event.digests)
                own -= set(event.digests)
            else:
                own.clear()


TWO_TOKENS: tuple[tuple[Group, ...], ...] = (
    (FullAttention(), SlidingWindow(5)),
    (SlidingWindow(4, block_size=1), FullAttention()),
    (FullAttention(1), ChunkedAttention(6)),
    (FullAttention(), RecurrentState(), SlidingWindow(2)),
)


def path_of(
    tokens: list[int], namespace: bytes = b"", extras: dict[int, bytes] | None = None
) -> TierPath:
    """The whole blocks of a prompt, as tiers know them."""
    prompt = Prompt(tokens, namespace=namespace, extras=extras)
    return TierPath.of_prompt(prompt, 2, len(tokens) // 2 * 2)


def with_slab(folder: Path, *, host: int = 5, disk: int = 12, **options: Any) -> TieredManager:
    slab = Slab(
        folder / "kv.slab",
        {"model": "tiny"},
        num_blocks=disk,
        block_bytes=8,
        key_bytes=key_bytes(2),
    )
    return managed(tier(host), TierConfig(slab=slab, ahead=99), events=True, **options)


def kinds(events: Events) -> list[tuple[Tier, EventKind, int]]:
    return [(event.tier, event.kind, len(event.digests)) for event in events]


def test_events_say_which_tier_has_a_block(tmp_path: Path) -> None:
    manager = with_slab(tmp_path)
    compute(manager, PROMPT)
    [device] = manager.take_events()
    assert (device.tier, device.kind) == (Tier.DEVICE, EventKind.STORED)
    store(manager)
    [host] = manager.take_events()
    assert (host.tier, host.kind, host.digests) == (Tier.HOST, EventKind.STORED, device.digests)
    assert host.tokens.tolist() == device.tokens.tolist()
    store(manager)
    assert kinds(manager.take_events()) == [(Tier.DISK, EventKind.STORED, 4)]
    evict(manager)
    assert kinds(manager.take_events()) == [(Tier.DEVICE, EventKind.REMOVED, 4)]
    assert len(manager.take_events()) == 0
    manager.reset_prefix_cache()
    last = manager.take_events()
    assert {event.tier for event in last} >= {Tier.HOST, Tier.DISK}
    manager.close()


def test_a_tier_names_what_is_secret_by_its_sha_256(tmp_path: Path) -> None:
    manager = with_slab(tmp_path)
    compute(manager, PROMPT, namespace=b"tenant", extras={1: b"image"})
    device = list(manager.take_events())
    store(manager)
    [host] = manager.take_events()
    assert (len(host.namespace), [len(key) for key in host.extras.values()]) == (32, [32])
    assert host.extras.keys() == {1}
    assert device[0].digests != host.digests
    manager.close()


def test_events_of_several_tiers_at_once_have_their_own_extra_keys() -> None:
    manager = managed(tier(16), events=True, retention=True)
    for number in (1, 2):
        compute(manager, [number] * 5, extras={1: bytes([number])})
    store(manager)
    compute(manager, [3] * 5, extras={0: b"3"}, session=b"talk")
    events: list[Event] = [*manager.take_events()]
    found = [(event.tier, event.tokens.tolist(), [*event.extras]) for event in events]
    assert found == [
        (Tier.DEVICE, [[1, 1], [1, 1]], [1]),
        (Tier.DEVICE, [[2, 2], [2, 2]], [1]),
        (Tier.DEVICE, [[3, 3], [3, 3]], [0]),
        (Tier.HOST, [[1, 1], [1, 1]], [1]),
        (Tier.HOST, [[2, 2], [2, 2]], [1]),
    ]
    assert [event.session for event in events] == [b"", b"", b"talk", b"", b""]


@pytest.mark.parametrize("seed", range(8))
def test_a_mirror_of_events_has_what_the_tiers_have(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    manager, mirror, talks = with_slab(tmp_path, retention=True), Mirror(), list[list[int]]()
    counts: Counter[Tier] = Counter()
    for _ in range(200):
        if not talks or draw.random() < 0.3:
            talks.append([draw.randrange(3) for _ in range(draw.randrange(2, 6))])
        talk = draw.choice(talks[-6:])
        talk += [draw.randrange(3)]
        compute(manager, talk[:13])
        for each in manager.take_stores():
            manager.stores_done(each.ticket, draw.randrange(len(each) + 1))
        if draw.random() < 0.02:
            manager.reset_prefix_cache(tiers=draw.random() < 0.5)
        if draw.random() < 0.1:
            mirror.apply(manager.take_snapshot())  # which clears it first
        else:
            mirror.apply(manager.take_events())
        fresh = Mirror()
        fresh.apply(manager.resident_events())
        assert mirror.has == fresh.has
        for kind, books in zip((Tier.HOST, Tier.DISK), manager._tiers, strict=True):
            assert len(mirror.has[kind]) == books.pool.num_cached
            counts[kind] += books.pool.num_cached
    assert all(counts.values())
    manager.close()


def held_by_groups(manager: TieredManager, number: int, talks: list[list[int]]) -> set[Any]:
    """Group and digest of what a tier has of these talks, from its books."""
    books, found = manager._tiers[number], set()
    parts = parts_read(books.layout, max(len(talk) // books.pool.block_size for talk in talks))
    for talk in talks:
        blocks = books.find(path_of(talk)) >= 0
        for row, digest, own in zip(
            blocks.tolist(), manager.block_digests(talk), parts, strict=False
        ):
            found |= {(g, digest) for g, of in own.items() if all(row[part] for part in of)}
    return found


def parts_read(layout: Layout, num_units: int) -> list[dict[int, list[int]]]:
    """For each unit and group, the parts of it that a prompt reads which continues behind it."""
    read: list[dict[int, list[int]]] = []
    for unit in range(num_units):
        read.append({})
        for part in np.flatnonzero(layout.needed((unit + 1) * layout.block_size)[-1]).tolist():
            read[-1].setdefault(layout.group_of(part), []).append(part)
    return read


def by_group(events: Events, told: dict[Tier, set[Any]]) -> None:
    """Applies events to what is known of each tier, by group and digest."""
    assert not events.num_lost
    for event in events:
        own, blocks = told[event.tier], {(event.group, digest) for digest in event.digests}
        if event.kind is EventKind.CLEARED:
            own.clear()
        elif event.kind is EventKind.STORED:
            assert not own & blocks
            assert len(event.tokens) == len(blocks)
            own |= blocks
        else:
            assert own >= blocks
            own -= blocks


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", TWO_TOKENS)
def test_a_mirror_has_what_each_group_has_in_tiers(
    groups: tuple[Group, ...], seed: int, tmp_path: Path
) -> None:
    draw, talks = random.Random(seed), list[list[int]]()
    options: dict[str, Any] = {"groups": groups, "null_block": True, "num_blocks": 40}
    manager = with_slab(tmp_path, host=24, disk=60, **options)
    told: dict[Tier, set[Any]] = {kind: set() for kind in Tier}
    counts: Counter[Any] = Counter()
    for _ in range(120):
        talk = [draw.randrange(2) for _ in range(draw.randrange(2, 14))]
        talks.append(talk)
        compute(manager, talk)
        for each in manager.take_stores():
            manager.stores_done(each.ticket, draw.randrange(len(each) + 1))
        if draw.random() < 0.03:
            manager.reset_prefix_cache(tiers=draw.random() < 0.5)
        is_anew = draw.random() < 0.1
        by_group(manager.take_snapshot() if is_anew else manager.take_events(), told)
        for number, kind in enumerate((Tier.HOST, Tier.DISK)):
            assert told[kind] == held_by_groups(manager, number, talks)
            counts.update((kind, group) for group, _ in told[kind])
        fresh: dict[Tier, set[Any]] = {kind: set() for kind in Tier}
        by_group(manager.resident_events(), fresh)
        assert fresh == told
    assert set(counts) == {(k, g) for k in (Tier.HOST, Tier.DISK) for g in range(len(groups))}
    manager.close()


def test_a_block_of_a_group_is_stored_under_the_digest_of_its_node() -> None:
    manager = managed(
        tier(64),
        groups=(SlidingWindow(3), FullAttention()),
        null_block=True,
        num_blocks=40,
        events=True,
    )
    compute(manager, PROMPT, extras={1: b"image"}, namespace=b"tenant")
    manager.take_events()
    store(manager)
    [full, window] = manager.take_events()
    assert [event.group for event in (full, window)] == [1, 0]
    assert [event.tier for event in (full, window)] == [Tier.HOST, Tier.HOST]
    assert window.digests == full.digests[3:]
    assert window.parent == full.digests[2]
    assert window.tokens.tolist() == full.tokens[3:].tolist()
    assert window.namespace == full.namespace
    assert full.extras.keys() == {1}
    assert not window.extras
    evicted = full.digests[3]
    manager._tiers[0].pool.forget_blocks(
        manager._tiers[0].find(path_of(PROMPT, b"tenant", {1: b"image"}))[3:, 1]
    )
    [gone] = manager.take_events()
    assert (gone.kind, gone.group, gone.digests) == (EventKind.REMOVED, 0, [evicted])


def test_an_index_claims_what_a_load_brings() -> None:
    pytest.importorskip("msgspec", reason="the extra 'events'")
    from blockmgr.events import Encoder
    from blockmgr.events.codec import decode_hashes
    from blockmgr.index import WorkerIndex

    manager = managed(
        tier(64),
        groups=(FullAttention(), SlidingWindow(5)),
        null_block=True,
        num_blocks=40,
        events=True,
        digest="sha256",
    )
    index = WorkerIndex(max_workers=1)
    index.announce("w")
    encoder = Encoder(2, epoch=1, groups=manager.config.groups)
    for tokens in (PROMPT, [*PROMPT, *PROMPT]):
        compute(manager, tokens)
        store(manager)
        manager.reset_prefix_cache(tiers=False)
        for payload in encoder.batches(manager.take_events(), 0.0):
            index.apply("w", decode_hashes(payload))
        for stop in range(3, len(tokens) + 1):
            digests = manager.block_digests(tokens[: stop - 1])
            claimed = int(index.found(digests)[0].sum()) * 2
            assert in_tier(manager, tokens[:stop]) == (claimed,)


def test_a_snapshot_after_a_restart_has_what_the_slab_had(tmp_path: Path) -> None:
    manager = with_slab(tmp_path)
    compute(manager, PROMPT)
    for _ in range(2):
        for each in manager.take_stores():
            proofs, slab = each.target_proofs, manager._tiers[1].slab
            assert proofs is not None
            assert slab is not None
            for block, serial, key in zip(
                each.target_blocks, proofs.serials, proofs.keys, strict=True
            ):
                if each.target == 1:
                    slab.write(int(block), key, bytes(8), serial=int(serial))
            manager.stores_done(each.ticket, len(each))
    manager.close()
    again = with_slab(tmp_path)
    assert kinds(again.take_events()) == [(Tier.DISK, EventKind.STORED, 4)]
    assert kinds(again.take_snapshot()) == [
        (Tier.DEVICE, EventKind.CLEARED, 0),
        (Tier.HOST, EventKind.CLEARED, 0),
        (Tier.DISK, EventKind.CLEARED, 0),
        (Tier.DISK, EventKind.STORED, 4),
    ]
    assert in_tier(again) == (0, 8)
    again.close()


def test_what_a_shared_store_has_is_remote() -> None:
    shared = SharedStorage(
        FakeStore(), {"model": "tiny"}, block_bytes=8, key_bytes=shared_key_bytes(2)
    )
    last = TierConfig(num_blocks=12, shared=shared, ahead=99)
    manager = managed(tier(5), last, events=True)
    compute(manager, PROMPT)
    store(manager)
    store(manager)
    assert [event.tier for event in manager.take_events()] == [Tier.DEVICE, Tier.HOST, Tier.REMOTE]
    manager.forget(manager.match(PROMPT).block_ids)
    gone = kinds(manager.take_events())
    assert gone == [(own, EventKind.REMOVED, 4) for own in (Tier.DEVICE, Tier.HOST, Tier.REMOTE)]
    shared.close()


def test_two_tiers_of_a_kind_have_no_events() -> None:
    with pytest.raises(ValueError, match="events must be False with two tiers in memory"):
        managed(tier(4), tier(8), events=True)


def test_a_manager_without_events_has_none_of_tiers() -> None:
    for call in ("take_events", "take_snapshot", "resident_events"):
        with pytest.raises(ValueError, match=f"{call} needs events=True"):
            getattr(managed(), call)()


def test_what_is_lost_in_a_tier_counts() -> None:
    device, host = (managed(events=True).take_events() for _ in range(2))
    lost = Events(**{**{n: getattr(host, n) for n in host.__slots__}, "num_lost": 3})  # type: ignore[arg-type]
    both = joined({Tier.DEVICE: device, Tier.HOST: lost})
    assert (len(both), both.num_lost, np.size(both.digests)) == (0, 3, 0)
