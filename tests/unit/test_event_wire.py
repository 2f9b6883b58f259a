"""Events on the wire: vLLM's bytes, and what its own decoder makes of what is added to them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from contextlib import suppress
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
import xxhash

from blockmgr.events import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    DynamoEncoder,
    Encoder,
    TrtllmEncoder,
    decode,
)
from blockmgr.events.codec import MOST_BLOCKS, anonymous, short
from blockmgr.events.wire import OldBatch

PROMPT = list(range(8))


def events_of_a_run() -> list[Event]:
    """Two blocks stored under a salt, the last removed, all cleared."""
    manager = BlockManager(8, 4, events=True, digest="sha256_cbor")
    cache(manager, [*PROMPT, 9], extras=vllm_extras(9, 4, salt="tenant", lora="sql"))
    manager.forget([1])
    manager.reset_prefix_cache()
    return list(manager.take_events())


def test_a_batch_as_vllm_writes_it() -> None:
    """Worked out by hand from the format: fixarray, float 64, maps in the order of their fields."""
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


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_truncated_batch_is_refused(cut: int) -> None:
    [payload] = Encoder(4).batches(events_of_a_run(), 2.0)
    with pytest.raises(ValueError, match="payload must be a batch of events"):
        decode(payload[:-cut])


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="hashes must be 'int' or 'bytes', got 'hex'"):
        Encoder(4, hashes="hex")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="layout must be 'maps' or 'arrays', got 'lists'"):
        Encoder(4, layout="lists")  # type: ignore[arg-type]


READ_BY_VLLM = """
import sys, msgspec
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
batch = msgspec.msgpack.Decoder(KVEventBatch).decode(bytes.fromhex(sys.stdin.read()))
stored, removed, cleared = batch.events
assert isinstance(stored, BlockStored) and isinstance(removed, BlockRemoved), batch
assert isinstance(cleared, AllBlocksCleared), batch
print(batch.data_parallel_rank, stored.block_hashes == [*stored.block_hashes[:1],
      *removed.block_hashes], stored.token_ids, stored.block_size, stored.medium, stored.lora_name,
      stored.extra_keys, stored.group_idx, stored.kv_cache_spec_kind)
"""


def vllm_python() -> str | None:
    """An interpreter that has vLLM: this one, or the one that VLLM_PYTHON names."""
    import importlib.util
    import os

    named = os.environ.get("VLLM_PYTHON")
    if named and Path(named).exists():
        return named
    return sys.executable if importlib.util.find_spec("vllm") else None


@pytest.mark.skipif(vllm_python() is None, reason="vLLM is not installed; VLLM_PYTHON names one")
def test_vllms_own_structures_decode_it_and_do_not_see_what_is_added() -> None:
    [payload] = Encoder(4, rank=2, epoch=7).batches(events_of_a_run(), 2.0)
    done = subprocess.run(
        [str(vllm_python()), "-c", READ_BY_VLLM],
        input=payload.hex(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == (
        "2 True [0, 1, 2, 3, 4, 5, 6, 7] 4 GPU sql [('sql', 'tenant'), ('sql',)] 0 full_attention"
    )


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


def test_dynamos_dialect() -> None:
    """Its hash of a block's tokens is XXH3 of them as little-endian words, with the seed 1337."""
    tokens = xxhash.xxh3_64_intdigest(b"\x01\0\0\0\x02\0\0\0", 1337)
    stored, removed, cleared = DynamoEncoder(9, rank=1).encode(small_run())
    assert stored == (
        b'{"worker_id":9,"storage_tier":"device","event":{"event_id":0,"data":{"stored":'
        b'{"parent_hash":3,"start_position":null,"blocks":[{"block_hash":5,"tokens_hash":'
        + str(tokens).encode()
        + b',"mm_extra_info":null}]}},"dp_rank":1}}'
    )
    assert removed == (
        b'{"worker_id":9,"storage_tier":"host_pinned","event":{"event_id":1,"data":{"removed":'
        b'{"block_hashes":[5]}},"dp_rank":1}}'
    )
    assert cleared.endswith(b'"event":{"event_id":2,"data":"cleared","dp_rank":1}}')


def test_dynamos_hashes_tell_namespaces_adapters_and_images_apart() -> None:
    [stored, *_] = small_run()

    def tokens_hash(event: Event) -> int:
        [document] = DynamoEncoder(1).encode([event])
        return int(msgspec.json.decode(document)["event"]["data"]["stored"]["blocks"][0][
            "tokens_hash"
        ])  # fmt: skip

    data, seed = b"\x01\0\0\0\x02\0\0\0", 1337
    lora = vllm_extras(2, 2, lora="sql")
    named = seed + xxhash.xxh3_64_intdigest(b"sql", 0)
    salted = seed + xxhash.xxh3_64_intdigest(b"tenant", 1)
    image = vllm_extras(2, 2, multimodal=[("ab" * 32, 0, 1)])
    shown = data + bytes.fromhex("ab" * 8)[::-1]
    for event, due in (
        (stored._replace(extras=lora), xxhash.xxh3_64_intdigest(data, named % 2**64)),
        (stored._replace(namespace=b"tenant"), xxhash.xxh3_64_intdigest(data, salted % 2**64)),
        (stored._replace(extras=image), xxhash.xxh3_64_intdigest(shown, seed)),
        (stored._replace(extras={0: b"own"}), xxhash.xxh3_64_intdigest(data, seed)),
    ):
        assert tokens_hash(event) == due
    with pytest.raises(ValueError, match="namespace must be UTF-8 text"):
        tokens_hash(stored._replace(namespace=b"\xff"))


def test_tensorrt_llms_dialect() -> None:
    encoder = TrtllmEncoder(100, 4096, rank=0)
    stored, removed, _ = small_run()
    assert encoder.created() == (
        b'{"event_id":0,"data":{"type":"created","num_blocks_per_cache_level":[100,0]},'
        b'"window_size":4096,"attention_dp_rank":0}'
    )
    [first] = encoder.encode([stored])
    assert first == (
        b'{"event_id":1,"data":{"type":"stored","parent_hash":3,"blocks":[{"type":"stored_block",'
        b'"block_hash":5,"tokens":[{"type":"unique_token","token_id":1,"token_extra_id":0},'
        b'{"type":"unique_token","token_id":2,"token_extra_id":0}],"cache_level":0,"priority":35}]'
        b'},"window_size":4096,"attention_dp_rank":0}'
    )
    cleared = removed._replace(kind=EventKind.CLEARED, digests=[], tier=Tier.DEVICE)
    [gone] = encoder.encode([cleared, cleared])
    assert gone == (
        b'{"event_id":2,"data":{"type":"removed","block_hashes":[5]},"window_size":4096,'
        b'"attention_dp_rank":0}'
    )
