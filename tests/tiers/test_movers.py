"""Movers bring back the bytes that left the device, or nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xxhash

pytest.importorskip("torch", reason="movers move tensors")

import numpy as np
import torch

from blockmgr import BlockManager, FullAttention, RecurrentState, SlidingWindow
from blockmgr.kv import GroupedKVCache, HybridShape, LayerShape, PagedKVCache, StateTensor
from blockmgr.shapes.model import ModelShape
from blockmgr.tiers import Slab, TierConfig, TieredManager, key_bytes
from blockmgr.tiers.movers import BlockBytes, Mover, _parts_of
from blockmgr.tiers.storages import HostStorage, SlabStorage, Storage, buffer_of
from tests.tiers.support import PROMPT, evict, in_tier

BLOCKS = 8


class Device:
    """A cache with K/V of its own in each block, and a manager with tiers."""

    def __init__(self, *tiers: TierConfig, storages: Any = None, **cache: Any) -> None:
        dtype = cache.pop("dtype", torch.float32)
        shape = ModelShape(num_layers=2, num_kv_heads=2, head_dim=4, dtype=dtype)
        self.cache = PagedKVCache(BLOCKS, 2, shape, **cache)
        self.blocks = BlockBytes(self.cache)
        known = tiers or (TierConfig(num_blocks=16, ahead=99),)
        self.manager = TieredManager(BLOCKS, 2, tiers=list(known))
        self.storages: list[Storage] = storages or [HostStorage(16, self.blocks.size)]
        self.mover = Mover(self.manager, self.blocks, self.storages)

    def fill(self, tokens: list[int]) -> None:
        """Computes a prompt, with the number of the token as its K, and the opposite as its V."""
        handle = self.manager.admit(tokens)
        slots = self.manager.slot_mapping(handle, 0, len(tokens))
        keys = torch.tensor(tokens).view(-1, 1, 1).expand(-1, 2, 4)
        keys = keys.to(self.cache.shape.dtype)
        for layer in range(2):
            self.cache.write(layer, keys + layer, -keys, slots)
        self.manager.commit(handle, len(tokens))
        self.manager.free(handle)

    def settle(self) -> None:
        while self.mover.poll():
            self.mover.drain()

    def lose(self) -> None:
        """Evicts everything, and overwrites its K/V."""
        evict(self.manager)
        self.cache.zero(list(range(BLOCKS)))

    def loaded(self, tokens: list[int]) -> int:
        """Loads a prompt, checks what came, and returns how many tokens those are."""
        handle = self.manager.admit(tokens, load=True)
        while self.manager.is_loading(handle):
            self.mover.poll()
            self.mover.wait()
        count = self.manager.sequence(handle).num_computed_tokens
        table = self.manager.block_ids(handle)
        for layer in range(2):
            keys, values = self.cache.gather(layer, table, count)
            assert values is not None
            assert keys[:, 1, 3].tolist() == [token + layer for token in tokens[:count]]
            assert values[:, 0, 0].tolist() == [-token for token in tokens[:count]]
        self.manager.free(handle)
        return count


def slab_at(path: Path, size: int) -> Slab:
    layout: dict[str, str | int] = {"model": "tiny"}
    return Slab(path, layout, num_blocks=32, block_bytes=size, key_bytes=key_bytes(2))


@pytest.mark.parametrize("layout", [None, "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_bytes_come_back(layout: str | None, dtype: Any) -> None:
    device = Device(layout=layout, dtype=dtype)
    device.fill(PROMPT)
    device.settle()
    device.lose()
    assert device.loaded(PROMPT) == 8
    device.mover.close()
    device.manager.check_invariants()


def test_bytes_go_on_to_a_slab_and_come_back_from_it(tmp_path: Path) -> None:
    size = Device().blocks.size
    slab = slab_at(tmp_path / "kv.slab", size)
    tiers = TierConfig(num_blocks=4, ahead=99), TierConfig(slab=slab, ahead=99)
    device = Device(*tiers, storages=[HostStorage(4, size), SlabStorage(slab)])
    device.fill(PROMPT)
    device.settle()
    device.fill([5] * 9)
    device.settle()
    device.lose()
    assert in_tier(device.manager)[1] == 8
    assert device.loaded(PROMPT) == 8
    device.mover.close()
    slab.close()


def test_a_bit_that_flips_in_host_memory_never_reaches_a_slab_with_a_good_proof(
    tmp_path: Path,
) -> None:
    size = Device().blocks.size
    slab = slab_at(tmp_path / "kv.slab", size)
    host = HostStorage(16, size)
    tiers = TierConfig(num_blocks=16, ahead=99), TierConfig(slab=slab, ahead=99)
    device = Device(*tiers, storages=[host, SlabStorage(slab)])
    device.fill(PROMPT)
    device.mover.poll()  # stores in host memory
    device.mover.drain()
    host._memory[size + 3] ^= 1  # in the second block
    device.settle()
    assert in_tier(device.manager) == (2, 2)
    device.lose()
    assert device.loaded(PROMPT) == 2
    assert device.manager.tier_stats()[0].refused == 1
    device.mover.close()
    slab.close()


def test_a_damaged_block_is_refused_and_stored_again() -> None:
    device = Device()
    device.fill(PROMPT)
    device.settle()
    device.lose()
    host: Any = device.storages[0]
    host._memory[0] ^= 1
    assert device.loaded(PROMPT) == 0
    device.fill(PROMPT)
    device.settle()
    device.lose()
    assert device.loaded(PROMPT) == 8
    device.mover.close()


@pytest.mark.parametrize("wrong", ["serial", "key"])
def test_host_memory_refuses_what_was_not_meant(wrong: str) -> None:
    host, data = HostStorage(2, 8), memoryview(bytearray(b"8 bytes."))
    host.write(1, 7, b"key", data, xxhash.xxh3_128_digest(data))
    into = memoryview(bytearray(8))
    assert host.read(1, 7, b"key", into) == xxhash.xxh3_128_digest(data)
    serial, key = (8, b"key") if wrong == "serial" else (7, b"other")
    assert host.read(1, serial, key, into) is None
    assert host.read(0, 7, b"key", into) is None


@pytest.mark.parametrize("value", [0, True, 1.5, 2**63])
@pytest.mark.parametrize("name", ["num_blocks", "block_bytes"])
def test_host_memory_refuses_sizes_by_name(name: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
        HostStorage(**{"num_blocks": 2, "block_bytes": 8, name: value})


def test_host_memory_has_its_size_whatever_numbers_say_it() -> None:
    host, data = HostStorage(np.int8(100), np.int8(100)), memoryview(bytes(100))
    host.write(99, 1, b"key", data, xxhash.xxh3_128_digest(data))


class Broken(HostStorage):
    """Memory that fails after some calls."""

    calls = 0

    def write(self, *args: Any) -> None:
        self.fail()
        super().write(*args)

    def read(self, *args: Any) -> bytes | None:
        self.fail()
        return super().read(*args)

    def fail(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            raise OSError("the disk failed")


def test_a_storage_that_fails_costs_hits_only() -> None:
    size = Device().blocks.size
    storage = Broken(16, size)
    device = Device(storages=[storage])
    storage.calls = 3
    device.fill(PROMPT)
    device.settle()
    assert in_tier(device.manager) == (4,)
    device.lose()
    storage.calls = 2
    assert device.loaded(PROMPT) == 2
    assert in_tier(device.manager) == (4,)  # it is not refused
    assert str(device.mover.last_error) == "the disk failed"
    [stats] = device.manager.tier_stats()
    assert (stats.refused, stats.failed) == (0, 3)
    device.mover.close()


class Odd(Broken):
    """Memory that raises something else."""

    def fail(self) -> None:
        try:
            super().fail()
        except OSError as error:
            raise RuntimeError("a bug of the storage") from error


def test_a_storage_with_a_bug_keeps_no_block() -> None:
    storage = Odd(16, Device().blocks.size)
    device = Device(storages=[storage])
    storage.calls = 3
    device.fill(PROMPT)
    device.mover.poll()
    with pytest.raises(RuntimeError, match="a bug of the storage"):
        device.mover.drain()
    device.settle()
    assert device.manager._tickets.open == {}
    device.fill([7, 7, 7])
    device.settle()
    device.lose()
    assert device.loaded([7, 7, 7]) == 2
    storage.calls = 1
    device.lose()
    handle = device.manager.admit([7, 7, 7], load=True)
    device.mover.poll()
    with pytest.raises(RuntimeError):
        device.mover.drain()
    assert not device.manager.is_loading(handle)
    device.manager.free(handle)
    assert device.manager.num_available == BLOCKS
    device.mover.close()


def test_a_device_that_cannot_be_read_keeps_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    for first in (1, 2):
        device.fill([first] * 3)
    with monkeypatch.context() as patch:
        patch.setattr(device.blocks, "read", lambda blocks, into: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            device.mover.poll()
    assert device.manager._tickets.open == {}
    device.fill([3] * 3)
    device.settle()
    assert in_tier(device.manager, [3] * 3) == (2,)
    device.mover.close()


@pytest.mark.parametrize("damaged", range(4))
def test_a_load_that_threads_share_counts_up_to_the_first_damaged_block(
    damaged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blockmgr.tiers.movers.MOST_RUN", 1)
    device = Device()
    device.fill(PROMPT)
    device.settle()
    device.lose()
    host: Any = device.storages[0]
    host._memory[damaged * device.blocks.size] ^= 1
    device.manager.admit(PROMPT, load=True)
    device.mover.poll()
    assert [len(job.parts) for job in device.mover._running] == [2]
    device.mover.drain()
    device.manager.free(device.manager.handles()[0])
    assert device.loaded(PROMPT) == 2 * damaged
    assert device.manager.tier_stats()[0].refused == 1
    device.mover.close()


@pytest.mark.parametrize("is_staged", [False, True])
@pytest.mark.parametrize("layout", [None, "HND"])
def test_blocks_are_copied_as_one_whether_they_are_neighbours_or_not(
    layout: str | None, is_staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(layout=layout)
    if is_staged:  # as on a GPU
        stream = SimpleNamespace(synchronize=lambda: None)
        monkeypatch.setattr("torch.cuda.current_stream", lambda _: stream)
        device.blocks.run = 2
        device.blocks._staging = device.cache.host_counterpart(2)
        device.blocks._parts = _parts_of(device.blocks._staging)
    device.fill(PROMPT)
    device.fill([50, 51, 52, 53])
    blocks, size = [3, 4, 5, 1, 0, 7, 6], device.blocks.size
    together = buffer_of(size * len(blocks))
    device.blocks.read(blocks, together)
    for i, block in enumerate(blocks):
        alone = buffer_of(size)
        device.blocks.read([block], alone)
        assert bytes(together[i * size : (i + 1) * size]) == bytes(alone)
    device.cache.zero(list(range(BLOCKS)))
    device.blocks.write(blocks, together)
    again = buffer_of(size * len(blocks))
    device.blocks.read(blocks, again)
    assert bytes(again) == bytes(together)
    assert any(together)
    device.mover.close()


def test_a_store_goes_through_a_slab_in_the_order_of_the_file(tmp_path: Path) -> None:
    size = Device().blocks.size
    slab = Slab(tmp_path / "kv.slab", {}, num_blocks=4, block_bytes=size, key_bytes=key_bytes(2))
    device = Device(TierConfig(slab=slab, ahead=99), storages=[SlabStorage(slab)])
    written, write = [], slab.write_blocks
    device.storages[0].write_run = lambda blocks, serials, keys, data, digests: (  # type: ignore[method-assign]
        written.append(blocks) or write(blocks, keys, data, serials=serials, digests=digests)
    )
    for first in (0, 20, 40):  # each evicts the one before, its end first
        device.fill([*range(first, first + 9)])
        device.settle()
        device.lose()
    assert written == [[0, 1, 2, 3]] * 3
    device.mover.close()
    slab.close()


def test_a_store_counts_once_it_was_read_even_if_its_source_is_evicted() -> None:
    device = Device()
    device.fill(PROMPT)
    device.mover.poll()
    device.lose()
    device.mover.drain()
    assert in_tier(device.manager) == (8,)
    assert device.loaded(PROMPT) == 8
    device.mover.close()


class Held(HostStorage):
    """Memory whose reads wait until they may go on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.may_read = threading.Event()
        self.is_read = threading.Event()

    def read(self, *args: Any) -> bytes | None:
        self.is_read.set()
        assert self.may_read.wait(60)
        return super().read(*args)


