"""Content digests: one byte layout, library hashes only, chosen by name.

The digest of a full block is::

    H( parent digest ‖ extra keys ‖ tokens as little-endian uint32 )

where the parent of a first block is as many zero bytes as a digest has, or the digest of the
namespace if there is one. A digest finds a candidate and is never trusted: a hit is proved on
parent, tokens and extra keys, so the choice decides speed and who else can compute the same
digests, not whether an answer is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType

import xxhash

__all__ = ["DIGESTS", "KeyedDigest", "digest_function", "digest_size", "namespace_key"]

DigestFunction = Callable[[bytes], bytes]


def _sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


DIGESTS: Mapping[str, DigestFunction] = MappingProxyType(
    {"xxh3_128": xxhash.xxh3_128_digest, "sha256": _sha256}
)
"""Named digest functions: bytes in, digest out."""

_SHORTEST, _LONGEST = 8, 64
_SHORTEST_KEY = 16
_KEYED_SIZE = 16


class KeyedDigest:
    """A digest that nobody can compute without the key: for ``ManagerConfig.digest``.

    Hits are proved whatever the digest is. A key keeps others from computing digests of prompts
    they guess, where digests leave the process, and from making prompts whose digests collide.

    BLAKE2b with 16-byte digests. The key shows in neither ``repr`` nor ``str``.

    Args:
        key: A secret, 16 to 64 bytes, the same in every process that must agree on digests.

    Raises:
        ValueError: The key is too short or too long.
        TypeError: The key is not bytes.

    Source: Saarinen and Aumasson, "The BLAKE2 Cryptographic Hash and Message Authentication Code
    (MAC)", RFC 7693, section 2.5.

    >>> KeyedDigest(b"sixteen bytes ..")
    <KeyedDigest: 16 bytes>
    """

    __slots__ = ("_start",)

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes):
            raise TypeError(f"key must be bytes, got {type(key).__name__}")
        if not _SHORTEST_KEY <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(
                f"key must be {_SHORTEST_KEY} to {hashlib.blake2b.MAX_KEY_SIZE} bytes long, "
                f"got {len(key)}"
            )
        self._start = hashlib.blake2b(key=key, digest_size=_KEYED_SIZE)

    def __call__(self, message: bytes) -> bytes:
        """The digest of a message."""
        digest = self._start.copy()  # with the key absorbed
        digest.update(message)
        return digest.digest()

    def __repr__(self) -> str:
        return f"<KeyedDigest: {_KEYED_SIZE} bytes>"


def digest_function(digest: str | DigestFunction) -> DigestFunction:
    """The function behind a name, or the function itself."""
    return DIGESTS[digest] if isinstance(digest, str) else digest


def digest_size(function: DigestFunction) -> int:
    """Length in bytes of what a digest function returns, found by calling it once.

    Raises:
        TypeError: It does not return bytes.
        ValueError: The digest is shorter than 8 or longer than 64 bytes.
    """
    digest = function(b"")
    if not isinstance(digest, bytes):
        raise TypeError(f"digest must return bytes, got {type(digest).__name__}")
    if not _SHORTEST <= len(digest) <= _LONGEST:
        raise ValueError(f"digest must return {_SHORTEST} to {_LONGEST} bytes, got {len(digest)}")
    return len(digest)


def namespace_key(**parts: bytes) -> bytes:
    """One namespace out of several named parts, such as a tenant's salt and an adapter.

    Names and lengths are part of the result, so an adapter called ``x`` and a salt of ``x``
    are different namespaces, and no part can imitate the end of another.

    Args:
        **parts: Name and bytes of each part; the order of naming does not matter.

    Raises:
        TypeError: A part is not bytes.

    >>> namespace_key(salt=b"x") == namespace_key(adapter=b"x")
    False
    >>> namespace_key(salt=b"s", adapter=b"a") == namespace_key(adapter=b"a", salt=b"s")
    True
    """
    key = bytearray()
    for name, value in sorted(parts.items()):
        if not isinstance(value, bytes):
            raise TypeError(f"{name} must be bytes, got {type(value).__name__}")
        for piece in (name.encode(), value):
            key += len(piece).to_bytes(4, "little") + piece
    return bytes(key)
