"""KV cache events in vLLM's structures, with vLLM's hashes.

The core identifies blocks by its own digests. vLLM's clients use the hashes of its requests, so the
port stores the hashes of each findable block. Groups of layers publish their own blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

from blockmgr import EventKind, SlidingWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.v1.request import Request

    from blockmgr import BlockManager, Event
    from blockmgr.ports.vllm.layers import Layers

__all__ = ["KVEvents", "Published", "waiting_blocks"]

WHOLE_PREFIX = ("full_attention", "mla_attention")


def waiting_blocks(num_blocks: int) -> int:
    """Most blocks whose events wait between two calls of ``stored_by`` and ``take``.

    Each block is removed at most once, and one commit stores each block once; ``take`` follows a
    reset.
    """
    return 2 * num_blocks + 1


@dataclass(frozen=True, slots=True)
class Published:
    """What is published of a group of layers.

    Attributes:
        kind: vLLM's name for its layers.
        window: Tokens of its sliding window, if it has one.
        block_size: Tokens per block.
        num_told: Blocks of each of the manager's blocks, the last ones, that are published: those
            that the query right behind reads.
    """

    kind: str
    window: int | None
    block_size: int
    num_told: int

    @classmethod
    def of(cls, layers: Layers, node_size: int) -> Published:
        """The group of these layers, in a manager with blocks of this many tokens."""
        window = layers.group.width if isinstance(layers.group, SlidingWindow) else None
        told = node_size // layers.block_size
        if layers.has_states:
            told = 1
        elif window is not None:
            told = min(told, max(1, layers.num_entries(window - 1)))
        return cls(get_kv_cache_spec_kind(layers.spec).value, window, layers.block_size, told)


@dataclass(slots=True)
class Known:
    """One of the manager's blocks that is published.

    Attributes:
        hashes: The published hashes of its parts, bytes or numbers; vLLM hashes at the greatest
            common divisor of the block sizes.
        place: Its index in its prompts.
        about: What its prompt has besides tokens.
        num_groups: Groups that are known to have it.
    """

    hashes: list[Any]
    place: int
    about: About
    num_groups: int = 0


class Run(NamedTuple):
    """Blocks of a group in a row.

    Attributes:
        first: Its first token, among those of an event.
        hashes: Their published hashes.
        parent: The hash of the block before; None at the beginning of a prompt.
    """

    first: int
    hashes: list[Any]
    parent: Any


class About:
    """The fields of a request that events need, under vLLM's names.

    It lives as long as a block of the request is cached, so it keeps neither tokens nor pixels nor
    embeddings. Events of the request's own commits have the keys of its embeddings, too.

    Attributes:
        request: The request, during its commit.
    """

    __slots__ = (
        "cache_salt", "lora_request", "mm_features", "prompt_embeds", "request", "session_id",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.request: Request | None = request
        self.lora_request = request.lora_request
        self.cache_salt = request.cache_salt
        self.prompt_embeds = None
        self.session_id = request.session_id
        self.mm_features = [
            SimpleNamespace(identifier=each.identifier, mm_position=each.mm_position)
            for each in request.mm_features
        ]


class KVEvents:
    """The events for vLLM's publisher.

    vLLM publishes a block whenever a request computes it, and its removal when any copy of it is
    evicted. Here a block is stored once, and removed with its last copy.

    Args:
        manager: A manager built with ``events=True``.
        block_size: Tokens per block of the manager.
        hash_size: Tokens that each hash of a request adds.
        groups: Its groups of layers, in order.
    """

    def __init__(
        self,
        manager: BlockManager,
        block_size: int,
        hash_size: int,
        groups: Sequence[Published],
    ) -> None:
        self._manager = manager
        self._block_size = block_size
        self._hash_size = hash_size
        self._groups = groups
        self._known: dict[bytes, Known] = {}
        # Of groups whose blocks are smaller than the manager's: how often each is stored.
        self._copies: dict[tuple[int, Any], int] = {}
        self._queue: list[Any] = []
        self._committing: list[About] = []  # those with a request

    def stored_by(self, request: Request) -> None:
        """Records the blocks that a commit made findable; call it after each commit."""
        self._drain(request)
        for about in self._committing:
            about.request = None
        self._committing.clear()

    def reused_by(self, request: Request, num_tokens: int) -> None:
        """Reports found blocks, if the request asks for it (``kv_cache_report_mode``).

        Of layers that read a part of a prefix, others may have evicted what comes before.
        """
        if getattr(request, "kv_cache_report_mode", "incremental") != "full":
            return
        whole = num_tokens - num_tokens % self._block_size
        for number, group in enumerate(self._groups):
            if whole and group.kind in WHOLE_PREFIX:
                tokens, hashes = request._all_token_ids[:whole], self._hashes(request, 0, whole)
                per_block = self._hashes_per_block(number)
                run = Run(0, hashes[per_block - 1 :: per_block], None)
                self._queue.append(self._stored(number, About(request), 0, run, tokens))

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
                self._take_stored(request, event)
            elif event.kind is EventKind.REMOVED:
                hashes = [each for digest in event.digests for each in self._remove(event, digest)]
                if hashes:
                    self._queue.append(BlockRemoved(hashes, MEDIUM_GPU, group_idx=event.group))
            else:
                self._known.clear()
                self._copies.clear()
                self._queue.append(AllBlocksCleared())

    def _remove(self, event: Event, digest: bytes) -> list[Any]:
        """The hashes to remove with one of the manager's blocks."""
        known = self._known[digest]
        known.num_groups -= 1
        if not known.num_groups:
            del self._known[digest]
        told = [known.hashes[end - 1] for end in self._ends(event.group)]
        if self._groups[event.group].block_size == self._block_size:
            return told
        gone = []
        for each in told:
            self._copies[event.group, each] -= 1
            if not self._copies[event.group, each]:
                del self._copies[event.group, each]
                gone.append(each)
        return gone

    def _take_stored(self, request: Request | None, event: Event) -> None:
        before = None if event.parent is None else self._known[event.parent]
        start = 0 if before is None else before.place + 1
        nodes = self._nodes(request, event, start)
        parent = None if before is None else before.hashes[-1]
        if self._groups[event.group].block_size == self._block_size:
            runs = [Run(0, [node.hashes[-1] for node in nodes], parent)]
        else:
            runs = self._new_runs(event.group, nodes, parent)
        tokens, first = event.tokens.ravel().tolist(), start * self._block_size
        for run in runs:
            stored = self._stored(event.group, nodes[0].about, first, run, tokens)
            self._queue.append(stored)

    def _new_runs(self, number: int, nodes: list[Known], parent: Any) -> list[Run]:
        """The blocks of a group, of nodes in a row, that no other node has.

        Prompts that diverge inside a node have two nodes, whose first small blocks are equal.
        """
        size, per_block = self._groups[number].block_size, self._hashes_per_block(number)
        runs: list[Run] = []
        for index, node in enumerate(nodes):
            for end in self._ends(number):
                hash_ = node.hashes[end - 1]
                copies = self._copies.get((number, hash_), 0)
                self._copies[number, hash_] = copies + 1
                if copies:
                    continue
                first = index * self._block_size + (end - per_block) * self._hash_size
                if runs and runs[-1].first + len(runs[-1].hashes) * size == first:
                    runs[-1].hashes.append(hash_)
                else:
                    before = node.hashes[end - per_block - 1] if end > per_block else parent
                    runs.append(Run(first, [hash_], before))
            parent = node.hashes[-1]
        return runs

    def _nodes(self, request: Request | None, event: Event, start: int) -> list[Known]:
        """The stored blocks; those that no group had yet are blocks of this request."""
        known, size = self._known, self._block_size
        about = hashes = None
        nodes = []
        for index, digest in enumerate(event.digests):
            node = known.get(digest)
            if node is None:
                if hashes is None:
                    assert request is not None, "new blocks become findable by commits alone"
                    end = start + len(event.digests)
                    about, hashes = About(request), self._hashes(request, start * size, end * size)
                    self._committing.append(about)
                assert about is not None
                parts = size // self._hash_size
                of_it = hashes[index * parts : (index + 1) * parts]
                known[digest] = node = Known(of_it, start + index, about)
            node.num_groups += 1
            nodes.append(node)
        return nodes

    def _hashes(self, request: Request, start: int, stop: int) -> list[Any]:
        """The published hashes of a request between two of its tokens."""
        hashes = request.block_hashes[start // self._hash_size : stop // self._hash_size]
        return [maybe_convert_block_hash(each) for each in hashes]

    def _hashes_per_block(self, group: int) -> int:
        return self._groups[group].block_size // self._hash_size

    def _ends(self, group: int) -> range:
        """Of the hashes of one of the manager's blocks, where published blocks of a group end."""
        per_block = self._hashes_per_block(group)
        most = self._block_size // self._hash_size
        return range(most - (self._groups[group].num_told - 1) * per_block, most + 1, per_block)

    def _stored(
        self, number: int, about: About, start: int, run: Run, tokens: list[int]
    ) -> BlockStored:
        group, adapter = self._groups[number], about.lora_request
        count = len(run.hashes)
        return BlockStored(
            block_hashes=run.hashes,
            parent_block_hash=run.parent,
            token_ids=tokens[run.first : run.first + count * group.block_size],
            block_size=group.block_size,
            lora_id=adapter.adapter_id if adapter else None,
            medium=MEDIUM_GPU,
            lora_name=adapter.name if adapter else None,
            extra_keys=to_event_extra_keys(
                self._extra_keys(about, start + run.first, count, group.block_size)
            ),
            group_idx=number,
            kv_cache_spec_kind=group.kind,
            kv_cache_spec_sliding_window=group.window,
            session_id=about.session_id,
        )

    @staticmethod
    def _extra_keys(about: About, start: int, count: int, size: int) -> list[Any]:
        source = about if about.request is None else about.request
        has_keys = source.lora_request or source.cache_salt or source.mm_features
        if not has_keys and source.prompt_embeds is None:
            return [None] * count
        keys, index = [], 0
        for first in range(start, start + count * size, size):
            key, index = generate_block_hash_extra_keys(source, first, first + size, index)
            keys.append(key)
        return keys
