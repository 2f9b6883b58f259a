"""The memory of a hybrid model: pages of K/V and of states in one pool, copied by one plan."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from blockmgr import (
    BlockManager,
    ChunkedAttention,
    CopyError,
    CopyPlan,
    FullAttention,
    PageSizeError,
    RecurrentState,
    SlidingWindow,
    TicketError,
)
from blockmgr.kv import GroupedKVCache, HybridShape, LayerShape, ModelShape
from tests.kv.grouped_memory import KV, STATES, TensorMemory, layer_of
from tests.stress.memory import WrongReadError
from tests.stress.perform import finish_up
from tests.stress.run import Plan, Run

FULL, WINDOW, STATE = FullAttention(), SlidingWindow(6), RecurrentState()
SETS = [
    ("full", "window 5", "window 1"),
    ("full", "chunk 6", "window 7"),
    ("full", "window 6", "state"),
    ("full", "window 5", "ring 4 restart=2", "ring 3"),
]


SIZED = [
    ("full block_size=2", "window 5"),
    ("full", "window 6 block_size=1", "state"),
    ("full block_size=1", "chunk 6", "window 7 block_size=2"),
]
"""In a manager with blocks of four tokens."""


def mixed(num_blocks: int = 16, block_size: int = 4, **options: Any) -> GroupedKVCache:
    """Groups: full attention (layers 0 and 3), window (1), states (2 and 4)."""
    layers = [layer_of(kind) for kind in (FULL, WINDOW, STATE, FULL, STATE)]
    return GroupedKVCache(num_blocks, block_size, HybridShape(layers, group_size=2), **options)


def plan(*copies: tuple[int, int, int, int], groups: bool = True) -> CopyPlan:
    columns = [np.array(column, np.int32) for column in zip(*copies, strict=True)]
    return CopyPlan(1, *columns[:3], columns[3] if groups else None)


def run(seed: int, layout: tuple[str, ...], backend: str, ops: int, **options: Any) -> TensorMemory:
    options["layout"] = list(layout)
    if "ring 3" in layout:
        options["block_size"] = 4  # which holds a ring
    one = Run(Plan(ops, detectors="K", layout=layout, options=options), "groups", seed)
    config = one.world.manager.config
    memory = TensorMemory(config.num_blocks, config.block_size, layout, backend)
    one.world.device = memory
    for _ in range(ops):
        one.one()
    finish_up(one.world)
    return memory


@pytest.mark.parametrize("layout", SETS, ids=", ".join)
def test_engines_read_what_was_computed_from_their_own_prefix(
    layout: tuple[str, ...], backend: str
) -> None:
    """Covers common prefixes, forks, drafts, copies of tails and states, reallocated blocks."""
    seeds, ops = (6, 120) if backend == "torch" else (4, 100)
    memories = [run(seed, layout, backend, ops) for seed in range(seeds)]
    assert sum(memory.num_reads for memory in memories) > 50 * seeds
    if "state" in layout:
        assert sum(memory.num_state_copies for memory in memories) > seeds
    if "ring 3" in layout:
        assert sum(memory.num_emptied for memory in memories) > 4 * seeds


def test_a_ring_that_is_not_emptied_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupedKVCache, "zero", lambda self, blocks: None)
    with pytest.raises(WrongReadError, match="a ring in layer 4 that is not empty"):
        run(0, SETS[3], "torch", 120)


@pytest.mark.parametrize("layout", SIZED, ids=", ".join)
def test_nor_does_a_block_size_by_group_change_what_they_read(
    layout: tuple[str, ...], backend: str
) -> None:
    seeds, ops = (6, 120) if backend == "torch" else (4, 100)
    memories = [run(seed, layout, backend, ops, block_size=4) for seed in range(seeds)]
    assert sum(memory.num_reads for memory in memories) > 50 * seeds
    assert len({len(keys) for keys in map(memories[0].cache.keys, (0, 2))}) == 1
    assert memories[0].cache.keys(0).shape[1] != memories[0].cache.keys(2).shape[1]


def test_a_state_that_is_not_copied_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above notices a copy that leaves out the states."""
    copy = GroupedKVCache.copy

    def without_states(self: GroupedKVCache, taken: CopyPlan) -> None:
        assert taken.groups is not None
        kept = taken.groups != 2
        columns = (taken.sources, taken.destinations, taken.num_tokens, taken.groups)
        copy(self, CopyPlan(taken.ticket, *(column[kept] for column in columns)))

    monkeypatch.setattr(GroupedKVCache, "copy", without_states)

    def is_noticed(seed: int) -> bool:
        try:
            run(seed, SETS[2], "torch", 120)
        except WrongReadError as error:
            return "a wrong state" in str(error)
        return False

    assert sum(map(is_noticed, range(8))) > 1


