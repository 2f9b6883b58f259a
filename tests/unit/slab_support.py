"""What the tests of slabs share: blocks whose bytes follow from their keys."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from blockmgr.tiers import Slab

SIZE = 4096
LAYOUT: dict[str, str | int] = {"model": "tiny", "revision": "1", "dtype": "float32", "rank": 0}


def open_slab(path: Path | str, **changes: Any) -> Slab:
    layout = {**LAYOUT, **changes.pop("layout", {})}
    options = {"num_blocks": 8, "block_bytes": SIZE, "key_bytes": 4, **changes}
    return Slab(path, layout, **options)


def key_of(number: int) -> bytes:
    return number.to_bytes(4, "little")


def content(key: bytes, size: int = SIZE) -> bytes:
    return (hashlib.sha256(key).digest() * (size // 32 + 1))[:size]


def judge(slab: Slab) -> tuple[set[bytes], int]:
    """The keys whose blocks are found and proved, and the number of those that are refused.

    A block that is proved must have the bytes of its key.
    """
    proved, refused = set(), 0
    into = bytearray(slab.block_bytes)
    for block, serial, key in slab.found.tolist():
        if slab.read(block, key, serial, into):
            assert bytes(into) == content(key, slab.block_bytes), "wrong bytes were proved"
            proved.add(key)
        else:
            refused += 1
    return proved, refused
