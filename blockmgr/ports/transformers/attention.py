"""Attention over a paged KV cache: writes a batch's K/V and reads its contexts.

A forward takes several concatenated sequences of different lengths: chunks of prompts, and single
decoded tokens. In every layer, all new K/V is written before any K/V is read, so sequences of one
forward may share blocks that this forward fills.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from blockmgr.errors import MissingExtraError

try:
    import torch
    from torch.nn import functional as F
except ImportError as error:
    raise MissingExtraError("transformers", "blockmgr.ports.transformers.attention") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from blockmgr.kv import PagedKVCache

__all__ = ["Attention", "Expand", "GroupTables", "PagedBatch"]

Expand: TypeAlias = "Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]"
"""From latents ``[num_seqs, 1, num_keys, latent_dim]``, K and V ``[num_seqs, num_heads, num_keys,
...]``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GroupTables:
    """The slots and block tables of one group of layers. All on the host.

    Attributes:
        slots: ``int64[num_tokens]``, the slot for the K/V of each token; None for states.
        block_tables: ``int32[num_seqs, width]``; for states ``int32[num_seqs, 1]``.
    """

    slots: npt.NDArray[np.int64] | None
    block_tables: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PagedBatch:
    """The tokens of one forward, their slots, and their contexts. All on the host.

    Attributes:
        tokens: ``int64[num_tokens]``, the concatenated tokens of the sequences.
        positions: ``int64[num_tokens]``, the position of each token in its sequence.
        slots: ``int64[num_tokens]``, the slot for the K/V of each; ``PAD_SLOT`` writes nothing.
        query_lens: ``int64[num_seqs]``, tokens of each sequence, at least 1.
        context_lens: ``int64[num_seqs]``, tokens that each sequence reads, including these.
        block_tables: ``int32[num_seqs, width]``; entries past a sequence's context are not used.
        outputs: ``int64[num_outputs]``, indices into ``tokens`` of those whose logits are needed.
        groups: For a cache with groups, the tables of each group; ``slots`` and ``block_tables``
            are then ignored.

    Raises:
        ValueError: The arrays are inconsistent.
    """

    tokens: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    query_lens: npt.NDArray[np.int64]
    context_lens: npt.NDArray[np.int64]
    block_tables: npt.NDArray[np.int32]
    outputs: npt.NDArray[np.int64]
    groups: tuple[GroupTables, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if not count == len(self.positions) == len(self.slots) == int(self.query_lens.sum()):
            raise ValueError(
                f"tokens, positions, slots and the sum of query_lens must agree, got {count}, "
                f"{len(self.positions)}, {len(self.slots)} and {int(self.query_lens.sum())}"
            )
        if not len(self.query_lens) == len(self.context_lens) == len(self.block_tables):
            raise ValueError(
                "query_lens, context_lens and block_tables must agree, got "
                f"{len(self.query_lens)}, {len(self.context_lens)} and {len(self.block_tables)}"
            )
        if count == 0 or self.query_lens.min() < 1 or (self.query_lens > self.context_lens).any():
            raise ValueError("query_lens must be in [1, context_lens], for at least one sequence")
        for number, group in enumerate(self.groups):
            sizes = len(group.block_tables), count if group.slots is None else len(group.slots)
            if sizes != (len(self.query_lens), count):
                raise ValueError(
                    f"groups[{number}] must have tables of {len(self.query_lens)} sequences and "
                    f"{count} slots, got {sizes[0]} and {sizes[1]}"
                )

    def of_group(self, group: int) -> PagedBatch:
        """The batch for the layers of one group with attention."""
        own = self.groups[group]
        assert own.slots is not None
        return replace(self, slots=own.slots, block_tables=own.block_tables, groups=())


@dataclass(slots=True, eq=False)
class _Alike:
    """Sequences to process together: same number of queries, similar context lengths.

    Attributes:
        rows: ``int64[num_seqs * num_queries]`` on the device: indices of their tokens in the batch.
        tables: ``int64[num_seqs, width]`` on the device.
        lens: ``int64[num_seqs]`` on the device: context lengths.
        num_queries: Queries of each sequence.
        shortest: Smallest context length.
        longest: Largest context length.
        block_size: Tokens per block.
        whole: Whether no sequence has a context before its queries.
        masks: By window and chunk: ``bool[num_seqs, 1, num_queries, num_keys]``, created on first
            use.
    """

    rows: torch.Tensor
    tables: torch.Tensor
    lens: torch.Tensor
    num_queries: int
    shortest: int
    longest: int
    block_size: int
    whole: bool
    masks: dict[tuple[int | None, int | None], torch.Tensor] = field(default_factory=dict)

    def first_block(self, window: int | None, chunk: int | None) -> int:
        """The first block that any query reads; earlier ones may be gone."""
        first = self.shortest - self.num_queries
        if window is not None:
            return max(0, first - window + 1) // self.block_size
        if chunk is not None:
            return first // chunk * chunk // self.block_size
        return 0

    def mask(self, window: int | None, chunk: int | None) -> torch.Tensor:
        if (window, chunk) not in self.masks:
            device = self.lens.device
            last = self.lens[:, None] - self.num_queries
            query = (last + torch.arange(self.num_queries, device=device))[:, :, None]
            start = self.first_block(window, chunk) * self.block_size
            key = torch.arange(start, self.longest, device=device)
            seen = key <= query
            if window is not None:
                seen &= query - key < window
            if chunk is not None:
                seen &= query // chunk == key // chunk
            self.masks[window, chunk] = seen[:, None]
        return self.masks[window, chunk]


class Attention:
    """Attention over the contexts of one batch: gathers them from their blocks, on any device.

    Args:
        cache: The cache to read.
        batch: The batch.
        block_size: Tokens per block of the group that reads.
    """

    def __init__(self, cache: PagedKVCache, batch: PagedBatch, block_size: int) -> None:
        self._cache, self._block_size = cache, block_size
        num_blocks = -(-batch.context_lens // block_size)
        alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for i, (queries, blocks) in enumerate(
            zip(batch.query_lens.tolist(), num_blocks.tolist(), strict=True)
        ):
            # By powers of two, so that short contexts are not padded to the longest one.
            alike[queries, blocks.bit_length()].append(i)
        starts = np.cumsum(batch.query_lens) - batch.query_lens
        self._groups = [
            self._group(batch, starts, num_blocks, num_queries, members)
            for (num_queries, _), members in alike.items()
        ]

    def _group(
        self,
        batch: PagedBatch,
        starts: npt.NDArray[np.int64],
        num_blocks: npt.NDArray[np.int64],
        num_queries: int,
        members: list[int],
    ) -> _Alike:
        def on_device(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(array).to(self._cache.device)

        lens = batch.context_lens[members]
        rows = starts[members][:, None] + np.arange(num_queries)
        tables = batch.block_tables[members, : num_blocks[members].max()]
        return _Alike(
            rows=on_device(rows.reshape(-1)),
            tables=on_device(tables.astype(np.int64)),
            lens=on_device(lens),
            num_queries=num_queries,
            shortest=int(lens.min()),
            longest=int(lens.max()),
            block_size=self._block_size,
            whole=bool((lens == num_queries).all()),
        )

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
        """Causal attention of each token over its sequence's context.

        Args:
            layer: Layer to read; the K/V of this batch is written already.
            query: ``[num_tokens, num_heads, head_dim]``, on the cache's device.
            scale: Factor on the scores.
            window: Tokens that a token sees, including itself; ``None`` for all.
            softcap: Smooth bound of the scores, ``(-softcap, softcap)``; ``None`` for no bound.
            chunk: Size of chunks; a token sees only its own chunk. ``None`` for all tokens.
            sinks: ``[num_heads]``: an additional score whose weight goes to no value; ``None`` for
                no sink.
            expand: For a layer that keeps latents, the function that expands them to K and V.

        Returns:
            ``[num_tokens, num_heads, value_dim]``; values have the size of ``query``, or the size
            that ``expand`` returns.
        """
        result: torch.Tensor | None = None
        for alike in self._groups:
            q = query[alike.rows].unflatten(0, (-1, alike.num_queries)).transpose(1, 2)
            k, v = self._read(layer, alike, alike.first_block(window, chunk), expand)
            width = min(window or alike.longest, chunk or alike.longest)
            if softcap is not None or sinks is not None:
                mask = alike.mask(window, chunk)
                out = _spelled_out(q, k, v, mask, scale=scale, softcap=softcap, sinks=sinks)
            elif alike.num_queries == 1:
                out = _decoded(q, k, v, alike.mask(window, chunk), scale)
            elif alike.whole and width >= alike.longest:
                out = F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, scale=scale, enable_gqa=True
                )
            else:
                out = F.scaled_dot_product_attention(
                    q, k, v, attn_mask=alike.mask(window, chunk), scale=scale, enable_gqa=True
                )
            if result is None:
                result = query.new_empty(*query.shape[:2], out.shape[-1])
            result[alike.rows] = out.transpose(1, 2).flatten(0, 1)
        assert result is not None  # a batch has sequences
        return result

    def _read(
        self, layer: int, alike: _Alike, first: int, expand: Expand | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of the contexts, from block ``first`` on."""
        keys, values = self._cache.keys(layer), self._cache.values(layer)
        if expand is not None:
            return expand(_context(keys, alike, first))
        assert values is not None  # only latents have no V
        return _context(keys, alike, first), _context(values, alike, first)


def _context(blocks: torch.Tensor, alike: _Alike, first: int) -> torch.Tensor:
    """``[num_seqs, num_kv_heads, num_keys, head_dim]``, gathered from block ``first`` on."""
    gathered = blocks[alike.tables[:, first:]].flatten(1, 2)
    return gathered[:, : alike.longest - first * alike.block_size].transpose(1, 2)


def _decoded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    # With one query per sequence, the heads that share a K/V head can take the place of queries:
    # K/V is not repeated, and the mask, which is the same for all of them, is broadcast.
    packed = q.unflatten(1, (k.shape[1], -1)).squeeze(3)
    out = F.scaled_dot_product_attention(packed, k, v, attn_mask=mask, scale=scale)
    return out.flatten(1, 2).unsqueeze(2)


def _spelled_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    # torch's fused attention supports neither a cap nor sinks.
    heads = q.unflatten(1, (k.shape[1], -1))
    scores = heads @ k.unsqueeze(2).transpose(3, 4) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~mask.unsqueeze(2), float("-inf"))
    if sinks is not None:
        own = sinks.to(scores.dtype).unflatten(0, (k.shape[1], -1))[None, :, :, None, None]
        scores = torch.cat((scores, own.expand(*scores.shape[:-1], 1)), dim=-1)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
    out: torch.Tensor = weights[..., : k.shape[2]] @ v.unsqueeze(2)
    return out.flatten(1, 2)
