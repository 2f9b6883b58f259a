"""A store that others share: what it says is a hint, and what it returns is proved."""

from __future__ import annotations

import itertools
import pickle
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash

from blockmgr import FullAttention, ManagerConfig, SlidingWindow, TicketError
from blockmgr.digest import KeyedDigest
from blockmgr.groups import Group
from blockmgr.tiers import (
    DEVICE,
    MooncakeTier,
    SharedStorage,
    SharedStoreError,
    TierConfig,
    TieredManager,
    Transfer,
    shared_key_bytes,
)
from blockmgr.tiers.mooncake import MooncakeStore, connected
from tests.tiers.fake_store import FakeStore
from tests.tiers.shared_world import Worlds
from tests.tiers.support import PROMPT, compute, evict, in_tier, tier
from tests.tiers.world import LAYOUTS

SIZE = 8
LAYOUT: dict[str, str | int] = {"model": "tiny"}


def storage_on(store: FakeStore, layout: Any = None, **options: Any) -> SharedStorage:
    options = {"block_bytes": SIZE, "key_bytes": shared_key_bytes(2), "threads": 1, **options}
    return SharedStorage(store, layout or LAYOUT, **options)


class Process:
    """A manager on a store; the bytes of a block are its key's digest."""

    def __init__(
        self,
        store: FakeStore,
        *above: TierConfig,
        config: Any = None,
        known: int = 16,
        **options: Any,
    ) -> None:
        self.storage = storage_on(store, **options)
        last = TierConfig(num_blocks=known, shared=self.storage, ahead=99)
        config = config or ManagerConfig(num_blocks=8, block_size=2)
        self.manager = TieredManager.from_config(config, tiers=[*above, last])

    def move(self) -> None:
        """Makes all transfers to and from the store."""
        while stores := list(self.manager.take_stores()):
            for each in stores:
                n = len(each)
                if each.source == DEVICE:
                    n = self.manager.stores_read(each.ticket, n)
                if self.is_shared(each.target):
                    n = self.write(each, n)
                self.manager.stores_done(each.ticket, n)
        for each in self.manager.take_loads():
            self.manager.loads_done(each.ticket, self.read(each))

    def is_shared(self, number: int) -> bool:
        return number == len(self.manager.tier_stats()) - 1

    def write(self, store: Transfer, n: int) -> int:
        assert store.target_proofs is not None
        keys = store.target_proofs.keys[:n]
        data = [xxhash.xxh3_64_digest(key) for key in keys]
        digests = [xxhash.xxh3_128_digest(each) for each in data]
        return self.storage.write(keys, [memoryview(each) for each in data], digests)

    def read(self, load: Transfer) -> int:
        assert load.source_proofs is not None
        keys = load.source_proofs.keys
        into = [memoryview(bytearray(SIZE)) for _ in keys]
        found = self.storage.read(keys, into)
        good = next((i for i, digest in enumerate(found) if digest is None), len(found))
        for key, each in zip(keys[:good], into[:good], strict=True):
            assert bytes(each) == xxhash.xxh3_64_digest(key)
        return good

    def look_up(self, tokens: list[int] = PROMPT, **how: Any) -> int:
        """Asks for a prompt; the blocks that are new."""
        number = self.manager.look_up(tokens, **how)
        if not number:
            return 0
        assert self.manager.is_looking_up(number)
        [question] = self.manager.take_lookups()
        new = self.manager.lookups_done(number, self.storage.has(question.keys))
        assert not self.manager.is_looking_up(number)
        return new

    def serve(self, tokens: list[int] = PROMPT, **how: Any) -> int:
        """Asks for a prompt, loads and computes it; the tokens that were loaded."""
        self.look_up(tokens, **how)
        handle = self.manager.admit(tokens, load=True, **how)
        self.move()
        loaded = self.manager.sequence(handle).num_computed_tokens
        self.manager.commit(handle, len(tokens))
        self.manager.free(handle)
        self.move()
        self.manager.reset_prefix_cache(tiers=False)
        return loaded


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.mark.parametrize("seed", range(27))
def test_no_process_reads_what_is_wrong_from_a_store_that_lies(seed: int, tmp_path: Path) -> None:
    worlds = Worlds(seed, tmp_path)
    worlds.run(600)
    assert worlds.count("wrong") == 0


