"""Events on the wire: vLLM's bytes, and its own decoder on our additional fields."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import BlockManager, Event, EventKind, Tier, vllm_extras
from tests.unit.engine import cache, serve

pytest.importorskip("msgspec", reason="the extra 'events'")
pytest.importorskip("zmq", reason="the extra 'events'")

import msgspec
import numpy as np

from blockmgr.events import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    Encoder,
    SglangEncoder,
    decode,
)
from blockmgr.events.codec import MOST_BLOCKS, anonymous, decode_hashes, short
from blockmgr.events.wire import KINDS, MOST_BYTES, OldBatch, tier_of

PROMPT = list(range(8))


def events_of_a_run() -> list[Event]:
    """Two blocks stored under a salt, the last removed, all cleared."""
    manager = BlockManager(8, 4, events=True, digest="sha256_cbor")
    cache(manager, [*PROMPT, 9], extras=vllm_extras(9, 4, salt="tenant", lora="sql"))
    manager.forget([1])
    manager.reset_prefix_cache()
    return list(manager.take_events())


def events_of_a_plain_run() -> list[Event]:
    """Two blocks stored without any keys."""
    manager = BlockManager(8, 4, events=True)
    cache(manager, [*PROMPT, 9])
    return list(manager.take_events())


def test_a_batch_as_vllm_writes_it() -> None:
    """Encoded by hand from the format: fixarray, float 64, maps in the order of their fields."""
    event = Event(
        EventKind.REMOVED, [bytes(31) + b"\x05"], None, np.zeros((0, 4), np.uint32), {}, 0,
        Tier.DEVICE, b"", 0,
    )  # fmt: skip
    cleared = event._replace(kind=EventKind.CLEARED, digests=[])
    [batch] = Encoder(4, rank=0).batches([event, cleared], 1.5)
    assert batch == bytes.fromhex(
        "93cb3ff8000000000000"  # [1.5, ..., rank]
        "92"
        "84a474797065ac426c6f636b52656d6f766564"  # {"type": "BlockRemoved",
        "ac626c6f636b5f6861736865739105"  # "block_hashes": [5],
        "a66d656469756da3475055"  # "medium": "GPU",
        "a967726f75705f69647800"  # "group_idx": 0}
        "82a474797065b0416c6c426c6f636b73436c6561726564"  # {"type": "AllBlocksCleared",
        "a66d656469756da3475055"  # "medium": "GPU"}
        "00"
    )


def test_the_events_of_a_run() -> None:
    digests = BlockManager(8, 4, digest="sha256_cbor").block_digests(
        PROMPT, extras=vllm_extras(9, 4, salt="tenant", lora="sql")
    )
    hashes: list[Any] = [short(digest) for digest in digests]
    [payload] = Encoder(4, epoch=7).batches(events_of_a_run(), 2.0)
    batch = decode(payload)
    stored = BlockStored(
        hashes, None, PROMPT, 4, None, "GPU", "sql",
        extra_keys=[["sql", "tenant"], ["sql"]], group_idx=0, kv_cache_spec_kind="full_attention",
    )  # fmt: skip
    assert batch.events == [stored, BlockRemoved(hashes[1:], "GPU", 0), AllBlocksCleared("GPU")]
    assert batch.about is not None
    assert (batch.ts, batch.data_parallel_rank, batch.about.epoch) == (2.0, None, 7)


def test_sessions_are_published_only_if_asked_for() -> None:
    manager = BlockManager(8, 4, events=True, retention=True)
    manager.commit(manager.admit([*PROMPT, 9], session=b"agent 7"), len(PROMPT) + 1)
    events = list(manager.take_events())
    manager = BlockManager(8, 4, events=True)
    manager.commit(manager.admit([*PROMPT, 9]), len(PROMPT) + 1)
    plain = list(manager.take_events())
    for encoder in (Encoder, SglangEncoder):
        [bare] = encoder(4).batches(events, 1.0)
        assert [bare] == list(encoder(4, sessions=True).batches(plain, 1.0))
        [payload] = encoder(4, sessions=True).batches(events, 1.0)
        [stored] = decode(payload).events
        assert stored.session_id == "agent 7"
        assert payload != bare
        with pytest.raises(TypeError, match="sessions must be a bool, got 1"):
            encoder(4, sessions=1)  # type: ignore[arg-type]
    odd = [event._replace(session=b"\xffx") for event in events]
    [payload] = Encoder(4, sessions=True).batches(odd, 1.0)
    assert decode(payload).events[0].session_id == "\\xffx"


def test_whole_digests_and_older_arrays_are_options() -> None:
    [payload] = Encoder(4, hashes="bytes", layout="arrays").batches(events_of_a_run(), 2.0)
    ts, events, rank = msgspec.msgpack.decode(payload)
    assert (ts, rank) == (2.0, None)
    assert [event[0] for event in events] == ["BlockStored", "BlockRemoved", "AllBlocksCleared"]
    assert all(len(digest) == 32 for digest in events[0][1])
    assert events[0][2:] == [None, PROMPT, 4, None, "GPU"]
    again = decode(payload)
    assert [type(event).__name__ for event in again.events] == [
        "OldBlockStored", "OldBlockRemoved", "OldBlocksCleared",
    ]  # fmt: skip


def test_a_namespace_leaves_the_process_as_a_digest_only() -> None:
    manager = BlockManager(8, 4, events=True)
    running = serve(manager, PROMPT[:5], namespace=b"a secret salt")
    first = list(manager.take_events())
    running.append([5, 6, 7, 8])
    manager.commit(running.handle, 9)
    payloads = [*Encoder(4).batches([*first, *manager.take_events()], 0.0)]
    assert b"secret" not in b"".join(payloads)
    stored, more = (event for payload in payloads for event in decode(payload).events)
    name = hashlib.sha256(b"a secret salt").hexdigest()[:16]
    assert (stored.extra_keys, more.extra_keys) == ([[name]], None)
    assert anonymous(b"a secret salt") == name


def test_extras_of_ones_own_are_published_as_bytes() -> None:
    manager = BlockManager(8, 4, events=True)
    cache(manager, [*PROMPT, 1], extras={1: b"\xffimage"})
    [payload] = Encoder(4).batches(manager.take_events(), 0.0)
    assert decode(payload).events[0].extra_keys == [None, [b"\xffimage"]]


def test_long_runs_are_cut_and_still_name_their_parents() -> None:
    count = MOST_BLOCKS + 3
    digests = [i.to_bytes(16, "big") for i in range(1, count + 1)]
    tokens = np.arange(count, dtype=np.uint32).reshape(-1, 1)
    event = Event(
        EventKind.STORED, digests, None, tokens, {count - 1: b"x"}, 0, Tier.DEVICE, b"", 0
    )
    payloads = list(Encoder(1).batches([event], 0.0))
    first, rest = (decode(payload).events[0] for payload in payloads)
    assert (len(first.block_hashes), len(rest.block_hashes)) == (MOST_BLOCKS, 3)
    assert (first.parent_block_hash, rest.parent_block_hash) == (None, MOST_BLOCKS)
    assert rest.token_ids == [count - 3, count - 2, count - 1]
    assert rest.extra_keys == [None, None, [b"x"]]


def test_a_snapshot_says_which_part_is_the_last() -> None:
    manager = BlockManager(8, 4, events=True)
    cache(manager, [*PROMPT, 1])
    encoder = Encoder(4, epoch=3)
    [payload] = encoder.snapshot(manager.resident_events(), 0.0)
    about = decode(payload).about
    assert about is not None
    assert (about.epoch, about.snapshot, about.last) == (3, True, True)
    [empty] = encoder.snapshot([], 0.0)
    assert decode(empty).events == []


@given(data=st.binary(max_size=60))
def test_foreign_bytes_are_no_batch(data: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(decode(data), Batch | OldBatch)


def removal(**fields: bytes) -> bytes:
    """A batch with one removal, and further fields as raw bytes."""
    packed = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}
    named = {name: msgspec.msgpack.encode(value) for name, value in packed.items()} | fields
    pairs = b"".join(msgspec.msgpack.encode(name) + value for name, value in named.items())
    event = bytes([0x80 + len(named)]) + pairs
    return b"\x93\xcb" + bytes(8) + b"\x91" + event + b"\xc0"


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000,
        removal(type=msgspec.msgpack.encode("BlockStored"), extra_keys=b"\x91" * 100_000),
        removal(medium=b"\xa2\xff\xfe"),
        removal(block_hashes=b"\xdd\xff\xff\xff\xff"),
        removal(block_hashes=b"\x91\xc6\xff\xff\xff\xff"),
        removal(other=b"\xdd\xff\xff\xff\xff"),
        removal(block_hashes=msgspec.msgpack.encode([1.5])),
        removal(block_hashes=msgspec.msgpack.encode([True])),
        b"\x93\xcb" + bytes(8) + b"\xdd\xff\xff\xff\xff",
    ],
    ids=["deep", "deep-keys", "text", "long", "long-hash", "skipped", "float", "bool", "events"],
)
@pytest.mark.parametrize("read", [decode, decode_hashes])
def test_hostile_bytes_are_refused_as_any_others(payload: bytes, read: Any) -> None:
    """Endless arrays and lengths without content are refused quickly, with the same error."""
    with pytest.raises(ValueError, match="payload must be a batch of events"):
        read(payload)
    assert read(removal()).events[0].block_hashes == [1]


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_truncated_batch_is_refused(cut: int) -> None:
    [payload] = Encoder(4).batches(events_of_a_run(), 2.0)
    with pytest.raises(ValueError, match="payload must be a batch of events"):
        decode(payload[:-cut])


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize("layout", ["maps", "arrays"])
def test_a_reader_knows_the_tier_of_an_event(tier: Tier, layout: Any) -> None:
    """Disk and another machine are the same medium in vLLM, but two tiers here."""
    stored, removed, cleared = (event._replace(tier=tier) for event in small_run())
    [payload] = Encoder(2, layout=layout).batches([stored, removed, cleared], 0.0)
    for read in (decode, decode_hashes):
        assert [tier_of(event) for event in read(payload).events] == [tier] * 3


def test_a_block_that_is_elsewhere_is_remote_whatever_it_lies_in() -> None:
    """vLLM reports the host memory of another machine as CPU with locality REMOTE."""
    assert tier_of(BlockRemoved([1], "CPU", locality="REMOTE")) is Tier.REMOTE
    assert tier_of(BlockRemoved([1], "CPU", locality="LOCAL")) is Tier.HOST
    assert tier_of(BlockRemoved([1], None)) is Tier.DEVICE
    assert tier_of(BlockRemoved([1], "TAPE")) is None


def test_events_say_what_their_group_of_layers_is() -> None:
    encoder = Encoder(2, groups=("full_attention", ("sliding_window", 128)))
    stored, removed, cleared = small_run()
    told = [encoder.event(event._replace(group=g)) for g in range(3) for event in (stored, removed)]
    assert [event.group_idx for event in told] == [0, 0, 1, 1, 2, 2]
    kinds = [(e.kv_cache_spec_kind, e.kv_cache_spec_sliding_window) for e in told[::2]]
    assert kinds == [("full_attention", None), ("sliding_window", 128), ("unknown", None)]
    assert encoder.event(cleared._replace(group=1)) == AllBlocksCleared("CPU")


def test_arrays_tell_of_whole_prefixes_alone() -> None:
    """Arrays have no field for a group, and the digests of all groups are equal."""
    encoder = Encoder(2, layout="arrays", groups=("full_attention", ("sliding_window", 128)))
    events = [event._replace(group=g) for event in small_run() for g in range(3)]
    [payload] = encoder.batches(events, 0.0)
    names = [type(event).__name__ for event in decode(payload).events]
    assert names == ["OldBlockStored", "OldBlockRemoved", *["OldBlocksCleared"] * 3]


@pytest.mark.parametrize(
    ("groups", "error", "match"),
    [
        (("window",), ValueError, "groups must be some of .* got 'window'"),
        ((("sliding_window", 0),), ValueError, "groups window must be in"),
        ((7,), TypeError, "groups must be words of vLLM, got int"),
        (((7, 7),), TypeError, "groups must be words of vLLM, got int"),
        (("mamba", ("mamba",)), TypeError, "groups must be words of vLLM, got tuple"),
        ("mamba", TypeError, "groups must be a sequence of words, got str"),
    ],
)
def test_a_group_that_is_none_is_refused(groups: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Encoder(2, groups=groups)
    assert Encoder(2, groups=sorted(KINDS)) is not None


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="hashes must be 'int' or 'bytes', got 'hex'"):
        Encoder(4, hashes="hex")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layout must be 'maps' or 'arrays', got 'lists'"):
        Encoder(4, layout="lists")  # type: ignore[arg-type]


READ_BY_VLLM = """
import sys, msgspec
from importlib.metadata import version
from vllm.distributed import kv_events
decoder, encoder = msgspec.msgpack.Decoder(kv_events.KVEventBatch), msgspec.msgpack.Encoder()
for line in sys.stdin.read().split():
    batch = decoder.decode(bytes.fromhex(line))
    for event in batch.events:
        assert type(event) is getattr(kv_events, type(event).__name__), event
    print("BATCH", encoder.encode(batch).hex())
