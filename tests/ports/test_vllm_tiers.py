"""The tiers of vLLM, on stand-ins for its modules.

``tests/engines/tiering.py`` runs them inside vLLM's own manager, and ``tests/engines/tiers.py`` in
a real engine.
"""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blockmgr.ports.unsupported import UnsupportedConfigError
from blockmgr.ports.vllm import plugin
from blockmgr.ports.vllm_tiers import layout
from blockmgr.tiers import SlabError, SlabMismatchError
from tests.ports.vllm_tier_support import (
    BLOCKS,
    SIZE,
    TierWorld,
    config_of,
    content,
    job,
    key_of,
    stand_ins,
)


@pytest.fixture(autouse=True)
def vllm_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield from stand_ins(monkeypatch)


class World(TierWorld):
    def __init__(self, folder: Path, **options: Any) -> None:
        slab_tier = importlib.import_module("blockmgr.ports.vllm_tiers.slab_tier")
        super().__init__()
        spec = SimpleNamespace(config=options.pop("config", config_of()))
        named = {"path": str(folder / "kv.slab"), "bytes_to_use": BLOCKS * SIZE, "revision": "1"}
        self.tier = slab_tier.SlabTier(spec, self.view, "SlabTier", **named | options)

    def close(self) -> None:
        self.tier._pool.check_invariants()
        assert not self.tier._pool.num_used
        self.tier.shutdown()


class Unable(World):
    """Its tier cannot start."""

    def __init__(self, folder: Path) -> None:
        with pytest.raises(SlabError) as self.refusal:
            super().__init__(folder / "none")


def flip(world: World, key: int) -> None:
    """Flips a bit of a chunk on disk."""
    path = Path(world.tier._slab.path)
    data = path.read_bytes()
    at = data.index(content(key).tobytes()) + 77
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 4]))


def test_a_tier_that_cannot_start_or_has_ended_holds_no_memory(tmp_path: Path) -> None:
    """vLLM unmaps it next, also while the error is known."""
    unable = Unable(tmp_path)
    ended = World(tmp_path)
    ended.store([1, 2])
    ended.load([1, 2])
    ended.close()
    for world in (unable, ended):
        world.view.release()
        del world.host
        world.memory.close()
    assert "none" in str(unable.refusal.value)


def test_what_is_stored_is_loaded_and_found_again_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.store([1, 2, 3]).success
    assert world.found(range(5)) == [1, 2, 3]
    assert world.load([1, 2, 3]) == [1, 2, 3]
    world.close()
    again = World(tmp_path)
    assert again.tier.counts["restored"] == 3
    assert again.load([1, 2, 3]) == [1, 2, 3]
    assert again.tier.get_stats() == {
        "blockmgr:slab_restored_chunks": 3,
        "blockmgr:slab_loaded_chunks": 3,
    }
    assert not again.tier.get_stats()
    again.close()


def test_a_second_engine_of_a_process_has_metrics_of_its_own() -> None:
    """vLLM makes them again for each engine, and removes only those with names of its own."""
    prometheus = pytest.importorskip("prometheus_client")
    tier = importlib.import_module("blockmgr.ports.vllm_tiers.slab_tier").SlabTier
    for _ in range(2):
        made = tier.build_metric_definitions({})
        counters = [prometheus.Counter(name, text) for name, text in made.items()]
    for each in counters:
        prometheus.REGISTRY.unregister(each)


