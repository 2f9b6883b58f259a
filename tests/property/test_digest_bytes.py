"""The byte layout that digests hash, checked with the hash libraries themselves."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from blockmgr import BlockManager
from blockmgr.digest import digest_function
from tests.unit.engine import serve

LIBRARIES: dict[str, Callable[[bytes], bytes]] = {
    "xxh3_128": lambda data: xxhash.xxh3_128(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}

words = st.integers(0, 2**32 - 1)
namespaces = st.binary(max_size=40)


def chain(
    hash_of: Callable[[bytes], bytes],
    tokens: list[int],
    size: int,
    namespace: bytes,
    extras: dict[int, bytes],
) -> list[tuple[bytes, bytes]]:
    """(message, digest) of each full block: parent digest, extras, tokens as little-endian u32."""
    width = len(hash_of(b""))
    before = hash_of(namespace) if namespace else bytes(width)
    out = []
    for index in range(len(tokens) // size):
        block = tokens[index * size : (index + 1) * size]
        message = before + extras.get(index, b"") + struct.pack(f"<{size}I", *block)
        before = hash_of(message)
        out.append((message, before))
    return out


@given(
    name=st.sampled_from(sorted(LIBRARIES)),
    size=st.integers(1, 5),
    tokens=st.lists(words, min_size=1, max_size=20),
    namespace=namespaces,
    extras=st.dictionaries(st.integers(0, 4), st.binary(min_size=1, max_size=30), max_size=3),
)
def test_a_block_digest_covers_the_whole_prefix(
    name: str, size: int, tokens: list[int], namespace: bytes, extras: dict[int, bytes]
) -> None:
    """A recording digest sees the documented bytes, and nothing else, in chain order."""
    seen: list[bytes] = []

    def recording(buffer: Any) -> bytes:
        seen.append(bytes(buffer))
        return LIBRARIES[name](seen[-1])

    manager = BlockManager(32, size, digest=recording)
    seen.clear()
    serve(manager, tokens, namespace=namespace, extras=extras)
    expected = [message for message, _ in chain(LIBRARIES[name], tokens, size, namespace, extras)]
    if namespace:
        assert seen[0] == namespace
        del seen[0]
    assert [message for message in dict.fromkeys(seen) if message in expected] == expected
    assert set(seen) <= set(expected)


@given(
    name=st.sampled_from(sorted(LIBRARIES)),
    size=st.integers(1, 40),
    tokens=st.lists(words, min_size=1, max_size=100),
    namespace=namespaces,
    extras=st.dictionaries(st.integers(0, 4), st.binary(min_size=1, max_size=300), max_size=3),
)
def test_the_digests_of_a_prompt_are_the_chain_of_the_library(
    name: str, size: int, tokens: list[int], namespace: bytes, extras: dict[int, bytes]
) -> None:
    """Whether the core computes them with a C function or with Python."""
    manager = BlockManager(4, size, digest=name)
    made = manager.block_digests(tokens, namespace=namespace, extras=extras)
    expected = chain(LIBRARIES[name], tokens, size, namespace, extras)
    assert made == [digest for _, digest in expected]


@given(data=st.binary(max_size=200))
@pytest.mark.parametrize("name", sorted(LIBRARIES))
def test_the_named_digests_are_the_libraries_own(name: str, data: bytes) -> None:
    assert digest_function(name)(memoryview(data)) == LIBRARIES[name](data)


def test_the_digest_of_a_known_block() -> None:
    """Computed independently of this code: SHA-256 of 32 zero bytes and the words 1, 2, 3, 4."""
    message = bytes(32) + bytes.fromhex("01000000020000000300000004000000")
    [(made, digest)] = chain(LIBRARIES["sha256"], [1, 2, 3, 4], 4, b"", {})
    assert made == message
    assert digest == hashlib.sha256(message).digest()


def test_the_message_may_be_kept() -> None:
    kept: list[bytes] = []

    def keeping(message: bytes) -> bytes:
        kept.append(message)
        return bytes(16)

    manager = BlockManager(8, 2, digest=keeping)
    kept.clear()
    serve(manager, [1, 2, 3, 4])
    assert kept == [bytes(16) + struct.pack("<2I", *pair) for pair in ((1, 2), (3, 4))]
