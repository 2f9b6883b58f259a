"""Models whose layers keep one entry for several tokens (DeepSeek-V4), in vLLM's layout.

Every layer has a window of latents. Those of ratio 4 or 128 also keep one entry for as many tokens,
and a compressor whose states of the last tokens are a window, too; those of ratio 4 have an indexer
that keeps the same in a smaller size. Layers that read the same tokens are a group, whatever pages
they have: a block is the pages of all of them.
"""

from __future__ import annotations

from typing import Final

from blockmgr.arguments import positive
from blockmgr.groups import FullAttention, Group, SlidingWindow
from blockmgr.shapes.fields import ConfigFields, listed_kinds

__all__ = ["BLOCK_SIZE", "compress_ratios", "compressed_groups"]

BLOCK_SIZE: Final = 256
"""Tokens per block of the compressed entries, and so of a manager."""

WINDOW_BLOCK: Final = 64
STATE_BLOCKS: Final = {4: 4, 128: 8}
"""Tokens per block of the states of compressors, by ratio."""

ALIGNMENT: Final = 576  # bytes of a page
SCALES: Final = 8  # bytes of the scales of an entry in fp8
INDEX_SCALES: Final = 4
STATE_ELEMENTS: Final = 2 * 4  # bytes of a K/V and a score in float32


def compress_ratios(fields: ConfigFields) -> list[int]:
    """Tokens that each layer compresses to one entry, 0 for a window alone; empty without any.

    Raises:
        ValueError: There is another ratio than 0, 1, 4 and 128, or none for a layer.
        TypeError: The config has no list of them.
    """
    ratios = fields.get("compress_ratios")
    if ratios is None:
        rates = fields.get("compress_rates") or {}
        ratios = [rates.get(kind, 0) for kind in listed_kinds(fields, "layer_types") or ()]
    if not isinstance(ratios, list | tuple):
        raise TypeError(f"compress_ratios of the config must be a list, got {ratios!r}")
    if not any(ratios):
        return []
    num_layers = fields.num_layers()
    if len(ratios) < num_layers:  # there may be more, of layers that draft
        raise ValueError(f"config has {len(ratios)} compress_ratios, there are {num_layers} layers")
    if strange := [ratio for ratio in ratios if ratio not in (0, 1, *STATE_BLOCKS)]:
        raise ValueError(f"compress_ratios of the config must be 0, 4 or 128, got {strange[0]!r}")
    return list(ratios[:num_layers])


def compressed_groups(fields: ConfigFields) -> tuple[tuple[Group, ...], int]:
    """The groups of such a model, and the bytes of a block of any of them.

    The block is that of the compressed entries; other groups have as many layers as fit it.

    Raises:
        ValueError: A field is missing or has no usable value.
        TypeError: A field is of the wrong type.
    """
    ratios = compress_ratios(fields)
    head, index = fields.size("head_dim"), fields.size("index_head_dim")
    if fields.get("qk_rope_head_dim"):
        rope = fields.size("qk_rope_head_dim")
    else:
        rope = int(head * positive("partial_rotary_factor", fields.need("partial_rotary_factor")))
    entry = head + rope + SCALES  # 1 byte an element, and 2 with RoPE
    indexed, others = ratios.count(4), ratios.count(128)
    block = indexed * _page(BLOCK_SIZE // 4 * entry, BLOCK_SIZE // 4 * (index + INDEX_SCALES))
    block += others * _page(BLOCK_SIZE // 128 * entry)
    # Those of ratio 4 compress runs that overlap, so they keep two states a token.
    one, two = STATE_ELEMENTS * STATE_BLOCKS[128], 2 * STATE_ELEMENTS * STATE_BLOCKS[4]
    window = SlidingWindow(fields.size("sliding_window"), WINDOW_BLOCK)
    parts: tuple[tuple[Group, int, int], ...] = (
        (window, _page(WINDOW_BLOCK * entry), len(ratios)),
        (SlidingWindow(8, STATE_BLOCKS[4]), _page(two * head, two * index), indexed),
        (SlidingWindow(128, STATE_BLOCKS[128]), _page(one * head), others),
    )
    block = max(block, *(page for _, page, _ in parts))
    groups: list[Group] = [FullAttention(BLOCK_SIZE)]
    for group, page, layers in parts:
        groups += [group] * -(-layers // (block // page))
    return tuple(groups), block


def _page(*sizes: int) -> int:
    """Bytes of the pages for so many bytes each."""
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