def test_a_reset_that_the_disk_fails_is_made_up_for_by_the_next_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM cannot go on after an error of a reset."""
    world = World(tmp_path)
    world.store([1, 2])

    def fails(file: int) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fails)
        world.tier.drain_jobs()
        assert not world.found(range(5))
        assert not world.store([3]).success
    assert world.tier.counts["failed"] == 1
    assert world.store([4]).success
    assert world.load([4]) == [4]
    world.close()
    again = World(tmp_path)
    assert not again.found(range(5)), "stored with weights that may be others"
    again.close()


def test_chunks_that_are_neighbours_in_the_file_are_read_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store([1, 2, 3])
    read, asked = world.tier._slab.read_digests, []
    world.tier._slab.read_digests = lambda blocks, *rest: (
        asked.append(blocks) or read(blocks, *rest)
    )
    assert world.load([2, 1, 3]) == [2, 1, 3]
    [blocks] = asked
    assert blocks == list(range(blocks[0], blocks[0] + 3))
    world.close()


def test_chunks_of_a_job_are_written_at_once_whatever_order_their_room_comes_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.store(range(BLOCKS))
    world.load(range(BLOCKS))  # the last one in the file is now the first to be evicted
    runs, pwritev = [], os.pwritev
    with monkeypatch.context() as context:
        context.setattr(os, "pwritev", lambda *call: runs.append(len(call[1])) or pwritev(*call))
        assert world.store([20, 21, 22]).success
    assert runs == [3]
    assert world.load([20, 21, 22]) == [20, 21, 22]
    world.close()


def test_a_damaged_chunk_is_refused_forgotten_and_stored_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store([1, 2, 3])
    flip(world, 2)
    assert world.load([1, 2, 3]) == [1, 3]
    assert world.tier.counts["refused"] == 1
    assert world.found(range(5)) == [1, 3]
    assert world.store([1, 2, 3]).success
    assert world.tier.counts["stored"] == 4
    assert world.load([1, 2, 3]) == [1, 2, 3]
    world.close()


def test_two_loads_of_a_damaged_chunk_both_fail(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store([1])
    flip(world, 1)
    for number in (7, 8):
        world.tier.submit_load(job(number, [1], [number - 7], {}))
    assert [result.success for result in world.settle()] == [False, False]
    assert (world.tier.counts["refused"], world.found(range(3))) == (2, [])
    world.close()


def test_a_chunk_that_was_evicted_before_its_load_fails_alone(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store([1, 2])
    assert world.load([1, 5, 2]) == [1, 2]
    world.close()


@pytest.mark.parametrize(
    ("end", "left"), [("close", [1, 2, 11, 21, 22, 23]), ("crash", [1, 11, 12, 21, 22, 23])]
)
def test_the_end_of_a_prompt_is_evicted_before_its_beginning(
    tmp_path: Path, end: str, left: list[int]
) -> None:
    """vLLM says no parents; after a crash, too, the order of writes must say it."""
    world = World(tmp_path)
    world.store([1, 2, 3])
    world.store([13, 11, 12], positions={11: 16, 12: 32, 13: 48})  # as of several groups
    world.store([21])
    assert world.found(range(30)) == [1, 2, 11, 12, 13, 21]
    world.tier.touch([key_of(1), key_of(2)], None)
    world.store([22])
    assert world.found(range(30)) == [1, 2, 11, 12, 21, 22]
    if end == "crash":
        world.tier._slab._close_files()  # as a kill does: that 1 and 2 were touched is forgotten
    world.close()
    again = World(tmp_path)
    again.store([23])
    assert again.found(range(30)) == left
    again.close()


def test_a_job_that_does_not_fit_keeps_the_beginning_of_the_prompt(tmp_path: Path) -> None:
    world = World(tmp_path)
    result = world.store([1, 2, 3, 4, 5, 6, 7, 8])
    assert not result.success
    assert world.found(range(10)) == [1, 2, 3, 4, 5, 6]
    assert world.tier.counts["dropped"] == 2
    world.close()


def test_a_key_is_stored_once_at_a_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.host[:] = content(1)
    for number in (1, 2):
        world.tier.submit_store(job(number, [1], [0], {}))
    assert [result.success for result in world.settle()] == [True, True]
    assert world.tier.counts["stored"] == 1
    world.close()


def test_a_transfer_that_the_disk_fails_is_counted_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.store([1])

    def fails(*arguments: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as context:
        context.setattr("blockmgr.tiers.slab.os.pwrite", fails)
        context.setattr("blockmgr.tiers.slab.os.pwritev", fails)
        context.setattr("blockmgr.tiers.slab.os.preadv", fails)
        assert not world.store([2, 3]).success
        assert world.load([1]) == []
    assert (world.tier.counts["failed"], world.found(range(5))) == (3, [])
    assert world.store([1, 2, 3]).success
    assert world.load([1, 2, 3]) == [1, 2, 3]
    world.close()


def test_a_reset_empties_the_slab_and_what_follows_does_not_survive_a_restart(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.store([1, 2])
    world.tier.submit_store(job(9, [3], [0], {}))  # ends during the reset
    world.tier.drain_jobs()
    assert world.tier.has_pending_work()
    assert [result.job_id for result in world.tier.get_finished_jobs()] == [9]
    assert not world.tier.has_pending_work()
    assert world.found(range(5)) == []
    world.store([4])
    assert world.load([4]) == [4]
    world.close()
    again = World(tmp_path)
    assert again.tier.counts["restored"] == 0
    again.close()


def engine(**changes: Any) -> Any:
    """What the layout reads of vLLM's configuration."""
    hf_config = SimpleNamespace(to_dict=lambda: {"hidden_size": 64, "transformers_version": "5"})
    model = {"model": "org/tiny", "revision": "abc", "dtype": "torch.float32"}
    model |= {"quantization": None, "hf_config": hf_config}
    parts: dict[str, Any] = {
        "cache_config": SimpleNamespace(prefix_caching_hash_algo="sha256"),
        "lora_config": None,
        "model_config": SimpleNamespace(**model | changes.pop("model", {})),
    }
    return SimpleNamespace(**parts | changes)


