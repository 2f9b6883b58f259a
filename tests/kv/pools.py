"""K/V tensors of every layout over random bytes, and the result of copies in NumPy.

The oracle uses axes, not segments: it moves ``block`` and ``token`` to the front of a NumPy view
and copies ``[destination, :n] = [source, :n]``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from blockmgr import CopyPlan
from blockmgr.kv import KVBlocks, segments_from
from blockmgr.kv.layout import axes_of

BLOCKS, TOKENS = 7, 4
GUARD = 64
"""Bytes around every tensor that nothing may touch."""

Part = tuple[torch.Tensor, str]
Build = Callable[[np.random.Generator], list[Part]]


def fresh(rng: np.random.Generator, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of random bytes between guards, 16 bytes aligned."""
    size = int(np.prod(shape)) * dtype.itemsize
    memory = torch.from_numpy(rng.integers(0, 256, size + 2 * GUARD + 16, np.uint8))
    start = GUARD + -(memory.data_ptr() + GUARD) % 16
    return memory[start : start + size].view(dtype).view(*shape)


def heads(layout: str, dtype: torch.dtype, count: int, dim: int) -> Build:
    sizes = {"block": BLOCKS, "token": TOKENS, "head": count, "dim": dim, "kv": 2, "layer": 3}
    shape = [sizes[axis] for axis in axes_of(layout)]
    return lambda rng: [(fresh(rng, shape, dtype), layout) for _ in range(2)]


def one(layout: str, dtype: torch.dtype, *shape: int) -> Build:
    return lambda rng: [(fresh(rng, shape, dtype), layout)]


def padded(rng: np.random.Generator) -> list[Part]:
    wide = fresh(rng, (BLOCKS, 6, 2, 24), torch.float16)
    return [(wide[:, 1:5, :, 4:20], "NHD")]


def heads_outermost(rng: np.random.Generator) -> list[Part]:
    return [(fresh(rng, (2, BLOCKS, TOKENS, 8), torch.bfloat16), "head block token dim")]


def x_packed(rng: np.random.Generator) -> list[Part]:
    return [
        (fresh(rng, (BLOCKS, 2, 4, TOKENS, 8), torch.float16), "block head pack token lane"),
        (fresh(rng, (BLOCKS, 2, 16, TOKENS), torch.float16), "block head dim token"),
    ]


def with_scales(rng: np.random.Generator) -> list[Part]:
    return [
        (fresh(rng, (BLOCKS, TOKENS, 4, 16), torch.float8_e4m3fn), "NHD"),
        (fresh(rng, (BLOCKS, TOKENS, 4), torch.float32), "block token head"),
        (fresh(rng, (BLOCKS, 4), torch.float32), "block head"),
    ]


def shared_layers(rng: np.random.Generator) -> list[Part]:
    tensor = fresh(rng, (BLOCKS, TOKENS, 2, 8), torch.bfloat16)
    return [(tensor, "NHD"), (tensor.view(tensor.shape), "NHD")]


def odd(dtype: torch.dtype) -> Build:
    return lambda rng: [(fresh(rng, (BLOCKS, TOKENS, 2, 8), dtype)[..., 1:], "NHD")]


LAYOUTS: dict[str, Build] = {
    "NHD": heads("NHD", torch.bfloat16, 2, 16),
    "HND": heads("HND", torch.bfloat16, 3, 16),
    "KV_NHD": heads("KV_NHD", torch.float16, 2, 16),
    "KV_HND": heads("KV_HND", torch.float32, 2, 8),
    "BLOCK_KV_NHD": heads("BLOCK_KV_NHD", torch.bfloat16, 1, 32),
    "BLOCK_KV_HND": heads("BLOCK_KV_HND", torch.float8_e5m2, 2, 32),
    "interleaved": one("HND", torch.bfloat16, BLOCKS, 2, TOKENS, 32),
    "MLA": one("MLA", torch.bfloat16, BLOCKS, TOKENS, 576),
    "MLA in 8 bits": one("MLA", torch.uint8, BLOCKS, TOKENS, 656),
    "fused": heads("FUSED_NHD", torch.float16, 1, 16),
    "fused, heads first": heads("FUSED_HND", torch.float16, 2, 16),
    "8 bits and scales": with_scales,
    "x-packed": x_packed,
    "padded": padded,
    "heads outermost": heads_outermost,
    "layers that share": shared_layers,
    "accesses of 8": odd(torch.float64),
    "accesses of 4": odd(torch.float32),
    "accesses of 2": odd(torch.float16),
    "accesses of 1": odd(torch.uint8),
}


