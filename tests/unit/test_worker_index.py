"""The index: the blocks of each worker, and defects that users reported elsewhere."""

from __future__ import annotations

import logging
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockmgr import BlockManager, Event, EventKind, Tier, _core
from tests.unit.engine import cache, serve, step

pytest.importorskip("msgspec", reason="the extra 'events'")
pytest.importorskip("zmq", reason="the extra 'events'")

import msgspec

from blockmgr.events import Encoder, Reader, decode
from blockmgr.events.codec import decode_hashes
from blockmgr.index import WorkerIndex, workers
from tests import fuzz_service


def index_of(*names: str, **options: Any) -> WorkerIndex:
    index = WorkerIndex(**{"max_workers": 8, **options})
    for name in names:
        index.announce(name)
    return index


def told(index: WorkerIndex, worker: str, manager: BlockManager) -> None:
    """The whole path of a real publisher except the sockets."""
    for payload in Encoder(manager.config.block_size).batches(manager.take_events(), 0.0):
        index.apply(worker, decode_hashes(payload))


def batch(*events: dict[str, Any], rank: int | None = None, **about: Any) -> Any:
    more = [{"epoch": 1, **about}] if about else []
    return decode_hashes(msgspec.msgpack.encode([0.0, list(events), rank, *more]))


def stored(hashes: list[Any], **fields: Any) -> dict[str, Any]:
    return {"type": "BlockStored", "block_hashes": hashes, "medium": "GPU", **fields}


def removed(hashes: list[Any], **fields: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", **fields}


Op = tuple[str, int, int, list[int]]
ops = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "remove", "clear"]),
        st.sampled_from([0, 1, 63, 64, 66]),  # on both sides of a word of 64
        st.integers(0, 3),
        st.lists(st.sampled_from([0, 1, 2, 5, 2**63, 2**64 - 1, 7 << 40]), max_size=6),
    ),
    max_size=60,
)


@given(ops=ops, asked=st.lists(st.integers(0, 7), max_size=8))
def test_the_table_says_what_a_dictionary_of_sets_says(ops: list[Op], asked: list[int]) -> None:
    table = _core.WorkerTable(67, 100)
    model: dict[tuple[int, int], set[int]] = {(w, t): set() for w in range(67) for t in range(4)}
    for name, worker, tier, keys in ops:
        known = model[worker, tier]
        data = np.array([key or 1 for key in keys], np.uint64).tobytes()
        if name == "store":
            assert table.store(worker, tier, data) == 0
            known.update(key or 1 for key in keys)
        elif name == "remove":
            missing = table.remove(worker, tier, data)
            unique = {key or 1 for key in keys}
            assert missing == len(keys) - len(unique & known)
            known -= unique
        else:
            table.clear(worker, tier)
            known.clear()
        assert table.num_entries() == len(set().union(*model.values()))
        assert table.num_blocks(worker, tier) == len(known)
    found = table.find(np.array(asked, np.uint64).tobytes()).reshape(67, 4)
    for worker in range(67):
        due = [0, 0, 0, 0]
        for key in asked:
            tiers = [t for t in range(4) if (key or 1) in model[worker, t]]
            if not tiers:
                break
            due[tiers[0]] += 1
        assert found[worker].tolist() == due


@pytest.mark.parametrize("worker", [0, 63, 64, 129])
@pytest.mark.parametrize("tier", range(4))
def test_a_worker_is_cleared_in_one_tier_alone(worker: int, tier: int) -> None:
    table = _core.WorkerTable(130, 100)
    key = np.array([5], np.uint64).tobytes()
    for which in range(4):
        table.store(worker, which, key)
        table.store(65, which, key)
    table.clear(worker, tier)
    left = [w for w in range(4) if w != tier]
    assert [w for w in range(4) if table.num_blocks(worker, w)] == left
    for which in left:
        assert table.find(key).reshape(130, 4)[worker].tolist().index(1) == which
        table.clear(worker, which)
    assert not table.find(key).reshape(130, 4)[worker].any()
    assert table.find(key).reshape(130, 4)[65].tolist() == [1, 0, 0, 0]
    assert table.num_entries() == 1


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_table_that_grows_and_shrinks_keeps_its_entries(seed: int) -> None:
    """Thousands of entries: chains that wrap around, tables that double, sweeps of a worker."""
    rng = np.random.default_rng(seed)
    table = _core.WorkerTable(3, 2**20)
    model: list[set[int]] = [set(), set(), set()]
    for _ in range(12):
        worker = int(rng.integers(3))
        keys = rng.integers(1, 6000, 2500, dtype=np.uint64)
        if rng.random() < 0.6:
            table.store(worker, 0, keys.tobytes())
            model[worker].update(keys.tolist())
        elif rng.random() < 0.7:
            table.remove(worker, 0, keys.tobytes())
            model[worker].difference_update(keys.tolist())
        else:
            table.clear(worker, 0)
            model[worker].clear()
        assert table.num_entries() == len(set().union(*model))
        for key in range(1, 6000, 37):
            found = table.find(np.array([key], np.uint64).tobytes()).reshape(3, 4)[:, 0]
            assert found.tolist() == [int(key in known) for known in model]


