"""Events as two other systems write them: NVIDIA Dynamo's router, and TensorRT-LLM.

Both give each event a number, and name blocks by the low 64 bits of their digests.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash

from blockmgr.arguments import whole
from blockmgr.event_columns import EventKind, Tier
from blockmgr.events.codec import LOW_BITS, short
from blockmgr.vllm_keys import vllm_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.event_columns import Event

__all__ = ["DynamoEncoder", "TrtllmEncoder"]

_DYNAMO_SEED: Final = 1337
_DYNAMO_TIERS: Final = {
    Tier.DEVICE: "device",
    Tier.HOST: "host_pinned",
    Tier.DISK: "disk",
    Tier.REMOTE: "external",
}
_TRTLLM_PRIORITY: Final = 35
"""TensorRT-LLM's default retention priority."""

_json = msgspec.json.Encoder()


class DynamoEncoder:
    """Encodes events as Dynamo's ``RouterEvent``, one JSON document an event.

    Its router finds blocks by ``tokens_hash``, which it computes from a request's tokens, namespace
    and adapter. The namespace is that of the event, as text; the adapter and images are those of
    ``vllm_extras``. A salt among the extra keys is unknown to it: use a namespace.

    Args:
        worker_id: Number of the worker.
        rank: Data-parallel rank.

    Raises:
        ValueError: A number is out of its bounds.

    Source: ``lib/kv-router/src/protocols.rs`` of ai-dynamo/dynamo.
    """

    def __init__(self, worker_id: int, *, rank: int = 0) -> None:
        self._worker = whole("worker_id", worker_id, 0, LOW_BITS)
        self._rank = whole("rank", rank, 0, 2**32 - 1)
        self._next = 0

    def encode(self, events: Iterable[Event]) -> Iterator[bytes]:
        """One document an event, in order.

        Raises:
            ValueError: A namespace is no UTF-8 text.
        """
        for event in events:
            number, self._next = self._next, self._next + 1
            document = {
                "worker_id": self._worker,
                "storage_tier": _DYNAMO_TIERS[event.tier],
                "event": {"event_id": number, "data": self._data(event), "dp_rank": self._rank},
            }
            yield _json.encode(document)

    def _data(self, event: Event) -> Any:
        if event.kind is EventKind.CLEARED:
            return "cleared"
        hashes = [short(digest) for digest in event.digests]
        if event.kind is EventKind.REMOVED:
            return {"removed": {"block_hashes": hashes}}
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
    try:
        keys: Any = vllm_keys(extras) if extras else ()
    except ValueError:
        keys = ()
    for key in keys:
        if isinstance(key, tuple) and len(key) > 1 and isinstance(key[1], str):
            if key[0] == "lora":
                lora = key[1]
            elif key[0] == "mm":
                images.append(_image(key[1]))
    return lora, images


def _image(identifier: str) -> int:
    """The number of an image: the head of a digest in hexadecimal, or a hash of any other name."""
    if len(identifier) == 64:
        try:
            return int(identifier[:16], 16)
        except ValueError:
            pass
    return xxhash.xxh3_64_intdigest(identifier.encode())


class TrtllmEncoder:
    """Encodes events as the JSON of TensorRT-LLM's ``KVCacheEvent``, one document an event.

    It has no event for a tier that is cleared, so that is told as the removal of all blocks; the
    encoder keeps their names for it.

    Args:
        num_blocks: Blocks on the device, for the first event.
        window_size: Attention window, in tokens; of full attention the longest sequence.
        rank: Attention data-parallel rank; None leaves it out.

    Raises:
        ValueError: A number is out of its bounds.

    Source: ``tensorrt_llm/_utils.py``, ``KVCacheEventSerializer``.
    """

    def __init__(self, num_blocks: int, window_size: int, *, rank: int | None = None) -> None:
        self._blocks = whole("num_blocks", num_blocks, 1, 2**31)
        self._window = whole("window_size", window_size, 1, 2**31)
        self._rank = None if rank is None else whole("rank", rank, 0, 2**16)
        self._next = 0
        self._resident: dict[int, Tier] = {}

    def created(self) -> bytes:
        """The event that comes before all others."""
        return self._document({"type": "created", "num_blocks_per_cache_level": [self._blocks, 0]})

    def encode(self, events: Iterable[Event]) -> Iterator[bytes]:
        """One document an event, in order; none for the clearing of an empty tier."""
        for event in events:
            hashes = [short(digest) for digest in event.digests]
            if event.kind is EventKind.STORED:
                yield self._document(self._stored(event, hashes))
                continue
            if event.kind is EventKind.CLEARED:
                hashes = [block for block, tier in self._resident.items() if tier is event.tier]
            for block in hashes:
                self._resident.pop(block, None)
            if hashes:
                yield self._document({"type": "removed", "block_hashes": hashes})

    def _stored(self, event: Event, hashes: list[int]) -> dict[str, Any]:
        self._resident.update(dict.fromkeys(hashes, event.tier))
        blocks = [
            {
                "type": "stored_block",
                "block_hash": block,
                "tokens": [
                    {"type": "unique_token", "token_id": token, "token_extra_id": 0}
                    for token in tokens
                ],
                "cache_level": int(event.tier),
                "priority": _TRTLLM_PRIORITY,
            }
            for block, tokens in zip(hashes, event.tokens.tolist(), strict=True)
        ]
        parent = None if event.parent is None else short(event.parent)
        return {"type": "stored", "parent_hash": parent, "blocks": blocks}

    def _document(self, data: dict[str, Any]) -> bytes:
        number, self._next = self._next, self._next + 1
        document = {"event_id": number, "data": data, "window_size": self._window}
        if self._rank is not None:
            document["attention_dp_rank"] = self._rank
        return _json.encode(document)
