"""Reading bounded lines, and writing whole files or nothing.

An output is written beside its target and then renamed, so a run that fails, is interrupted or
fills the disk leaves the existing file unchanged. A symbolic link is refused as an output:
following it would change a file that was not named, and replacing it would break whatever reads the
file it points to.
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from blockmgr.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "MAX_LINE_BYTES",
    "bounded_lines",
    "check_output",
    "printable",
    "replacing",
]

MAX_LINE_BYTES: Final = 64 * 2**20
"""Longest line to read, including its end: about ten million tokens."""


def bounded_lines(file: BinaryIO, path: str, most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, numbered from 1, with their line ends.

    Args:
        file: The file, open.
        path: What messages call it.
        most_bytes: Longest line to accept. The reader never holds more of a line.

    Raises:
        TraceFormatError: A line is longer. The error names the line, which was not read to its end.
        OSError: The file cannot be read.
    """
    number = 0
    while raw := file.readline(most_bytes + 1):
        number += 1
        if len(raw) > most_bytes:
            found = f"a line of more than {most_bytes} bytes"
            expected = f"at most {most_bytes} bytes a line"
            raise TraceFormatError(path, number, most_bytes + 1, found, expected)
        yield number, raw


def check_output(
    path: str | Path,
    *,
    suffixes: tuple[str, ...] = (),
    inputs: Iterable[str | Path | None] = (),
    name: str = "output",
) -> Path:
    """``path``, if writing there harms no other file.

    Args:
        path: File to write.
        suffixes: Allowed ends of its name; empty for any.
        inputs: Files that are read and must not be replaced; a None is no file.
        name: Name of the file in messages.

    Raises:
        ValueError: It has none of ``suffixes``, its folder does not exist, it is a folder or a
            symbolic link, or it is one of ``inputs``, under any name.
    """
    target = Path(path)
    if suffixes and target.suffix.lower() not in suffixes:
        raise ValueError(f"{name} must end in {' or '.join(suffixes)}, got {target.name!r}")
    if not target.parent.is_dir():
        raise ValueError(f"{name} must go into a folder that exists, got {str(target.parent)!r}")
    if target.is_symlink():
        aim = str(target.readlink())
        raise ValueError(
            f"{name} must not be a symbolic link, got {str(target)!r}, which points to {aim!r}: "
            "name the file itself"
        )
    if target.is_dir():
        raise ValueError(f"{name} must be a file, got the folder {str(target)!r}")
    for other in inputs:
        if other is None or not target.exists() or not Path(other).exists():
            continue
        if target.samefile(other):
            raise ValueError(
                f"{name} must not be the file that is read, got {str(target)!r} for both"
            )
    return target


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write to; it replaces ``path`` once the block ends without an error.

    Until then it has another name in the same folder, and an error removes it. It has the
    permissions of the file it replaces. A device or a pipe is written directly.

    Raises:
        ValueError: ``path`` is a symbolic link or a folder, or its folder does not exist.
        OSError: The file cannot be written; an existing file is unchanged.
    """
    target = check_output(path)
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    before = target.stat() if target.exists() else None
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(f"{str(target)!r} is read-only")
    # Not the target's name and a suffix: that name may have the maximum length already.
    beside = target.with_name(f".blockmgr-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            if before is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def printable(text: str) -> str:
    r"""``text`` with escapes for what cannot be printed or encoded as UTF-8.

    A file name may hold any byte except two, including control characters for terminals and XML
    parsers.

    >>> print(printable("a\x1b[2J\udcff"))
    a\x1b[2J\xff
    """
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    # Python decodes the bytes of a file name that are not UTF-8 as these.
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")