def test_a_prefix_ends_at_the_first_block_that_a_worker_has_nowhere() -> None:
    index = index_of("a", "b")
    index.store("a", [1, 2, 4])
    index.store("b", [1], Tier.HOST)
    index.store("b", [2, 3])
    assert index.found([1, 2, 3, 4]).tolist() == [[2, 0, 0, 0], [2, 1, 0, 0]]
    best, other = index.place([1, 2, 3, 4])
    assert (best.worker, best.num_blocks, best.tiers) == ("b", 3, {Tier.DEVICE: 2, Tier.HOST: 1})
    assert best.score == pytest.approx(2.8 / 4)
    assert other.score == pytest.approx(0.5)


def test_a_hot_prefix_does_not_pile_up_on_one_worker() -> None:
    """The score is the share found minus the weighted load, so a loaded worker loses (report 9)."""
    index = index_of("hot", "idle", load_weight=0.6)
    index.store("hot", [1, 2, 3, 4])
    assert index.place([1, 2, 3, 4])[0].worker == "hot"
    index.set_load("hot", 1.0)
    index.store("idle", [1, 2])
    assert index.place([1, 2, 3, 4])[0].worker == "idle"
    assert index.scores([1, 2, 3, 4]).tolist() == pytest.approx([0.4, 0.5])


def test_a_prompt_without_a_whole_block_goes_by_load() -> None:
    index = index_of("busy", "idle")
    index.set_load("busy", 0.5)
    assert index.place([])[0].worker == "idle"


# Reproductions of users' reports about such systems.


def test_report_1_a_block_with_another_copy_stays() -> None:
    index, manager = index_of("w"), BlockManager(16, 2, events=True, dedup="append_only")
    first = serve(manager, [1, 2, 3, 4, 5])
    second = manager.admit([1, 2, 3, 4, 5], read_cache=False)
    step(manager)
    first.free()
    serve(manager, list(range(100, 119)))  # takes the room of the first copy
    told(index, "w", manager)
    assert index.found(manager.block_digests([1, 2, 3, 4]))[0, 0] == 2
    manager.free(second)


def test_report_2_a_reset_empties_the_index() -> None:
    index, manager = index_of("w"), BlockManager(16, 2, events=True)
    cache(manager, [1, 2, 3, 4, 5])
    told(index, "w", manager)
    assert index.num_blocks("w") == 2
    manager.reset_prefix_cache()
    told(index, "w", manager)
    assert (index.num_blocks("w"), index.num_entries) == (0, 0)


def test_report_3_a_reset_of_the_device_leaves_other_tiers() -> None:
    index, manager = index_of("w"), BlockManager(16, 2, events=True)
    index.apply("w", batch(stored([1, 2], medium="CPU")))
    manager.reset_prefix_cache()
    told(index, "w", manager)
    assert index.num_blocks("w", Tier.HOST) == 2
    index.apply("w", batch({"type": "AllBlocksCleared"}))  # vLLM's, which names no tier
    assert index.num_blocks("w", Tier.HOST) == 0


def test_report_4_a_block_that_is_used_again_and_again_stays() -> None:
    """Events report only changes, and the index forgets nothing by itself."""
    index, manager = index_of("w"), BlockManager(16, 2, events=True)
    for _ in range(50):
        cache(manager, [1, 2, 3, 4, 5])
        told(index, "w", manager)
    assert index.found(manager.block_digests([1, 2, 3, 4]))[0, 0] == 2


