"""Events in the formats of NVIDIA Dynamo's router, TensorRT-LLM and SGLang.

None of them has groups of layers, so each encoder writes the events of one group. If a system has
no event for the clearing of one tier, the encoder removes the blocks of the tier, and keeps their
names for that.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash

from blockmgr.arguments import truth, whole
from blockmgr.event_columns import EventKind, Tier
from blockmgr.events.codec import (
    LOW_BITS,
    MOST_BLOCKS,
    anonymous,
    pieces,
    public_session,
    short,
    weight_of,
)
from blockmgr.events.wire import PlainBatch, SglangCleared, SglangRemoved, SglangStored
from blockmgr.vllm_keys import vllm_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.event_columns import Event

__all__ = ["DynamoEncoder", "SglangEncoder", "TrtllmEncoder"]

_MOST_GROUPS: Final = 255

_DYNAMO_SEED: Final = 1337
_DYNAMO_TIERS: Final = {
    Tier.DEVICE: "device",
    Tier.HOST: "host_pinned",
    Tier.DISK: "disk",
    Tier.REMOTE: "external",
}
_TRTLLM_LEVELS: Final = {Tier.DEVICE: 0, Tier.HOST: 1}
_TRTLLM_PRIORITY: Final = 35
"""TensorRT-LLM's default retention priority."""
_SGLANG_MEDIA: Final = {
    Tier.DEVICE: "GPU",
    Tier.HOST: "CPU_PINNED",
    Tier.DISK: "DISK",
    Tier.REMOTE: "EXTERNAL",
}

_json = msgspec.json.Encoder()


class _Told:
    """Names of the published blocks by tier, for events that other systems lack."""

    def __init__(self) -> None:
        self.tiers: dict[Tier, dict[int, None]] = {tier: {} for tier in Tier}

    def take(self, event: Event, names: list[int]) -> list[int]:
        """Records an event, and returns the names of its blocks."""
        known = self.tiers[event.tier]
        if event.kind is EventKind.STORED:
            known.update(dict.fromkeys(names))
        elif event.kind is EventKind.CLEARED:
            names = list(known)
            known.clear()
        else:
            for name in names:
                known.pop(name, None)
        return names

    def best(self, name: int) -> Tier | None:
        """The first tier that has a block."""
        return next((tier for tier, known in self.tiers.items() if name in known), None)


def _is_of(group: int, event: Event) -> bool:
    """Whether an event concerns a group; a clearing concerns all."""
    return event.group == group or event.kind is EventKind.CLEARED


class DynamoEncoder:
    """Encodes events as Dynamo's ``RouterEvent``, one JSON document an event.

    Dynamo's router finds blocks by ``tokens_hash``, which it computes from a request's tokens,
    namespace and adapter. The namespace is that of the event, as text; the adapter and images are
    those of ``vllm_extras``. The router does not know a salt among the extra keys: use a namespace.

    Its ``cleared`` event concerns all tiers and all ranks of a worker, so a cleared tier becomes
    the removal of its blocks.

    Args:
        worker_id: Number of the worker.
        rank: Data-parallel rank.
        group: Number of the group of layers whose events it writes.

    Raises:
        ValueError: A number is out of its bounds.

    Source: ``lib/kv-router/src/protocols.rs`` of ai-dynamo/dynamo.
    """

    def __init__(self, worker_id: int, *, rank: int = 0, group: int = 0) -> None:
        self._worker = whole("worker_id", worker_id, 0, LOW_BITS)
        self._rank = whole("rank", rank, 0, 2**32 - 1)
        self._group = whole("group", group, 0, _MOST_GROUPS)
        self._told = _Told()
        self._next = 0

    def encode(self, events: Iterable[Event]) -> Iterator[bytes]:
        """One document per event, in order; none for the clearing of an empty tier.

        Raises:
            ValueError: A namespace is not UTF-8 text. That event got no number.
        """
        for event in events:
            if not _is_of(self._group, event):
                continue
            hashes = [short(digest) for digest in event.digests]
            stored = self._stored(event, hashes) if event.kind is EventKind.STORED else None
            hashes = self._told.take(event, hashes)
            if not hashes:
                continue
            number, self._next = self._next, self._next + 1
            data = stored or {"removed": {"block_hashes": hashes}}
            document = {
                "worker_id": self._worker,
                "storage_tier": _DYNAMO_TIERS[event.tier],
                "event": {"event_id": number, "data": data, "dp_rank": self._rank},
            }
            yield _json.encode(document)

    def _stored(self, event: Event, hashes: list[int]) -> dict[str, Any]:
        blocks = []
        for index, (block, tokens) in enumerate(zip(hashes, event.tokens, strict=True)):
            lora, images = _adapter_and_images(event.extras.get(index))
            data = tokens.astype("<u4").tobytes()
            data += b"".join(struct.pack("<Q", image) for image in sorted(images))
            found = xxhash.xxh3_64_intdigest(data, _seed(event.namespace, lora))
            objects = [{"mm_hash": image, "offsets": []} for image in images]
            info = {"mm_objects": objects} if objects else None
            blocks.append({"block_hash": block, "tokens_hash": found, "mm_extra_info": info})
        parent = None if event.parent is None else short(event.parent)
        return {"stored": {"parent_hash": parent, "start_position": None, "blocks": blocks}}