def test_loads_that_take_too_long_are_late() -> None:
    storage = Held(16, Device().blocks.size)
    device = Device(storages=[storage])
    device.fill(PROMPT)
    device.settle()
    device.lose()
    mover = Mover(device.manager, device.blocks, device.storages, load_timeout=1e-9)
    handle = device.manager.admit(PROMPT, load=True)
    mover.poll()
    assert mover.late() == [handle]
    device.manager.preempt(handle)
    storage.may_read.set()
    mover.close()
    assert device.manager.num_available == BLOCKS
    device.mover.close()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"threads": 0}, ValueError, "threads must be in"),
        ({"load_timeout": 0}, ValueError, "load_timeout must be above 0"),
        ({"storages": []}, ValueError, "storages must be one for each of 1 tiers"),
        ({"storages": None}, TypeError, "storages must be a list or tuple"),
        ({"storages": [None]}, TypeError, "storages must have Storage or SharedStorage"),
        ({"manager": BlockManager(BLOCKS, 2)}, TypeError, "manager must be a TieredManager"),
        ({"blocks": None}, TypeError, "blocks must be a BlockBytes"),
    ],
    ids=str,
)
def test_wrong_options_are_named(options: Any, error: type[Exception], words: str) -> None:
    device = Device()
    known = {"manager": device.manager, "blocks": device.blocks, "storages": device.storages}
    with pytest.raises(error, match=words):
        Mover(**{**known, **options})
    with pytest.raises(TypeError, match="cache must be a PagedKVCache"):
        BlockBytes(device.blocks)  # type: ignore[arg-type]
    device.mover.close()