def test_report_5_a_tail_is_stored_when_it_is_full_and_once() -> None:
    index, manager = index_of("w"), BlockManager(16, 4, events=True, min_partial_tokens=1)
    cache(manager, [1, 2, 3])
    told(index, "w", manager)
    assert index.num_entries == 0
    for _ in range(2):
        cache(manager, [1, 2, 3, 4, 5])
        events = manager.take_events()
        assert events.num_blocks <= 1
        for payload in Encoder(4).batches(events, 0.0):
            index.apply("w", decode(payload))
    assert index.num_entries == 1


def test_report_6_groups_that_are_no_whole_prefix_do_not_count() -> None:
    index = index_of("w")
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    index.apply("w", batch(stored([1, 2], **full), stored([1, 2, 3], **window)))
    assert index.found([1, 2, 3])[0, 0] == 2
    index.apply("w", batch(removed([1], group_idx=1)))  # the window has moved on
    assert index.found([1, 2, 3])[0, 0] == 2
    index.apply("w", batch(removed([2], group_idx=0)))
    assert index.found([1, 2, 3])[0, 0] == 1
    assert index.counts["other_group"] == 2  # neither its width nor its blocks are known


@pytest.mark.parametrize(("width", "read"), [(4, [3]), (5, [3]), (6, [2, 3]), (9, [2, 3])])
def test_a_window_needs_the_blocks_that_the_next_query_reads(width: int, read: list[int]) -> None:
    """A query at 12 reads from position 12 - width + 1 on, the query itself included."""
    index = index_of("w")
    names = {"group_idx": 0, "kv_cache_spec_kind": "full_attention", "block_size": 4}
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "block_size": 4}
    window |= {"kv_cache_spec_sliding_window": width}
    index.apply("w", batch(stored([1, 2, 3], **names), stored(read, **window)))
    assert index.found([1, 2, 3])[0, 0] == 3
    index.apply("w", batch(removed(read[:1], group_idx=1)))
    assert index.found([1, 2, 3])[0, 0] == 0


def test_a_prefix_counts_as_far_as_all_groups_serve_it() -> None:
    index = index_of("w")
    names = {"group_idx": 0, "kv_cache_spec_kind": "full_attention", "block_size": 4}
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "block_size": 4}
    window |= {"kv_cache_spec_sliding_window": 6}  # from 12 on it reads 7 to 11, 2 blocks
    state = {"group_idx": 2, "kv_cache_spec_kind": "mamba", "block_size": 4}
    index.apply("w", batch(stored([1, 2, 3, 4], **names)))
    assert index.found([1, 2, 3, 4])[0, 0] == 4  # no other group is known
    index.apply("w", batch(stored([2, 3, 4], **window)))
    assert index.found([1, 2, 3, 4])[0, 0] == 4
    assert index.found([1, 2])[0, 0] == 0
    index.apply("w", batch(stored([3], **state)))
    assert index.found([1, 2, 3, 4])[0, 0] == 3
    index.apply("w", batch(removed([2], group_idx=1)))
    assert index.found([1, 2, 3, 4])[0, 0] == 0
    index.apply("w", batch({"type": "AllBlocksCleared", "medium": "GPU"}))
    assert index.num_entries == 0
    index.apply("w", batch(stored([1, 2], **names), stored([1, 2], **window)))
    assert index.found([1, 2])[0, 0] == 0  # known groups stay known
    index.apply("w", batch(stored([2], **state)))
    assert index.found([1, 2])[0].tolist() == [2, 0, 0, 0]


def test_blocks_of_another_size_do_not_limit_a_prefix() -> None:
    """A page of a state may span many blocks, so its digest does not name a single block."""
    index = index_of("w")
    index.apply("w", batch(stored([1, 2], group_idx=0, block_size=4)))
    index.apply("w", batch(stored([9], group_idx=1, kv_cache_spec_kind="mamba", block_size=64)))
    assert index.found([1, 2])[0, 0] == 2


def test_a_removal_of_a_group_that_is_unknown_yet_takes_nothing() -> None:
    """An index that started late does not know the group; its blocks are of another one."""
    index = index_of("w")
    index.apply("w", batch(stored([1, 2], group_idx=0, kv_cache_spec_kind="full_attention")))
    index.apply("w", batch(removed([1], group_idx=1)))
    assert index.found([1, 2])[0, 0] == 2
    assert index.counts["other_group"] == 0


@pytest.mark.parametrize("group", [-1, 256, 2**63])
def test_a_group_with_a_number_out_of_bounds_is_not_believed(group: int) -> None:
    """The group is not stored either: a sender could use endless numbers."""
    index = index_of("w")
    index.apply("w", batch(stored([1], group_idx=group), removed([1], group_idx=group)))
    assert (index.counts["other_group"], index.num_entries) == (2, 0)
    assert not index._workers["w"].caches[0].groups.known