def test_one_plan_copies_k_v_and_states_in_all_tensors(backend: str) -> None:
    cache = mixed(backend=backend)
    ones = torch.ones(4, 2, 4, dtype=torch.int32)
    for layer in (0, 3, 1):
        block = 2 if layer == 1 else 1
        cache.write(layer, (1 + layer) * ones, -ones, np.arange(4) + 4 * block)
    for layer in (2, 4):
        for tensor in cache.states(layer):
            tensor[3] = 7 + layer
    cache.copy(plan((1, 4, 3, 0), (2, 5, 4, 1), (3, 6, 4, 2)))
    for layer in (0, 3):
        keys, values = cache.gather(layer, [4], 4)
        assert keys[:, 0, 0].tolist() == [1 + layer] * 3 + [0]
        assert values is not None
        assert values[:, 1, 3].tolist() == [-1, -1, -1, 0]
    assert cache.gather(1, [5], 4)[0][:, 0, 0].tolist() == [2] * 4
    for layer in (2, 4):
        for tensor in cache.states(layer):
            assert (tensor[6] == 7 + layer).all()
            assert not tensor[[1, 4, 5]].eq(7 + layer).any()


def test_a_state_lies_inside_its_page_and_leaves_the_others_alone() -> None:
    cache = mixed()
    cache.zero(range(16))
    for layer in (2, 4):
        conv, state = cache.states(layer)
        assert (conv.shape, conv.dtype) == ((16, 3), torch.int16)
        assert (state.shape, state.dtype) == ((16, 2, 2), torch.int64)
        conv[5], state[5] = -1, -1
    for tensor in cache.group_tensors(0):
        pages = tensor.view(torch.uint8).view(16, -1)
        assert pages[5].sum() == 255 * (6 + 32)
        assert not pages[[*range(5), *range(6, 16)]].any()


def test_groups_share_tensors_layer_by_layer() -> None:
    cache = mixed()
    shape = cache.shape
    assert shape.groups == (FULL, WINDOW, STATE)
    assert shape.members == ((0, 3), (1,), (2, 4))
    assert [shape.place(layer) for layer in range(5)] == [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1)]
    assert cache.keys(0).data_ptr() == cache.keys(1).data_ptr() != cache.keys(3).data_ptr()
    assert cache.num_bytes == 16 * 2 * 4 * KV.bytes_per_token
    assert len(cache.group_tensors(1)) == 1
    assert [len(tensors) for tensors in cache.group_tensors(2)] == [2, 2]


def test_a_manager_made_of_the_shape_plans_what_the_cache_copies() -> None:
    cache = mixed(32)
    manager = BlockManager(32, 4, null_block=True, groups=cache.shape.groups, min_partial_tokens=1)
    handle = manager.admit(range(9))
    for computed in (8, 9):
        taken = manager.take_copies()
        cache.copy(taken)
        manager.copies_applied(taken.ticket)
        for tensor in cache.states(2):
            tensor[manager.group_table(2)[manager.row(handle), 0]] = computed
        manager.commit(handle, computed)
    again = manager.admit([*range(8), 50, 51])
    taken = manager.take_copies()
    cache.copy(taken)
    block = manager.group_table(2)[manager.row(again), 0]
    assert manager.sequence(again).num_cached_tokens == 8
    assert all((tensor[block] == 8).all() for tensor in cache.states(2))
    with pytest.raises(TicketError):
        cache.copy(taken)


def test_blocks_of_any_group_are_swapped_out_and_in() -> None:
    cache = mixed()
    host = cache.host_counterpart(3)
    for tensor in cache.states(4):
        tensor[7] = 9
    cache.write(0, torch.full((1, 2, 4), 5, dtype=torch.int32), torch.zeros(1, 2, 4).int(), [8])
    cache.swap_out(host, [7, 2], [1, 2])
    cache.zero([7, 2])
    cache.swap_in(host, [1, 2], [10, 11])
    assert all((tensor[10] == 9).all() for tensor in cache.states(4))
    assert cache.gather(0, [11], 1)[0].tolist() == [[[5] * 4] * 2]


