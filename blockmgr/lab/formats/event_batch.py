"""Batches and events of a recording as values, checked field by field.

Sources: ``vllm/distributed/kv_events.py`` of vLLM 0.33, ``srt/disaggregation/kv_events.py`` of
SGLang 0.5.23, and ``blockmgr.events.wire`` for what blockmgr's own publisher adds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from blockmgr.lab.formats.record import checked_tokens, shown

if TYPE_CHECKING:
    from blockmgr.lab.formats.record import Record

__all__ = [
    "BATCH",
    "CLEARED",
    "REMOVED",
    "STORED",
    "RecordedBatch",
    "Stored",
    "batch_of",
    "event_of",
    "hashes_of",
    "stored_of",
]

BATCH: Final = ("ts", "events", "data_parallel_rank", "about")
"""Items of a batch; the last one is of blockmgr's publisher."""

STORED: Final = "BlockStored"
REMOVED: Final = "BlockRemoved"
CLEARED: Final = "AllBlocksCleared"
RANKS: Final = ("data_parallel_rank", "attn_dp_rank")
ARRAYS: Final = {
    STORED: (
        *("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
        *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
        "kv_cache_spec_sliding_window",
    ),
    REMOVED: ("block_hashes", "medium", "group_idx"),
    CLEARED: ("medium",),
}
"""Fields of events that are arrays, as older versions wrote them, after the name."""

MS_IN_SECOND: Final = 1000
MOST_WIDE: Final = 2**64


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """One batch of events.

    Attributes:
        ts: When it was published, in seconds.
        time_ms: Likewise in whole milliseconds.
        fields: Everything in it by name.
        events: Its events, unread.
        rank: Data-parallel rank; None for an engine without ranks.
        epoch: When its publisher started; None for other publishers than blockmgr's.
        is_snapshot: Whether it states blocks from before.
        is_last: Whether it is the last part of a snapshot.
        kinds: Kinds of the groups of layers by number, as far as the batch names them.
    """

    ts: float
    time_ms: int
    fields: dict[str, Any]
    events: list[Any]
    rank: int | None
    epoch: int | None = None
    is_snapshot: bool = False
    is_last: bool = False
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    """A ``BlockStored`` event.

    Attributes:
        hashes: Names of the blocks, each the parent of the next.
        parent: Name of the block before them; None at the start of a prompt.
        tokens: ``size`` of them for each block; those wider than 32 bits stand for images.
        size: Tokens per block.
        adapter: Name or number of the adapter, or None.
        salt: SGLang's ``cache_salt``, or None.
        keys: Extra keys of each block, empty if there are none.
    """

    hashes: list[int | str]
    parent: int | str | None
    tokens: list[int]
    size: int
    adapter: str | None
    salt: str | None
    keys: list[list[Any]]


def batch_of(record: Record) -> RecordedBatch:
    """The batch in a record.

    Raises:
        TraceFormatError: It is none.
    """
    value = record.value
    if isinstance(value, list) and 2 <= len(value) <= len(BATCH):
        value = dict(zip(BATCH, value, strict=False))
    if not isinstance(value, dict):
        raise record.error("", shown(record.value), "a batch of events: [ts, events, rank]")
    named = record.renamed(value)
    time_ms = named.milliseconds("ts", MS_IN_SECOND)
    rank = next((value[name] for name in RANKS if value.get(name) is not None), None)
    if rank is not None and (type(rank) is not int or rank < 0):
        raise record.error(RANKS[0], f"rank {shown(rank)}", "null or an integer from 0")
    batch = RecordedBatch(value["ts"], time_ms, value, named.items("events"), rank)
    about = value.get("about")
    return batch if about is None else _with_about(record, batch, about)


def _with_about(record: Record, batch: RecordedBatch, about: Any) -> RecordedBatch:
    """A batch of blockmgr's publisher."""
    if not isinstance(about, dict) or type(about.get("epoch")) is not int:
        expected = 'null or an object with an integer "epoch"'
        raise record.error("about", f"{shown(about)} after the rank", expected)
    groups = about.get("groups") or []
    try:
        kinds = tuple(str(kind) for kind, _ in groups)
    except (TypeError, ValueError):
        expected = "a list of pairs of a kind and a window"
        raise record.wrong("groups", groups, expected) from None
    return replace(
        batch,
        epoch=about["epoch"],
        is_snapshot=about.get("snapshot") is True,
        is_last=about.get("last") is True,
        kinds=kinds,
    )


def event_of(record: Record, event: Any) -> tuple[str, dict[str, Any]]:
    """The kind of an event, and its fields.

    Raises:
        TraceFormatError: It is none of the known kinds.
    """
    kind: Any = None
    if isinstance(event, dict):
        kind, fields = event.get("type"), event
    elif isinstance(event, list) and event:
        kind = event[0]
        names = ARRAYS.get(kind, ()) if isinstance(kind, str) else ()
        if kind in (STORED, REMOVED, CLEARED) and len(event) > len(names) + 1:
            found = f"{len(event) - 1} fields of {kind}"
            raise record.error(kind, found, f"at most {len(names)} in an event that is a list")
        fields = dict(zip(names, event[1:], strict=False))
    if not isinstance(kind, str) or kind not in ARRAYS:
        raise record.error("type", f"event {shown(event)}", f"one of {', '.join(ARRAYS)}")
    return kind, fields


def hashes_of(record: Record, fields: dict[str, Any]) -> list[int | str]:
    """The names of the blocks of an event.

    Raises:
        TraceFormatError: One is neither an integer nor a string.
    """
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list) or not all(type(one) in (int, str) for one in hashes):
        raise record.wrong("block_hashes", hashes, "a list of integers or strings")
    return hashes


