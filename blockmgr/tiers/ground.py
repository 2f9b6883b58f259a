"""What tiers would find on this machine: memory that is free, and what a file can do here."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blockmgr.tiers.errors import SlabError
from blockmgr.tiers.records import PAGE, Identity
from blockmgr.tiers.slab import FILL_BYTES, locked, opened_directly, read_at, write_at

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SlabGround", "free_memory", "slab_ground"]

TRIAL_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabGround:
    """What a slab would find at a path.

    Attributes:
        num_bytes: Bytes of the slab that is there; 0: there is none.
        made_for: What that was made for, by name; empty if there is none.
        free_bytes: Bytes that are free in the file system.
        is_direct: Whether transfers can bypass the page cache.
        trial_bytes: Bytes that were written and read as a trial, in another file.
        write_s: Seconds that this took, until they were on the disk.
        read_s: Seconds to read them; from the page cache, unless ``is_direct``.
    """

    num_bytes: int
    made_for: Mapping[str, str | int]
    free_bytes: int
    is_direct: bool
    trial_bytes: int
    write_s: float
    read_s: float


def free_memory() -> int:
    """Bytes of memory that a new process could take; what the page cache holds counts."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            facts = dict(line.split(":", 1) for line in file)
        return int(facts["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def slab_ground(path: str | os.PathLike[str]) -> SlabGround:
    """Looks at the file of a slab, which stays as it is, and times a short transfer beside it.

    Args:
        path: The file, there or to be made; its folder must exist.

    Raises:
        SlabHeldError: It is open, so an engine uses it.
        SlabError: There is no such folder, or there is another file or a damaged one; or the folder
            cannot be written.
    """
    name = os.fspath(path)
    file = locked(name, os.O_RDWR)
    identity, size = None, 0
    if file is not None:
        try:
            identity, size = Identity.read(os.pread(file, PAGE, 0)), os.fstat(file).st_size
        except OSError as error:
            raise SlabError(name, f"cannot read it: {error.strerror}") from None
        finally:
            os.close(file)
        if identity is None:
            raise SlabError(name, "it is another file, or damaged; remove it, or use another path")
    made_for: dict[str, str | int] = {}
    if identity is not None:
        made_for = dict(identity.layout)
        made_for |= {"block_bytes": identity.block_bytes, "num_blocks": identity.num_blocks}
    try:
        return _tried(os.path.dirname(name) or ".", size, made_for)
    except OSError as error:
        raise SlabError(name, f"cannot write beside it: {error.strerror}") from None


def _tried(folder: str, size: int, made_for: Mapping[str, str | int]) -> SlabGround:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".blockmgr-") as trial:
        space = os.fstatvfs(trial.fileno())
        free = space.f_bavail * space.f_frsize
        count = max(1, min(TRIAL_BYTES, free // 4) // FILL_BYTES)
        direct = opened_directly(trial.name, trial.fileno())
        file = trial.fileno() if direct < 0 else direct
        part = memoryview(mmap.mmap(-1, FILL_BYTES))
        part[:] = os.urandom(FILL_BYTES)  # which no file system makes smaller
        try:
            start = time.perf_counter()
            for i in range(count):
                write_at(file, part, i * FILL_BYTES)
            os.fsync(file)
            middle = time.perf_counter()
            for i in range(count):
                read_at(file, part, i * FILL_BYTES)
            end = time.perf_counter()
        finally:
            if direct >= 0:
                os.close(direct)
    return SlabGround(
        num_bytes=size,
        made_for=made_for,
        free_bytes=free,
        is_direct=direct >= 0,
        trial_bytes=count * FILL_BYTES,
        write_s=middle - start,
        read_s=end - middle,
    )
