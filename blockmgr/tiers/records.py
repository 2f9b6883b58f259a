"""What a slab keeps on disk: the identity of the file, its state, and a header for each block.

::

    page 0      identity: JSON, with a checksum; written once
    page 1, 2   the state, twice: number of the opening, and the lowest serial that counts
    headers     one record for each block
    order       the blocks in the order of their last use, written by a clean end
    payloads    blocks of whole pages

All numbers are little-endian. Checksums are of xxHash: XXH3 with 64 bits for records, which are
seeded by the identity, and with 128 bits for payloads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from blockmgr.arguments import integer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "FORMAT",
    "NEVER",
    "PAGE",
    "RAW",
    "Identity",
    "Order",
    "Records",
    "State",
    "checked_layout",
    "runs_of",
    "up",
]

FORMAT = 2
PAGE = 4096
RAW = 0
"""The codec of payloads that are the bytes of the block."""

MAGIC = b"BLKMSLAB"
# A slab is volatile from a reset that keeps nothing until it is opened again: no serial counts.
NEVER = 2**64 - 1
CHECK = np.dtype("<u8")
ORDER = np.dtype([("opening", "<u8"), ("count", "<u8"), ("check", CHECK)])  # then the blocks
STATE = np.dtype([("opening", "<u8"), ("floor", "<u8"), ("check", CHECK)])


def up(size: int, unit: int = PAGE) -> int:
    """The size in whole units."""
    return -(-size // unit) * unit


def runs_of(blocks: Sequence[int], most: int) -> Iterator[tuple[int, int, int]]:
    """Position, first block and number of blocks of each run of blocks that follow each other.

    >>> list(runs_of([4, 5, 6, 2, 9, 10], most=2))
    [(0, 4, 2), (2, 6, 1), (3, 2, 1), (4, 9, 2)]
    """
    at = 0
    while at < len(blocks):
        first, count = int(blocks[at]), 1
        while at + count < len(blocks) and count < most and blocks[at + count] == first + count:
            count += 1
        yield at, first, count
        at += count


@dataclass(frozen=True)
class Identity:
    """What a slab is for. Two runs whose identities are equal may share one.

    Attributes:
        format: Version of the format.
        num_blocks: Blocks in the file.
        block_bytes: Bytes of a block.
        key_bytes: Bytes of a key.
        layout: What else decides the bytes of a block, by name.
    """

    format: int
    num_blocks: int
    block_bytes: int
    key_bytes: int
    layout: Mapping[str, str | int]

    def differences(self, other: Identity) -> list[tuple[str, Any, Any]]:
        """Names of what differs, with both values; what comes first explains the rest."""
        first, *last = (
            (name, getattr(self, name), getattr(other, name))
            for name in ("format", "key_bytes", "block_bytes", "num_blocks")
        )
        named = [  # apart, because a layout may use these names as well
            (name, self.layout.get(name), other.layout.get(name))
            for name in dict.fromkeys([*self.layout, *other.layout])
        ]
        return [(name, a, b) for name, a, b in (first, *named, *last) if a != b]

    def page(self) -> bytes:
        """Page 0."""
        text = json.dumps(asdict(self), sort_keys=True).encode()
        body = MAGIC + len(text).to_bytes(4, "little") + text
        page = body + xxhash.xxh3_64_digest(body)
        if len(page) > PAGE:
            raise ValueError(f"layout must fit into a page, got {len(text)} bytes of JSON")
        return page.ljust(PAGE, b"\0")

    @classmethod
    def read(cls, page: bytes) -> Identity | None:
        """The identity in page 0; None: it is the beginning of some other file, or damaged."""
        size = len(MAGIC) + 4 + int.from_bytes(page[len(MAGIC) : len(MAGIC) + 4], "little")
        body = page[:size]
        is_whole = page[size : size + 8] == xxhash.xxh3_64_digest(body)
        if page[: len(MAGIC)] != MAGIC or not is_whole:
            return None
        try:
            said = json.loads(body[len(MAGIC) + 4 :])
            layout = dict(said.get("layout", {}))
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None  # another program can write a good checksum
        names = ("format", "num_blocks", "block_bytes", "key_bytes")  # those of this format
        return cls(**{name: said.get(name, 0) for name in names}, layout=layout)

    def seed(self) -> int:
        """Seeds the checksums of records, so that those of another slab never pass here."""
        return xxhash.xxh3_64_intdigest(self.page())


def checked_layout(layout: object) -> dict[str, str | int]:
    """A layout that users give.

    Raises:
        TypeError: It is not a mapping, or has something else than str as names, and str and int as
            values.
    """
    if not isinstance(layout, Mapping):
        raise TypeError(f"layout must map names to str and int, got {type(layout).__name__}")
    found: dict[str, str | int] = {}
    for name, value in layout.items():
        if not isinstance(name, str):
            raise TypeError(f"layout must have str as names, got {name!r}")
        found[name] = value if isinstance(value, str) else integer(f"layout[{name!r}]", value)
    return found


@dataclass(frozen=True)
class State:
    """The state of a slab.

    Attributes:
        opening: Number of times that it was opened, and above that of each serial in it.
        floor: The lowest serial that counts.
    """

    opening: int
    floor: int

    def record(self, seed: int) -> bytes:
        """The state as it is on disk."""
        body = np.array((self.opening, self.floor, 0), STATE).tobytes()[: -CHECK.itemsize]
        return body + _check(body, seed)

    @classmethod
    def read(cls, pages: list[bytes], seed: int) -> State | None:
        """The later of the states that are whole; None: neither is.

        Both are written and synced before a change counts. Numbers only grow, so what is later in
        one of them is what counts.
        """
        found = []
        for page in pages:
            body, check = page[: STATE.itemsize - 8], page[STATE.itemsize - 8 : STATE.itemsize]
            if check == _check(body, seed):
                [(opening, floor, _)] = np.frombuffer(page[: STATE.itemsize], STATE).tolist()
                found.append((opening, floor))
        if not found:
            return None
        return cls(max(opening for opening, _ in found), max(floor for _, floor in found))


@dataclass(frozen=True)
class Order:
    """The order of the blocks at a clean end.

    Attributes:
        opening: Number of the opening that ended: the order is of no other.
        blocks: ``int32[n]``: the least recently used first.
    """

    opening: int
    blocks: npt.NDArray[np.int32]

    @staticmethod
    def size(num_blocks: int) -> int:
        """Bytes of the order of so many blocks on disk."""
        return ORDER.itemsize + 4 * num_blocks

    def record(self, seed: int) -> bytes:
        """The order as it is on disk."""
        head = np.array((self.opening, len(self.blocks), 0), ORDER).tobytes()[: -CHECK.itemsize]
        blocks = self.blocks.astype("<i4").tobytes()
        return head + _check(head + blocks, seed) + blocks

    @classmethod
    def read(cls, data: bytes, seed: int) -> Order | None:
        """The order, if it is whole."""
        [(opening, count, _)] = np.frombuffer(data[: ORDER.itemsize], ORDER).tolist()
        head, blocks = data[: ORDER.itemsize - 8], data[ORDER.itemsize : cls.size(count)]
        if data[len(head) : ORDER.itemsize] != _check(head + blocks, seed):
            return None
        return cls(opening, np.frombuffer(blocks, "<i4"))


def _check(body: bytes | memoryview, seed: int) -> bytes:
    return xxhash.xxh3_64_intdigest(body, seed).to_bytes(8, "little")


class Records:
    """The headers of a slab.

    A header has the serial of the write, the codec and the size of the payload, the size of the
    block that it decodes to, the checksum of the payload, and the key.
    """

    def __init__(self, identity: Identity) -> None:
        self.seed = identity.seed()
        self.key_bytes = identity.key_bytes
        self.block_bytes = identity.block_bytes
        fields = [
            ("serial", "<u8"),
            ("logical_bytes", "<u8"),
            ("stored_bytes", "<u8"),
            ("digest", "V16"),
            ("codec", "<u2"),
            ("key", f"V{identity.key_bytes}"),
        ]
        packed = np.dtype([*fields, ("check", CHECK)])
        self.checked_bytes = packed.itemsize - CHECK.itemsize
        assert packed.fields is not None
        self.dtype = np.dtype(
            {
                "names": list(packed.names or ()),
                "formats": [packed.fields[name][0] for name in packed.names or ()],
                "offsets": [packed.fields[name][1] for name in packed.names or ()],
                "itemsize": up(packed.itemsize, 64),
            }
        )
        self.size = self.dtype.itemsize

    def make(
        self, serials: Sequence[int], keys: Sequence[bytes], digests: Sequence[bytes]
    ) -> bytes:
        """The headers of blocks that are stored as they are, one after the other."""
        records = np.zeros(len(serials), self.dtype)
        records["serial"], records["codec"] = serials, RAW
        records["logical_bytes"] = records["stored_bytes"] = self.block_bytes
        records["digest"] = np.array(digests, "V16")
        records["key"] = np.array(keys, f"V{self.key_bytes}")
        body = memoryview(records.tobytes())
        records["check"] = [
            xxhash.xxh3_64_intdigest(body[at : at + self.checked_bytes], self.seed)
            for at in range(0, len(body), self.size)
        ]
        return records.tobytes()

    def is_whole(self, record: bytes | memoryview) -> bool:
        """Whether it is a header of this slab, as it was written."""
        end = self.checked_bytes
        return record[end : end + 8] == _check(record[:end], self.seed)

    def parse(self, record: bytes) -> np.void | None:
        """The header; None: it is damaged, or there is none."""
        if len(record) != self.size or not self.is_whole(record):
            return None
        parsed: np.void = np.frombuffer(record, self.dtype)[0]
        return parsed

    def digest_of(self, record: bytes, serial: int, key: bytes) -> bytes | None:
        """The checksum of a payload, if its header is whole and the one that is meant.

        None also for a codec that is not known here, and for another size.
        """
        header = self.parse(record)
        if header is None or int(header["serial"]) != serial or bytes(header["key"]) != key:
            return None
        sizes = {int(header["stored_bytes"]), int(header["logical_bytes"])}
        if int(header["codec"]) != RAW or sizes != {self.block_bytes}:
            return None
        return bytes(header["digest"])

    def scan(self, data: bytes) -> npt.NDArray[np.void]:
        """Block, serial and key of each whole header among these, which begin at block 0."""
        records = np.frombuffer(data, self.dtype)
        view = memoryview(data)
        blocks = [
            int(block)
            for block in np.flatnonzero(records["serial"])
            if self.is_whole(view[int(block) * self.size : (int(block) + 1) * self.size])
        ]
        found = np.zeros(len(blocks), self.found_dtype)
        found["block"] = blocks
        found["serial"], found["key"] = records["serial"][blocks], records["key"][blocks]
        return found

    @property
    def found_dtype(self) -> np.dtype[np.void]:
        """What a scan finds of a block."""
        return np.dtype([("block", "<i8"), ("serial", "<u8"), ("key", f"V{self.key_bytes}")])