def stored_of(record: Record, fields: dict[str, Any]) -> Stored:
    """The stored blocks of an event.

    Raises:
        TraceFormatError: A field is wrong, or the numbers of blocks, tokens and keys differ.
    """
    hashes = hashes_of(record, fields)
    values = fields.get("token_ids")
    if isinstance(values, list) and values and all(_is_pair(value) for value in values):
        # SGLang with EAGLE names pairs: each token with the one after it.
        values = [first for first, _ in values]
    refuse = partial(record.error, "token_ids")
    expected = "integers from 0, of at most 64 bits"  # those of images (SGLang)
    tokens = checked_tokens("token_ids", values, refuse, MOST_WIDE - 1, expected)
    size = fields.get("block_size")
    if type(size) is not int or size < 1:
        raise record.wrong("block_size", size, "an integer above 0")
    if not hashes or len(tokens) != len(hashes) * size:
        found = f"{len(tokens)} token_ids for {len(hashes)} blocks of {size}"
        raise record.error("token_ids", found, f"{len(hashes) * size}, and at least 1 block")
    parent = fields.get("parent_block_hash")
    if parent is not None and type(parent) not in (int, str):
        raise record.wrong("parent_block_hash", parent, "null, an integer or a string")
    adapter = fields.get("lora_name")
    if adapter is None:
        adapter = fields.get("lora_id")
    salt = fields.get("cache_salt")
    return Stored(
        hashes,
        parent,
        tokens,
        size,
        None if adapter is None else str(adapter),
        None if salt is None else str(salt),
        _keys(record, fields.get("extra_keys"), len(hashes)),
    )


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _keys(record: Record, extra: Any, count: int) -> list[list[Any]]:
    if extra is None:
        return []
    if not isinstance(extra, list) or len(extra) != count:
        raise record.wrong("extra_keys", extra, f"a list of {count}, one for each block")
    keys = []
    for one in extra:
        if one is not None and not isinstance(one, list):
            expected = "null or a list for each block"
            raise record.error("extra_keys", f"{shown(one)} in extra_keys", expected)
        keys.append(one or [])
    return keys if any(keys) else []
