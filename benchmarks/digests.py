"""What does vLLM's digest cost, natively and through Python's libraries?

A prompt of 2,048 blocks of 16 tokens, ids below 150,000, no extra keys. Three ways compute
``sha256_cbor``: the core with OpenSSL's functions; the core with a call of ``hashlib`` for each
block, as in a process without OpenSSL; and ``cbor2`` with ``hashlib``, as vLLM does. Prints medians
of rounds in turn, in nanoseconds per block. The program stops if the digests differ.

Run: python -m benchmarks.digests
"""

from __future__ import annotations

import hashlib
import random
from unittest import mock

import cbor2
import numpy as np

from benchmarks.index import medians
from blockmgr import BlockManager
from blockmgr import digest as digest_module

BLOCKS, BLOCK_SIZE = 2048, 16
RNG = random.Random(5)


def by_cbor2(tokens: list[int]) -> list[bytes]:
    """vLLM's ``hash_block_tokens`` over a prompt."""
    parent = hashlib.sha256(cbor2.dumps("vllm-none-hash", canonical=True)).digest()
    digests = []
    for start in range(0, len(tokens), BLOCK_SIZE):
        block = tuple(tokens[start : start + BLOCK_SIZE])
        parent = hashlib.sha256(cbor2.dumps((parent, block, None), canonical=True)).digest()
        digests.append(parent)
    return digests


def main() -> None:
    tokens = [RNG.randrange(150_000) for _ in range(BLOCKS * BLOCK_SIZE)]
    array = np.array(tokens, np.uint32)
    native = BlockManager(1, BLOCK_SIZE, digest="sha256_cbor")
    with mock.patch.object(digest_module, "_evp_addresses", return_value=None):
        called = BlockManager(1, BLOCK_SIZE, digest="sha256_cbor")
    calls = {
        "native": lambda: native.block_digests(array),
        "core and hashlib": lambda: called.block_digests(array),
        "cbor2 and hashlib": lambda: by_cbor2(tokens),
    }
    first, *others = (call() for call in calls.values())
    if any(other != first for other in others):
        raise SystemExit("the digests differ")
    seconds = medians(calls, 25)
    for what, median in seconds.items():
        ratio = median / seconds["native"]
        print(f"{what}: {median / BLOCKS * 1e9:.0f} ns a block, {ratio:.1f} times native")


if __name__ == "__main__":
    main()
