"""Envelopes of KV hints against the structures of vLLM and SGLang themselves.

These run where the peers are installed (``benchmarks/peers/run``). The bytes that they make are
committed in ``tests/unit/test_hint_wire.py``, which runs everywhere.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="the extra 'hints'")

import msgspec

from blockmgr.hints import KvHintAction, KvHintsEnvelope, decode, encode
from tests.unit.test_hint_wire import ENVELOPE, GOLDEN

MODULES = {"vllm": "vllm.v1.kv_hints.protocol", "sglang": "sglang.srt.managers.kv_hints"}


@pytest.fixture(params=MODULES)
def peer(request: pytest.FixtureRequest) -> Any:
    try:
        return importlib.import_module(MODULES[request.param])
    except ImportError as error:
        pytest.skip(f"{request.param}: {error}")


def theirs(peer: Any) -> Any:
    """The envelope of the golden bytes in the peer's structures."""
    actions = [
        peer.KvHintAction(
            action_id=action.action_id,
            action_type=action.action_type,
            action_version=action.action_version,
            payload=action.payload,
        )
        for action in ENVELOPE.actions
    ]
    return peer.KvHintsEnvelope(
        protocol_version=ENVELOPE.protocol_version, message_id=ENVELOPE.message_id, actions=actions
    )


def test_the_structures_of_a_peer_make_the_golden_bytes(peer: Any) -> None:
    assert msgspec.msgpack.encode(theirs(peer)) == GOLDEN


def test_a_peer_decodes_our_bytes(peer: Any) -> None:
    assert msgspec.msgpack.decode(encode(ENVELOPE), type=peer.KvHintsEnvelope) == theirs(peer)


def test_we_decode_the_bytes_of_a_peer(peer: Any) -> None:
    assert decode(msgspec.msgpack.encode(theirs(peer))) == ENVELOPE


def test_we_accept_the_structures_of_a_peer(peer: Any) -> None:
    assert decode(theirs(peer)) == ENVELOPE


def test_our_fields_are_those_of_a_peer(peer: Any) -> None:
    for ours, other in ((KvHintsEnvelope, "KvHintsEnvelope"), (KvHintAction, "KvHintAction")):
        assert ours.__struct_fields__ == getattr(peer, other).__struct_fields__


def test_a_message_that_sglang_shortens_is_whole() -> None:
    """SGLang's structures have defaults for the actions and for a payload."""
    short = {"protocol_version": "0.1", "message_id": "m"}
    assert decode(msgspec.msgpack.encode(short)).actions == []