print("FIELDS", *kv_events.BlockStored.__struct_fields__, *kv_events.BlockRemoved.__struct_fields__)
"""


def vllm_pythons() -> list[str]:
    """Interpreters with vLLM: those in VLLM_PYTHON, or this one if it has vLLM."""
    named = os.environ.get("VLLM_PYTHON", "")
    if found := [each for each in named.split(os.pathsep) if Path(each).is_file()]:
        return found
    return [sys.executable] if importlib.util.find_spec("vllm") else []


@pytest.mark.skipif(not vllm_pythons(), reason="VLLM_PYTHON names no interpreter that has vLLM")
@pytest.mark.parametrize("python", vllm_pythons())
def test_vllms_own_structures_decode_it_and_do_not_see_what_is_added(python: str) -> None:
    """vLLM returns all fields that it knows unchanged, for any hashes, groups and tiers."""
    events = events_of_a_run()
    events += [e._replace(tier=tier, group=1) for e in small_run() for tier in Tier]
    groups = ("full_attention", ("sliding_window", 128))
    payloads = [
        payload
        for options in ({"rank": 2, "epoch": 7}, {"hashes": "bytes"}, {"epoch": 7})
        for payload in Encoder(4, groups=groups, **options).batches(events, 2.0)  # type: ignore[arg-type]
    ]
    payloads += Encoder(4, epoch=7).snapshot(events, 3.0)
    done = subprocess.run(
        [python, "-c", READ_BY_VLLM],
        input="\n".join(payload.hex() for payload in payloads),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answers = [line.split() for line in done.stdout.splitlines() if line.startswith("BATCH ")]
    assert len(answers) == len(payloads)
    for payload, (_, answer) in zip(payloads, answers, strict=True):
        told, seen = decode(payload), decode(bytes.fromhex(answer))
        assert seen.about is None
        told.about = None
        for event in told.events:
            if isinstance(event, AllBlocksCleared):
                event.medium = event.locality = None
        assert seen == told
    [fields] = [line for line in done.stdout.splitlines() if line.startswith("FIELDS ")]
    ours = {*BlockStored.__struct_fields__, *BlockRemoved.__struct_fields__}
    assert set(fields.split()[1:]) <= ours


def test_what_vllm_publishes_is_read() -> None:
    """A batch of vLLM 0.33, as seen on the wire."""
    seen = [1.5, [{"type": "BlockRemoved", "block_hashes": [5], "medium": "GPU", "group_idx": 0},
                  {"type": "AllBlocksCleared"}], 0]  # fmt: skip
    batch = decode(msgspec.msgpack.encode(seen))
    assert batch == Batch(1.5, [BlockRemoved([5], "GPU", 0), AllBlocksCleared()], 0)


def small_run() -> list[Event]:
    digest = (2**64 + 5).to_bytes(16, "big")
    stored = Event(
        EventKind.STORED, [digest], bytes(15) + b"\x03", np.array([[1, 2]], np.uint32), {}, 0,
        Tier.DEVICE, b"", 0,
    )  # fmt: skip
    empty = np.zeros((0, 2), np.uint32)
    removed = stored._replace(kind=EventKind.REMOVED, parent=None, tokens=empty, tier=Tier.HOST)
    return [stored, removed, removed._replace(kind=EventKind.CLEARED, digests=[])]


def sglang_run() -> list[Event]:
    """Two blocks of a tenant's adapter, the second removed from the host, the device cleared."""
    digests = [((5 << 64) + 1).to_bytes(16, "big"), ((2**64 - 3 << 64) + 2).to_bytes(16, "big")]
    extras = vllm_extras(4, 2, lora="sql", salt="tenant")
    tokens = np.array([[1, 2], [3, 300]], np.uint32)
    stored = Event(EventKind.STORED, digests, None, tokens, extras, 0, Tier.DEVICE, b"", 0)
    removed = stored._replace(
        kind=EventKind.REMOVED, digests=digests[1:], tokens=tokens[:0], extras={}, tier=Tier.HOST
    )
    return [stored, removed, removed._replace(kind=EventKind.CLEARED, digests=[], tier=Tier.DEVICE)]