class World:
    """Tensors of one layout, their blocks, and a NumPy twin as the oracle."""

    def __init__(self, layout: str, backend: str, seed: int = 0, **options: Any) -> None:
        self.parts = LAYOUTS[layout](np.random.default_rng(seed))
        segments = [s for tensor, axes in self.parts for s in segments_from(tensor, layout=axes)]
        self.blocks = KVBlocks(segments, block_size=TOKENS, backend=backend, **options)
        self.split = [any(s.token_bytes for s in segments if s.tensor is t) for t, _ in self.parts]
        self.expected = [memory_of(tensor).copy() for tensor, _ in self.parts]

    def views(self) -> Iterable[tuple[np.ndarray, int, int | None, bool]]:
        """Elements of the expected memory in the tensor's shape: (view, block, token, split)."""
        for (tensor, layout), memory, split in zip(
            self.parts, self.expected, self.split, strict=True
        ):
            element = tensor.element_size()
            view = np.lib.stride_tricks.as_strided(
                memory[tensor.storage_offset() * element :].view(f"V{element}"),
                tensor.shape,
                [stride * element for stride in tensor.stride()],
            )
            axes = axes_of(layout)
            token = axes.index("token") if "token" in axes else None
            yield view, axes.index("block"), token, split

    def expect(self, source: int, destination: int, num_tokens: int = TOKENS) -> None:
        """Makes one copy in the twin; source -1 stands for zeros."""
        for view, block, token, split in self.views():
            where: list[Any] = [slice(None)] * view.ndim
            if token is not None and split:
                where[token] = slice(num_tokens)
            where[block] = destination
            to = tuple(where)
            where[block] = source
            view[to] = view[tuple(where)] if source >= 0 else np.zeros((), view.dtype)

    def check(self) -> None:
        for (tensor, _), expected in zip(self.parts, self.expected, strict=True):
            np.testing.assert_array_equal(memory_of(tensor), expected)

    @contextmanager
    def unchanged(self, error: type[Exception], match: str, pair: int | None = None) -> Any:
        """The call inside raises exactly this error and touches no byte."""
        with pytest.raises(error, match=match) as caught:
            yield
        assert type(caught.value) is error
        if pair is not None:
            assert caught.value.pair == pair
        self.check()


def memory_of(tensor: torch.Tensor) -> np.ndarray:
    """Every byte of the storage, guards included."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy()


def plan_of(*copies: tuple[int, int, int], ticket: int = 0) -> CopyPlan:
    columns = np.array(copies, np.int32).reshape(-1, 3).T
    return CopyPlan(ticket, *(np.ascontiguousarray(column) for column in columns))


def random_plan(rng: np.random.Generator, num_blocks: int = BLOCKS) -> list[tuple[int, int, int]]:
    """Sources may repeat; destinations are distinct and are not sources."""
    ids = rng.permutation(num_blocks).tolist()
    cut = int(rng.integers(1, num_blocks))
    sources = rng.choice(ids[:cut], num_blocks - cut).tolist()
    tokens = rng.integers(1, TOKENS + 1, num_blocks - cut).tolist()
    return list(zip(sources, ids[cut:], tokens, strict=True))


def sequential(state: list[Any], pairs: Iterable[tuple[int, int]]) -> list[Any]:
    """The source of each block's content after copying one pair after the other."""
    state = copy.copy(state)
    for source, destination in pairs:
        state[destination] = state[source]
    return state


def simultaneous(state: list[Any], pairs: Iterable[tuple[int, int]]) -> list[Any]:
    """The source of each block's content if all reads come before all writes."""
    after = copy.copy(state)
    for source, destination in pairs:
        after[destination] = state[source]
    return after
