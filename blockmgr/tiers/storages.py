"""Where the bytes of a tier are: each block with a record that proves it."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import xxhash

from blockmgr.arguments import MOST, whole
from blockmgr.tiers.records import up
from blockmgr.tiers.slab import Slab

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["HostStorage", "SlabStorage", "Storage", "buffer_of"]


MOST_BYTES = 2**62  # more than any machine has, and less than ``mmap`` refuses as no size


def buffer_of(size: int) -> memoryview:
    """Memory of whole pages, which files transfer directly; the part that a block takes."""
    return memoryview(mmap.mmap(-1, up(size)))[:size]


@runtime_checkable
class Storage(Protocol):
    """The blocks of a tier. Several threads may call it, each with other blocks.

    A storage of your own inherits it, for ``read_run`` and ``write_run``. If it has attributes
    ``num_blocks``, ``block_bytes`` or ``slab``, a mover compares them with its tier.
    """

    def write(self, block: int, serial: int, key: bytes, data: memoryview, digest: bytes) -> None:
        """Writes a block with what proves it.

        Args:
            block: The block.
            serial: Serial of the write.
            key: Key of the content.
            data: The bytes.
            digest: XXH3 checksum with 128 bits, made when the bytes left the device.

        Raises:
            OSError: The storage failed.
        """
        ...

    def read(self, block: int, serial: int, key: bytes, into: memoryview) -> bytes | None:
        """Reads a block, and returns its checksum; None: it is not the one that is meant.

        Raises:
            OSError: The storage failed.
        """
        ...

    def read_run(
        self,
        blocks: Sequence[int],
        serials: Sequence[int],
        keys: Sequence[bytes],
        into: Sequence[memoryview],
    ) -> Iterator[bytes | None]:
        """``read`` of several blocks, in order; here one by one."""
        return map(self.read, blocks, serials, keys, into)

    def write_run(
        self,
        blocks: Sequence[int],
        serials: Sequence[int],
        keys: Sequence[bytes],
        data: Sequence[memoryview],
        digests: Sequence[bytes],
    ) -> Iterator[None]:
        """``write`` of several blocks, in order: an item for each that is written."""
        return map(self.write, blocks, serials, keys, data, digests)


class HostStorage(Storage):
    """Blocks in memory of the host, for one manager: those of two have the same serials.

    Args:
        num_blocks: Blocks.
        block_bytes: Bytes of a block.

    Raises:
        OSError: The machine has not so much memory.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.
    """

    user: object = None
    """What stands for the manager that has it."""

    def __init__(self, num_blocks: int, block_bytes: int) -> None:
        count = whole("num_blocks", num_blocks, 1, MOST)
        self.num_blocks, self.slab = count, None
        self.block_bytes = whole("block_bytes", block_bytes, 1, MOST_BYTES // count)
        self._memory = memoryview(mmap.mmap(-1, count * self.block_bytes))
        self._records: list[tuple[int, bytes, bytes] | None] = [None] * count

    def write(self, block: int, serial: int, key: bytes, data: memoryview, digest: bytes) -> None:
        """As ``Storage.write``."""
        self._records[block] = None  # until the bytes are whole
        self._at(block)[:] = data
        self._records[block] = serial, key, digest

    def read(self, block: int, serial: int, key: bytes, into: memoryview) -> bytes | None:
        """As ``Storage.read``."""
        record = self._records[block]
        if record is None or record[:2] != (serial, key):
            return None
        into[:] = self._at(block)
        return record[2] if xxhash.xxh3_128_digest(into) == record[2] else None

    def _at(self, block: int) -> memoryview:
        return self._memory[block * self.block_bytes : (block + 1) * self.block_bytes]


class SlabStorage(Storage):
    """Blocks in a slab.

    Args:
        slab: The slab.

    Raises:
        TypeError: It is no ``Slab``.
    """

    def __init__(self, slab: Slab) -> None:
        if not isinstance(slab, Slab):
            raise TypeError(f"slab must be a Slab, got {type(slab).__name__}")
        self.slab = slab
        self.num_blocks, self.block_bytes = slab.num_blocks, slab.block_bytes

    def write(self, block: int, serial: int, key: bytes, data: memoryview, digest: bytes) -> None:
        """As ``Storage.write``."""
        self.slab.write(block, key, data, serial=serial, digest=digest)

    def read(self, block: int, serial: int, key: bytes, into: memoryview) -> bytes | None:
        """As ``Storage.read``."""
        return self.slab.read_digest(block, key, serial, into)

    def read_run(
        self,
        blocks: Sequence[int],
        serials: Sequence[int],
        keys: Sequence[bytes],
        into: Sequence[memoryview],
    ) -> Iterator[bytes | None]:
        """As ``Storage.read_run``; it reads neighbours in the file at once."""
        return self.slab.read_digests(blocks, keys, serials, into)

    def write_run(
        self,
        blocks: Sequence[int],
        serials: Sequence[int],
        keys: Sequence[bytes],
        data: Sequence[memoryview],
        digests: Sequence[bytes],
    ) -> Iterator[None]:
        """As ``Storage.write_run``; it writes neighbours in the file at once."""
        return self.slab.write_blocks(blocks, keys, data, serials=serials, digests=digests)
