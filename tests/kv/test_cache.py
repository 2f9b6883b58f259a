"""PagedKVCache: a slot returns what was written to it, in every layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockmgr import PAD_SLOT, BlockManager, CopyError, LayoutError
from blockmgr.kv import ModelShape, PagedKVCache
from blockmgr.kv.layout import PRESETS, axes_of
from tests.kv.conftest import interpreter

BLOCKS, SIZE, LAYERS, HEADS, DIM = 5, 4, 2, 2, 8
LAYOUTS = sorted(PRESETS)
DTYPES = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.float64]


def make(layout: str = "NHD", dtype: torch.dtype = torch.float16, **options: Any) -> PagedKVCache:
    shape = ModelShape(
        num_layers=LAYERS,
        num_kv_heads=HEADS,
        head_dim=options.pop("dim", DIM),
        dtype=dtype,
        latent_dim=24 if layout == "MLA" else None,
    )
    return PagedKVCache(options.pop("num_blocks", BLOCKS), SIZE, shape, layout=layout, **options)


def random_tokens(cache: PagedKVCache, *lengths: int, seed: int = 0) -> torch.Tensor:
    """Random bytes, so that a conversion of values would be noticed."""
    heads, dim = cache.keys(0).shape[2:]
    generator = torch.Generator().manual_seed(seed)
    width = dim * cache.shape.dtype.itemsize
    bytes_ = torch.randint(256, (*lengths, heads, width), dtype=torch.uint8, generator=generator)
    return bytes_.view(cache.shape.dtype)


def as_bytes(tensor: torch.Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.contiguous().view(torch.uint8).numpy().copy()


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and np.array_equal(as_bytes(one), as_bytes(other))


def content(cache: PagedKVCache) -> list[Any]:
    """Bytes of every slot of every layer, ``[num_slots, heads, dim bytes]``."""
    both = [(cache.keys(i), cache.values(i)) for i in range(cache.shape.num_layers)]
    return [None if t is None else as_bytes(t.flatten(0, 1)) for pair in both for t in pair]


def fill(cache: PagedKVCache, seed: int = 1) -> None:
    """Fills every slot of every layer with a different content."""
    slots = range(cache.num_blocks * cache.block_size)
    for layer in range(cache.shape.num_layers):
        k, v = (random_tokens(cache, len(slots), seed=seed + 2 * layer + i) for i in (0, 1))
        cache.write(layer, k, None if cache.values(layer) is None else v, slots)


def equal(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@contextmanager
def refused(cache: PagedKVCache, error: type[Exception], match: str) -> Iterator[Any]:
    """The call inside raises exactly this error and leaves every byte as it was."""
    before = content(cache)
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert type(caught.value) is error
    assert equal(content(cache), before)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_is_read_back(layout: str, backend: Any) -> None:
    """Compares with an array of slots: written slots hold the token, others are unchanged."""
    for dtype in DTYPES:
        cache = make(layout, dtype, backend=backend)
        fill(cache)
        expected = content(cache)
        slots = [7, 18, PAD_SLOT, 0, 3, PAD_SLOT, 19]
        k, v = random_tokens(cache, 7, seed=8), random_tokens(cache, 7, seed=9)
        cache.write(1, k, None if layout == "MLA" else v, slots)
        for tokens, array in ((k, expected[2]), (v, expected[3])):
            for token, slot in enumerate(slots):
                if slot != PAD_SLOT and array is not None:
                    array[slot] = as_bytes(tokens[token])
        assert equal(content(cache), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sequence_is_gathered_in_token_order(layout: str, backend: Any) -> None:
    cache = make(layout, torch.bfloat16, backend=backend)
    fill(cache)
    table = [3, 0, 4]
    for length in (0, 1, 4, 5, 11, 12):
        k, v = cache.gather(1, table, length)
        slots = [table[t // SIZE] * SIZE + t % SIZE for t in range(length)]
        assert same(k, cache.keys(1).flatten(0, 1)[slots])
        values = cache.values(1)
        assert same(v, None if values is None else values.flatten(0, 1)[slots])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_is_gathered_like_each_of_its_sequences(layout: str) -> None:
    cache = make(layout)
    fill(cache)
    tables = np.array([[3, 0, 4], [1, -1, -1], [2, 2, 99], [-1, -1, -1]])
    lengths = [10, 3, 8, 0]
    k, v = cache.gather_batch(0, tables, lengths)
    assert k.shape == (4, 10, *cache.keys(0).shape[2:])
    for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        expected = cache.gather(0, table, length)
        assert same(k[row, :length], expected[0])
        assert same(None if v is None else v[row, :length], expected[1])


def test_an_empty_batch_and_a_batch_of_nothing_are_gathered() -> None:
    cache = make()
    assert cache.gather_batch(0, np.zeros((0, 3), int), [])[0].shape == (0, 0, HEADS, DIM)
    assert cache.gather_batch(0, [[-1], [-1]], [0, 0])[0].shape == (2, 0, HEADS, DIM)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensors_have_the_axes_of_the_layout(layout: str) -> None:
    """A kernel that indexes by these axes finds the token where ``write`` put it."""
    cache = make(layout)
    fill(cache)
    axes = [axis for axis in axes_of(layout) if axis != "layer"]
    sizes = {"block": BLOCKS, "token": SIZE, "kv": 2, "head": HEADS, "dim": DIM, "latent": 24}
    for layer, tensors in enumerate(cache.tensors):
        for kv, view in enumerate((cache.keys(layer), cache.values(layer))):
            if view is None:
                continue
            tensor = tensors[kv] if isinstance(tensors, tuple) else tensors
            assert list(tensor.shape) == [sizes[axis] for axis in axes]
            at = {"block": 3, "token": 2, "head": 1, "kv": kv}
            index = tuple(at.get(axis, slice(None)) for axis in axes)
            head = 0 if layout == "MLA" else 1
            assert same(tensor[index], view[3, 2, head])
            assert tensor[index].data_ptr() == view[3, 2, head].data_ptr()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_of_the_memory_is_registered(layout: str) -> None:
    cache = make(layout)
    assert cache.num_bytes == BLOCKS * cache.blocks.bytes_per_block
    assert cache.blocks.bytes_per_block == cache.shape.bytes_per_block(SIZE)
    assert (cache.blocks.num_blocks, cache.blocks.block_size) == (BLOCKS, SIZE)


def test_a_cache_says_what_it_is() -> None:
    cache = make("hnd", torch.float16)
    assert (cache.num_blocks, cache.block_size, cache.layout) == (BLOCKS, SIZE, "HND")
    assert (cache.device, cache.shape.num_layers) == (torch.device("cpu"), LAYERS)
    assert all(not array.any() for array in content(cache))
    assert make(layout="NHD").layout == "NHD"
    latent = ModelShape(num_layers=1, num_kv_heads=1, head_dim=24, dtype=torch.half, latent_dim=24)
    assert PagedKVCache(2, 4, latent).layout == "MLA"


@pytest.mark.parametrize("dim", [1, 3, 6, 20, 96])
def test_heads_of_any_width_are_written_whole(dim: int, backend: Any) -> None:
    """Widths that are not multiples of a wide word, and that fill a tile only in part."""
    for dtype in (torch.float16, torch.uint8):
        cache = make("HND", dtype, dim=dim, backend=backend)
        k, v = random_tokens(cache, 3, seed=1), random_tokens(cache, 3, seed=2)
        cache.write(0, k, v, [6, 1, 13])
        assert same(cache.keys(0).flatten(0, 1)[[6, 1, 13]], k)
        assert same(cache.values(0).flatten(0, 1)[[6, 1, 13]], v)
        assert sum(array.any(axis=(1, 2)).sum() for array in content(cache)) == 6


def test_a_token_larger_than_a_tile_is_written_whole() -> None:
    """The kernel handles such a token in several iterations."""
    interpreter()
    shape = ModelShape(num_layers=1, num_kv_heads=12, head_dim=100, dtype=torch.float64)
    cache = PagedKVCache(2, 2, shape, backend="triton")
    k, v = random_tokens(cache, 2, seed=1), random_tokens(cache, 2, seed=2)
    cache.write(0, k, v, [3, 0])
    assert same(cache.gather(0, [1], 2)[0][1], k[0])
    assert same(cache.gather(0, [0], 1)[1][0], v[1])


def strided_variants(k: torch.Tensor) -> dict[str, torch.Tensor]:
    n, heads, dim = k.shape
    odd = torch.zeros(k.numel() + 1, dtype=k.dtype)
    odd[1:] = k.flatten()
    fused = torch.zeros(n, 3 * heads, dim, dtype=k.dtype)
    fused[:, heads : 2 * heads] = k
    spread = torch.zeros(n, heads, 2 * dim, dtype=k.dtype)
    spread[..., ::2] = k
    return {
        "a slice of a fused projection": fused[:, heads : 2 * heads],
        "head-major": k.transpose(0, 1).contiguous().transpose(0, 1),
        "at an odd element": odd[1:].view(k.shape),
        "every other element": spread[..., ::2],
        "with a gradient": k.clone().requires_grad_(),
    }


def test_tokens_may_have_any_strides(backend: Any) -> None:
    cache = make("HND", torch.float32, backend=backend)
    k = torch.randn(3, HEADS, DIM)
    for name, tokens in strided_variants(k).items():
        cache.zero(range(BLOCKS))
        cache.write(0, tokens, tokens, [2, 9, 5])
        assert same(cache.keys(0).flatten(0, 1)[[2, 9, 5]], k), name
        assert not cache.keys(0).requires_grad


@pytest.mark.parametrize(
    "form",
    [
        list,
        np.array,
        lambda s: np.array(s, np.int32),
        torch.tensor,
        lambda s: torch.tensor(s, dtype=torch.int32),
        lambda s: np.array(s).repeat(2)[::2],
    ],
    ids=["list", "array", "int32 array", "tensor", "int32 tensor", "strided array"],
)
def test_slots_may_come_in_any_form(form: Any, backend: Any) -> None:
    cache = make(backend=backend)
    k = random_tokens(cache, 3)
    cache.write(0, k, k, form([6, PAD_SLOT, 1]))
    assert same(cache.keys(0).flatten(0, 1)[[6, 1]], k[[0, 2]])


def test_slots_of_a_manager_are_taken_as_they_are() -> None:
    """The shared arrays are read-only views; the cache must not write to them."""
    manager = BlockManager(BLOCKS, SIZE)
    cache = make()
    sequence = manager.sequence(manager.admit([1, 2, 3, 4, 5, 6]))
    k = random_tokens(cache, 6)
    cache.write(0, k, k, sequence.slot_mapping(0, 6))
    assert same(cache.gather(0, sequence.block_ids, 6)[0], k)
    rows = manager.block_tables[[sequence.row]]
    assert same(cache.gather_batch(0, rows, [6])[0][0], k)


def test_slots_checked_once_serve_every_layer(backend: Any) -> None:
    cache = make(backend=backend)
    given_slots = np.array([3, PAD_SLOT, 8])
    slots = cache.slots(given_slots)
    given_slots[:] = 0  # they are a copy
    k = random_tokens(cache, 3)
    for layer in range(LAYERS):
        cache.write(layer, k, k, slots)
        assert same(cache.keys(layer).flatten(0, 1)[[3, 8]], k[[0, 2]])
        assert not cache.keys(layer)[0, 0].any()
    with refused(cache, ValueError, "was made for"):
        cache.write(0, k, k, make(num_blocks=9, backend=backend).slots([3, 4, 5]))


def test_a_step_of_nothing_but_padding_writes_nothing(backend: Any) -> None:
    cache = make(backend=backend)
    fill(cache)
    before = content(cache)
    for n in (0, 3):
        k = random_tokens(cache, n, seed=5)
        cache.write(0, k, k, [PAD_SLOT] * n)
    assert equal(content(cache), before)


def test_the_kernel_skips_slots_out_of_range() -> None:
    """Slots on a device are not checked, so only the kernel protects the memory."""
    interpreter()
    from blockmgr.kv.write_triton import write

    # The cache lies between guard bands of its own size, where a stray write shows and does no
    # harm.
    slots = BLOCKS * SIZE
    memory = torch.zeros(3 * slots, 2, 4, dtype=torch.int64)
    cache = memory[slots : 2 * slots].view(BLOCKS, SIZE, 2, 4)
    k = torch.arange(1, 6)[:, None, None].expand(5, 2, 4).contiguous()
    write(k, None, cache, None, torch.tensor([slots, -1, 5, 2 * slots - 1, -slots]))
    expected = torch.zeros_like(memory)
    expected[slots + 5] = 3
    assert torch.equal(memory, expected)


def test_k_and_v_may_lie_at_different_strides() -> None:
    interpreter()
    from blockmgr.kv.write_triton import write

    cache = torch.zeros(2, BLOCKS, SIZE, 2, 4, dtype=torch.int64)
    k = torch.arange(48).view(3, 2, 8)[:, :, :4]
    v = torch.arange(100, 124).view(2, 3, 4).transpose(0, 1)
    write(k, v, cache[0], cache[1], torch.tensor([1, 0, 7]))
    for tokens, written in zip((k, v), cache.view(2, -1, 2, 4), strict=True):
        assert torch.equal(written[[1, 0, 7]], tokens)


def test_a_block_beyond_four_gibibytes_is_found() -> None:
    """Needs 64-bit offsets: the cache spans 6 GiB of address space, of which a page is used."""
    interpreter()
    from blockmgr.kv.write_triton import write

    words = 2**27
    memory = torch.from_numpy(np.memmap("/dev/zero", np.int64, "c", shape=(6 * words,)))
    cache = memory.as_strided((6 * words // 2**15, 16, 2, 8), (2**15, 16, 8, 1))
    k = torch.arange(16).view(1, 2, 8)
    block = 5 * words // 2**15
    write(k, None, cache, None, torch.tensor([block * 16 + 3]))
    assert torch.equal(cache[block, 3], k[0])
    assert torch.equal(memory[5 * words + 48 : 5 * words + 64], k.flatten())


def test_a_cache_made_in_inference_mode_can_be_written_outside() -> None:
    with torch.inference_mode():
        cache = make()
        k = random_tokens(cache, 1)
        cache.write(0, k, k, [1])
    cache.write(0, k, k, [2])
    assert same(cache.keys(0).flatten(0, 1)[[1, 2]], k.expand(2, -1, -1))


@settings(max_examples=60)
@given(st.data())
def test_a_cache_is_a_dictionary_of_slots(data: st.DataObject) -> None:
    """Writes, copies and zeroes in random order, compared with a plain list of slots."""
    layout = data.draw(st.sampled_from(LAYOUTS))
    cache = make(layout, torch.uint8)
    heads, dim = cache.keys(0).shape[2:]
    expected = np.zeros((BLOCKS, SIZE, heads, dim), np.uint8)
    block = st.integers(0, BLOCKS - 1)
    for step in range(data.draw(st.integers(1, 5))):
        match data.draw(st.sampled_from(["write", "copy", "zero"])):
            case "write":
                slots = data.draw(st.lists(st.integers(-1, BLOCKS * SIZE - 1), unique=True))
                k = random_tokens(cache, len(slots), seed=step)
                cache.write(1, k, None if layout == "MLA" else k, slots)
                for token, slot in zip(k, slots, strict=True):
                    if slot != PAD_SLOT:
                        expected[slot // SIZE, slot % SIZE] = token.numpy()
            case "copy":
                pairs = data.draw(st.lists(st.tuples(block, block), max_size=4))
                cache.copy_blocks(np.array(pairs, np.int32).reshape(-1, 2))
                for source, destination in pairs:
                    expected[destination] = expected[source]
            case "zero":
                ids = data.draw(st.lists(block, unique=True))
                cache.zero(ids)
                expected[ids] = 0
    for view in (cache.keys(1), cache.values(1)):
        assert view is None or np.array_equal(view.numpy(), expected)
    assert not cache.keys(0).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plan_of_a_manager_is_run(layout: str) -> None:
    """A fork shares its tail until it writes; then it gets a copy of the filled tokens."""
    manager = BlockManager(BLOCKS, SIZE)
    cache = make(layout)
    fill(cache)
    parent = manager.sequence(manager.admit([1, 2, 3, 4, 5, 6]))
    parent.commit(6)
    [child] = parent.fork()
    child.append([7])
    plan = manager.take_copies()
    assert len(plan) == 1
    cache.copy(plan)
    for layer in range(LAYERS):
        one, two = (cache.gather(layer, s.block_ids, 6) for s in (parent, child))
        assert same(one[0], two[0])
        assert same(one[1], two[1])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_go_to_the_host_and_come_back(layout: str) -> None:
    cache = make(layout)
    fill(cache)
    host = cache.host_counterpart(3)
    assert (host.num_blocks, host.block_size, host.layout) == (3, SIZE, layout)
    assert (host.shape, host.device.type) == (cache.shape, "cpu")
    before = content(cache)
    cache.swap_out(host, [4, 1], [0, 2])
    assert equal(content(cache), before)
    cache.zero([4, 1])
    cache.swap_in(host, [2, 0], [3, 4])
    views = [array.reshape(BLOCKS, SIZE, *array.shape[1:]) for array in before if array is not None]
    after = [a.reshape(BLOCKS, SIZE, *a.shape[1:]) for a in content(cache) if a is not None]
    for old, new in zip(views, after, strict=True):
        assert np.array_equal(new[3], old[1])
        assert np.array_equal(new[4], old[4])
        assert not new[1].any()
        assert np.array_equal(new[[0, 2]], old[[0, 2]])


def test_a_swap_that_cannot_be_is_refused() -> None:
    cache = make()
    fill(cache)
    host = cache.host_counterpart(3)
    fill(host, seed=50)
    before = content(host)
    calls = [
        ((host, [0, 1], [0, 0]), CopyError, "0"),
        ((host, [0, 5], [0, 1]), CopyError, "5"),
        ((host, [0, 1], [0, 3]), CopyError, "3"),
        ((host, [0, 2**33], [0, 1]), CopyError, str(2**33)),
        ((host, [0, -1], [0, 1]), CopyError, "-1"),
        ((host, [0, 1], [0]), ValueError, "2 device_blocks and 1 host_blocks"),
        ((host, [[0, 1]], [[0, 1]]), TypeError, "device_blocks must be ints, got list"),
        ((host, np.zeros((1, 2), int), [0]), ValueError, "device_blocks must have 1 dimension"),
        ((host, [0.0], [0]), TypeError, "device_blocks must be ints, got float"),
        ((None, [0], [0]), TypeError, "host"),
        ((make("HND"), [0], [0]), LayoutError, "segment"),
    ]
    for (other, device_blocks, host_blocks), error, match in calls:
        with refused(cache, error, match):
            cache.swap_out(other, device_blocks, host_blocks)
    with refused(cache, CopyError, "destination"):
        cache.swap_in(host, [0, 1], [2, 2])
    with refused(cache, CopyError, "3"):
        cache.swap_in(host, [3], [2])
    assert equal(content(host), before)


def tokens(*shape: int, dtype: torch.dtype = torch.float16, **options: Any) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, **options)


GOOD = tokens(2, HEADS, DIM)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((2, GOOD, GOOD, [0, 1]), ValueError, r"layer must be in \[0, 1\], got 2"),
        ((-1, GOOD, GOOD, [0, 1]), ValueError, "layer"),
        ((True, GOOD, GOOD, [0, 1]), TypeError, "layer"),
        ((0.0, GOOD, GOOD, [0, 1]), TypeError, "layer"),
        ((0, GOOD, None, [0, 1]), ValueError, "v must not be None"),
        ((0, None, GOOD, [0, 1]), TypeError, "k must be a torch.Tensor"),
        ((0, GOOD, GOOD.numpy(), [0, 1]), TypeError, "v must be a torch.Tensor"),
        ((0, GOOD.float(), GOOD, [0, 1]), TypeError, "k must be torch.float16"),
        ((0, GOOD, GOOD.float(), [0, 1]), TypeError, "v must be torch.float16"),
        ((0, GOOD, GOOD.to("meta"), [0, 1]), ValueError, "v is on meta"),
        ((0, GOOD[:1], GOOD, [0, 1]), ValueError, r"k must have shape \(2, 2, 8\)"),
        ((0, GOOD, GOOD[:, :1], [0, 1]), ValueError, r"v must have shape .* got \(2, 1, 8\)"),
        ((0, GOOD, GOOD[..., :4], [0, 1]), ValueError, "v must have shape"),
        ((0, GOOD, GOOD, [0]), ValueError, "k must have shape"),
        ((0, GOOD, GOOD, [0, 20]), ValueError, r"slot_mapping\[1\] must be in .-1, 19., got 20"),
        ((0, GOOD, GOOD, [-2, 0]), ValueError, r"slot_mapping\[0\] .* got -2"),
        ((0, GOOD, GOOD, torch.tensor([0, 20])), ValueError, "slot_mapping"),
        # As int64 the first would be PAD_SLOT.
        *(
            ((0, GOOD, GOOD, np.array([0, n], np.uint64)), ValueError, rf"slot_mapping.* got {n}\b")
            for n in (2**64 - 1, 2**63, 20)
        ),
        ((0, GOOD, GOOD, [[0, 1]]), TypeError, "slot_mapping must be ints, got list"),
        ((0, GOOD, GOOD, [0.0, 1.0]), TypeError, "slot_mapping must be ints, got float"),
        ((0, GOOD, GOOD, [True, False]), TypeError, "slot_mapping must be ints, got bool"),
        ((0, GOOD, GOOD, torch.tensor([0, 1], device="meta")), ValueError, "on meta"),
    ],
)
def test_a_wrong_write_changes_nothing(
    arguments: tuple[Any, ...], error: type[Exception], match: str, backend: Any
) -> None:
    cache = make(backend=backend)
    fill(cache)
    with refused(cache, error, match):
        cache.write(*arguments)


def test_mla_takes_one_vector_a_token() -> None:
    cache = make("MLA")
    latent = random_tokens(cache, 2)
    assert latent.shape == (2, 1, 24)
    cache.write(0, latent, None, [0, 1])
    assert cache.values(0) is None
    with refused(cache, ValueError, "v must be None"):
        cache.write(0, latent, latent, [2, 3])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((0, [0, 5], 8), ValueError, r"block_table\[1\] must be in \[0, 4\], got 5"),
        ((0, [0, -1], 8), ValueError, r"block_table\[1\]"),
        ((0, [0], 5), ValueError, "block_table has 1 blocks, 5 tokens need 2"),
        ((0, [], 1), ValueError, "block_table has 0 blocks"),
        ((0, 3, 1), TypeError, "block_table must be a list, .* got int"),
        ((0, [[0]], 1), TypeError, "block_table must be ints, got list"),
        ((0, [0.5], 1), TypeError, "block_table must be ints, got float"),
        ((0, [0], -1), ValueError, "length must be at least 0, got -1"),
        ((0, [0], 1.0), TypeError, "length"),
        ((0, [0], True), TypeError, "length"),
        ((7, [0], 1), ValueError, "layer"),
        ((0, torch.tensor([0], device="meta"), 1), ValueError, "block_table is on meta"),
    ],
)
def test_a_wrong_gather_is_refused(
    arguments: tuple[Any, ...], error: type[Exception], match: str
) -> None:
    with refused(make(), error, match):
        make().gather(*arguments)


@pytest.mark.parametrize(
    ("tables", "lengths", "error", "match"),
    [
        ([[0, 5]], [8], ValueError, r"block_tables\[0, 1\] must be in \[0, 4\], got 5"),
        ([[0, 1]], [9], ValueError, "2 blocks a row, 9 tokens need 3"),
        ([[0, 1]], [1, 1], ValueError, "a row for each of 2 lengths"),
        ([0, 1], [1, 1], TypeError, r"block_tables\[0\] must be a list, .* got int"),
        ([[0.5]], [1], TypeError, r"block_tables\[0\] must be ints, got float"),
        ([[True]], [1], TypeError, r"block_tables\[0\] must be ints, got bool"),
        ([[0]], [True], TypeError, "lengths must be ints, got bool"),
        (np.array([[2**64 - 1]], np.uint64), [1], ValueError, r"block_tables\[0, 0\] must be in"),
        ([[0]], [-1], ValueError, "lengths"),
        ([[0]], [1.5], TypeError, "lengths"),
    ],
)
def test_a_wrong_batch_is_refused(
    tables: Any, lengths: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make().gather_batch(0, tables, lengths)


def test_what_follows_the_last_token_in_a_table_is_ignored() -> None:
    """Rows of a block table array may have any padding."""
    assert make().gather(0, [1, -7, 99], 4)[0].shape == (4, HEADS, DIM)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"num_blocks": 0}, ValueError, "num_blocks"),
        ({"num_blocks": 2**31}, ValueError, "num_blocks"),
        ({"num_blocks": 2.0}, TypeError, "num_blocks"),
        ({"block_size": 0}, ValueError, "block_size"),
        ({"block_size": 2**16}, ValueError, "block_size"),
        ({"block_size": True}, TypeError, "block_size"),
        ({"shape": (1, 2, 3)}, TypeError, "shape"),
        ({"layout": "NDH"}, ValueError, "layout must be one of NHD"),
        ({"layout": "MLA"}, ValueError, "latent_dim None needs another layout, got MLA"),
        ({"layout": 3}, TypeError, "layout"),
        ({"device": "cpu", "pin_memory": 1}, TypeError, "pin_memory"),
        ({"device": "meta", "pin_memory": True}, ValueError, "pin_memory"),
        ({"device": "meta"}, LayoutError, "meta"),
        ({"backend": "cuda"}, ValueError, "backend"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(
    changes: dict[str, Any], error: type[Exception], match: str
) -> None:
    shape = ModelShape(num_layers=1, num_kv_heads=1, head_dim=2, dtype=torch.half)
    usual = {"num_blocks": 2, "block_size": 4, "shape": shape}
    with pytest.raises(error, match=match):
        PagedKVCache(**{**usual, **changes})


def test_mla_needs_its_own_layout() -> None:
    latent = ModelShape(num_layers=1, num_kv_heads=1, head_dim=8, dtype=torch.half, latent_dim=8)
    with pytest.raises(ValueError, match="latent_dim 8 needs layout MLA, got NHD"):
        PagedKVCache(2, 4, latent, layout="NHD")


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_memory_is_pinned_only_for_a_device() -> None:
    with pytest.raises(ValueError, match="pin_memory must be False without"):
        make(pin_memory=True)


def test_there_is_no_such_layer() -> None:
    for call in (make().keys, make().values):
        with pytest.raises(ValueError, match=r"layer must be in \[0, 1\], got 2"):
            call(2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_elements_of_a_token_may_have_any_stride(backend: Any, dtype: torch.dtype) -> None:
    shape = ModelShape(num_layers=1, num_kv_heads=2, head_dim=3, dtype=dtype)
    cache = PagedKVCache(BLOCKS, SIZE, shape, backend=backend)
    k = torch.arange(18).reshape(3, 3, 2).to(dtype).transpose(1, 2)
    v = torch.arange(36).reshape(3, 2, 6).to(dtype)[:, :, ::2]
    cache.write(0, k, v, [0, 1, 2])
    for written, token in zip(cache.gather(0, [0], 3), (k, v), strict=True):
        assert torch.equal(written, token)


def test_blocks_go_only_to_a_cache_of_the_same_kind() -> None:
    of_other_type = dataclasses.replace(make().shape, dtype=torch.bfloat16)
    same_bytes = dataclasses.replace(of_other_type, dtype=torch.float16)
    cache = PagedKVCache(BLOCKS, SIZE, of_other_type)
    for host, what in (
        (PagedKVCache(BLOCKS, SIZE, of_other_type, layout="HND"), "layout"),
        (PagedKVCache(BLOCKS, SIZE, same_bytes), "shape"),
        (PagedKVCache(BLOCKS, 2 * SIZE, of_other_type), "block_size"),
    ):
        with pytest.raises(LayoutError, match=f"has {what}"):
            cache.swap_out(host, [0], [0])
        with pytest.raises(LayoutError, match=f"has {what}"):
            cache.swap_in(host, [0], [0])
    assert not any(t.any() for t in content(cache))