@pytest.fixture
def in_scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    def inside(**changes: Any) -> dict[str, str | int]:
        token = plugin._config.set(engine(**changes))
        try:
            revision = changes.get("named", "")
            return layout.layout_of(SimpleNamespace(config=config_of()), revision)
        finally:
            plugin._config.reset(token)

    return inside


def test_what_decides_the_bytes_of_a_chunk_is_in_the_layout(
    in_scheduler: Any, tmp_path: Path
) -> None:
    plain = in_scheduler()
    assert plain["revision"] == "abc"
    other_config = SimpleNamespace(to_dict=lambda: {"hidden_size": 64, "rope_theta": 2})
    for change, names in (
        ({"model": {"revision": "def"}}, {"revision"}),
        ({"model": {"dtype": "torch.bfloat16"}}, {"weights_dtype"}),
        ({"model": {"hf_config": other_config}}, {"settings"}),
        ({"model": {"quantization": "fp8"}}, {"settings"}),
        ({"attention_config": SimpleNamespace(backend="FLASH")}, {"settings"}),
    ):
        other = in_scheduler(**change)
        assert {name for name in plain if plain[name] != other[name]} == names
    newer = SimpleNamespace(to_dict=lambda: {"hidden_size": 64, "transformers_version": "6"})
    assert in_scheduler(model={"hf_config": newer}) == plain

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"one")
    before = in_scheduler(model={"model": str(folder)})
    assert in_scheduler(model={"model": str(folder)}) == before
    (folder / "model.safetensors").write_bytes(b"other")
    assert in_scheduler(model={"model": str(folder)})["revision"] != before["revision"]


def test_a_slab_of_another_layout_is_refused_by_name(tmp_path: Path) -> None:
    World(tmp_path).close()
    group = SimpleNamespace(group_id=0, tokens_per_block=32, layer_names=("a", "b"))
    for options, field in (
        ({"revision": "2"}, "revision"),
        ({"config": config_of(model=SimpleNamespace(name="x", dtype="float32"))}, "model"),
        ({"config": config_of(model=SimpleNamespace(name="tiny", dtype="fp8"))}, "dtype"),
        ({"config": config_of(kv_cache_layout="HND")}, "kv_cache_layout"),
        ({"config": config_of(groups=[group])}, "groups"),
        ({"config": config_of(parallel={"rank": 1})}, "rank"),
        ({"config": config_of(parallel={"tp_size": 2})}, "ranks"),
        ({"bytes_to_use": 2 * BLOCKS * SIZE}, "num_blocks"),
    ):
        with pytest.raises(SlabMismatchError) as caught:
            World(tmp_path, **options)
        assert caught.value.field == field


