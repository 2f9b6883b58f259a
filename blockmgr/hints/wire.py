"""The envelope of KV hints as msgspec structures, with bounds on what a foreign sender may send.

Source: ``vllm/v1/kv_hints/protocol.py`` of vLLM 0.33 and ``sglang/srt/managers/kv_hints.py`` of
SGLang 0.5.23, for names and order. The payload and the list of actions have the defaults of
SGLang's; vLLM's structures require both, so both are always written.

``Outcome`` says what became of an action, for the router that asked for it.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from blockmgr.errors import HintError

__all__ = [
    "MOST_ACTIONS",
    "MOST_BYTES",
    "PROTOCOL_VERSION",
    "KvHintAction",
    "KvHintsEnvelope",
    "Outcome",
    "Result",
    "decode",
    "encode",
]

PROTOCOL_VERSION: Final = "0.1"

MOST_BYTES: Final = 2**20
"""Most bytes of an envelope."""

MOST_ACTIONS: Final = 64
"""Most actions of an envelope."""

_MOST_REASON: Final = 200  # characters

Word: TypeAlias = Annotated[str, Meta(max_length=256)]
"""An id, a type or a version."""


class KvHintAction(msgspec.Struct, frozen=True):
    """One action. Who carries it out checks the payload."""

    action_id: Word
    action_type: Word
    action_version: Word
    payload: dict[str, Any] = {}


class KvHintsEnvelope(msgspec.Struct, frozen=True):
    """Actions that a router asks for in one message."""

    protocol_version: Word
    message_id: Word
    actions: Annotated[list[KvHintAction], Meta(max_length=MOST_ACTIONS)] = []


# Besides msgspec's own errors: text that is not UTF-8, values nested too deeply, a buffer in parts.
_REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError, BufferError)

_decoder = msgspec.msgpack.Decoder(KvHintsEnvelope)
_encoder = msgspec.msgpack.Encoder()


def encode(envelope: KvHintsEnvelope) -> bytes:
    """The envelope in msgpack, as vLLM and SGLang write it.

    Raises:
        TypeError: Not an envelope, or a payload with a value that msgpack does not have.

    >>> decode(encode(KvHintsEnvelope("0.1", "message", []))).message_id
    'message'
    """
    if not isinstance(envelope, KvHintsEnvelope):
        raise TypeError(f"envelope must be a KvHintsEnvelope, got {type(envelope).__name__}")
    return _encoder.encode(envelope)


def decode(envelope: object) -> KvHintsEnvelope:
    """An envelope from what an engine carries.

    Args:
        envelope: msgpack as bytes; vLLM's, SGLang's or this module's structure; or a dict.

    Raises:
        HintError: The envelope is malformed, too large, or of another version of the protocol. The
            message shows no value of a payload.
    """
    try:
        if isinstance(envelope, bytes | bytearray | memoryview):
            size = memoryview(envelope).nbytes
            if size > MOST_BYTES:
                raise HintError(f"envelope must have at most {MOST_BYTES} bytes, got {size}")
            made = _decoder.decode(envelope)
        else:
            made = msgspec.convert(envelope, KvHintsEnvelope, from_attributes=True)
    except _REFUSED as error:
        raise HintError(f"malformed envelope: {str(error)[:_MOST_REASON]}") from None
    if made.protocol_version != PROTOCOL_VERSION:
        raise HintError(
            f"envelope.protocol_version must be {PROTOCOL_VERSION!r}, got {made.protocol_version!r}"
        )
    return made


class Result(enum.StrEnum):
    """What became of an action."""

    ACCEPTED = "accepted"
    """Carried out as asked."""

    CLIPPED = "clipped"
    """Carried out within bounds: fewer blocks, or a shorter time to live, than asked."""

    DEFERRED = "deferred"
    """Waits until the request that carries it ends."""

    REJECTED = "rejected"
    """Not carried out, for the reason given."""

    MISSING = "missing"
    """None of the blocks is cached in the namespace."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one action. msgspec can encode it."""

    message_id: str
    """The envelope's."""
    action_id: str
    """The action's."""
    result: Result
    """What became of it."""
    num_blocks: int = 0
    """Blocks that the action applies to."""
    num_missing: int = 0
    """Blocks of the target that are not cached in the namespace."""
    reason: str | None = None
    """Why the action was rejected or clipped."""