# Written by the structures of SGLang 0.5.23; only the annotations are ours.
SGLANG = (
    "93cb3ff8000000000000"  # [1.5, ..., rank]
    "93"
    "89a474797065ab426c6f636b53746f726564"  # {"type": "BlockStored",
    "ac626c6f636b5f6861736865739205fd"  # "block_hashes": [5, -3],
    "b1706172656e745f626c6f636b5f68617368c0"  # "parent_block_hash": None,
    "a9746f6b656e5f69647394010203cd012c"  # "token_ids": [1, 2, 3, 300],
    "aa626c6f636b5f73697a6502"  # "block_size": 2,
    "a76c6f72615f6964c0"  # "lora_id": None,
    "a66d656469756da3475055"  # "medium": "GPU",
    "aa63616368655f73616c74a674656e616e74"  # "cache_salt": "tenant",
    "a96c6f72615f6e616d65a373716c"  # "lora_name": "sql"}
    "83a474797065ac426c6f636b52656d6f766564"  # {"type": "BlockRemoved",
    "ac626c6f636b5f68617368657391fd"  # "block_hashes": [-3],
    "a66d656469756daa4350555f50494e4e4544"  # "medium": "CPU_PINNED"}
    "81a474797065b0416c6c426c6f636b73436c6561726564"  # {"type": "AllBlocksCleared"}
)