@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("groups", LAYOUTS)
def test_no_process_with_groups_reads_what_is_wrong(
    groups: tuple[Group, ...], seed: int, tmp_path: Path
) -> None:
    worlds = Worlds(seed, tmp_path, groups)
    worlds.run(400)
    assert worlds.count("wrong") == 0


@pytest.mark.parametrize("layouts", [[()], LAYOUTS])
def test_the_worlds_read_from_stores_that_lie(
    layouts: Sequence[tuple[Group, ...]], tmp_path: Path
) -> None:
    names = ("found", "loaded", "promoted", "refused", "shared_read", "shared_missing", "late")
    counts = dict.fromkeys(names, 0)
    for seed in range(12):
        worlds = Worlds(seed, tmp_path, layouts[seed % len(layouts)])
        worlds.run(1000)
        counts = {name: counts[name] + worlds.count(name) for name in names}
    assert all(counts.values()), counts


# Two processes.


def test_a_second_process_finds_what_the_first_one_stored(store: FakeStore) -> None:
    first, second = Process(store), Process(store)
    assert first.serve() == 0
    assert in_tier(second.manager) == (0,)
    assert second.serve() == 8
    assert second.manager.tier_stats()[0].found == 4


def test_a_prefetch_asks_first_and_then_copies_to_the_fastest_tier(store: FakeStore) -> None:
    Process(store).serve()
    process = Process(store, tier(16))
    number = process.manager.prefetch(PROMPT)
    assert list(process.manager.take_stores()) == []
    [question] = process.manager.take_lookups()
    process.manager.lookups_done(number, process.storage.has(question.keys))
    [fetch] = process.manager.take_stores()
    assert (fetch.source, fetch.target, len(fetch)) == (1, 0, 4)
    process.manager.stores_done(fetch.ticket, process.read(fetch))
    assert in_tier(process.manager) == (8, 8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"namespace": b"a"}, {"namespace": b"b"}),
        ({"namespace": b"a"}, {}),
        ({"extras": {0: b"image"}}, {"extras": {0: b"other"}}),
        ({"extras": {1: b"image"}}, {}),
    ],
    ids=str,
)
def test_prompts_that_differ_in_names_share_nothing_after_the_difference(
    one: Any, other: Any, store: FakeStore
) -> None:
    first, second = Process(store), Process(store)
    first.serve(**one)
    assert second.look_up(**other) == (1 if "extras" in one and not other else 0)
    assert second.look_up(**one) == (3 if "extras" in one and not other else 4)


def test_each_key_has_the_namespace_and_the_digest_of_the_key_before(store: FakeStore) -> None:
    process = Process(store)
    keys: list[tuple[bytes, ...]] = []
    for namespace in (b"tenant", b""):
        compute(process.manager, PROMPT, namespace=namespace)
        [each] = process.manager.take_stores()
        assert each.target_proofs is not None
        keys.append(each.target_proofs.keys)
        evict(process.manager)
    for a, b in zip(*keys, strict=True):
        assert a[32:64] != b[32:64]
        assert {a[32:64], b[32:64]} == {keys[0][0][32:64], keys[1][0][32:64]}
    for chain in keys:
        for before, after in itertools.pairwise(chain):
            assert after[:32] == process.storage.digest(before)


@pytest.mark.parametrize(
    "options",
    [{"layout": {"model": "other"}}, {"keyed": KeyedDigest(b"a secret, 16 bytes")}],
    ids=["layout", "keyed"],
)
def test_other_layouts_and_secrets_have_other_names(options: Any, store: FakeStore) -> None:
    Process(store).serve()
    assert Process(store, **options).look_up() == 0
    Process(store, **options).serve()
    assert Process(store, **options).look_up() == 4


# Several groups of layers.

GROUPED = ManagerConfig(
    num_blocks=32, block_size=2, groups=(FullAttention(), SlidingWindow(5)), null_block=True
)
LONG = list(range(1, 18))  # eight whole blocks; behind each, a query reads two of the window


