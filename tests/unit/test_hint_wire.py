"""Envelopes of KV hints on the wire, and what is refused at the door."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("msgspec", reason="the extra 'hints'")

import msgspec

from blockmgr import HintError
from blockmgr.hints import KvHintAction, KvHintsEnvelope, decode, encode
from blockmgr.hints.wire import MOST_ACTIONS, MOST_BYTES

PAYLOAD = {
    "block_hashes": [1, 2**64 - 1, "00ff" * 8],
    "priority": "high",
    "ttl": 60.5,
    "token_range": [0, 32],
}
ENVELOPE = KvHintsEnvelope("0.1", "m-1", [KvHintAction("a", "kv.retain", "1.0", PAYLOAD)])

# Made by the structures of vLLM 0.33.0 and of SGLang 0.5.23, which make the same bytes:
# tests/peers/test_kv_hints.py.
GOLDEN = bytes.fromhex(
    "83b070726f746f636f6c5f76657273696f6ea3302e31aa6d6573736167655f6964a36d2d31a7616374696f6e7391"
    "84a9616374696f6e5f6964a161ab616374696f6e5f74797065a96b762e72657461696eae616374696f6e5f7665"
    "7273696f6ea3312e30a77061796c6f616484ac626c6f636b5f6861736865739301cfffffffffffffffffd920"
    "3030666630306666303066663030666630306666303066663030666630306666a87072696f72697479a4686967"
    "68a374746ccb404e400000000000ab746f6b656e5f72616e6765920020"
)


def test_we_write_the_bytes_of_vllm_and_sglang() -> None:
    assert encode(ENVELOPE) == GOLDEN


def test_we_read_the_bytes_of_vllm_and_sglang() -> None:
    assert decode(GOLDEN) == ENVELOPE


def test_an_envelope_comes_as_bytes_dict_or_structure() -> None:
    action = SimpleNamespace(
        action_id="a", action_type="kv.retain", action_version="1.0", payload=PAYLOAD
    )
    structure = SimpleNamespace(protocol_version="0.1", message_id="m-1", actions=[action])
    for form in (bytearray(GOLDEN), memoryview(GOLDEN), msgspec.to_builtins(ENVELOPE), structure):
        assert decode(form) == ENVELOPE


def test_actions_and_payloads_may_be_left_out() -> None:
    assert decode({"protocol_version": "0.1", "message_id": "m"}).actions == []
    action = {"action_id": "a", "action_type": "kv.pin", "action_version": "1.0"}
    [made] = decode({"protocol_version": "0.1", "message_id": "m", "actions": [action]}).actions
    assert made.payload == {}


def changed(**fields: Any) -> dict[str, Any]:
    return {**msgspec.to_builtins(ENVELOPE), **fields}


ACTION = msgspec.to_builtins(ENVELOPE.actions[0])
NESTED = b"\x91" * 100_000
MALFORMED = {
    "nothing": b"",
    "no msgpack": b"\xc1",
    "cut off": GOLDEN[:-1],
    "followed by more": GOLDEN + b"\x00",
    "another type": 3,
    "text": "0.1",
    "no fields": {},
    "another version": changed(protocol_version="0.2"),
    "a number as an id": changed(message_id=3),
    "bytes as an id": changed(message_id=b"m"),
    "a long id": changed(message_id="m" * 257),
    "no list of actions": changed(actions={}),
    "no action": changed(actions=[3]),
    "an action without a type": changed(actions=[{"action_id": "a", "action_version": "1.0"}]),
    "too many actions": changed(actions=[ACTION] * (MOST_ACTIONS + 1)),
    "a payload that is a list": changed(actions=[{**ACTION, "payload": []}]),
    "a payload with numbers as keys": changed(actions=[{**ACTION, "payload": {1: 2}}]),
    "text that is not UTF-8": GOLDEN.replace(b"m-1", b"\xff\xff\xff"),
    "deeply nested": GOLDEN.replace(b"\xcb\x40\x4e\x40\0\0\0\0\0", NESTED + b"\x90"),
    "too long": bytes(MOST_BYTES + 1),
    "a buffer in parts": memoryview(GOLDEN * 2)[::2],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_envelope_is_refused(name: str) -> None:
    with pytest.raises(HintError) as refused:
        decode(MALFORMED[name])
    assert len(str(refused.value)) < 400


def test_a_refusal_does_not_show_a_payload() -> None:
    secret = {**ACTION, "payload": {"secret": "s3cr3t"}, "action_id": 1}
    with pytest.raises(HintError) as refused:
        decode(changed(actions=[secret]))
    assert "s3cr3t" not in str(refused.value)


@given(st.binary(max_size=200), st.integers(0, len(GOLDEN)), st.integers(0, len(GOLDEN)))
def test_any_bytes_are_decoded_or_refused(noise: bytes, start: int, stop: int) -> None:
    for data in (noise, GOLDEN[:start] + noise + GOLDEN[stop:]):
        try:
            made = decode(data)
        except HintError:
            continue
        assert encode(decode(encode(made))) == encode(made)  # not the values: NaN is not itself


def test_only_envelopes_are_encoded() -> None:
    with pytest.raises(TypeError, match="envelope must be a KvHintsEnvelope, got dict"):
        encode({})  # type: ignore[arg-type]
