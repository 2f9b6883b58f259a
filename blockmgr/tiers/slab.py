"""A slab: one file of KV blocks, which never returns bytes that it cannot prove.

Nothing has to reach the disk in order. A header names the checksum of its payload, so that a header
without its bytes, bytes without their header, half of either, and bytes that were overwritten are
all found when the block is read. ``records`` has the format.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import stat
import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import xxhash

from blockmgr import _core
from blockmgr.arguments import whole
from blockmgr.errors import ForkError
from blockmgr.tiers.errors import SlabError, SlabHeldError, SlabMismatchError, SlabSpaceError
from blockmgr.tiers.records import (
    FORMAT,
    NEVER,
    PAGE,
    Identity,
    Order,
    Records,
    State,
    checked_layout,
    runs_of,
    up,
)
from blockmgr.uncopied import NotCopied

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from blockmgr.tokens import Ints

__all__ = ["Slab", "locked", "opened_directly", "read_at", "write_at"]

FIRST_HEADER = 3 * PAGE
COUNTER_BITS = 40  # a serial is the number of the opening, then a counter with this many bits
SCAN_BYTES = 1 << 24  # headers that are read at a time
FILL_BYTES = 1 << 20  # zeros that are written at a time
MAX_KEY_BYTES = 1 << 18
DIGEST_BYTES = 16  # of the checksum of a block
MOST_VECTORS = 512  # places in memory that one transfer fills or reads

_open_slabs: WeakSet[Slab] = WeakSet()


def _close_in_child() -> None:
    # The lock belongs to the open file, which a child would keep open after its parent's end.
    for slab in list(_open_slabs):
        slab._close_files()


os.register_at_fork(after_in_child=_close_in_child)


class Slab(NotCopied):
    """A file of blocks, open for one process.

    The caller decides which content goes to which block, and never writes to a block while it reads
    or writes it elsewhere; the references of a ``BlockPool`` with as many blocks do both. Writes
    and reads may come from several threads.

    A new file takes all its room at once, and is written over, so that a later write lacks no room
    and takes as long as any other. It is readable for its owner only (mode 0600): K/V says what the
    prompts were, and keys identify them.

    Args:
        path: The file. It is made if there is none; its folder must exist.
        layout: What decides the bytes of a block: model, revision of the weights, and so on, by
            name. A file with another layout is refused.
        num_blocks: Number of blocks.
        block_bytes: Bytes of a block.
        key_bytes: Bytes of a key, which identifies the content of a block.

    Raises:
        SlabError: There is no such folder, or there is no file, another file or a damaged one; or
            the disk failed.
        SlabHeldError: It is open already, in this process or another.
        SlabMismatchError: It was made for other blocks.
        SlabSpaceError: The file system has no room for it.
        ValueError: A value is out of its bounds.
        TypeError: A value is of the wrong type.

    Cost: a new file is written once. Later, one read of all headers, 128 bytes each with a key of
    36 bytes, and two syncs.

    >>> import tempfile
    >>> options = {"layout": {"model": "tiny"}, "num_blocks": 4, "block_bytes": 8, "key_bytes": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     slab = Slab(f"{folder}/kv.slab", **options)
    ...     serial = slab.write(2, b"k", b"8 bytes.")
    ...     slab.close()
    ...     again = Slab(f"{folder}/kv.slab", **options)
    ...     block = bytearray(8)
    ...     found = [(int(entry["block"]), bytes(entry["key"])) for entry in again.found]
    ...     found, again.read(2, b"k", serial, block), bytes(block)
    ([(2, b'k')], True, b'8 bytes.')
    """

    is_used = False
    """Whether a manager has it, whose blocks no other one may write over."""
    _file = _direct = -1  # closed
    _instead = "open a file of its own, or pass the slab itself"

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: Mapping[str, str | int],
        *,
        num_blocks: int,
        block_bytes: int,
        key_bytes: int,
    ) -> None:
        self.path = _path(path)
        self.num_blocks = whole("num_blocks", num_blocks, 1, 2**31 - 1)
        self.block_bytes = whole("block_bytes", block_bytes, 1, 2**40)
        self.key_bytes = whole("key_bytes", key_bytes, 1, MAX_KEY_BYTES)
        identity = Identity(
            FORMAT, self.num_blocks, self.block_bytes, self.key_bytes, checked_layout(layout)
        )
        self._records = Records(identity)
        self._order = FIRST_HEADER + up(self._records.size * self.num_blocks)
        self._payloads = self._order + up(Order.size(self.num_blocks))
        self._stride = up(self.block_bytes)
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # of headers, so that nothing else waits for a disk
        self._revoked: set[int] = set()
        self._pid = os.getpid()
        # Of each block, the serial that a restart may find in its header; 0 for none.
        self._serials = np.zeros(self.num_blocks, np.uint64)
        self._file = _opened(self.path, identity, self._payloads + self._stride * self.num_blocks)
        _open_slabs.add(self)
        try:
            self._begin()
        except BaseException as error:
            self._close_files()
            if isinstance(error, OSError):
                raise _failed(self.path, error) from None
            raise

    def _begin(self) -> None:
        """Reads what is there, and counts the opening."""
        seed = self._records.seed
        state = State.read([self._bytes_at(page * PAGE, PAGE) for page in (1, 2)], seed)
        if state is None:
            raise SlabError(self.path, "its state is damaged; remove the file")
        found = self._scan()
        last = int(found["serial"].max()) if found.size else 0
        opening = max(state.opening, last >> COUNTER_BITS) + 1
        self._next = opening << COUNTER_BITS
        self._floor = self._next if state.floor == NEVER else state.floor
        self._opening = opening
        self._save(State(opening, self._floor))
        found = found[found["serial"] >= self._floor]
        found = found[np.argsort(found["serial"])]
        self._serials[found["block"]] = found["serial"]
        # A key that was written twice counts once, as it was written last.
        last_of = {bytes(entry["key"]): i for i, entry in enumerate(found)}
        self.found = found[sorted(last_of.values())]
        """Block, serial and key of each block that was there at the opening, the oldest first."""
        self.order = self._read_order(state.opening)
        """These blocks, that which was used the longest ago first. After an end without ``close``,
        or one without an order, that is the order of their writes."""
        self._direct = opened_directly(self.path, self._file)

    def _read_order(self, opening: int) -> list[int]:
        """The blocks that were found, in the order of the last opening, if it had a clean end."""
        found: list[int] = self.found["block"].tolist()
        data = self._bytes_at(self._order, Order.size(self.num_blocks))
        order = Order.read(data, self._records.seed)
        if order is None or order.opening != opening:
            return found
        place = {block: i for i, block in enumerate(order.blocks.tolist())}
        return sorted(found, key=lambda block: place.get(block, -1))

    def _scan(self) -> Any:
        size = self._records.size
        most = SCAN_BYTES // size
        parts = []
        for first in range(0, self.num_blocks, most):
            count = min(most, self.num_blocks - first)
            part = self._records.scan(self._bytes_at(self._header(first), count * size))
            part["block"] += first
            parts.append(part)
        return np.concatenate(parts)

    def _bytes_at(self, at: int, size: int) -> bytes:
        data = bytearray(size)
        if read_at(self._file, memoryview(data), at) < size:
            raise SlabError(self.path, "it ends early; remove the file")
        return bytes(data)

    # Blocks.

    def take_serials(self, n: int) -> int:
        """The first of ``n`` serials in a row, for writes whose keys name each other's serials.

        Raises:
            ForkError: The process was forked after the opening.
            ValueError: ``n`` below 1, or the slab is closed.
        """
        self._check_open()
        whole("n", n, 1, 2**31 - 1)
        with self._lock:
            first = self._next
            self._next += n
        return first

    def write(
        self,
        block: int,
        key: bytes,
        data: bytes | bytearray | memoryview,
        *,
        serial: int | None = None,
        digest: bytes | None = None,
    ) -> int:
        """Writes a block, and returns its serial, a number that no other write of the file has.

        Without a sync: after a power failure the block may be lost, but nothing else is found in
        its place.

        Args:
            block: The block; what it had is lost, also when the write fails.
            key: The key of the content.
            data: ``block_bytes`` of memory. The transfer bypasses the page cache where the file
                system can, the block has whole pages, and they are aligned.
            serial: One of ``take_serials``, used for no other write; None for the next one.
            digest: Checksum of the block that came with it, XXH3 with 128 bits, by which it is
                proved when it is read; None to make it of ``data``.

        Raises:
            OSError: The disk failed. The block has no content.
            ForkError: The process was forked after the opening.
            ValueError: A value is out of its bounds, or the slab is closed.
        """
        if serial is None:
            serial = self.take_serials(1)
        digests = None if digest is None else [digest]
        for _ in self.write_blocks([block], [key], [data], serials=[serial], digests=digests):
            pass
        return serial

    def write_blocks(
        self,
        blocks: Sequence[int],
        keys: Sequence[bytes],
        data: Sequence[bytes | bytearray | memoryview],
        *,
        serials: Sequence[int],
        digests: Sequence[bytes] | None = None,
    ) -> Iterator[None]:
        """``write`` of several blocks, in order: an item for each that is written.

        Blocks that follow each other in the file are written at once, when the item of the first is
        asked for. If the disk fails, those that have no item yet have no content.

        Args:
            blocks: The blocks.
            keys: The key of each.
            data: The bytes of each.
            serials: The serial of each, of ``take_serials``.
            digests: The checksum of each; None to make them.
        """
        _check_lengths(blocks, keys=keys, data=data, serials=serials, digests=digests)
        views = [self._checked(*each) for each in zip(blocks, keys, data, strict=True)]
        if digests is None:
            digests = [xxhash.xxh3_128_digest(view) for view in views]
        for serial, digest in zip(serials, digests, strict=True):
            whole("serial", serial, self._opening << COUNTER_BITS, self._next - 1)
            _check_bytes("digest", digest, DIGEST_BYTES)
        headers = memoryview(self._records.make(serials, keys, digests))
        size = self._records.size
        for at, first, count in runs_of(blocks, MOST_VECTORS):
            self._write_payloads(first, views[at : at + count])
            with self._writing:
                if self._revoked.isdisjoint(serials[at : at + count]):
                    self._serials[first : first + count] = serials[at : at + count]
                    part = headers[at * size : (at + count) * size]
                    write_at(self._file, part, self._header(first))
            yield from itertools.repeat(None, count)

    def _write_payloads(self, first: int, views: list[memoryview]) -> None:
        """Writes blocks that follow each other."""
        file, done = self._file_of_run(views), 0
        if file is not None:
            done = os.pwritev(file, views, self._payload(first))
        # A file system may take less at once: whole blocks count, the others are written again.
        for i in range(done // self.block_bytes, len(views)):
            write_at(self._file_for(views[i]), views[i], self._payload(first + i))

    def read(self, block: int, key: bytes, serial: int, into: bytearray | memoryview) -> bool:
        """Reads a block, and returns whether it is proved.

        It is if header and payload have their checksums, and the header has this key and serial.

        Args:
            block: The block.
            key: The key of the content.
            serial: The serial of its write.
            into: ``block_bytes`` of memory, for the block; rubbish if the block is not proved.

        Raises:
            OSError: The disk failed.
            ForkError: The process was forked after the opening.
            ValueError: A value is out of its bounds, or the slab is closed.
        """
        return self.read_digest(block, key, serial, into) is not None

    def read_digest(
        self, block: int, key: bytes, serial: int, into: bytearray | memoryview
    ) -> bytes | None:
        """``read``, and the checksum that was written with the block; None: it is not proved.

        For a copy of the block that is to be proved by the same checksum.
        """
        return next(self.read_digests([block], [key], [serial], [into]))

    def read_digests(
        self,
        blocks: Sequence[int],
        keys: Sequence[bytes],
        serials: Sequence[int],
        into: Sequence[bytearray | memoryview],
    ) -> Iterator[bytes | None]:
        """``read_digest`` of several blocks, in order.

        Blocks that follow each other in the file are read at once, into memory that they share or
        not.

        Args:
            blocks: The blocks.
            keys: The key of each.
            serials: The serial of each.
            into: Memory for each.
        """
        _check_lengths(blocks, keys=keys, serials=serials, into=into)
        views = [self._checked(*each) for each in zip(blocks, keys, into, strict=True)]
        for at, first, count in runs_of(blocks, MOST_VECTORS):
            size = self._records.size
            headers = os.pread(self._file, count * size, self._header(first))
            is_read = self._read_payloads(first, views[at : at + count])
            for i in range(count):
                header = headers[i * size : (i + 1) * size]
                digest = self._records.digest_of(header, serials[at + i], keys[at + i])
                is_right = is_read[i] and digest == xxhash.xxh3_128_digest(views[at + i])
                yield digest if is_right else None

    def _read_payloads(self, first: int, views: list[memoryview]) -> list[bool]:
        """Reads blocks that follow each other; whether each came whole."""
        size, file = self.block_bytes, self._file_of_run(views)
        whole_run = len(views) * size
        if file is not None and os.preadv(file, views, self._payload(first)) == whole_run:
            return [True] * len(views)
        return [
            read_at(self._file_for(view), view, self._payload(first + i)) == size
            for i, view in enumerate(views)
        ]

    def _file_of_run(self, views: list[memoryview]) -> int | None:
        """The file that transfers all of these at once; None: each goes by itself."""
        files = {self._file_for(view) for view in views}
        is_run = self._stride == self.block_bytes and len(files) == 1 < len(views)
        return files.pop() if is_run else None

    def erase(self, blocks: Sequence[int]) -> None:
        """Makes these blocks count no longer, now and after a restart.

        Raises:
            OSError: The disk failed.
            ForkError: The process was forked after the opening.
            ValueError: A block is out of bounds, or the slab is closed.
        """
        self._check_open()
        known = [whole("blocks", block, 0, self.num_blocks - 1) for block in blocks]
        for block in known:
            write_at(self._file, memoryview(bytes(self._records.size)), self._header(block))
        if known:
            os.fsync(self._file)
            self._serials[known] = 0

    def _revoke(self, serials: Iterable[int]) -> None:
        """Has writes under these serials, of which some may be under way, leave no header.

        So what is erased after this call does not come back. ``_restore`` ends it.
        """
        with self._writing:
            self._revoked.update(serials)

    def _restore(self, serials: Iterable[int]) -> None:
        """Ends ``_revoke``, when no write under these serials is under way."""
        with self._writing:
            self._revoked.difference_update(serials)

    def reset(self, *, volatile: bool = False) -> None:
        """Makes every block in the file count no longer, now and after a restart.

        Args:
            volatile: Also what is written from here on, until the slab is opened again: for
                engines whose weights have changed, so that the layout may no longer say which they
                are.

        Raises:
            OSError: The disk failed.
            ForkError: The process was forked after the opening.
            ValueError: The slab is closed.
        """
        self._check_open()
        with self._lock:
            floor = NEVER if volatile or self._floor == NEVER else self._next
            self._save(State(self._opening, floor))
            self._floor = floor
            self._serials[:] = 0
            self.found, self.order = self.found[:0], []

    def close(self, *, order: Ints = ()) -> None:
        """Closes the file, which stays; a second time does nothing. No call may be in progress.

        Args:
            order: Blocks that the next opening is to know in this order, that which was used the
                longest ago first. It takes 4 bytes a block, and is lost in a power failure.

        Raises:
            OSError: The order could not be written. The file is closed.
            ValueError: A block is out of bounds, or there are more than the slab has.
            TypeError: ``order`` has something else than ints.
        """
        blocks = _core.int_array(order, "order")
        if len(blocks) > self.num_blocks:
            raise ValueError(f"order must have at most {self.num_blocks} blocks, got {len(blocks)}")
        for block in (blocks.min(), blocks.max()) if len(blocks) else ():
            whole("order", block, 0, self.num_blocks - 1)
        _open_slabs.discard(self)
        try:
            if self._file >= 0 and len(blocks):
                record = Order(self._opening, blocks.astype(np.int32)).record(self._records.seed)
                write_at(self._file, memoryview(record), self._order)
        finally:
            self._close_files()

    def __del__(self) -> None:
        self._close_files()

    # Places in the file.

    def _header(self, block: int) -> int:
        return FIRST_HEADER + block * self._records.size

    def _payload(self, block: int) -> int:
        return self._payloads + block * self._stride

    def _file_for(self, view: memoryview) -> int:
        """The file to transfer this memory with: directly if the kernel can."""
        if self._direct < 0 or self.block_bytes % PAGE:
            return self._file
        address: int = np.frombuffer(view, np.uint8).ctypes.data
        return self._file if address % PAGE else self._direct

    # Files and checks.

    def _save(self, state: State) -> None:
        """Writes the state twice, each synced, so that one of the two is whole at any time."""
        record = state.record(self._records.seed)
        for page in (1, 2):
            write_at(self._file, memoryview(record), page * PAGE)
            os.fsync(self._file)

    def _checked(self, block: int, key: bytes, data: bytes | bytearray | memoryview) -> memoryview:
        self._check_open()
        whole("block", block, 0, self.num_blocks - 1)
        view = memoryview(data).cast("B")
        _check_bytes("key", key, self.key_bytes)
        if view.nbytes != self.block_bytes:
            raise ValueError(f"memory must have {self.block_bytes} bytes, got {view.nbytes}")
        return view

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ForkError("a slab belongs to the process that opened it; open another one here")
        if self._file < 0:
            raise ValueError(f"slab {self.path} is closed")

    def _close_files(self) -> None:
        files, self._file, self._direct = (self._file, self._direct), -1, -1
        for file in files:
            if file >= 0:
                os.close(file)


def _check_lengths(blocks: Sequence[int], **others: Sequence[object] | None) -> None:
    for name, values in others.items():
        if values is not None and len(values) != len(blocks):
            raise ValueError(f"{name} must be one for each of {len(blocks)}, got {len(values)}")


def _check_bytes(name: str, value: object, size: int) -> None:
    if not isinstance(value, bytes):
        raise TypeError(f"{name} must be bytes, got {type(value).__name__}")
    if len(value) != size:
        raise ValueError(f"{name} must have {size} bytes, got {len(value)}")


def _path(path: object) -> str:
    """The path of a slab. Paths in bytes are none: the name of its draft is made of text."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise TypeError(f"path must be a str or a path, got {type(path).__name__}")
    if not name or "\0" in name:
        raise ValueError(f"path must name a file, got {name!r}")
    return name


def _opened(path: str, identity: Identity, size: int) -> int:
    """The file, locked, with this identity; made first if there is none."""
    file = locked(path, os.O_RDWR)
    if file is None:
        file = _made(path, identity, size)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise SlabError(path, "it is not a file")
        known = Identity.read(os.pread(file, PAGE, 0))
        if known is None:
            raise SlabError(path, "it is another file, or damaged; remove it, or use another path")
        for field, theirs, ours in known.differences(identity):
            raise SlabMismatchError(path, field, theirs, ours)
        if found.st_size != size:
            raise SlabError(path, f"it has {found.st_size} bytes, not {size}; remove the file")
    except BaseException as error:
        os.close(file)
        if isinstance(error, OSError):
            raise _failed(path, error) from None
        raise
    return file


def _failed(path: str, error: OSError) -> SlabError:
    return SlabError(path, f"the disk failed: {error.strerror}")


def locked(path: str, flags: int) -> int | None:
    """The file, locked for this object; None: there is none."""
    try:
        file = os.open(path, flags, 0o600)
    except FileNotFoundError:
        folder = os.path.dirname(path) or "."
        if os.path.isdir(folder) and not flags & os.O_CREAT:
            return None
        raise SlabError(path, f"there is no folder {folder}") from None
    except OSError as error:
        raise SlabError(path, f"cannot open it: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(file), os.stat(path)):
            raise BlockingIOError  # another process has put another file there
    except OSError as error:
        os.close(file)
        if isinstance(error, BlockingIOError | FileNotFoundError):
            raise SlabHeldError(path) from None
        raise SlabError(path, f"cannot lock it: {error.strerror}") from None
    return file


def _made(path: str, identity: Identity, size: int) -> int:
    """A new slab: whole under another name first, so that a path never has half of one."""
    target = os.path.realpath(path)  # a link to a file that is yet to be made stays one
    draft = f"{target}.blockmgr-new"
    file = locked(draft, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    assert file is not None
    try:
        os.fchmod(file, 0o600)  # also of a draft of before
        if os.path.exists(path):
            raise SlabHeldError(path)  # made in the meantime
        os.ftruncate(file, 0)
        free = os.fstatvfs(file)
        room = SlabSpaceError(path, size, free.f_bavail * free.f_frsize)
        if size > room.available:
            raise room
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise room from None
        _fill(draft, file, size)
        record = State(0, 0).record(identity.seed())
        for page, data in enumerate((identity.page(), record, record)):
            write_at(file, memoryview(data), page * PAGE)
        os.fsync(file)
        os.rename(draft, target)
    except BaseException as error:
        os.close(file)
        with contextlib.suppress(OSError):
            os.unlink(draft)
        if isinstance(error, OSError):
            raise SlabError(path, f"cannot make it: {error.strerror}") from None
        raise
    return file


def _fill(path: str, file: int, size: int) -> None:
    """Writes over the file: a first write to room that was only allocated is far slower."""
    direct = opened_directly(path, file)
    zeros = memoryview(mmap.mmap(-1, FILL_BYTES))
    for at in range(0, size, FILL_BYTES):
        write_at(file if direct < 0 else direct, zeros[: min(FILL_BYTES, size - at)], at)
    if direct >= 0:
        os.close(direct)


def opened_directly(path: str, file: int) -> int:
    """The same file, past the page cache; -1: its file system cannot."""
    direct = -1
    try:
        direct = os.open(path, os.O_RDWR | getattr(os, "O_DIRECT", 0))
        os.preadv(direct, [mmap.mmap(-1, PAGE)], 0)
        if os.path.sameopenfile(direct, file):
            return direct
    except OSError:
        pass
    if direct >= 0:
        os.close(direct)
    return -1


def write_at(file: int, data: memoryview, at: int) -> None:
    """Writes all of it."""
    while data.nbytes:
        count = os.pwrite(file, data, at)
        data, at = data[count:], at + count


def read_at(file: int, into: memoryview, at: int) -> int:
    """Bytes that were read; fewer than asked for where the file ends."""
    total = 0
    while total < into.nbytes:
        count = os.preadv(file, [into[total:]], at + total)
        if not count:
            break
        total += count
    return total
