"""Encodes events as the bytes that vLLM's clients read, and decodes such bytes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from blockmgr.arguments import truth, whole
from blockmgr.event_columns import Event, EventKind
from blockmgr.events import wire
from blockmgr.groups import ChunkedAttention, FullAttention, RecurrentState, Ring, SlidingWindow
from blockmgr.vllm_keys import vllm_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = [
    "LOW_BITS",
    "AnyBatch",
    "Encoder",
    "Group",
    "anonymous",
    "decode",
    "decode_hashes",
    "pieces",
    "short",
    "weight_of",
]

AnyBatch = wire.Batch | wire.OldBatch | wire.SglangBatch | wire.HashBatch

Group: TypeAlias = (
    FullAttention | SlidingWindow | ChunkedAttention | RecurrentState | Ring | str | tuple[str, int]
)
"""A group of layers: a group of a manager, vLLM's word, or that word and a window in tokens."""

_WORDS: Mapping[type, str] = {
    FullAttention: wire.FULL_ATTENTION,
    SlidingWindow: "sliding_window",
    ChunkedAttention: "chunked_local_attention",
    RecurrentState: "mamba",
    Ring: wire.UNKNOWN,  # has no events
}

LOW_BITS = 2**64 - 1
MOST_BLOCKS = 8192
"""Most blocks per batch, so that encoding and applying one is fast."""

_TOKENS_AS_A_BLOCK = 32
_KEY_BYTES_AS_A_BLOCK = 128

# Besides msgspec's own errors: text that is not UTF-8, and arrays nested too deeply.
_UNDECODED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_maps = msgspec.msgpack.Decoder(wire.Batch)
_sglang = msgspec.msgpack.Decoder(wire.SglangBatch)
_arrays = msgspec.msgpack.Decoder(wire.OldBatch)
_hashes = msgspec.msgpack.Decoder(wire.HashBatch)
_raw = msgspec.msgpack.Decoder(wire.RawBatch)
_event: msgspec.msgpack.Decoder[wire.HashEvent] = msgspec.msgpack.Decoder(wire.HashEvent)
_LONG = 2**16


def short(digest: bytes) -> int:
    """The form in which vLLM publishes a digest: its low 64 bits.

    >>> short(bytes([7] * 24) + bytes(6) + bytes([1, 2]))
    258
    """
    return int.from_bytes(digest, "big") & LOW_BITS


def anonymous(namespace: bytes) -> str:
    """A public name of a namespace, which itself may be a tenant's secret.

    >>> anonymous(b"tenant") == anonymous(b"tenant") != anonymous(b"other")
    True
    """
    return hashlib.sha256(namespace).hexdigest()[:16]


def public_session(event: Event) -> str | None:
    """The name of an event's session as text; None for none.

    >>> public_session(Event(EventKind.STORED, [], None, [], {}, 0, 0, b"", 0, b"agent 7"))
    'agent 7'
    """
    return event.session.decode(errors="backslashreplace") or None


