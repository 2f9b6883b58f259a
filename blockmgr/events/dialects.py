"""Events in the format of SGLang.

It has no groups of layers, so the encoder writes the events of one group; and no event for the
clearing of one tier, so the encoder removes the blocks of the tier, and keeps their names for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from blockmgr.arguments import truth, whole
from blockmgr.event_columns import EventKind, Tier
from blockmgr.events.codec import (
    MOST_BLOCKS,
    anonymous,
    parts_of,
    pieces,
    public_session,
    weight_of,
)
from blockmgr.events.wire import PlainBatch, SglangCleared, SglangRemoved, SglangStored
from blockmgr.vllm_keys import vllm_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from blockmgr.event_columns import Event

__all__ = ["SglangEncoder"]

_MOST_GROUPS: Final = 255

_SGLANG_MEDIA: Final = {
    Tier.DEVICE: "GPU",
    Tier.HOST: "CPU_PINNED",
    Tier.DISK: "DISK",
    Tier.REMOTE: "EXTERNAL",
}


class _Told:
    """Names of the published blocks by tier, for events that SGLang lacks."""

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
        clearing = EventKind.CLEARED  # which concerns all groups
        told = (event for event in events if event.group == self._group or event.kind is clearing)
        made = (
            (one, max(blocks, weight_of(piece)))
            for event in told
            for piece in pieces(event)
            for one, blocks in self._events(piece)
        )
        for part in parts_of(made):
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