def in_groups(store: FakeStore, known: int = 64) -> Process:
    return Process(store, config=GROUPED, known=known)


def keys_of(process: Process, tokens: list[int] = LONG, **how: Any) -> tuple[bytes, ...]:
    """The keys of what is stored of a prompt."""
    compute(process.manager, tokens, **how)
    [each] = process.manager.take_stores()
    assert each.target_proofs is not None
    return each.target_proofs.keys


def test_a_second_process_finds_what_all_groups_read_at_an_end(store: FakeStore) -> None:
    in_groups(store).serve(LONG)
    second = in_groups(store)
    assert second.look_up(LONG) == 8 + 2
    assert in_tier(second.manager, LONG) == (16,)
    assert second.serve(LONG) == 16
    assert in_groups(store).look_up(LONG[:9]) == 0  # there, nothing of the window was stored


def test_a_part_that_is_gone_leaves_the_end_before_it(store: FakeStore) -> None:
    first = in_groups(store)
    first.serve(LONG[:9])
    first.serve(LONG)
    *_, last = keys_of(in_groups(FakeStore()))
    [name] = first.storage._names([last])
    del store.objects[name]
    second = in_groups(store)
    assert second.look_up(LONG) == 4 + 2
    assert in_tier(second.manager, LONG) == (8,)
    assert second.serve(LONG) == 8


@pytest.mark.parametrize(("known", "tokens"), [(10, 16), (9, 8), (6, 8), (5, 0)])
def test_what_a_process_remembers_is_a_whole_end(known: int, tokens: int, store: FakeStore) -> None:
    first = in_groups(store)
    first.serve(LONG[:9])
    first.serve(LONG)
    second = in_groups(store, known)
    second.look_up(LONG)
    assert in_tier(second.manager, LONG) == (tokens,)
    assert second.manager._tiers[0].pool.num_used == 0


def test_only_what_can_be_read_behind_what_is_known_is_asked_for(store: FakeStore) -> None:
    process = in_groups(store)
    process.serve(LONG[:9])
    process.manager.look_up(LONG)
    [question] = process.manager.take_lookups()
    # Four nodes, and the window of these and the last known one, which the next end reads.
    assert len(question.keys) == 4 + 4
    process.manager.lookups_done(question.ticket, [True] * 3)
    assert in_tier(process.manager, LONG) == (8,)


def test_parts_of_what_the_device_has_are_asked_for(store: FakeStore) -> None:
    in_groups(store).serve(LONG[:11])
    second = in_groups(store)
    compute(second.manager, LONG[:9])
    assert second.look_up(LONG[:11]) == 5 + 2


def test_the_key_of_a_part_has_the_namespace_and_the_digest_of_the_key_of_its_node(
    store: FakeStore,
) -> None:
    process = in_groups(store)
    keys = keys_of(process, namespace=b"tenant")
    nodes, parts = keys[:8], keys[8:]
    assert [key[:32] for key in parts] == [process.storage.digest(key) for key in nodes[6:]]
    assert {key[32:64] for key in keys} == {keys[0][32:64]}
    assert {key[64:96] for key in parts}.isdisjoint(key[64:96] for key in nodes)
    assert [key[96:] for key in parts] == [key[96:] for key in nodes[6:]]
    assert set(keys).isdisjoint(keys_of(in_groups(store)))


def test_a_wrong_block_of_a_window_is_removed_with_its_node(store: FakeStore) -> None:
    process = in_groups(store)
    handle = process.manager.admit(LONG)
    process.manager.commit(handle, 17)
    window = process.manager.group_table(1)[process.manager.row(handle)]
    wrong = int(window[7])
    process.manager.free(handle)
    process.move()
    assert len(store.objects) == 10
    process.manager.forget([wrong])
    assert process.look_up(LONG) == 0
    process.storage.close()
    assert len(store.objects) == 8
    assert in_groups(store).look_up(LONG) == 0