@pytest.mark.parametrize(("rank", "end"), [(None, "c0"), (1, "01")])
def test_sglangs_dialect(rank: int | None, end: str) -> None:
    [payload] = SglangEncoder(2, rank=rank).batches(sglang_run(), 1.5)
    assert payload.hex() == SGLANG + end


def test_sglangs_dialect_is_read() -> None:
    """Reads events as an index does, which then has SGLang's block hashes."""
    [payload] = SglangEncoder(2).batches(sglang_run(), 1.5)
    stored, removed, cleared = decode_hashes(payload).events
    assert (stored.block_hashes, removed.block_hashes) == ([5, -3], [-3])
    assert [tier_of(event) for event in (stored, removed)] == [Tier.DEVICE, Tier.HOST]
    assert cleared.medium is None
    whole = decode(payload)
    assert whole.events[0].cache_salt == "tenant"
    assert whole.events[0].lora_name == "sql"
    assert [tier_of(event) for event in whole.events[:2]] == [Tier.DEVICE, Tier.HOST]


def test_sglang_omits_the_adapter_of_plain_prompts_and_is_read_all_the_same() -> None:
    [payload] = SglangEncoder(4, rank=3).batches(events_of_a_plain_run(), 1.5)
    batch = decode(payload)
    [stored] = batch.events
    assert (stored.token_ids, stored.lora_name, stored.cache_salt) == (PROMPT, None, None)
    assert (batch.data_parallel_rank, batch.about, stored.group_idx) == (3, None, None)