def test_a_copy_on_disk_goes_and_the_one_elsewhere_stays() -> None:
    """In vLLM both have the same medium; the locality distinguishes them."""
    index = index_of("w")
    for where in ("LOCAL", "REMOTE"):
        index.apply("w", batch(stored([1, 2], medium="STORAGE", locality=where)))
    index.apply("w", batch(removed([1], medium="STORAGE", locality="LOCAL")))
    assert (index.num_blocks("w", Tier.DISK), index.num_blocks("w", Tier.REMOTE)) == (1, 2)
    cleared = {"type": "AllBlocksCleared", "medium": "STORAGE", "locality": "REMOTE"}
    index.apply("w", batch(cleared))
    assert (index.num_blocks("w", Tier.DISK), index.num_blocks("w", Tier.REMOTE)) == (1, 0)


Told = tuple[str, int, int, list[int]]
told_events = st.lists(
    st.tuples(
        st.sampled_from(["STORED", "STORED", "REMOVED", "CLEARED"]),
        st.integers(0, 3),  # full attention, a window, a state, an unknown group
        st.integers(0, 3),
        st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True),
    ),
    max_size=40,
)


@given(told_events=told_events, layout=st.sampled_from(["maps", "arrays"]), batches=st.booleans())
def test_an_index_has_what_each_tier_has_as_far_as_all_groups_do(
    told_events: list[Told], layout: Any, batches: bool
) -> None:
    """Only groups that were reported and are known; arrays have only full attention."""
    index = index_of("w")
    encoder = Encoder(1, layout=layout, groups=("full_attention", ("sliding_window", 8), "mamba"))
    models = [{tier: set[int]() for tier in range(4)} for _ in range(3)]
    known = set()
    events = []
    for kind, group, tier, keys in told_events:
        digests = [] if kind == "CLEARED" else [key.to_bytes(16, "big") for key in keys]
        rows = len(keys) if kind == "STORED" else 0
        events.append(
            Event(
                EventKind[kind], digests, None, np.zeros((rows, 1), np.uint32), {}, group,
                Tier(tier), b"", 0,
            )
        )  # fmt: skip
        if kind == "CLEARED":
            for model in models:
                model[tier].clear()
        elif group < 3 and (layout == "maps" or group == 0):
            model = models[group]
            change = model[tier].update if kind == "STORED" else model[tier].difference_update
            change(keys)
            if kind == "STORED":
                known.add(group)
    for part in [events] if batches else [[event] for event in events]:
        for payload in encoder.batches(part, 0.0):
            index.apply("w", decode_hashes(payload))
    for tier in Tier:
        assert index.num_blocks("w", tier) == len(models[0][tier])
    for key in range(1, 6):
        tiers = [[tier for tier in range(4) if key in model[tier]] for model in models]
        first = tiers[0][:1] if all(tiers[group] for group in known) else []
        assert index.found([key])[0].nonzero()[0].tolist() == first


# Bad input.


def test_a_worker_that_was_never_announced_is_counted_and_not_believed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    index = index_of("known")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            index.apply("unknown", batch(stored([1])))
    assert (index.counts["unannounced"], index.num_entries, len(caplog.records)) == (3, 0, 1)
    with pytest.raises(KeyError, match="never announced"):
        index.store("unknown", [1])


def test_digests_of_another_length_are_counted_and_not_believed() -> None:
    index = index_of("w")
    index.apply("w", batch(stored([bytes(32)]), stored([bytes(31) + b"\x07"] * 2)))
    index.apply("w", batch(stored([bytes(16)]), stored([7]), stored([bytes(32), bytes(8)])))
    assert (index.counts["other_length"], index.num_entries) == (3, 2)


def test_one_event_of_another_length_leaves_those_beside_it() -> None:
    index = index_of("w")
    index.apply("w", batch(stored([1]), stored([bytes(32)]), stored([2]), stored([])))
    index.apply("w", batch(removed([1]), removed([bytes(16)]), removed([])))
    assert (index.counts["other_length"], index.num_entries) == (2, 1)
    assert index.found([2])[0, 0] == 1


def test_an_event_without_blocks_says_nothing_of_their_length() -> None:
    index = index_of("w")
    index.apply("w", batch(stored([])))
    index.apply("w", batch(stored([bytes(31) + b"\x07"])))
    assert (index.counts["other_length"], index.num_entries) == (0, 1)