def _seed(namespace: bytes, lora: str | None) -> int:
    seed = _DYNAMO_SEED
    if lora:
        seed += xxhash.xxh3_64_intdigest(lora.encode(), 0)
    if namespace:
        try:
            text = namespace.decode()
        except UnicodeDecodeError:
            raise ValueError("namespace must be UTF-8 text for Dynamo") from None
        seed += xxhash.xxh3_64_intdigest(text.encode(), 1)
    return seed & LOW_BITS


def _adapter_and_images(extras: bytes | None) -> tuple[str | None, list[int]]:
    lora, images = None, []
    for kind, value in _keys(extras):
        if kind == "lora":
            lora = value
        elif kind == "mm":
            images.append(_image(value))
    return lora, images


def _image(identifier: str) -> int:
    """The number of an image: the start of a hexadecimal digest, or a hash of another name."""
    if len(identifier) == 64:
        try:
            return int(identifier[:16], 16)
        except ValueError:
            pass
    return xxhash.xxh3_64_intdigest(identifier.encode())


class TrtllmEncoder:
    """Encodes events as the JSON of TensorRT-LLM's ``KVCacheEvent``, one document an event.

    A block is in one cache level: the device, or else the host. It is stored once, updated when its
    level changes, and removed when neither has it. The format has no event for a cleared tier,
    so each of its blocks is removed. Other tiers have no level and no events.

    Args:
        num_blocks: Blocks on the device, for the first event.
        window_size: Attention window, in tokens; for full attention, the longest sequence.
        host_blocks: Blocks in host memory, likewise.
        rank: Attention data-parallel rank; None leaves it out.
        group: Number of the group of layers whose events it writes.

    Raises:
        ValueError: A number is out of its bounds.

    Source: ``tensorrt_llm/_utils.py``, ``KVCacheEventSerializer``.
    """

    def __init__(
        self,
        num_blocks: int,
        window_size: int,
        *,
        host_blocks: int = 0,
        rank: int | None = None,
        group: int = 0,
    ) -> None:
        self._blocks = whole("num_blocks", num_blocks, 1, 2**31)
        self._window = whole("window_size", window_size, 1, 2**31)
        self._host_blocks = whole("host_blocks", host_blocks, 0, 2**31)
        self._rank = None if rank is None else whole("rank", rank, 0, 2**16)
        self._group = whole("group", group, 0, _MOST_GROUPS)
        self._told = _Told()
        self._next = 0

    def created(self) -> bytes:
        """The event to publish before all others."""
        levels = [self._blocks, self._host_blocks]
        return self._document({"type": "created", "num_blocks_per_cache_level": levels})

    def encode(self, events: Iterable[Event]) -> Iterator[bytes]:
        """The documents of events, in order; none for an event that changes no block's level."""
        for event in events:
            if _is_of(self._group, event) and event.tier in _TRTLLM_LEVELS:
                yield from self._documents(event)

    def _documents(self, event: Event) -> Iterator[bytes]:
        names = [short(digest) for digest in event.digests]
        if event.kind is EventKind.CLEARED:
            names = list(self._told.tiers[event.tier])
        before = [self._told.best(name) for name in names]
        self._told.take(event, names)
        after = [self._told.best(name) for name in names]
        if event.kind is EventKind.STORED:
            yield from self._stored(event, names, before)
        gone = [n for n, a, b in zip(names, after, before, strict=True) if a is None is not b]
        if gone:
            yield self._document({"type": "removed", "block_hashes": gone})
        for name, old, new in zip(names, before, after, strict=True):
            if old is not None and new is not None and old is not new:
                yield self._document(_updated(name, old, new))

    def _stored(self, event: Event, names: list[int], before: list[Tier | None]) -> Iterator[bytes]:
        """Runs of blocks that were in no level before."""
        start = 0
        while start < len(names):
            if before[start] is not None:
                start += 1
                continue
            stop = next((i for i in range(start, len(names)) if before[i] is not None), len(names))
            first = None if event.parent is None else short(event.parent)
            parent = names[start - 1] if start else first
            blocks = [
                {
                    "type": "stored_block",
                    "block_hash": name,
                    "tokens": [
                        {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                        for token in tokens
                    ],
                    "cache_level": _TRTLLM_LEVELS[event.tier],
                    "priority": _TRTLLM_PRIORITY,
                }
                for name, tokens in zip(
                    names[start:stop], event.tokens[start:stop].tolist(), strict=True
                )
            ]
            yield self._document({"type": "stored", "parent_hash": parent, "blocks": blocks})
            start = stop

    def _document(self, data: dict[str, Any]) -> bytes:
        number, self._next = self._next, self._next + 1
        document = {"event_id": number, "data": data, "window_size": self._window}
        if self._rank is not None:
            document["attention_dp_rank"] = self._rank
        return _json.encode(document)


def _updated(name: int, old: Tier, new: Tier) -> dict[str, Any]:
    levels = {"new_value": _TRTLLM_LEVELS[new], "old_value": _TRTLLM_LEVELS[old]}
    priorities = {"new_value": _TRTLLM_PRIORITY, "old_value": _TRTLLM_PRIORITY}
    return {
        "type": "updated",
        "block_hash": name,
        "cache_level": {"type": "event_diff", **levels},
        "priority": {"type": "event_diff", **priorities},
    }


class SglangEncoder:
    """Encodes events as SGLang's batches: arrays of maps, like vLLM's with fewer fields.

    A block's name is the first 64 bits of its digest as a signed number. A namespace is published
    as part of its SHA-256, in place of the salt; a salt among the extra keys is published
    unchanged, as in SGLang. Other keys, such as images, are part of the name alone, because SGLang
    has no field for them. ``AllBlocksCleared`` concerns all tiers, so it is published when no
    tier has blocks; otherwise a cleared tier becomes the removal of its blocks.

    Args:
        block_size: Tokens per block.
        rank: Attention data-parallel rank; None for an engine without ranks.
        group: Number of the group of layers whose events it writes.
        sessions: Whether to publish the names of sessions, as ``session_id``.

    Raises:
        ValueError: A number is out of its bounds.
        TypeError: ``sessions`` is not a bool.

    Source: ``srt/disaggregation/kv_events.py`` and ``srt/mem_cache/utils.py`` of SGLang 0.5.23.
    """

    def __init__(
        self, block_size: int, *, rank: int | None = None, group: int = 0, sessions: bool = False
    ) -> None:
        self._block_size = whole("block_size", block_size, 1, 2**16 - 1)
        self._rank = None if rank is None else whole("rank", rank, 0, 2**16)
        self._group = whole("group", group, 0, _MOST_GROUPS)
        self._sessions = truth("sessions", sessions)
        self._told = _Told()
        self._salts: dict[int, str] = {}  # only blocks that have one
        self._encoder = msgspec.msgpack.Encoder()

    def batches(self, events: Iterable[Event], ts: float) -> Iterator[bytes]:
        """Encoded batches, each of a bounded number of blocks.

        Args:
            events: Events to encode, in order.
            ts: Time of the events, in seconds.
        """
        part: list[Any] = []
        size = 0
        for event in events:
            if not _is_of(self._group, event):
                continue
            for piece in pieces(event):
                for made, blocks in self._events(piece):
                    weight = max(blocks, weight_of(piece))
                    if size + weight > MOST_BLOCKS and part:
                        yield self._encoder.encode(PlainBatch(ts, part, self._rank))
                        part, size = [], 0
                    part.append(made)
                    size += weight
        if part:
            yield self._encoder.encode(PlainBatch(ts, part, self._rank))

    def _events(self, event: Event) -> Iterator[tuple[Any, int]]:
        """The events of SGLang for one event, each with its number of blocks."""
        medium = _SGLANG_MEDIA[event.tier]
        names = self._told.take(event, [_head(digest) for digest in event.digests])
        if event.kind is EventKind.STORED:
            yield self._stored(event, names, medium), len(names)
            return
        for name in names:
            if name in self._salts and self._told.best(name) is None:
                del self._salts[name]
        if event.kind is EventKind.CLEARED and not any(self._told.tiers.values()):
            yield SglangCleared(), 0
            return
        for start in range(0, len(names), MOST_BLOCKS):
            part = names[start : start + MOST_BLOCKS]
            yield SglangRemoved(part, medium), len(part)

    def _stored(self, event: Event, names: list[int], medium: str) -> SglangStored:
        parent = None if event.parent is None else _head(event.parent)
        salt, lora = _salt_and_adapter(event.extras.get(0))
        if event.namespace:
            salt = anonymous(event.namespace)
        elif parent is not None:
            salt = self._salts.get(parent)
        if salt is not None:
            self._salts.update(dict.fromkeys(names, salt))
        tokens = event.tokens.ravel().tolist()
        session = public_session(event) if self._sessions else None
        size = self._block_size
        return SglangStored(names, parent, tokens, size, None, medium, salt, session, lora)


def _head(digest: bytes) -> int:
    """The form in which SGLang publishes a digest.

    >>> _head(bytes.fromhex("ff" * 8 + "00" * 8))
    -1
    """
    return int.from_bytes(digest[:8], "big", signed=True)


def _salt_and_adapter(extras: bytes | None) -> tuple[str | None, str | None]:
    salt = lora = None
    for kind, value in _keys(extras):
        salt = value if kind == "cache_salt" else salt
        lora = value if kind == "lora" else lora
    return salt, lora


def _keys(extras: bytes | None) -> Iterator[tuple[str, str]]:
    """Kinds and texts of keys that ``vllm_extras`` made; empty for other keys."""
    try:
        keys: Any = vllm_keys(extras) if extras else ()
    except ValueError:
        return
    for key in keys:
        if isinstance(key, tuple) and len(key) > 1 and isinstance(key[1], str):
            yield key[0], key[1]
