"""KV cache events in vLLM's structures, with vLLM's hashes.

The core identifies blocks by its own digests. vLLM's clients use the hashes of its requests, so the
port stores the hash of each findable block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)

from blockmgr import EventKind

if TYPE_CHECKING:
    from vllm.v1.request import Request

    from blockmgr import BlockManager, Event

__all__ = ["KVEvents", "waiting_blocks"]

GROUP = 0


def waiting_blocks(num_blocks: int) -> int:
    """Most blocks whose events wait between two calls of ``stored_by`` and ``take``.

    Each block is removed at most once, and one commit stores each block once; ``take`` follows a
    reset.
    """
    return 2 * num_blocks + 1


class Known(NamedTuple):
    """A published block.

    Attributes:
        hash: The published hash: bytes or a number.
        place: Index of the block in its prompts.
    """

    hash: Any
    place: int


class KVEvents:
    """The events for vLLM's publisher.

    vLLM publishes a block whenever a request computes it, and its removal when any copy of it is
    evicted. Here a block is stored once, and removed with its last copy.

    Args:
        manager: A manager built with ``events=True``.
        block_size: Tokens per block.
        kind: vLLM's name for the layers of the group.
    """

    def __init__(self, manager: BlockManager, block_size: int, kind: str) -> None:
        self._manager = manager
        self._block_size = block_size
        self._kind = kind
        self._known: dict[bytes, Known] = {}
        self._queue: list[Any] = []

    def stored_by(self, request: Request) -> None:
        """Records the blocks that a commit made findable; call it after each commit."""
        self._drain(request)

    def reused_by(self, request: Request, num_blocks: int) -> None:
        """Reports found blocks, if the request asks for it (``kv_cache_report_mode``)."""
        mode = getattr(request, "kv_cache_report_mode", "incremental")
        if num_blocks and mode == "full":
            self._queue.append(self._stored(request, 0, num_blocks, None))

    def take(self) -> list[Any]:
        """The events since the last call, in vLLM's form."""
        self._drain(None)
        taken, self._queue = self._queue, []
        return taken

    def _drain(self, request: Request | None) -> None:
        events = self._manager.take_events()
        assert not events.num_lost, "the log of events is as large as what it may have to hold"
        if not len(events):
            return
        for event in events:
            if event.kind is EventKind.STORED:
                assert request is not None, "blocks become findable by commits alone"
                self._take_stored(request, event)
            elif event.kind is EventKind.REMOVED:
                hashes = [self._known.pop(digest).hash for digest in event.digests]
                self._queue.append(BlockRemoved(hashes, MEDIUM_GPU, group_idx=GROUP))
            else:
                self._known.clear()
                self._queue.append(AllBlocksCleared())

    def _take_stored(self, request: Request, event: Event) -> None:
        before = None if event.parent is None else self._known[event.parent]
        start = 0 if before is None else before.place + 1
        parent = None if before is None else before.hash
        stored = self._stored(request, start, start + len(event.digests), parent)
        for index, digest in enumerate(event.digests):
            self._known[digest] = Known(stored.block_hashes[index], start + index)
        self._queue.append(stored)

    def _stored(self, request: Request, start: int, stop: int, parent: Any) -> Any:
        hashes = request.block_hashes[start:stop]
        adapter = request.lora_request
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(each) for each in hashes],
            parent_block_hash=parent,
            token_ids=request._all_token_ids[start * self._block_size : stop * self._block_size],
            block_size=self._block_size,
            lora_id=adapter.adapter_id if adapter else None,
            medium=MEDIUM_GPU,
            lora_name=adapter.name if adapter else None,
            extra_keys=to_event_extra_keys(self._extra_keys(request, start, stop)),
            group_idx=GROUP,
            kv_cache_spec_kind=self._kind,
            session_id=request.session_id,
        )

    def _extra_keys(self, request: Request, start: int, stop: int) -> list[Any]:
        has_keys = request.lora_request or request.cache_salt or request.mm_features
        if not has_keys and request.prompt_embeds is None:
            return [None] * (stop - start)
        keys, index = [], 0
        for block in range(start, stop):
            first = block * self._block_size
            key, index = generate_block_hash_extra_keys(
                request, first, first + self._block_size, index
            )
            keys.append(key)
        return keys