def test_a_reader_decodes_for_an_index_what_an_index_wants() -> None:
    """Decoding tokens takes most of the time, and an index does not need them."""
    index = index_of("w")
    seen: list[Any] = []
    apply = index.apply
    index.apply = lambda worker, batch: (seen.append(batch), apply(worker, batch))[1]  # type: ignore[method-assign]
    payload = msgspec.msgpack.encode([0.0, [stored([1], token_ids=[5])], None])
    Reader("w", index, None).receive([b"", bytes(8), payload])
    assert not hasattr(seen[0].events[0], "token_ids")
    assert index.found([1])[0, 0] == 1


def test_an_unknown_medium_is_counted() -> None:
    index = index_of("w")
    index.apply("w", batch(stored([1], medium="TAPE"), stored([2], medium=None)))
    assert (index.counts["other_medium"], index.num_entries) == (1, 1)


def test_blocks_beyond_the_most_are_counted() -> None:
    index = index_of("w", max_blocks=2)
    index.store("w", [1, 2, 3])
    assert (index.counts["refused"], index.num_entries) == (1, 2)
    index.remove("w", [1])
    index.store("w", [3])
    assert index.num_entries == 2


def test_a_withdrawn_worker_leaves_nothing_and_makes_room() -> None:
    index = index_of("a", "b", max_workers=2)
    index.store("a", [1])
    index.set_load("a", 3.0)
    with pytest.raises(ValueError, match="worker must be one of at most 2"):
        index.announce("c")
    index.withdraw("a")
    index.announce("c")
    assert index.found([1]).tolist() == [[0] * 4, [0] * 4]
    assert index.scores([1]).tolist() == [0.0, 0.0]
    assert index.workers == ["b", "c"]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda i: i.announce(5), TypeError, "worker must be a str"),
        (lambda i: i.set_load("w", float("nan")), ValueError, "load must be finite"),
        (lambda i: i.set_load("w", "high"), TypeError, "load must be a number"),
        (lambda i: i.place(["text"]), TypeError, "digests must be bytes or ints"),
        (lambda i: i.place(b"one digest"), TypeError, "digests must be a sequence of them, got b"),
        (lambda i: i.found(5), TypeError, "digests must be a sequence of them, got int"),
        (lambda i: i.store("w", [1], "GPU"), TypeError, "tier must be an int, got 'GPU'"),
        (lambda i: i.clear("w", 4), ValueError, "tier must be in .0, 3., got 4"),
        (lambda i: i.num_blocks("w", -1), ValueError, "tier must be in .0, 3., got -1"),
        (lambda i: WorkerIndex(tier_weights=None), TypeError, "tier_weights must map tiers"),
        (lambda i: WorkerIndex(tier_weights={0: float("nan")}), ValueError, "tier_weights must be"),
        (lambda i: WorkerIndex(tier_weights={"DEVICE": 1}), ValueError, "tier_weights must have"),  # type: ignore[dict-item]
        (lambda i: WorkerIndex(load_weight=float("inf")), ValueError, "load_weight must be finite"),
        (lambda i: i.place([1.5]), TypeError, "digests must be bytes or ints, got float"),
        (lambda i: WorkerIndex(max_workers=0), ValueError, "max_workers must be in"),
        (lambda i: WorkerIndex(max_ranks=0), ValueError, "max_ranks must be in"),
        (lambda i: WorkerIndex(block_size=0), ValueError, "block_size must be in"),
        (lambda i: i.sink_of("x"), KeyError, "never announced"),
        (lambda i: _core.WorkerTable(1, 1).find(b"123"), ValueError, "keys must be 8 bytes"),
        (
            lambda i: _core.WorkerTable((1 << 16) + 1, 1),
            ValueError,
            "max_workers must be in .1, 65536",
        ),
        (lambda i: _core.WorkerTable(1, 1).store(1, 0, b""), ValueError, "worker must be in"),
        (lambda i: _core.WorkerTable(1, 1).clear(0, 4), ValueError, "tier must be in"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(index_of("w"))


def test_numbers_below_zero_are_those_that_others_publish_signed() -> None:
    index = index_of("w")
    index.store("w", [-1])
    assert index.found([2**64 - 1])[0, 0] == 1
    assert index.found([b"\xff" * 16])[0, 0] == 1


# Data-parallel ranks of a worker.


def test_ranks_of_a_worker_have_caches_of_their_own() -> None:
    """Removals and clearings of one rank leave the others."""
    index = index_of("w", "x")
    for rank in (1, 0):
        index.apply("w", batch(stored([1, 2, 3]), rank=rank))
    index.apply("x", batch(stored([1])))
    assert index.rows == [("w", 0), ("w", 1), ("x", None)]
    assert index.workers == ["w", "x"]
    index.apply("w", batch(removed([3]), rank=1))
    assert index.found([1, 2, 3])[:, 0].tolist() == [3, 2, 1]
    index.apply("w", batch({"type": "AllBlocksCleared"}, rank=1))
    placed = [(each.worker, each.rank, each.num_blocks) for each in index.place([1, 2, 3])]
    assert placed == [("w", 0, 3), ("x", None, 1), ("w", 1, 0)]
    assert [index.num_blocks("w", rank=rank) for rank in (None, 0, 1)] == [3, 3, 0]


def test_a_rank_is_forgotten_alone_and_a_worker_with_all_its_ranks() -> None:
    index = index_of("w", max_workers=3)
    for rank in range(3):
        index.apply("w", batch(stored([1]), rank=rank))
    index.reset("w", 1)
    assert index.found([1])[:, 0].tolist() == [1, 0, 1]
    index.reset("w")
    assert (index.rows, index.num_entries) == ([("w", None)], 0)
    index.apply("w", batch(stored([1]), rank=7))
    index.announce("x")
    index.announce("y")
    assert index.rows == [("w", 7), ("x", None), ("y", None)]
    index.withdraw("w")
    assert (index.rows, index.num_entries) == ([("x", None), ("y", None)], 0)


def test_a_load_is_that_of_a_rank_or_of_all() -> None:
    index = index_of("w")
    for rank in range(2):
        index.apply("w", batch(stored([1]), rank=rank))
    index.set_load("w", 0.5)
    assert index.scores([1]).tolist() == [0.5, 0.5]
    index.set_load("w", 0.25, 1)
    assert index.scores([1]).tolist() == [0.5, 0.75]
    with pytest.raises(KeyError, match=r"worker 'w' has no rank 2, only .0, 1."):
        index.set_load("w", 0.1, 2)
    with pytest.raises(KeyError, match="has no rank 5"):
        index.num_blocks("w", Tier.DEVICE, 5)


def test_a_batch_without_a_rank_is_of_the_only_rank_there_is() -> None:
    index = index_of("w")
    index.apply("w", batch(stored([1])))
    index.apply("w", batch(stored([2]), rank=3))
    index.apply("w", batch(stored([3])))
    assert (index.rows, index.found([1, 2, 3])[0, 0]) == ([("w", 3)], 3)


@pytest.mark.parametrize("options", [{"max_ranks": 2}, {"max_workers": 3}])
def test_a_worker_cannot_name_endless_ranks(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Each takes a place among the workers. The message names the bounds."""
    index = index_of("w", "x", **options)
    with caplog.at_level(logging.WARNING):
        for rank in range(9):
            index.apply("w", batch(stored([rank]), rank=rank))
    assert index.rows == [("w", 0), ("w", 1), ("x", None)]
    assert index.counts["other_rank"] == 7
    assert len(caplog.records) == 1
    assert "rank 2 is one too many: max_ranks is" in caplog.text


def test_a_withdrawn_worker_gets_nothing_of_what_its_old_reader_still_has() -> None:
    """Another worker with its name may have been announced meanwhile."""
    index = index_of("w")
    sink = index.sink_of("w")
    sink.apply("w", batch(stored([1])))
    index.withdraw("w")
    index.announce("w")
    index.store("w", [5])
    sink.apply("w", batch(stored([2])))
    sink.reset("w")
    assert (index.found([5])[0, 0], index.num_entries) == (1, 1)


# Blocks of another size.


@pytest.mark.parametrize("way", ["event", "about"])
def test_a_worker_with_another_block_size_is_an_error_that_names_both(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At its first batch, and not a worker that never has anything."""
    index = index_of("w", "x", block_size=16)
    about = {}
    if way == "about":
        about = {"groups": [["full_attention", None], ["mamba", None]], "block_size": 64}
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            index.apply("w", batch(stored([1], block_size=64), rank=1, **about))
    index.apply("x", batch(stored([1], block_size=16)))
    assert index.found([1])[:, 0].tolist() == [0, 1]
    assert index.counts["other_block_size"] >= 2
    assert list(index.problems) == [("w", 1)]
    assert "its blocks have 64 tokens, but 16 in this index" in index.problems["w", 1]
    assert len(caplog.records) == 1
    assert "64 tokens, but 16" in caplog.text
    index.reset("w")
    index.apply("w", batch(stored([1], block_size=16)))
    assert (index.problems, index.found([1])[0, 0]) == ({}, 1)


def test_a_block_size_that_changes_is_an_error_too() -> None:
    index = index_of("w")
    index.apply("w", batch(stored([1], block_size=16), stored([2], block_size=32)))
    index.apply("w", batch(stored([3], block_size=16)))
    assert "its blocks have 32 tokens, but 16 before" in index.problems["w", None]
    assert index.num_blocks("w") == 2


def test_workers_with_different_block_sizes_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Without a size of the index, nobody knows which one is right, and both are kept."""
    index = index_of("w", "x")
    with caplog.at_level(logging.WARNING):
        index.apply("w", batch(stored([1], block_size=16)))
        for _ in range(100):
            index.apply("x", batch(stored([2], block_size=32)))
            index.reset("x")
    assert "x: its blocks have 32 tokens, those of w have 16" in caplog.text
    assert len(caplog.records) <= 16
    assert index.problems == {}


# Descriptions that no model has.


@pytest.mark.parametrize("width", [2**31, 2**63, 0, -1])
@pytest.mark.parametrize("kind", ["sliding_window", "chunked_local_attention"])
@pytest.mark.parametrize("way", ["event", "about"])
def test_a_width_that_no_model_has_is_not_believed(kind: str, width: int, way: str) -> None:
    index = index_of("evil", "good")
    index.store("good", [1, 2, 3])
    about = {}
    if way == "about":
        about = {"groups": [["full_attention", None], [kind, width]], "block_size": 4}
    group = {"group_idx": 1, "kv_cache_spec_kind": kind, "kv_cache_spec_sliding_window": width}
    full = stored([1, 2, 3], block_size=4)
    index.apply("evil", batch(full, stored([1, 2, 3], block_size=4, **group), **about))
    assert index.found([1, 2, 3])[:, 0].tolist() == [3, 3]
    assert index.counts["other_group"] == 1


@pytest.mark.parametrize("size", [2**31, 2**63, -4])
def test_a_block_size_that_no_model_has_is_not_believed(size: int) -> None:
    index = index_of("w")
    groups = [["full_attention", None], ["sliding_window", 8]]
    index.apply("w", batch(stored([1], block_size=size), groups=groups, block_size=size))
    assert index.place([1])[0].num_blocks == 0
    assert index.counts["other_group"] == 1


def test_a_worker_has_a_bounded_number_of_groups() -> None:
    """Each takes time in every answer. Those beyond the bound are counted."""
    index = index_of("w")
    groups = [["full_attention", None]] + [["sliding_window", 8]] * 255
    described = {"groups": groups, "block_size": 4}
    events = [stored([1, 2], group_idx=group, block_size=4) for group in range(256)]
    index.apply("w", batch(*events, **described))
    groups_of = index._workers["w"].caches[0].groups
    assert (len(groups_of.known), len(groups_of.further)) == (64, 63)
    assert index.counts["other_group"] == 192
    assert index.found([1, 2])[0, 0] == 2


# Digests that are made up to share a place of the table.


FIBONACCI = 0x9E3779B97F4A7C15
STRUCTURED = {
    "multiples of an inverse": lambda j: pow(FIBONACCI, -1, 2**64) * j,
    "numbers in a row": lambda j: j,
    "high bits": lambda j: j << 48,
    "middle bits": lambda j: j << 24,
    "equal halves": lambda j: j << 32 | j,
    "multiples of the golden ratio": lambda j: FIBONACCI * j,
}


@pytest.mark.parametrize("name", STRUCTURED)
def test_no_keys_share_a_place_in_a_table_with_a_secret(name: str) -> None:
    """Of 8,000 keys at random, the longest run in a table that is half full is below 100."""
    keys = np.array([STRUCTURED[name](j) % 2**64 for j in range(1, 8001)], np.uint64).tobytes()
    for _ in range(5):
        table = _core.WorkerTable(2, 2**20)
        assert table.store(0, 0, keys) == 0
        assert table.longest_run() < 400


def test_each_table_has_a_secret_of_its_own() -> None:
    """A fixed one is for tests."""
    keys = np.arange(1, 400, dtype=np.uint64).tobytes()

    def runs(secrets: list[int | None]) -> list[int]:
        tables = [_core.WorkerTable(1, 1000, secret) for secret in secrets]
        for table in tables:
            table.store(0, 0, keys)
        return [table.longest_run() for table in tables]

    assert len(set(runs([None] * 30))) > 1
    assert runs([7] * 5) == runs([7]) * 5
    with pytest.raises(TypeError, match="secret must be an int"):
        _core.WorkerTable(1, 1, "secret")


def test_a_long_batch_is_applied_in_parts_and_whole() -> None:
    """Others are answered between the parts."""
    index = index_of("w", "x")
    keys = list(range(1, 2**15))
    index.apply("w", batch(*[stored(keys[start : start + 3]) for start in range(0, len(keys), 3)]))
    assert index.num_blocks("w") == len(keys)
    events = [*[removed([key]) for key in keys], {"type": "AllBlocksCleared"}, stored([5])]
    index.apply("w", batch(*events))
    assert index.num_blocks("w") == 1
    index.apply("w", batch())
    assert index.num_blocks("w") == 1


def test_nothing_that_a_worker_says_reaches_the_answers_about_others() -> None:
    """Hundreds of batches that no engine sends, decoded and applied or refused with a reason."""
    rng = random.Random(4)
    index = index_of("good", "evil", block_size=16)
    index.store("good", fuzz_service.GOOD)
    applied = 0
    for _ in range(600):
        try:
            told = decode_hashes(fuzz_service.lie(rng))
        except ValueError:
            continue
        index.apply("evil", told)
        applied += 1
        placed = {each.worker: each.num_blocks for each in index.place(fuzz_service.GOOD)}
        assert placed["good"] == len(fuzz_service.GOOD)
    assert applied > 50
    index.withdraw("evil")
    assert index.num_entries == len(fuzz_service.GOOD)


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_a_worker_is_cleared_in_parts(at_once: int) -> None:
    """Entries move while it goes round; those of others stay."""
    table = _core.WorkerTable(2, 2**20)
    keys = np.arange(1, 3000, dtype=np.uint64)
    for worker, own in ((0, keys), (1, keys[::7])):
        table.store(worker, 0, own.tobytes())
    place, rounds = 0, 0
    while place >= 0:
        place = table.clear(0, 0, place, at_once)
        rounds += 1
        assert rounds < 10**5
    assert (table.num_blocks(0, 0), table.num_entries()) == (0, len(keys[::7]))
    assert table.clear(0, 0, 0, 1) == -1
    with pytest.raises(ValueError, match="start must be in"):
        table.clear(0, 0, -1, 1)
    with pytest.raises(ValueError, match="count must be in"):
        table.clear(0, 0, 0, 0)


def test_a_long_batch_in_the_old_layout_is_decoded_too() -> None:
    """Long batches are decoded event by event, but only in the current layout."""
    keys = list(range(1, 20_000))
    payload = msgspec.msgpack.encode([0.0, [["BlockRemoved", keys, "GPU"]], 3])
    told = decode_hashes(payload)
    assert (told.data_parallel_rank, told.events[0].block_hashes) == (3, keys)
    current = batch(stored(keys * 3), rank=3, groups=[["mamba", 7]], block_size=2)
    assert current.events[0].block_hashes == keys * 3
    assert (current.data_parallel_rank, current.about.groups) == (3, (("mamba", 7),))
    with pytest.raises(ValueError, match="payload must be a batch of events"):
        batch(stored(keys * 3), {"type": "BlockMoved"})


def test_a_worker_that_leaves_while_it_is_emptied_takes_nothing_from_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other threads may use the index between two parts, and the next worker gets its place."""
    index = index_of("a", block_size=16)
    index.store("a", list(range(1, 200)))
    index.store("a", list(range(1, 200)), Tier.HOST)

    def others(_: float) -> None:
        monkeypatch.setattr(workers.time, "sleep", lambda _: None)
        index.withdraw("a")
        index.announce("b")
        index.store("b", list(range(1, 100)), Tier.REMOTE)

    monkeypatch.setattr(workers, "_PLACES_AT_ONCE", 1)
    monkeypatch.setattr(workers.time, "sleep", others)
    index.reset("a")
    assert index.workers == ["b"]
    assert index.num_blocks("b", Tier.REMOTE) == 99