def test_two_tiers_in_one_storage_are_refused() -> None:
    tiers = TierConfig(num_blocks=16), TierConfig(num_blocks=16)
    storage = HostStorage(16, Device().blocks.size)
    with pytest.raises(ValueError, match="storages must be another one for each tier"):
        Device(*tiers, storages=[storage, storage])


def test_blocks_of_another_number_of_tokens_are_refused() -> None:
    device = Device()
    manager = TieredManager(BLOCKS, 4, tiers=[TierConfig(num_blocks=16)])
    with pytest.raises(ValueError, match="blocks must have 4 tokens, got 2"):
        Mover(manager, device.blocks, device.storages)


def test_a_cache_or_storage_of_another_size_is_refused(tmp_path: Path) -> None:
    device = Device()
    size = device.blocks.size
    slabs = [slab_at(tmp_path / name, size) for name in "ab"]
    host, disk = TierConfig(num_blocks=16), TierConfig(slab=slabs[0])
    larger = TieredManager(BLOCKS + 1, 2, tiers=[host])
    with pytest.raises(ValueError, match="blocks must be at least 9, got 8"):
        Mover(larger, device.blocks, device.storages)
    for tier, storage, words in (
        (host, HostStorage(15, size), "the 16 blocks of their tier, got 15"),
        (host, HostStorage(16, size + 1), f"blocks of {size} bytes, got {size + 1}"),
        (host, SlabStorage(slabs[0]), "the slab of their tier"),
        (disk, SlabStorage(slabs[1]), "the slab of their tier"),
        (disk, HostStorage(32, size), "the slab of their tier"),
    ):
        for slab in slabs:
            slab.is_used = False
        with pytest.raises(ValueError, match=words):
            Device(tier, storages=[storage])
    for slab in slabs:
        slab.close()


