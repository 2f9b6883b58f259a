"""vLLM's batches of events as msgspec structures, and what blockmgr adds to them.

A batch is an array, and its events are maps with a ``type``. The additions are in places that
vLLM's own decoder ignores: a fourth item of the batch, and a key of ``AllBlocksCleared``.

Source: ``vllm/distributed/kv_events.py`` of vLLM 0.33, for names, order and defaults.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, TypeAlias

import msgspec
from msgspec import Meta

from blockmgr.event_columns import WHOLE_PREFIX, EventKind, Tier

__all__ = [
    "FULL_ATTENTION",
    "KINDS",
    "KIND_OF",
    "LOCALITIES",
    "MEDIA",
    "MOST_BYTES",
    "MOST_RANK",
    "OLD_MEDIA",
    "TIERS",
    "UNKNOWN",
    "WHOLE_PREFIX",
    "About",
    "AllBlocksCleared",
    "Batch",
    "BlockHash",
    "BlockRemoved",
    "BlockStored",
    "HashBatch",
    "HashEvent",
    "HashesCleared",
    "OldBatch",
    "OldBlockRemoved",
    "OldBlockStored",
    "OldBlocksCleared",
    "PlainBatch",
    "RawBatch",
    "RemovedHashes",
    "SglangBatch",
    "SglangCleared",
    "SglangRemoved",
    "SglangStored",
    "StoredHashes",
    "tier_of",
]

# A sender may be foreign, so a batch has bounds: in bytes, which a socket checks before it reads a
# message, and in the number of items, because an item of one byte takes dozens of bytes of memory.

MOST_BYTES: Final = 2**22
"""Most bytes of a batch; encoders stay far below."""

MOST_RANK: Final = 2**16
"""Largest data-parallel rank."""

_MOST_EVENTS: Final = 2**17
_MOST_ITEMS: Final = 2**16
_MOST_KEYS: Final = 64  # extra keys of a block
_MOST_GROUPS: Final = 256

Word: TypeAlias = Annotated[str, Meta(max_length=1024)]
"""A name in an event."""

BlockHash: TypeAlias = Annotated[bytes, Meta(max_length=256)] | int
"""A digest, or the low 64 bits of one."""

Hashes: TypeAlias = Annotated[list[BlockHash], Meta(max_length=_MOST_ITEMS)]

Rank: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_RANK)]

_Keys: TypeAlias = Annotated[list[Any], Meta(max_length=_MOST_KEYS)]
_Lookahead: TypeAlias = Annotated[list[int], Meta(max_length=_MOST_ITEMS)]

MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "STORAGE", Tier.REMOTE: "STORAGE"}
"""vLLM's name of each tier. All storage has one name, and differs in locality."""

REMOTE = "REMOTE"
LOCALITIES = {Tier.DEVICE: None, Tier.HOST: None, Tier.DISK: "LOCAL", Tier.REMOTE: REMOTE}
"""Locality of storage, relative to the publisher."""

OLD_MEDIA = {**MEDIA, Tier.REMOTE: "EXTERNAL"}
"""Likewise, for events without a locality."""

TIERS = {
    "GPU": Tier.DEVICE,
    "CPU": Tier.HOST,
    "CPU_PINNED": Tier.HOST,
    "STORAGE": Tier.DISK,
    "DISK": Tier.DISK,
    "EXTERNAL": Tier.REMOTE,
}
"""The tier for each name in vLLM and SGLang."""

FULL_ATTENTION = "full_attention"
UNKNOWN = "unknown"
KINDS = WHOLE_PREFIX | {
    "sliding_window",
    "sliding_window_mla",
    "chunked_local_attention",
    "mamba",
    "encoder_only_attention",
    "cross_attention",
    UNKNOWN,
}
"""Kinds of groups of layers, under vLLM's names."""