class Encoder:
    """Encodes events as vLLM's batches.

    Namespaces are published as part of their SHA-256, among the extra keys of first blocks. Extra
    keys made by ``vllm_extras`` are published as vLLM publishes them; others as bytes.

    Args:
        block_size: Tokens per block.
        hashes: ``"int"`` for the low 64 bits of digests, which is vLLM's default; ``"bytes"`` for
            all of them.
        layout: ``"maps"``, or ``"arrays"`` for the events of older versions.
        rank: Data-parallel rank; None for an engine without ranks.
        epoch: Start time of the publisher; None omits everything that vLLM's batches do not have.
        groups: Kind of each group of layers, by number: the ``groups`` of a manager's config, or
            vLLM's words (``"full_attention"``, ``"sliding_window"``, ``"mamba"``); for a window or
            a chunk, a pair of the word and the tokens. Others are ``"unknown"``, and an index
            ignores those. Events as arrays have no groups, so ``"arrays"`` publishes only groups
            whose blocks stand for a whole prefix.
        sessions: Whether to publish the names of sessions, as vLLM's ``session_id``, in maps.

    Raises:
        ValueError: ``hashes``, ``layout`` or a word of ``groups`` is none of these, or a number is
            out of its bounds.
        TypeError: A value is of the wrong type.
    """

    def __init__(
        self,
        block_size: int,
        *,
        hashes: Literal["int", "bytes"] = "int",
        layout: Literal["maps", "arrays"] = "maps",
        rank: int | None = None,
        epoch: int | None = None,
        groups: Sequence[Group] = (wire.FULL_ATTENTION,),
        sessions: bool = False,
    ) -> None:
        if hashes not in ("int", "bytes"):
            raise ValueError(f"hashes must be 'int' or 'bytes', got {hashes!r}")
        if layout not in ("maps", "arrays"):
            raise ValueError(f"layout must be 'maps' or 'arrays', got {layout!r}")
        self.block_size = whole("block_size", block_size, 1, 2**16 - 1)
        self._int = hashes == "int"
        self._old = layout == "arrays"
        self._rank = None if rank is None else whole("rank", rank, 0, 2**16)
        self._epoch = None if epoch is None else whole("epoch", epoch, 0, 2**63 - 1)
        if isinstance(groups, str):
            raise TypeError("groups must be a sequence of words, got str")
        self._groups = [_group(group) for group in groups]
        self._sessions = truth("sessions", sessions)
        self._encoder = msgspec.msgpack.Encoder()

    def batches(self, events: Iterable[Event], ts: float) -> Iterator[bytes]:
        """Encodes events as batches of a bounded number of blocks.

        Args:
            events: Events to encode, in order.
            ts: Time of the events, in seconds.
        """
        for made in self._parts(events):
            yield self._batch(made, ts, None if self._epoch is None else self._about())

    def snapshot(self, events: Iterable[Event], ts: float) -> Iterator[bytes]:
        """Encodes a snapshot as one or more batches.

        Args:
            events: All findable blocks, after a clearing event.
            ts: Time of the events, in seconds.
        """
        parts = self._parts(events)
        made = next(parts, [])
        for following in parts:
            yield self._batch(made, ts, self._about(snapshot=True))
            made = following
        yield self._batch(made, ts, self._about(snapshot=True, last=True))

    def _about(self, *, snapshot: bool = False, last: bool = False) -> wire.About:
        """The additions for blockmgr's clients; no groups if all are of whole prefixes."""
        told = tuple(self._groups)
        if all(kind in wire.WHOLE_PREFIX for kind, _ in told):
            return wire.About(self._epoch or 0, snapshot, last)
        return wire.About(self._epoch or 0, snapshot, last, told, self.block_size)

    def _batch(self, made: list[Any], ts: float, about: wire.About | None) -> bytes:
        if about is None:
            return self._encoder.encode(wire.PlainBatch(ts, made, self._rank))
        return self._encoder.encode(wire.Batch(ts, made, self._rank, about))

    def _parts(self, events: Iterable[Event]) -> Iterator[list[Any]]:
        told = (event for event in events if not self._old or self._is_whole_prefix(event))
        return parts_of(
            (self.event(piece), weight_of(piece)) for event in told for piece in pieces(event)
        )

    def event(self, event: Event) -> Any:
        """One event as it is encoded: a structure, or a list for the layout of arrays."""
        old = self._old
        medium = (wire.OLD_MEDIA if old else wire.MEDIA)[event.tier]
        where = wire.LOCALITIES[event.tier]
        if event.kind is EventKind.CLEARED:
            if old:
                return ["AllBlocksCleared", medium]
            return wire.AllBlocksCleared(medium, where)
        hashes: list[Any] = self._hashes(event.digests)
        if event.kind is EventKind.REMOVED:
            if old:
                return ["BlockRemoved", hashes, medium]
            return wire.BlockRemoved(hashes, medium, event.group, where)
        parent = None if event.parent is None else self._hashes([event.parent])[0]
        tokens = event.tokens.ravel().tolist()
        if old:
            return ["BlockStored", hashes, parent, tokens, self.block_size, None, medium]
        lora, keys = _extra_keys(event)
        return wire.BlockStored(
            hashes,
            parent,
            tokens,
            self.block_size,
            None,
            medium,
            lora,
            keys,
            event.group,
            *self._kind(event.group),
            where,
            session_id=public_session(event) if self._sessions else None,
        )

    def _kind(self, group: int) -> tuple[str, int | None]:
        return self._groups[group] if group < len(self._groups) else (wire.UNKNOWN, None)

    def _is_whole_prefix(self, event: Event) -> bool:
        """Whether the blocks of its group suffice for a prefix; a clearing concerns all groups."""
        return event.kind is EventKind.CLEARED or self._kind(event.group)[0] in wire.WHOLE_PREFIX

    def _hashes(self, digests: Iterable[bytes]) -> list[Any]:
        if not self._int:
            return list(digests)
        return [int.from_bytes(digest[-8:], "big") for digest in digests]