@pytest.mark.parametrize("layout", ["NHD", "HND", "KV_HND", "FUSED_NHD", "BLOCK_KV_HND"])
def test_windows_and_chunks_take_any_layout(layout: str) -> None:
    layers = [layer_of(kind) for kind in (FULL, SlidingWindow(6), ChunkedAttention(8))]
    cache = GroupedKVCache(8, 4, HybridShape(layers), layout=layout)
    k = torch.arange(24, dtype=torch.int32).view(3, 2, 4)
    for layer in range(3):
        cache.write(layer, k + layer, -k, np.arange(3) + 4 * (layer + 1))
    cache.copy(plan((1, 5, 2, 0), (2, 6, 2, 1), (3, 7, 2, 2)))
    for layer in range(3):
        assert torch.equal(cache.gather(layer, [layer + 5], 2)[0], k[:2] + layer)


def test_a_latent_page_holds_a_state() -> None:
    kv = ModelShape(num_layers=1, num_kv_heads=1, head_dim=24, dtype=torch.int32, latent_dim=24)
    layers = [LayerShape(kind=FULL, kv=kv), LayerShape(kind=STATE, states=STATES)]
    cache = GroupedKVCache(4, 4, HybridShape(layers))
    assert cache.layout == "MLA"
    cache.states(1)[1][2] = 3
    cache.copy(plan((2, 3, 4, 1)))
    assert (cache.states(1)[1][3] == 3).all()


def uneven(latent: bool = False, **options: Any) -> GroupedKVCache:
    """Full attention with blocks of two tokens, a window with four, a state; in nodes of four."""
    wide = {"num_kv_heads": 1, "head_dim": 16, "latent_dim": 48 if latent else None}
    slim = {"num_kv_heads": 2, "head_dim": 4, "latent_dim": 24 if latent else None}
    kvs = [ModelShape(num_layers=1, dtype=torch.int32, **each) for each in (wide, slim)]  # type: ignore[arg-type]
    layers = [
        LayerShape(kind=FullAttention(2), kv=kvs[0]),
        LayerShape(kind=SlidingWindow(6), kv=kvs[1]),
        LayerShape(kind=STATE, states=STATES),
    ]
    return GroupedKVCache(8, 4, HybridShape(layers), **options)


@pytest.mark.parametrize("latent", [False, True])
def test_first_tokens_of_a_block_are_copied_in_the_size_of_its_group(
    latent: bool, backend: str
) -> None:
    cache = uneven(latent, backend=backend)
    for layer, size in ((0, 2), (1, 4)):
        token = cache.keys(layer).shape[2:]
        k = torch.arange(1, 9 * size + 1, dtype=torch.int32)[: 8 * size, None, None]
        k = k.expand(-1, *token)
        cache.write(layer, k, None if latent else -k, range(8 * size))
        if layer == 0:
            cache.copy(plan((1, 4, 1, 0), (2, 5, 2, 0)))
            found = cache.gather(0, [4, 5], 4)
            assert found[0][:, 0, 0].tolist() == [3, 10, 5, 6]
        else:
            cache.copy(plan((1, 4, 3, 1), (2, 6, 4, 1)))
            found = cache.gather(1, [4, 6], 8)
            assert found[0][:, -1, -1].tolist() == [5, 6, 7, 20, 9, 10, 11, 12]
        assert latent == (found[1] is None)
        assert found[1] is None or torch.equal(found[1], -found[0])
    keys, values = cache.gather_batch(1, [[4, 6]], [7])
    assert keys[0, :, 0, 0].tolist() == [5, 6, 7, 20, 9, 10, 11]
    assert latent == (values is None) == (cache.values(1) is None)


