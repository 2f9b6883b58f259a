"""Content digests: one byte layout, library hashes only, chosen by name.

The digest of a full block is::

    H( parent digest ‖ extra keys ‖ tokens as little-endian uint32 )

where the parent digest of a first block is the digest of the namespace, or zero bytes if there is
no namespace. ``sha256_cbor`` has vLLM's layout instead: SHA-256 of the canonical CBOR of ``[parent
digest, [tokens], extra keys]``, with vLLM's root; ``VllmDigest`` is the same with the root of
another seed. A digest only finds a candidate: a comparison of parent, tokens and extra keys proves
every hit. So the choice of digest affects speed, and which other systems can compute the same
digests, but never whether a hit is right.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import xxhash

__all__ = [
    "DIGESTS",
    "KeyedDigest",
    "VllmDigest",
    "digest_function",
    "digest_options",
    "digest_size",
    "namespace_key",
]

DigestFunction = Callable[[bytes], bytes]


def _sha256(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


DIGESTS: Mapping[str, DigestFunction] = MappingProxyType(
    {"xxh3_128": xxhash.xxh3_128_digest, "sha256": _sha256, "sha256_cbor": _sha256}
)
"""Digest functions by name, from bytes to a digest. The core builds the bytes of a block."""

_SHORTEST, _LONGEST = 8, 64
_SHORTEST_KEY = 16
_KEYED_SIZE = 16
_SHA256_SIZE = 32


class KeyedDigest:
    """A digest that cannot be computed without the key: for ``ManagerConfig.digest``.

    Hits are proved whatever the digest is. A key matters where digests leave the process: without
    it, others cannot compute the digests of prompts they guess, nor make prompts whose digests
    collide.

    BLAKE2b with 16-byte digests. Neither ``repr`` nor ``str`` shows the key.

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


@dataclass(frozen=True, slots=True)
class VllmDigest:
    """vLLM's digests with a given ``PYTHONHASHSEED``: for ``ManagerConfig.digest``.

    vLLM derives the root of its digests from ``PYTHONHASHSEED``, or from a fixed text if that is
    not set. ``digest="sha256_cbor"`` always uses the fixed text, whatever the environment says.

    Args:
        seed: The value of ``PYTHONHASHSEED`` in vLLM's processes.

    Raises:
        ValueError: UTF-8 cannot encode the seed.
        TypeError: The seed is not a str.

    Source: ``resolve_none_hash_seed`` in vLLM 0.33, ``v1/core/kv_cache_utils.py``.

    >>> VllmDigest("0")
    VllmDigest(seed='0')
    """

    seed: str = "vllm-none-hash"

    def __post_init__(self) -> None:
        if not isinstance(self.seed, str):
            raise TypeError(f"seed must be a str, got {type(self.seed).__name__}")
        try:
            self.seed.encode()
        except UnicodeEncodeError:
            raise ValueError(f"seed must be UTF-8 text, got {self.seed!r}") from None

    def __call__(self, message: bytes) -> bytes:
        """SHA-256 of a message: the core makes the CBOR of a block."""
        return _sha256(message)


def digest_function(digest: str | DigestFunction) -> DigestFunction:
    """The digest function of this name, or the function itself."""
    return DIGESTS[digest] if isinstance(digest, str) else digest


def digest_size(function: DigestFunction) -> int:
    """Length in bytes of a function's digests, found by one call.

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


class _Halves(ctypes.Structure):
    """``XXH128_hash_t`` of the xxHash library."""

    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


@functools.cache
def _xxh3_address() -> int:
    """Address of the C function of ``xxh3_128``, or 0 if this xxhash does not export it.

    The core calls it without the interpreter. It is used only if it returns the same bytes as the
    Python call for one message of each length class that the algorithm treats differently.
    """
    spec = importlib.util.find_spec("xxhash._xxhash")
    if spec is None or spec.origin is None:
        return 0
    try:
        function = ctypes.CDLL(spec.origin).XXH3_128bits
    except (AttributeError, OSError):
        return 0
    function.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    function.restype = _Halves
    for length in (0, 1, 3, 4, 8, 9, 16, 17, 80, 128, 129, 240, 241, 1024, 1025, 2065):
        message = bytes(i * 151 % 256 for i in range(length))
        halves = function(message, length)
        if (halves.high << 64 | halves.low).to_bytes(16, "big") != xxhash.xxh3_128_digest(message):
            return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_EVP = (
    "EVP_MD_CTX_new",
    "EVP_MD_CTX_free",
    "EVP_DigestInit_ex",
    "EVP_DigestUpdate",
    "EVP_DigestFinal_ex",
)


@functools.cache
def _evp_addresses() -> tuple[int, ...] | None:
    """Addresses of OpenSSL's EVP functions and its SHA-256, or None if they cannot be found.

    They come from the library that ``hashlib`` itself uses: the one that ``_hashlib`` or the
    interpreter is linked with. They are used only if they return the same digests as ``hashlib``
    for messages of every relevant number of blocks.
    """
    spec = importlib.util.find_spec("_hashlib")
    if spec is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin if spec.has_location else None)
        make, free, init, update, final = (getattr(library, name) for name in _EVP)
        sha256 = library.EVP_sha256
    except (AttributeError, OSError):
        return None
    pointer = ctypes.c_void_p
    make.restype = sha256.restype = pointer
    make.argtypes = sha256.argtypes = ()
    free.argtypes, free.restype = (pointer,), None
    init.argtypes = (pointer, pointer, pointer)
    update.argtypes = (pointer, ctypes.c_char_p, ctypes.c_size_t)
    final.argtypes = (pointer, ctypes.c_char_p, pointer)
    method, context = sha256(), make()
    if not method or not context:
        return None
    try:
        right = init(context, method, None) == 1
        digest = ctypes.create_string_buffer(_SHA256_SIZE)
        for length in (0, 1, 55, 56, 64, 80, 119, 120, 128, 1024, 2065):
            message = bytes(i * 151 % 256 for i in range(length))
            right = right and (
                init(context, None, None) == 1
                and update(context, message, length) == 1
                and final(context, digest, None) == 1
                and digest.raw == hashlib.sha256(message).digest()
            )
    finally:
        free(context)
    functions = (make, free, init, update, final)
    found = (ctypes.cast(function, pointer).value or 0 for function in functions)
    return (*found, method) if right else None


def digest_options(digest: str | DigestFunction, prefix_caching: bool) -> dict[str, Any]:
    """The core's description of a digest."""
    function = digest_function(digest)
    vllm = VllmDigest() if isinstance(digest, str) and digest == "sha256_cbor" else digest
    seed = vllm.seed.encode() if isinstance(vllm, VllmDigest) else None
    return {
        "digest": function,
        "digest_is_trusted": isinstance(digest, str | KeyedDigest | VllmDigest),
        "digest_size": digest_size(function) if prefix_caching else 0,
        "cbor_seed": seed,
        "xxh3_address": _xxh3_address() if digest == "xxh3_128" else 0,
        "evp": _evp_addresses() if function is _sha256 or seed is not None else None,
    }


def namespace_key(**parts: bytes) -> bytes:
    """One namespace made of several named parts, such as a tenant's salt and an adapter.

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