def _group(group: Group) -> tuple[str, int | None]:
    """The kind of a group of layers, and its window."""
    if type(group) in _WORDS:
        return _WORDS[type(group)], getattr(group, "width", None)
    pair = group if isinstance(group, tuple) and len(group) == 2 else (group, None)
    kind, window = pair
    if not isinstance(kind, str):
        raise TypeError(f"groups must be words of vLLM, got {type(kind).__name__}")
    if kind not in wire.KINDS:
        raise ValueError(f"groups must be some of {sorted(wire.KINDS)}, got {kind!r}")
    return kind, None if window is None else whole("groups window", window, 1, 2**31 - 1)


def weight_of(event: Event) -> int:
    """The size of an event, in blocks; many tokens or long extra keys count as more blocks."""
    keys = sum(map(len, event.extras.values()))
    return max(
        len(event.digests), event.tokens.size // _TOKENS_AS_A_BLOCK, keys // _KEY_BYTES_AS_A_BLOCK
    )


def pieces(event: Event) -> Iterator[Event]:
    """Splits an event into events of a bounded number of blocks, tokens and bytes."""
    count = len(event.digests)
    if weight_of(event) <= MOST_BLOCKS:
        yield event
        return
    longest = max(map(len, event.extras.values()), default=0)
    weight = max(event.tokens.shape[1] / _TOKENS_AS_A_BLOCK, longest / _KEY_BYTES_AS_A_BLOCK, 1)
    step = max(1, int(MOST_BLOCKS / weight))
    for start in range(0, count, step):
        stop = min(count, start + step)
        yield event._replace(
            digests=event.digests[start:stop],
            parent=event.digests[start - 1] if start else event.parent,
            tokens=event.tokens[start:stop],
            extras={at - start: key for at, key in event.extras.items() if start <= at < stop},
        )


def parts_of(made: Iterable[tuple[Any, int]]) -> Iterator[list[Any]]:
    """Events with their weights, in lists of a bounded weight, of which none is empty."""
    part: list[Any] = []
    size = 0
    for event, weight in made:
        if size + weight > MOST_BLOCKS and part:
            yield part
            part, size = [], 0
        part.append(event)
        size += weight
    if part:
        yield part


def _extra_keys(event: Event) -> tuple[str | None, list[Any] | None]:
    """The adapter, and the extra keys of each block without the tags used for digests."""
    if not event.extras and not event.namespace:
        return None, None
    lora = None
    keys: list[Any] = [None] * len(event.digests)
    for index, extras in event.extras.items():
        tagged = list(_tagged(extras))
        lora = next((value for kind, value in tagged if kind == "lora"), lora)
        keys[index] = tuple(value for _, value in tagged)
    if event.namespace and event.parent is None:
        keys[0] = (anonymous(event.namespace), *(keys[0] or ()))
    return lora, keys if any(keys) else None


def _tagged(extras: bytes) -> Iterator[tuple[str, Any]]:
    """The kind and the value of each key that ``vllm_extras`` made; of others, the bytes."""
    try:
        keys: Any = vllm_keys(extras)
    except ValueError:
        keys = ()
    for key in keys or (extras,):
        if isinstance(key, tuple) and len(key) > 1 and key[0] != "bytes":
            yield key[0], key[1:] if key[0] == "mm" else key[1]
        else:
            yield "bytes", extras


def decode(payload: bytes) -> AnyBatch:
    """Decodes a batch, in vLLM's current layout, its older one, or SGLang's.

    Raises:
        ValueError: These bytes are not a batch of events.
    """
    return _decode((_maps, _sglang, _arrays), payload)


def decode_hashes(payload: bytes) -> AnyBatch:
    """Like ``decode``, but skips the tokens of layouts with maps: for an index of digests.

    The events of a long batch are decoded one by one, so that other threads can run in between.

    Raises:
        ValueError: These bytes are not a batch of events.
    """
    if _LONG < len(payload) <= wire.MOST_BYTES:
        try:
            raw = _raw.decode(payload)
            events = [_event.decode(each) for each in raw.events]
        except _UNDECODED:
            pass  # another layout, or an error
        else:
            return wire.HashBatch(raw.ts, events, raw.data_parallel_rank, raw.about)
    return _decode((_hashes, _arrays), payload)


def _decode(decoders: Sequence[msgspec.msgpack.Decoder[Any]], payload: bytes) -> AnyBatch:
    if len(payload) > wire.MOST_BYTES:
        raise ValueError(f"payload must be at most {wire.MOST_BYTES} bytes, got {len(payload)}")
    first: Exception | None = None
    for decoder in decoders:
        try:
            batch: AnyBatch = decoder.decode(payload)
        except _UNDECODED as error:
            first = first or error
        else:
            return batch
    raise ValueError(f"payload must be a batch of events: {first}")