def test_arrays_keep_what_later_versions_appended() -> None:
    stored = ["BlockStored", [1], None, [5], 1, None, "GPU", "sql", [["x"]], 2, "mamba"]
    events = [stored, ["BlockRemoved", [1], "GPU", 2], ["AllBlocksCleared"]]
    for read in (decode, decode_hashes):
        first, removed, _ = read(msgspec.msgpack.encode([1.5, events, 0])).events
        assert (first.lora_name, first.extra_keys) == ("sql", [["x"]])
        assert (first.group_idx, first.kv_cache_spec_kind, removed.group_idx) == (2, "mamba", 2)


def test_sglang_is_told_of_a_cleared_tier_block_by_block_if_others_have_any() -> None:
    encoder = SglangEncoder(2, group=1)
    stored, _, cleared = (event._replace(group=1) for event in sglang_run())

    def told(*events: Event) -> list[Any]:
        [payload] = encoder.batches(events, 0.0)
        return [(e["type"], e.get("medium")) for e in msgspec.msgpack.decode(payload)[1]]

    both = told(stored, stored._replace(tier=Tier.REMOTE), stored._replace(group=0))
    assert both == [("BlockStored", "GPU"), ("BlockStored", "EXTERNAL")]
    assert told(cleared) == [("BlockRemoved", "GPU")]
    assert list(encoder.batches([cleared._replace(tier=Tier.HOST)], 0.0)) == []
    assert told(cleared._replace(tier=Tier.REMOTE)) == [("AllBlocksCleared", None)]


