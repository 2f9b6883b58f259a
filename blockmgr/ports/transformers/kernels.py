"""Paged attention kernels of FlashInfer and flash-attn, for CUDA.

They read the cache through block tables, without gathering. The tests check their arguments with
stand-ins that follow the documentation of the packages.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np

from blockmgr.errors import MissingExtraError
from blockmgr.ports.transformers.attention import SdpaKernel

try:
    import torch
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers.kernels") from error

from blockmgr.kv import HybridShape

if TYPE_CHECKING:
    from blockmgr.kv import GroupedKVCache, ModelShape, PagedKVCache
    from blockmgr.ports.transformers.attention import Expand, Kernel, PagedBatch, Reader

__all__ = ["FlashAttnKernel", "FlashInferKernel", "KernelName", "choose_kernel"]

KernelName: TypeAlias = Literal["sdpa", "flashinfer", "flash_attn"]

HALVES: Final = (torch.float16, torch.bfloat16)
# flash-attn 2 needs pages of a multiple of this many tokens.
FLASH_ATTN_PAGE: Final = 256
# The value suggested in FlashInfer's documentation.
WORKSPACE_BYTES: Final = 128 * 1024 * 1024


def choose_kernel(name: KernelName, cache: PagedKVCache | GroupedKVCache) -> Kernel:
    """The kernel of this name, for a cache.

    Raises:
        ValueError: There is no such kernel, or it cannot read this cache.
        ImportError: Its package is not installed.
    """
    if name == "sdpa":
        return SdpaKernel(cache)
    if name not in ("flashinfer", "flash_attn"):
        raise ValueError(f"kernel must be 'sdpa', 'flashinfer' or 'flash_attn', got {name!r}")
    if torch.device(cache.device).type != "cuda":
        raise ValueError(f"kernel {name!r} needs a cache on a CUDA device, got {cache.device}")
    return FlashInferKernel(cache) if name == "flashinfer" else FlashAttnKernel(cache)


def _kv_of(cache: PagedKVCache | GroupedKVCache) -> ModelShape:
    """K/V of a layer."""
    return cache.shape.kv if isinstance(cache.shape, HybridShape) else cache.shape


def _check_cache(name: str, cache: PagedKVCache | GroupedKVCache) -> None:
    dtype = _kv_of(cache).dtype
    if dtype not in HALVES:
        raise ValueError(f"kernel {name!r} needs float16 or bfloat16, got {dtype}")
    if cache.layout != "NHD":
        raise ValueError(f"kernel {name!r} needs layout 'NHD', got {cache.layout!r}")


class FlashAttnKernel:
    """``flash_attn_varlen_func`` with a block table.

    Args:
        cache: The cache to read: float16 or bfloat16, NHD, blocks of a multiple of 256 tokens.

    Raises:
        ValueError: The cache is another.
        ImportError: flash-attn is not installed.

    Source: flash-attn 2.8.
    """

    def __init__(self, cache: PagedKVCache | GroupedKVCache) -> None:
        _check_cache("flash_attn", cache)
        if cache.block_size % FLASH_ATTN_PAGE:
            raise ValueError(
                f"kernel 'flash_attn' needs a block_size of a multiple of {FLASH_ATTN_PAGE}, "
                f"got {cache.block_size}"
            )
        self._cache = cache
        self._function = importlib.import_module("flash_attn").flash_attn_varlen_func

    def plan(self, batch: PagedBatch) -> Reader:
        """Moves lengths and block tables to the device."""
        arguments = {
            "cu_seqlens_q": _offsets(batch.query_lens, self._cache.device),
            "cu_seqlens_k": _offsets(batch.context_lens, self._cache.device),
            "max_seqlen_q": int(batch.query_lens.max()),
            "max_seqlen_k": int(batch.context_lens.max()),
            "block_table": torch.from_numpy(batch.block_tables).to(self._cache.device),
            "causal": True,
        }
        return _FlashAttnReader(self._cache, self._function, arguments)


class _FlashAttnReader:
    def __init__(
        self, cache: PagedKVCache | GroupedKVCache, function: Any, arguments: dict[str, Any]
    ) -> None:
        self._cache = cache
        self._function = function
        self._arguments = arguments

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
        chunk: int | None = None,
        sinks: torch.Tensor | None = None,
        expand: Expand | None = None,
    ) -> torch.Tensor:
        _refuse_others(chunk, sinks, expand)
        result: torch.Tensor = self._function(
            query,
            self._cache.keys(layer),
            self._cache.values(layer),
            softmax_scale=scale,
            window_size=(-1, -1) if window is None else (window - 1, 0),
            softcap=softcap or 0.0,
            **self._arguments,
        )
        return result


class FlashInferKernel:
    """``BatchPrefillWithPagedKVCacheWrapper``, for chunks and single tokens.

    Args:
        cache: The cache to read: float16 or bfloat16, NHD, any block size.

    Raises:
        ValueError: The cache is another.
        ImportError: FlashInfer is not installed.

    Source: FlashInfer 0.6.
    """

    def __init__(self, cache: PagedKVCache | GroupedKVCache) -> None:
        _check_cache("flashinfer", cache)
        self._cache = cache
        self._wrapper = importlib.import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=cache.device)
        self._planned: tuple[_FlashInferReader, float, int | None, float | None] | None = None
        self._plan: Any = None

    def plan(self, batch: PagedBatch) -> Reader:
        """Concatenates the block tables, as FlashInfer reads them."""
        block_size = self._cache.block_size
        num_blocks = -(-batch.context_lens // block_size)
        ids = np.concatenate(
            [row[:n] for row, n in zip(batch.block_tables, num_blocks.tolist(), strict=True)]
        )
        last = batch.context_lens - (num_blocks - 1) * block_size
        arguments = (
            _offsets(batch.query_lens, self._cache.device),
            _offsets(num_blocks, self._cache.device),
            torch.from_numpy(ids).to(self._cache.device),
            torch.from_numpy(last.astype(np.int32)).to(self._cache.device),
        )
        return _FlashInferReader(self, arguments)


class _FlashInferReader:
    def __init__(self, kernel: FlashInferKernel, arguments: tuple[torch.Tensor, ...]) -> None:
        self._kernel = kernel
        self._cache = kernel._cache
        self._arguments = arguments

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
        chunk: int | None = None,
        sinks: torch.Tensor | None = None,
        expand: Expand | None = None,
    ) -> torch.Tensor:
        _refuse_others(chunk, sinks, expand)
        # A plan includes the window, and layers with and without a window, or of different groups,
        # may alternate. They cannot each keep a plan, because plans share the workspace.
        kernel = self._kernel
        if kernel._planned != (self, scale, window, softcap):
            kernel._plan = kernel._wrapper(kernel._workspace, "NHD")
            kernel._plan.plan(
                *self._arguments,
                query.shape[1],
                _kv_of(self._cache).num_kv_heads,
                _kv_of(self._cache).head_dim,
                self._cache.block_size,
                causal=True,
                sm_scale=scale,
                window_left=-1 if window is None else window - 1,
                logits_soft_cap=softcap or 0.0,
                q_data_type=query.dtype,
                kv_data_type=_kv_of(self._cache).dtype,
            )
            kernel._planned = (self, scale, window, softcap)
        pages = (self._cache.keys(layer), self._cache.values(layer))
        result: torch.Tensor = kernel._plan.run(query, pages)
        return result


def _refuse_others(*special: object) -> None:
    """``PagedModel`` refuses these kernels for a model with chunks, sinks or latents."""
    assert special == (None, None, None)


def _offsets(lens: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """``int32[num_seqs + 1]``: the start of each sequence, and the end."""
    offsets = np.zeros(len(lens) + 1, np.int32)
    np.cumsum(lens, out=offsets[1:])
    return torch.from_numpy(offsets).to(device)