def test_each_data_parallel_engine_has_a_file_of_its_own(tmp_path: Path) -> None:
    worlds = [
        World(tmp_path, config=config_of(parallel={"data_parallel_size": 2, **index}))
        for index in ({"data_parallel_index": 0}, {"data_parallel_index": 1})
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kv.slab-dp0", "kv.slab-dp1"]
    for world in worlds:
        world.close()


def test_keys_that_are_no_cryptographic_hash_are_refused(in_scheduler: Any) -> None:
    for algorithm in ("xxhash", "xxhash_cbor"):
        cache = SimpleNamespace(prefix_caching_hash_algo=algorithm)
        with pytest.raises(UnsupportedConfigError, match=f"{algorithm}.*Use one of sha256"):
            in_scheduler(cache_config=cache)
    in_scheduler(cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256_cbor"))


def test_weights_that_cannot_be_known_need_a_name(in_scheduler: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedConfigError, match=r"adapter.*Give `revision`"):
        in_scheduler(lora_config=object())
    assert in_scheduler(lora_config=object(), named="mine")["revision"] == "mine"
    with pytest.raises(UnsupportedConfigError, match="does not know the revision"):
        in_scheduler(model={"revision": None})
    with pytest.raises(UnsupportedConfigError, match="plug-in of vLLM is off"):
        World(tmp_path, revision="")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bytes_to_use": SIZE - 1}, ValueError, "bytes_to_use must be at least 4096"),
        ({"bytes_to_use": "1GB"}, TypeError, "bytes_to_use must be an int"),
        ({"threads": 0}, ValueError, "threads must be"),
        ({"eviction": "mru"}, ValueError, "eviction must be"),
    ],
)
def test_wrong_options_are_refused_by_name(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        World(tmp_path, **options)
    assert not list(tmp_path.iterdir())


# ---- eviction policies for host memory --------------------------------------------------


def chunk(number: int) -> Any:
    return SimpleNamespace(chunk_id=number, ref_cnt=-1)


def policy_of(name: str, capacity: int = 3) -> Any:
    return getattr(importlib.import_module("blockmgr.ports.vllm_tiers"), name)(capacity)


@pytest.mark.parametrize("name", ["S3FifoPolicy", "ArcPolicy", "LfudaPolicy"])
def test_a_policy_evicts_what_is_in_no_use_and_not_protected(name: str) -> None:
    policy = policy_of(name)
    for number in (1, 2, 3):
        policy.insert(key_of(number), chunk(number), None)
    assert policy.evict(1, set()) is None  # all are being written
    for number in (1, 2, 3):
        policy.mark_evictable(key_of(number))
    policy.mark_non_evictable(key_of(2))
    assert policy.evict(2, {key_of(1)}) is None
    [(key, gone)] = policy.evict(1, {key_of(1)})
    assert (key, gone.chunk_id) == (key_of(3), 3)
    assert policy.get(key_of(3)) is None
    policy.remove(key_of(2))  # in use
    policy.remove(key_of(1))  # and not
    policy.insert(key_of(4), chunk(4))
    policy.clear()
    assert policy.get(key_of(4)) is None
    policy._pool.check_invariants()
    assert policy._pool.num_free == 3


def test_a_policy_is_told_what_was_used_again_and_not_what_was_only_stored() -> None:
    """Otherwise each chunk would count as used, and the policy would be no better than LRU."""
    policy = policy_of("LfudaPolicy", 4)
    keys = [key_of(number) for number in range(4)]
    for number, key in enumerate(keys):
        policy.insert(key, chunk(number))
        policy.mark_evictable(key)
    policy.on_request_finished([keys[:2]], set(), set(keys[:2]), None)
    for _ in range(3):
        policy.on_request_finished([keys[2:]], set(keys[2:]), set(), None)
    assert {key for key, _ in policy.evict(2, set())} == set(keys[2:])


def test_an_unknown_name_is_no_part_of_the_module() -> None:
    with pytest.raises(AttributeError, match="no attribute 'LifoPolicy'"):
        policy_of("LifoPolicy")