def test_sglangs_salts_follow_a_chain_and_a_namespace_stays_inside() -> None:
    encoder = SglangEncoder(2)
    stored, removed, _ = sglang_run()
    more = stored._replace(
        digests=[bytes(7) + b"\x09" + bytes(8)], parent=stored.digests[1],
        tokens=stored.tokens[:1], extras={},
    )  # fmt: skip

    def salts(*events: Event) -> list[Any]:
        return [
            event.get("cache_salt")
            for payload in encoder.batches(events, 0.0)
            for event in msgspec.msgpack.decode(payload)[1]
        ]

    assert salts(stored, more) == ["tenant", "tenant"]
    named = stored._replace(namespace=b"secret", extras={})
    assert salts(named) == [anonymous(b"secret")]
    gone = removed._replace(tier=Tier.DEVICE, digests=[*stored.digests, *more.digests])
    assert salts(gone, stored._replace(extras={}), more) == [None, None, None]
    assert encoder._salts == {}


def test_batches_for_sglang_are_bounded_too() -> None:
    encoder = SglangEncoder(1)
    digests = [(i << 64).to_bytes(16, "big") for i in range(1, MOST_BLOCKS + 4)]
    tokens = np.arange(len(digests), dtype=np.uint32).reshape(-1, 1)
    stored = sglang_run()[0]._replace(digests=digests, tokens=tokens, extras={})
    host = stored._replace(tier=Tier.HOST, digests=digests[:1], tokens=tokens[:1])
    cleared = sglang_run()[2]
    payloads = list(encoder.batches([stored, host, cleared], 0.0))
    sizes = [
        [len(event["block_hashes"]) for event in msgspec.msgpack.decode(payload)[1]]
        for payload in payloads
    ]
    assert sizes == [[MOST_BLOCKS], [3, 1], [MOST_BLOCKS], [3]]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (partial(SglangEncoder, 1), "rank"),
        (partial(SglangEncoder, 1), "group"),
        (Encoder, "block_size"),
        (partial(Encoder, 1), "rank"),
        (partial(Encoder, 1), "epoch"),
    ],
    ids=["sglang-rank", "sglang", "size", "rank", "epoch"],
)
def test_numbers_out_of_bounds_are_refused(make: Any, name: str) -> None:
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=f"{name} must be in"):
            make(**{name: wrong})
    with pytest.raises(ValueError, match="block_size must be in"):
        SglangEncoder(0)


