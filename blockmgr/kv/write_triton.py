"""The Triton kernel that scatters the K/V of a step into a paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    import torch

__all__ = ["launch_options", "write", "write_kernel"]

# Words a program moves at a time: 1024 of 8 bytes are 4 accesses of 16 bytes for 128 threads.
MOST_WORDS = 1024


@triton.jit
def write_kernel(  # noqa: PLR0917
    k,
    v,
    k_cache,
    v_cache,
    mapping,
    num_slots,
    k_token,
    k_head,
    v_token,
    v_head,
    BLOCK_STRIDE: tl.constexpr,
    TOKEN_STRIDE: tl.constexpr,
    HEAD_STRIDE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_WORDS: tl.constexpr,
    TOKEN_WORDS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_V: tl.constexpr,
):
    """One program per token: all heads of K, and of V if there is one, as words of any width.

    Strides are in words. Those of the cache are constants, so the compiler knows the alignment of
    each address and can join words into 16-byte accesses.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(mapping + token).to(tl.int64)
    # Padding is negative. Device slots reach the kernel unchecked: a slot past the end is dropped
    # here, because the write would hit memory outside the cache.
    if (slot >= 0) & (slot < num_slots):
        place = (slot // BLOCK_SIZE) * BLOCK_STRIDE + (slot % BLOCK_SIZE) * TOKEN_STRIDE
        for start in range(0, TOKEN_WORDS, TILE):
            at = start + tl.arange(0, TILE)
            inside = at < TOKEN_WORDS
            head = at // HEAD_WORDS
            word = at % HEAD_WORDS
            to = place + head * HEAD_STRIDE + word
            value = tl.load(k + token * k_token + head * k_head + word, mask=inside)
            tl.store(k_cache + to, value, mask=inside)
            if HAS_V:
                value = tl.load(v + token * v_token + head * v_head + word, mask=inside)
                tl.store(v_cache + to, value, mask=inside)


def launch_options(tile: int) -> dict[str, int | bool]:
    """Warps per tile: at least two 8-byte words per thread, even with 64 threads per warp."""
    return {"num_warps": max(1, min(4, tile // 128)), "enable_fp_fusion": False}


def write(
    k: torch.Tensor,
    v: torch.Tensor | None,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor | None,
    mapping: torch.Tensor,
) -> None:
    """Writes tokens into the slots of one layer: one launch, on the current stream.

    Args:
        k: Integers ``[num_tokens, heads, words]`` on the device, innermost axis contiguous.
        v: Likewise; None if there is only K.
        k_cache: Integers ``[num_blocks, block_size, heads, words]`` of the same width, innermost
            axis contiguous.
        v_cache: Likewise, with the strides of ``k_cache``.
        mapping: ``int64[num_tokens]`` on the device; a slot out of range is not written.
    """
    num_tokens, num_heads, head_words = k.shape
    if num_tokens == 0:
        return
    num_blocks, block_size = k_cache.shape[:2]
    block_stride, token_stride, head_stride, _ = k_cache.stride()
    token_words = num_heads * head_words
    tile = min(MOST_WORDS, triton.next_power_of_2(token_words))
    has_v = v is not None
    v, v_cache = (k, k_cache) if v is None or v_cache is None else (v, v_cache)
    write_kernel[(num_tokens,)](
        k,
        v,
        k_cache,
        v_cache,
        mapping,
        num_blocks * block_size,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        BLOCK_STRIDE=block_stride,
        TOKEN_STRIDE=token_stride,
        HEAD_STRIDE=head_stride,
        BLOCK_SIZE=block_size,
        HEAD_WORDS=head_words,
        TOKEN_WORDS=token_words,
        TILE=tile,
        HAS_V=has_v,
        **launch_options(tile),
    )
