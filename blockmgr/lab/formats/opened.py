"""Opens trace files, plain or compressed with gzip or zstd, standard input and folders."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from blockmgr.errors import MissingExtraError, TraceFormatError
from blockmgr.files import bounded_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["STDIN", "Opened", "opened", "parts"]

STDIN: Final = "-"
"""The name of standard input as a trace file."""

SUFFIXES: Final = frozenset({".json", ".jsonl", ".ndjson", ".log", ".csv", ".txt"})
COMPRESSED: Final = frozenset({".gz", ".zst", ".zstd"})
GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
HEAD: Final = 4096
BUFFER: Final = 64 * 2**10


class Opened:
    """A trace file that is being read.

    Attributes:
        path: Name in messages.
        head: Its first bytes, decompressed, at most 4 KiB; reading returns them again.
        line: Number of the last line read; 0 before the first.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path = path
        self.line = 0
        with _told(path, 1):
            self.head = file.read(HEAD)
        self._file = _pushed_back(self.head, file)

    def lines(self, most_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Lines, numbered from 1, with their line ends.

        Raises:
            TraceFormatError: A line is longer, or the compressed file is damaged.
        """
        number = 0
        lines = bounded_lines(self._file, self.path, most_bytes)
        while True:
            with _told(self.path, number + 1):
                try:
                    number, raw = next(lines)
                except StopIteration:
                    return
            self.line = number
            yield number, raw

    def read(self, size: int, line: int) -> bytes:
        """The next bytes, empty at the end; ``line`` is the position for messages."""
        with _told(self.path, line):
            return self._file.read(size)


@contextmanager
def opened(path: str) -> Iterator[Opened]:
    """A file, or standard input, decompressed while it is read.

    Raises:
        MissingExtraError: It is compressed with zstd, and no decoder is installed.
        TraceFormatError: It is compressed and damaged.
        OSError: It cannot be read.
    """
    if path == STDIN:
        yield Opened("<stdin>", _plain(sys.stdin.buffer, "<stdin>"))
        return
    with Path(path).open("rb") as file:
        yield Opened(path, _plain(file, path))


def parts(path: str | Path) -> list[str]:
    """The files of a trace: ``path`` itself, or all files in a folder and its subfolders.

    They are sorted by name. Names must end in ``.json .jsonl .ndjson .log .csv .txt``, optionally
    with ``.gz`` or ``.zst``; hidden files are skipped.

    Raises:
        ValueError: The folder holds none, or there is no path.
    """
    if not str(path):
        raise ValueError("trace must be a file or a folder, got ''")
    if str(path) == STDIN or not Path(path).is_dir():
        return [str(path)]
    found = []
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [str(Path(folder) / name) for name in sorted(files) if _is_trace(name)]
    if not found:
        known = " ".join(sorted(SUFFIXES))
        raise ValueError(
            f"trace must be a folder with files that end in {known}, got {str(path)!r}"
        )
    return found


def _is_trace(name: str) -> bool:
    plain = Path(name)
    if plain.suffix.lower() in COMPRESSED:
        plain = plain.with_suffix("")
    return plain.suffix.lower() in SUFFIXES and not name.startswith(".")


def _plain(file: BinaryIO, path: str) -> BinaryIO:
    """The decompressed content of a file."""
    magic = file.read(len(ZSTD))
    whole = _pushed_back(magic, file)
    if magic.startswith(GZIP):
        return cast("BinaryIO", gzip.GzipFile(fileobj=whole))
    return _zstd_file(whole, path) if magic == ZSTD else whole


def _pushed_back(head: bytes, file: BinaryIO) -> BinaryIO:
    """``file`` with bytes put back that were read from it."""
    return cast("BinaryIO", io.BufferedReader(_PushedBack(head, file), BUFFER))


class _PushedBack(io.RawIOBase):
    def __init__(self, head: bytes, file: Any) -> None:
        super().__init__()
        self._head = memoryview(head)
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._head:
            data = self._file.read1(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        size = min(len(buffer), len(self._head))
        buffer[:size] = self._head[:size]
        self._head = self._head[size:]
        return size


def _zstd_file(file: BinaryIO, path: str) -> BinaryIO:
    if sys.version_info >= (3, 14):
        from compression import zstd  # noqa: PLC0415  (only where a file needs it)
    else:
        try:
            from backports import zstd  # noqa: PLC0415  (an extra)
        except ImportError:
            raise MissingExtraError(
                "cli", f"reading {path}, which is compressed with zstd,"
            ) from None
    return cast("BinaryIO", zstd.ZstdFile(file, "r"))


@contextmanager
def _told(path: str, line: int) -> Iterator[None]:
    """Report the position at which a file is damaged."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, line, error) from None
    except Exception as error:
        if type(error).__name__ == "ZstdError":  # its class is available only if it can be raised
            raise _damaged(path, line, error) from None
        raise


def _damaged(path: str, line: int, error: Exception) -> TraceFormatError:
    return TraceFormatError(path, line, 1, f"damaged compressed data ({error})", "a whole file")
