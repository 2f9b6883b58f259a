"""Paged kernels of other packages, replaced by stand-ins with the documented behaviour.

No GPU is needed: the tests check that the arguments describe the right attention.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.ports.engine_models import VOCAB  # noqa: F401  (skips this file where torch is missing)

import torch  # isort: skip

from blockmgr.kv import ModelShape, PagedKVCache
from blockmgr.ports.transformers.attention import PagedBatch, SdpaKernel
from blockmgr.ports.transformers.kernels import FlashAttnKernel, FlashInferKernel, choose_kernel

HEADS = 4


def shape_of(**changes: Any) -> ModelShape:
    fields = {"num_layers": 2, "num_kv_heads": 2, "head_dim": 16, "dtype": torch.float16}
    return ModelShape(**{**fields, **changes})


def filled_cache(block_size: int) -> PagedKVCache:
    cache = PagedKVCache(12, block_size, shape_of())
    generator = torch.Generator().manual_seed(0)
    for layer in range(2):
        for tensor in (cache.keys(layer), cache.values(layer)):
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return cache


def batch_of(block_size: int) -> PagedBatch:
    """A decoded token, a chunk after a context, and a whole prompt."""
    query_lens = torch.tensor([1, 5, 3]).numpy()
    context_lens = torch.tensor([2 * block_size + 1, block_size + 7, 3]).numpy()
    tables = torch.tensor([[3, 1, 7], [2, 11, 0], [5, 0, 0]], dtype=torch.int32).numpy()
    nine = torch.arange(9).numpy()
    return PagedBatch(
        tokens=nine,
        positions=nine,
        slots=nine,
        query_lens=query_lens,
        context_lens=context_lens,
        block_tables=tables,
        outputs=nine[:1],
    )


def attend_plainly(
    query: torch.Tensor,
    contexts: list[tuple[torch.Tensor, torch.Tensor]],
    query_lens: list[int],
    *,
    scale: float,
    left: int,
    softcap: float,
) -> torch.Tensor:
    """Causal attention as both packages document it, one sequence and token at a time."""
    rows = []
    start = 0
    for (k, v), count in zip(contexts, query_lens, strict=True):
        for i in range(count):
            position = len(k) - count + i
            first = 0 if left < 0 else max(0, position - left)
            for head in range(HEADS):
                keys = k[first : position + 1, head // 2].float()
                scores = keys @ query[start + i, head].float() * scale
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                rows.append(scores.softmax(0) @ v[first : position + 1, head // 2].float())
        start += count
    return torch.stack(rows).view(query.shape).to(query.dtype)


def flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int,
        max_seqlen_k: int, softmax_scale: float, causal: bool, window_size: tuple[int, int],
        softcap: float, block_table: Any,
    ) -> torch.Tensor:  # fmt: skip
        assert causal
        assert window_size[1] == (0 if window_size[0] >= 0 else -1)
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == block_table.dtype == torch.int32
        query_lens, context_lens = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
        assert (max_seqlen_q, max_seqlen_k) == (max(query_lens), max(context_lens))
        contexts = [
            (k[row.long()].flatten(0, 1)[:n], v[row.long()].flatten(0, 1)[:n])
            for row, n in zip(block_table, context_lens, strict=True)
        ]
        return attend_plainly(
            q, contexts, query_lens, scale=softmax_scale, left=window_size[0], softcap=softcap
        )

    module = ModuleType("flash_attn")
    module.__dict__["flash_attn_varlen_func"] = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", module)


class _Wrapper:
    def __init__(self, workspace: torch.Tensor, layout: str) -> None:
        assert workspace.dtype == torch.uint8
        assert layout == "NHD"
        self.workspace: Any = workspace

    def plan(  # noqa: PLR0917  (the order is FlashInfer's)
        self, qo_indptr: Any, kv_indptr: Any, kv_indices: Any, last_page_len: Any,
        num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int, **options: Any,
    ) -> None:  # fmt: skip
        assert (num_qo_heads, num_kv_heads, head_dim) == (HEADS, 2, 16)
        assert options.pop("causal")
        assert options.pop("q_data_type") == options.pop("kv_data_type") == torch.float16
        self.query_lens = qo_indptr.diff().tolist()
        self.pages = [kv_indices[a:b].long() for a, b in itertools.pairwise(kv_indptr)]
        self.lens = [
            (len(p) - 1) * page_size + n
            for p, n in zip(self.pages, last_page_len.tolist(), strict=True)
        ]
        self.options = options
        self.workspace.planned = self

    def run(self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert self.workspace.planned is self, "the workspace has another plan"
        k, v = cache
        contexts = [
            (k[p].flatten(0, 1)[:n], v[p].flatten(0, 1)[:n])
            for p, n in zip(self.pages, self.lens, strict=True)
        ]
        return attend_plainly(
            query,
            contexts,
            self.query_lens,
            scale=self.options["sm_scale"],
            left=self.options["window_left"],
            softcap=self.options["logits_soft_cap"],
        )


def flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flashinfer")
    module.__dict__["BatchPrefillWithPagedKVCacheWrapper"] = _Wrapper
    monkeypatch.setitem(sys.modules, "flashinfer", module)


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 4, 300])
@pytest.mark.parametrize(
    "other",
    [(flash_attn, FlashAttnKernel, 256), (flashinfer, FlashInferKernel, 8)],
    ids=["flash_attn", "flashinfer"],
)
def test_the_arguments_describe_the_same_attention(
    monkeypatch: pytest.MonkeyPatch,
    other: tuple[Any, Any, int],
    window: int | None,
    softcap: float | None,
) -> None:
    install, kernel_class, block_size = other
    install(monkeypatch)
    cache, batch = filled_cache(block_size), batch_of(block_size)
    query = torch.randn(9, HEADS, 16, generator=torch.Generator().manual_seed(1)).half()
    readers = [kernel.plan(batch) for kernel in (SdpaKernel(cache), kernel_class(cache))]
    how: dict[str, Any] = {"scale": 1 / math.sqrt(16), "softcap": softcap}
    # Layers with and without a window alternate.
    for layer, seen in ((0, window), (1, None), (0, window)):
        ours, theirs = (reader.attend(layer, query, window=seen, **how) for reader in readers)
        assert torch.allclose(ours, theirs, atol=5e-3)


def test_groups_of_layers_take_turns_in_the_workspace_of_flashinfer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flashinfer(monkeypatch)
    cache, batch = filled_cache(8), batch_of(8)
    other = replace(batch, block_tables=batch.block_tables[:, ::-1][:, [2, 0, 1]].copy())
    query = torch.randn(9, HEADS, 16, generator=torch.Generator().manual_seed(1)).half()
    ours, theirs = SdpaKernel(cache), FlashInferKernel(cache)
    readers = [[kernel.plan(each) for each in (batch, other)] for kernel in (ours, theirs)]
    how: dict[str, Any] = {"scale": 0.25, "softcap": None, "window": None}
    for layer, group in ((0, 0), (1, 1), (0, 1), (1, 0)):
        due, found = (pair[group].attend(layer, query, **how) for pair in readers)
        assert torch.allclose(due, found, atol=5e-3)


def test_caches_that_a_kernel_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    flash_attn(monkeypatch)
    flashinfer(monkeypatch)
    for kernel_class in (FlashAttnKernel, FlashInferKernel):
        with pytest.raises(ValueError, match="float16 or bfloat16"):
            kernel_class(PagedKVCache(4, 256, shape_of(dtype=torch.float32)))
        with pytest.raises(ValueError, match="layout 'NHD', got 'HND'"):
            kernel_class(PagedKVCache(4, 256, shape_of(), layout="HND"))
    with pytest.raises(ValueError, match="multiple of 256, got 16"):
        FlashAttnKernel(PagedKVCache(4, 16, shape_of()))


def test_a_kernel_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    flashinfer(monkeypatch)
    cache = PagedKVCache(4, 256, shape_of())
    on_gpu: Any = SimpleNamespace(
        device="cuda:0", shape=cache.shape, layout="NHD", block_size=cache.block_size
    )
    assert isinstance(choose_kernel("sdpa", cache), SdpaKernel)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    assert isinstance(choose_kernel("flashinfer", on_gpu), FlashInferKernel)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(ImportError):
        choose_kernel("flash_attn", on_gpu)