def stored_map(**fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored", "block_hashes": [1], "parent_block_hash": None, "token_ids": [0],
        "block_size": 1, "lora_id": None, "medium": "GPU", "lora_name": None, **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    "batch",
    [
        [0.0, [stored_map(block_hashes=[0] * (2**16 + 1))], None],
        [0.0, [stored_map(block_hashes=[bytes(257)])], None],
        [0.0, [stored_map(medium="x" * 1025)], None],
        [0.0, [stored_map(kv_cache_spec_kind="x" * 1025)], None],
        [0.0, [{"type": "BlockRemoved", "block_hashes": [0] * (2**16 + 1), "medium": None}], None],
        [0.0, [{"type": "AllBlocksCleared"}] * (2**17 + 1), None],
        [0.0, [], -1],
        [0.0, [], 2**16 + 1],
        [0.0, [], None, {"epoch": 1, "groups": [["mamba", None]] * 257}],
        [0.0, [], None, {"epoch": 1, "groups": [["x" * 1025, None]]}],
        [0.0, [["BlockRemoved", [0] * (2**16 + 1), None]], None],
        [0.0, [stored_map(token_ids=[0] * 2**22)], None],
    ],
    ids=[
        "hashes", "bytes-of-a-hash", "name-of-a-medium", "name-of-a-kind", "removed-hashes",
        "events", "rank-below-0", "rank", "groups", "name-of-a-group", "old-hashes", "bytes",
    ],
)  # fmt: skip
@pytest.mark.parametrize("decoder", [decode, decode_hashes])
def test_a_batch_with_too_many_or_too_long_items_is_refused(batch: Any, decoder: Any) -> None:
    payload = msgspec.msgpack.encode(batch)
    with pytest.raises(ValueError, match="payload must be"):
        decoder(payload)


@pytest.mark.parametrize("keys", [[[0] * 65], [[]] * (2**16 + 1)])
def test_too_many_extra_keys_are_refused(keys: Any) -> None:
    payload = msgspec.msgpack.encode([0.0, [stored_map(extra_keys=keys)], None])
    with pytest.raises(ValueError, match="payload must be"):
        decode(payload)


@pytest.mark.parametrize("layout", ["maps", "arrays", "sglang"])
@pytest.mark.parametrize(("block_size", "key"), [(1, 0), (4096, 0), (16, 5000)])
def test_a_batch_is_never_longer_than_a_reader_takes(
    layout: Any, block_size: int, key: int
) -> None:
    """Large blocks and long extra keys make more batches, and none of them is too long."""
    count = 4_000_000 // max(block_size, key)
    digests = [number.to_bytes(32, "big") for number in range(1, count + 1)]
    tokens = np.full((count, block_size), 2**20, np.uint32)
    extras = {number: bytes(key) for number in range(count)} if key else {}
    event = Event(
        EventKind.STORED, digests[: 2**15], None, tokens[: 2**15], extras, 0, Tier.DEVICE, b"", 0
    )
    if layout == "sglang":
        payloads = list(SglangEncoder(block_size).batches([event] * 3, 0.0))
    else:
        encoder = Encoder(block_size, hashes="bytes", layout=layout)
        payloads = list(encoder.batches([event] * 3, 0.0))
    assert max(map(len, payloads)) <= MOST_BYTES
    seen = [
        len(each.block_hashes) for payload in payloads for each in decode_hashes(payload).events
    ]
    assert sum(seen) == 3 * min(count, 2**15)
