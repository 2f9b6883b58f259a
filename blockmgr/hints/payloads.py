"""The payloads of the actions that ``Hints`` carries out, checked.

A payload names a target and bounds. The target is a list of block hashes, a session, or (with
neither) the request that carries the envelope; a range of tokens restricts the last two.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from blockmgr.blocks import Priority

__all__ = ["MOST_HASHES", "Asked", "Rejected", "is_part", "read_payload"]

MOST_HASHES: Final = 2**16
"""Most block hashes of an envelope."""

_PART: Final = 8  # bytes of a digest that a number stands for
_MOST_REASON: Final = 200  # characters: the name of an unknown field may be long
_FAR: Final = 2**31 - 1
_Position: TypeAlias = Annotated[int, Meta(ge=0, le=_FAR)]

_PRIORITIES: Final = {p.name.lower(): p for p in Priority if p is not Priority.PINNED}
_HIGHEST: Final = 100
_ORDINARY: Final = 35
_SURE: Final = 70


class Rejected(Exception):
    """The action cannot be carried out; the text is the reason."""


class _Payload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of all actions."""

    block_hashes: Annotated[list[Any], Meta(min_length=1)] | None = None
    session: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    token_range: tuple[_Position, _Position] | None = None
    ttl: float | None = None
    priority: Any = None
    max_blocks: Annotated[int, Meta(ge=1, le=_FAR)] | None = None
    destination: Annotated[str, Meta(max_length=1024)] | None = None


class Asked(NamedTuple):
    """A checked payload.

    Attributes:
        names: Whole digests, or 8 bytes of each; None for another target.
        session: The session; None for another target.
        start: First token of the range.
        stop: Token after the last one; None for the end.
        ttl: Seconds; None for no end.
        priority: None if the payload has none.
        max_blocks: None for no bound.
    """

    names: list[bytes] | None
    session: bytes | None
    start: int
    stop: int | None
    ttl: float | None
    priority: Priority | None
    max_blocks: int | None


def is_part(asked: Asked) -> bool:
    """Whether the names are parts of digests: all of a payload are if any is."""
    return asked.names is not None and len(asked.names[0]) == _PART


def read_payload(payload: dict[str, Any], leading: bool) -> Asked:
    """Checks a payload.

    Args:
        payload: As it came.
        leading: Whether a number stands for the first 8 bytes of a digest, or for the last ones.

    Raises:
        Rejected: It is malformed. The reason shows no value of it.
    """
    try:
        made = msgspec.convert(payload, _Payload)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise Rejected(f"payload: {str(error)[:_MOST_REASON]}") from None
    if made.block_hashes is not None and made.session is not None:
        raise Rejected("payload must have block_hashes or a session, not both")
    start, stop = (0, None) if made.token_range is None else made.token_range
    if made.token_range is not None and made.block_hashes is not None:
        raise Rejected("token_range goes with a session or a request; name fewer block_hashes")
    if stop is not None and stop <= start:
        raise Rejected("token_range must satisfy start < stop")
    if made.ttl is not None and not 0 < made.ttl < math.inf:
        raise Rejected("ttl must be above 0 and finite")
    names = None if made.block_hashes is None else _names(made.block_hashes, leading)
    session = None if made.session is None else made.session.encode()
    priority = _priority(made.priority)
    return Asked(names, session, start, stop, made.ttl, priority, made.max_blocks)


def _names(hashes: list[Any], leading: bool) -> list[bytes]:
    if len(hashes) > MOST_HASHES:
        raise Rejected(f"block_hashes must be at most {MOST_HASHES}, got {len(hashes)}")
    names = dict.fromkeys(_name(value) for value in hashes)
    if any(len(name) == _PART for name in names):
        names = dict.fromkeys(name[:_PART] if leading else name[-_PART:] for name in names)
    if len({len(name) for name in names}) > 1:
        raise Rejected("block_hashes must be digests of one size")
    return list(names)


def _name(value: object) -> bytes:
    """A digest, or the 8 bytes of it that a number stands for."""
    if type(value) is bytes and len(value) >= _PART:
        return value
    if type(value) is str and len(value) >= 2 * _PART:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    if type(value) is int and -(2**63) <= value < 2**64:
        return (value % 2**64).to_bytes(_PART, "big")
    raise Rejected("block_hashes must be digests as bytes or in hexadecimal, or numbers of 64 bits")


def _priority(value: object) -> Priority | None:
    """A name of ``Priority``, or a number from 0 to 100 as in TensorRT-LLM, where 35 is normal."""
    if value is None:
        return None
    if type(value) is str and value in _PRIORITIES:
        return _PRIORITIES[value]
    if type(value) is int and 0 <= value <= _HIGHEST:
        if value < _ORDINARY:
            return Priority.LOW
        if value == _ORDINARY:
            return Priority.NORMAL
        return Priority.EXPECTED if value < _SURE else Priority.HIGH
    raise Rejected(f"priority must be one of {', '.join(_PRIORITIES)}, or in [0, {_HIGHEST}]")