def test_caches_with_block_sizes_by_group_refuse_what_is_not_theirs() -> None:
    cache = uneven()
    assert (cache.block_size, cache.layout) == (4, "BLOCK_KV_NHD")
    assert cache.num_bytes == 8 * cache.shape.bytes_per_block(4)
    for pair, message in (
        ((1, 2, 3, 0), r"num_tokens must be in \[1, 2\], got 3"),
        ((1, 2, 5, 1), r"num_tokens must be in \[1, 4\], got 5"),
        ((1, 2, 2, 2), "a state is copied whole"),
    ):
        with pytest.raises(CopyError, match=message):
            cache.copy(plan(pair))
    buffer = cache.blocks.pair_buffer(4)
    buffer.fill(plan((1, 2, 1, 0), (3, 4, 4, 2)))
    page = cache.blocks.block_size
    assert buffer.pairs[:2].tolist() == [[1, 2, page // 2], [3, 4, page]]
    token = torch.zeros(1, 1, 16, dtype=torch.int32)
    with pytest.raises(ValueError, match="slot_mapping was made for"):
        cache.write(0, token, token, cache.slots([3], group=1))
    cache.write(0, token, token, cache.slots([15], group=0))
    with pytest.raises(ValueError, match=r"must be in \[-1, 15\], got 16"):
        cache.slots([16])
    with pytest.raises(ValueError, match="group must have attention, got 2"):
        cache.slots([1], group=2)
    with pytest.raises(ValueError, match="must be one of BLOCK_KV_NHD, whose pages groups"):
        uneven(layout="BLOCK_KV_HND")
    assert [len(each) for each in map(cache.group_tensors, range(3))] == [1, 1, 1]
    assert cache.group_tensors(1)[0].shape == (8, 2, 4, 2, 4)  # type: ignore[union-attr]
    host = cache.host_counterpart(2)
    cache.write(0, token + 5, token, [4])
    cache.swap_out(host, [2], [1])
    assert host.gather(0, [1], 1)[0].tolist() == [[[5] * 16]]


def test_bad_copies_name_the_group_and_copy_nothing(backend: str) -> None:
    cache = mixed(backend=backend)
    cache.write(0, torch.ones(1, 2, 4).int(), torch.ones(1, 2, 4).int(), [4])
    good = (1, 2, 1, 0)
    cases = [
        (plan(good, (3, 4, 4, 3)), r"pair 1: group must be in \[0, 2\], got 3"),
        (plan((3, 4, 4, -1), good), "pair 0: group must be"),
        (plan(good, (3, 4, 3, 2)), r"pair 1: a state is copied whole.*group 2, RecurrentState\(\)"),
        (plan(good, groups=False), "the plan has no groups, the cache 3"),
        (plan(good, (3, 16, 4, 2)), "pair 1"),
    ]
    for taken, message in cases:
        with pytest.raises(CopyError, match=message):
            cache.copy(taken)
    with pytest.raises(TypeError, match="CopyPlan"):
        cache.copy([good])  # type: ignore[arg-type]
    assert not cache.gather(0, [2], 1)[0].any()


def test_calls_for_layers_and_groups_that_are_not_there() -> None:
    cache = mixed()
    tokens = torch.ones(1, 2, 4).int()
    cases: list[tuple[Any, str]] = [
        (functools.partial(cache.group_tensors, 3), r"group must be in \[0, 2\], got 3"),
        (functools.partial(cache.states, 0), r"has attention: group 0, FullAttention\(\)"),
        (functools.partial(cache.keys, 2), r"no K/V: group 2, RecurrentState\(\)"),
        (functools.partial(cache.values, 4), "no K/V: group 2"),
        (functools.partial(cache.write, 2, tokens, tokens, [4]), "no K/V: group 2"),
        (functools.partial(cache.gather, 4, [1], 1), "no K/V: group 2"),
        (functools.partial(cache.keys, 5), r"layer must be in \[0, 4\], got 5"),
        (functools.partial(mixed, layout="NHD"), r"group 2, RecurrentState\(\); got 'NHD'"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="HybridShape"):
        GroupedKVCache(4, 4, KV)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="GroupedKVCache"):
        cache.swap_out(cache.blocks, [1], [1])  # type: ignore[arg-type]


def test_a_state_that_exceeds_its_page_is_refused_by_the_name_of_its_group() -> None:
    kv = ModelShape(num_layers=1, num_kv_heads=1, head_dim=1, dtype=torch.int32)
    attention = [LayerShape(kind=kind, kv=kv) for kind in (FULL, WINDOW)]
    shape = HybridShape([*attention, layer_of(STATE)])
    message = r"group 2, RecurrentState\(\): a state of 40 bytes exceeds a page of 32"
    with pytest.raises(PageSizeError, match=message) as caught:
        GroupedKVCache(4, 4, shape)
    assert (caught.value.group, caught.value.kind) == (2, "RecurrentState()")
    assert GroupedKVCache(4, shape.block_size_for(1), shape).block_size == 5