def test_parts_that_were_read_too_late_are_not_found_again(store: FakeStore) -> None:
    process = in_groups(store)
    process.serve(LONG[:9])
    compute(process.manager, LONG)
    [late] = process.manager.take_stores()
    process.manager.reset_prefix_cache(tiers=False)
    process.write(late, len(late))
    assert process.manager.stores_done(late.ticket, len(late)) == 0
    assert process.look_up(LONG) == 0
    assert in_tier(process.manager, LONG) == (8,)


# Secrets.


def connected_to(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> SharedStorage:
    """The storage of a tier on this store."""
    monkeypatch.setattr("blockmgr.tiers.mooncake.MooncakeStore", lambda *_, **__: store)
    where = MooncakeTier(master="any:1", secret_file=options.pop("secret_file", ""))
    return connected(where, LAYOUT, block_bytes=SIZE, key_bytes=4, threads=1, **options)


def test_names_with_a_secret_are_those_of_the_engines_that_have_it(
    store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for number, secret in enumerate(
        [b"", b"a secret, 16 bytes", b"a secret, 16 bytes\n", b"b" * 64]
    ):
        path = tmp_path / str(number)
        path.write_bytes(secret)
        made = connected_to(store, monkeypatch, secret_file=path if secret else "")
        names.append(made.digest(b"key1"))
        made.close()
    assert names[1] == names[2]
    assert len(set(names)) == 3
    keyed = KeyedDigest(b"a secret, 16 bytes")
    other = connected_to(
        store, monkeypatch, keyed=KeyedDigest(b"b" * 16), secret_file=tmp_path / "1"
    )
    assert connected_to(store, monkeypatch, keyed=keyed).digest(b"key1") == names[1]
    assert other.digest(b"key1") == names[1]  # the file counts


@pytest.mark.parametrize(
    ("secret", "words"),
    [
        (None, "cannot read secret_file '.*none': No such file"),
        (b"short", "secret_file must have 16 to 64 bytes, got 5"),
        (b"x" * 65, "secret_file must have 16 to 64 bytes, got 65"),
    ],
)
def test_a_wrong_secret_is_refused_before_the_store_is_asked(
    secret: bytes | None,
    words: str,
    store: FakeStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "none"
    if secret is not None:
        path.write_bytes(secret)
    with pytest.raises(SharedStoreError, match=words) as refusal:
        connected_to(store, monkeypatch, secret_file=path)
    assert b"short".decode() not in str(refusal.value)
    assert not store.calls


# What a process knows.


def test_what_was_stored_long_ago_is_asked_for_again(store: FakeStore) -> None:
    process = Process(store)
    process.manager.take_lookups(now=0.0)
    process.serve()
    assert process.manager.look_up(PROMPT) == 0  # it is known
    process.manager.take_lookups(now=30.0)
    assert in_tier(process.manager) == (8,)
    process.manager.take_lookups(now=100.0)
    assert in_tier(process.manager) == (0,)
    assert process.serve() == 8


def test_what_is_known_is_bounded(store: FakeStore) -> None:
    process = Process(store)
    for first in range(10):
        process.serve([first] * 9)
    assert sum(in_tier(process.manager, [i] * 9)[0] for i in range(10)) <= 32
    assert process.serve([0] * 9) == 8  # forgotten, and found again
    process.manager.check_invariants()


def test_what_is_gone_is_computed_and_asked_for_no_more(store: FakeStore) -> None:
    process = Process(store)
    process.serve()
    store.objects.clear()
    assert process.serve() == 0
    assert process.storage.stats().missing == 4
    assert process.serve() == 8  # stored again


def test_a_damaged_object_is_removed_and_stored_again(store: FakeStore) -> None:
    first, second = Process(store), Process(store)
    first.serve()
    for name, data in store.objects.items():
        store.objects[name] = data[:-1] + bytes([data[-1] ^ 1])
    assert second.serve() == 0
    second.storage.close()
    assert second.storage.stats().refused == 4
    assert first.serve() == 8


def test_an_object_of_another_key_or_size_or_codec_is_refused(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(store)
    process.serve()
    process.serve([5] * 3)
    monkeypatch.setattr(store, "remove", lambda names: None)
    *_, first, second = store.objects
    good = store.objects[first]
    records = process.storage._records
    encoded = bytearray(good)
    assert records.dtype.fields is not None
    encoded[records.dtype.fields["codec"][1]] = 1
    body = bytes(encoded[: records.checked_bytes])
    check = xxhash.xxh3_64_intdigest(body, records.seed).to_bytes(8, "little")
    encoded[: records.checked_bytes + 8] = body + check
    key = bytes(records.parse(good[: records.size])["key"])  # type: ignore[index]
    for data in (store.objects[second], good[:-1], good[:100], bytes(encoded)):
        store.objects[first] = data
        assert process.storage.read([key], [memoryview(bytearray(SIZE))]) == [None]
        store.objects[first] = good
    assert process.storage.stats().refused == 4


def test_new_weights_find_nothing_and_leave_nothing_to_others(store: FakeStore) -> None:
    process = Process(store)
    process.serve()
    compute(process.manager, PROMPT)
    [*_, late] = process.manager.take_stores() or [None]
    process.manager.reset_prefix_cache()
    assert late is None or process.write(late, len(late)) >= 0
    before = set(store.objects)
    assert process.serve() == 0
    assert len(set(store.objects) - before) == 4  # under names that only this process knows
    assert process.serve() == 8
    assert Process(store).look_up() == 4  # the old weights'


def test_a_retired_namespace_finds_nothing_of_before(store: FakeStore) -> None:
    process = Process(store)
    for namespace in (b"", b"tenant"):
        process.serve(namespace=namespace)
    process.manager.retire(b"tenant")
    assert process.look_up(namespace=b"tenant") == 0
    assert in_tier(process.manager) == (8,)
    process.serve(namespace=b"tenant")
    assert in_tier(process.manager, namespace=b"tenant") == (8,)


def test_a_block_that_was_wrong_is_removed_and_not_found_again(store: FakeStore) -> None:
    process = Process(store)
    handle = process.manager.admit(PROMPT)
    process.manager.commit(handle, 9)
    third = process.manager.block_ids(handle)[2]
    process.manager.free(handle)
    process.move()
    process.manager.forget([third])
    assert in_tier(process.manager) == (4,)
    assert process.look_up() == 0
    process.storage.close()
    assert Process(store).look_up() == 2


def test_a_wrong_block_that_cannot_be_removed_is_not_found_again(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "remove", lambda names: None)
    process = Process(store)
    compute(process.manager, PROMPT)
    process.move()
    handle = process.manager.admit(PROMPT)
    process.manager.forget(process.manager.block_ids(handle)[:1])
    process.manager.free(handle)
    assert process.look_up() == 0
    evict(process.manager)
    assert process.serve() == 0
    assert process.serve() == 8  # under another name


def test_what_was_read_too_late_is_not_found_again(store: FakeStore) -> None:
    """By a mover that writes before it asks whether it may."""
    process = Process(store)
    compute(process.manager, PROMPT)
    [late] = process.manager.take_stores()
    evict(process.manager)
    process.write(late, len(late))
    assert process.manager.stores_done(late.ticket, len(late)) == 0
    assert process.look_up() == 0


# Failures.


def test_a_store_that_is_gone_costs_one_call_and_then_none(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("blockmgr.tiers.shared.time.monotonic", lambda: now[0])
    storage = storage_on(store, retry=5.0)
    key = bytes(shared_key_bytes(2))
    store.is_down = True
    with pytest.raises(ConnectionError, match="the store is gone"):
        storage.exist([key])
    calls = len(store.calls)
    for call in (
        lambda: storage.exist([key]),
        lambda: storage.read([key], [memoryview(bytearray(SIZE))]),
        lambda: storage.write([key], [memoryview(bytes(SIZE))], [bytes(16)]),
    ):
        with pytest.raises(ConnectionError, match="failed shortly before"):
            call()
    assert len(store.calls) == calls
    now[0] += 6
    store.is_down = False
    assert storage.exist([key]) == 0
    assert storage.exist([key]) == 0
    assert (storage.stats().failed_calls, storage.stats().skipped_calls) == (1, 3)


def test_what_cannot_be_read_is_stored_again_elsewhere(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the process has ended that has lent the memory."""
    now = [100.0]
    monkeypatch.setattr("blockmgr.tiers.shared.time.monotonic", lambda: now[0])
    first, second = Process(store), Process(store)
    first.serve()
    assert second.look_up() == 4
    store.is_unreadable = True
    handle = second.manager.admit(PROMPT, load=True)
    [load] = second.manager.take_loads()
    assert second.manager.loads_done(load.ticket, second.read(load)) == 0
    second.manager.free(handle)
    with pytest.raises(ConnectionError, match="failed shortly before"):
        second.storage.exist([bytes(shared_key_bytes(2))])
    store.is_unreadable = False
    now[0] += 6
    assert second.serve() == 0
    assert second.serve() == 8


class Hanging(FakeStore):
    """A store whose reads wait until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()

    def get(self, *args: Any) -> list[int]:
        assert self.may_go_on.wait(60)
        return super().get(*args)


def test_a_call_that_hangs_fails_and_keeps_its_memory_until_it_ends() -> None:
    store = Hanging()
    storage = storage_on(store, timeout=1e-3, retry=1e-9)
    key, into = bytes(shared_key_bytes(2)), memoryview(bytearray(b"as it is"))
    with pytest.raises(TimeoutError, match="the shared store did not answer"):
        storage.read([key], [into])
    with pytest.raises(TimeoutError, match="calls of the shared store hang"):
        storage.read([key], [into])
    store.may_go_on.set()
    storage.close()
    assert bytes(into) == b"as it is"
    assert storage._free.qsize() == 1
    assert store.is_closed


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"block_bytes": 0}, ValueError, "block_bytes must be"),
        ({"key_bytes": 0}, ValueError, "key_bytes must be"),
        ({"timeout": 0}, ValueError, "timeout must be above 0"),
        ({"retry": -1}, ValueError, "retry must be above 0"),
        ({"threads": 0}, ValueError, "threads must be in"),
        ({"keyed": b"secret"}, TypeError, "keyed must be a KeyedDigest"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(
    options: Any, error: type[Exception], words: str, store: FakeStore
) -> None:
    with pytest.raises(error, match=words):
        storage_on(store, **options)


def test_a_wrong_tier_is_named(store: FakeStore, tmp_path: Path) -> None:
    shared = storage_on(store)
    with pytest.raises(TypeError, match="shared must be a SharedStorage"):
        TierConfig(num_blocks=4, shared=store)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="known_seconds must be above 0"):
        TierConfig(num_blocks=4, shared=shared, known_seconds=0)
    with pytest.raises(ValueError, match="num_blocks must be given"):
        TierConfig(shared=shared)
    last = TierConfig(num_blocks=4, shared=shared)
    with pytest.raises(ValueError, match="shared must have keys of 112 bytes for blocks of 4"):
        TieredManager(8, 4, tiers=[last])
    with pytest.raises(ValueError, match="tiers must have a shared store as the last one"):
        TieredManager(8, 2, tiers=[last, tier(4)])


def test_a_look_up_is_answered_once(store: FakeStore) -> None:
    manager = Process(store).manager
    number = manager.look_up(PROMPT)
    with pytest.raises(TicketError, match="never taken"):
        manager.lookups_done(number, [])
    manager.take_lookups()
    with pytest.raises(ValueError, match="has length must be in"):
        manager.lookups_done(number, [True] * 5)
    with pytest.raises(TypeError, match="has must be a list or tuple of bool, got int"):
        manager.lookups_done(number, 4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has must be a bool, got 1"):
        manager.lookups_done(number, [1])  # type: ignore[list-item]
    manager.lookups_done(number, [])
    with pytest.raises(TicketError, match="is resolved"):
        manager.lookups_done(number, [])
    assert manager.look_up([1, 2]) == 0  # the last token is computed
    assert TieredManager(8, 2, tiers=[tier(4)]).look_up(PROMPT) == 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"master": "nowhere"}, ValueError, "master must be 'host:port'"),
        ({"master": 5}, TypeError, "master must be a str"),
        ({"host": b""}, TypeError, "host must be a str"),
        ({"lent_bytes": -1}, ValueError, "lent_bytes must be"),
        ({"timeout": 0}, ValueError, "timeout must be above 0"),
    ],
    ids=str,
)
def test_a_wrong_option_of_mooncake_is_named(
    options: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        MooncakeStore(**{"master": "127.0.0.1:1", **options})


def test_without_mooncake_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(SharedStoreError, match=r"see blockmgr\[mooncake\]") as refusal:
        MooncakeStore("127.0.0.1:1")
    again = pickle.loads(pickle.dumps(refusal.value))
    assert (again.address, str(again)) == ("127.0.0.1:1", str(refusal.value))


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("master", 5, TypeError),
        ("revision", None, TypeError),
        ("lent_bytes", -1, ValueError),
        ("known_blocks", 0, ValueError),
        ("known_seconds", 0, ValueError),
        ("timeout", -1, ValueError),
        ("secret_file", 5, TypeError),
    ],
)
def test_a_wrong_field_of_a_mooncake_tier_is_named(
    name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=name):
        MooncakeTier(**{"master": "127.0.0.1:1", name: value})


