"""The model's calls on the whole cache: reset, common prefixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blockmgr.digest import digest_function, digest_size
from blockmgr.errors import StepError
from blockmgr.stats import RecentHits
from tests.stress.model_retention import RetentionModel

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["CacheModel"]


class CacheModel(RetentionModel):
    """The part of the model for calls on the whole cache."""

    def reset_prefix_cache(self, *, reset_hit_rate: bool = True) -> int:
        running = [seq for seq in self.seqs.values() if not seq.is_preempted]
        if self.config.early_commit and any(s.settled < s.num_computed_tokens for s in running):
            raise StepError("a sequence has tokens committed early in this step")
        for seq in running:
            seq.outdated, seq.promoted = True, 0
        cached = [block for block in self.live if block.content is not None]
        for block in self.live.copy():
            block.twin = None
            if block in cached:
                self.lose(block)
        self.settle_down()
        self.count["forgotten_blocks"] += len(cached)
        if reset_hit_rate:
            self.lookups.clear()
        return len(cached)

    def reset_hit_rate(self) -> None:
        self.lookups.clear()

    def recent_hits(self) -> RecentHits:
        window = self.config.hit_rate_window
        last = self.lookups[-window:] if window else []
        return RecentHits(
            requests=len(last),
            query_tokens=sum(query for query, _ in last),
            hit_tokens=sum(hit for _, hit in last),
        )

    def num_common_prefix_blocks(self, handles: Iterable[int] | None = None) -> int:
        running = [seq for seq in self.seqs.values() if not seq.is_preempted]
        chosen = running if handles is None else [self.running(handle) for handle in handles]
        computed = [seq.blocks[: seq.num_computed_tokens // self.size] for seq in chosen]
        columns = zip(*computed, strict=False)
        differing = (i for i, blocks in enumerate(columns) if len(set(blocks)) > 1)
        return next(differing, min(map(len, computed), default=0))

    def block_digests(
        self, tokens: Iterable[int], *, namespace: object = b"", extras: object = None
    ) -> list[bytes]:
        if not self.config.prefix_caching:
            raise ValueError("needs prefix_caching")
        seq = self.prompt(tokens, namespace, extras)
        function = digest_function(self.config.digest)
        before = function(seq.namespace) if seq.namespace else bytes(digest_size(function))
        digests: list[bytes] = []
        for extra, chunk in seq.content(len(seq.tokens) // self.size)[1]:
            before = function(before + extra + b"".join(t.to_bytes(4, "little") for t in chunk))
            digests.append(before)
        return digests
