"""``PagedKVCache`` on a device: writing, gathering, swapping, and a manager's own plans."""

from __future__ import annotations

import numpy as np
import pytest

from blockmgr import BlockManager
from tests.gpu.world import (
    ModelShape,
    PagedKVCache,
    Place,
    delay,
    synchronisation_is_an_error,
    torch,
)

PRESETS = (
    "NHD",
    "HND",
    "KV_NHD",
    "KV_HND",
    "BLOCK_KV_NHD",
    "BLOCK_KV_HND",
    "FUSED_NHD",
    "FUSED_HND",
)
NUM_BLOCKS, BLOCK_SIZE, HEADS, DIM, LAYERS = 12, 4, 2, 64, 2


def make_cache(
    place: Place, layout: str = "NHD", dtype: torch.dtype = torch.bfloat16
) -> PagedKVCache:
    shape = ModelShape(num_layers=LAYERS, num_kv_heads=HEADS, head_dim=DIM, dtype=dtype)
    return PagedKVCache(
        NUM_BLOCKS, BLOCK_SIZE, shape, layout=layout, device=place.device, backend=place.backend
    )


def tokens(count: int, seed: int, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of that many tokens."""
    generator = torch.Generator().manual_seed(seed)
    kv = torch.randn(2, count, HEADS, DIM, generator=generator).to(torch.bfloat16)
    return kv[0].to(place.device), kv[1].to(place.device)


@pytest.mark.parametrize("layout", PRESETS)
@pytest.mark.parametrize("where", ["host", "device"])
def test_what_was_written_to_slots_is_gathered_from_blocks(
    layout: str, where: str, place: Place
) -> None:
    cache = make_cache(place, layout)
    table, length = [7, 0, 11], 10
    slots = np.array([b * BLOCK_SIZE + i for b in table for i in range(BLOCK_SIZE)], np.int64)
    slots = slots[:length]
    for layer in range(LAYERS):
        k, v = tokens(length, layer, place)
        mapping = slots if where == "host" else torch.from_numpy(slots).to(place.device)
        cache.write(layer, k, v, mapping)
    for layer in range(LAYERS):
        k, v = tokens(length, layer, place)
        block_table = np.array(table, np.int32)
        got_k, got_v = cache.gather(layer, block_table, length)
        assert torch.equal(got_k, k)
        assert torch.equal(got_v, v)
        assert torch.equal(cache.keys(layer)[11, :2], k[8:])
        assert torch.equal(cache.values(layer)[11, :2], v[8:])
        untouched = [block for block in range(NUM_BLOCKS) if block not in table]
        assert not cache.keys(layer)[untouched].count_nonzero()
        assert not cache.values(layer)[untouched].count_nonzero()


def test_padded_tokens_are_written_nowhere(place: Place) -> None:
    cache = make_cache(place)
    k, v = tokens(4, 0, place)
    mapping = torch.tensor([-1, 5, -1, 6], device=place.device)
    cache.write(0, k, v, mapping)
    assert torch.equal(cache.keys(0)[1, 1:3], k[[1, 3]])
    assert int(cache.keys(0).count_nonzero()) == int(k[[1, 3]].count_nonzero())
    assert int(cache.values(0).count_nonzero()) == int(v[[1, 3]].count_nonzero())


@pytest.mark.parametrize("layout", ["NHD", "HND", "KV_NHD", "FUSED_HND"])
def test_blocks_come_back_from_the_host_as_they_went(layout: str, place: Place) -> None:
    cache = make_cache(place, layout)
    host = cache.host_counterpart(6)
    for layer in range(LAYERS):
        k, v = tokens(NUM_BLOCKS * BLOCK_SIZE, layer, place)
        cache.write(layer, k, v, np.arange(NUM_BLOCKS * BLOCK_SIZE))
    before = [(cache.keys(i).clone(), cache.values(i).clone()) for i in range(LAYERS)]

    cache.swap_out(host, device_blocks=[3, 8, 1], host_blocks=[0, 5, 2])
    cache.zero([3, 8, 1])
    cache.swap_in(host, host_blocks=[2, 0, 5], device_blocks=[1, 3, 8])
    place.synchronize()

    for layer, (keys, values) in enumerate(before):
        assert torch.equal(cache.keys(layer), keys)
        assert torch.equal(cache.values(layer), values)


@pytest.mark.gpu
def test_a_swap_waits_neither_for_the_device_nor_for_the_host(cuda: Place) -> None:
    cache = make_cache(cuda)
    host = cache.host_counterpart(4)
    assert all(tensor.is_pinned() for tensor in _tensors(host.tensors))
    k, v = tokens(BLOCK_SIZE, 0, cuda)
    torch.cuda.synchronize()
    delay()
    busy = torch.cuda.Event()
    busy.record()
    with synchronisation_is_an_error():
        cache.write(0, k, v, np.arange(2 * BLOCK_SIZE, 3 * BLOCK_SIZE))
        cache.swap_out(host, device_blocks=[2], host_blocks=[1])
    assert not busy.query()
    torch.cuda.synchronize()
    assert torch.equal(host.keys(0)[1], k.cpu())
    assert torch.equal(host.values(0)[1], v.cpu())


def _tensors(nested: object) -> list[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        return [nested]
    return [tensor for part in nested for tensor in _tensors(part)]  # type: ignore[attr-defined]


def test_forks_of_a_manager_read_their_own_history(place: Place) -> None:
    """The whole loop: plan, zero, copy, write, gather; K of a token is its position and value."""
    manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE)
    cache = make_cache(place)

    def forward(handle: int, start: int) -> None:
        sequence = manager.sequence(handle)
        values = torch.tensor(sequence.tokens[start:].tolist(), dtype=torch.bfloat16)
        k = values.view(-1, 1, 1).expand(-1, HEADS, DIM).contiguous().to(place.device)
        for layer in range(LAYERS):
            cache.write(layer, k, -k, sequence.slot_mapping(start, sequence.num_tokens))

    parent = manager.admit([1, 2, 3, 4, 5, 6])
    plan = manager.take_copies()
    cache.copy(plan)
    forward(parent, 0)
    manager.copies_applied(plan.ticket)
    manager.commit(parent, 6)
    handles = [parent, *manager.fork(parent, 2)]
    for step in range(5):
        starts = [manager.sequence(handle).num_tokens for handle in handles]
        manager.decode(handles, [10 * (step + 1) + i for i in range(len(handles))])
        plan = manager.take_copies()
        cache.copy(plan)
        manager.copies_applied(plan.ticket)
        for handle, start in zip(handles, starts, strict=True):
            forward(handle, start)
    for handle in handles:
        sequence = manager.sequence(handle)
        for layer in range(LAYERS):
            k, v = cache.gather(layer, sequence.block_ids, sequence.num_tokens)
            assert k[:, 0, 0].tolist() == sequence.tokens.tolist()
            assert torch.equal(v, -k)