@pytest.mark.parametrize("answers", [[], [True] * 2, None], ids=str)
def test_a_store_that_answers_something_else_than_was_asked_fails(answers: Any) -> None:
    store = FakeStore()
    storage = storage_on(store, retry=1e-9)  # memory for one transfer
    key, data = bytes(storage.key_bytes), memoryview(bytearray(SIZE))
    store.exist = store.put = store.get = lambda *_: answers  # type: ignore[method-assign]
    for call in (
        lambda: storage.has([key]),
        lambda: storage.write([key], [data], [xxhash.xxh3_128_digest(data)]),
        lambda: storage.read([key], [data]),
    ):
        with pytest.raises((OSError, TypeError), match=r"answers to 1 questions|no len"):
            call()
    assert storage._free.qsize() == 1
    storage.close()


def test_a_look_up_that_is_answered_by_numbers_has_an_answer() -> None:
    store = FakeStore()
    storage = storage_on(store)
    store.exist = lambda names: [1] * len(names)  # type: ignore[method-assign, assignment, list-item]
    assert storage.has([bytes(storage.key_bytes)])[0] is True
    storage.close()


def test_a_store_is_closed_once() -> None:
    store, closed = FakeStore(), []
    store.close = lambda: closed.append(store)  # type: ignore[method-assign]
    storage = storage_on(store)
    storage.close()
    storage.close()
    assert closed == [store]