def test_a_slab_serves_one_manager(tmp_path: Path) -> None:
    """Each would write over the blocks of the other."""
    slab = slab_at(tmp_path / "kv.slab", 8)
    with pytest.raises(ValueError, match="max_loading"):
        TieredManager(BLOCKS, 2, tiers=[TierConfig(slab=slab)], max_loading=-1)
    TieredManager(BLOCKS, 2, tiers=[TierConfig(slab=slab)])
    with pytest.raises(ValueError, match="slabs that no manager has had"):
        TieredManager(BLOCKS, 2, tiers=[TierConfig(slab=slab)])
    slab.close()


def test_memory_serves_one_manager() -> None:
    """Its records tell the blocks of one from those of the other by serials that both have."""
    device = Device()
    with pytest.raises(ValueError, match="threads"):
        Mover(
            device.manager,
            device.blocks,
            [unused := HostStorage(16, device.blocks.size)],
            threads=0,
        )
    with pytest.raises(ValueError, match="storages must be of no other manager"):
        Device(storages=device.storages)
    device.mover.close()
    Mover(device.manager, device.blocks, device.storages).close()
    Device(storages=[unused]).mover.close()


def test_a_slab_storage_needs_a_slab() -> None:
    with pytest.raises(TypeError, match="slab must be a Slab, got str"):
        SlabStorage("kv.slab")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_load_that_begins_in_part_keeps_its_blocks_until_the_part_ends(
    is_queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Held(16, Device().blocks.size)
    device = Device(storages=[storage])
    device.blocks.run = 1
    device.fill(PROMPT)
    device.settle()
    device.lose()
    executor, submit, calls = device.mover._executor, device.mover._executor.submit, []

    def submit_one(call: Any) -> Any:
        calls.append(call)
        if len(calls) > 1:
            if is_queued:  # as when no thread can start, and another one takes it
                submit(call)
                assert storage.is_read.wait(60)
            raise RuntimeError("no thread can start")
        part = submit(call)
        if is_queued:  # only the part whose begin failed is held
            storage.may_read.set()
            part.result()
            storage.may_read.clear()
            storage.is_read.clear()
        return part

    monkeypatch.setattr(executor, "submit", submit_one)
    handle = device.manager.admit(PROMPT, load=True)
    with pytest.raises(RuntimeError, match="no thread can start"):
        device.mover.poll()
    device.manager.free(handle)
    device.mover.poll()
    assert device.manager.num_available == BLOCKS - 4
    storage.may_read.set()
    device.mover.close()
    assert device.manager.num_available == BLOCKS


def test_a_closed_mover_begins_nothing() -> None:
    device = Device()
    device.fill(PROMPT)
    device.mover.close()
    device.mover.close()
    with pytest.raises(ValueError, match="the mover is closed"):
        device.mover.poll()
    assert len(device.manager.take_stores()) == 1


def test_what_is_no_checksum_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    device.fill(PROMPT)
    device.settle()
    device.lose()
    monkeypatch.setattr(device.storages[0], "read", lambda *_: False)
    assert device.loaded(PROMPT) == 0
    device.mover.close()


def test_close_reports_all_and_ends_the_threads_although_a_storage_has_a_bug() -> None:
    device, prompts = Device(), ([1, 2, 3], [4, 5, 6])
    for prompt in prompts:
        device.fill(prompt)
    device.settle()
    device.lose()
    device.storages[0].read_run = lambda *_: 1 // 0  # type: ignore[method-assign, assignment]
    waiting = [device.manager.admit(prompt, load=True) for prompt in prompts]
    device.mover.poll()
    with pytest.raises(ZeroDivisionError):
        device.mover.close()
    assert not any(map(device.manager.is_loading, waiting))
    with pytest.raises(RuntimeError, match="after shutdown"):
        device.mover._executor.submit(int)


class Hybrid(Device):
    """The same of a model with layers of full attention, of a window, and with a state."""

    def __init__(self, storages: Any = None, *tiers: TierConfig) -> None:
        kv = ModelShape(num_layers=1, num_kv_heads=2, head_dim=4, dtype=torch.float32)
        state = StateTensor((3, 2), torch.float32)
        shape = HybridShape(
            [
                LayerShape(kind=FullAttention(), kv=kv),
                LayerShape(kind=SlidingWindow(5), kv=kv),
                LayerShape(kind=RecurrentState(), states=(state,)),
            ]
        )
        self.cache = GroupedKVCache(40, 2, shape)  # type: ignore[assignment]
        self.blocks = BlockBytes(self.cache)
        self.groups = shape.groups
        known = list(tiers) or [TierConfig(num_blocks=32, ahead=99)]
        self.manager = TieredManager(40, 2, tiers=known, groups=self.groups, null_block=True)
        self.storages = storages or [HostStorage(32, self.blocks.size)]
        self.mover = Mover(self.manager, self.blocks, self.storages)

    def fill(self, tokens: list[int]) -> None:
        """Computes a prompt, with a stop where its state is kept."""
        manager, handle, start = self.manager, self.manager.admit(tokens), 0
        row = manager.row(handle)
        for stop in (*manager.stops(handle), len(tokens)):
            plan = manager.take_copies()
            self.cache.copy(plan)
            keys = torch.tensor(tokens[start:stop]).view(-1, 1, 1).expand(-1, 2, 4).float()
            for layer in range(2):
                slots = manager.slot_mapping(handle, start, stop, group=layer)
                self.cache.write(layer, keys + layer, -keys, slots)
            block = int(manager.group_table(2)[row, 0])
            self.cache.states(2)[0][block] = float(sum(tokens[:stop]))  # type: ignore[attr-defined]
            manager.copies_applied(plan.ticket)
            manager.commit(handle, stop)
            start = stop
        manager.free(handle)

    def lose(self) -> None:
        self.manager.reset_prefix_cache(tiers=False)
        self.cache.zero(list(range(40)))

    def loaded(self, tokens: list[int]) -> int:
        manager, handle = self.manager, self.manager.admit(tokens, load=True)
        while manager.is_loading(handle):
            self.mover.poll()
            self.mover.wait()
        plan = manager.take_copies()  # the state that came is cached, and a copy goes on
        self.cache.copy(plan)
        manager.copies_applied(plan.ticket)
        view, row = manager.sequence(handle), manager.row(handle)
        count = 0 if view.is_preempted else view.num_computed_tokens
        for layer, first in enumerate((0, max(0, count - 4)) if count else ()):
            table = manager.group_table(layer)[row].copy()
            keys, values = self.cache.gather(layer, table, count)
            assert values is not None
            assert keys[first:, 1, 3].tolist() == [token + layer for token in tokens[first:count]]
            assert values[first:, 0, 0].tolist() == [-token for token in tokens[first:count]]
        if count:
            block = int(manager.group_table(2)[row, 0])
            state = self.cache.states(2)[0][block]  # type: ignore[attr-defined]
            assert state.unique().tolist() == [sum(tokens[:count])]
        manager.free(handle)
        return count


def test_windows_and_states_come_back_as_they_left(tmp_path: Path) -> None:
    device = Hybrid()
    device.fill(PROMPT)
    device.settle()
    device.lose()
    assert device.loaded(PROMPT) == 8
    device.mover.close()
    size = device.blocks.size
    for restored, tokens in ((0, 0), (7, 8)):
        slab = slab_at(tmp_path / "kv.slab", size)
        device = Hybrid([SlabStorage(slab)], TierConfig(slab=slab, ahead=99))
        assert device.manager.tier_stats()[0].restored == restored
        assert device.loaded(PROMPT) == tokens
        if not restored:
            device.fill(PROMPT)
            device.settle()
        device.mover.close()
        slab.close()


@pytest.mark.parametrize("nth", range(7))
def test_a_load_with_one_flipped_byte_brings_nothing(nth: int) -> None:
    device = Hybrid()
    device.fill(PROMPT)
    device.settle()
    device.lose()
    [storage] = device.storages
    assert isinstance(storage, HostStorage)
    storage._at(nth)[5] ^= 1
    assert device.loaded(PROMPT) == 0
    assert device.manager.tier_stats()[0].refused == 1
    device.fill(PROMPT)
    device.settle()
    device.lose()
    assert device.loaded(PROMPT) == 8
    device.mover.close()