class BlockStored(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Stored blocks, each the parent of the next."""

    block_hashes: Hashes
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: Word | None
    lora_name: Word | None
    extra_keys: Annotated[list[_Keys | None], Meta(max_length=_MOST_ITEMS)] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: Word | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: Word | None = None
    ownership: Word | None = None
    session_id: Word | None = None
    lookahead_token_ids: Annotated[list[_Lookahead], Meta(max_length=_MOST_ITEMS)] | None = None
    cache_salt: Word | None = None  # SGLang's


class BlockRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Removed blocks: the tier has no findable copy of them."""

    block_hashes: Hashes
    medium: Word | None
    group_idx: int | None = None
    locality: Word | None = None
    ownership: Word | None = None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
    """Everything was removed from one tier, or from all tiers."""

    medium: Word | None = None
    locality: Word | None = None


class About(msgspec.Struct, omit_defaults=True, gc=False):
    """Information about a batch that vLLM's batches do not have.

    Attributes:
        epoch: When the publisher started, in nanoseconds: larger after each restart.
        snapshot: Part of a snapshot. The first part replaces all that was known before.
        last: Whether this is the last part.
        groups: Kind of each group of layers, by number, with its window in tokens or None; omitted
            if the blocks of all groups stand for a whole prefix.
        block_size: Tokens per block, if there are other groups.
    """

    epoch: int
    snapshot: bool = False
    last: bool = False
    groups: Annotated[tuple[tuple[Word, int | None], ...], Meta(max_length=_MOST_GROUPS)] = ()
    block_size: int = 0


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """The events published in one message."""

    ts: float
    events: Annotated[
        list[BlockStored | BlockRemoved | AllBlocksCleared], Meta(max_length=_MOST_EVENTS)
    ]
    data_parallel_rank: Rank | None = None
    about: About | None = None


class PlainBatch(msgspec.Struct, array_like=True, gc=False):
    """A batch of vLLM, without the additions, in either layout."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None


class OldBlockStored(msgspec.Struct, array_like=True, gc=False, tag="BlockStored"):
    """As versions wrote it whose events are arrays; only decoded."""

    block_hashes: Hashes
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: Word | None = None
    lora_name: Word | None = None
    extra_keys: Annotated[list[_Keys | None], Meta(max_length=_MOST_ITEMS)] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: Word | None = None
    kv_cache_spec_sliding_window: int | None = None

    locality: ClassVar[str | None] = None


class OldBlockRemoved(msgspec.Struct, array_like=True, gc=False, tag="BlockRemoved"):
    """Likewise."""

    block_hashes: Hashes
    medium: Word | None = None
    group_idx: int | None = None

    locality: ClassVar[str | None] = None


class OldBlocksCleared(msgspec.Struct, array_like=True, gc=False, tag="AllBlocksCleared"):
    """Likewise."""

    medium: Word | None = None

    locality: ClassVar[str | None] = None


class OldBatch(msgspec.Struct, array_like=True, gc=False):
    """Likewise."""

    ts: float
    events: Annotated[
        list[OldBlockStored | OldBlockRemoved | OldBlocksCleared], Meta(max_length=_MOST_EVENTS)
    ]
    data_parallel_rank: Rank | None = None
    about: About | None = None


class SglangStored(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockStored"):
    """As SGLang writes it, which omits what is None and adds the salt.

    The last fields are vLLM's alone. An event that has one is vLLM's, and if its own layout has
    refused it, this one must not take it without them.

    Source: ``srt/disaggregation/kv_events.py`` of SGLang 0.5.23.
    """

    block_hashes: Annotated[list[int], Meta(max_length=_MOST_ITEMS)]
    parent_block_hash: int | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None
    medium: Word | None = None
    cache_salt: Word | None = None
    session_id: Word | None = None
    lora_name: Word | None = None

    extra_keys: None = None
    group_idx: None = None
    kv_cache_spec_kind: None = None
    kv_cache_spec_sliding_window: None = None
    locality: None = None


class SglangRemoved(msgspec.Struct, omit_defaults=True, gc=False, tag="BlockRemoved"):
    """Likewise."""

    block_hashes: Annotated[list[int], Meta(max_length=_MOST_ITEMS)]
    medium: Word | None = None

    group_idx: None = None
    locality: None = None


class SglangCleared(msgspec.Struct, omit_defaults=True, gc=False, tag="AllBlocksCleared"):
    """Likewise; of all tiers."""

    medium: None = None
    locality: None = None


class SglangBatch(msgspec.Struct, array_like=True, gc=False):
    """Likewise; only decoded."""

    ts: float
    events: Annotated[
        list[SglangStored | SglangRemoved | SglangCleared], Meta(max_length=_MOST_EVENTS)
    ]
    data_parallel_rank: Rank | None = None

    about: None = None


class StoredHashes(msgspec.Struct, gc=False, tag="BlockStored"):
    """The fields of stored blocks that an index needs; the decoder skips the tokens."""

    block_hashes: Hashes
    block_size: int = 0
    medium: Word | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: Word | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: Word | None = None


class RemovedHashes(msgspec.Struct, gc=False, tag="BlockRemoved"):
    """Likewise."""

    block_hashes: Hashes
    medium: Word | None = None
    group_idx: int | None = None
    locality: Word | None = None


class HashesCleared(msgspec.Struct, gc=False, tag="AllBlocksCleared"):
    """Likewise."""

    medium: Word | None = None
    locality: Word | None = None


HashEvent: TypeAlias = StoredHashes | RemovedHashes | HashesCleared


class HashBatch(msgspec.Struct, array_like=True, gc=False):
    """A batch without tokens."""

    ts: float
    events: Annotated[list[HashEvent], Meta(max_length=_MOST_EVENTS)]
    data_parallel_rank: Rank | None = None
    about: About | None = None


class RawBatch(msgspec.Struct, array_like=True, gc=False):
    """A batch whose events are not decoded."""

    ts: float
    events: Annotated[list[msgspec.Raw], Meta(max_length=_MOST_EVENTS)]
    data_parallel_rank: Rank | None = None
    about: About | None = None


KIND_OF: dict[type, EventKind] = {
    **dict.fromkeys((BlockStored, OldBlockStored, SglangStored, StoredHashes), EventKind.STORED),
    **dict.fromkeys(
        (BlockRemoved, OldBlockRemoved, SglangRemoved, RemovedHashes),
        EventKind.REMOVED,
    ),
    **dict.fromkeys(
        (AllBlocksCleared, OldBlocksCleared, SglangCleared, HashesCleared), EventKind.CLEARED
    ),
}
"""The kind of an event in any layout, by its class."""


def tier_of(event: Any) -> Tier | None:
    """The tier of an event in any layout; None for a medium without a known name.

    >>> tier_of(BlockRemoved([1], "STORAGE", locality="REMOTE"))
    <Tier.REMOTE: 3>
    """
    if event.locality == REMOTE:
        return Tier.REMOTE
    return Tier.DEVICE if event.medium is None else TIERS.get(event.medium)