def test_a_closed_store_costs_hits_only(store: FakeStore) -> None:
    """Also where it is to forget a block: the device and the other tiers forget it."""
    process = Process(store, retry=1e-9)
    manager, storage = process.manager, process.storage
    compute(manager, PROMPT)
    blocks = manager.match(PROMPT).block_ids
    key, data = bytes(storage.key_bytes), memoryview(bytearray(SIZE))
    storage.close()
    for call in (
        lambda: storage.has([key]),
        lambda: storage.write([key], [data], [bytes(16)]),
        lambda: storage.read([key], [data]),
    ):
        with pytest.raises(ConnectionError, match="cannot be called"):
            call()
    assert storage._free.qsize() == 1
    storage.discard([key])
    assert manager.forget(blocks) == len(blocks)


def test_wrong_arguments_leave_the_memory_for_transfers_free() -> None:
    storage = storage_on(FakeStore())  # memory for one transfer
    key = bytes(storage.key_bytes)
    data = memoryview(bytes(SIZE))
    digest = xxhash.xxh3_128_digest(data)
    for keys, wrong in (([key], data[1:]), ([key] * (storage.batch + 1), data), ([], data)):
        with pytest.raises(ValueError, match=r"keys must|different"):
            storage.write(keys, [wrong] * len(keys), [digest] * len(keys))
    assert storage.write([key], [data], [digest]) == 1
    for keys, size in (([key], SIZE - 1), ([], SIZE)):
        with pytest.raises(ValueError, match=r"keys must|different"):
            storage.read(keys, [memoryview(bytearray(size)) for _ in keys])
    assert storage.read([key], [memoryview(bytearray(SIZE))]) == [digest]
    storage.close()
